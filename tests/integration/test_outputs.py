"""One stream with several outputs, each exact on its own terms: a function for each batch, a Delta table, partitioned
Parquet, and rows in PostgreSQL that are visible at once. Slots and drivers are killed with SIGKILL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus import ConfigurationError, JobFailed, JobHandle, StreamEnvironment
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.integration.outputs import (
    EXPECTED,
    ROWS,
    Called,
    all_outputs,
    assert_all_exact,
    counting,
    in_delta,
)
from tests.integration.programs import SESSION, kill_again_and_again
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = pytest.mark.integration
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'flinkplus[delta]'")


def test_every_output_of_a_stream_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    """A slot is killed as a commit begins."""
    env, counts = counting(spark, 3_000.0)
    called = all_outputs(counts, tmp_path)
    counts.collect(name="collected")
    with env.execute("fan-out") as job:
        wait_for_checkpoint(job, 2)
        assert job.kill("count:1", at="commit")
        wait_until(lambda: bool(job.recoveries()), "a failover")
        job.await_finish(PATIENCE_S)
        assert job.metrics()["committed_rows"] == dict.fromkeys(("called", "delta", "folders", "collected"), ROWS)
        assert Counter(map(tuple, (row.values() for row in job.collected("collected").to_pylist()))) == EXPECTED
    assert len({batch_id for batch_id, _ in called.calls()}) == len(called.calls()) > 2  # one driver repeats nothing
    assert_all_exact(tmp_path, called.rows)
    frame = spark.read.parquet(str(tmp_path / "folders"))
    assert Counter((row["word"], row["count"]) for row in frame.collect()) == EXPECTED


@pytest.mark.long
def test_a_function_that_raises_ends_the_job_and_a_resume_repeats_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    called, broken, raised = Called(tmp_path / "calls.jsonl"), [True], list[int]()

    def fragile(table: pa.Table, batch_id: int) -> None:
        if broken[0] and len(called.calls()) == 2:
            raised.append(batch_id)
            raise ValueError("no room left")
        called(table, batch_id)

    def run(rate: float) -> JobHandle:
        env, counts = counting(spark, rate, checkpoint_dir=tmp_path / "home")
        counts.foreach_batch(fragile)
        return env.execute("fragile", resume="auto")

    line = fragile.__code__.co_firstlineno + 3
    wanted = (
        rf"OutputFunctionError: sink 'foreach_batch': .*ValueError: no room left \(.*{line} in fragile\).*attempt 5"
    )
    with run(2_000.0) as job, pytest.raises(JobFailed, match=wanted):
        job.await_finish(PATIENCE_S)
    assert len(called.calls()) == 2
    assert len(raised) == 6 and len(set(raised)) == 1  # five commits, and one when the job ends
    broken[0] = False
    with run(1e6) as job:
        job.await_finish(PATIENCE_S)
    assert called.rows() == EXPECTED


@pytest.mark.long
def test_a_job_is_rescaled_resumed_and_started_from_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    """The job from the savepoint continues each output, and the IDs of batches."""
    savepoint = tmp_path / "savepoint"
    called = Called(tmp_path / "calls.jsonl")

    def run(rate: float, parallelism: int, home: Path, **begin: Any) -> JobHandle:
        env, counts = counting(spark, rate, parallelism=parallelism, checkpoint_dir=home)
        all_outputs(counts, tmp_path)
        return env.execute("resumed", resume="auto", **begin)

    with run(300.0, 2, tmp_path / "first") as job:
        wait_for_checkpoint(job, 2)
        job.rescale(3).await_done(PATIENCE_S)
        wait_for_checkpoint(job, 4)
        job.stop_with_savepoint(savepoint).await_done(PATIENCE_S)
    so_far = called.rows()
    assert 0 < sum(so_far.values()) < ROWS
    assert in_delta(tmp_path / "delta") == so_far
    home = tmp_path / "second"
    with run(300.0, 2, home, start_from=savepoint) as job:
        wait_for_checkpoint(job, 2)
    with run(1e6, 1, home, start_from=savepoint) as job:
        assert job.restored_from is not None
        job.await_finish(PATIENCE_S)
    assert_all_exact(tmp_path, called.rows)


@pytest.mark.long
def test_a_job_is_resumed_without_its_program(spark: SparkSession, tmp_path: Path) -> None:
    """The function is in the plan, which a slot loads as well; what it needs it makes, or takes from the driver."""
    log = str(tmp_path / "calls.jsonl")

    def called(table: pa.Table, batch_id: int) -> None:
        assert SparkSession.active().sparkContext is not None
        Called(Path(log))(table, batch_id)

    env, counts = counting(spark, 2_000.0, checkpoint_dir=tmp_path / "home")
    counts.foreach_batch(called)
    with env.execute("resumed") as job:
        wait_for_checkpoint(job, 3)
    with StreamEnvironment.resume(spark, tmp_path / "home") as job:
        job.await_finish(PATIENCE_S)
    assert Called(Path(log)).rows() == EXPECTED


def test_a_function_that_holds_the_session_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    env, counts = counting(spark, 1e6)
    counts.foreach_batch(lambda table, batch_id: spark.createDataFrame(table.to_pylist()), name="frames")
    with pytest.raises(ConfigurationError, match="operator 'frames' cannot be sent to the slots"):
        env.execute("refused")


@pytest.mark.long
def test_another_program_continues_the_outputs(spark: SparkSession, tmp_path: Path) -> None:
    """With other names, and with more columns in the table."""

    def run(rate: float, changed: bool) -> JobHandle:
        env, counts = counting(spark, rate, checkpoint_dir=tmp_path / "home")
        if changed:
            counts = counts.map_batches(
                lambda batch: batch.append_column("more", pa.nulls(len(batch), pa.string())),
                schema="word string, count long, more string",
                name="more",
            )
        called = Called(tmp_path / "calls.jsonl")
        counts.foreach_batch(called, name="called")
        counts.to_delta(tmp_path / "delta", schema_mode="merge", name="renamed" if changed else "delta")
        return env.execute("changing", resume="auto")

    with run(1_000.0, False) as job:
        wait_for_checkpoint(job, 3)
    with run(1e6, True) as job:
        job.await_finish(PATIENCE_S)
    assert in_delta(tmp_path / "delta") == EXPECTED
    seen = Counter(tuple(row[:2]) for _, rows in Called(tmp_path / "calls.jsonl").calls() for row in rows)
    assert seen == EXPECTED


@pytest.mark.long
def test_a_later_job_appends(spark: SparkSession, tmp_path: Path) -> None:
    """To what a batch of Spark has written, and to what a job before has."""
    out = tmp_path / "out"
    spark.createDataFrame([("old", 1)], "count_of string, count bigint").selectExpr(
        "count_of AS word", "count"
    ).write.partitionBy("word").parquet(str(out))
    for _ in range(2):
        env, counts = counting(spark, 1e6)
        counts.to_parquet(out, partition_by="word", append=True)
        env.execute("appending").await_finish(PATIENCE_S)
    read = Counter((row["word"], row["count"]) for row in spark.read.parquet(str(out)).collect())
    assert read == EXPECTED + EXPECTED + Counter({("old", 1): 1})


@pytest.mark.long
@pytest.mark.usefixtures("empty_postgres")
def test_each_output_keeps_its_own_visibility(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")
    env, counts = counting(spark, 2_000.0)
    called = all_outputs(counts, tmp_path)
    counts.to_postgres(postgres.dsn, "at_once", visibility="at_once", name="at_once")
    counts.to_postgres(postgres.dsn, "later", name="later")
    with env.execute("fan-out") as job:
        wait_for_checkpoint(job, 2)
        assert job.kill("count:1", at="commit")
        wait_until(lambda: bool(job.recoveries()), "a recovery")
        job.await_finish(PATIENCE_S)
    assert_all_exact(tmp_path, called.rows)
    for table in ("at_once", "later"):
        assert Counter(postgres.execute(f"SELECT word, count FROM {table}")) == EXPECTED


PROGRAM = (
    SESSION
    + """from pathlib import Path
from tests.integration.outputs import all_outputs, counting
home = Path(sys.argv[1])
env, counts = counting(spark, float(sys.argv[2]), checkpoint_dir=home / "checkpoints")
all_outputs(counts, home)
with env.execute("program", resume="auto") as job:
    job.await_finish()
"""
)


@pytest.mark.long
def test_a_driver_killed_again_and_again(tmp_path: Path) -> None:
    """Each run is killed at some moment after its function was called with more rows than that of the one before."""
    home = tmp_path / "home"
    home.mkdir()
    called = Called(home / "calls.jsonl")

    def rows() -> int:
        return sum(len(found) for _, found in called.calls())

    kill_again_and_again(PROGRAM, tmp_path, str(home), rows, PASSWORD)
    assert_all_exact(home, called.rows)
