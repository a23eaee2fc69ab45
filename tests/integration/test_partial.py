"""Partial recovery: what failed and its upstreams begin anew, nobody else does, and the output is exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.stream import Stream
from tests.integration.failover_jobs import Victim, word
from tests.integration.test_failover import assert_rolled_back
from tests.integration.test_failover_stages import assert_exact, two

pytestmark = pytest.mark.integration

SOURCES = [f"numbers[{index}]" for index in range(3)]
COUNTS = [f"count+bucket+side[{index}]" for index in range(3)]
PLACES = [f"place+out[{index}]" for index in range(3)]


def assert_partial(victim: Victim, failovers: int) -> None:
    """All failures were recovered from by a part of the graph."""
    metrics = victim.metrics
    assert (metrics["failovers"], metrics["fallbacks"]) == (failovers, 0), metrics["fallback_reasons"]
    recoveries = victim.job.recoveries()
    assert [r["mode"] for r in recoveries] == ["partial"] * failovers
    for recovery in recoveries:
        for phase in ("fence_ms", "promote_ms", "restore_ms", "replay_ms", "recovery_ms", "caught_up_ms"):
            assert recovery[phase] is not None and 0 <= recovery[phase] < 60_000, (phase, recovery)


def incarnations(trace: Path, subtasks: Collection[str] = PLACES) -> dict[str, list[int]]:
    """The generations in which each of ``subtasks`` has put something out, as their slots have noted it."""
    found: dict[str, list[int]] = defaultdict(list)
    for path in trace.glob("*.trace"):
        name, _, rest = unquote(path.name).rpartition("@")
        if name in subtasks:
            found[name].append(int(rest.partition("-")[0]))
    return {name: sorted(generations) for name, generations in found.items()}


def is_first(flag: Path) -> bool:
    """Whether nobody has been here before, in any process."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_only_upstreams_go_back_with_what_fails(spark: SparkSession, tmp_path: Path) -> None:
    """A source throws, then a subtask in the middle; then a slot is killed, and its work goes home. The stage in the
    middle has a sink as well: some of its subtasks go back, with what they have staged, though nothing is wrong with
    them."""
    source_raised, may_raise, raised = (tmp_path / name for name in ("source-raised", "may-raise", "raised"))
    trace, side = tmp_path / "trace", tmp_path / "side"

    def source_fails(i: int) -> str:
        if i == 2_500 and is_first(source_raised):
            raise OSError("a passing trouble")
        return word(i)

    def middle_fails(row: Any) -> Any:
        if row["i"] % 50 == 0 and may_raise.exists() and is_first(raised):
            raise OSError("a passing trouble")
        return row["word"], row["i"], row["count"], row["i"] % 7

    def between(stream: Stream) -> Stream:
        counted = stream.map(middle_fails, schema="word string, i long, count long, bucket long", name="bucket")
        counted.to_parquet(str(side), name="side")
        return counted.key_by("bucket").count(output="place", name="place")

    with Victim(
        spark, tmp_path, recovery="partial", word=source_fails, between=between, trace_output=str(trace)
    ) as victim:
        victim.wait_for_failovers(1)
        victim.wait(lambda: all(r["caught_up_ms"] is not None for r in victim.job.recoveries()), "new output")
        may_raise.touch()
        victim.wait_for_failovers(2)
        victim.wait(lambda: all(r["caught_up_ms"] is not None for r in victim.job.recoveries()), "new output")
        victim.wait_for_checkpoints(1)
        first, second = victim.job.recoveries()
        assert first["restarted"] == first["subtasks"] == [f"numbers[{2_500 % 3}]"]
        (middle,) = second["subtasks"]
        assert middle in COUNTS and second["restarted"] == sorted([middle, *SOURCES])
        assert incarnations(trace) == {name: [1] for name in PLACES}, "what is downstream has never been touched"
        victim.job.kill("count:1")
        victim.wait_for_failovers(3)
        victim.wait(lambda: all(r["caught_up_ms"] is not None for r in victim.job.recoveries()), "new output")
        victim.wait_for_strength()
        victim.finish()
    assert_partial(victim, 3)
    assert_exact(victim, 2)
    columns = ["word", "i", "count", "bucket"]
    rows, at_the_side = (pq.read_table(path, columns=columns).to_pylist() for path in (victim.out, side))
    assert sorted(map(str, rows)) == sorted(map(str, at_the_side))
    third = victim.job.recoveries()[2]
    assert third["subtasks"] == [COUNTS[1], SOURCES[1], PLACES[1]]
    assert third["restarted"] == sorted([*SOURCES, *COUNTS, PLACES[1]])
    assert incarnations(trace)[PLACES[0]] == incarnations(trace)[PLACES[2]] == [1], "they ran from the start to the end"
    assert len(incarnations(trace)[PLACES[1]]) == 3 and victim.metrics["handovers"] == 1


@pytest.mark.long
def test_two_slots_are_lost_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """The second while the first is being recovered from, or before, or after."""
    with Victim(spark, tmp_path, recovery="partial", between=two, parallelism=4, rate=2_000.0) as victim:
        victim.kill_slot(0)
        victim.kill_slot(3)
        victim.wait(lambda: not victim.strong, "the loss")
        victim.wait_for_strength()
        victim.finish()
    assert_partial(victim, victim.metrics["failovers"])
    assert_exact(victim, 2)


@pytest.mark.long
def test_the_loss_of_every_slot_is_a_rollback(spark: SparkSession, tmp_path: Path) -> None:
    with Victim(spark, tmp_path, recovery="partial", parallelism=2) as victim:
        victim.kill_slot(0)
        victim.kill_slot(1)
        victim.wait(lambda: victim.metrics["fallbacks"] == 1, "the rollback")
        victim.wait_for_strength()
        victim.finish()
    assert_rolled_back(victim, "no slot for")
