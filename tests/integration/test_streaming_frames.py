"""Streaming DataFrames as input, while slots and drivers die: every row that Spark gives is in the output once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from flinkplus import ConfigurationError, InsufficientSlots, JobFailed, JobHandle, StreamEnvironment
from tests.integration.conftest import PATIENCE_S, running_job, wait_for_checkpoint, wait_until
from tests.integration.programs import program, script
from tests.integration.test_directory import Arrivals, wait_for_recoveries

pytestmark = pytest.mark.integration

ROW = "word string, file long, number long"
SCHEMA = f"{ROW}, so_far long"


def counted(word: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int, int]]:
    so_far = ctx.state("so_far")
    so_far.put(so_far.get(0) + 1)
    yield word, row.file, row.number, so_far.get()


class Job:
    """A streaming DataFrame of JSON files | key_by(word) | counted | Parquet."""

    def __init__(self, spark: SparkSession, work: Path, **reading: Any) -> None:
        self.spark, self.path, self.reading = spark, work, reading
        self.input = work / "in"
        self.input.mkdir()

    def write(self, name: str, content: bytes) -> None:
        hidden = self.input / f".{name}"
        hidden.write_bytes(content)
        hidden.rename(self.input / name)

    def frame(self) -> DataFrame:
        return self.spark.readStream.schema(ROW).option("maxFilesPerTrigger", 4).json(str(self.input))

    def run(self, resume: Any = False, **options: Any) -> JobHandle:
        given = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": str(self.path / "checkpoints")}
        env = StreamEnvironment(self.spark, **{**given, **options})
        rows = env.from_spark(self.frame(), name="frame", **self.reading)
        rows.key_by("word").process(counted, schema=SCHEMA, name="counted").to_parquet(self.path / "out", name="out")
        return env.execute("streaming", resume=resume)

    def drain(self, job: JobHandle, arrivals: Arrivals) -> None:
        arrivals.wait()
        wait_until(lambda: job.done or rows_out(job, "counted") >= arrivals.size, "all rows")
        job.drain()
        job.await_finish(PATIENCE_S)

    def check(self, arrivals: Arrivals) -> None:
        rows = pq.read_table(self.path / "out").to_pylist()
        found = Counter((row["word"], row["file"], row["number"]) for row in rows)
        assert found == Counter(row for rows in arrivals.rows for row in rows)
        assert_counted(rows)

    def staged(self) -> tuple[int, int]:
        """How many batches are complete, and how many folders of batches there are."""
        (area,) = (self.path / "checkpoints/streams").iterdir()
        return len(list((area / "ready").glob("0*.json"))), len(list((area / "batches").iterdir()))


def assert_counted(rows: list[dict[str, Any]]) -> None:
    so_far: dict[str, list[int]] = {}
    for row in rows:
        so_far.setdefault(row["word"], []).append(row["so_far"])
    for word, counts in so_far.items():
        assert sorted(counts) == list(range(1, len(counts) + 1)), word


def rows_out(job: JobHandle, operator: str) -> int:
    return int(job.metrics()["operators"].get(operator, {}).get("rows_out", 0))


@pytest.mark.long
def test_slots_and_a_driver_die_while_a_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path)
    with Arrivals(job_of.write, 30) as arrivals:
        with job_of.run() as job:
            wait_until(lambda: job.done or rows_out(job, "counted") > 0, "rows")
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            assert job.kill("frame:0")
            wait_for_recoveries(job, 1)
            assert [recovery["mode"] for recovery in job.recoveries()] == ["standby"], job.recoveries()
            assert job.metrics()["fallbacks"] == 0
        assert not spark.streams.active
        with pytest.raises(ConfigurationError, match="resume the job with its program"):
            StreamEnvironment.resume(spark, tmp_path / "checkpoints")
        with job_of.run(resume=True, parallelism=1, recovery="rollback") as job:
            assert job.restored_from is not None
            job_of.drain(job, arrivals)
    assert not spark.streams.active
    job_of.check(arrivals)


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["standby", "rollback", "partial"])
def test_every_kind_of_recovery(spark: SparkSession, tmp_path: Path, recovery: str) -> None:
    job_of = Job(spark, tmp_path, trigger={"processingTime": "100 milliseconds"})
    with Arrivals(job_of.write, 120) as arrivals, job_of.run(recovery=recovery) as job:
        for count, victim in enumerate(("frame:0", "counted:1", "frame:1"), 1):
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            assert job.kill(victim)
            wait_for_recoveries(job, count)
        job_of.drain(job, arrivals)
        assert {found["mode"] for found in job.recoveries()} == {recovery}
    job_of.check(arrivals)


@pytest.mark.long
def test_the_parallelism_changes_while_a_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path)
    with Arrivals(job_of.write, 150) as arrivals, job_of.run() as job:
        wait_until(lambda: job.done or rows_out(job, "counted") > 0, "rows")
        job.rescale(3).await_done(PATIENCE_S)
        wait_until(lambda: job.missing_standbys() == 0, "standbys")
        assert job.kill("frame:2")
        wait_for_recoveries(job, 1)
        job.rescale(1).await_done(PATIENCE_S)
        job_of.drain(job, arrivals)
    job_of.check(arrivals)


@pytest.mark.long
def test_a_query_waits_for_its_readers_and_what_was_read_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path, max_unread_batches=3)
    with Arrivals(job_of.write, 60) as arrivals:
        arrivals.wait()
        env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, checkpoint_dir=tmp_path / "checkpoints")
        rows = env.from_spark(job_of.frame(), name="frame", max_unread_batches=3)
        rows.throttle(20.0).key_by("word").process(counted, schema=SCHEMA, name="counted").to_parquet(tmp_path / "out")
        with env.execute("streaming") as job:
            most = 0
            wait_until(lambda: any(tmp_path.glob("checkpoints/streams/*/ready")), "the first batch")
            until = time.monotonic() + 6
            while time.monotonic() < until:
                read = job.metrics()["operators"]["frame"].get("rows", 0)
                (area,) = (tmp_path / "checkpoints/streams").iterdir()
                most = max(most, len(list(area.glob("ready/0*.json"))) - (1 if read else 0))
                time.sleep(0.1)
            assert 2 <= most <= 8  # three are unread; those before stay until no kept checkpoint needs them
    with job_of.run(resume=True) as job:
        wait_until(lambda: job.done or rows_out(job, "counted") >= arrivals.size, "all rows")
        wait_until(lambda: job_of.staged() == (1, 1), "the removal of all batches but the last")
        job_of.drain(job, arrivals)
    job_of.check(arrivals)


@pytest.mark.long
def test_a_query_that_ends_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path, trigger={"availableNow": True})
    with Arrivals(job_of.write, 30) as arrivals:
        arrivals.wait()
    with job_of.run(recovery="rollback") as job:
        job.await_finish(PATIENCE_S)
    job_of.check(arrivals)


@pytest.mark.long
def test_a_query_that_fails_ends_the_job_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path)
    frame = job_of.frame().selectExpr("word", "file", "cast(assert_true(number < 5, 'too large') as long) number")
    job_of.frame = lambda: frame  # type: ignore[method-assign]
    with Arrivals(job_of.write, 30), job_of.run(recovery="rollback") as job:
        with pytest.raises(JobFailed, match=r"query of source 'frame' failed: .*too large") as caught:
            job.await_finish(PATIENCE_S)
        assert type(caught.value.__cause__).__name__ == "InputError"


@pytest.mark.long
def test_the_rate_source(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows depend on the time of day: only what was staged can be read again."""
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2)
    rows = env.from_spark(spark.readStream.format("rate").option("rowsPerSecond", 400).load(), name="frame")
    keyed = rows.map(lambda row: (f"w{row.value % 7}", 0, row.value), schema=ROW).key_by("word")
    keyed.process(counted, schema=SCHEMA, name="counted").to_parquet(tmp_path / "out")
    with env.execute("rate") as job:
        for count in (1, 2):
            wait_until(lambda count=count: job.done or rows_out(job, "counted") > 800 * count, "rows")  # type: ignore[misc]
            assert job.kill(f"frame:{count % 2}")
            wait_for_recoveries(job, count)
        # what is staged is read before the end
        running_job(job)._queries.stop()
        wait_until(lambda: job.done or job.metrics()["operators"]["frame"].get("lag_rows", 1) == 0, "all rows")
        job.drain()
        job.await_finish(PATIENCE_S)
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["number"] for row in found) == list(range(len(found))) and len(found) > 1_600
    assert_counted(found)


PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from flinkplus import StreamEnvironment, spark_settings

TOTAL = 3_000

class Numbers(DataSource):
    '''Rows (word, number) for 0, 1, ..., as fast as they are asked for, forty at a time.'''

    def schema(self):
        return "word string, file long, number long"

    def simpleStreamReader(self, schema):
        return NumbersReader()

class NumbersReader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"next": 0}

    def read(self, start):
        end = {"next": min(TOTAL, start["next"] + 40)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        return iter([(f"w{n % 7}", 0, n) for n in range(start["next"], end["next"])])

def counted(word, row, ctx):
    so_far = ctx.state("so_far")
    so_far.put(so_far.get(0) + 1)
    yield word, row.file, row.number, so_far.get()

settings = {**spark_settings(), "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
settings["spark.driver.host"] = "127.0.0.1"
spark = SparkSession.builder.config(map=settings).master("local[4]").getOrCreate()
spark.dataSource.register(Numbers)
env = StreamEnvironment(
    spark, parallelism=int(sys.argv[1]), checkpoint_interval=0.2, checkpoint_dir=os.path.abspath("kept"),
    recovery="rollback",
)
rows = env.from_spark(spark.readStream.format("Numbers").load(), name="frame")
schema = "word string, file long, number long, so_far long"
rows.key_by("word").process(counted, schema=schema, name="counted").to_parquet(os.path.abspath("out"), name="out")
with env.execute("numbers", resume="auto") as job:
    begun = job.metrics()["operators"].get("counted", {}).get("rows_out", 0)
    rows_out = 0
    while not job.done and rows_out < TOTAL:
        time.sleep(0.02)
        rows_out = job.metrics()["operators"].get("counted", {}).get("rows_out", 0)
        if rows_out > begun + 400 and job.metrics()["checkpoints_completed"] > 0:
            print("400 rows", flush=True)
    job.drain()
    job.await_finish(120)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_driver_is_killed_while_a_python_source_is_read(tmp_path: Path) -> None:
    """Twice, with another parallelism after the first time; Spark's Java process dies with it."""
    for parallelism, killed in ((2, True), (3, True), (2, False)):
        command = [sys.executable, script(tmp_path, PROGRAM), str(parallelism)]
        with program(command, tmp_path) as run:
            if killed:
                run.wait_for(lambda run=run: "400 rows" in run.out, "rows")  # type: ignore[misc]
                os.kill(run.process.pid, signal.SIGKILL)
                run.wait()
            else:
                assert run.wait() == 0, run.err
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["number"] for row in found) == list(range(3_000))
    assert_counted(found)


def test_slots_leave_room_for_the_query(spark: SparkSession, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=6)
    env.from_spark(spark.readStream.format("rate").load()).discard()
    with pytest.raises(InsufficientSlots, match="needs one more; use more cores, or parallelism=5"):
        env.execute("full")


@pytest.mark.long
def test_a_savepoint_does_not_take_the_query_along(spark: SparkSession, tmp_path: Path) -> None:
    """Another job cannot continue it; it begins the source anew, under another name."""
    job_of = Job(spark, tmp_path)
    with Arrivals(job_of.write, 5) as arrivals:
        arrivals.wait()
    with job_of.run(recovery="rollback") as job:
        wait_until(lambda: job.done or rows_out(job, "counted") >= arrivals.size, "all rows")
        job.stop_with_savepoint(tmp_path / "savepoint").await_done(PATIENCE_S)
    for name, drop in (("frame", ()), ("anew", ("frame",))):
        env = StreamEnvironment(spark, parallelism=2, recovery="rollback", checkpoint_dir=tmp_path / f"next {name}")
        rows = env.from_spark(job_of.frame(), name=name, trigger={"availableNow": True})
        rows.key_by("word").process(counted, schema=SCHEMA, name="counted").to_parquet(tmp_path / f"out {name}")
        if name == "frame":
            with pytest.raises(ConfigurationError, match=r"Give the source another name, and drop_state=\['frame'\]"):
                env.execute("next", start_from=tmp_path / "savepoint")
            continue
        with env.execute("next", start_from=tmp_path / "savepoint", drop_state=drop) as job:
            job.await_finish(PATIENCE_S)
        found = pq.read_table(tmp_path / "out anew").to_pylist()
        assert len(found) == arrivals.size
        assert min(row["so_far"] for row in found) > 1  # it counts on
