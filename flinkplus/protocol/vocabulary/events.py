"""What can happen to each machine of the core: events, in the past tense.

Rules: frozen data; a completion carries what tells a late, doubled or old one apart (checkpoint, generation,
incarnation). ``handle`` and ``error`` are opaque: the core passes them on and never looks inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.protocol.vocabulary.phases import FailureKind


@dataclass(frozen=True, slots=True)
class TimeAdvanced:
    """A deadline may have passed; nothing else happened. For every machine with deadlines."""


# ---------------------------------------------------------------------------------------------------- alignment


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """The barrier of ``checkpoint`` is the next message of ``channel``, and has been taken off it."""

    channel: ChannelId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """The coordinator told this source subtask to begin ``checkpoint`` (the barrier on the channel *Nil*)."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator gave ``checkpoint`` up."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class SnapshotPersisted:
    """The asynchronous part of this subtask's snapshot ended well; ``handle`` is what restores it."""

    checkpoint: CheckpointId
    handle: object


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The synchronous or the asynchronous part of this subtask's snapshot failed."""

    checkpoint: CheckpointId
    reason: str
    cause: AbortCause = AbortCause.OTHER


BarrierEvent: TypeAlias = BarrierArrived | CheckpointTriggered | CheckpointAborted | SnapshotPersisted | SnapshotFailed


@dataclass(frozen=True, slots=True)
class BarrierSighted:
    """The barrier of ``checkpoint`` has come in on ``channel``, and waits there behind what came before it."""

    channel: ChannelId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class OvertakingOrdered:
    """The coordinator said that barriers of ``checkpoint`` shall wait for nothing."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class BarrierOvertook:
    """Between two steps, the subtask has turned to the barrier of ``checkpoint`` before all else."""

    checkpoint: CheckpointId


OvertakingEvent: TypeAlias = BarrierSighted | OvertakingOrdered | BarrierOvertook

# ------------------------------------------------------------------------------------------------ checkpointing


@dataclass(frozen=True, slots=True)
class SubtasksStarted:
    """All subtasks of ``generation`` were told to start. ``loop_heads``: the subtasks at the heads of loops."""

    subtasks: tuple[SubtaskId, ...]
    sources: tuple[SubtaskId, ...]
    generation: Generation
    loop_heads: tuple[SubtaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class JobInterrupted:
    """A rollback or the end of the job began: the running generation will acknowledge nothing any more."""


@dataclass(frozen=True, slots=True)
class QuiesceRequested:
    """The job waits until no manifest and no commit is in flight; ``CommitsQuiesced`` answers."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A user wants a checkpoint now."""


@dataclass(frozen=True, slots=True)
class CheckpointsAbandoned:
    """The job goes back to the state of checkpoint ``after`` (None: the very start); all newer ones are void."""

    after: CheckpointId | None


@dataclass(frozen=True, slots=True)
class SourceExhausted:
    """A source subtask of ``generation``, or one of the head of a loop, has emitted its last record and its
    end-of-input."""

    subtask: SubtaskId
    generation: Generation


@dataclass(frozen=True, slots=True)
class CheckpointAcknowledged:
    """``in_flight_bytes``: what messages that were in flight take in ``handle``."""

    checkpoint: CheckpointId
    subtask: SubtaskId
    generation: Generation
    handle: object
    in_flight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointDeclined:
    checkpoint: CheckpointId
    subtask: SubtaskId
    generation: Generation
    reason: str
    cause: AbortCause = AbortCause.OTHER


@dataclass(frozen=True, slots=True)
class ManifestStored:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class OutputCommitted:
    """Everything that ``checkpoint`` covers is visible in every sink."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitFailed:
    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class SubtasksReplaced:
    """Local failover: each of these subtasks goes on from its ``version`` (a checkpoint's number; 0: the very start) in
    another incarnation. What it said of newer checkpoints is void. ``afresh``: what it sends is not what it sent
    before: whoever has snapshotted since at a barrier of its predecessor's is at another point than it will be, so
    that the checkpoints that wait for it are void."""

    subtasks: tuple[tuple[SubtaskId, CheckpointId], ...]
    afresh: bool = False


CheckpointingEvent: TypeAlias = (
    SubtasksStarted
    | JobInterrupted
    | QuiesceRequested
    | TimeAdvanced
    | CheckpointRequested
    | CheckpointsAbandoned
    | SourceExhausted
    | CheckpointAcknowledged
    | CheckpointDeclined
    | ManifestStored
    | ManifestFailed
    | OutputCommitted
    | CommitFailed
    | SubtasksReplaced
)

# ---------------------------------------------------------------------------------------------------------- job


@dataclass(frozen=True, slots=True)
class SlotRegistered:
    """A process took the place of ``slot``; ``incarnation`` counts the registrations of that slot, upwards."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class SlotStartFailed:
    """A process of a slot has ended before it could register; ``error`` is passed through to ``EndJob``."""

    slot: int
    reason: str
    error: object


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The process of ``slot`` is gone, or nothing that it sends is taken any more."""

    slot: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotLeft:
    """As ``SlotLost``, but a running job goes on: local failover sees to the subtasks that were there."""

    slot: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class FailureTakenOn:
    """Local failover takes a failure of the running job on: it costs what a rollback would cost, and may be one too
    many. ``kind``: "exception" or "slot". ``generation``: the newest generation of what failed. ``under_way``: whether
    another failover was not over. A subtask's exception is taken on before local failover falls back because of it."""

    kind: FailureKind
    generation: Generation
    under_way: bool
    reason: str
    error: object


@dataclass(frozen=True, slots=True)
class FailoverFellBack:
    """Local failover of ``subtasks`` cannot be proved safe, or did not come about: roll back. ``counted``: a
    ``FailureTakenOn`` was spent on this failure already."""

    kind: FailureKind
    subtasks: tuple[SubtaskId, ...]
    reason: str
    error: object
    counted: bool


@dataclass(frozen=True, slots=True)
class InputBlamed:
    """The same input has ended two processes (``crashes``): further recoveries would end in the same way."""

    reason: str
    error: object


@dataclass(frozen=True, slots=True)
class GenerationsUsed:
    """Local failover gave single subtasks generations up to ``newest``: the next deployment takes a higher one."""

    newest: Generation


@dataclass(frozen=True, slots=True)
class SlotDeployed:
    """Every subtask of ``generation`` on ``slot`` is restored, wired and ready to start."""

    generation: Generation
    slot: int


@dataclass(frozen=True, slots=True)
class SlotStopped:
    """``slot`` has ended all it did and left on purpose."""

    slot: int


@dataclass(frozen=True, slots=True)
class SpareAdded:
    """There is a spare slot more, which may register. (With a number that no slot has had.)"""

    slot: int


@dataclass(frozen=True, slots=True)
class SpareRemoved:
    """Spare slot ``slot`` is no slot of the job any more; its process is gone."""

    slot: int


@dataclass(frozen=True, slots=True)
class SubtaskFailed:
    """A subtask threw; its slot lives. ``error`` is what the user should see if this ends the job. ``deterministic``:
    not because what it does, or receives, contradicts what its predecessor did or received."""

    subtask: SubtaskId
    generation: Generation
    reason: str
    error: object = None
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointRestoreFailed:
    """``checkpoint`` cannot be restored, now or later: it is corrupt (not: the storage is away for a moment)."""

    generation: Generation
    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """``checkpoint`` is complete, and stays so."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointDropped:
    """Retention removed ``checkpoint``: it is no fallback any more."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitsQuiesced:
    """Answer to ``QuiesceRequested``: no manifest and no commit is in flight, and none can begin."""


@dataclass(frozen=True, slots=True)
class OutputRetracted:
    """Answer to ``RetractOutputAfter(checkpoint)``: done."""

    checkpoint: CheckpointId | None


@dataclass(frozen=True, slots=True)
class RetractionFailed:
    """Answer to ``RetractOutputAfter(checkpoint)``: it could not be done."""

    checkpoint: CheckpointId | None
    reason: str


@dataclass(frozen=True, slots=True)
class FinalCommitted:
    """The last checkpoint is complete and all output is committed."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FinalAbandoned:
    """The sources of ``generation`` are exhausted, but ``final_attempts`` last checkpoints failed, last
    ``checkpoint``."""

    checkpoint: CheckpointId
    generation: Generation
    reason: str


@dataclass(frozen=True, slots=True)
class CommitAbandoned:
    """The manifest or the output of ``checkpoint`` was refused for good, or it is not known whether it is stored.
    Nothing more is triggered, stored or committed."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user wants the job to end."""


JobEvent: TypeAlias = (
    SlotRegistered
    | SlotStartFailed
    | SlotLost
    | SlotLeft
    | FailureTakenOn
    | FailoverFellBack
    | InputBlamed
    | GenerationsUsed
    | SlotDeployed
    | SlotStopped
    | SpareAdded
    | SpareRemoved
    | SubtaskFailed
    | CheckpointRestoreFailed
    | CheckpointCompleted
    | CheckpointDropped
    | CommitsQuiesced
    | OutputRetracted
    | RetractionFailed
    | FinalCommitted
    | FinalAbandoned
    | CommitAbandoned
    | CancelRequested
    | TimeAdvanced
)
