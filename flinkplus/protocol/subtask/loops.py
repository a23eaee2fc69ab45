"""The part of a subtask's steps that concerns the loop that it is in: who has to hear of rounds, and when it ends.

What a round is, and why it tells that a loop has ended, is in ``rounds``; which edges lead back, in ``cycles``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flinkplus.protocol.loops.rounds import LoopRounds, Round, encoded
from flinkplus.protocol.subtask.snapshots import SubtaskSnapshots
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId, invariant


class SubtaskLoop(SubtaskSnapshots):
    """A subtask that may be in a loop."""

    id: SubtaskId
    ended: bool
    _rounds: LoopRounds | None
    """``None``: it is in none."""
    _back: frozenset[ChannelId]
    """Its back edges; looked up, never iterated."""

    def _begin_loop(
        self,
        back: Sequence[ChannelId],
        channels: Sequence[ChannelId],
        ended: Sequence[ChannelId],
        saved: Mapping[str, Any],
    ) -> None:
        """All ``channels`` are there, ``back`` edges among them, and those that have ``ended``."""
        cycles = self._incarnation.cycles
        self._back = frozenset(back)
        self._rounds = None
        if cycles.head_of(self.id.vertex) is not None:
            self._rounds = LoopRounds(back or channels, bool(back), ended, saved.get("rounds"))
            self._loop_edges = sorted({c.edge for c in self.outputs.channels if c.edge in cycles.inner_edges})

    @property
    def _is_loop_head(self) -> bool:
        """Whether it is at the head of a loop: the job goes on for as long as it does not say that it has ended."""
        return bool(self._back)

    def _saved_of_loop(self) -> dict[str, Any]:
        return {} if self._rounds is None else {"rounds": self._rounds.saved()}

    def _record_came_round(self, channel: ChannelId) -> None:
        assert self._rounds is not None
        invariant(not self.ended, "a record came round a loop that had ended", subtask=self.id, channel=channel)
        self._rounds.record_came_round()

    def _one_ended(self, channel: ChannelId) -> Iterator[None]:
        """An input has ended, and others have not: a head begins the rounds when it was the last from outside."""
        assert self._rounds is not None
        if not self._is_loop_head:
            return self._hand_on(self._rounds.end(channel))
        outside = [end for end in self.inputs.channels.values() if end.channel not in self._back]
        if self._rounds.started or not all(end.ended for end in outside):
            return iter(())
        return self._send_round(self._rounds.start())

    def _hand_on(self, came: Round | None) -> Iterator[None]:
        """A round of the loop is on all inputs, if it is."""
        assert self._rounds is not None
        if came is None or self.ended:
            return iter(())
        following = self._rounds.after(came)
        return self._end() if following is None else self._send_round(following)

    def _send_round(self, found: Round) -> Iterator[None]:
        self._on_point("round")
        for edge in self._loop_edges:
            self.outputs.append_round(edge, encoded(*found))
            yield

    @abstractmethod
    def _end(self) -> Iterator[None]:
        """All input has ended."""
