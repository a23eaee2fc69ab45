"""Kills in a run; the output is exact each time. Real processes, real SIGKILL."""

from __future__ import annotations

import functools
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.errors import JobFailed, UserFunctionError
from flinkplus.protocol.vocabulary.phases import DURATIONS
from tests.integration.conftest import (
    PATIENCE_S,
    assert_exact,
    expected_counts,
    in_pairs,
    wait_for_checkpoint,
    wait_until,
)

pytestmark = pytest.mark.integration

RATE = 60_000.0
REPEAT = 2


def start(spark: SparkSession, corpus: Path, out: Path, parallelism: int = 3, **options: Any) -> JobHandle:
    """A WordCount of about two seconds, with a checkpoint every 0.2 s."""
    env = StreamEnvironment(
        spark, parallelism=parallelism, **{"checkpoint_interval": 0.2, "recovery": "rollback", **options}
    )
    words = env.read_text(str(corpus), repeat=REPEAT, name="lines").tokenize(name="tokenize").throttle(RATE)
    words.key_by("word").count(name="count").to_parquet(str(out), name="out")
    return env.execute("recovery")


POINTS = [
    "start:lines[1]",
    "alignment:count[1]",
    "upload:count[0]",
    "commit:count[1]",
]


@pytest.mark.long
@pytest.mark.parametrize(
    "faults", [pytest.param(pair, marks=pytest.mark.long if at else []) for at, pair in enumerate(in_pairs(POINTS))]
)
def test_a_kill_in_the_first_checkpoint(
    spark: SparkSession, corpus: Path, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    with ExitStack() as running:
        jobs = [
            running.enter_context(start(spark, corpus, tmp_path / f"out-{number}", faults=(fault,)))
            for number, fault in enumerate(faults)
        ]
        for job in jobs:
            job.await_finish(PATIENCE_S)
    for number, job in enumerate(jobs):
        recoveries = job.recoveries()
        assert_exact(tmp_path / f"out-{number}", expected_counts(corpus, REPEAT))
        assert len(recoveries) == 1
        assert recoveries[0]["mode"] == "rollback"
        assert recoveries[0]["failure"] == "slot"
        assert job.metrics()["slot_restarts"] == 1


def reached(job: JobHandle, at: float) -> bool:
    """Whether the job has run for ``at`` seconds, or is over."""
    return job.done or (job.running_s or -1.0) >= at


@pytest.mark.long
@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3), marks=pytest.mark.long)], ids=str)
def test_kills_at_random_times(spark: SparkSession, corpus: Path, tmp_path: Path, seeds: tuple[int, ...]) -> None:
    chances = {seed: random.Random(seed) for seed in seeds}
    times = sorted(
        (chance.uniform(0.0, 2.2), seed) for seed, chance in chances.items() for _ in range(chance.choice([1, 2, 3]))
    )
    with ExitStack() as running:
        jobs = {seed: running.enter_context(start(spark, corpus, tmp_path / f"out-{seed}")) for seed in seeds}
        for at, seed in times:
            job, chance = jobs[seed], chances[seed]
            wait_until(functools.partial(reached, job, at), f"{at} s of running")
            if not job.done:
                job.kill(f"{chance.choice(['lines', 'count'])}:{chance.randrange(3)}")
        for job in jobs.values():
            job.await_finish(PATIENCE_S)
    for seed in seeds:
        assert_exact(tmp_path / f"out-{seed}", expected_counts(corpus, REPEAT))


def test_all_slots_killed_at_once(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    with start(spark, corpus, tmp_path / "out") as job:
        wait_for_checkpoint(job, 2)
        for index in range(3):
            job.kill(f"count:{index}")
        job.await_finish(PATIENCE_S)
        recoveries = job.recoveries()
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))
    assert recoveries and recoveries[0]["checkpoint"] is not None


def test_living_slots_keep_their_processes(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    with start(spark, corpus, tmp_path / "out") as job:
        wait_for_checkpoint(job)
        before = job.slot_pids()
        job.kill("count:1")
        wait_until(lambda: len(job.recoveries()) == 1 and job.state == "running", "the recovery")
        after = job.slot_pids()
        job.await_finish(PATIENCE_S)
        recovery = job.recoveries()[0]
    assert {slot for slot in before if before[slot] != after[slot]} == {1}
    assert sorted(recovery["subtasks"]) == ["count+out[1]", "lines+tokenize[1]"]
    for phase in (*DURATIONS, "recovery"):
        assert recovery[f"{phase}_ms"] is not None and recovery[f"{phase}_ms"] >= 0
    assert recovery["recovery_ms"] < 30_000
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))


def test_an_exception_once_is_recovered_without_a_new_process(
    spark: SparkSession, corpus: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "raised"

    def fails_once(row):
        if row["count"] == 200 and not flag.exists():
            flag.touch()
            raise OSError("a passing trouble")
        return row

    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, recovery="rollback")
    words = env.read_text(str(corpus), repeat=REPEAT).tokenize().throttle(RATE)
    counts = words.key_by("word").count(name="count")
    counts.map(fails_once, schema="word string, count long", name="check").to_parquet(str(tmp_path / "out"))
    with env.execute("exception") as job:
        job.await_finish(PATIENCE_S)
        recoveries = job.recoveries()
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))
    assert [r["failure"] for r in recoveries] == ["exception"]
    assert job.metrics()["slot_restarts"] == 0


def test_an_exception_that_stays_ends_the_job_with_the_row(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("fine\nalso fine\npoison here\n" * 3)

    def picky(row):
        if "poison" in row.value:
            raise ValueError("cannot digest this")
        return row

    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, max_restarts=2, recovery="rollback")
    env.read_text(str(tmp_path / "in.txt")).map(picky, schema="value string", name="picky").discard()
    with env.execute("poison") as job, pytest.raises(JobFailed) as caught:
        job.await_finish(PATIENCE_S)
    cause = caught.value.__cause__
    assert isinstance(cause, UserFunctionError)
    assert cause.operator == "picky"
    assert "cannot digest this" in str(caught.value) and "poison here" in str(caught.value)
    assert len(job.recoveries()) == 2
    assert job.state == "failed"


def test_a_slot_killed_while_it_recovers(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    with start(spark, corpus, tmp_path / "out") as job:
        wait_for_checkpoint(job)
        first = job.slot_pids()[0]
        job.kill("count:0")
        wait_until(lambda: job.slot_pids().get(0, first) != first, "the slot is back")
        job.kill("count:0")
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))
    assert job.metrics()["slot_restarts"] >= 2
