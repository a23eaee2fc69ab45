"""The status of a running job, for ``flinkplus status``: slots, subtasks, chains and what ``JobHandle`` reports.

Rules: built in the coordinator's thread, which changes nothing by it. ``Status.to_json`` is the only writer and
``from_json`` the only reader; ``docs/formats.md`` has the meaning of each field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flinkplus.documents import Document
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess

STARTING, LEAVING, ENDING = "starting", "leaving", "ending"
WORKING, STANDBY, IDLE, AWAY = "working", "standby", "idle", "away"
RUNNING, MOVING = "running", "moving"
Holding = tuple[SubtaskId, int, int, Sequence[tuple[int, int | None, bool]]]
"""Subtask, generation of its chain, newest version of its head, and the members, head first: slot, newest version that
it holds (``None``: none), whether it is catching up. See ``FailoverProtocol.holdings``."""


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


def slots_of(
    needed: Sequence[int],
    spares: Mapping[int, str],
    processes: Sequence[SlotProcess],
    incarnations: Mapping[int, int],
    assignment: Mapping[SubtaskId, int],
    chains: Iterable[Holding],
    now_s: float,
) -> tuple[SlotStatus, ...]:
    """Every slot. ``needed``: numbers of slots. ``spares``: number -> ``SpareState``. ``now_s``: monotonic clock."""
    registered = {process.slot: process for process in processes}
    copies = [slot for *_, held in chains for slot, _, _ in held[1:]]
    found = []
    for slot in (*needed, *sorted(spares)):
        process = registered.get(slot)
        subtasks, standbys = sum(at == slot for at in assignment.values()), copies.count(slot)
        state = WORKING if subtasks else STANDBY if standbys else IDLE
        if spares.get(slot) in (STARTING, LEAVING, ENDING):
            state = spares[slot]
        elif process is None:
            state = AWAY
        found.append(
            SlotStatus(
                slot=f"slot-{slot}",
                spare=slot in spares,
                state=state,
                host=None if process is None else process.host,
                pid=None if process is None else process.pid,
                address=None if process is None else process.address,
                restarts=max(0, incarnations.get(slot, 0) - 1),
                heard_ms=None if process is None else round((now_s - process.heard_s) * 1e3, 1),
                subtasks=subtasks,
                standbys=standbys,
            )
        )
    return tuple(found)


def subtasks_of(
    assignment: Mapping[SubtaskId, int],
    generations: Mapping[SubtaskId, int],
    registered: Iterable[int],
    moving: Iterable[SubtaskId],
    counters: Mapping[str, Mapping[str, Any]],
) -> tuple[SubtaskStatus, ...]:
    """Every subtask.

    ``registered``: slots with a registered process.
    ``moving``: subtasks that a failover or handover is moving.
    ``counters``: subtask -> counters of its last heartbeat.
    """
    slots, moved = set(registered), set(moving)
    found = []
    for subtask, slot in sorted(assignment.items()):
        reported = counters.get(str(subtask), {})
        operators = list(reported.get("operators", {}).values())
        found.append(
            SubtaskStatus(
                subtask=str(subtask),
                vertex=subtask.vertex,
                index=subtask.index,
                slot=f"slot-{slot}",
                generation=generations.get(subtask),
                state=MOVING if subtask in moved else RUNNING if slot in slots else AWAY,
                rows_in=operators[0].get("rows_in") if operators else None,
                rows_out=reported.get("rows_out"),
                behind_rows=reported.get("behind"),
                waiting_messages=reported.get("waiting"),
                keys=reported.get("keys"),
                state_bytes=reported.get("bytes"),
                blocked=reported.get("blocked", ""),
            )
        )
    return tuple(found)


def chains_of(chains: Iterable[Holding]) -> tuple[ChainStatus, ...]:
    """Every chain."""
    return tuple(
        ChainStatus(
            subtask=str(subtask),
            generation=generation,
            newest=newest,
            members=tuple(
                MemberStatus(
                    slot=f"slot-{slot}",
                    role="head" if place == 0 else "standby",
                    version=version,
                    lag=newest - (version or 0),
                    catching_up=catching_up,
                )
                for place, (slot, version, catching_up) in enumerate(members)
            ),
        )
        for subtask, generation, newest, members in chains
    )
