"""Troubles that no kill stands for: broken streams between living slots, a failing store, a clock that jumps."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.errors import JobFailed
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, Seq
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.slot.process.standbys import NO_CHANNEL
from flinkplus.runtime.transport.wire.message_format import Message, MessageKind, encode
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts, this_slot, wait_until

pytestmark = pytest.mark.integration

REPLICA = Message(MessageKind.REPLICA, NO_CHANNEL, Generation(0), Seq(0), CheckpointId(0))


def break_data_streams() -> int:
    """Cut, below the data plane, every stream that other slots have opened to this process; returns how many."""
    connections = psutil.Process().net_connections("tcp")
    listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    cut = 0
    for connection in connections:
        if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port in listening:
            with socket.fromfd(connection.fd, socket.AF_INET, socket.SOCK_STREAM) as stream:
                stream.shutdown(socket.SHUT_RDWR)
            cut += 1
    return cut


@pytest.mark.long
def test_broken_streams_between_living_slots(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    """The output logs send again, and credit that was lost with a stream is given again."""
    cuts = tmp_path / "cuts"
    cuts.mkdir()

    def cutting(row):
        if row["count"] % 1000 == 0:
            (cuts / f"{os.getpid()}-{row['count']}").write_text(str(break_data_streams()))
        return row

    env = StreamEnvironment(
        spark, parallelism=2, checkpoint_interval=0.2, window=2, batch_rows=500, recovery="rollback"
    )
    counts = env.read_text(str(corpus)).tokenize().key_by("word").count(name="count")
    counts.map(cutting, schema="word string, count long").to_parquet(str(tmp_path / "out"))
    with env.execute("cut") as job:
        job.await_finish(PATIENCE_S)
        assert job.recoveries() == []
    assert_exact(tmp_path / "out", expected_counts(corpus))
    assert sum(int(path.read_text()) for path in cuts.iterdir()) > 5


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["standby", pytest.param("rollback", marks=pytest.mark.long)])
def test_a_malformed_frame_is_made_good_by_new_streams(
    spark: SparkSession, corpus: Path, tmp_path: Path, recovery: Any
) -> None:
    """What shared the frame is lost, and is sent again."""
    flag = tmp_path / "sent"

    def babbling(row):
        if row["count"] == 100 and not flag.exists():
            flag.touch()
            plane: Any = this_slot()._data
            for peer in list(plane._out):
                if recovery == "standby":
                    plane.send(peer, encode(REPLICA, b"no frame of replication"))
                    plane.flush()
                plane.send(peer, [b"\x99" * 40])
        return row

    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, recovery=recovery)
    lasting = env.read_text(str(corpus)).tokenize().throttle(40_000)  # heartbeats tell what was dropped
    words = lasting.key_by("word").count(name="first")
    counts = words.map(babbling, schema="word string, count long").map(lambda row: (row["word"],), schema="word string")
    counts.key_by("word").count(name="count").to_parquet(str(tmp_path / "out"))
    with env.execute("babble") as job:
        job.await_finish(PATIENCE_S)
        assert job.recoveries() == [] and job.metrics()["malformed_frames"] >= (2 if recovery == "standby" else 1)
    assert flag.exists()
    assert_exact(tmp_path / "out", expected_counts(corpus))


@pytest.mark.long
def test_a_drain_goes_on_after_a_resume(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint may hold a source that the drain has ended, beside one that it has not: both must end there."""
    hold, holding, directory = tmp_path / "hold", tmp_path / "holding", str(tmp_path / "checkpoints")

    def held(i):
        while i % 2 and hold.exists():
            holding.touch()
            time.sleep(0.001)
        return i

    store = Commits.store

    def without_the_last(self, checkpoint, generation, handles, final):
        if final:
            raise OSError("the driver dies about here")
        store(self, checkpoint, generation, handles, final)

    env = StreamEnvironment(
        spark, parallelism=2, checkpoint_interval=None, checkpoint_dir=directory, batch_rows=100, max_restarts=0
    )
    env.generate(held, schema="i long", count=200_000, rate=20_000).to_parquet(str(tmp_path / "out"))
    with monkeypatch.context() as dying:
        dying.setattr(Commits, "store", without_the_last)
        job = env.execute("drained")
        wait_until(lambda: sum(job.rows_out("generator").values()) > 2000, "rows")
        hold.touch()
        wait_until(holding.exists, "one source in the middle of a step")
        coordinator = job._running.coordinator
        job.drain()
        wait_until(lambda: len(coordinator.parts.machines.checkpoints._exhausted) == 1, "the end of one source")
        job.checkpoint_now()
        wait_until(lambda: any(c["status"] == "pending" for c in job.checkpoints()), "the trigger")
        hold.unlink()
        with pytest.raises(JobFailed, match="no last checkpoint"):
            job.await_finish(PATIENCE_S)
    assert [c["status"] for c in job.checkpoints()].count("complete") == 1
    with StreamEnvironment.resume(spark, directory) as resumed:
        resumed.await_finish(PATIENCE_S)
    rows = sorted(pq.read_table(tmp_path / "out").column("i").to_pylist())
    for parity in (0, 1):
        mine = [i for i in rows if i % 2 == parity]
        assert mine == list(range(parity, 2 * len(mine), 2))
        assert len(mine) < 100_000


def test_a_drain_does_not_wait_for_the_next_row_of_a_slow_source(spark: SparkSession) -> None:
    env = StreamEnvironment(spark, parallelism=2)
    env.generate(lambda i: i, schema="i long", rate=0.02).discard()
    with env.execute("slow") as job:
        wait_until(lambda: sum(job.rows_out("generator").values()) == 2, "the first rows")
        job.drain()
        job.await_finish(20)
    assert job.metrics()["operators"]["generator"]["rows_out"] == 2
