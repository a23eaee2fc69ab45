"""Which batch comes next, when there is room for it, and what a checkpoint lets go. Pure.

A batch is what lies between two offsets: partitions, or none. Batch 0 has no partitions, and says where the source
begins. So an offset that depends on the time of day is asked for once.

Rules: a batch begins where the one before ends. Offsets are JSON texts, compared by what they say.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import InputError, InvariantViolation


@dataclass(frozen=True)
class PlannedBatch:
    """Batch ``number``, between two offsets. ``first``: number of its first partition; ``partitions``: pickled."""

    number: int
    start: str
    end: str
    first: int
    partitions: tuple[bytes, ...] = ()

    @property
    def next(self) -> int:
        """The number of the partition behind its last one."""
        return self.first + len(self.partitions)


@dataclass(frozen=True)
class BatchBounds:
    """A batch without its partitions. ``next``: as of a ``PlannedBatch``."""

    number: int
    start: str
    end: str
    next: int


class BatchPlanning:
    """``batches``: those that are planned and kept, in ascending order. ``max_unread``: limit of unread ones."""

    def __init__(self, source: str, max_unread: int, batches: Iterable[PlannedBatch] = ()) -> None:
        self._source, self._max_unread = source, max_unread
        self._batches: deque[BatchBounds] = deque()
        self._committed = -1
        for batch in batches:
            self.add(batch)

    @property
    def at(self) -> str | None:
        """Where the next batch begins; ``None``: the first offset is not known."""
        return self._batches[-1].end if self._batches else None

    @property
    def reached(self) -> int:
        """The number of partitions that are planned."""
        return self._batches[-1].next if self._batches else 0

    def unread(self, partitions_read: int) -> int:
        """How many batches have partitions that were not read. ``partitions_read``: by all subtasks together."""
        return sum(batch.next > partitions_read for batch in self._batches)

    def has_room(self, partitions_read: int) -> bool:
        return self.unread(partitions_read) < self._max_unread

    def is_new(self, offset: str) -> bool:
        """Whether a batch up to ``offset`` has anything new. Raises ``InputError`` if that lies before what is planned.

        Only the data source knows the order of its offsets. But one that was left before does not come again; and
        where nothing but numbers has changed, and each of them is lower, the source has gone back.
        """
        assert self.at is not None
        now, before = json.loads(offset), json.loads(self.at)
        if _said(now) == _said(before):
            return False
        left = {_said(json.loads(batch.start)) for batch in self._batches}
        if _said(now) in left or set(_changes(before, now)) == {-1}:
            raise InputError(
                f"source {self._source!r}: latestOffset went back from {self.at:.500} to {offset:.500}: what lies "
                "between them was read, and would be read again"
            )
        return True

    def following(self, end: str, partitions: Sequence[bytes]) -> PlannedBatch:
        """The next batch, up to ``end``."""
        assert self.at is not None
        return PlannedBatch(self._batches[-1].number + 1, self.at, end, self.reached, tuple(partitions))

    def add(self, batch: PlannedBatch) -> None:
        """A batch is stored. Raises ``InvariantViolation`` if it does not follow the one before."""
        last = self._batches[-1] if self._batches else None
        if last is not None and (batch.number, batch.start, batch.first) != (last.number + 1, last.end, last.next):
            raise InvariantViolation(
                f"source {self._source!r}: planned batch {batch.number} does not follow batch {last.number}"
            )
        self._batches.append(BatchBounds(batch.number, batch.start, batch.end, batch.next))

    def check_kept(self, floor: int) -> None:
        """Raises ``InputError`` if a checkpoint needs partitions from ``floor`` on, and fewer are planned: those before
        would get numbers that were given already."""
        if floor > self.reached:
            raise InputError(
                f"source {self._source!r}: a checkpoint has read {floor} partitions, and only {self.reached} are "
                "planned in the checkpoint directory: planned batches were removed there, or are an older copy"
            )

    def passed(self, floor: int) -> tuple[str | None, list[int]]:
        """What can be let go when no checkpoint needs a partition before ``floor``.

        Returns the offset to commit, if it is a later one than before, and the batches to remove, in ascending order.
        The last batch stays, since it says where the next one begins.
        """
        over = [batch for batch in self._batches if batch.next <= floor and batch.number]
        offset = None
        if over and over[-1].number > self._committed:
            offset, self._committed = over[-1].end, over[-1].number
        last = self._batches[-1].number if self._batches else 0
        return offset, [batch.number for batch in self._batches if batch.next <= floor and batch.number < last]

    def removed(self, number: int) -> None:
        """The first batch is removed."""
        assert self._batches[0].number == number
        self._batches.popleft()


def _said(offset: Any) -> str:
    return json.dumps(offset, sort_keys=True)


def _changes(before: Any, after: Any) -> Iterator[int]:
    """How numbers in an offset have changed: -1 or 1; 0 for anything else that has changed."""
    if _is_number(before) and _is_number(after):
        if before != after:
            yield 1 if after > before else -1
    elif isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from _changes(before[key], after[key])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _changes(one, other)
    elif before != after or type(before) is not type(after):
        yield 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
