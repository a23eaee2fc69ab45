"""Broadcast state in jobs that lose slots, are rescaled and resumed: all subtasks keep the same, in one order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint
from tests.integration.test_data_sources import kill_in_turn

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROWS, RULES = 6_000, 400


def keep(rule: Any, ctx: Any) -> None:
    state = ctx.broadcast_state("rules")
    state[rule.number % 10] = rule.number
    state["order"] = (state.get("order", (0, 0))[0] * 31 + rule.number) % 1_000_003, state.get("order", (0, 0))[1] + 1


def apply(row: Any, ctx: Any) -> Iterator[tuple[int, int, int, int]]:
    state = ctx.broadcast_state("rules")
    order, count = state.get("order", (0, 0))
    yield row.i, count, order, sum(state.get(key, 0) for key in range(10))


def execute(spark: SparkSession, path: Path, resume: bool = False, **options: Any) -> Any:
    given = {"parallelism": 2, "checkpoint_interval": 0.3, "checkpoint_dir": path / "checkpoints"}
    env = StreamEnvironment(spark, **{**given, **options})
    rows = env.generate(lambda i: i, schema="i long", count=ROWS, name="rows").throttle(500.0)
    rules = env.generate(lambda i: i, schema="number long", count=RULES, name="rules").throttle(40.0)
    applied = rows.connect_broadcast(
        rules, apply, on_broadcast=keep, schema="i long, count long, order long, total long", name="apply"
    )
    applied.to_parquet(path / "out", name="out")
    return env.execute("broadcast", resume=resume)


def check(path: Path) -> None:
    """Each row once; whichever subtask had it, the same number of rules means the same state; rules come one by one."""
    table = pq.read_table(path / "out").to_pydict()
    assert sorted(table["i"]) == list(range(ROWS))
    found = sorted(set(zip(table["count"], table["order"], table["total"], strict=True)))
    counts = [count for count, _, _ in found]
    assert len(set(counts)) == len(counts), "two subtasks have kept something else"
    assert all(before < after for before, after in pairwise(counts)) and counts[-1] > RULES // 4


@pytest.mark.parametrize("options", [{}, {"recovery": "rollback"}, {"recovery": "partial"}], ids=str)
def test_slots_are_killed(spark: SparkSession, tmp_path: Path, options: Any) -> None:
    with execute(spark, tmp_path, **options) as handle:
        kill_in_turn(handle, ("apply:0", "rules:1"))
        handle.await_finish(PATIENCE_S)
    check(tmp_path)


def test_any_copy_will_do_at_another_parallelism(spark: SparkSession, tmp_path: Path) -> None:
    with execute(spark, tmp_path) as handle:
        wait_for_checkpoint(handle, 2)
        handle.rescale(3).await_done(PATIENCE_S)
        wait_for_checkpoint(handle, handle.metrics()["checkpoints_completed"] + 1)
    with execute(spark, tmp_path, resume=True, parallelism=1) as handle:
        wait_for_checkpoint(handle, handle.metrics()["checkpoints_completed"] + 1)
    with execute(spark, tmp_path, resume=True, parallelism=2) as handle:
        handle.await_finish(PATIENCE_S)
    check(tmp_path)
