"""Rows that wait for answers from outside, in slots of which one dies. The outside answers every call differently.

What a promoted subtask makes again is compared with what its consumers have had: an answer other than the first one
would be found out (``Cluster`` fails then).
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus import StreamEnvironment
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import SCHEMA, Cluster

ROWS = 120
CALLS = itertools.count()


def number(i: int) -> tuple[str, int]:
    return f"key-{i * i % 37}", i


def ask(row: Any) -> tuple[str, int, int]:
    time.sleep(random.random() * 0.002)
    if row.v % 40 == 7:
        raise ConnectionError(f"nothing for {row.v}")
    return row.k, row.v, next(CALLS)


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


def asking(in_order: bool) -> StreamEnvironment:
    env = environment()
    rows = env.generate(number, schema=SCHEMA, count=ROWS, name="a").with_watermark("v", "1 second")
    answered = rows.map_async(
        ask, schema="k string, v long, call long", in_order=in_order, capacity=10, on_error="skip", name="ask"
    )
    answered.key_by("k").count(output="n", name="count").collect(name="out")
    return env


@pytest.mark.parametrize(("seed", "in_order"), [(0, False), pytest.param(1, True, marks=pytest.mark.long)])
def test_a_slot_dies(start: Callable[..., Cluster], tmp_path: Path, seed: int, in_order: bool) -> None:
    cluster = start(asking(in_order), seed)
    cluster.lose(1)
    cluster.kill(2 * seed)
    cluster.fail_over(cluster.hosted(2 * seed))
    table = cluster.finish().to_pydict()
    assert sorted(table["v"]) == [v for v in range(ROWS) if v % 40 != 7]
    assert max(Counter(table["call"]).values()) == 1
    for key in set(table["k"]):
        found = sorted((n, v) for k, n, v in zip(table["k"], table["n"], table["v"], strict=True) if k == key)
        assert [n for n, _ in found] == list(range(1, len(found) + 1))
    assert {path.parent.name for path in tmp_path.rglob("*.answers")} <= {"0", "1", "2"}
