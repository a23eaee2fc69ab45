"""The status of a running job, for ``flinkplus status``.

Rules: ``Status.to_json`` is its only writer and ``from_json`` its only reader; ``docs/formats.md`` explains each field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flinkplus.documents import Document
from flinkplus.errors import PeerProtocolError


@dataclass(frozen=True, kw_only=True)
class JobSummary(Document):
    """Which job it is, where its driver runs, and its main options."""

    job_id: str
    name: str
    host: str
    pid: int
    recovery: str
    guarantee: str
    parallelism: int
    replicas: int
    checkpoint_interval_s: float | None
    checkpoint_dir: str
    restored_from: int | None
    ui: str | None


@dataclass(frozen=True, kw_only=True)
class RescaleStatus(Document):
    """A change of parallelism that is under way."""

    parallelism: int
    phase: str
    left: list[str]


@dataclass(frozen=True, kw_only=True)
class SlotStatus(Document):
    """One slot; ``None`` in fields of its process when none is registered."""

    slot: str
    spare: bool
    state: str
    host: str | None
    pid: int | None
    address: str | None
    restarts: int
    heard_ms: float | None
    subtasks: int
    standbys: int


@dataclass(frozen=True, kw_only=True)
class SubtaskStatus(Document):
    """One subtask; ``None`` in counters that its slot has not reported."""

    subtask: str
    vertex: str
    index: int
    slot: str
    generation: int | None
    state: str
    rows_in: int | None
    rows_out: int | None
    behind_rows: int | None
    waiting_messages: int | None
    keys: int | None
    state_bytes: int | None
    busy_s: float | None
    watermark_ms: int | None
    blocked: str


@dataclass(frozen=True, kw_only=True)
class MemberStatus(Document):
    """One slot of a chain."""

    slot: str
    role: str
    version: int | None
    lag: int
    catching_up: bool


@dataclass(frozen=True, kw_only=True)
class ChainStatus(Document):
    """The chain of one subtask."""

    subtask: str
    generation: int
    newest: int
    members: tuple[MemberStatus, ...]


@dataclass(frozen=True, kw_only=True)
class Status(Document):
    """The whole status."""

    REFUSED: ClassVar[type[Exception]] = PeerProtocolError

    job: JobSummary
    metrics: dict[str, Any]
    slots: tuple[SlotStatus, ...]
    subtasks: tuple[SubtaskStatus, ...]
    chains: tuple[ChainStatus, ...]
    drained_hosts: list[str]
    checkpoints: list[dict[str, Any]]
    recoveries: list[dict[str, Any]]
    handovers: list[dict[str, Any]]
    rescaling: RescaleStatus | None
    rescales: list[dict[str, Any]]
    savepoints: list[dict[str, Any]]
