"""A job whose rows go to several outputs, and the exact check of each of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream

ROWS, KEYS = 6_000, 37
EXPECTED = Counter((f"w{i % KEYS}", i // KEYS + 1) for i in range(ROWS))


def counting(spark: SparkSession, rate: float, **options: Any) -> tuple[StreamEnvironment, Stream]:
    """The counts of words, as they grow."""
    env = StreamEnvironment(spark, checkpoint_interval=0.15, **{"parallelism": 2, **options})
    words = env.generate(lambda i: f"w{i % KEYS}", schema="word string", count=ROWS, rate=rate, name="words")
    return env, words.key_by("word").count(name="count")


def pairs(table: pa.Table) -> Counter[tuple[str, int]]:
    return Counter(zip(table.column("word").to_pylist(), table.column("count").to_pylist(), strict=True))


def in_delta(table: Path) -> Counter[tuple[str, int]]:
    """What the table holds. Checks that each of its versions holds whole checkpoints: of every word the counts from 1
    on, each once."""
    import deltalake

    newest = deltalake.DeltaTable(str(table))
    found = Counter[tuple[str, int]]()
    for version in range(newest.version() + 1):
        before, found = found, pairs(deltalake.DeltaTable(str(table), version).to_pyarrow_dataset().to_table())
        totals = Counter(word for word, _ in found)
        assert before <= found == Counter((word, n) for word, total in totals.items() for n in range(1, total + 1))
    return found


def in_folders(out: Path) -> Counter[tuple[str, int]]:
    """What the folders of partitions hold, once the job has finished."""
    return pairs(ds.dataset(out, format="parquet", partitioning="hive").to_table())


class Called:
    """A function for ``foreach_batch`` that writes down its calls, for any number of drivers."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, table: pa.Table, batch_id: int) -> None:
        rows = [list(row.values()) for row in table.to_pylist()]
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps([batch_id, rows]) + "\n")

    def calls(self) -> list[tuple[int, list[Any]]]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [(batch_id, rows) for batch_id, rows in map(json.loads, lines)]

    def rows(self) -> Counter[tuple[str, int]]:
        """Of all batches, each ID once. Checks that IDs ascend, and that only the last call was ever repeated, with the
        same rows."""
        found: dict[int, list[Any]] = {}
        for batch_id, rows in self.calls():
            assert batch_id >= max(found, default=0)
            assert found.setdefault(batch_id, rows) == rows
            assert len(rows) > 0
        return Counter((word, count) for rows in found.values() for word, count in rows)


def all_outputs(counts: Stream, home: Path) -> Called:
    """A function, a Delta table and partitioned Parquet, all of the same stream."""
    called = Called(home / "calls.jsonl")
    counts.foreach_batch(called, name="called")
    counts.to_delta(home / "delta", name="delta")
    counts.to_parquet(home / "folders", partition_by="word", name="folders")
    return called


def assert_all_exact(home: Path, called: Callable[[], Counter[Any]]) -> None:
    assert called() == EXPECTED
    assert in_delta(home / "delta") == EXPECTED
    assert in_folders(home / "folders") == EXPECTED
