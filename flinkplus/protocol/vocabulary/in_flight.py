"""What was in flight at a snapshot, and how much of that snapshots may hold.

Messages in flight that belong to a snapshot (those of back edges, or, where barriers overtake, of all inputs) are held
in memory from the copy of the state until the snapshot is stored. They are a part of its handle, and travel with it: to
the coordinator, down the chain, back to the slot that begins from it. So their size is limited, by a budget:

- of *one channel* (``MAX_LOGGED_BYTES``) and of *one snapshot* of a subtask: else it is declined;
- of *a slot*: what its snapshots hold, all that are not stored yet. Else the one that needs more is declined. And what
  the snapshots of one checkpoint hold that a deployment brings into one slot: else the coordinator declines it;
- of *a job*: what the snapshots of one checkpoint hold, since the coordinator has them all. Else it declines it.

Who can see that it would need more does not begin to overtake before less is left (``InFlightBudget.room``).

Rules: sizes are those in a handle, once they are known (``checkpoints.add_logs``); before that, estimates.
Of what is too large nothing is kept, and what is declined for it says so (``AbortCause.OVER_BUDGET``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.protocol.vocabulary.messages import Message

MAX_LOGGED_BYTES = 16 << 20
"""Of what is in flight on one channel, as it is on the wire."""
MAX_OVERTAKEN_BYTES = MAX_LOGGED_BYTES // 2
"""On one channel, in the queue of the consumer, and as much again in the log of the producer. A barrier waits until no
more is left."""
MESSAGE_OVERHEAD_BYTES = 64
"""Of a message beside its payload and what it tells of steps."""
SUBTASK_SHARE = 2
"""A snapshot may have half of what a slot may."""
JOB_SLOTS = 4
"""A job may have as much as so many slots."""


class AbortCause(Enum):
    """Why a checkpoint was given up, as far as it matters what follows."""

    OTHER = "other"
    OVER_BUDGET = "over budget"
    """More was in flight than a checkpoint may hold."""


@dataclass(slots=True)
class InFlightBudget:
    """Of one slot: how much its snapshots may hold in all, in bytes, and how much they do. ``slots``: of the job."""

    slot_bytes: int = 64 << 20
    held_bytes: int = 0
    slots: int = 1

    @property
    def snapshot_bytes(self) -> int:
        """The most of one snapshot."""
        return self.slot_bytes // SUBTASK_SHARE

    @property
    def room(self) -> int:
        """How much one more snapshot may hold so that it is not declined; nor would be the checkpoint, if all slots of
        the job held as much as this one."""
        share = min(self.slot_bytes, JOB_SLOTS * self.slot_bytes // self.slots)
        return min(self.snapshot_bytes, share - self.held_bytes)


def as_text(size_bytes: int) -> int:
    """What so many bytes take in a handle."""
    return size_bytes * 4 // 3


def cost_of(message: Message) -> int:
    """About what a message takes in a handle, in bytes."""
    return as_text(message.size + len(message.determinants) + MESSAGE_OVERHEAD_BYTES)


@dataclass(slots=True)
class ChannelLogged:
    """What was in flight on a channel at a snapshot. ``next``: the ``seq`` behind it, when it is all there."""

    channel: ChannelId
    snapshot: SnapshotLogs
    messages: list[tuple[Message, Any]] = field(default_factory=list)
    size_bytes: int = 0
    next: int = 0

    def add(self, message: Message, payload: Any) -> None:
        size_bytes = cost_of(message)
        self.size_bytes += size_bytes
        if self.snapshot.takes(self, size_bytes):
            self.messages.append((message, payload))


Logs = Mapping[ChannelId, ChannelLogged]


class SnapshotLogs:
    """What was in flight at one snapshot, on all its channels. ``excess``: why nothing of it is kept, if that is so."""

    def __init__(self, budget: InFlightBudget) -> None:
        self._budget = budget
        self.channels: dict[ChannelId, ChannelLogged] = {}
        self.held_bytes = 0
        self.excess = ""

    def open(self, channel: ChannelId) -> ChannelLogged:
        """A log of ``channel``, empty."""
        log = self.channels[channel] = ChannelLogged(channel, self)
        return log

    def takes(self, log: ChannelLogged, size_bytes: int) -> bool:
        """Whether there is room for so much more in ``log``; if not, all that is there is let go."""
        if self.excess:
            return False
        budget = self._budget
        self.held_bytes += size_bytes
        budget.held_bytes += size_bytes
        if log.size_bytes > as_text(MAX_LOGGED_BYTES):
            most = as_text(MAX_LOGGED_BYTES)
            why = f"{log.size_bytes:,} bytes were in flight on {log.channel}, and {most:,} are the most"
        elif self.held_bytes > budget.snapshot_bytes:
            why = _too_many(self.held_bytes, budget)
        elif budget.held_bytes > budget.slot_bytes:
            why = f"{budget.held_bytes:,} bytes were in flight to its slot, and {budget.slot_bytes:,} are the most"
        else:
            return True
        self._let_go(why)
        return False

    def stored(self, size_bytes: int) -> None:
        """It takes ``size_bytes`` in the handle."""
        if not self.excess and size_bytes > self._budget.snapshot_bytes:
            self._let_go(_too_many(size_bytes, self._budget))

    def _let_go(self, why: str) -> None:
        self.excess = why
        for log in self.channels.values():
            log.messages.clear()
        self.release()

    def release(self) -> None:
        """It holds nothing any more."""
        self._budget.held_bytes -= self.held_bytes
        self.held_bytes = 0


def _too_many(size_bytes: int, budget: InFlightBudget) -> str:
    return f"{size_bytes:,} bytes were in flight to it, and {budget.snapshot_bytes:,} are the most"
