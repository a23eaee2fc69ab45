"""The snapshot handle: with the durable storage, all that a new process needs to restore one subtask.

Rules: a slot makes it; the coordinator, the standbys and the manifest pass it on. ``from_json`` is its only reader and
``to_json`` its only writer. It is in ring 0 because all layers from a subtask's steps to the coordinator read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flinkplus.documents import Document
from flinkplus.errors import CorruptState
from flinkplus.protocol.snapshot.files import StagedFile, StateFile

HANDLE_FORMAT = 2
"""2: a state file may be shared, and count in part."""


@dataclass(frozen=True, kw_only=True)
class OperatorPart(Document):
    """One operator's part of a snapshot.

    ``own``: the operator's own counters.
    ``watermark_ms``: event time up to which it has emitted.
    ``position``: where a source reads next, in its own format.
    ``state``: the operator's state, JSON.
    ``staged``: a sink's output that is not known to be in a complete checkpoint.
    """

    rows_in: int
    rows_out: int
    own: dict[str, Any] = field(default_factory=dict)
    watermark_ms: int | None = None
    position: Any = None
    state: Any = None
    staged: tuple[StagedFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OperatorState(Document):
    """What a subtask restores in addition to keyed state. Channels are written as text.

    ``operators``: by name.
    ``inputs``, ``outputs``: channel -> next ``seq`` to take, to send.
    ``aborted``: newer checkpoints that were already aborted.
    ``ended``: it has reached the end of its input.
    ``steps``: the number of the next step.
    ``clock_ms``: the time that steps have read last.
    ``ended_channels``: inputs that have ended.
    ``watermarks``: input channel -> event time in milliseconds.
    ``reached``: number of an ancestor -> its first unknown step, where barriers run ahead.
    ``rounds``: of the loop that it is in.
    ``in_flight``: input channel -> messages that belong to the snapshot, base64.
    ``in_flight_bytes``: size of these in the handle.
    ``drained``: the job was being drained.
    ``run``: the run of the job, and the rows that the runs before it had read of a paced source.
    """

    operators: dict[str, OperatorPart] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    aborted: tuple[int, ...] = ()
    ended: bool = False
    steps: int = 0
    clock_ms: int = 0
    ended_channels: tuple[str, ...] = ()
    watermarks: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, Any] | None = None
    in_flight: dict[str, list[Any]] = field(default_factory=dict)
    in_flight_bytes: int = 0
    drained: bool = False
    run: tuple[int, ...] = (-1, 0)


@dataclass(frozen=True, kw_only=True)
class KeyedPart(Document):
    """One named keyed state: its ``kind``, number of ``keys``, and ``dtype`` of its numbers or form of its objects.

    ``counted``: the number of keys is exact; otherwise the state was divided, and it is an estimate.
    """

    kind: str
    keys: int
    dtype: str | None = None
    counted: bool = True


@dataclass(frozen=True, kw_only=True)
class SnapshotHandle(Document):
    """The snapshot of ``subtask`` at ``checkpoint``, taken by its incarnation of ``generation``.

    ``files``: of the keyed state, in the order in which they are ingested.
    ``states``: the named parts of the keyed state.
    ``bytes_new``, ``bytes_total``: uploaded for this snapshot; of all ``files``.
    ``keys``: of all ``states``.
    ``begun_s``: when the state was copied, in seconds since the Unix epoch.
    ``alignment_ms``: from the first barrier to the copy (to the last message in flight if ``overtaken``).
    ``sync_ms``, ``async_ms``: time of the copy, of the upload.
    ``overtaken``: barriers have overtaken messages.
    """

    FORMAT: ClassVar[int] = HANDLE_FORMAT
    REFUSED: ClassVar[type[Exception]] = CorruptState

    subtask: str
    generation: int
    checkpoint: int
    files: tuple[StateFile, ...]
    operator_state: OperatorState
    states: dict[str, KeyedPart] = field(default_factory=dict)
    bytes_new: int = 0
    bytes_total: int = 0
    keys: int = 0
    begun_s: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    overtaken: bool = False


START = SnapshotHandle(subtask="", generation=0, checkpoint=0, files=(), operator_state=OperatorState())
"""The handle of a job's start, before any checkpoint."""


def is_aligned(handles: Iterable[SnapshotHandle]) -> bool:
    """Whether no barrier of the checkpoint with these snapshots has overtaken a message: it can be divided."""
    return not any(handle.overtaken for handle in handles)
