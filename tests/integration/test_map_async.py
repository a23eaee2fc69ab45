"""``map_async`` in jobs that lose slots: each row gets one answer, and all that is made of it has that one.

The service that is asked gives another answer to each call. Two sinks behind it, each by another key, so in other
subtasks, get every row: one that was asked again after the other had its answer would be different there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.integration.failover_jobs import SCHEMA, Victim

pytestmark = [pytest.mark.integration, pytest.mark.long]

CALLS = itertools.count()
ANSWERED = f"{SCHEMA}, count long, answer string"


def ask(row: Any) -> tuple[Any, ...]:
    time.sleep(random.random() * 0.02)
    return row.word, row.i, row["count"], f"{os.getpid()}-{next(CALLS)}"


async def ask_async(row: Any) -> tuple[Any, ...]:
    await asyncio.sleep(random.random() * 0.02)
    if row.i % 50 == 49:
        raise ConnectionError("no service for this one")
    return row.word, row.i, row["count"], f"{os.getpid()}-{next(CALLS)}"


class Asking(Victim):
    """Numbers are counted by word, answered, and go to two sinks by different keys."""

    dead = False

    def __init__(
        self, spark: SparkSession, path: Path, *, is_async: bool = True, in_order: bool = False, **options: Any
    ):
        self.dead = is_async

        def between(counted: Stream) -> Stream:
            answered = counted.map_async(
                ask_async if is_async else ask,
                schema=ANSWERED,
                timeout="10 seconds",
                in_order=in_order,
                capacity=20,
                on_error="dead-letter" if is_async else "fail",
                name="ask",
            )
            if is_async:
                answered.dead_letters().to_parquet(str(path / "dead"), name="dead")
            other = answered.with_column("k", "i % 5").key_by("k").count(output="so_far")
            other.to_parquet(str(path / "other"), name="other")
            return answered.key_by("word").count(output="again")

        super().__init__(spark, path, between=between, rate=500.0, **options)

    def check(self) -> None:
        path, parallelism = self.out.parent, self.job._running.coordinator.options.parallelism
        out, other = (pq.read_table(path / name).to_pydict() for name in ("out", "other"))
        dead = pq.read_table(path / "dead").to_pydict()["i"] if self.dead else []
        answers = dict(zip(out["i"], out["answer"], strict=True))
        assert len(answers) == len(out["i"]) and Counter(other["i"]) == Counter(out["i"])
        different = [i for i, answer in zip(other["i"], other["answer"], strict=True) if answers[i] != answer]
        assert not different, f"rows with two answers: {different[:5]}"
        assert len(set(answers.values())) == len(answers), "an answer was given to two rows"
        numbers = sorted([*out["i"], *dead])
        for index in range(parallelism):
            mine = [i for i in numbers if i % parallelism == index]
            assert mine == list(range(index, index + parallelism * len(mine), parallelism)), f"rows of source {index}"
        assert all(i % 50 == 49 for i in dead)
        for key in ("so_far", "again"):
            table, by = (other, "k") if key == "so_far" else (out, "word")
            seen: dict[Any, list[int]] = {}
            for value, count in zip(table[by], table[key], strict=True):
                seen.setdefault(value, []).append(count)
            assert all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in seen.values())


@pytest.mark.parametrize(
    "options",
    [
        {"in_order": False},
        {"in_order": True, "is_async": False},
        {"recovery": "partial"},
        {"recovery": "rollback"},
        {"checkpoint_mode": "unaligned", "in_order": True},
        {"checkpoint_interval": 2.0},
    ],
    ids=str,
)
def test_each_row_has_one_answer_when_slots_are_killed(spark: SparkSession, tmp_path: Path, options: Any) -> None:
    with Asking(spark, tmp_path, **options) as victim:
        for count, slot in enumerate((0, 1), 1):
            victim.wait_for_strength()
            victim.wait_for_checkpoints(1)
            victim.pass_time(0.3)
            victim.kill_slot(slot)
            victim.wait(lambda count=count: len(victim.job.recoveries()) >= count, f"{count} recoveries")  # type: ignore[misc]
        victim.wait_for_strength()
        metrics = victim.finish()
    if options.get("recovery") != "rollback":
        assert metrics["fallbacks"] == 0, metrics["fallback_reasons"]
    assert not list((tmp_path / "work").rglob("*.answers"))


class Job:
    """numbers | map_async | two sinks, in a checkpoint directory of its own."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, path

    def execute(self, count: int, resume: bool = False, **options: Any) -> Any:
        given = {"parallelism": 2, "checkpoint_interval": 0.3, "checkpoint_dir": self.path / "checkpoints"}
        env = StreamEnvironment(self.spark, **{**given, **options})
        rows = env.generate(lambda i: (f"w{i % 7}", i, 0), schema=f"{SCHEMA}, count long", count=count, name="numbers")
        rows = rows.throttle(400.0) if count else rows
        answered = rows.map_async(ask, schema=ANSWERED, in_order=False, capacity=30, name="ask")
        answered.key_by("word").count(output="again", name="words").to_parquet(self.path / "out", name="out")
        answered.to_parquet(self.path / "other", name="other")
        return env.execute("asking", resume=resume)

    def check(self, count: int) -> None:
        out, other = (pq.read_table(self.path / name).to_pydict() for name in ("out", "other"))
        assert sorted(out["i"]) == sorted(other["i"]) == list(range(count))
        assert dict(zip(out["i"], out["answer"], strict=True)) == dict(zip(other["i"], other["answer"], strict=True))


def test_a_driver_that_is_gone_another_parallelism_and_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    with job.execute(4_000) as handle:
        wait_for_checkpoint(handle, 2)
    with job.execute(4_000, resume=True, parallelism=3) as handle:
        assert handle.restored_from is not None
        wait_for_checkpoint(handle, 2)
        handle.rescale(1).await_done(PATIENCE_S)
        wait_for_checkpoint(handle, handle.metrics()["checkpoints_completed"] + 1)
    with job.execute(4_000, resume=True, parallelism=2) as handle:
        handle.await_finish(PATIENCE_S)
    job.check(4_000)
    wait_until(lambda: not list(tmp_path.rglob("*.answers")), "answers that no checkpoint needs are removed")
