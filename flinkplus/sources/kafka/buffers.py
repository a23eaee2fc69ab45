"""Records that were fetched and not read yet, by partition; and which of them a reader takes next. Pure.

Rules:

- Only whole records are taken, in the order of their offsets. A record without a row (skipped) is one all the same.
- A partition is full beyond its share of ``limit_bytes``, and has room again below half of it. What a replay needs is
  fetched beyond the limit.
- The record with the lowest timestamp comes first, so that partitions stay close in event time. A partition that has
  more records in the broker than here is waited for, ``PATIENCE_S`` at most.
- Partitions without timestamps take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import InputError
from flinkplus.sources.kafka.partitions import MAX_RECORDS, Partition

PATIENCE_S = 0.5
LEAST_SHARE_BYTES = 1 << 20
NO_TIMESTAMP = -1


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of a partition, at least one.

    ``rows``: of those that have one. ``offsets``: of each record. ``timestamps``: of each, milliseconds, or
    ``NO_TIMESTAMP``. ``ends``: for each record, how many rows there are up to its end; ``None``: each has one.
    ``failure``: of the only record, which cannot be read.
    """

    rows: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    size_bytes: int
    ends: npt.NDArray[np.int64] | None = None
    failure: InputError | None = None

    def rows_before(self, record: int) -> int:
        """How many rows the first ``record`` records have."""
        if self.ends is None or record == 0:
            return record
        return int(self.ends[record - 1])


@dataclass(frozen=True)
class Taken:
    """What was taken: batches that may be empty, how many records had no row, and the offset after the last one."""

    batches: Sequence[pa.RecordBatch]
    without_row: int
    next_offset: int


@dataclass
class _Queue:
    """The records of one partition.

    ``records``: how many are here. ``begin``: how many of the first chunk are taken. ``at_end``: the broker has no
    more. ``wanted``: how many a replay needs. ``short_since``: since when there has been nothing here, while the broker
    has more; monotonic seconds. ``turn``: of the last read.
    """

    chunks: deque[Chunk] = field(default_factory=deque)
    begin: int = 0
    records: int = 0
    size_bytes: int = 0
    at_end: bool = False
    is_full: bool = False
    wanted: int = 0
    short_since: float | None = None
    turn: int = 0

    @property
    def timestamp(self) -> int:
        return int(self.chunks[0].timestamps[self.begin])


class Buffers:
    """The records of the partitions of one reader. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._queues: dict[Partition, _Queue] = {}
        self._turn = 0

    def open(self, partition: Partition, now_s: float) -> None:
        """Records of ``partition`` are fetched from now on."""
        self._queues[partition] = _Queue(short_since=now_s)

    def add(self, partition: Partition, chunk: Chunk) -> None:
        """Records that were fetched, and follow those that are here."""
        queue = self._queues[partition]
        queue.chunks.append(chunk)
        queue.records += len(chunk.offsets)
        queue.size_bytes += chunk.size_bytes
        queue.at_end, queue.short_since = False, None

    def reached_end(self, partition: Partition) -> None:
        """The broker has no more records of ``partition`` than were added."""
        queue = self._queues[partition]
        queue.at_end, queue.short_since = True, None

    def full(self) -> set[Partition]:
        """The partitions of which nothing more should be fetched now."""
        share = max(LEAST_SHARE_BYTES, self._limit_bytes // max(1, len(self._queues)))
        for queue in self._queues.values():
            limit = share // 2 if queue.is_full else share
            queue.is_full = queue.size_bytes > limit and queue.records >= queue.wanted
        return {partition for partition, queue in self._queues.items() if queue.is_full}

    def records(self, partition: Partition, wanted: int) -> int | None:
        """How many records of ``partition`` are here; if fewer than ``wanted``, more are to be fetched. ``None``: it is
        not open."""
        queue = self._queues.get(partition)
        if queue is None:
            return None
        queue.wanted = wanted
        return queue.records

    @property
    def has_records(self) -> bool:
        """Whether any can be read."""
        return any(queue.records for queue in self._queues.values())

    def read_to_end(self) -> set[Partition]:
        """The partitions of which all is read that the broker has."""
        return {partition for partition, queue in self._queues.items() if queue.at_end and not queue.records}

    def next(self, max_records: int, now_s: float) -> tuple[Partition, int] | None:
        """What to read next: a partition, and how many of its records. ``None``: nothing just now. Changes nothing."""
        ready = [item for item in self._queues.items() if item[1].records]
        if not ready:
            return None
        partition, queue = min(ready, key=lambda item: (item[1].timestamp, item[1].turn))
        if queue.timestamp != NO_TIMESTAMP and self._is_another_due(now_s):
            return None
        return partition, self._readable(queue, min(max_records, MAX_RECORDS))

    def _is_another_due(self, now_s: float) -> bool:
        """Whether records of another partition, which may be older, should be here soon."""
        return any(
            queue.short_since is not None and now_s - queue.short_since < PATIENCE_S for queue in self._queues.values()
        )

    def due_s(self) -> float | None:
        """When ``next`` may answer otherwise though nothing was added: monotonic seconds."""
        times = [queue.short_since + PATIENCE_S for queue in self._queues.values() if queue.short_since is not None]
        return max(times, default=None)

    @staticmethod
    def _readable(queue: _Queue, limit: int) -> int:
        """How many records can be taken together: those before one that cannot be read."""
        count = -queue.begin
        for chunk in queue.chunks:
            if chunk.failure is not None and count > 0:
                break
            count += len(chunk.offsets)
            if count >= limit or chunk.failure is not None:
                break
        return min(count, limit)

    def take(self, partition: Partition, count: int, now_s: float) -> Taken:
        """The next ``count`` records, which are here. Raises ``InputError`` for one that cannot be read, and takes
        nothing."""
        queue = self._queues[partition]
        batches: list[pa.RecordBatch] = []
        left, without_row, begin, next_offset = count, 0, queue.begin, 0
        finished: list[Chunk] = []
        for chunk in queue.chunks:
            if chunk.failure is not None:
                raise chunk.failure
            end = min(len(chunk.offsets), begin + left)
            first, last = chunk.rows_before(begin), chunk.rows_before(end)
            batches.append(chunk.rows.slice(first, last - first))
            without_row += end - begin - (last - first)
            left -= end - begin
            next_offset = int(chunk.offsets[end - 1]) + 1
            begin = end
            if end == len(chunk.offsets):
                finished.append(chunk)
                begin = 0
            if not left:
                break
        assert not left
        for chunk in finished:
            queue.chunks.popleft()
            queue.size_bytes -= chunk.size_bytes
        self._turn += 1
        queue.turn = self._turn
        queue.begin = begin
        queue.records -= count
        queue.wanted = 0
        if not queue.records and not queue.at_end:
            queue.short_since = now_s
        return Taken(batches, without_row, next_offset)
