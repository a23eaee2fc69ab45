"""A subtask's part in a loop: when it forwards rounds, and when the loop ends.

``protocol.loops.rounds`` explains what a round is, and why it proves that a loop has ended; ``protocol.loops.cycles``
finds the edges that lead back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flinkplus.protocol.loops.rounds import LoopRounds, Round, encoded
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.vocabulary.ids import ChannelId, invariant


class LoopSide:
    """The loop protocol of one subtask.

    ``saved``: the protocol's part of the snapshot that the subtask starts from.
    ``ended``: whether the subtask has ended.
    ``end``: ends it, when all its input has ended.

    ``back_edges``: at the head of the loop, its input channels that lead back; looked up, never iterated.
    """

    def __init__(
        self,
        identity: SubtaskIdentity,
        saved: OperatorState,
        parts: SubtaskParts,
        ended: Callable[[], bool],
        end: Callable[[], Iterator[None]],
    ) -> None:
        self._inputs = parts.inputs
        self._outputs = parts.outputs
        self._reached = parts.reports.reached
        channels = tuple(sorted(self._inputs.channels))
        back = identity.back_edges(channels)
        inner = identity.cycles.inner_edges
        self.back_edges = frozenset(back)
        self._edges = sorted({channel.edge for channel in self._outputs.channels if channel.edge in inner})
        over = [channel for channel in channels if self._inputs.channels[channel].ended]
        self._rounds = LoopRounds(back or channels, bool(back), over, saved.rounds)
        self._id = identity.subtask
        self._ended = ended
        self._end = end

    @property
    def is_head(self) -> bool:
        """Whether the job keeps running until this subtask reports that it has ended."""
        return bool(self.back_edges)

    def saved(self) -> dict[str, Any]:
        """``OperatorState.rounds`` of a snapshot."""
        return self._rounds.saved()

    def took_records(self, channel: ChannelId) -> None:
        """A step takes records from ``channel``."""
        if channel in self.back_edges:
            over = self._ended()
            invariant(not over, "a record came round a loop that had ended", subtask=self._id, channel=channel)
            self._rounds.record_came_round()

    def take(self, channel: ChannelId, value: int) -> Iterator[None]:
        """A step takes a round from ``channel``."""
        return self._send_on(self._rounds.take(channel, value))

    def one_ended(self, channel: ChannelId) -> Iterator[None]:
        """An input has ended, and others have not. When the last input from outside ends, the head starts rounds."""
        if not self.is_head:
            return self._send_on(self._rounds.end(channel))
        outside = [end for end in self._inputs.channels.values() if end.channel not in self.back_edges]
        if self._rounds.started or not all(end.ended for end in outside):
            return iter(())
        return self._send(self._rounds.start())

    def _send_on(self, came: Round | None) -> Iterator[None]:
        """Forward ``came``, a round that has arrived on all inputs."""
        if came is None or self._ended():
            return iter(())
        following = self._rounds.after(came)
        return self._end() if following is None else self._send(following)

    def _send(self, found: Round) -> Iterator[None]:
        self._reached("round")
        for edge in self._edges:
            self._outputs.append_round(edge, encoded(*found))
            yield
