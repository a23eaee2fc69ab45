"""What the machine of local failover orders: effects, carried out by its driver.

Rules: frozen data; a list of effects is carried out in its order; none waits for the completion of another one of the
same list. A failed effect comes back as an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import FailureTakenOn
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.protocol.vocabulary.phases import Phase

FailoverKind: TypeAlias = Literal["slot", "exception", "handover"]
"""What a failover is for: a slot was lost; a subtask threw; subtasks go to their home slot, as planned."""

MoveStatus: TypeAlias = Literal["refused", "under_way", "done", "cancelled"]
"""What became of a request: all but ``under_way`` end it."""


@dataclass(frozen=True, slots=True)
class ChainRecordLike:
    """What ZooKeeper is to hold of one subtask: ``members``, head first, and the newest version that all of them
    have."""

    subtask: SubtaskId
    generation: Generation
    members: tuple[int, ...]
    stable: int = 0


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Write ``records`` in one transaction, after all that were ordered before: ``RecordsWritten`` or
    ``RecordsRefused``. With ``attempt`` None nobody waits for the answer: these only tell what is so already."""

    attempt: int | None
    records: tuple[ChainRecordLike, ...]


@dataclass(frozen=True, slots=True)
class FormChains:
    """Tell all living slots who follows whom: (subtask, generation, members, head first), all subtasks, sorted."""

    chains: tuple[tuple[SubtaskId, Generation, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class FenceSlots:
    """Tell ``slots`` that ``failed`` (subtask, slot of its new head) have a new ``generation``: each answers
    ``SlotFenced``."""

    attempt: int
    generation: Generation
    failed: tuple[tuple[SubtaskId, int], ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromoteStandbys:
    """Make the standbys of ``subtasks`` (subtask, version) on ``slot`` active, from that version on:
    ``StandbysPromoted`` or ``StandbyPromotionFailed``."""

    attempt: int
    generation: Generation
    slot: int
    subtasks: tuple[tuple[SubtaskId, int], ...]


@dataclass(frozen=True, slots=True)
class ReplaceInCheckpoints:
    """In pending checkpoints, snapshots of these subtasks newer than the version beside them are void: the new heads
    take them again, and sources among them must be triggered again."""

    subtasks: tuple[tuple[SubtaskId, int], ...]


@dataclass(frozen=True, slots=True)
class RecordFailoverPhase:
    """Failover ``number`` (1, 2, ...) entered ``phase``; ``subtasks``: all that failed in it so far (or are handed
    over); ``moved``: all that begin anew because of them, themselves included. A further failure on the way takes it
    back to ``detect``."""

    number: int
    phase: Phase
    kind: FailoverKind
    subtasks: tuple[SubtaskId, ...]
    reason: str
    moved: tuple[SubtaskId, ...]


@dataclass(frozen=True, slots=True)
class FinishFailover:
    """Failover ``number`` is over: all are at work. (Without a phase but ``detect`` before it: a handover that was
    called off, and nothing was moved.)"""

    number: int


@dataclass(frozen=True, slots=True)
class FallBack:
    """Local failover cannot be proved safe: the whole job must roll back. The machine waits for ``JobStarted``; the
    failover that was under way, if any, ends with this."""

    kind: FailoverKind
    subtasks: tuple[SubtaskId, ...]
    reason: str
    error: object


@dataclass(frozen=True, slots=True)
class TrimLogs:
    """``version`` is complete, and every chain has it: nothing before it can be asked for."""

    version: int


@dataclass(frozen=True, slots=True)
class ReportMove:
    """What became of ``request``, for whoever made it. ``left``: subtasks of which something is not yet where it ought
    to be. ``at_risk``: it was refused because chains would have fewer members, or be on fewer hosts."""

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
