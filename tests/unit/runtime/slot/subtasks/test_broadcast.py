"""Broadcast rows in slots of which one dies: all subtasks keep the same, and a promoted one what it had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flinkplus import StreamEnvironment
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import SCHEMA, Cluster

ROWS, RULES = 300, 60


def number(i: int) -> tuple[str, int]:
    return f"key-{i % 7}", i


def keep(rule: Any, ctx: Any) -> None:
    seen = ctx.broadcast_state("seen")
    seen["order"] = [*seen.get("order", []), rule.v]


def apply(row: Any, ctx: Any) -> Iterator[tuple[str, int, str]]:
    yield row.k, row.v, ",".join(map(str, ctx.broadcast_state("seen").get("order", [])))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def start(env: StreamEnvironment, seed: int) -> Cluster:
        made.append(Cluster(tmp_path, env.graph.fuse(), 3, seed, batch_rows=5))
        made[-1].deploy()
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_all_subtasks_keep_the_same_in_one_order(start: Callable[..., Cluster], seed: int) -> None:
    env = environment()
    rows = env.generate(number, schema=SCHEMA, count=ROWS, name="a")
    rules = env.generate(number, schema=SCHEMA, count=RULES, name="b")
    applied = rows.connect_broadcast(rules, apply, on_broadcast=keep, schema="k string, v long, seen string")
    applied.key_by("k").count(output="n", name="count").collect(name="out")
    cluster = start(env, seed)
    cluster.lose(1)
    cluster.kill(0)
    cluster.fail_over(cluster.hosted(0))
    table = cluster.finish().to_pydict()
    assert sorted(table["v"]) == list(range(ROWS))
    orders = sorted({tuple(map(int, filter(None, seen.split(",")))) for seen in table["seen"]}, key=len)
    for before, after in pairwise(orders):
        assert after[: len(before)] == before, "two subtasks have had broadcast rows in different orders"
    assert len(set(orders[-1])) == len(orders[-1]) and set(orders[-1]) <= set(range(RULES))
