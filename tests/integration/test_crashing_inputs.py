"""Inputs that end the process of a slot: the job ends after the second one, and says where and by which row."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.environment import StreamEnvironment
from flinkplus.errors import JobFailed, ProcessCrashed

pytestmark = pytest.mark.integration

BAD = 20_011
COUNTED = "k long, i long, count long"


def numbers(start: int, count: int) -> pa.RecordBatch:
    rows = range(start, start + count)
    return pa.record_batch({"k": pa.array([i % 10 for i in rows], pa.int64()), "i": pa.array(rows, pa.int64())})


def environment(spark: SparkSession, path: Path, recovery: Any) -> StreamEnvironment:
    return StreamEnvironment(
        spark, parallelism=3, recovery=recovery, checkpoint_interval=0.5, work_dir=str(path), max_slot_losses=10
    )


def at_the_bad_row(ends: Callable[[], object]) -> Callable[[Any], Any]:
    def function(row: Any) -> Any:
        if row["i"] == BAD:
            ends()
        return row

    return function


def failure_of(env: StreamEnvironment, name: str) -> tuple[ProcessCrashed, dict[str, Any]]:
    """How the job fails, and its figures."""
    with env.execute(name) as job:
        with pytest.raises(JobFailed) as caught:
            job.await_finish(120)
        metrics = job.metrics()
    cause = caught.value.__cause__
    assert isinstance(cause, ProcessCrashed), cause
    assert "Fix the function" in str(caught.value)
    return cause, metrics


@pytest.mark.parametrize(
    ("recovery", "ends"),
    [
        ("standby", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
        pytest.param("partial", os.abort, marks=pytest.mark.long),
        pytest.param("rollback", lambda: ctypes.string_at(0), marks=pytest.mark.long),
    ],
)
def test_a_row_that_crashes_a_library_ends_the_job_after_the_second_process(
    spark: SparkSession, tmp_path: Path, recovery: str, ends: Callable[[], object]
) -> None:
    env = environment(spark, tmp_path, recovery)
    stream = env.generate(numbers, schema="k long, i long", batches=True, rate=20_000, name="numbers")
    stream.key_by("k").count(name="count").map(at_the_bad_row(ends), schema=COUNTED, name="native").discard(name="out")
    error, metrics = failure_of(env, "crashes")
    assert error.operator == "native" and error.subtask.startswith("native[")
    assert error.cause in ("Segmentation fault", "Aborted")
    assert f"i={BAD}" in error.row, str(error)
    assert error.message
    assert metrics["slot_restarts"] <= 2


@pytest.mark.parametrize("recovery", ["standby", pytest.param("rollback", marks=pytest.mark.long)])
def test_a_row_that_ends_the_process_without_a_signal_ends_the_job_too(
    spark: SparkSession, tmp_path: Path, recovery: str
) -> None:
    """Behind a source, rows have the same numbers in every attempt."""
    env = environment(spark, tmp_path, recovery)
    stream = env.generate(numbers, schema="k long, i long", batches=True, rate=20_000, name="numbers")
    exits = stream.map(at_the_bad_row(lambda: os._exit(3)), schema="k long, i long", name="exits")
    exits.key_by("k").count(name="count").discard(name="out")
    error, metrics = failure_of(env, "exits")
    assert error.operator == "exits" and error.cause == ""
    assert f"i={BAD}" in error.row, str(error)
    assert metrics["slot_restarts"] <= 2
