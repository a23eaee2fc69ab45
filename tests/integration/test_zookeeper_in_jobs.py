"""Jobs with standbys and what ZooKeeper does to them: away and back, gone for good, shared, silent slots."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from pyspark.sql import SparkSession

from chain_backup.zookeeper import supervisor
from chain_backup.zookeeper.embedded import MAIN_CLASS, EmbeddedZooKeeper
from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.errors import JobFailed, JobRunsElsewhere
from flinkplus.runtime.coordinator.dispatch import registry
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts, wait_for_checkpoint, wait_until
from tests.integration.test_cli import assert_gapless

pytestmark = pytest.mark.integration

RATE = 40_000.0
REPEAT = 4


def start(
    spark: SparkSession,
    corpus: Path,
    out: Path,
    parallelism: int = 3,
    rate: float = RATE,
    repeat: int = REPEAT,
    **options: Any,
) -> JobHandle:
    """A WordCount of about six seconds, with a checkpoint every 0.3 s and standbys."""
    given = {"checkpoint_interval": 0.3, "recovery": "standby", **options}
    env = StreamEnvironment(spark, parallelism=parallelism, **given)
    words = env.read_text(str(corpus), repeat=repeat, name="lines").tokenize(name="tokenize").throttle(rate)
    words.key_by("word").count(name="count").to_parquet(str(out), name="out")
    return env.execute("with-zookeeper")


@pytest.fixture
def ensemble() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as server:
        yield server


@pytest.mark.long
def test_a_failover_waits_for_zookeeper(
    spark: SparkSession, corpus: Path, tmp_path: Path, ensemble: EmbeddedZooKeeper
) -> None:
    with start(spark, corpus, tmp_path / "out", zookeeper=ensemble.hosts) as job:
        wait_for_checkpoint(job)
        ensemble.kill()
        wait_until(lambda: job.metrics()["zookeeper"] != "connected", "ZooKeeper is missed")
        before = job.metrics()["last_checkpoint"]
        wait_until(lambda: job.metrics()["last_checkpoint"] > before, "the job goes on without it")
        job.kill("count:1")
        wait_until(lambda: 1 not in job.slot_pids() or len(job.recoveries()) == 1, "the failure is known")
        ensemble.restart()
        wait_until(lambda: job.metrics()["failovers"] == 1, "the failover")
        wait_until(lambda: job.metrics()["zookeeper"] == "connected", "ZooKeeper is back")
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))
    assert job.metrics()["fallbacks"] == 0


def test_without_zookeeper_the_job_rolls_back_and_says_why(
    spark: SparkSession, corpus: Path, tmp_path: Path, ensemble: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "URGENT_TIMEOUT_S", 1.0)
    with start(spark, corpus, tmp_path / "out", zookeeper=ensemble.hosts) as job:
        wait_for_checkpoint(job)
        ensemble.kill()
        job.kill("count:1")
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))
    metrics = job.metrics()
    assert (metrics["failovers"], metrics["fallbacks"]) == (0, 1), metrics["fallback_reasons"]
    assert "ZooKeeper" in metrics["fallback_reasons"][0]
    (recovery,) = job.recoveries()
    assert (recovery["mode"], recovery["fallback"]) == ("rollback", metrics["fallback_reasons"][0])


@pytest.mark.parametrize(
    "how", [pytest.param("it dies", marks=pytest.mark.long), "it hangs", "another process takes its port"]
)
def test_the_jobs_own_server_is_away_and_comes_back(
    spark: SparkSession, corpus: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot dies before it is back: the failover waits for it, and for the sessions of all others nothing happened."""
    monkeypatch.setattr(registry, "URGENT_TIMEOUT_S", 120.0)  # for a machine that is busy
    monkeypatch.setattr(supervisor, "HANG_S", 2.0)
    with contextlib.ExitStack() as closing, start(spark, corpus, tmp_path / "out", repeat=2) as job:
        wait_for_checkpoint(job)
        (server,) = (one for one in psutil.Process().children() if MAIN_CLASS in one.cmdline())
        restart = EmbeddedZooKeeper.restart

        def restart_beside_a_thief(embedded: EmbeddedZooKeeper) -> str:
            closing.enter_context(socket.create_server(("127.0.0.1", int(embedded.hosts.rpartition(":")[2]))))
            return restart(embedded)

        if how == "another process takes its port":
            monkeypatch.setattr(EmbeddedZooKeeper, "restart", restart_beside_a_thief)
        server.suspend() if how == "it hangs" else server.kill()
        job.kill("count:1")
        wait_until(lambda: job.metrics()["failovers"] == 1, "the failover", 120.0)
        wait_until(lambda: job.metrics()["zookeeper"] == "connected", "ZooKeeper is back")
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus, 2))
    metrics = job.metrics()
    assert (metrics["failovers"], metrics["fallbacks"]) == (1, 0)
    assert metrics["zookeeper_restarts"] >= 1
    assert metrics["slot_restarts"] <= 1, "no other slot has lost its session"


@pytest.mark.long  # ``test_a_hung_slot`` is a variant
@pytest.mark.parametrize(
    ("options", "reason"),
    [({"session_timeout": 1.0, "hang_timeout": None}, "session"), ({"session_timeout": 20.0}, "hangs")],
)
def test_a_slot_that_hangs_is_replaced(
    spark: SparkSession, corpus: Path, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    """When its session is over, or before that, when it has no pulse."""
    with start(spark, corpus, tmp_path / "out", heartbeat_timeout=30.0, **options) as job:  # type: ignore[arg-type]
        wait_for_checkpoint(job)
        os.kill(job.slot_pids()[1], signal.SIGSTOP)
        wait_until(lambda: job.metrics()["failovers"] == 1, "the failover", 15.0)
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus, REPEAT))
    assert reason in job.recoveries()[0]["reason"]
    assert job.metrics()["fallbacks"] == 0


def test_one_driver_runs_a_job_until_another_has_taken_it_over(
    spark: SparkSession, corpus: Path, tmp_path: Path, ensemble: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SUCCESSION_PATIENCE_S", 0.1)
    checkpoints = tmp_path / "checkpoints"
    options = {"zookeeper": ensemble.hosts, "zookeeper_acl": "job", "checkpoint_dir": str(checkpoints)}
    given = {"rate": 4_000.0, "session_timeout": 1.0, **options}  # a minute of input: it is all over before that
    with start(spark, corpus, tmp_path / "out", **given) as job:  # type: ignore[arg-type]
        wait_for_checkpoint(job)
        with pytest.raises(JobRunsElsewhere, match="end that driver first, or, if it hangs"):
            StreamEnvironment.resume(spark, checkpoints, zookeeper=None, zookeeper_acl=None)
        with pytest.raises(JobRunsElsewhere, match=rf"{job.job_id}.* is coordinated by process {os.getpid()} on"):
            StreamEnvironment.resume(spark, checkpoints)
        assert job.state == "running"
        CheckpointStorage(checkpoints).runs.begin(2)
        with pytest.raises(JobFailed, match="another driver has taken over the job") as failed:
            job.await_finish(30)
        assert isinstance(failed.value.__cause__, JobRunsElsewhere)
    with StreamEnvironment.resume(spark, checkpoints) as resumed:
        assert resumed.job_id == job.job_id and resumed.restored_from is not None
        wait_for_checkpoint(resumed, 2)
    counts = pq.read_table(tmp_path / "out").group_by("word").aggregate([("count", "max"), ("count", "count_distinct")])
    assert counts["count_max"] == counts["count_count_distinct"], "words are counted from 1 on"
    assert sum(counts["count_max"].to_pylist()) == resumed.metrics()["committed_rows"]["out"], "each row once"


def test_records_and_nodes_of_what_a_rescale_has_ended_are_gone(
    spark: SparkSession, corpus: Path, tmp_path: Path, ensemble: EmbeddedZooKeeper
) -> None:
    client = KazooClient(ensemble.hosts)
    client.start()
    try:
        with start(spark, corpus, tmp_path / "out", zookeeper=ensemble.hosts, rate=4_000.0) as job:
            wait_for_checkpoint(job)
            (application,) = client.get_children("/flinkplus")

            def found(what: str) -> list[str]:
                return client.get_children(f"/flinkplus/{application}/{what}")

            assert len(found("subtasks")) == 6 and len(found("slots")) == 3
            job.rescale(2).await_done(PATIENCE_S)
            wait_until(lambda: len(found("subtasks")) == 4 and len(found("slots")) == 2, "the end of the others")
            assert not [name for name in found("subtasks") if name.endswith("[2]")]
            wait_until(lambda: job.missing_standbys() == 0, "standbys")
            assert job.kill("count:1")
            wait_until(lambda: len(job.recoveries()) == 1, "a recovery")
            assert job.recoveries()[0]["mode"] == "standby" and len(found("subtasks")) == 4
    finally:
        client.stop()
        client.close()


def test_two_jobs_share_an_ensemble_and_leave_nothing_in_it(
    spark: SparkSession, corpus: Path, tmp_path: Path, ensemble: EmbeddedZooKeeper
) -> None:
    shared = {"parallelism": 2, "zookeeper": ensemble.hosts, "zookeeper_acl": "job", "repeat": 10_000}
    client = KazooClient(ensemble.hosts)
    client.start(10)
    try:
        with (
            start(spark, corpus, tmp_path / "one", **shared) as one,  # type: ignore[arg-type]
            start(spark, corpus, tmp_path / "two", **shared) as two,  # type: ignore[arg-type]
        ):
            wait_for_checkpoint(one)
            wait_for_checkpoint(two)
            assert sorted(client.get_children("/flinkplus")) == sorted([one.job_id, two.job_id])
            for job in (one, two):
                with pytest.raises(NoAuthError):
                    client.get_children(f"/flinkplus/{job.job_id}/slots")
            one.kill("count:0")
            wait_until(lambda: one.metrics()["failovers"] == 1, "the failover")
            for job in (one, two):
                job.drain()
                job.await_finish(PATIENCE_S)
        assert client.get_children("/flinkplus") == []
    finally:
        client.stop()
        client.close()
    for job, name in ((one, "one"), (two, "two")):
        assert_gapless(tmp_path / name)
        assert pq.read_table(tmp_path / name).num_rows == job.metrics()["operators"]["tokenize"]["rows_out"] > 0
    assert (one.metrics()["failovers"], two.metrics()["failovers"]) == (1, 0)


def test_hosts_where_there_is_no_zookeeper(
    spark: SparkSession, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "ELECTION_TIMEOUT_S", 1.0)
    with (
        start(spark, corpus, tmp_path / "out", zookeeper="127.0.0.1:1") as job,
        pytest.raises(JobFailed, match="ZooKeeper"),
    ):
        job.await_finish(30)


def test_a_server_that_does_not_start_ends_the_job(
    spark: SparkSession, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with start(spark, corpus, tmp_path / "out") as job, pytest.raises(JobFailed, match="ZooKeeperStartError"):
        job.await_finish(30)
