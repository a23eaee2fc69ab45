"""Events of each machine of the core, in the past tense.

Rules: frozen data (``Frozen``); a completion carries what identifies a late, repeated or old one (checkpoint,
generation, incarnation). ``handle`` and ``error`` are opaque: the core passes them on and never looks inside.
"""

from __future__ import annotations

from typing import TypeAlias

from flinkplus.protocol.vocabulary.frozen import Frozen
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.protocol.vocabulary.phases import FailureKind


class TimeAdvanced(Frozen):
    """A deadline may have passed. For every machine with deadlines."""


# ---------------------------------------------------------------------------------------------------- alignment


class BarrierTaken(Frozen):
    """A step took the barrier of ``checkpoint`` off ``channel``."""

    channel: ChannelId
    checkpoint: CheckpointId


class CheckpointTriggered(Frozen):
    """The coordinator triggered ``checkpoint`` at this source subtask (the barrier on the channel *Nil*)."""

    checkpoint: CheckpointId


class CheckpointAborted(Frozen):
    """The coordinator aborted ``checkpoint``."""

    checkpoint: CheckpointId


class SnapshotPersisted(Frozen):
    """The asynchronous part of this subtask's snapshot succeeded; ``handle`` restores it."""

    checkpoint: CheckpointId
    handle: object


class SnapshotFailed(Frozen):
    """The synchronous or the asynchronous part of this subtask's snapshot failed."""

    checkpoint: CheckpointId
    reason: str
    cause: AbortCause = AbortCause.OTHER


BarrierEvent: TypeAlias = BarrierTaken | CheckpointTriggered | CheckpointAborted | SnapshotPersisted | SnapshotFailed


class BarrierArrived(Frozen):
    """The barrier of ``checkpoint`` has arrived on ``channel``, and waits there until a step takes it."""

    channel: ChannelId
    checkpoint: CheckpointId


class OvertakingOrdered(Frozen):
    """The coordinator ordered that barriers of ``checkpoint`` may overtake."""

    checkpoint: CheckpointId


class BarrierOvertook(Frozen):
    """Between two steps, the subtask has let the barrier of ``checkpoint`` overtake all that waits."""

    checkpoint: CheckpointId


OvertakingEvent: TypeAlias = BarrierArrived | OvertakingOrdered | BarrierOvertook

# ------------------------------------------------------------------------------------------------ checkpointing


class SubtasksStarted(Frozen):
    """All subtasks of ``generation`` were ordered to start. ``also_ending``: the subtasks besides
    sources that report their end: heads of loops, and those whose rows wait for answers from outside."""

    subtasks: tuple[SubtaskId, ...]
    sources: tuple[SubtaskId, ...]
    generation: Generation
    also_ending: tuple[SubtaskId, ...] = ()


class JobInterrupted(Frozen):
    """A rollback or the end of the job began: the running generation acknowledges no further checkpoint."""


class QuiesceRequested(Frozen):
    """The job waits for manifests and commits in flight; ``CommitsQuiesced`` answers."""


class CheckpointRequested(Frozen):
    """A checkpoint is requested now. ``aligned``: whose barriers overtake nothing, also where they may. ``holding``:
    behind which sinks hold back rows that would be visible at once, until ``OutputReleased``."""

    aligned: bool = False
    holding: bool = False


class OutputReleased(Frozen):
    """What was to happen at the checkpoint that was requested ``holding`` does not happen."""


class CheckpointsAbandoned(Frozen):
    """The job goes back to the state of checkpoint ``after`` (None: the start); all newer ones are void."""

    after: CheckpointId | None


class NumberTaken(Frozen):
    """The number of ``checkpoint``, the next one, is used: for a checkpoint that the job itself makes, or in steps that
    will be repeated."""

    checkpoint: CheckpointId


class CheckpointAdopted(Frozen):
    """``checkpoint``, whose number was taken, is stored, and is the newest complete one."""

    checkpoint: CheckpointId


class SourceExhausted(Frozen):
    """A source subtask of ``generation``, or one at the head of a loop, has sent its end of input."""

    subtask: SubtaskId
    generation: Generation


class CheckpointAcknowledged(Frozen):
    """``in_flight_bytes``: size of the channel state in ``handle``."""

    checkpoint: CheckpointId
    subtask: SubtaskId
    generation: Generation
    handle: object
    in_flight_bytes: int = 0


class CheckpointDeclined(Frozen):
    checkpoint: CheckpointId
    subtask: SubtaskId
    generation: Generation
    reason: str
    cause: AbortCause = AbortCause.OTHER


class ManifestStored(Frozen):
    checkpoint: CheckpointId


class ManifestFailed(Frozen):
    checkpoint: CheckpointId
    reason: str


class OutputCommitted(Frozen):
    """All output of ``checkpoint`` is visible in every sink."""

    checkpoint: CheckpointId


class CommitFailed(Frozen):
    checkpoint: CheckpointId
    reason: str


class SubtasksReplaced(Frozen):
    """Local failover: each of these subtasks resumes from its version (a checkpoint's number; 0: the start). Newer
    checkpoints that not all subtasks have acknowledged are aborted."""

    subtasks: tuple[tuple[SubtaskId, CheckpointId], ...]


class SavepointRequested(Frozen):
    """A user requests savepoint ``number``, whose target is ready. ``stop``: the job stops when it is stored."""

    number: int
    stop: bool


class SavepointProgressed(Frozen):
    """``CopySavepoint`` or ``PublishSavepoint`` is being carried out, and has come further."""

    number: int


class SavepointCopied(Frozen):
    """Answer to ``CopySavepoint``: all files are at the target; the savepoint does not exist yet."""

    number: int


class SavepointStored(Frozen):
    """Answer to ``PublishSavepoint``: the savepoint exists."""

    number: int


class SavepointFailed(Frozen):
    """Answer to ``CopySavepoint`` or ``PublishSavepoint``: the savepoint does not exist."""

    number: int
    reason: str


CheckpointingEvent: TypeAlias = (
    SubtasksStarted
    | JobInterrupted
    | QuiesceRequested
    | TimeAdvanced
    | CheckpointRequested
    | OutputReleased
    | CheckpointsAbandoned
    | NumberTaken
    | CheckpointAdopted
    | SourceExhausted
    | CheckpointAcknowledged
    | CheckpointDeclined
    | ManifestStored
    | ManifestFailed
    | OutputCommitted
    | CommitFailed
    | SubtasksReplaced
    | SavepointRequested
    | SavepointProgressed
    | SavepointCopied
    | SavepointStored
    | SavepointFailed
)

# ---------------------------------------------------------------------------------------------------------- job


class SlotRegistered(Frozen):
    """A process registered as ``slot``; ``incarnation`` rises with each registration of that slot."""

    slot: int
    incarnation: int


class SlotStartFailed(Frozen):
    """A process of a slot ended before it registered; ``error`` is passed on to ``EndJob``."""

    slot: int
    reason: str
    error: object


class SlotLost(Frozen):
    """The process of ``slot`` is gone, or its messages are not accepted any more."""

    slot: int
    incarnation: int
    reason: str


class SlotLeft(Frozen):
    """Like ``SlotLost``, but a running job keeps running: local failover recovers the subtasks that were there."""

    slot: int
    incarnation: int
    reason: str


class FailureTakenOn(Frozen):
    """Local failover handles a failure of the running job. It costs as much as a rollback, and may exceed the budget. A
    subtask's exception is reported here even if local failover then falls back because of it.

    ``kind``: "exception" or "slot".
    ``generation``: the newest generation of what failed.
    ``under_way``: whether another failover has not ended.
    """

    kind: FailureKind
    generation: Generation
    under_way: bool
    reason: str
    error: object


class FailoverFellBack(Frozen):
    """Local failover of ``subtasks`` cannot be proved safe, or did not succeed: roll back.

    ``counted``: whether a ``FailureTakenOn`` has reported this failure already.
    """

    kind: FailureKind
    subtasks: tuple[SubtaskId, ...]
    reason: str
    error: object
    counted: bool


class InputBlamed(Frozen):
    """The same input has ended two processes (``crashes``): further recoveries would end the same way."""

    reason: str
    error: object


class GenerationsUsed(Frozen):
    """Local failover gave single subtasks generations up to ``newest``: the next deployment takes a higher one."""

    newest: Generation


class SlotDeployed(Frozen):
    """Every subtask of ``generation`` on ``slot`` is restored, connected and ready to start."""

    generation: Generation
    slot: int


class SlotStopped(Frozen):
    """The process of ``slot`` has ended as ordered."""

    slot: int


class SpareAdded(Frozen):
    """The job has a further spare slot, which may register; its number is new."""

    slot: int


class SpareRemoved(Frozen):
    """Spare slot ``slot`` has left the job; its process is gone."""

    slot: int


class SubtaskFailed(Frozen):
    """A subtask raised an exception; its slot lives.

    ``error``: what the user should see if this ends the job.
    ``deterministic``: ``False`` if its steps, or its input, contradict those of its predecessor.
    """

    subtask: SubtaskId
    generation: Generation
    reason: str
    error: object = None
    deterministic: bool = True


class CheckpointRestoreFailed(Frozen):
    """``checkpoint`` is corrupt and can never be restored; a temporary storage failure does not count."""

    generation: Generation
    checkpoint: CheckpointId
    reason: str


class CheckpointCompleted(Frozen):
    """``checkpoint`` is complete, and stays so."""

    checkpoint: CheckpointId


class CheckpointDropped(Frozen):
    """Retention removed ``checkpoint``: the job cannot fall back to it any more."""

    checkpoint: CheckpointId


class CommitsQuiesced(Frozen):
    """Answer to ``QuiesceRequested``: all manifests and commits have ended, and none can begin."""


class OutputRetracted(Frozen):
    """Answer to ``RetractOutputAfter(checkpoint)``: success."""

    checkpoint: CheckpointId | None


class RetractionFailed(Frozen):
    """Answer to ``RetractOutputAfter(checkpoint)``: failure."""

    checkpoint: CheckpointId | None
    reason: str


class OutputFenced(Frozen):
    """Answer to ``FenceOutput(generation)``: no row of an earlier generation becomes visible, and the recipes are
    read. ``repeats``: subtasks have steps to repeat, since rows behind the checkpoint may be visible."""

    generation: Generation
    repeats: bool = False


class OutputFenceFailed(Frozen):
    """Answer to ``FenceOutput(generation)``: failure."""

    generation: Generation
    reason: str


class RescaleRequested(Frozen):
    """Continue with other ``subtasks`` on ``slots``: ``ReportRescale`` answers. All these slots exist."""

    subtasks: tuple[SubtaskId, ...]
    slots: tuple[int, ...]


class CheckpointRescaled(Frozen):
    """Answer to ``RescaleCheckpoint``: ``checkpoint`` is complete, and has the state of the one that was given, divided
    among the new subtasks."""

    checkpoint: CheckpointId


class RescalingFailed(Frozen):
    """Answer to ``RescaleCheckpoint``: the checkpoint was not divided.

    ``certain``: ``False`` if a divided one may still appear in storage later.
    ``again``: the next aligned one can be.
    """

    reason: str
    certain: bool = True
    again: bool = False


class FinalCommitted(Frozen):
    """The last checkpoint is complete and all output is committed."""

    checkpoint: CheckpointId


class FinalAbandoned(Frozen):
    """The sources of ``generation`` are exhausted, but ``final_attempts`` last checkpoints failed, ``checkpoint``
    being the newest."""

    checkpoint: CheckpointId
    generation: Generation
    reason: str


class CommitAbandoned(Frozen):
    """The manifest or the output of ``checkpoint`` was refused permanently, or it is unknown whether it is stored. No
    further checkpoint is triggered, stored or committed."""

    checkpoint: CheckpointId
    reason: str


class CancelRequested(Frozen):
    """A user cancels the job."""


class StopRequested(Frozen):
    """The savepoint that the job was to stop with is stored, and all output that it covers is committed."""


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
    | OutputFenced
    | OutputFenceFailed
    | RescaleRequested
    | CheckpointRescaled
    | RescalingFailed
    | FinalCommitted
    | FinalAbandoned
    | CommitAbandoned
    | CancelRequested
    | StopRequested
    | TimeAdvanced
)
