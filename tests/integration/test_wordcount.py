"""WordCount end to end on real Spark, streams and RocksDB: without failures, through every source, into every sink."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.errors import ConfigurationError, JobCancelled
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts, wait_for_checkpoint, wait_until

pytestmark = pytest.mark.integration


def test_columnar_operators_and_repeat(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=3, checkpoint_interval=0.2)
    words = env.read_text(str(corpus), repeat=5).tokenize("value")
    words.key_by("word").count().to_parquet(str(tmp_path / "counts"))
    with env.execute("columnar") as job:
        job.await_finish(PATIENCE_S)
        metrics = job.metrics()
    expected = expected_counts(corpus, repeat=5)
    assert_exact(tmp_path / "counts", expected)
    assert metrics["operators"]["tokenize"]["rows_out"] == sum(expected.values())
    assert metrics["committed_rows"] == {"parquet": sum(expected.values())}
    assert metrics["state_keys"] == len(expected)
    assert [c["status"] for c in job.checkpoints()][-1] == "complete"
    assert job.checkpoints()[-1]["final"]


def test_generator_reduce_process_and_collect(spark: SparkSession) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2)
    numbers = env.generate(lambda i: (i % 7, i), schema="key long, n long", count=2_000)

    def second_largest(key, row, ctx):
        best = ctx.state("best")
        seen = sorted([*(best.get() or []), row.n])[-2:]
        best.put(seen)
        yield key["key"] if isinstance(key, dict) else key, seen[0]

    numbers.key_by("key").reduce(lambda a, b: (a.key, a.n + b.n), name="total").collect(name="totals")
    numbers.key_by("key").process(second_largest, schema="key long, n long", name="second").collect(name="seconds")
    with env.execute("generator") as job:
        job.await_finish(PATIENCE_S)
        totals = job.collected("totals").to_pylist()
        seconds = job.collected("seconds").to_pylist()
    assert len(totals) == len(seconds) == 2_000
    for key in range(7):
        values = [i for i in range(2_000) if i % 7 == key]
        assert max(row["n"] for row in totals if row["key"] == key) == sum(values)
        assert max(row["n"] for row in seconds if row["key"] == key) == values[-2]


def test_two_keyed_stages_and_map_batches(spark: SparkSession, corpus: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2)

    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        words = batch.column("word")
        return pa.RecordBatch.from_arrays([pa.compute.binary_length(words).cast(pa.int64())], names=["length"])

    words = env.read_text(str(corpus)).tokenize().key_by("word").count(name="count")
    words.map_batches(lengths, schema="length long").key_by("length").count(name="by_length", output="n").collect()
    with env.execute("two stages") as job:
        job.await_finish(PATIENCE_S)
        rows = job.collected("collect").to_pylist()
    expected: Counter[int] = Counter()
    for word, count in expected_counts(corpus).items():
        expected[len(word.encode())] += count
    assert Counter((row["length"], row["n"]) for row in rows) == Counter(
        (length, n) for length, total in expected.items() for n in range(1, total + 1)
    )


def test_text_output(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, max_concurrent_checkpoints=3)
    env.read_text(str(corpus)).tokenize().key_by("word").count().to_text(str(tmp_path / "out"))
    with env.execute("text") as job:
        job.await_finish(PATIENCE_S)
    lines = [line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines()]
    expected = expected_counts(corpus)
    assert Counter(lines) == Counter(f"{w}\t{n}" for w, total in expected.items() for n in range(1, total + 1))
    assert spark.read.text(str(tmp_path / "out")).count() == sum(expected.values())


def test_empty_input_ends_cleanly(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    env = StreamEnvironment(spark, parallelism=2)
    env.read_text(str(tmp_path / "empty.txt")).tokenize().key_by("word").count().to_parquet(str(tmp_path / "out"))
    with env.execute("empty") as job:
        job.await_finish(PATIENCE_S)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 0


@pytest.mark.long
def test_a_reader_sees_whole_checkpoints_only(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1)
    out = tmp_path / "counts"
    words = env.read_text(str(corpus), repeat=1_000).tokenize().throttle(20_000)
    words.key_by("word").count().to_parquet(str(out))

    def visible_rows() -> int:
        rows = spark.read.parquet(str(out)).groupBy("word").agg({"*": "count", "count": "max"}).collect()
        assert all(row["count(1)"] == row["max(count)"] for row in rows), "a count is missing or doubled"
        return sum(row["count(1)"] for row in rows)

    sizes: list[int] = []
    with env.execute("read meanwhile") as job:
        wait_for_checkpoint(job)
        while len(set(sizes)) < 3:
            sizes.append(visible_rows())
            assert not job.done, "the job ended early"
        job.drain()
        job.await_finish(PATIENCE_S)
        made = job.metrics()["operators"]["tokenize"]["rows_out"]
    assert sizes == sorted(sizes)
    assert visible_rows() == made


def test_rate_is_kept(spark: SparkSession, corpus: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.5)
    env.read_text(str(corpus), repeat=100).tokenize().throttle(10_000).key_by("word").count().discard()
    with env.execute("steady") as job:
        for running_s in (1.0, 2.0):
            wait_until(lambda: (job.running_s or 0) >= running_s, "running for so long")  # noqa: B023
            words = job.metrics()["operators"]["tokenize"]["rows_out"]
            assert words <= 10_500 * (job.running_s or 0), "it reads nothing before it has arrived"
            wait_until(lambda: job.metrics()["operators"]["tokenize"]["rows_out"] >= 9_000 * running_s, "the rate")  # noqa: B023


def test_cancel_keeps_what_is_committed(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1)
    out = tmp_path / "counts"
    env.read_text(str(corpus), repeat=1_000).tokenize().throttle(50_000).key_by("word").count().to_parquet(str(out))
    job = env.execute("cancelled")
    wait_for_checkpoint(job, 2)
    job.cancel()
    assert job.state == "cancelled" and job.done
    with pytest.raises(JobCancelled):
        job.await_finish()
    rows = spark.read.parquet(str(out)).groupBy("word").agg({"*": "count", "count": "max"}).collect()
    assert rows and all(row["count(1)"] == row["max(count)"] for row in rows)
    assert not list(out.glob("_staging/*")), "staged files were left behind"


def test_drain_ends_an_endless_job(spark: SparkSession) -> None:
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2)
    env.generate(lambda i: i % 5, schema="n long", rate=5_000).key_by("n").count().collect()
    with env.execute("endless") as job:
        wait_for_checkpoint(job, 2)
        job.drain()
        job.await_finish(30)
        rows = job.collected("collect").to_pylist()
        made = job.metrics()["operators"]["generator"]["rows_out"]
    assert len(rows) == made > 0
    assert len({(row["n"], row["count"]) for row in rows}) == made


def test_an_environment_draws_one_job(spark: SparkSession) -> None:
    env = StreamEnvironment(spark, parallelism=1)
    env.generate(lambda i: i, schema="n long", count=10).discard()
    with env.execute("once") as job:
        job.await_finish(PATIENCE_S)
    with pytest.raises(ConfigurationError, match="executed already"):
        env.execute("twice")


@pytest.mark.long
def test_determinants_are_at_most_two_percent_of_the_payload(spark: SparkSession, corpus: Path) -> None:
    """At the default flush interval, where messages are small."""
    env = StreamEnvironment(spark, parallelism=4)
    words = env.read_text(str(corpus), repeat=100).tokenize("value").throttle(30_000)
    words.key_by("word").count().discard()
    with env.execute("paced") as job:
        wait_until(lambda: job.done or job.metrics()["payload_bytes"] > 300_000, "some messages", 60)
        metrics = job.metrics()
        job.cancel()
    assert metrics["determinant_share"] == pytest.approx(
        metrics["determinant_bytes"] / metrics["payload_bytes"], abs=1e-6
    )
    assert 0 < metrics["determinant_share"] <= 0.02
