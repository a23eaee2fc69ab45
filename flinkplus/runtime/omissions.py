"""What a job does without when it is told to (``without:PART``, see ``faults``): it shows what the part is there for.

Rules: for experiments and their tests only. A job that lacks nothing never comes here. One that lacks anything compares
nothing either: else it would be found out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace

from typing_extensions import override

from flinkplus.protocol.channel import ACCEPT, Accept, Decision, Duplicate, InputCursor
from flinkplus.protocol.ids import ChannelId, Generation, Seq
from flinkplus.protocol.incarnation import Promotion
from flinkplus.runtime.faults import FILTER


class UnfilteredCursor(InputCursor):
    """Takes what is sent again as if it were new. Its own numbers go on as if it had not come."""

    __slots__ = ("_counts",)

    def __init__(
        self,
        channel: ChannelId,
        generation: Generation,
        window: int,
        start: Seq,
        *,
        replayed: bool = False,
        overdrawn: bool = False,
    ) -> None:
        super().__init__(channel, generation, window, start, replayed=replayed, overdrawn=overdrawn)
        self._counts: deque[bool] = deque()  # of what was taken and is not consumed: whether it was new

    @override
    def accept(self, generation: Generation, seq: Seq) -> Decision:
        decision = super().accept(generation, seq)
        if not isinstance(decision, Accept | Duplicate):
            return decision
        self._counts.append(isinstance(decision, Accept))
        return ACCEPT

    @override
    def consume(self, count: int = 1) -> None:
        new = sum(self._counts.popleft() for _ in range(count))
        if new:
            super().consume(new)


def without(omitted: Collection[str], promotion: Promotion | None) -> Promotion | None:
    """A promotion that compares nothing, and without the filter is not told what its living consumers have received."""
    if promotion is None:
        return None
    return replace(promotion, had=None, received={} if FILTER in omitted else promotion.received)
