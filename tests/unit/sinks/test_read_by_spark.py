"""What Spark's own readers make of the output, while commits proceed and after faults."""

from __future__ import annotations

import datetime
import os
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus.sinks import spark_log
from flinkplus.sinks.parquet import ParquetSink
from tests.unit.sinks.harness import Job, context, expected_lines, text_job

pytestmark = pytest.mark.integration

DDL = "word string, count bigint"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("read-by-spark")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def parquet_job(out: Path) -> Job:
    return Job(ParquetSink("out", str(out)))


def read(spark: SparkSession, out: Path) -> list[str]:
    return sorted(f"{row['word']}\t{row['count']}" for row in spark.read.parquet(str(out)).collect())


def test_every_commit_is_seen_whole(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "a b%é#+"
    job = parquet_job(out)
    for checkpoint in range(1, 28):
        job.checkpoint(checkpoint)
        if checkpoint in (1, 10, 27):
            assert read(spark, out) == expected_lines(*range(1, checkpoint + 1))
    assert [(f.name, f.dataType.simpleString()) for f in spark.read.parquet(str(out)).schema] == [
        ("word", "string"),
        ("count", "bigint"),
    ]
    job.committer.finish()
    assert read(spark, out) == expected_lines(*range(1, 28))


def test_several_batches_are_read_and_taken_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 2_000)
    job = parquet_job(tmp_path)
    for checkpoint in range(1, 26):
        job.checkpoint(checkpoint)
    assert (tmp_path / "_spark_metadata" / str(spark_log.Layout(spark_log.COMPACT_INTERVAL).first_batch + 3)).exists()
    assert read(spark, tmp_path) == expected_lines(*range(1, 26))
    job.committer.retract_after(7)
    assert read(spark, tmp_path) == expected_lines(*range(1, 8))


def test_compactions_that_list_everything_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log, "COMPACT_INTERVAL", 7)
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 1)
    job = parquet_job(tmp_path)
    for checkpoint in range(1, 17):
        job.checkpoint(checkpoint)
    assert (tmp_path / "_spark_metadata" / "27.compact").exists()
    assert read(spark, tmp_path) == expected_lines(*range(1, 17))


def test_batches_that_were_ended_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """As a driver that takes over leaves them on S3: with a line break more, and one without entries."""
    job = parquet_job(tmp_path)
    for checkpoint in (1, 2):
        job.checkpoint(checkpoint)
    first = spark_log.Layout(spark_log.COMPACT_INTERVAL).first_batch
    batch = tmp_path / "_spark_metadata" / str(first)
    batch.write_bytes(batch.read_bytes() + b"\n")
    (batch.parent / str(first + 1)).write_bytes(b"v1")
    assert read(spark, tmp_path) == expected_lines(1, 2)
    (batch.parent / str(first + 2)).write_bytes(b"v1\n")
    job.committer.retract_after(2)
    job.checkpoint(3)
    assert read(spark, tmp_path) == expected_lines(1, 2, 3)


@pytest.mark.parametrize("interval", [3, 100])
def test_a_reader_with_another_compaction_interval_sees_the_same(
    spark: SparkSession, tmp_path: Path, interval: int
) -> None:
    job = parquet_job(tmp_path)
    for checkpoint in range(1, 13):
        job.checkpoint(checkpoint)
    key = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(key, str(interval))
    try:
        assert read(spark, tmp_path) == expected_lines(*range(1, 13))
    finally:
        spark.conf.unset(key)


@pytest.mark.long
def test_a_reader_beside_the_commits_sees_whole_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    job = parquet_job(tmp_path)
    job.checkpoint(1)
    done = threading.Event()

    def commit_until_done() -> None:
        checkpoint = 2
        while not done.is_set() and checkpoint < 400:
            job.checkpoint(checkpoint)
            checkpoint += 1

    committing = threading.Thread(target=commit_until_done)
    committing.start()
    try:
        seen = [read(spark, tmp_path) for _ in range(4)]
    finally:
        done.set()
        committing.join()
    for found in seen:
        assert found == expected_lines(*range(1, len(found) // 2 + 1))
    assert len(seen[-1]) > len(seen[0])


@pytest.mark.long
def test_a_streaming_reader_gets_every_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 4_000)
    out = tmp_path / "out"
    job = parquet_job(out)
    stream = spark.readStream.schema(DDL).parquet(str(out))
    query = (
        stream.writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", str(tmp_path / "query"))
        .start()
    )
    try:
        for checkpoint in range(1, 24):
            described = job.stage(checkpoint)
            if checkpoint == 5:  # moved into the directory and not listed, as after a crash: nobody's data yet
                for file in described:
                    os.rename(out / "_staging" / "job-1" / file.name, out / file.name)
                query.processAllAvailable()
                assert spark.table("streamed").count() == 8
            job.committer.commit(checkpoint, described)
            job.complete(checkpoint)
            if checkpoint % 6 == 0:
                query.processAllAvailable()
        job.committer.finish()
        query.processAllAvailable()
        streamed = Counter(f"{row['word']}\t{row['count']}" for row in spark.table("streamed").collect())
    finally:
        query.stop()
    assert streamed == Counter(expected_lines(*range(1, 24)))


def test_output_without_rows_has_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    job = parquet_job(tmp_path)
    job.committer.finish()
    frame = spark.read.parquet(str(tmp_path))
    assert (frame.count(), frame.columns) == (0, ["word", "count"])


def test_text_is_read_line_by_line(spark: SparkSession, tmp_path: Path) -> None:
    job = text_job(tmp_path)
    for checkpoint in range(1, 12):
        job.checkpoint(checkpoint)
    job.stage(12)
    job.committer.finish()
    found = sorted(row["value"] for row in spark.read.text(str(tmp_path)).collect())
    assert found == expected_lines(*range(1, 12))


def test_types_come_through(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("flag", pa.bool_()),
            ("tiny", pa.int8()),
            ("short", pa.int16()),
            ("number", pa.int32()),
            ("ratio", pa.float64()),
            ("single", pa.float32()),
            ("bytes", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("ns")),
            ("amount", pa.decimal128(10, 2)),
            ("words", pa.list_(pa.string())),
            ("nested", pa.struct([("a", pa.large_string())])),
        ]
    )
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678)
    row = {
        "flag": True,
        "tiny": 1,
        "short": 2,
        "number": 3,
        "ratio": 0.5,
        "single": 0.25,
        "bytes": b"\xff",
        "day": moment.date(),
        "at": moment.replace(tzinfo=datetime.timezone.utc),
        "local": moment,
        "amount": Decimal("1.50"),
        "words": ["a", "b"],
        "nested": {"a": "x"},
    }
    sink = ParquetSink("out", str(tmp_path)).bind(schema, "job-1")
    committer = sink.committer()
    committer.prepare(resume=False)
    writer = sink.writer(context(0), 1)
    writer.write(pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema))
    committer.commit(1, writer.settle(writer.stage(1)))
    frame = spark.read.parquet(str(tmp_path))
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "boolean", "tinyint", "smallint", "int", "double", "float", "binary", "date", "timestamp", "timestamp_ntz",
        "decimal(10,2)", "array<string>", "struct<a:string>",
    ]  # fmt: skip
    first, second = sorted(frame.drop("at").collect(), key=lambda found: found["flag"] is None)
    assert first.asDict(recursive=True) == {name: value for name, value in row.items() if name != "at"}
    assert not any(value is not None for value in second)
    shown = frame.selectExpr("date_format(at, 'yyyy-MM-dd HH:mm:ss.SSSSSS') shown").dropna().collect()
    assert [found["shown"] for found in shown] == [str(moment)]


ODD = ["a b", "a/b:c=d", "50%", "\u00e9\u00fc", "..", "x'#?{}[]^\\\"*", "tab\there", "+&", None, ""]


def test_partitions_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Folders have the names that Spark gives; what a batch of Spark has written is read with what is added to it."""
    old = [(f"{number}", word, datetime.date(2026, 11, 27)) for number, word in enumerate(ODD)]
    out = tmp_path / "out"
    frame = spark.createDataFrame(old, "n string, word string, day date")
    frame.write.partitionBy("word", "day").parquet(str(out))
    folders = {path.relative_to(out).as_posix() for path in out.rglob("word=*/day=*")}
    schema = pa.schema([("n", pa.string()), ("word", pa.string()), ("day", pa.date32())])
    sink = ParquetSink("out", str(out), partition_by=("word", "day"), append=True).bind(schema, "job-1")
    committer = sink.committer()
    committer.prepare(resume=False)

    def rows() -> Counter[tuple[str, str | None, datetime.date]]:
        return Counter((r["n"], r["word"], r["day"]) for r in spark.read.parquet(str(out)).collect())

    read_back = [(n, word or None, day) for n, word, day in old]
    assert rows() == Counter(read_back)
    new = [{"n": f"new{n}", "word": word, "day": day} for n, word, day in old]
    writer = sink.writer(context(0), 1)
    writer.write(pa.RecordBatch.from_pylist(new, schema=schema))
    staged = writer.settle(writer.stage(1))
    assert {file.folder for file in staged} == folders
    committer.commit(1, staged)
    committer.finish()
    assert rows() == Counter([*read_back, *((f"new{n}", word, day) for n, word, day in read_back)])
    assert dict(spark.read.parquet(str(out)).dtypes) == {"n": "string", "word": "string", "day": "date"}
    assert spark.read.parquet(str(out)).where("day = DATE'2026-11-27' AND word IS NULL").count() == 4


def test_a_partitioned_output_after_one_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    for job_id, checkpoints in (("job-0", ()), ("job-1", (1, 2))):
        job = Job(ParquetSink("out", str(tmp_path), partition_by=("word",), append=True), job_id)
        for checkpoint in checkpoints:
            job.checkpoint(checkpoint)
        job.committer.finish()
        assert read(spark, tmp_path) == expected_lines(*checkpoints)
        assert set(spark.read.parquet(str(tmp_path)).columns) == {"word", "count"}
