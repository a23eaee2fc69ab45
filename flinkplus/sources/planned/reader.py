"""The reader of one subtask of planned batches.

Rules: a partition is read when its batch is there, by a new reader of the data source. What a choice means follows from
the position: rows of the lowest partition that is left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from typing_extensions import override

from flinkplus.errors import InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.batches.reader import BatchWatch
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.watch import Woken
from flinkplus.sources.planned.area import PlanArea
from flinkplus.sources.planned.planning import PlannedBatch
from flinkplus.sources.planned.position import PlannedPosition
from flinkplus.sources.python.partitions import PartitionByPartition, PartitionedSource

AHEAD = 2
"""Partitions that are opened: the one that is read, and the one behind it."""


class PlannedSource(PartitionedSource, Protocol):
    """What a reader asks of its source's descriptor."""

    def area(self) -> PlanArea: ...

    def read_planned(self, partition: bytes) -> Any: ...


@dataclass(frozen=True)
class PlannedPartition:
    """Partition ``number`` of the source, in ``batch``."""

    number: int
    batch: PlannedBatch = field(compare=False, repr=False)

    @property
    def pickled(self) -> bytes:
        return self.batch.partitions[self.number - self.batch.first]


class PlannedReader(PartitionByPartition):
    """Reads ``source``. ``start``: the position at the start of the job."""

    def __init__(self, source: PlannedSource, index: int, start: PlannedPosition) -> None:
        def named(partition: PlannedPartition) -> str:
            batch = partition.batch
            return f"partition {partition.number - batch.first} of batch {batch.number} of {source.shown}"

        super().__init__(source, index, named)
        self._area, self._read_planned = source.area, source.read_planned
        self._watch: BatchWatch[PlannedBatch] | None = None
        self._take_over(start)

    def _take_over(self, at: PlannedPosition) -> None:
        self._at = at
        self.metrics = {"rows": at.rows, "partitions": at.partitions}

    @override
    def open(self, position: JsonValue) -> None:
        if position is not None:
            self._take_over(PlannedPosition.from_json(self._source.name, position))

    @override
    def position(self) -> JsonValue:
        return self._at.to_json()

    @override
    def begin(self, woken: Woken) -> None:
        self._watch = BatchWatch(self._area(), 0)
        self._watch.begin(woken)
        super().begin(woken)

    @override
    def _upcoming(self) -> list[OpenFile[PlannedPartition]]:
        if self._watch is None or not (batches := self._watch.batches):
            return []
        floor = self._at.floor  # also batches without partitions are forgotten; the last one says how many there are
        self._watch.forget(next((batch.number for batch in batches if batch.next > floor), batches[-1].number))
        firsts = [batch.first for batch in batches]

        def of(number: int) -> PlannedPartition:
            batch = batches[max(0, bisect_right(firsts, number) - 1)]
            if not batch.first <= number < batch.next:
                raise InputError(
                    f"source {self._source.name!r}: partition {number} of {self._source.shown} was planned in a batch "
                    f"that is not there; the batches from {batches[0].number} to {batches[-1].number} do not have it"
                )
            return PlannedPartition(number, batch)

        return [OpenFile(of(number), rows) for number, rows in self._at.upcoming(batches[-1].next, AHEAD)]

    @override
    def _is_over(self) -> bool:
        return self._watch is not None and self._watch.ended

    @override
    def _iterator(self, partition: PlannedPartition) -> Any:
        return self._read_planned(partition.pickled)

    @override
    def _advance(self, rows: int, ended: bool) -> None:
        self._at = self._at.after(rows, ended)
        self.metrics["partitions"] = self._at.partitions

    @override
    def gauges(self) -> Mapping[str, int]:
        batches = self._watch.batches if self._watch is not None else ()
        return {"lag_partitions": self._at.left(batches[-1].next) if batches else 0}

    @override
    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        super().close()
