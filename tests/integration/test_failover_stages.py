"""Several keyed stages in a row: a lost slot takes producers and their consumers with it, and none of it rolls back.

Every stage but the first depends on the order in which it takes its input: it numbers the rows of a key. What a stage
gives a row decides where the row goes next, so that two histories which disagree anywhere leave gaps or doubles.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.stream import Stream
from tests.integration.failover_jobs import Victim
from tests.integration.test_failover import assert_local, assert_rolled_back

pytestmark = pytest.mark.integration

BUCKETS, GROUPS = 7, 5
IN_BUCKET = "word string, i long, count long, bucket long"
IN_GROUP = "word string, i long, count long, bucket long, place long, `group` long"


def with_bucket(row: Any) -> Any:
    return row["word"], row["i"], row["count"], row["i"] % BUCKETS


def with_group(row: Any) -> Any:
    return row["word"], row["i"], row["count"], row["bucket"], row["place"], row["place"] % GROUPS


def two(stream: Stream) -> Stream:
    """Count words; number the rows of each bucket."""
    return stream.map(with_bucket, schema=IN_BUCKET, name="bucket").key_by("bucket").count(output="place", name="place")


def three(stream: Stream) -> Stream:
    """And number the rows of each group, which the place in the bucket decides."""
    return two(stream).map(with_group, schema=IN_GROUP, name="group").key_by("group").count(output="rank", name="rank")


def assert_numbered(victim: Victim, key: str, number: str) -> None:
    """Of each key, the rows are numbered 1, 2, ..., each once."""
    table = pq.read_table(victim.out)
    numbers = defaultdict(list)
    for name, found in zip(table.column(key).to_pylist(), table.column(number).to_pylist(), strict=True):
        numbers[name].append(found)
    for name, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"{number} in {key} {name}"


def assert_exact(victim: Victim, stages: int) -> None:
    assert_numbered(victim, "bucket", "place")
    if stages == 3:
        assert_numbered(victim, "group", "rank")
        table = pq.read_table(victim.out)
        for place, group in zip(table.column("place").to_pylist(), table.column("group").to_pylist(), strict=True):
            assert group == place % GROUPS


@pytest.mark.long
def test_a_lost_slot_never_costs_a_rollback(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(3)
    kills = 3
    with Victim(spark, tmp_path, between=three) as victim:
        for count in range(1, kills + 1):
            victim.wait_for_strength()
            victim.pass_time(chance.uniform(0.0, 0.4))
            victim.kill_slot(chance.randrange(3))
            victim.wait_for_failovers(count)
        victim.wait_for_strength()
        metrics = victim.finish()
    assert_local(victim, kills)
    assert_exact(victim, 3)
    assert all(len(r["subtasks"]) == 4 for r in victim.job.recoveries())
    assert 0 < metrics["determinant_bytes"] < metrics["payload_bytes"]


@pytest.mark.long  # the experiment on exactness has such failures
def test_two_slots_are_lost_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Two of four: of every stage, half the subtasks go, with producers and consumers of each other among them."""
    with Victim(spark, tmp_path, between=three, parallelism=4, rate=2_000.0) as victim:
        for slots, apart_s in (((0, 1), 0.0), ((1, 3), 0.05)):
            victim.wait_for_strength()
            victim.kill_slot(slots[0])
            victim.pass_time(apart_s)
            victim.kill_slot(slots[1])
            victim.wait(lambda: not victim.strong, "the loss")
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, victim.metrics["failovers"])
    assert_exact(victim, 3)


@pytest.mark.long
def test_a_lost_slot_rolls_back_when_determinants_go_one_channel_far(spark: SparkSession, tmp_path: Path) -> None:
    with Victim(spark, tmp_path, between=two, sharing_depth=1) as victim:
        victim.wait_for_strength()
        victim.kill_slot(1)
        victim.wait(lambda: victim.metrics["fallbacks"] == 1, "the rollback")
        victim.wait_for_strength()
        victim.finish()
    assert_rolled_back(victim, "and it failed with it")
    assert_exact(victim, 2)
