"""The same processors, unchanged, in Spark's ``transformWithState`` with its RocksDB store and here: equal rows.

Spark itself needs pandas and protobuf for this, which FlinkPlus does not: ``pip install 'pandas<3' protobuf``.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from flinkplus import StreamEnvironment
from tests.integration.conftest import wait_until
from tests.stateful_processors import OUTPUT, Cache, Inventory, RunningCount, Sessions

pytestmark = [pytest.mark.integration, pytest.mark.long]

pytest.importorskip("pandas", reason="Spark needs pandas: pip install 'pandas<3' protobuf")
pytest.importorskip("google.protobuf")

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
INPUT = "k string, n bigint, at bigint"
BATCHES, LAST = 8, "z"
Rows = list[tuple[Any, ...]]


class LongCache(Cache):
    """Nothing expires while the test runs."""

    TTL_MS = 3_600_000


def drawn() -> list[Rows]:
    """Batches with each key once at most, since Spark may order the rows of a key; times ascend. The last rows are of a
    key of their own, and far ahead."""
    rng, at = random.Random(4), 1_700_000_000_000
    batches: list[Rows] = []
    for _ in range(BATCHES):
        rows = []
        for key in rng.sample("abcdef", rng.randrange(2, 6)):
            at += rng.choice((10, 300, 700, 2_500))
            rows.append((key, rng.randrange(10), at))
        batches.append(rows)
    return [*batches, [(LAST, 1, at + 10_000_000)], [(LAST, 1, at + 20_000_000)]]


def by_spark(spark: SparkSession, folder: Path, processor: Any, mode: str) -> Rows:
    """What a streaming query of Spark gives, a micro-batch for each batch."""
    source = folder / "input"
    source.mkdir()
    for number, rows in enumerate(drawn()):
        lines = [json.dumps(dict(zip(("k", "n", "at"), row, strict=True))) for row in rows]
        path = source / f"{number:04}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads files in this order
    read = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(source))
    timed = read.selectExpr("*", "timestamp_millis(at) as ts")
    if mode == "EventTime":
        timed = timed.withWatermark("ts", "0 seconds")
    found: dict[int, Rows] = {}

    def collected(batch: DataFrame, number: int) -> None:
        found[number] = [tuple(row) for row in batch.collect()]  # Spark may give a batch again

    given = timed.groupBy("k").transformWithState(
        statefulProcessor=processor, outputStructType=OUTPUT, outputMode="Update", timeMode=mode
    )
    writing = given.writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoints"))
    if mode == "ProcessingTime":  # Spark runs batches without rows for ever; the processor gives a row for each
        query = writing.foreachBatch(collected).start()
        count = sum(map(len, drawn()))
        wait_until(lambda: sum(map(len, list(found.values()))) >= count or query.exception() is not None, "all rows")
        query.stop()
    else:
        query = writing.foreachBatch(collected).trigger(availableNow=True).start()
        assert query.awaitTermination(200)
    assert query.exception() is None
    return [row for rows in found.values() for row in rows if row[0] != LAST]


def here(spark: SparkSession, folder: Path, processor: Any, mode: str) -> Rows:
    rows = [row for batch in drawn() for row in batch]
    frame = spark.createDataFrame(rows, INPUT).selectExpr("*", "timestamp_millis(at) as ts").coalesce(1)
    env = StreamEnvironment(spark, parallelism=1)  # several subtasks would share the rows of a key, in any order
    stream = env.from_spark(frame)
    if mode == "EventTime":
        stream = stream.with_watermark("ts", "0 seconds")
    stream.key_by("k").transform_with_state(processor, schema=OUTPUT, time_mode=mode).to_parquet(str(folder / "out"))  # type: ignore[arg-type]
    with env.execute("processor") as job:
        job.await_finish(150)
    table = pq.read_table(folder / "out")
    return [row for row in zip(*(column.to_pylist() for column in table.columns), strict=True) if row[0] != LAST]


@pytest.mark.parametrize(
    ("processor", "mode"),
    [(RunningCount, "None"), (Inventory, "None"), (Sessions, "EventTime"), (LongCache, "ProcessingTime")],
)
def test_the_same_rows(spark: SparkSession, tmp_path: Path, processor: Any, mode: str) -> None:
    before = {name: spark.conf.get(name, None) for name in ("spark.sql.streaming.stateStore.providerClass",)}
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    try:
        (tmp_path / "spark").mkdir()
        expected = by_spark(spark, tmp_path / "spark", processor(), mode)
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    found = here(spark, tmp_path, processor(), mode)
    assert len(expected) > 10 or processor is Sessions
    more, less = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    assert expected and (more, less) == (Counter(), Counter())
