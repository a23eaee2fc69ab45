"""Loops in real slots, of which one dies: what goes round is what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.examples.graphs import RandomGraph, rows_of
from flinkplus.examples.running import EXAMPLES
from tests.unit.api.drawing import environment
from tests.unit.runtime.slots_in_process import Cluster

GRAPH = RandomGraph(vertices=150, degree=3, seed=2)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def start(name: str, seed: int, **options: Any) -> Cluster:
        env = environment()
        EXAMPLES[name].draw(rows_of(env, GRAPH)).collect(name="out")
        made.append(Cluster(tmp_path, env.graph.fuse(), 3, seed, batch_rows=8, **options))
        made[-1].deploy()
        return made[-1]

    yield start
    for each in made:
        each.close()


def check(name: str, cluster: Cluster) -> None:
    columns = [column.to_pylist() for column in cluster.finish().columns]
    assert EXAMPLES[name].result(zip(*columns, strict=True)) == EXAMPLES[name].sequential(GRAPH.adjacency())


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", range(3))
def test_a_slot_dies(start: Callable[..., Cluster], name: str, seed: int) -> None:
    cluster = start(name, seed)
    cluster.lose(seed)
    check(name, cluster)


def test_two_slots_die_one_after_the_other(start: Callable[..., Cluster]) -> None:
    cluster = start("pagerank", 7)
    cluster.lose(0)
    cluster.join(0)
    cluster.lose(1)
    check("pagerank", cluster)
