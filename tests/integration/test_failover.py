"""Kills of slots: whoever dies, and whenever, standbys go on, and the output is exact. Real processes, real SIGKILL."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus.protocol.vocabulary.phases import DURATIONS
from tests.integration.failover_jobs import NO_CHECKPOINTS, Victim, side_by_side

pytestmark = pytest.mark.integration


def assert_local(victim: Victim, failovers: int) -> None:
    """All failures were recovered from by failover."""
    metrics = victim.metrics
    assert (metrics["failovers"], metrics["fallbacks"]) == (failovers, 0), metrics["fallback_reasons"]
    recoveries = victim.job.recoveries()
    assert [r["mode"] for r in recoveries] == ["standby"] * failovers
    assert all(r["fallback"] is None for r in recoveries)


def assert_rolled_back(victim: Victim, reason: str) -> None:
    """There was one rollback, for ``reason``."""
    metrics = victim.metrics
    assert metrics["fallbacks"] == 1 and reason in metrics["fallback_reasons"][0], metrics["fallback_reasons"]
    rollbacks = [r for r in victim.job.recoveries() if r["mode"] == "rollback"]
    assert len(rollbacks) == 1 and reason in rollbacks[0]["fallback"]


@pytest.mark.long  # the experiment on exactness kills them as well
@pytest.mark.parametrize(("transport", "kills"), [("tcp", 3), ("grpc", 3)])
def test_heads_are_killed_again_and_again(spark: SparkSession, tmp_path: Path, transport: str, kills: int) -> None:
    """Redundancy comes back each time, and so does the work: the next kill is like the first."""
    chance = random.Random(1)
    victims = [chance.randrange(3) for _ in range(kills)]
    with Victim(spark, tmp_path, transport=transport) as victim:
        for count, slot in enumerate(victims, 1):
            victim.wait_for_strength()
            before = victim.job.slot_pids()
            victim.job.kill(f"count:{slot}")
            victim.wait_for_failovers(count)
            after = victim.job.slot_pids()
            assert {s for s in after if after[s] != before[s]} <= {slot}
        victim.wait_for_strength()
        assert victim.metrics["handovers"] == len(victims)
        victim.finish()
    assert_local(victim, len(victims))
    for recovery in victim.job.recoveries():
        assert recovery["failure"] == "slot"
        assert {name.partition("[")[0] for name in recovery["subtasks"]} == {"numbers", "count+out"}
        for phase in (*DURATIONS, "recovery"):
            assert recovery[f"{phase}_ms"] is not None and 0 <= recovery[f"{phase}_ms"] < 60_000


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kills_at_random_times(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Whatever state the last kill has left the job in. Too many at once may need a rollback; it is exact as well."""
    chance = random.Random(seed)
    with Victim(spark, tmp_path, replicas=2, failback=chance.choice(["auto", "never"])) as victim:
        for _ in range(4):
            victim.pass_time(chance.uniform(0.0, 1.0))
            victim.job.kill(f"{chance.choice(['numbers', 'count'])}:{chance.randrange(3)}")
        metrics = victim.finish()
    assert metrics["fallbacks"] <= metrics["recoveries"]


@pytest.mark.long
def test_a_slot_that_holds_only_standbys(spark: SparkSession, tmp_path: Path) -> None:
    """Tail or successor: nobody is promoted, and the chains are filled up again. Work stays where it went."""
    with Victim(spark, tmp_path, failback="never") as victim:
        victim.wait_for_strength()
        victim.kill_slot(1)
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        assert all(members[-1] == 1 for members in victim.protocol.chains.values())
        victim.kill_slot(1)
        victim.wait(lambda: not victim.strong, "the loss of the tail")
        victim.wait_for_strength()
        assert victim.metrics["failovers"] == 1
        victim.kill_slot(0)
        victim.wait_for_failovers(2)
        victim.wait_for_strength()
        assert all(members == (2, 1, 0) for members in victim.protocol.chains.values())
        victim.kill_slot(1)
        victim.wait(lambda: not victim.strong, "the loss of the successor")
        victim.wait_for_strength()
        assert all(members == (2, 0, 1) for members in victim.protocol.chains.values())
        victim.kill_slot(2)
        victim.wait_for_failovers(3)
        victim.finish()
    assert_local(victim, 3)
    assert victim.metrics["handovers"] == 0


def distinct_word(i: int) -> str:
    """So that the state grows with the rows, and packing does not make it small."""
    return hashlib.sha256(str(i).encode()).hexdigest()


@pytest.mark.long
def test_a_slot_that_comes_back_keeps_the_files_that_are_right(spark: SparkSession, tmp_path: Path) -> None:
    """One file of the dead process is damaged: that one alone is sent again. Then all that slot is promoted."""
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": NO_CHECKPOINTS, "failback": "never"}
    with Victim(spark, tmp_path, word=distinct_word, **options) as victim:
        figures = victim.job._running.coordinator.figures

        def copies() -> dict[Path, int]:
            """Sizes of the state files that slot 1 has a copy of."""
            return {path: path.stat().st_size for path in victim.work.glob("*/*-slot-1-*/*/replica/*.sst")}

        victim.wait(lambda: victim.metrics["operators"]["numbers"]["rows_out"] >= 2_000, "some state")
        first = victim.metrics["last_checkpoint"]
        victim.job.checkpoint_now()
        victim.wait(lambda: victim.metrics["last_checkpoint"] > first, "a checkpoint with some state")
        newest = victim.metrics["last_checkpoint"]
        victim.wait(lambda: victim.strong and victim.protocol.all_have(newest), "copies of the newest version")
        process = victim.job.slot_pids()[1]
        os.kill(process, signal.SIGSTOP)
        before = copies()
        largest = max(before, key=before.__getitem__)
        with largest.open("r+b") as file:
            file.seek(before[largest] // 2)
            file.write(b"not what was there")
        os.kill(process, signal.SIGKILL)
        victim.wait_for_failovers(1)
        victim.wait(lambda: victim.job.slot_pids().get(1, process) != process, "the slot is back")
        victim.wait(lambda: victim.strong and victim.protocol.all_have(newest), "copies of the newest version again")
        after = copies()
        assert {path.name for path in after} <= {path.name for path in before}, "no checkpoint has come between"

        def newest_report() -> dict[str, int]:
            reports = {process: copied for process, copied in figures._copied.items() if process[0] == 1}
            return reports[max(reports)] if reports else {}

        victim.wait(lambda: sum(newest_report().values()) == sum(after.values()), "a report of the copies")
        kept = sum(after.values()) - before[largest]
        assert newest_report() == {"received": before[largest], "from_storage": 0, "kept": kept} and kept > 0
        victim.kill_slot(0)
        victim.wait_for_failovers(2)
        assert set(victim.protocol.heads.values()) == {1}
        assert victim.finish()["copied_bytes"]["kept"] >= kept
    assert_local(victim, 2)


@pytest.mark.long
def test_a_standby_is_killed_while_it_is_promoted(spark: SparkSession, tmp_path: Path) -> None:
    variants = [{"faults": (f"{point}:count[0]",)} for point in ("promotion", "promoted")]
    with side_by_side(spark, tmp_path, variants, Victim) as victims:
        told = []
        for victim in victims:
            victim.wait_for_strength()
            told.append((victim.chain("count[0]")[1], victim.job.slot_pids()))
            victim.kill_slot(0)
        for victim, (successor, before) in zip(victims, told, strict=True):
            victim.wait_for_failovers(1)
            victim.wait_for_strength()
            after = victim.job.slot_pids()
            assert {slot for slot in after if after[slot] != before[slot]} == {0, successor}
            victim.finish()
    for victim in victims:
        assert_local(victim, victim.metrics["failovers"])


@pytest.mark.long
def test_a_slot_is_killed_whenever_it_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """As soon as it has registered, while it catches up, when it has just got its work back."""
    with Victim(spark, tmp_path) as victim:
        victim.wait_for_strength()
        victim.kill_slot(1)
        for member in (False, True):
            victim.wait(lambda: 1 not in victim.job.slot_pids(), "the loss of the slot")
            victim.wait(lambda: 1 in victim.job.slot_pids(), "the slot is back")
            if member:
                victim.wait(lambda: 1 in victim.chain("count[0]"), "it is in a chain")
            victim.kill_slot(1)
        victim.wait(lambda: 1 not in victim.job.slot_pids(), "the loss of the slot")
        victim.wait(lambda: victim.metrics["handovers"] >= 1, "the work goes back")
        victim.kill_slot(1)
        victim.wait_for_failovers(2)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, 2)
    assert victim.metrics["handovers"] == 2


@pytest.mark.long
def test_two_heads_of_one_chain_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """The third member of each chain takes over, and has all the work."""
    with Victim(spark, tmp_path) as victim:
        victim.wait_for_strength()
        victim.kill_slot(0)
        victim.kill_slot(1)
        victim.wait(
            lambda: victim.metrics["failovers"] >= 1 and set(victim.protocol.heads.values()) == {2}, "promotion"
        )
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, victim.metrics["failovers"])


@pytest.mark.long
def test_two_heads_of_different_chains_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with Victim(spark, tmp_path, parallelism=4, replicas=2, placement="near") as victim:
        victim.wait_for_strength()
        assert set(victim.chain("count[0]")).isdisjoint(victim.chain("count[2]"))
        victim.kill_slot(0)
        victim.kill_slot(2)
        victim.wait(
            lambda: {(victim.chain(f"count[{i}]") or (i,))[0] for i in (0, 2)} == {1, 3}, "both successors' promotion"
        )
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, victim.metrics["failovers"])


@pytest.mark.long
def test_all_members_of_a_chain_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Only a rollback is left; after it, failover is local again."""
    with Victim(spark, tmp_path, parallelism=4, replicas=2, placement="near") as victim:
        victim.wait_for_strength()
        for slot in victim.chain("count[1]"):
            victim.kill_slot(slot)
        victim.wait(lambda: victim.metrics["fallbacks"] == 1, "the rollback")
        victim.wait_for_strength()
        failovers = victim.metrics["failovers"]
        victim.kill_slot(0)
        victim.wait_for_failovers(failovers + 1)
        victim.finish()
    assert_rolled_back(victim, "no standby of")


@pytest.mark.long
def test_all_slots_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with Victim(spark, tmp_path) as victim:
        victim.wait_for_strength()
        for slot in range(3):
            victim.kill_slot(slot)
        victim.wait(lambda: victim.metrics["fallbacks"] == 1, "the rollback")
        victim.wait_for_strength()
        victim.finish()
    assert_rolled_back(victim, "no standby of")


@pytest.mark.long
def test_few_slots_and_few_replicas(spark: SparkSession, tmp_path: Path) -> None:
    few = [(1, 3), (2, 1), (2, 3)]
    variants = [{"parallelism": parallelism, "replicas": replicas} for parallelism, replicas in few]
    with side_by_side(spark, tmp_path, variants, Victim) as victims:
        for (parallelism, _), victim in zip(few, victims, strict=True):
            victim.wait_for_strength()
            victim.kill_slot(parallelism - 1)
        for victim in victims:
            victim.wait(lambda victim=victim: victim.metrics["recoveries"] == 1, "the failure")  # type: ignore[misc]
            victim.wait_for_strength()
            victim.finish()
    for (parallelism, replicas), victim in zip(few, victims, strict=True):
        if min(parallelism, replicas) > 1:
            assert_local(victim, 1)
        else:
            assert [r["mode"] for r in victim.job.recoveries()] == ["rollback"]
            assert victim.metrics["failovers"] == 0


def test_a_hung_slot(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing breaks, but it is silent: in ZooKeeper, for the coordinator, and when it is to fence."""
    with Victim(spark, tmp_path, session_timeout=2.0, heartbeat_timeout=4.0, hang_timeout=None) as victim:
        victim.wait_for_strength()
        victim.signal_slot(2, signal.SIGSTOP)
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.signal_slot(2, signal.SIGSTOP)
        victim.kill_slot(0)
        victim.wait(
            lambda: victim.metrics["failovers"] >= 2 and set(victim.protocol.heads.values()) == {1}, "promotion"
        )
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, victim.metrics["failovers"])
