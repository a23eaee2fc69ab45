"""What each guarantee promises about input rows, under kills of slots; and what the weaker ones do without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.api.streams.stream import Stream
from tests.integration.conftest import PATIENCE_S, wait_until
from tests.integration.failover_jobs import Victim, side_by_side
from tests.integration.test_failover import assert_local

pytestmark = pytest.mark.integration


def read_by_sources(job: JobHandle, source: str = "numbers") -> set[int]:
    """Every row before the place where each subtask of ``source`` ended.

    The output may hold later ones. Where barriers are not aligned it may hold rows from behind the barrier. A source
    that goes back to the barrier may be drained before it comes to them again.
    """
    coordinator = job._running.coordinator
    parallelism = coordinator.options.parallelism
    read = coordinator.figures.rows_out(source)
    assert len(read) == parallelism
    return {index + k * parallelism for index in range(parallelism) for k in range(read[f"{source}[{index}]"])}


class Loose(Victim):
    """A job whose output is checked by how often each row is there."""

    def check(self) -> None:
        assert self.times, "something was put out"

    @property
    def times(self) -> Counter[int]:
        """Each row that was put out, and how often."""
        return Counter(pq.read_table(self.out).column("i").to_pylist())

    @property
    def read(self) -> set[int]:
        """Every row that a source has read and sent."""
        return read_by_sources(self.job)


def two_stages(stream: Stream) -> Stream:
    """A second count, so that there are producers and consumers in the middle."""
    return stream.key_by("i").count(output="again", name="again")


def killed(spark: SparkSession, path: Path, guarantee: str, slots: Iterable[int], **options: Any) -> Loose:
    victim = Loose(spark, path, guarantee=guarantee, between=two_stages, **options)
    with victim:
        for count, slot in enumerate(slots, 1):
            victim.wait_for_strength()
            victim.pass_time(0.1)
            victim.kill_slot(slot)
            victim.wait_for_failovers(count)
        victim.wait_for_checkpoints()
        victim.finish()
    return victim


@pytest.mark.long  # the simulator draws guarantees
def test_at_least_once_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    victim = killed(spark, tmp_path, "at-least-once", (1, 0, 2))
    assert_local(victim, 3)
    assert set(victim.times) >= victim.read > set(), "no row is lost"
    assert victim.metrics["determinant_bytes"] == victim.metrics["message_ids"]["asked"] == 0


@pytest.mark.long
def test_at_most_once_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    victim = killed(spark, tmp_path, "at-most-once", (1, 0), failback="never")  # nothing is lost for a handover
    assert_local(victim, 2)
    assert max(victim.times.values()) == 1, "no row is there twice"
    lost = victim.read - set(victim.times)
    assert lost, "what a slot had taken in since its version is lost"
    assert victim.metrics["message_ids"]["asked"] == 0


@pytest.mark.long
def test_by_rollback_as_well(spark: SparkSession, tmp_path: Path) -> None:
    guarantees = ("at-least-once", "at-most-once")
    variants = [{"guarantee": guarantee, "recovery": "rollback", "between": two_stages} for guarantee in guarantees]
    with side_by_side(spark, tmp_path, variants, Loose) as victims:
        for victim in victims:
            victim.wait_for_checkpoints()
            victim.kill_slot(1)
        for victim in victims:
            job = victim.job
            victim.wait(lambda job=job: len(job.recoveries()) == 1 and job.state == "running", "a rollback")  # type: ignore[misc]
            victim.wait_for_checkpoints()
            victim.finish()
    for guarantee, victim in zip(guarantees, victims, strict=True):
        times = victim.times
        assert set(times) >= victim.read > set(), "a rollback loses nothing"
        if guarantee == "at-most-once":
            assert max(times.values()) == 1
            assert set(times) == victim.read


@pytest.mark.long
def test_what_holds_rows_back_recovers_by_rollback_at_most_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would put out again what it held at its version, and may have put out since."""

    def held(stream: Stream) -> Stream:
        def pairs(key: str, row: Any, ctx: Any) -> Any:
            before = ctx.state("before").get()
            ctx.state("before").put(None if before else tuple(row))
            return [before, tuple(row)] if before else []

        return stream.key_by("word").process(pairs, schema="word string, i long, count long", name="pairs")

    victim = Loose(spark, tmp_path, guarantee="at-most-once", between=held)
    with victim:
        assert not victim.job._running.coordinator.options.standbys
        victim.wait_for_checkpoints()
        victim.kill_slot(1)
        victim.wait(lambda: len(victim.job.recoveries()) == 1 and victim.job.state == "running", "a rollback")
        victim.wait_for_checkpoints()
        victim.finish()
    assert max(victim.times.values()) == 1
    assert "pairs may hold rows back" in caplog.text


@pytest.mark.long
def test_a_job_may_promise_more_when_it_is_resumed(spark: SparkSession, tmp_path: Path) -> None:
    """Its checkpoint is no aligned one: the channels begin where the producers stand."""
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    env = StreamEnvironment(
        spark, guarantee="at-least-once", parallelism=2, checkpoint_interval=0.1, checkpoint_dir=checkpoints
    )
    rows = env.generate(lambda i: (f"word-{i % 97}", i), schema="word string, i long", rate=20_000.0, name="numbers")
    two_stages(rows.key_by("word").count(name="count")).to_parquet(str(out), name="out")
    with env.execute("promising") as job:
        wait_until(lambda: job.metrics()["checkpoints_completed"] >= 3, "three checkpoints")
    with StreamEnvironment.resume(spark, checkpoints, guarantee="exactly-once") as job:
        wait_until(lambda: job.metrics()["checkpoints_completed"] >= 3, "three more checkpoints")
        job.drain()
        job.await_finish(PATIENCE_S)
    assert set(pq.read_table(out).column("i").to_pylist()) >= read_by_sources(job) > set()
