"""When a loop has ended: nothing comes from outside any more, and no record is in flight in it.

The head of a loop has one subtask for each slot. When all input from outside of one has ended, it sends a *round*
through the loop, behind everything that it has sent so far; everybody in the loop hands a round on when it has come on
all of its inputs that have not ended; and when it is back at the head on all back edges, the next one starts. A round
says whether any subtask of the head took a record off a back edge during the round before.

Why this is exact. Channels keep their order, and everybody hands on a round behind what it made of all that came
before it. So a round sweeps the loop: when number *n* is back at a subtask of the head, all that was in the loop before
it has come out, or round. Suppose that round *n + 1* comes back and says that in round *n* no subtask of the head took
a record off a back edge. All of them had started *n*, so nothing came from outside since; what was in the loop then was
swept to the head by round *n*, and there was nothing; so nothing has been sent into the loop since. All subtasks of the
head are told the same by the same round, since it has come together from all of them, and end the loop behind it.
Conversely, a loop in which nothing moves ends after two rounds.

It is the double wave of Dijkstra's and Mattern's algorithms, with the order of channels in the place of counters.
Rounds are messages: they have sequence numbers, belong to steps that are repeated, and are in snapshots like
everything else.

Rules: pure; a round travels on edges inside of the loop only; input from outside of it ends before a round passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flinkplus.protocol.vocabulary.ids import ChannelId, invariant

Round = tuple[int, bool]
"""Its number, from 1, and whether a record came round during the one before."""


def encoded(number: int, moved: bool) -> int:
    """A round as one number."""
    return number << 1 | moved


def decoded(value: int) -> Round:
    return value >> 1, bool(value & 1)


class LoopRounds:
    """Of one subtask in a loop.

    ``channels``: the inputs that a round is awaited on: of the head, its back edges; of others, all. ``ended``: those
    of them that have ended. ``saved``: what ``saved`` gave in a snapshot.
    """

    def __init__(
        self,
        channels: Sequence[ChannelId],
        is_head: bool,
        ended: Sequence[ChannelId] = (),
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        saved = saved or {}
        self._channels = tuple(channels)
        self._is_head = is_head
        self._ended = set(ended)  # looked up, never iterated
        self._number = int(saved.get("number", 0))
        self._moves = bool(saved.get("moves", False))
        came = saved.get("came", {})
        self._came: dict[ChannelId, list[Round]] = {
            channel: [decoded(value) for value in came.get(str(channel), ())] for channel in self._channels
        }

    @property
    def started(self) -> bool:
        """Whether the first round has been started, or handed on."""
        return self._number > 0

    def start(self) -> Round:
        """Of the head: all input from outside has ended."""
        return self._next(True)

    def record_came_round(self) -> None:
        """Of the head: a record was taken off a back edge."""
        self._moves = True

    def take(self, channel: ChannelId, value: int) -> Round | None:
        """A round was taken off ``channel``. Returned when it is on all of them, as what came together; ``after`` says
        how to go on. On some channels the next one may come before that."""
        self._came[channel].append(decoded(value))
        return self._complete()

    def end(self, channel: ChannelId) -> Round | None:
        """``channel`` has ended; as ``take``."""
        self._ended.add(channel)
        return self._complete()

    def _complete(self) -> Round | None:
        if any(not came and channel not in self._ended for channel, came in self._came.items()):
            return None
        together = [came.pop(0) for came in self._came.values() if came]
        if not together:
            return None
        number = together[0][0]
        expected = self._number if self._is_head else self._number + 1
        invariant(
            all(other == expected for other, _ in together),
            "a round of a loop comes out of turn",
            expected=expected,
            rounds=together,
        )
        self._number = number
        return number, any(moved for _, moved in together)

    def after(self, came: Round) -> Round | None:
        """What is to be sent when ``came`` is on all inputs; ``None``: the loop has ended (heads only)."""
        _, moved = came
        if not self._is_head:
            return came
        return self._next(self._moves) if moved else None

    def _next(self, moved: bool) -> Round:
        self._number, self._moves = self._number + 1, False
        return self._number, moved

    def saved(self) -> dict[str, Any]:
        """For a snapshot, JSON."""
        came = {str(channel): [encoded(*one) for one in rounds] for channel, rounds in self._came.items() if rounds}
        return {"number": self._number, "moves": self._moves, "came": came}
