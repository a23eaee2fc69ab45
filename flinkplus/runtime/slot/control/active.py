"""The active subtasks of a slot, and which of them is at which end of a channel. Only for the slot's loop thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Generic

from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.runtime.slot.control.ports import GraphPort, S

log = logging.getLogger("flinkplus.slot")

Credit = tuple[int, int, int | None]
"""Generation of the consumer, what it has consumed, its slot (``None``: this one)."""


class ActiveSubtasks(Generic[S]):
    """Subtasks by name and by channel, in the order in which they take turns: consumers before producers."""

    def __init__(self, graph: GraphPort) -> None:
        self._depth = {vertex.name: at for at, vertex in enumerate(graph.vertices)}
        self._subtasks: dict[SubtaskId, S] = {}
        self._consumers: dict[tuple[int, int], S] = {}
        self._producers: dict[tuple[int, int], S] = {}
        self._order: list[S] = []
        self._early: dict[ChannelId, Credit] = {}
        self._held = CheckpointId(0)
        self._stale = 0
        self._granted: dict[ChannelId, tuple[int, int]] = {}  # with the generation of the consumer

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._order))

    def get(self, name: SubtaskId) -> S | None:
        return self._subtasks.get(name)

    def consumer(self, channel: ChannelId) -> S | None:
        """Who takes what comes on ``channel``, if it is here."""
        return self._consumers.get((channel.edge, channel.consumer))

    def producer(self, channel: ChannelId) -> S | None:
        """Who sends on ``channel``, if it is here."""
        return self._producers.get((channel.edge, channel.producer))

    def add(self, subtask: S) -> None:
        """A subtask is active; credit that came before it is taken now."""
        self._subtasks[subtask.id] = subtask
        # What is in flight is worked off before more is made.
        self._order.append(subtask)
        self._order.sort(key=lambda s: (-self._depth[s.id.vertex], s.id.index))
        for edge in subtask.plan.vertex.inputs:
            self._consumers[(edge, subtask.id.index)] = subtask
        for edge in subtask.plan.vertex.outputs:
            self._producers[(edge, subtask.id.index)] = subtask
        for channel, end in subtask.outputs.channels.items():
            generation, granted = self._granted.pop(channel, (None, 0))
            if generation == end.consumer_generation:
                end.grant(granted)
            if channel in self._early:
                end.credit(*self._early.pop(channel))
        self._hold(subtask)

    def hold(self, checkpoint: CheckpointId) -> None:
        """Rows that would be visible at once and are made behind ``checkpoint`` are held back, now and by subtasks that
        become active later; 0: none are."""
        self._held = checkpoint
        for subtask in self:
            self._hold(subtask)

    def _hold(self, subtask: S) -> None:
        if subtask.outputs.recipe is not None:
            subtask.outputs.recipe.hold(self._held)

    def credit(self, channel: ChannelId, credit: Credit) -> None:
        """Credit for a producer. When it is not here, the newest credit is kept for it: credit of a fenced consumer may
        arrive after that of its successor, over another stream."""
        producer = self.producer(channel)
        if producer is not None:
            end = producer.outputs.channels[channel]
            self._stale += credit[0] < end.consumer_generation
            end.credit(*credit)
            return
        known = self._early.get(channel)
        if known is None or known[:2] <= credit[:2]:
            self._early[channel] = credit
        else:
            self._stale += credit[0] < known[0]

    @property
    def stale(self) -> int:
        """Messages and credit of fenced generations that subtasks received here, also those that are retired."""
        return self._stale + sum(subtask.inputs.stale for subtask in self._order)

    def retire_for_successor(self, subtask: S) -> None:
        """Close a subtask whose successor will be in this slot as well, and which inherits the credit: consumers may
        have granted it after the fence, and will not send it again."""
        ends = [end for end in subtask.outputs.channels.values() if not end.resuming]
        granted = {end.channel: (end.consumer_generation, end.granted) for end in ends}
        if self.retire(subtask):
            self._granted.update(granted)

    def retire(self, subtask: S) -> bool:
        """Close a subtask in any state; false when it is not active (any more)."""
        if self._subtasks.get(subtask.id) is not subtask:
            return False
        del self._subtasks[subtask.id]
        self._order.remove(subtask)
        self._stale += subtask.inputs.stale
        for table in (self._consumers, self._producers):
            for key in [key for key, value in table.items() if value is subtask]:
                del table[key]
        try:
            subtask.close()
        except Exception as error:  # closing what failed may fail too; what it held is in the scratch directory
            log.info("closing %s failed: %s", subtask.id, error)
        return True

    def retire_all(self) -> None:
        """Close all of them, and forget early credit."""
        for subtask in self:
            self.retire(subtask)
        self._early.clear()
        self._granted.clear()
