"""Processors of PySpark's ``transformWithState``, as a user of Spark writes them: nothing here knows FlinkPlus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType


class RunningCount(StatefulProcessor):
    """The number of rows of each key, and their sum, for each row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = StructType([StructField("count", LongType()), StructField("total", LongType())])
        self._count = handle.getValueState("count", schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count, total = self._count.get() or (0, 0)
        for row in rows:
            count, total = count + 1, total + row.n
            yield Row(k=key[0], count=count, total=total)
        self._count.update((count, total))

    def close(self) -> None:
        pass


class Sessions(StatefulProcessor):
    """Sessions of rows at most 1,000 ms apart, by a timer that each row moves."""

    GAP_MS = 1_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._times = handle.getListState("times", "at bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._times.appendValue((row.at,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(max(at for (at,) in self._times.get()) + self.GAP_MS)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        times = sorted(at for (at,) in self._times.get())
        begins = [
            at for before, at in zip([None, *times], times, strict=False) if before is None or at > before + self.GAP_MS
        ]
        for begin, following in zip(begins, [*begins[1:], None], strict=True):
            mine = [at for at in times if at >= begin and (following is None or at < following)]
            yield Row(k=key[0], count=len(mine), total=begin)
        self._times.clear()

    def close(self) -> None:
        pass


class Cache(StatefulProcessor):
    """What was seen last of each number of a key, forgotten after a while."""

    TTL_MS = 200

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", StructType([StructField("n", LongType())]), self.TTL_MS)
        self._seen = handle.getMapState("seen", "n bigint", "times bigint", self.TTL_MS)
        self._list = handle.getListState("list", "n bigint", self.TTL_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            before = self._last.get()
            times = self._seen.getValue((row.n,))
            listed = len(list(self._list.get()))
            yield Row(
                k=key[0], count=0 if times is None else times[0], total=listed * 100 + (before[0] if before else -1)
            )
            self._last.update((row.n,))
            self._seen.updateValue((row.n,), (1 if times is None else times[0] + 1,))
            self._list.appendValue((row.n,))

    def close(self) -> None:
        pass


class Inventory(StatefulProcessor):
    """A map for each key, in which even numbers add up, and odd ones remove."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        key = StructType([StructField("n", LongType()), StructField("name", StringType())])
        self._stock = handle.getMapState("stock", key, "amount bigint")
        self._names = handle.getListState("names", "name string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            entry = (row.n // 2 % 3, f"item {row.n // 2 % 3}")
            if row.n % 2:
                if self._stock.containsKey(entry):
                    self._stock.removeKey(entry)
                    rest = [name for name in self._names.get() if name != (entry[1],)]
                    if rest:
                        self._names.put(rest)
                    else:  # Spark refuses an empty list
                        self._names.clear()
            else:
                found = self._stock.getValue(entry)
                self._stock.updateValue(entry, (row.n + (found[0] if found else 0),))
                self._names.appendList([(entry[1],)])
            if row.n == 9:
                self._stock.clear()
                self._names.clear()
            amounts = sum(amount for (amount,) in self._stock.values()) + sum(n for n, _ in self._stock.keys())  # noqa: SIM118
            count = len(list(self._stock.iterator())) * 10 + len(list(self._names.get()))
            assert self._stock.exists() or not list(self._stock.keys())
            yield Row(k=key[0], count=count, total=amounts)

    def close(self) -> None:
        pass


OUTPUT = "k string, count long, total long"
