"""What each machine of the core orders: effects, carried out by its driver.

Rules: frozen data; a list of effects is carried out in its order; none waits for the completion of another one of the
same list. A failed effect comes back as an event. An effect that only has another machine take an event is that event.
``generation`` stands in whatever goes to subtasks: those of another generation ignore it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from flinkplus.protocol.vocabulary.events import (
    CommitAbandoned,
    CommitsQuiesced,
    FinalAbandoned,
    FinalCommitted,
    QuiesceRequested,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.protocol.vocabulary.phases import FailureKind, Phase

# ---------------------------------------------------------------------------------------------------- alignment


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """Take no further message off ``channel``."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class UnblockChannel:
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The synchronous part: freeze the subtask's state as it is now. If it fails: ``SnapshotFailed``, and the
    ``PersistSnapshot`` of the same list is left out."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ForwardBarrier:
    """Append the barrier of ``checkpoint`` to every output channel. ``overtakes``: room or not, and it is sent at once
    with all that waits before it, credit or not."""

    checkpoint: CheckpointId
    overtakes: bool = False


@dataclass(frozen=True, slots=True)
class PersistSnapshot:
    """The asynchronous part: ends with ``SnapshotPersisted`` or ``SnapshotFailed``."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    checkpoint: CheckpointId
    handle: object


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    checkpoint: CheckpointId
    reason: str
    cause: AbortCause = AbortCause.OTHER


@dataclass(frozen=True, slots=True)
class DiscardSnapshot:
    """The snapshot was persisted for a checkpoint that is no more: forget its handle. Its files may be named by a later
    snapshot of the same subtask; garbage collection against the manifests decides."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class LogChannel:
    """From here on, what is taken off ``channel`` belongs to the snapshot of ``checkpoint``, until ``CloseLog``."""

    checkpoint: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class CloseLog:
    """What was taken off ``channel`` last is the last that belongs to the snapshot of ``checkpoint``."""

    checkpoint: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class RecordChannel:
    """From the oldest message of ``channel`` that is not taken yet to the barrier of ``checkpoint``, here or still to
    come, all belongs to the snapshot."""

    checkpoint: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class CloseRecord:
    """What came on ``channel`` last is the last that belongs to the snapshot of ``checkpoint``."""

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
    | CloseLog
    | RecordChannel
    | CloseRecord
)

# ------------------------------------------------------------------------------------------------ checkpointing


class CheckpointOutcome(Enum):
    COMPLETE = "complete"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class CheckpointStats:
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
    """Of an aborted one."""


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Tell the source subtasks to begin ``checkpoint``; again, when some of them were replaced since."""

    checkpoint: CheckpointId
    sources: tuple[SubtaskId, ...]
    final: bool
    generation: Generation


@dataclass(frozen=True, slots=True)
class OvertakeCheckpoint:
    """Tell all subtasks of ``generation``, those without barriers too: barriers of ``checkpoint`` wait for nothing."""

    checkpoint: CheckpointId
    generation: Generation


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Tell all subtasks of ``generation`` that ``checkpoint`` is given up."""

    checkpoint: CheckpointId
    reason: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Store the manifest durably and atomically: ``ManifestStored`` or ``ManifestFailed``."""

    checkpoint: CheckpointId
    handles: tuple[tuple[SubtaskId, object], ...]
    """One per subtask, sorted by subtask."""
    final: bool
    generation: Generation


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """``checkpoint`` is complete: tell the subtasks of ``generation``, and feed ``CheckpointCompleted`` to the job."""

    checkpoint: CheckpointId
    generation: Generation


@dataclass(frozen=True, slots=True)
class CommitOutput:
    """Make visible what ``checkpoint`` covers: ``OutputCommitted`` or ``CommitFailed``. Idempotent. A job that dies may
    leave several complete checkpoints uncommitted (none of them is dropped): whoever resumes it commits all that are
    kept, in order, up to the one it restores."""

    checkpoint: CheckpointId
    final: bool


@dataclass(frozen=True, slots=True)
class DropCheckpoint:
    """Remove ``checkpoint`` (its manifest, and what only it names); no matter if there is nothing of it."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    stats: CheckpointStats


@dataclass(frozen=True, slots=True)
class ReportCommitDelay:
    """The commit of ``checkpoint`` has been in flight for ``waited_ms``: log it. Sent again after the same time."""

    checkpoint: CheckpointId
    waited_ms: int


@dataclass(frozen=True, slots=True)
class SweepState:
    """Remove state files that no checkpoint can name any more: ``complete`` is the newest complete checkpoint,
    ``triggered`` the newest that was triggered. No answer."""

    complete: CheckpointId
    triggered: CheckpointId


CheckpointingEffect: TypeAlias = (
    TriggerCheckpoint
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

    @property
    def terminal(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class InterruptCheckpoints:
    """Feed ``JobInterrupted`` to ``CheckpointCoordinator``."""


@dataclass(frozen=True, slots=True)
class HaltSubtasks:
    """Tell the slots to stop the subtasks of ``generation`` and to keep their processes. No answer is waited for: a
    ``DeploySubtasks`` implies it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class RetractOutputAfter:
    """The job goes back further than its newest complete checkpoint. First drop what is newer (feed
    ``CheckpointsAbandoned(checkpoint)`` to ``CheckpointCoordinator`` and carry out its effects), then retract the
    output committed after ``checkpoint`` (None: all output): ``OutputRetracted`` or ``RetractionFailed``."""

    checkpoint: CheckpointId | None
    reason: str


@dataclass(frozen=True, slots=True)
class DeploySubtasks:
    """Reset every slot to ``generation``: drop older subtasks, create, restore (None: initial state) and wire the
    assigned ones, start nothing. Each slot answers ``SlotDeployed``, ``SubtaskFailed`` or
    ``CheckpointRestoreFailed``."""

    generation: Generation
    restore: CheckpointId | None
    assignment: tuple[tuple[SubtaskId, int], ...]
    """(subtask, slot), sorted by subtask."""


@dataclass(frozen=True, slots=True)
class StartSubtasks:
    """Tell all slots to start ``generation``, and feed ``SubtasksStarted`` to ``CheckpointCoordinator``."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class EvictSlot:
    """The process of ``slot`` does not answer, or is given up: end it by any means, so that another one starts.
    ``incarnation``: only that process; None: the present one. For local failover it counts as lost already."""

    slot: int
    incarnation: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class StopSlots:
    """Tell all registered slots to end (again, when another one registered meanwhile): each answers ``SlotStopped``."""


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over; ``failure``, ``reason`` and ``error`` (opaque, of the ``SubtaskFailed``) say why it failed."""

    state: JobState
    error: object
    reason: str
    failure: FailureKind


@dataclass(frozen=True, slots=True)
class RecordRollbackPhase:
    """Recovery number ``recovery`` (1, 2, ...) entered ``phase``; ``subtasks`` are those that failed."""

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
    | DeploySubtasks
    | StartSubtasks
    | EvictSlot
    | StopSlots
    | EndJob
    | RecordRollbackPhase
)
