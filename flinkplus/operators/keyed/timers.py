"""Timers of keys: kept as keyed state, taken out in order of time. Time is event time, or that of the clock.

A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, JACM 1990) over pages of state. Time is cut in buckets, fine ones near
the watermark and coarser ones further away, each 64 times as long as those before. A bucket is a few pages, objects of
the keyed state. When the watermark reaches a coarse bucket its timers are dealt out to finer ones, so that each timer
moves a few times at most. A snapshot holds, and restoring reads, only the index of some hundreds of buckets.

Rules and invariants:

- a timer is a time and a key; setting one that is set already changes nothing;
- timers due at a watermark fire by time, then by the bytes of the key; one that is set for a time that has passed fires
  when the watermark rises next, before the others;
- one that is set while timers fire, for a later time that is due as well, fires in its turn;
- at rest, everything in the pages that was to fire up to the watermark has fired, and is ignored after restoring.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flinkplus.errors import InvariantViolation
from flinkplus.operators.base.durations import MAX_TIME_MS
from flinkplus.operators.base.keys import KeyCodes
from flinkplus.operators.base.operator import Inherited, JsonValue, KeyedState
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS

PAGE_TIMERS = 256
MAX_AT_THE_END = 10_000
"""Timers that a key may set when all input has ended, since a function that sets the next one in each never ends."""
MAX_BATCH_TIMERS = 16_384
"""A coarse bucket with more is dealt out to finer ones even when all of it is due."""
_FINEST_BITS, _LEVEL_BITS = 10, 6
_OFFSET = 2 * MAX_TIME_MS
_PAGE = struct.Struct(">BQI")
_FLAG = struct.Struct(">Q")


class Timer(NamedTuple):
    """A timer of ``key`` (of value ``value``) at ``at_ms``, which fires when the watermark reaches ``fire_ms``."""

    fire_ms: int
    at_ms: int
    key: bytes
    value: Any


class Bucket(NamedTuple):
    """The timers of 2**bits milliseconds, the ``number``-th such since the beginning of time."""

    level: int
    number: int

    @property
    def bits(self) -> int:
        return _FINEST_BITS + _LEVEL_BITS * max(0, self.level - 1)

    @property
    def first_ms(self) -> int:
        return (self.number << self.bits) - _OFFSET

    @property
    def end_ms(self) -> int:
        return (self.number + 1 << self.bits) - _OFFSET

    @staticmethod
    def of(time_ms: int, base_ms: int) -> Bucket:
        """Where a time is kept while event time is at ``base_ms``: the coarser, the higher the bits they differ in."""
        time, base = time_ms + _OFFSET, base_ms + _OFFSET
        level = max(0, -(-((time ^ base).bit_length() - _FINEST_BITS) // _LEVEL_BITS))
        return Bucket(level, time >> _FINEST_BITS + _LEVEL_BITS * max(0, level - 1))


@dataclass(slots=True)
class _Pages:
    count: int
    last: int  # timers in the last one

    @property
    def timers(self) -> int:
        return (self.count - 1) * PAGE_TIMERS + self.last


class EventTimers:
    """The timers of one operator in one subtask. ``watermark_ms``: how far event time is (``None``: not known yet)."""

    def __init__(self, state: KeyedState, operator: str) -> None:
        flags, content = states_of(operator)
        self._flags = state.page_state(flags)
        self._content = state.page_state(content)
        self.watermark_ms: int | None = None
        self._base_ms = -MAX_TIME_MS
        self._buckets: dict[Bucket, _Pages] = {}
        self._changes: dict[tuple[int, bytes], Timer | None] = {}
        self._near: tuple[Bucket, list[Timer]] | None = None
        self._firing: TimerBatch | None = None
        self._at_the_end: dict[bytes, int] = {}

    def set(self, at_ms: int, key: bytes, value: Any) -> None:
        """Set the timer of ``key`` at ``at_ms``. Raises ``OverflowError`` beyond ``MAX_AT_THE_END``."""
        at_ms = min(max(at_ms, -MAX_TIME_MS), MAX_TIME_MS)
        firing = self._firing
        if firing is not None and firing.watermark_ms == END_OF_TIME_MS:
            self._count_at_the_end(key)
        if firing is not None and firing.at_ms < at_ms <= firing.watermark_ms:
            timer = Timer(at_ms, at_ms, key, value)
            firing.offer(timer)
        else:
            watermark_ms = self.watermark_ms
            if watermark_ms == END_OF_TIME_MS:
                return  # no watermark follows
            timer = Timer(at_ms if watermark_ms is None else max(at_ms, watermark_ms + 1), at_ms, key, value)
        self._changes[at_ms, key] = timer

    def _count_at_the_end(self, key: bytes) -> None:
        count = self._at_the_end[key] = self._at_the_end.get(key, 0) + 1
        if count > MAX_AT_THE_END:
            raise OverflowError(
                f"all input has ended, and the key has set {count} timers since, each when another one fired: set none "
                "when ctx.at_end"
            )

    def unset(self, at_ms: int, key: bytes) -> None:
        """Remove the timer of ``key`` at ``at_ms``; no error when it is not set."""
        self._changes[min(max(at_ms, -MAX_TIME_MS), MAX_TIME_MS), key] = None

    def discard(self) -> None:
        """Forget what was set and unset since ``write_back``, while none fires."""
        self._changes = {}

    def write_back(self) -> None:
        """Write what was set and unset to the state: at the end of each batch."""
        changes, self._changes = self._changes, {}
        if not changes:
            return
        names = [_flag(at_ms, key) for at_ms, key in changes]
        added: dict[bytes, Timer] = {}
        removed: list[bytes] = []
        for name, timer, known in zip(names, changes.values(), self._flags.get_many(names), strict=True):
            if timer is None and known is not None:
                removed.append(name)
            elif timer is not None and known is None:
                added[name] = timer
        if removed:
            self._flags.delete_many(removed)
        if added:
            self._flags.put_many(list(added), [timer.fire_ms for timer in added.values()])
            self._keep(added.values())

    def _keep(self, timers: Iterable[Timer]) -> None:
        """Put timers into the buckets that they belong to now."""
        parts: dict[Bucket, list[Timer]] = {}
        for timer in timers:
            parts.setdefault(Bucket.of(timer.fire_ms, self._base_ms), []).append(timer)
        names: list[bytes] = []
        contents: list[list[tuple[Any, ...]]] = []
        for bucket, part in parts.items():
            if self._near is not None and self._near[0] == bucket:
                for timer in part:
                    heapq.heappush(self._near[1], timer)
            pages = self._buckets.setdefault(bucket, _Pages(0, PAGE_TIMERS))
            rest = [tuple(timer) for timer in part]
            if pages.last < PAGE_TIMERS:
                pages.count -= 1
                rest = self._content.get_many([_page(bucket, pages.count)])[0] + rest
            for start in range(0, len(rest), PAGE_TIMERS):
                names.append(_page(bucket, pages.count))
                contents.append(rest[start : start + PAGE_TIMERS])
                pages.count, pages.last = pages.count + 1, len(contents[-1])
        self._content.put_many(names, contents)

    def _load(self, bucket: Bucket) -> list[Timer]:
        pages = self._buckets[bucket]
        names = [_page(bucket, number) for number in range(pages.count)]
        return [Timer(*entry) for page in self._content.get_many(names) for entry in page]

    def _drop(self, bucket: Bucket) -> None:
        pages = self._buckets.pop(bucket)
        self._content.delete_many([_page(bucket, number) for number in range(pages.count)])
        if self._near is not None and self._near[0] == bucket:
            self._near = None

    def due(self, watermark_ms: int) -> Iterator[TimerBatch]:
        """What is due at ``watermark_ms``. Before the next batch, this one must be exhausted and everything written."""
        before_ms, self.watermark_ms = self.watermark_ms, watermark_ms
        reach_ms = min(watermark_ms, MAX_TIME_MS)
        while (bucket := min(self._buckets, key=_by_time, default=None)) is not None and bucket.first_ms <= reach_ms:
            whole = bucket.end_ms <= reach_ms
            if bucket.level and not (whole and self._buckets[bucket].timers <= MAX_BATCH_TIMERS):
                self._deal_out(bucket)
                continue
            due = self._take(bucket, reach_ms, before_ms, whole)
            if due:
                known = self._flags.get_many([_flag(timer.at_ms, timer.key) for timer in due])
                due = [timer for timer, flag in zip(due, known, strict=True) if flag is not None]
            if due:
                self._firing = TimerBatch(self, due, watermark_ms, min(reach_ms, bucket.end_ms - 1))
                yield self._firing
                self._firing = None
            if not whole:
                break
        self._base_ms = max(self._base_ms, reach_ms)

    @property
    def next_ms(self) -> int | None:
        """The earliest time at which something may be due; ``None``: no timer is set. Nothing may be after all: a
        timer that was taken back, or a bucket that is to be dealt out."""
        bucket = min(self._buckets, key=_by_time, default=None)
        if bucket is None:
            return None
        at_ms = bucket.first_ms
        if self._near is not None and self._near[0] == bucket:
            at_ms = self._near[1][0].fire_ms if self._near[1] else bucket.end_ms
        return at_ms if self.watermark_ms is None else max(at_ms, self.watermark_ms + 1)

    def _deal_out(self, bucket: Bucket) -> None:
        timers = self._load(bucket)
        self._drop(bucket)
        self._base_ms = max(self._base_ms, bucket.first_ms)
        self._keep(timers)

    def _take(self, bucket: Bucket, reach_ms: int, before_ms: int | None, whole: bool) -> list[Timer]:
        """What is due of a bucket. When not all of it is, it stays as it is, and is remembered."""
        near = self._near[1] if self._near is not None and self._near[0] == bucket else None
        if near is None:
            near = [timer for timer in self._load(bucket) if before_ms is None or timer.fire_ms > before_ms]
            heapq.heapify(near)
        if whole:
            self._drop(bucket)
            return near
        self._near = bucket, near
        due = []
        while near and near[0].fire_ms <= reach_ms:
            due.append(heapq.heappop(near))
        return due

    def fired(self, timers: list[tuple[int, bytes]]) -> None:
        """They have fired, and are not set any more."""
        if timers:
            self._flags.delete_many([_flag(at_ms, key) for at_ms, key in timers])

    def snapshot(self) -> JsonValue:
        """Besides the keyed state; JSON, some kilobytes at most."""
        if self._changes:
            raise InvariantViolation("a snapshot of timers that were not written back")
        buckets = [[*bucket, pages.count, pages.last] for bucket, pages in sorted(self._buckets.items())]
        return {"watermark_ms": self.watermark_ms, "base_ms": self._base_ms, "buckets": buckets}

    def restore(self, saved: Any) -> None:
        """Take back what ``snapshot`` gave."""
        self.watermark_ms, self._base_ms, self._near = saved["watermark_ms"], saved["base_ms"], None
        self._buckets = {Bucket(level, number): _Pages(count, last) for level, number, count, last in saved["buckets"]}

    def inherit(self, others: Sequence[tuple[EventTimers, Inherited]]) -> None:
        """Take the timers of others, restored at a snapshot, that belong here. How far they are may differ: by the
        clock, and where barriers do not block. What is due by the least of their times has fired everywhere."""
        reached = [other.watermark_ms for other, _ in others]
        known = [at_ms for at_ms in reached if at_ms is not None]
        self.watermark_ms = min(known) if known and len(known) == len(reached) else None
        self._base_ms = min((other._base_ms for other, _ in others), default=self._base_ms)
        for other, part in others:
            for bucket in sorted(other._buckets):
                timers = [
                    t for t in other._load(bucket) if other.watermark_ms is None or t.fire_ms > other.watermark_ms
                ]
                owned = part.owned([timer.key for timer in timers])
                mine = [timer for timer, own in zip(timers, owned, strict=True) if own]
                names = [_flag(timer.at_ms, timer.key) for timer in mine]
                flags = dict(zip(names, other._flags.get_many(names), strict=True))
                kept = {name: fire_ms for name, fire_ms in flags.items() if fire_ms is not None}
                if kept:
                    self._flags.put_many(list(kept), list(kept.values()))
                    self._keep(timer for timer, name in zip(mine, names, strict=True) if name in kept)


class TimerBatch:
    """Timers of one stretch of time that are due, to be gone through once.

    ``key_codes``: their keys, for reading state; ``at_ms``: of the timer that fires.
    """

    def __init__(self, timers: EventTimers, due: list[Timer], watermark_ms: int, last_ms: int) -> None:
        self._timers = timers
        self._heap = [(timer.at_ms, timer.key, timer.value) for timer in due]
        heapq.heapify(self._heap)
        self.watermark_ms = watermark_ms
        self._last_ms = last_ms
        self._codes = {key: code for code, key in enumerate(sorted({timer.key for timer in due}))}
        self._fired: dict[tuple[int, bytes], None] = {}
        keys = pa.array(list(self._codes), pa.binary())
        self.key_codes = KeyCodes(np.arange(len(keys), dtype=np.int32), keys, None, True)
        self.at_ms = END_OF_TIME_MS

    def offer(self, timer: Timer) -> None:
        """A timer was set for a time that is due as well: it fires in this batch, if it belongs here."""
        if timer.at_ms <= self._last_ms:
            heapq.heappush(self._heap, (timer.at_ms, timer.key, timer.value))

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """The time, the code of the key in ``key_codes``, and the key's value, of each timer that is still set."""
        changes = self._timers._changes
        while self._heap:
            at_ms, key, value = heapq.heappop(self._heap)
            timer = at_ms, key
            if timer in self._fired or changes.get(timer, self) is None:
                continue
            changes.pop(timer, None)
            self._fired[timer] = None
            self.at_ms = at_ms
            yield at_ms, self._codes[key], value
        self._timers.fired(list(self._fired))


def _by_time(bucket: Bucket) -> tuple[int, int]:
    return bucket.first_ms, bucket.level


def _page(bucket: Bucket, number: int) -> bytes:
    return _PAGE.pack(*bucket, number)


def states_of(operator: str) -> tuple[str, str]:
    """The names of the states of pages that hold an operator's timers: one entry for each that is set; the buckets."""
    return f"{operator}#timers", f"{operator}#timer-pages"


def timer_of(flag: bytes) -> tuple[int, bytes]:
    """Time and key of a timer, from the name of its entry."""
    return _FLAG.unpack_from(flag)[0] - _OFFSET, flag[_FLAG.size :]


def _flag(at_ms: int, key: bytes) -> bytes:
    return _FLAG.pack(at_ms + _OFFSET) + key
