"""What a function may depend on: the clock and the random numbers of its step are repeated; others are found out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.stream import Stream
from flinkplus.operators.keyed.functions.context import ProcessContext
from tests.integration.failover_jobs import Victim
from tests.integration.test_failover import assert_local, assert_rolled_back

pytestmark = pytest.mark.integration

SCHEMA = "word string, i long, count long, `when` double, chance double"


def told(now: Callable[[ProcessContext], float], chance: Callable[[ProcessContext], float]) -> Callable[..., Any]:
    """Gives each row a time and a number."""

    def function(key: str, row: Any, ctx: ProcessContext) -> Iterator[tuple[Any, ...]]:
        yield row["word"], row["i"], row["count"], now(ctx), chance(ctx)

    return function


def between(function: Callable[..., Any]) -> Callable[[Stream], Stream]:
    """A stage that has consumers which live on when it dies: they tell whether it does the same again."""
    return lambda stream: (
        stream.key_by("i")
        .process(function, schema=SCHEMA, name="told")
        .key_by("word")
        .count(output="place", name="place")
    )


def of_the_step(ctx: ProcessContext) -> float:
    return ctx.now()


def drawn(ctx: ProcessContext) -> float:
    return ctx.random()


@pytest.mark.long
def test_the_clock_and_the_random_numbers_of_a_step_fail_over(spark: SparkSession, tmp_path: Path) -> None:
    begun = time.time()
    with Victim(spark, tmp_path, between=between(told(of_the_step, drawn)), dedup_error_rate=0.999999) as victim:
        for count, slot in enumerate((1, 0, 2), 1):
            victim.wait_for_strength()
            victim.kill_slot(slot)
            victim.wait_for_failovers(count)
        victim.wait_for_strength()
        metrics = victim.finish()
    assert_local(victim, 3)
    table = pq.read_table(victim.out)
    assert begun - 1 <= min(table.column("when").to_pylist()) <= max(table.column("when").to_pylist()) <= time.time()
    chances = table.column("chance").to_pylist()
    assert len(set(chances)) == len(chances) and 0.45 < sum(chances) / len(chances) < 0.55
    ids = metrics["message_ids"]
    assert ids["maybe"] > 0.5 * ids["chunks"] > 0, "the Bloom filter was to rule nothing out"
    assert ids["stored"] > 0 and ids["fetched"] > 0 and ids["conflicts"] == 0, "RocksDB decides in its place"


@pytest.mark.parametrize(
    ("now", "chance"),
    [
        pytest.param(of_the_step, lambda ctx: random.random(), id="random", marks=pytest.mark.long),
        pytest.param(lambda ctx: time.time(), drawn, id="clock", marks=pytest.mark.long),
    ],
)
def test_others_are_found_out_and_rolled_back(spark: SparkSession, tmp_path: Path, now: Any, chance: Any) -> None:
    with Victim(spark, tmp_path, between=between(told(now, chance))) as victim:
        victim.wait_for_strength()
        victim.kill_slot(1)
        victim.wait(lambda: victim.metrics["fallbacks"] >= 1, "a rollback")
        victim.wait_for_checkpoints()
        victim.finish()
    assert_rolled_back(victim, "NondeterministicOperator")
    assert "told" in victim.metrics["fallback_reasons"][0]
