"""Effects: what each machine of the core orders, and its driver carries out.

Rules: frozen data (``Frozen``). A list of effects is carried out in its order; none waits for the
completion of another of the same list. A failed effect comes back as an event. An effect that only passes an event to
another machine is that event.
Effects that go to subtasks have a ``generation``: subtasks of another generation ignore them.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from flinkplus.protocol.vocabulary.events import (
    CommitAbandoned,
    CommitsQuiesced,
    FinalAbandoned,
    FinalCommitted,
    QuiesceRequested,
    StopRequested,
)
from flinkplus.protocol.vocabulary.frozen import Frozen
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.protocol.vocabulary.phases import FailureKind, Phase

# ---------------------------------------------------------------------------------------------------- alignment


class BlockChannel(Frozen):
    """Take no further message from ``channel``."""

    channel: ChannelId


class UnblockChannel(Frozen):
    channel: ChannelId


class TakeSnapshot(Frozen):
    """The synchronous part: copy the subtask's state now. If it fails: ``SnapshotFailed``, and the ``PersistSnapshot``
    of the same list is skipped."""

    checkpoint: CheckpointId


class ForwardBarrier(Frozen):
    """Append the barrier of ``checkpoint`` to every output channel.

    ``overtakes``: append it without room, and send it and all that waits before it at once, without credit.
    """

    checkpoint: CheckpointId
    overtakes: bool = False


class PersistSnapshot(Frozen):
    """The asynchronous part: ends with ``SnapshotPersisted`` or ``SnapshotFailed``."""

    checkpoint: CheckpointId


class AcknowledgeCheckpoint(Frozen):
    checkpoint: CheckpointId
    handle: object


class DeclineCheckpoint(Frozen):
    checkpoint: CheckpointId
    reason: str
    cause: AbortCause = AbortCause.OTHER


class DiscardSnapshot(Frozen):
    """The snapshot was persisted for an aborted checkpoint: drop its handle. Later snapshots of the subtask may name
    its files; garbage collection against the manifests decides."""

    checkpoint: CheckpointId


class LogChannel(Frozen):
    """Messages taken from ``channel`` belong to the snapshot of ``checkpoint`` from now on, until ``EndCapture``."""

    checkpoint: CheckpointId
    channel: ChannelId


class RecordChannel(Frozen):
    """All messages of ``channel`` that are not taken yet, up to the barrier of ``checkpoint``, belong to its snapshot,
    whether they have arrived or not."""

    checkpoint: CheckpointId
    channel: ChannelId


class EndCapture(Frozen):
    """The message last taken from ``channel`` (after ``LogChannel``), or the one that last arrived on it (after
    ``RecordChannel``), is the last of the snapshot of ``checkpoint``."""

    checkpoint: CheckpointId
    channel: ChannelId


BarrierEffect: TypeAlias = (
    BlockChannel
    | UnblockChannel
    | TakeSnapshot
    | ForwardBarrier
    | PersistSnapshot
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | DiscardSnapshot
    | LogChannel
    | RecordChannel
    | EndCapture
)

# ------------------------------------------------------------------------------------------------ checkpointing


class CheckpointOutcome(Enum):
    COMPLETE = "complete"
    ABORTED = "aborted"


class CheckpointStats(Frozen):
    """How one checkpoint ended. Times are the driver's ``now_ms``."""

    checkpoint: CheckpointId
    generation: Generation
    final: bool
    outcome: CheckpointOutcome
    reason: str
    """Why it was aborted; empty when it is complete."""
    triggered_ms: int
    acknowledged_ms: int | None
    """When the last subtask acknowledged; None when not all did."""
    ended_ms: int
    acknowledged: int
    subtasks: int
    cause: AbortCause | None = None
    """Set for an aborted checkpoint."""


class TriggerCheckpoint(Frozen):
    """Trigger ``checkpoint`` at these source subtasks; repeated when some of them were replaced."""

    checkpoint: CheckpointId
    sources: tuple[SubtaskId, ...]
    final: bool
    generation: Generation


class HoldOutput(Frozen):
    """Order all subtasks of ``generation`` whose rows are visible at once to hold back what they make behind the
    barrier of ``checkpoint``, also if it has passed; ``None``: to hold back nothing."""

    checkpoint: CheckpointId | None
    generation: Generation


class OvertakeCheckpoint(Frozen):
    """Order all subtasks of ``generation``, with or without a barrier: barriers of ``checkpoint`` may overtake."""

    checkpoint: CheckpointId
    generation: Generation


class AbortCheckpoint(Frozen):
    """Notify all subtasks of ``generation`` that ``checkpoint`` is aborted."""

    checkpoint: CheckpointId
    reason: str
    generation: Generation


class StoreManifest(Frozen):
    """Store the manifest durably and atomically: ``ManifestStored`` or ``ManifestFailed``."""

    checkpoint: CheckpointId
    handles: tuple[tuple[SubtaskId, object], ...]
    """One per subtask, sorted by subtask."""
    final: bool
    generation: Generation


class CompleteCheckpoint(Frozen):
    """``checkpoint`` is complete: notify the subtasks of ``generation``; pass ``CheckpointCompleted`` to the job."""

    checkpoint: CheckpointId
    generation: Generation


class CommitOutput(Frozen):
    """Make the output of ``checkpoint`` visible: ``OutputCommitted`` or ``CommitFailed``. Idempotent.

    A job that dies may leave several complete checkpoints uncommitted. Its next run commits them in order, up to that
    which it restores."""

    checkpoint: CheckpointId
    final: bool


class DropCheckpoint(Frozen):
    """Remove ``checkpoint``: its manifest, and what only it names; has no effect if it does not exist."""

    checkpoint: CheckpointId


class RecordCheckpoint(Frozen):
    stats: CheckpointStats


class ReportCommitDelay(Frozen):
    """Log that the commit of ``checkpoint`` has been in flight for ``waited_ms``; repeated at intervals."""

    checkpoint: CheckpointId
    waited_ms: int


class SweepState(Frozen):
    """Remove state files that no checkpoint can name any more; has no answer.

    ``complete``, ``triggered``: the newest checkpoint that is complete, and that was triggered.
    """

    complete: CheckpointId
    triggered: CheckpointId


class CopySavepoint(Frozen):
    """Copy all files of ``checkpoint``, whose output is committed, to the target of savepoint ``number``:
    ``SavepointCopied`` or ``SavepointFailed``, and ``SavepointProgressed`` meanwhile."""

    number: int
    checkpoint: CheckpointId
    stop: bool


class PublishSavepoint(Frozen):
    """Make savepoint ``number`` exist: ``SavepointStored`` or ``SavepointFailed``."""

    number: int


class EndSavepoint(Frozen):
    """Savepoint ``number`` is stored, as a copy of ``checkpoint``; or (None) it is not, and ``reason`` says why: stop
    what is being carried out for it, and remove what was written."""

    number: int
    checkpoint: CheckpointId | None
    reason: str


CheckpointingEffect: TypeAlias = (
    TriggerCheckpoint
    | HoldOutput
    | OvertakeCheckpoint
    | AbortCheckpoint
    | StoreManifest
    | CompleteCheckpoint
    | CommitOutput
    | DropCheckpoint
    | RecordCheckpoint
    | FinalCommitted
    | FinalAbandoned
    | ReportCommitDelay
    | CommitAbandoned
    | CommitsQuiesced
    | SweepState
    | CopySavepoint
    | PublishSavepoint
    | EndSavepoint
    | StopRequested
)

# ---------------------------------------------------------------------------------------------------------- job


class JobState(Enum):
    STARTING = "starting"
    DEPLOYING = "deploying"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.STOPPED)


class InterruptCheckpoints(Frozen):
    """Pass ``JobInterrupted`` to ``CheckpointCoordinator``."""


class HaltSubtasks(Frozen):
    """Order the slots to stop the subtasks of ``generation``, not their processes. It has no answer."""

    generation: Generation


class RetractOutputAfter(Frozen):
    """The job goes back further than its newest complete checkpoint: ``OutputRetracted`` or ``RetractionFailed``.

    First pass ``CheckpointsAbandoned(checkpoint)`` to ``CheckpointCoordinator`` and carry out its effects, which drop
    newer checkpoints. Then retract the output committed after ``checkpoint`` (None: all output).
    """

    checkpoint: CheckpointId | None
    reason: str


class FenceOutput(Frozen):
    """The next deployment has ``generation``: have sinks whose rows are visible at once refuse those of all earlier
    ones, and read their recipes: ``OutputFenced`` or ``OutputFenceFailed``. ``checkpoint``: where it begins (None: at
    the start)."""

    generation: Generation
    checkpoint: CheckpointId | None


class RescaleCheckpoint(Frozen):
    """Divide the state of ``checkpoint`` among ``subtasks``, as a new checkpoint: ``CheckpointRescaled`` or
    ``RescalingFailed``. First pass ``NumberTaken`` to ``CheckpointCoordinator``, and then ``CheckpointAdopted``."""

    checkpoint: CheckpointId
    subtasks: tuple[SubtaskId, ...]


class ChangeSubtasks(Frozen):
    """From the next deployment on, the job has these subtasks, and needs ``slots``. Notify all other machines."""

    subtasks: tuple[SubtaskId, ...]
    slots: tuple[int, ...]


class ReportRescale(Frozen):
    """The answer to ``RescaleRequested``: ``done`` when the new subtasks run, ``refused`` or ``cancelled`` when the job
    continues with those of before."""

    status: Literal["done", "refused", "cancelled"]
    reason: str = ""


class DeploySubtasks(Frozen):
    """Reset every slot to ``generation``: drop older subtasks; create, restore (None: initial state) and connect the
    assigned ones, but do not start them. Each slot answers ``SlotDeployed``, ``SubtaskFailed`` or
    ``CheckpointRestoreFailed``."""

    generation: Generation
    restore: CheckpointId | None
    assignment: tuple[tuple[SubtaskId, int], ...]
    """(subtask, slot), sorted by subtask."""


class StartSubtasks(Frozen):
    """Order all slots to start ``generation``, and pass ``SubtasksStarted`` to ``CheckpointCoordinator``."""

    generation: Generation


class EvictSlot(Frozen):
    """The process of ``slot`` does not answer, or is evicted: end it by any means, so that another one starts.

    ``incarnation``: only that process; None: the present one. Local failover counts it as lost already.
    """

    slot: int
    incarnation: int | None
    reason: str


class StopSlots(Frozen):
    """Order all registered slots to end; repeated when another one registers. Each answers ``SlotStopped``."""


class EndJob(Frozen):
    """The job has ended; ``failure``, ``reason`` and ``error`` (opaque, from ``SubtaskFailed``) say why it failed."""

    state: JobState
    error: object
    reason: str
    failure: FailureKind


class RecordRollbackPhase(Frozen):
    """Recovery number ``recovery`` (1, 2, ...) entered ``phase``; ``subtasks``: those that failed."""

    recovery: int
    phase: Phase
    failure: FailureKind
    subtasks: tuple[SubtaskId, ...]
    reason: str


JobEffect: TypeAlias = (
    InterruptCheckpoints
    | QuiesceRequested
    | HaltSubtasks
    | RetractOutputAfter
    | FenceOutput
    | RescaleCheckpoint
    | ChangeSubtasks
    | ReportRescale
    | DeploySubtasks
    | StartSubtasks
    | EvictSlot
    | StopSlots
    | EndJob
    | RecordRollbackPhase
)
