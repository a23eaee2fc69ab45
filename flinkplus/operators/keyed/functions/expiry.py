"""How long the state of functions lives: times at which values expire, and the removal of those that have.

Rules:
- a value expires a fixed time (``ttl``) after it was put: by event time where the stream has watermarks, otherwise by
  the time of the step. Both are the same when a step is repeated;
- the time that is kept with a value decides, not whether the value is still there: an expired value is never seen;
- values put before event time is known count as put when it becomes known;
- each stored value that can expire stands in a *removal queue* once. When its turn comes, it is removed if it has
  expired, and otherwise queued again. So a value is removed at most one further ``ttl`` after it has expired, at the
  cost of two entries of a queue, however often it was put.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flinkplus.operators.base.operator import ObjectStateLike

UNTIMED = -(1 << 62)
"""In the place of a time: the value was put before event time was known."""
NEVER = 1 << 62
CHUNK_NAMES = 512
_CHUNK = struct.Struct(">Q")
Due = tuple[int, bytes]
"""When a name of a value is looked at, and the name."""


class LifeClock:
    """The time by which the values of one operator expire, in milliseconds; it never goes back within a subtask.

    ``by_event_time``: by event time, which the operator reports (``event_ms``); otherwise by ``now_ms``.
    ``first_ms``: when event time became known.
    """

    def __init__(self, by_event_time: bool, now_ms: Callable[[], int]) -> None:
        self.by_event_time = by_event_time
        self._now_ms = now_ms
        self.event_ms: int | None = None
        self.first_ms: int | None = None

    def now(self) -> int | None:
        """The time now; ``None``: event time is not known yet."""
        return self.event_ms if self.by_event_time else self._now_ms()

    def becomes_known(self, watermark_ms: int) -> None:
        """The watermark has risen."""
        if self.first_ms is None:
            self.first_ms = watermark_ms

    def reaches(self, event_ms: int) -> None:
        """Event time is at least ``event_ms``."""
        self.event_ms = event_ms if self.event_ms is None else max(self.event_ms, event_ms)


@dataclass(frozen=True)
class Lifetime:
    """How long the values of one state live. ``ttl_ms``: at least 1."""

    ttl_ms: int
    clock: LifeClock

    def expiry(self) -> int:
        """When a value that is put now expires."""
        now_ms = self.clock.now()
        return UNTIMED if now_ms is None else now_ms + self.ttl_ms

    def is_over(self, expiry_ms: int) -> bool:
        """Whether a value that expires at ``expiry_ms`` is not to be seen any more."""
        now_ms = self.clock.now()
        if now_ms is None:
            return False
        if expiry_ms == UNTIMED:
            assert self.clock.first_ms is not None
            expiry_ms = self.clock.first_ms + self.ttl_ms
        return expiry_ms <= now_ms


class RemovalQueue:
    """Names of values in the order in which they are looked at: pages ``first`` to ``end`` - 1; the last one is in
    memory until it is full or saved. ``added``: how many names were added since the caller last set it to 0."""

    def __init__(self, pages: ObjectStateLike) -> None:
        self._pages = pages
        self._first = self._end = 0
        self._head: list[Due] = []
        self._open: list[Due] = []
        self.added = 0

    def add(self, names: Sequence[bytes], due_ms: int) -> None:
        """``names`` are looked at when the time is ``due_ms``, or later if others before them are."""
        self.added += len(names)
        self._open += [(due_ms, name) for name in names]
        while len(self._open) >= CHUNK_NAMES:
            self._close(CHUNK_NAMES)

    def _close(self, names: int) -> None:
        page = tuple(part for due in self._open[:names] for part in due)
        self._pages.put_many([_CHUNK.pack(self._end)], [page])
        self._open = self._open[names:]
        self._end += 1

    def take(self, now_ms: int, budget: int) -> Iterator[list[Due]]:
        """Pages whose turn has come, which are removed: of some ``budget`` names in all."""
        if self._open and self._open[-1][0] <= now_ms:
            self._close(len(self._open))
        end = self._end  # those that are added meanwhile wait
        while budget > 0 and self._first < end:
            if not self._head:
                self._head = self._page(self._first)
            if self._head[-1][0] > now_ms:
                return
            due, self._head = self._head, []
            self._pages.delete_many([_CHUNK.pack(self._first)])
            self._first += 1
            budget -= len(due)
            yield due

    def _page(self, number: int) -> list[Due]:
        (page,) = self._pages.get_many([_CHUNK.pack(number)])
        return list(zip(page[::2], page[1::2], strict=True))

    def saved(self) -> dict[str, Any]:
        """The bounds of the pages, for a snapshot; all names are in the state then."""
        if self._open:
            self._close(len(self._open))
        return {"first": self._first, "end": self._end}

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore the result of ``saved``."""
        self._first, self._end = saved["first"], saved["end"]

    def all(self) -> Iterator[list[Due]]:
        """All pages of a restored queue."""
        return map(self._page, range(self._first, self._end))
