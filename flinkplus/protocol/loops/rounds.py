"""When a loop has ended: all input from outside has ended, and no record is in flight in it.

The head of a loop has one subtask for each slot. When all of a head subtask's input from outside has ended, it sends a
*round* through the loop, after everything that it has sent so far. Every subtask of the loop forwards a round when it
has arrived on all inputs that have not ended. When it is back at the head on all back edges, the head starts the next
one. A round reports whether any head subtask took a record off a back edge during the previous round.

Why this is exact. Channels keep their order, and a subtask forwards a round after the output of all that came before
it. So a round sweeps the loop: when round *n* is back at a head subtask, all that was in the loop before it has left
the loop, or has reached the head. Suppose that round *n + 1* comes back and reports that no head subtask took a record
off a back edge in round *n*. All head subtasks had started round *n*, so no input has come from outside since. Round
*n* swept every record that was in the loop to the head, and found none. So no record has been sent into the loop
since. The round reports the same to all head subtasks, and they end the loop after it. Conversely, a loop without
moving records ends after two rounds.

It is the double wave of Dijkstra's and Mattern's algorithms, with the order of channels instead of counters. Rounds are
messages: they have sequence numbers, belong to steps that are repeated, and are in snapshots.

Rules: pure; a round travels only on edges inside the loop; input from outside ends before a round passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flinkplus.protocol.vocabulary.ids import ChannelId, invariant

Round = tuple[int, bool]
"""Number of a round, from 1, and whether a record went through the loop during the previous one."""


def encoded(number: int, moved: bool) -> int:
    """A round as one number."""
    return number << 1 | moved


def decoded(value: int) -> Round:
    return value >> 1, bool(value & 1)


class LoopRounds:
    """The rounds of one subtask in a loop.

    ``channels``: the inputs on which a round is awaited: back edges at the head, otherwise all.
    ``ended``: those of ``channels`` that have ended.
    ``saved``: what ``saved`` returned for a snapshot.
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
        """Whether the first round has been started, or forwarded."""
        return self._number > 0

    def start(self) -> Round:
        """Start the first round: at the head, when all input from outside has ended."""
        return self._next(True)

    def record_came_round(self) -> None:
        """At the head: a step took a record off a back edge."""
        self._moves = True

    def take(self, channel: ChannelId, value: int) -> Round | None:
        """A step took a round off ``channel``. Returns it, combined, when it has arrived on all channels. ``after``
        gives what to send then. On some channels, the next round may arrive before that."""
        self._came[channel].append(decoded(value))
        return self._complete()

    def end(self, channel: ChannelId) -> Round | None:
        """``channel`` has ended; returns like ``take``."""
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
        in_order = all(other == expected for other, _ in together)
        invariant(in_order, "a round of a loop arrived out of order", expected=expected, rounds=together)
        self._number = number
        return number, any(moved for _, moved in together)

    def after(self, came: Round) -> Round | None:
        """The round to send when ``came`` has arrived on all inputs; ``None``: the loop has ended (heads only)."""
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
