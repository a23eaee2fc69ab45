"""Lists, maps, times to live and timers of the clock in functions, in a job whose slots are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from flinkplus.api.streams.stream import Stream
from tests.integration.failover_jobs import Victim
from tests.integration.test_failover import assert_local

pytestmark = [pytest.mark.integration, pytest.mark.long]

SCHEMA = "word string, i long, count long"
HELD_MS = 30
RATE = 600.0


def hold(key: str, row: Any, ctx: Any) -> None:
    """Rows wait in a list until a timer of the clock; each number comes once; what is put just now is there."""
    held, seen, last = ctx.list_state("held"), ctx.map_state("seen", ttl="1 hour"), ctx.state("last", ttl="1 hour")
    if held.is_empty():
        ctx.processing_timer(ctx.processing_time + HELD_MS)
    held.append(tuple(row))
    assert not seen.contains(row.i), f"{row.i} came twice"
    if row.count % 20 == 0:
        assert last.get(-1) in (-1, *seen.keys())
    seen.put(row.i, None)
    if row.count % 50 == 0:
        for number in list(seen.keys())[:-10]:
            if number != row.i:
                seen.remove(number)
    last.put(row.i)
    ctx.list_state("soon", ttl="50 ms").append(row.i)


def release(key: str, at_ms: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
    """All that wait."""
    held = ctx.list_state("held")
    yield from held.get()
    held.clear()


def between(stream: Stream) -> Stream:
    held = stream.key_by("word").process(hold, schema=SCHEMA, on_processing_timer=release, name="held")
    return held.key_by("word").count(output="place", name="place")


class Holder(StatefulProcessor):
    """As ``hold`` and ``release``, written for Spark."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.held = handle.getListState("held", SCHEMA)
        self.seen = handle.getMapState("seen", "i long", "n long", ttlDurationMs=3_600_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if not self.held.exists():
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HELD_MS)
        assert len(list(self.handle.listTimers())) == 1
        for row in rows:
            assert not self.seen.containsKey((row.i,)), f"{row.i} came twice"
            self.seen.updateValue((row.i,), (1,))
            self.held.appendValue(row)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        assert list(self.handle.listTimers()) == []
        yield from [Row(**dict(zip(("word", "i", "count"), each, strict=True))) for each in self.held.get()]
        self.held.clear()

    def close(self) -> None:
        pass


def processed(stream: Stream) -> Stream:
    held = stream.key_by("word").transform_with_state(Holder(), schema=SCHEMA, time_mode="processing_time", name="held")
    return held.key_by("word").count(output="place", name="place")


@pytest.mark.parametrize("between", [between, processed])
def test_slots_are_killed_one_after_the_other(spark: SparkSession, tmp_path: Path, between: Any) -> None:
    with Victim(spark, tmp_path, between=between, rate=RATE) as victim:
        for count, slot in enumerate((1, 0, 2), 1):
            victim.wait_for_strength()
            victim.kill_slot(slot)
            victim.wait_for_failovers(count)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, 3)


@pytest.mark.parametrize("between", [between, processed])
def test_a_rollback_begins_again_with_the_state_of_the_checkpoint(
    spark: SparkSession, tmp_path: Path, between: Any
) -> None:
    with Victim(spark, tmp_path, between=between, rate=RATE, recovery="rollback") as victim:
        victim.wait_for_strength()
        victim.kill_slot(1)
        victim.wait(lambda: victim.metrics["recoveries"] == 1, "the rollback")
        victim.wait_for_strength()
        victim.finish()
