"""DataFrames as input: their order, their types, and sums of decimals, compared with what Spark itself says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from flinkplus import StreamEnvironment
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.job.spark_types import arrow_schema
from flinkplus.runtime.job.staging import stage
from flinkplus.sources.parquet import StagedParquet

pytestmark = pytest.mark.integration

ROWS, DAY_MS = 300, 86_400_000


def in_order(spark: SparkSession, partitions: int) -> DataFrame:
    """``ms`` rises from row to row and from partition to partition."""
    return spark.range(0, ROWS, 1, partitions).selectExpr("id * 1000 ms", "id % 5 k")


def frames(spark: SparkSession) -> dict[str, DataFrame]:
    """Few partitions and many, tiny ones, empty ones, and none."""
    return {
        "one": in_order(spark, 1),
        "three": in_order(spark, 3),
        "tiny": in_order(spark, 16),
        "some empty": in_order(spark, 7).where("ms < 50000 or ms > 250000"),
        "empty": in_order(spark, 2).where("ms < 0"),
        "no partition": spark.createDataFrame([], "ms long, k long"),
    }


def test_each_subtask_reads_a_range_of_the_rows_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    for name, df in frames(spark).items():
        source = StagedParquet("rows", (), arrow_schema(df.schema))
        staged = stage(df, source, f"{tmp_path}/{name}")
        expected = [row.ms for row in df.collect()]
        for parallelism in range(1, 6):
            found: list[int] = []
            for index in range(parallelism):
                reader = staged.reader(index, parallelism)
                reader.open(None)
                while (batch := reader.read(7)) is not None:
                    found += batch.column("ms").to_pylist()
                reader.close()
            assert found == expected, (name, parallelism)


def test_no_row_in_order_is_late(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Subtasks read ranges that lie far apart in time; the least of their watermarks counts. Rows that are read twice
    are late the second time, and that is said."""
    env = StreamEnvironment(spark, parallelism=3, recovery="rollback", work_dir=str(tmp_path))
    sinks, rows = {}, {}
    for name, df in frames(spark).items():
        stream = env.from_spark(df, name=name).with_watermark("ms", 0, every="1 ms", name=f"marks of {name}")
        window = stream.key_by("k").tumbling_window("ms", "1 minute")
        sinks[name] = window.count(name=f"window of {name}").collect(name=f"counts of {name}")
        rows[name] = df.count()
    twice = env.from_spark(in_order(spark, 1), name="twice", repeat=2)
    twice.with_watermark("ms", 0, every="1 ms", name="marks of twice").key_by("k").process(
        lambda key, row, ctx: None, schema="k long", on_timer=lambda key, at_ms, ctx: None
    ).discard()
    with env.execute("order") as job:
        job.await_finish(120)
        metrics = job.metrics()["operators"]
        counted = {name: sum(job.collected(sink).column("count").to_pylist()) for name, sink in sinks.items()}
    assert counted == rows
    late = {name: m["late_rows"] for name, m in metrics.items() if name.startswith(("marks", "window"))}
    assert late.pop("marks of twice") == ROWS - 3  # in each subtask the last row is not before the watermark
    assert late == dict.fromkeys([f"{of} of {name}" for name in sinks for of in ("marks", "window")], 0)
    warnings = [message for message in caplog.messages if "operator" in message]
    assert len(warnings) <= 2 and warnings[0].startswith("operator 'marks of twice': ")
    assert "later than its delay of 0 ms allows" in warnings[0]


TYPES = """
    id, cast(id % 2 as boolean) flag, timestamp'2024-03-31 01:30:00' + make_interval(0, 0, 0, 0, id) at,
    timestamp'0001-01-03 00:00:00' old, timestamp'9999-12-30 00:00:00' far, timestamp_ntz'2024-03-31 02:30:00' plain,
    date'1500-01-01' day, cast(id as decimal(20, 5)) money, cast('abc' as binary) bytes, cast(id as float) small,
    struct(id as a, array(timestamp'2024-01-01 00:00:00', null) as times, cast(null as string) as none) inner,
    map('k', struct(cast(1.5 as decimal(38, 18)) as q, timestamp_ntz'2024-01-01 00:00:00' as z)) by_name,
    array(map(1L, date'2024-01-01')) maps, map(1, cast(null as timestamp)) empty_map,
    cast(null as array<int>) no_list, if(id = 3, null, array(id, null)) some_list"""


@contextmanager
def session_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("zone", ["America/New_York", pytest.param("Asia/Kolkata", marks=pytest.mark.long)])
def test_all_types_go_through_as_spark_shows_them(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    with session_zone(spark, zone):
        df = spark.sql(f"select {TYPES} from range(0, 8, 1, 3)")
        intervals = spark.sql("select interval 1 day 2 hour span, array(interval 3 hour) spans, id from range(2)")
        env = StreamEnvironment(spark, parallelism=2, recovery="rollback", work_dir=str(tmp_path))
        rows = env.from_spark(df)
        rows.to_parquet(str(tmp_path / "out"))
        passed = rows.collect(name="passed")
        taken = rows.map(tuple, schema=rows.schema).collect(name="taken")
        spans = env.from_spark(intervals, name="intervals").map(tuple, schema=arrow_schema(intervals.schema))
        spans_sink = spans.collect(name="spans")
        with env.execute("types") as job:
            job.await_finish(120)
            tables = [job.collected(sink).sort_by("id") for sink in (passed, taken)]
            found_spans = job.collected(spans_sink).sort_by("id")
        expected = df.toArrow().sort_by("id")
        for table in tables:
            assert table.equals(expected.cast(table.schema))
        assert found_spans.equals(intervals.toArrow().sort_by("id").cast(found_spans.schema))
        assert shown(spark.read.parquet(str(tmp_path / "out"))) == shown(df)


def shown(df: DataFrame) -> tuple[list[Any], list[Any]]:
    """What Spark makes of a DataFrame: as text in the session's time zone, and as Python's values."""
    texts = df.select([F.col(name).cast("string") for name in df.columns])
    return sorted(map(repr, texts.collect())), sorted(map(repr, df.collect()))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 n, interval 3 month months", "column 'months' has the type interval month.*cast it"),
        ("parse_json('{}') v", "column 'v' has the type variant.*to_json"),
        ("struct(array(null) as x) s", r"column 's\.x\.element' has the type void"),
        ("1 a, 2 a", "two columns 'a'"),
    ],
)
def test_what_cannot_go_through_is_named(spark: SparkSession, columns: str, message: str) -> None:
    env = StreamEnvironment(spark, parallelism=1)
    with pytest.raises(ConfigurationError, match=f"from_spark: .*{message}"):
        env.from_spark(spark.sql(f"select {columns}"))


MONEY = """
    id, cast(id % 4 as decimal(9, 3)) / 2 as half, id * 1000 as ms, cast(if(id % 3 = 0, null, id) as long) n,
    cast(if(id % 4 = 1, null, id * 1.37 - 20) as decimal(12, 2)) price,
    cast(if(id % 4 = 1 or id % 5 = 0, null, id * 123456789012345678901.25) as decimal(38, 4)) large"""


SUMMED = ("price", "large", "n")


def test_decimals_are_summed_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Keys, running sums, totals and windows; of a key that has nulls alone, too."""
    df = spark.sql(f"select {MONEY} from range(0, 60, 1, 2)").withColumn("half", F.expr("cast(half as decimal(9, 3))"))
    env = StreamEnvironment(spark, parallelism=2, recovery="rollback", work_dir=str(tmp_path))
    rows = env.from_spark(df).with_watermark("ms", 0)
    keyed = rows.key_by("half")
    kinds = {"sum": F.sum, "mean": F.avg, "min": F.min, "max": F.max}
    wanted: dict[str, Any] = {f"{kind}_{of}": (kind, of) for of in ("price", "large") for kind in kinds} | {
        "sum_n": ("sum", "n")
    }
    keyed.tumbling_window("ms", "20 seconds").aggregate(**wanted).collect(name="windows")
    for of in SUMMED:
        keyed.sum(of, name=f"sum of {of}").collect(name=f"sums of {of}")
    rows.total("price", name="total").collect(name="totals")
    with env.execute("money") as job:
        job.await_finish(120)
        found = {name: job.collected(name) for name in ("windows", "totals", *(f"sums of {x}" for x in SUMMED))}
    aggregates = [kinds[kind](of).alias(name) for name, (kind, of) in wanted.items()]
    by_spark = df.groupBy("half", (F.col("ms") - F.col("ms") % 20_000).alias("start")).agg(*aggregates).toArrow()
    windows = found["windows"]
    start = windows.column("window_start").cast(pa.int64())
    compared = windows.append_column("start", pa.array([us // 1000 for us in start.to_pylist()]))
    order = [("half", "ascending"), ("start", "ascending")]
    compared = compared.select(by_spark.schema.names).sort_by(order)
    assert compared.equals(by_spark.sort_by(order).cast(compared.schema))
    assert [f.type for f in compared.schema] == [f.type for f in by_spark.schema]
    whole = df.groupBy("half").agg(*[F.sum(of).alias(of) for of in SUMMED]).collect()
    for of in SUMMED:
        table = found[f"sums of {of}"]
        sums = Counter(zip(table["half"].to_pylist(), table["sum"].to_pylist(), strict=True))
        assert all(sums[row["half"], row[of]] for row in whole), of
        assert (of == "n") == any(total is not None for half, total in sums if half == Decimal("0.500"))
    assert found["totals"]["total"].to_pylist()[-1] == df.selectExpr("sum(price)").collect()[0][0]
