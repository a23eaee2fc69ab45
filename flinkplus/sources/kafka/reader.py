"""The reader of one subtask: it chooses among what the thread has fetched, and repeats what was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InvariantViolation
from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import LAG_ROWS, LiveReader
from flinkplus.sources.kafka.buffers import Buffers
from flinkplus.sources.kafka.chunks import ChunkMaker
from flinkplus.sources.kafka.client import KafkaClient
from flinkplus.sources.kafka.fetching import Fetcher, Reading, Shared
from flinkplus.sources.kafka.partitions import (
    END,
    Assignment,
    Partition,
    Position,
    choice_of,
    parts_of,
    position_from,
)
from flinkplus.sources.kafka.planning import SplitPlan


class ReadSource(Protocol):
    """What a reader asks of its source's descriptor."""

    @property
    def name(self) -> str: ...

    @property
    def topics(self) -> tuple[str, ...]: ...

    @property
    def plan(self) -> SplitPlan | None: ...

    @property
    def group(self) -> str | None: ...

    @property
    def buffer_bytes(self) -> int: ...

    @property
    def discover_s(self) -> float: ...

    def chunk_maker(self) -> ChunkMaker: ...

    def connect(self, client: str) -> KafkaClient: ...


class KafkaReader(LiveReader):
    """Reads the partitions of ``Assignment(source.topics, index, parallelism)``.

    ``metrics``: ``rows``, and ``invalid_records``: those that were skipped.
    """

    def __init__(self, source: ReadSource, index: int, parallelism: int) -> None:
        super().__init__()
        if source.plan is None:
            raise InvariantViolation(f"source {source.name!r} is not planned; the driver must call planned()")
        self.metrics["invalid_records"] = 0
        self._source = source
        self._plan = source.plan
        self._assignment = Assignment(source.topics, index, parallelism)
        self._offsets: dict[Partition, int] = {}
        self._shared = Shared(Buffers(source.buffer_bytes))
        self._fetcher: Fetcher | None = None

    @override
    def open(self, position: JsonValue) -> None:
        found = position_from(self._source.name, position)
        self._offsets = dict(found.offsets)
        self.metrics |= {"rows": found.rows, "invalid_records": found.invalid_records}
        if self._plan.stop is not None:
            self._shared.to_finish = {p for p in self._plan.stop if self._assignment.has(p)}

    @override
    def position(self) -> JsonValue:
        return Position(self._offsets, self.metrics["rows"], self.metrics["invalid_records"]).to_json()

    def _begin_of(self, partition: Partition) -> int:
        found = self._offsets.get(partition)
        return self._plan.start.get(partition, 0) if found is None else found

    @override
    def begin(self, woken: Callable[[Exception | None], None]) -> None:
        begins = dict(self._offsets)
        known = self._plan.start.keys() | (begins.keys() if self._plan.stop is None else set())
        reading = Reading(
            self._source.name,
            self._assignment,
            lambda partition: begins.get(partition, self._plan.start.get(partition, 0)),
            sorted(partition for partition in known if self._assignment.has(partition)),
            self._plan.stop,
            self._source.discover_s,
        )
        client = f"flinkplus-{self._source.name}-{self._assignment.index}"
        self._fetcher = Fetcher(
            reading, self._shared, self._source.chunk_maker(), lambda: self._source.connect(client), woken
        )
        self._fetcher.start()

    @override
    def choose(self, max_rows: int) -> int | None:
        with self._shared.lock:
            found = self._shared.buffers.next(max_rows, time.monotonic())
            if found is None:
                is_at_end = self._plan.stop is not None and not self._shared.to_finish
                return END if is_at_end and not self._shared.buffers.has_records else None
        partition, records = found
        return choice_of(self._assignment.local(partition), records)

    @override
    def can_read(self, choice: int) -> bool:
        if choice == END:
            return True
        local, records = parts_of(choice)
        partition = self._assignment.partition(local)
        with self._shared.lock:
            here = self._shared.buffers.records(partition, records)
            self._shared.asked |= {partition} if here is None else set()
        return here is not None and here >= records

    @override
    def rows_of(self, choice: int) -> int:
        return parts_of(choice)[1]

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        if choice == END:
            return None
        local, records = parts_of(choice)
        partition = self._assignment.partition(local)
        with self._shared.lock:
            taken = self._shared.buffers.take(partition, records, time.monotonic())
        self._offsets[partition] = taken.next_offset
        batch = merge(taken.batches)
        self.metrics["rows"] += batch.num_rows
        self.metrics["invalid_records"] += taken.without_row
        return batch

    @override
    def committed(self, position: JsonValue) -> None:
        if self._source.group is not None:
            with self._shared.lock:
                self._shared.to_commit = position_from(self._source.name, position).offsets

    @override
    def gauges(self) -> Mapping[str, int]:
        """``lag_rows``: records in the brokers, up to where the source stops, after those that were read."""
        with self._shared.lock:
            highs, read = self._shared.highs, self._shared.buffers.read_to_end()
        stop = self._plan.stop
        lag = 0
        for partition, high in highs.items():
            if partition not in read:
                end = high if stop is None else min(high, stop[partition])
                lag += max(0, end - self._begin_of(partition))
        return {LAG_ROWS: lag}

    @override
    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
