"""Channel state: the messages in flight at a snapshot, and the limits of their size.

Messages in flight that belong to a snapshot (of back edges, or, where barriers overtake, of all inputs) are held in
memory until it is stored. They are part of its handle, and travel with it: to the coordinator, down the chain, and to a
slot that restores it. So their size has limits:

- *one channel* (``MAX_LOGGED_BYTES``) and *one snapshot* of a subtask: above them, the subtask declines;
- *one slot*: all its snapshots that are not stored yet. The subtask that exceeds the limit declines. The snapshots of
  one checkpoint that a deployment puts on one slot have a limit too, which the coordinator checks;
- *the job*: all snapshots of one checkpoint, since the coordinator holds them; it checks that limit.

A checkpoint that is divided for another parallelism has other subtasks, so the limits are checked again
(``excess_of``).

A subtask whose estimate exceeds the room left does not let a barrier overtake yet (``InFlightBudget.room``).

Rules: sizes are those in a handle once they are known (``checkpoints.add_logs``), estimates before. Channel state above
a limit is dropped entirely, and the decline gives that cause (``AbortCause.OVER_BUDGET``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message

MAX_LOGGED_BYTES = 16 << 20
"""Maximum in-flight bytes captured per channel, in wire encoding."""
MAX_OVERTAKEN_BYTES = MAX_LOGGED_BYTES // 2
"""Maximum that a barrier overtakes on one channel in the consumer's queue, and again in the producer's log; while more
is left, the barrier waits."""
MESSAGE_OVERHEAD_BYTES = 64
"""Bytes of a message in addition to its payload and determinants."""
SUBTASK_SHARE = 2
"""A slot's limit divided by that of one snapshot."""
JOB_SLOTS = 4
"""The job's limit divided by that of a slot."""


class AbortCause(Enum):
    """Why a checkpoint was aborted, as far as later decisions depend on it."""

    OTHER = "other"
    OVER_BUDGET = "over budget"
    """More messages were in flight than a checkpoint may hold."""


@dataclass(slots=True)
class InFlightBudget:
    """The budget of one slot: maximum and present size of its channel state. ``slots``: number of slots of the job."""

    slot_bytes: int = 64 << 20
    held_bytes: int = 0
    slots: int = 1

    @property
    def snapshot_bytes(self) -> int:
        """Maximum size of one snapshot's channel state."""
        return self.slot_bytes // SUBTASK_SHARE

    @property
    def room(self) -> int:
        """How many bytes one more snapshot may hold without a decline, even if all slots of the job held as many."""
        share = min(self.slot_bytes, JOB_SLOTS * self.slot_bytes // self.slots)
        return min(self.snapshot_bytes, share - self.held_bytes)


def as_text(size_bytes: int) -> int:
    """Size in a handle of ``size_bytes`` bytes."""
    return size_bytes * 4 // 3


def cost_of(message: Message) -> int:
    """Estimated size in bytes of a message in a handle."""
    return as_text(message.size + len(message.determinants) + MESSAGE_OVERHEAD_BYTES)


@dataclass(slots=True)
class ChannelLogged:
    """The messages in flight on one channel at a snapshot. ``next``: the ``seq`` after them, once all are there."""

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
    """The channel state of one snapshot. ``excess``: why it was dropped; empty if it was not."""

    def __init__(self, budget: InFlightBudget) -> None:
        self._budget = budget
        self.channels: dict[ChannelId, ChannelLogged] = {}
        self.held_bytes = 0
        self.excess = ""

    def open(self, channel: ChannelId) -> ChannelLogged:
        """A new, empty log of ``channel``."""
        log = self.channels[channel] = ChannelLogged(channel, self)
        return log

    def takes(self, log: ChannelLogged, size_bytes: int) -> bool:
        """Whether there is room for ``size_bytes`` more in ``log``; if not, all channel state is dropped."""
        if self.excess:
            return False
        budget = self._budget
        self.held_bytes += size_bytes
        budget.held_bytes += size_bytes
        if log.size_bytes > as_text(MAX_LOGGED_BYTES):
            most = as_text(MAX_LOGGED_BYTES)
            why = f"{log.size_bytes:,} bytes were in flight on {log.channel}, and the maximum is {most:,}"
        elif self.held_bytes > budget.snapshot_bytes:
            why = _too_many(self.held_bytes, budget)
        elif budget.held_bytes > budget.slot_bytes:
            why = f"{budget.held_bytes:,} bytes were in flight to its slot, and the maximum is {budget.slot_bytes:,}"
        else:
            return True
        self._let_go(why)
        return False

    def stored(self, size_bytes: int) -> None:
        """The channel state takes ``size_bytes`` in the handle."""
        if not self.excess and size_bytes > self._budget.snapshot_bytes:
            self._let_go(_too_many(size_bytes, self._budget))

    def _let_go(self, why: str) -> None:
        self.excess = why
        for log in self.channels.values():
            log.messages.clear()
        self.release()

    def release(self) -> None:
        """Return its bytes to the budget."""
        self._budget.held_bytes -= self.held_bytes
        self.held_bytes = 0


def excess_of(held: Mapping[ChannelId, int], consumers: Mapping[int, str], slot_bytes: int) -> str:
    """Why a checkpoint with channel state of these sizes, in handles, is above a limit; empty when it is not.

    ``consumers``: edge -> vertex. ``slot_bytes``: the limit of a slot, which has all subtasks of one index.
    """
    snapshots: Counter[SubtaskId] = Counter()
    slots: Counter[int] = Counter()
    for channel, size_bytes in held.items():
        snapshots[SubtaskId(consumers[channel.edge], channel.consumer)] += size_bytes
        slots[channel.consumer] += size_bytes
    limits: list[tuple[str, Mapping[Any, int], int]] = [
        ("on", held, as_text(MAX_LOGGED_BYTES)),
        ("to", snapshots, slot_bytes // SUBTASK_SHARE),
        ("to subtasks", slots, slot_bytes),
        ("in", {"the job": sum(held.values())}, JOB_SLOTS * slot_bytes),
    ]
    for where, sizes, limit in limits:
        for place, size_bytes in sorted(sizes.items()):
            if size_bytes > limit:
                return f"{size_bytes:,} bytes would be in flight {where} {place}, and the maximum is {limit:,}"
    return ""


def _too_many(size_bytes: int, budget: InFlightBudget) -> str:
    return f"{size_bytes:,} bytes were in flight to it, and the maximum is {budget.snapshot_bytes:,}"
