"""Effects: what the machine of local failover orders, and its driver carries out.

Rules: as in ``flinkplus.protocol.vocabulary.effects``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import FailureTakenOn
from flinkplus.protocol.vocabulary.frozen import Frozen
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.protocol.vocabulary.phases import Phase

FailoverKind: TypeAlias = Literal["slot", "exception", "handover"]
"""The cause of a failover: a lost slot, an exception of a subtask, or a planned move."""

MoveStatus: TypeAlias = Literal["refused", "under_way", "done", "cancelled"]
"""The status of a request: all except ``under_way`` end it."""


class ChainEntry(Frozen):
    """The content of ZooKeeper's record of one chain.

    ``members``: head first.
    ``stable``: the newest version that the head and all standbys that have caught up hold; 0: none.
    """

    subtask: SubtaskId
    generation: Generation
    members: tuple[int, ...]
    stable: int = 0


class WriteRecords(Frozen):
    """Write ``records`` in one transaction, in the order of these effects: ``RecordsWritten`` or ``RecordsRefused``.

    ``attempt``: None when no attempt waits for the answer, because the records describe what already holds.
    ``whole``: the job has no other chains: records of others, of subtasks of before, are removed.
    """

    attempt: int | None
    records: tuple[ChainEntry, ...]
    whole: bool = False


class FormChains(Frozen):
    """Send all living slots the chains: (subtask, generation, members head first) of all subtasks, sorted."""

    chains: tuple[tuple[SubtaskId, Generation, tuple[int, ...]], ...]


class FenceSlots(Frozen):
    """Order ``slots`` to accept only the new ``generation`` of ``failed``: each answers ``SlotFenced``.

    ``failed``: (subtask, slot of its new head).
    ``recipes``: those of the failed whose rows are visible at once. Have their sinks accept only the new generation as
    well, and read their recipes: ``RecipesFetched`` or ``RecipeFetchFailed``.
    """

    attempt: int
    generation: Generation
    failed: tuple[tuple[SubtaskId, int], ...]
    slots: tuple[int, ...]
    recipes: tuple[SubtaskId, ...] = ()


class PromoteStandbys(Frozen):
    """Make the standbys of ``subtasks`` (subtask, version to start from) on ``slot`` active: ``StandbysPromoted`` or
    ``StandbyPromotionFailed``."""

    attempt: int
    generation: Generation
    slot: int
    subtasks: tuple[tuple[SubtaskId, int], ...]


class ReplaceInCheckpoints(Frozen):
    """Pass ``SubtasksReplaced`` with these (subtask, version) to ``CheckpointCoordinator``."""

    subtasks: tuple[tuple[SubtaskId, int], ...]


class RecordFailoverPhase(Frozen):
    """Failover ``number`` (1, 2, ...) entered ``phase``. A further failure takes it back to ``detect``.

    ``subtasks``: all that failed in it so far, or are handed over.
    ``moved``: all that restart because of them, themselves included.
    """

    number: int
    phase: Phase
    kind: FailoverKind
    subtasks: tuple[SubtaskId, ...]
    reason: str
    moved: tuple[SubtaskId, ...]


class FinishFailover(Frozen):
    """Failover ``number`` has ended: all subtasks run. After ``detect`` as its only phase: a handover was called off,
    and no subtask was moved."""

    number: int


class FallBack(Frozen):
    """Local failover cannot be proved safe: the whole job must roll back. This ends any failover under way, and the
    machine waits for ``JobStarted``."""

    kind: FailoverKind
    subtasks: tuple[SubtaskId, ...]
    reason: str
    error: object


class TrimLogs(Frozen):
    """``version`` is complete, and every chain has it: no subtask can ask for anything before it."""

    version: int


class ReportMove(Frozen):
    """The status of ``request``, for its sender.

    ``left``: subtasks of which a member is not yet where the plan puts it.
    ``at_risk``: whether it was refused because chains would have fewer members, or be on fewer hosts.
    """

    request: int
    status: MoveStatus
    reason: str = ""
    left: tuple[SubtaskId, ...] = ()
    at_risk: bool = False


FailoverEffect: TypeAlias = (
    WriteRecords
    | FormChains
    | FenceSlots
    | PromoteStandbys
    | ReplaceInCheckpoints
    | EvictSlot
    | RecordFailoverPhase
    | FinishFailover
    | FailureTakenOn
    | FallBack
    | TrimLogs
    | ReportMove
)
