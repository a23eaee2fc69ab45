"""Failures that are no kills: exceptions, ZooKeeper away, expired sessions, full and broken disks, torn deltas."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
from dedup.filter import MessageFilter
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import JobFailed, UserFunctionError
from flinkplus.runtime.coordinator.dispatch import registry
from flinkplus.runtime.slot.process.slot import Slot
from flinkplus.runtime.transport.wire.message_format import MessageKind, decode_frame, encode
from tests.integration.conftest import PATIENCE_S, this_slot
from tests.integration.failover_jobs import NO_CHECKPOINTS, Victim, word
from tests.integration.test_failover import assert_local, assert_rolled_back
from upstream_cache import segments
from upstream_cache.volume import Volume as Files

pytestmark = pytest.mark.integration

COUNTED = "word string, i long, count long"


# --- exceptions


@pytest.mark.long
def test_an_exception_in_one_subtask_after_the_other(spark: SparkSession, tmp_path: Path) -> None:
    """The processes stay; a subtask goes to its standby, and comes home when that slot has caught up."""
    flags = [tmp_path / f"raised-{name}" for name in ("first", "second", "third")]

    def fails(row: Any) -> Any:
        for flag, i in zip(flags, (2_000, 2_001, 5_000), strict=True):
            if row["i"] == i and not flag.exists():
                flag.touch()
                raise OSError("a passing trouble")
        return row

    between = lambda stream: stream.map(fails, schema=COUNTED, name="check")  # noqa: E731
    with Victim(spark, tmp_path, between=between) as victim:
        pids = victim.job.slot_pids()
        victim.wait(flags[-1].exists, "the last exception")
        victim.wait_for_strength()
        victim.finish()
        assert victim.metrics["slot_restarts"] == 0 and len(pids) == 3
    assert_local(victim, victim.metrics["failovers"])
    assert {r["failure"] for r in victim.job.recoveries()} == {"exception"}
    assert all(len(r["subtasks"]) <= 2 for r in victim.job.recoveries())


def test_an_exception_in_a_source(spark: SparkSession, tmp_path: Path) -> None:
    flag = tmp_path / "raised"

    def fails(i: int) -> str:
        if i == 2_500 and not flag.exists():
            flag.touch()
            raise OSError("a passing trouble")
        return word(i)

    with Victim(spark, tmp_path, word=fails) as victim:
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, 1)
    assert victim.job.recoveries()[0]["subtasks"] == [f"numbers[{2_500 % 3}]"]


@pytest.mark.long
def test_a_slot_that_refuses_connections_is_given_up_and_no_subtask_of_the_others_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As behind a firewall that rejects: its process lives, and the driver reaches it."""
    flag = tmp_path / "refuse"

    def refuses(row: Any) -> Any:
        slot: Any = this_slot()
        if slot.index == 1 and flag.exists():
            flag.unlink()
            slot._data._listener.close()
            for connection in list(slot._data._attached):
                connection.fail("reset")
        return row

    between = lambda stream: stream.map(refuses, schema=COUNTED, name="check")  # noqa: E731
    with Victim(spark, tmp_path, between=between) as victim:
        victim.wait_for_checkpoints()
        flag.touch()
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, victim.metrics["failovers"])
    assert {r["failure"] for r in victim.job.recoveries()} == {"slot"}, "no subtask has failed"
    assert "refuses connections" in victim.job.recoveries()[0]["reason"]


@pytest.mark.long
def test_an_input_that_fails_each_successor_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    bad = tmp_path / "bad"  # the number of the row, once the job runs

    def picky(row: Any) -> Any:
        if bad.exists() and row["i"] == int(bad.read_text()):
            raise ValueError("cannot digest this")
        return row

    between = lambda stream: stream.map(picky, schema=COUNTED, name="picky")  # noqa: E731
    # A checkpoint between two failures would show that the job gets on, and none of them would count.
    settings: dict[str, Any] = {"max_restarts": 2, "checkpoint_interval": NO_CHECKPOINTS}
    with pytest.raises(JobFailed) as caught, Victim(spark, tmp_path, between=between, **settings) as victim:
        number = 3 * max(victim.job.rows_out("numbers").values()) + 3_000  # not read yet
        (tmp_path / "written").write_text(str(number))
        (tmp_path / "written").rename(bad)
        victim.job.await_finish(PATIENCE_S)
    cause = caught.value.__cause__
    assert isinstance(cause, UserFunctionError) and cause.operator == "picky"
    assert "cannot digest this" in str(caught.value) and str(number) in str(caught.value)
    metrics = victim.metrics
    assert metrics["state"] == "failed"
    assert metrics["failovers"] >= 1
    assert "the same input fails each successor" in metrics["fallback_reasons"][0]
    assert "failure 3, and max_restarts is 2" in str(caught.value)
    assert metrics["fallbacks"] == 2, "each restart is a failover and the rollback that it ended in"


@pytest.mark.long
def test_an_outage_that_every_subtask_meets_at_once_is_one_recovery(spark: SparkSession, tmp_path: Path) -> None:
    outage = tmp_path / "outage"

    def calls(row: Any) -> Any:
        met = tmp_path / f"met-{os.getpid()}"
        if outage.exists() and not met.exists():
            met.touch()
            raise ConnectionError("the service is away")
        return row

    between = lambda stream: stream.map(calls, schema=COUNTED, name="call")  # noqa: E731
    with Victim(spark, tmp_path, between=between, max_restarts=1) as victim:
        victim.wait_for_strength()
        outage.touch()
        victim.wait(lambda: len(list(tmp_path.glob("met-*"))) == 3, "an exception in each slot")
        victim.wait_for_strength()
        victim.finish()
    assert victim.metrics["slot_restarts"] == 0
    assert {recovery["failure"] for recovery in victim.job.recoveries()} == {"exception"}


@pytest.mark.long
def test_three_stages(spark: SparkSession, tmp_path: Path) -> None:
    """A failed subtask in the middle moves alone; a lost slot takes a producer and its consumer; both are local."""
    flag = tmp_path / "raised"

    def fails(row: Any) -> Any:
        if row["i"] == 1_500 and not flag.exists():
            flag.touch()
            raise OSError("a passing trouble")
        return row

    def between(stream: Stream) -> Stream:
        return stream.map(fails, schema=COUNTED, name="check").key_by("i").sum("count", name="sum")

    with Victim(spark, tmp_path, between=between) as victim:
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        assert victim.metrics["fallbacks"] == 0
        victim.job.kill("count:1")
        victim.wait_for_failovers(2)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, 2)
    first, second = victim.job.recoveries()
    assert (first["mode"], first["failure"]) == ("standby", "exception")
    assert len(first["subtasks"]) == 1 and first["subtasks"][0].startswith("count+check[")
    assert (second["mode"], second["failure"]) == ("standby", "slot")
    assert len(second["subtasks"]) == 3


# --- ZooKeeper


@pytest.fixture
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as server:
        yield server


@pytest.mark.long
def test_zookeeper_is_away(spark: SparkSession, tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    """For 3 s, for 10 s: longer than its sessions last. The job runs on; a failover waits for ZooKeeper's return."""
    with Victim(spark, tmp_path, zookeeper=zookeeper.hosts, session_timeout=2.0) as victim:
        victim.wait_for_strength()
        zookeeper.kill()
        victim.wait(lambda: victim.metrics["zookeeper"] != "connected", "the loss of ZooKeeper")
        victim.pass_time(3.0)
        victim.wait_for_checkpoints(2)
        zookeeper.restart()
        victim.wait(lambda: victim.metrics["zookeeper"] == "connected", "ZooKeeper's return")
        victim.wait_for_checkpoints(2)
        assert victim.metrics["recoveries"] == 0
        zookeeper.kill()
        victim.pass_time(8.0)
        victim.kill_slot(1)
        victim.wait(lambda: victim.protocol.active, "the beginning of the failover")
        victim.pass_time(2.0)
        assert victim.metrics["failovers"] == 0
        zookeeper.restart()
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, 1)


@pytest.mark.long
def test_zookeeper_stays_away(
    spark: SparkSession, tmp_path: Path, zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover does not wait forever: the job rolls back, and runs on without ZooKeeper."""
    monkeypatch.setattr(registry, "URGENT_TIMEOUT_S", 1.0)
    with Victim(spark, tmp_path, zookeeper=zookeeper.hosts, session_timeout=2.0) as victim:
        victim.wait_for_strength()
        zookeeper.kill()
        victim.kill_slot(1)
        victim.wait(lambda: victim.metrics["fallbacks"] == 1, "the rollback")
        victim.wait(lambda: victim.job.state == "running", "the restart")
        victim.wait_for_checkpoints(2)
        zookeeper.restart()
        victim.wait_for_strength()
        victim.kill_slot(2)
        victim.wait_for_failovers(1)
        victim.finish()
    assert_rolled_back(victim, "ZooKeeper")


@pytest.mark.long
def test_the_session_of_a_living_head_expires(
    spark: SparkSession, tmp_path: Path, zookeeper: EmbeddedZooKeeper
) -> None:
    """It stops sending and ends, whatever it was doing; its standby goes on."""
    told = tmp_path / "sessions"
    told.mkdir()

    class Tells:
        """Each process says once which session it has."""

        done = False

        def __call__(self, row: Any) -> Any:
            if not self.done:
                slot = this_slot()
                session = slot._session.client.kazoo.client_id if slot._session is not None else None
                if session is not None:
                    part = told / f"{slot.index}.part"
                    part.write_text(json.dumps([session[0], session[1].hex()]))
                    part.rename(told / str(slot.index))
                    self.done = True
            return row

    between = lambda stream: stream.map(Tells(), schema=COUNTED, name="tells")  # noqa: E731
    with Victim(spark, tmp_path, between=between, zookeeper=zookeeper.hosts) as victim:
        victim.wait_for_strength()
        victim.wait((told / "1").exists, "the session")
        number, password = json.loads((told / "1").read_text())
        pid = victim.job.slot_pids()[1]
        other = KazooClient(zookeeper.hosts, client_id=(number, bytes.fromhex(password)))
        other.start()
        other.stop()
        other.close()
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        assert victim.metrics["slot_restarts"] == 1 and victim.job.slot_pids()[1] != pid
        victim.finish()
    assert_local(victim, 1)
    assert "session" in victim.job.recoveries()[0]["reason"]


# --- the disk of the output logs


def long_word(i: int) -> str:
    """So that the logs are large and the state is not."""
    return word(i) + "." * 3000


class Volume(Protocol):
    """Where the output logs of the slots spill to; with no room to speak of until it is freed."""

    def prepare(self, slot: Slot) -> None:
        """Called once in each slot, before it spills."""

    def free(self) -> None:
        """There is room now."""


class MountedVolume:
    """A file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, slot: Slot) -> None:
        mine = self.path / f"{slot.index}-{os.getpid()}"
        mine.mkdir()
        (slot._scratch / "log").symlink_to(mine)

    def free(self) -> None:
        subprocess.run(["mount", "-o", "remount,size=256m", str(self.path)], check=True)


class PretendedVolume:
    """For who may not mount: the writer of segments reports a full volume."""

    def __init__(self, path: Path) -> None:
        self.full = path / "full"
        self.full.touch()

    def prepare(self, slot: Slot) -> None:
        write_all, full = segments.write_all, self.full

        def write(volume: Files, handle: int, buffers: list[Any], offset: int) -> None:
            if full.exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            write_all(volume, handle, buffers, offset)

        segments.write_all = write

    def free(self) -> None:
        self.full.unlink()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    path = tmp_path / "volume"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        yield PretendedVolume(path)
        return
    try:
        yield MountedVolume(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def read_rows(victim: Victim) -> int:
    return sum(victim.job.rows_out("numbers").values())


def is_full(victim: Victim) -> bool:
    """Whether all sources say that they stand still, and why."""
    blocked = victim.metrics["blocked"]
    return len(blocked) == 3 and all(reason.startswith("spill volume full: ") for reason in blocked.values())


@pytest.mark.long
def test_the_spill_volume_is_full(spark: SparkSession, tmp_path: Path, volume: Volume) -> None:
    """Sources stop, nothing is lost; when there is room again the job goes on, and a kill is like any other."""
    settings: dict[str, Any] = {"cache_memory_mb": 1, "checkpoint_interval": NO_CHECKPOINTS}
    with Victim(spark, tmp_path, word=long_word, prepare=volume.prepare, **settings) as victim:
        victim.wait(lambda: is_full(victim), "full volumes")
        rows = read_rows(victim)
        assert rows * 3000 > 3 << 20
        victim.job.checkpoint_now()  # lets the logs be trimmed: the job goes on by itself, up to the same point
        victim.wait(lambda: read_rows(victim) > rows, "room by a checkpoint")
        victim.wait(lambda: is_full(victim), "full volumes")

        def nothing_is_read() -> bool:
            before = read_rows(victim)
            victim.pass_time(1.0)
            return read_rows(victim) == before

        victim.wait(nothing_is_read, "sources that stand still")
        rows = read_rows(victim)
        volume.free()
        victim.wait(lambda: read_rows(victim) > rows + 1_000 and not victim.metrics["blocked"], "more rows")
        victim.kill_slot(1)
        victim.wait_for_failovers(1)
        victim.finish()
    assert_local(victim, 1)


@pytest.mark.long
def test_a_full_spill_volume_and_a_kill(spark: SparkSession, tmp_path: Path, volume: Volume) -> None:
    settings: dict[str, Any] = {"cache_memory_mb": 1, "checkpoint_interval": NO_CHECKPOINTS}
    with Victim(spark, tmp_path, word=long_word, prepare=volume.prepare, **settings) as victim:
        victim.wait(lambda: is_full(victim), "full volumes")
        victim.kill_slot(1)
        victim.wait_for_failovers(1)
        volume.free()
        victim.finish()
    assert_local(victim, 1)


@pytest.mark.long
def test_a_corrupt_spill_segment(spark: SparkSession, tmp_path: Path) -> None:
    """What cannot be sent again from the log is made again: its producer fails over as well."""
    chance = random.Random(3)
    with Victim(spark, tmp_path, word=long_word, cache_memory_mb=1, checkpoint_interval=NO_CHECKPOINTS) as victim:
        spilled = lambda slot: list(victim.work.glob(f"*/*slot-{slot}-*/log/*.segment"))  # noqa: E731
        victim.wait(lambda: all(len(spilled(slot)) > 2 for slot in range(3)), "spilled messages")
        for path in spilled(0):
            data = bytearray(path.read_bytes())
            for _ in range(20):
                data[chance.randrange(200, len(data))] ^= 0xFF
            with path.open("r+b") as file:
                file.write(data)
        victim.kill_slot(1)
        victim.wait(lambda: len(victim.job.recoveries()) >= 1, "the failover")
        victim.wait(lambda: any("numbers[0]" in r["subtasks"] for r in victim.job.recoveries()), "a failed producer")
        victim.finish()
    assert_local(victim, victim.metrics["failovers"])


# --- the filter of message IDs


@pytest.mark.long
def test_a_filter_that_is_wrong_once(spark: SparkSession, tmp_path: Path) -> None:
    """It takes a message for known that the cursor expects: the job rolls back, counts that, and stays exact."""
    wrong = tmp_path / "wrong"

    def mislead(slot: Slot) -> None:
        add, calls = MessageFilter.add, 0

        def misled(self: MessageFilter, epoch: int, channel: Any, seq: int, digest: int) -> int | None:
            nonlocal calls
            calls += 1
            if slot.index == 1 and calls > 100 and not wrong.exists():
                wrong.touch()
                add(self, epoch, channel, seq, digest)
            return add(self, epoch, channel, seq, digest)

        MessageFilter.add = misled  # type: ignore[method-assign]

    with Victim(spark, tmp_path, prepare=mislead) as victim:
        victim.wait(lambda: any(r["mode"] == "rollback" for r in victim.job.recoveries()), "the rollback")
        victim.wait_for_strength()
        metrics = victim.finish()
    assert metrics["message_ids"]["conflicts"] == 1
    assert_rolled_back(victim, "known to the filter, and the cursor of the channel expects it")


# --- the standby path


@pytest.mark.long
def test_deltas_torn_in_transit(spark: SparkSession, tmp_path: Path) -> None:
    """Cut, altered, doubled and dropped frames are noticed and sent again; what is staged is whole."""
    torn = tmp_path / "torn"
    torn.mkdir()

    def tear(slot: Slot) -> None:
        assert slot._failover is not None
        chance = random.Random(slot.index)
        standbys: Any = slot._failover.standbys
        send, counts = standbys._send, dict.fromkeys(("cut", "altered", "doubled", "dropped"), 0)

        def badly(peer: int, buffers: list[Any]) -> None:
            (message, payload), *_ = decode_frame(b"".join(buffers))
            assert message.kind is MessageKind.REPLICA
            frame, fault = bytearray(payload), chance.choice([*counts, *["none"] * 60])
            if fault == "cut":
                del frame[chance.randrange(1, len(frame)) :]
            elif fault == "altered":
                frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
            if fault != "dropped":
                for _ in range(2 if fault == "doubled" else 1):
                    send(peer, encode(message, bytes(frame)))
            if fault in counts:
                counts[fault] += 1
                (torn / str(slot.index)).write_text(json.dumps(counts))

        standbys._send = badly

    def faults() -> dict[str, int]:
        found = [json.loads(path.read_text() or "{}") for path in torn.iterdir()]
        return {name: sum(counts.get(name, 0) for counts in found) for name in ("cut", "altered", "doubled", "dropped")}

    with Victim(spark, tmp_path, prepare=tear) as victim:
        victim.wait(lambda: min(faults().values()) > 2, "frames of every kind of fault")
        for count in (1, 2):
            victim.wait_for_strength()
            victim.kill_slot(count)
            victim.wait_for_failovers(count)
        victim.finish()
    assert_local(victim, 2)
