"""What can happen to the machine of local failover: events, in the past tense.

Rules: frozen data; an answer carries the attempt, the slot and the generation that tell a late, doubled or old one
apart. An event that other machines take, too, is defined with theirs. A *version* is the number of the checkpoint that
it was taken for; 0 is the empty start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chain_backup.failover.recovery_line import VersionCursors
from flinkplus.protocol.vocabulary.events import (
    CheckpointAborted,
    CheckpointCompleted,
    JobInterrupted,
    SlotLost,
    SubtaskFailed,
    TimeAdvanced,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId

# ------------------------------------------------------------------------------------------- the job and its slots


@dataclass(frozen=True, slots=True)
class JobStarted:
    """All subtasks were deployed, from ``version``, and told to start, every slot alive but the spare ones."""

    generation: Generation
    version: int
    cursors: tuple[tuple[SubtaskId, VersionCursors], ...]
    """Of ``version``; what is left out has all its cursors at 0."""
    hosts: tuple[tuple[int, str], ...]
    """(slot, host), all slots but the spare ones, which join."""
    heads: tuple[tuple[SubtaskId, int], ...] = ()
    """Where subtasks are at work; what is left out is on the slot of its number."""


@dataclass(frozen=True, slots=True)
class SlotJoined:
    """A new process took the place of ``slot``, after its ``SlotLost``, or of a spare slot that nobody has heard of
    before; there are data streams to and from it."""

    slot: int
    host: str


# ------------------------------------------------------------------------------------------------------ planned moves


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """The head of ``subtask`` is wanted on ``slot``: ``ReportMove`` answers, of this ``request`` (never used
    twice)."""

    request: int
    subtask: SubtaskId
    slot: int


@dataclass(frozen=True, slots=True)
class HostDrainRequested:
    """All that is on ``host`` is wanted elsewhere, and nothing new there: ``ReportMove`` answers. ``force``: even
    where chains get shorter, or share hosts, by that."""

    request: int
    host: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class HostUndrainRequested:
    """``host`` may be given work again: ``ReportMove`` answers, at once."""

    request: int
    host: str


@dataclass(frozen=True, slots=True)
class ScaleRequested:
    """The spare slots ``retiring``, and no others any more, are wanted empty: ``ReportMove`` answers. When that is
    done, they are no slots of the job any more. Without any: it is done when every chain is as it is planned.
    ``force``: even where chains get shorter, or share hosts, by that."""

    request: int
    retiring: tuple[int, ...]
    force: bool = False


# ------------------------------------------------------------------------------------------ versions and checkpoints


@dataclass(frozen=True, slots=True)
class HeadPersisted:
    """The head's snapshot was acknowledged: ``version`` is in the durable store."""

    subtask: SubtaskId
    generation: Generation
    version: int
    cursors: VersionCursors


@dataclass(frozen=True, slots=True)
class VersionStaged:
    """A standby on ``slot`` holds all of ``version``, verified; ``generation``: of the chain that it came in."""

    subtask: SubtaskId
    slot: int
    generation: Generation
    version: int


# ------------------------------------------------------------------------------------------------- answers to effects


@dataclass(frozen=True, slots=True)
class RecordsWritten:
    """Answer to ``WriteRecords``: they are in ZooKeeper."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecordsRefused:
    """Answer to ``WriteRecords``: they are not, and another try would not help."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotFenced:
    """Answer to ``FenceSlots``: nothing of an older generation has an effect on ``slot`` any more.

    ``received``: (channel, next ``seq`` expected), of every channel from a failed subtask to one at work on ``slot``.
    """

    attempt: int
    slot: int
    received: tuple[tuple[ChannelId, int], ...]


@dataclass(frozen=True, slots=True)
class SlotFencedPart:
    """A part of a long answer to ``FenceSlots`` has come from ``slot``; the rest follows."""

    attempt: int
    slot: int


@dataclass(frozen=True, slots=True)
class StandbysPromoted:
    """Answer to ``PromoteStandbys``: all of them are at work."""

    attempt: int
    slot: int


@dataclass(frozen=True, slots=True)
class StandbyPromotionFailed:
    """Answer to ``PromoteStandbys``: at least ``subtask`` is not at work, so that none of them counts as promoted."""

    attempt: int
    slot: int
    subtask: SubtaskId
    reason: str


FailoverEvent: TypeAlias = (
    JobStarted
    | JobInterrupted
    | SlotLost
    | SlotJoined
    | SubtaskFailed
    | MoveRequested
    | HostDrainRequested
    | HostUndrainRequested
    | ScaleRequested
    | HeadPersisted
    | VersionStaged
    | CheckpointCompleted
    | CheckpointAborted
    | RecordsWritten
    | RecordsRefused
    | SlotFenced
    | SlotFencedPart
    | StandbysPromoted
    | StandbyPromotionFailed
    | TimeAdvanced
)

__all__ = [
    "CheckpointAborted",
    "CheckpointCompleted",
    "FailoverEvent",
    "HeadPersisted",
    "HostDrainRequested",
    "HostUndrainRequested",
    "JobInterrupted",
    "JobStarted",
    "MoveRequested",
    "RecordsRefused",
    "RecordsWritten",
    "ScaleRequested",
    "SlotFenced",
    "SlotFencedPart",
    "SlotJoined",
    "SlotLost",
    "StandbyPromotionFailed",
    "StandbysPromoted",
    "SubtaskFailed",
    "TimeAdvanced",
    "VersionStaged",
]
