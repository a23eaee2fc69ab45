"""Events of the machine of local failover, in the past tense.

Rules: frozen data; an answer carries the attempt, slot and generation that identify a late, repeated or old one. Events
that other machines also take are defined with theirs. A *version* has the number of its checkpoint; 0 is the empty
start.
"""

from __future__ import annotations

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
from flinkplus.protocol.vocabulary.frozen import Frozen
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId

__all__ = ["CheckpointAborted", "CheckpointCompleted", "JobInterrupted", "SlotLost", "SubtaskFailed", "TimeAdvanced"]

# ------------------------------------------------------------------------------------------- the job and its slots


class JobStarted(Frozen):
    """All subtasks were deployed from ``version`` and ordered to start; all slots except for spare ones are alive."""

    generation: Generation
    version: int
    cursors: tuple[tuple[SubtaskId, VersionCursors], ...]
    """At ``version``; a missing subtask has all its cursors at 0."""
    hosts: tuple[tuple[int, str], ...]
    """(slot, host), all slots except for spare ones, which join."""
    heads: tuple[tuple[SubtaskId, int], ...] = ()
    """(subtask, slot where it runs); a missing subtask is on the slot of its number."""


class SubtasksChanged(Frozen):
    """From the next ``JobStarted`` on, each vertex has ``parallelism`` subtasks, and the job needs ``slots``."""

    parallelism: int
    slots: tuple[int, ...]


class SlotJoined(Frozen):
    """A new process registered as ``slot``, after its ``SlotLost``, or as a new spare slot; its data streams are
    connected."""

    slot: int
    host: str


# ------------------------------------------------------------------------------------------------------ planned moves


class MoveRequested(Frozen):
    """Move the head of ``subtask`` to ``slot``: ``ReportMove`` answers. ``request``: a unique number."""

    request: int
    subtask: SubtaskId
    slot: int


class HostDrainRequested(Frozen):
    """Move all members off ``host``, and put no new ones there: ``ReportMove`` answers.

    ``force``: even where chains become shorter, or share hosts.
    """

    request: int
    host: str
    force: bool = False


class HostUndrainRequested(Frozen):
    """``host`` may host members again: ``ReportMove`` answers at once."""

    request: int
    host: str


class ScaleRequested(Frozen):
    """Empty the spare slots ``retiring``, and no others: ``ReportMove`` answers. When done, they have left the job.
    Without any, the request is done when every chain is as planned.

    ``force``: even where chains become shorter, or share hosts.
    """

    request: int
    retiring: tuple[int, ...]
    force: bool = False


# ------------------------------------------------------------------------------------------ versions and checkpoints


class HeadPersisted(Frozen):
    """The head's snapshot was acknowledged: ``version`` is in the durable store."""

    subtask: SubtaskId
    generation: Generation
    version: int
    cursors: VersionCursors


class VersionStaged(Frozen):
    """A standby on ``slot`` holds all of ``version``, verified. ``generation``: of the chain that delivered it."""

    subtask: SubtaskId
    slot: int
    generation: Generation
    version: int


# ------------------------------------------------------------------------------------------------- answers to effects


class RecordsWritten(Frozen):
    """Answer to ``WriteRecords``: success."""

    attempt: int


class RecordsRefused(Frozen):
    """Answer to ``WriteRecords``: failure, and a retry would not help."""

    attempt: int
    reason: str


class SlotFenced(Frozen):
    """Answer to ``FenceSlots``: older generations have no effect on ``slot`` any more.

    ``received``: (channel, next ``seq`` expected), of every channel from a failed subtask to one that runs on ``slot``.
    """

    attempt: int
    slot: int
    received: tuple[tuple[ChannelId, int], ...]


class SlotFencedPart(Frozen):
    """A part of a long answer to ``FenceSlots`` arrived from ``slot``; the rest follows."""

    attempt: int
    slot: int


class RecipesFetched(Frozen):
    """Answer to ``FenceSlots`` with ``recipes``: these sinks refuse older generations, and their recipes are read."""

    attempt: int


class RecipeFetchFailed(Frozen):
    """Answer to ``FenceSlots`` with ``recipes``: failure."""

    attempt: int
    reason: str


class StandbysPromoted(Frozen):
    """Answer to ``PromoteStandbys``: all of them run."""

    attempt: int
    slot: int


class StandbyPromotionFailed(Frozen):
    """Answer to ``PromoteStandbys``: at least ``subtask`` does not run, so none of them counts as promoted."""

    attempt: int
    slot: int
    subtask: SubtaskId
    reason: str


FailoverEvent: TypeAlias = (
    JobStarted
    | JobInterrupted
    | SubtasksChanged
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
    | RecipesFetched
    | RecipeFetchFailed
    | StandbysPromoted
    | StandbyPromotionFailed
    | TimeAdvanced
)
