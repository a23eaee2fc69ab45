"""Which steps of whom everything depends on: the truth that determinants, which travel with messages, must live up to.

A step depends on those before it of the same subtask, and on what the messages that these have taken depended on when
they were made. What a message was made of is kept by its ID, beside the simulated wires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId

if TYPE_CHECKING:
    from flinkplus.protocol.vocabulary.messages import Message
    from tests.simulation.subtask import SimSubtask

Steps = dict[SubtaskId, int]
"""Of each subtask, the first step that is not meant."""


def add(steps: Steps, others: Mapping[SubtaskId, int]) -> None:
    for subtask, step in others.items():
        if step > steps.get(subtask, 0):
            steps[subtask] = step


MOST_OF_A_STEP = 3
"""Determinants: a step may have read the clock."""


class Causes:
    """Of all subtasks at work. ``seen``: what each depends on, with what waits at its inputs, and with what it has yet
    to repeat."""

    def __init__(self) -> None:
        self.seen: dict[SubtaskId, Steps] = {}
        self._of_messages: dict[tuple[ChannelId, int], Steps] = {}
        self._of_steps: dict[tuple[SubtaskId, int], Steps] = {}

    def divided(self, messages: Sequence[tuple[ChannelId, int]]) -> None:
        """The whole job begins again from what is complete: what is in flight there depends on nothing else."""
        self._of_messages.update((message, {}) for message in messages)

    def began(self, subtask: SimSubtask) -> None:
        seen = self.seen[subtask.id] = dict(subtask.depends)
        if subtask.steps.history.steps is not None:
            end = subtask.steps.history.steps.next_step + len(subtask.steps.replay.determinants)
            # What another generation did behind that did not happen: a barrier that overtakes is a step as well, and
            # would not take the place of a step there.
            for step in [step for name, step in self._of_steps if name == subtask.id and step > end]:
                del self._of_steps[subtask.id, step]
        if subtask.steps.replay.determinants and subtask.steps.history.steps is not None:
            for behind in range(MOST_OF_A_STEP):
                if (subtask.id, end - behind) in self._of_steps:
                    add(seen, self._of_steps[subtask.id, end - behind])
                    break

    def arrived(self, subtask: SimSubtask, message: Message) -> None:
        add(self.seen[subtask.id], self._of_messages[message.channel, message.seq])

    def takes(self, subtask: SimSubtask, messages: Sequence[Message], determinants: int) -> None:
        """It begins a step with ``messages``. ``determinants``: how many of the step are not logged yet."""
        for message in messages:
            add(subtask.depends, self._of_messages[message.channel, message.seq])
        if subtask.steps.history.steps is not None:
            end = subtask.steps.history.steps.next_step + determinants
            self._of_steps[subtask.id, end] = dict(subtask.depends)

    def made(self, subtask: SimSubtask, message: Message) -> None:
        if subtask.steps.history.steps is not None:
            own = {subtask.id: subtask.steps.history.steps.next_step}
            self._of_messages[message.channel, message.seq] = {**subtask.depends, **own}
        else:
            self._of_messages[message.channel, message.seq] = {}
