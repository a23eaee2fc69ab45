"""Subtasks whose successors repeat their steps, in one process: to compare what they send, and what it costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from experiments.harness.one_process import OneProcess
from flinkplus.config import Options
from flinkplus.graph import JobGraph
from flinkplus.protocol.determinants.determinants import decode_own
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.protocol.vocabulary.messages import Message
from flinkplus.runtime.slot.subtasks.subtask import DIGEST, Subtask

Sent = dict[str, list[tuple[Message, Any]]]


class Recorded(OneProcess):
    """A job with standbys whose messages are kept, so that a subtask's successor can get them again."""

    def __init__(self, graph: JobGraph, options: Options, directory: Path) -> None:
        self._taken: dict[SubtaskId, list[tuple[Message, Any]]] = defaultdict(list)
        self._successors = 0
        super().__init__(graph, options, directory, standbys=True)

    @override
    def receive(self, message: Message, payload: Any) -> None:
        self._taken[self.consumer(message.channel)].append((message, payload))
        super().receive(message, payload)

    def successor(self, subtask: SubtaskId, received: Mapping[str, int]) -> Subtask:
        """A promoted standby of ``subtask`` from the start of the job; it has its input, and has repeated nothing yet.

        ``received``: channel -> first message that its consumer does not have.
        """
        original = self.subtasks[subtask]
        sent = sent_by(original)
        promotion = Promotion(
            received=dict(received),
            determinants=_determinants(sent),
            ancestors={},
            marks={},
            resuming=frozenset(),
            state=None,
            had={channel: {m.seq: DIGEST(m, payload) for m, payload in sent[channel]} for channel in received},
        )
        self._successors += 1
        found = self.make(subtask, len(self.subtasks) + self._successors, promotion)
        self._closing.callback(found.close)
        found.begin(1, 0.0)
        for message, payload in self._taken[subtask]:
            found.steps.receive(message, payload)
        return found


def sent_by(subtask: Subtask) -> Sent:
    """What the subtask has appended to each of its output channels, which have kept all."""
    logs = {str(channel): end.log for channel, end in subtask.outputs.channels.items()}
    return {channel: [entry for entry, _, _ in log._messages.values()] for channel, log in logs.items()}  # type: ignore[attr-defined]


def _determinants(sent: Sent) -> tuple[int, ...]:
    """Of all steps that a consumer knows of."""
    known: list[int] = []
    for messages in sent.values():
        for message, _ in messages:
            if message.determinants:
                (first, determinants), _ = decode_own(message.determinants)
                known[first:] = [*known[first:], *determinants[len(known) - first :]] if first <= len(known) else []
    return tuple(known)


def repeat(successor: Subtask) -> None:
    """Have it repeat all its steps, with consumers that take everything at once."""
    while successor.steps.replay.active or successor.steps._step is not None:
        successor.run()
        for end in successor.outputs.channels.values():
            end.credit(end.consumer_generation, end.log.sent, end.peer)
            successor.outputs.pump(end)
