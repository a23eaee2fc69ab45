"""What a promoted subtask makes again is what its predecessor made, wherever its neighbours were before and are now.

Messages within a slot are handed over, others travel. Whether one did either must not show in what is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import Cluster

ROWS = 12_000
BATCH_ROWS = 1400
"""A third of it is few rows, which travel plain; what some operators make of them is many."""
SCHEMA = "word string, number long, score long, text string, other string"


def row(i: int) -> tuple[str, int, int, str, str | None]:
    return f"word-{i * i % 37}", i, i // 2, str(i), None if i % 5 == 0 else f"value-{i % 11}"


def ranked(stream: Stream) -> Stream:
    """More rows than it takes, with the key column as it came."""
    return stream.key_by("word").top(8, by="score", item="number", name="best").key_by("rank").count(name="place")


def counted(stream: Stream) -> Stream:
    """All columns as they came, and one more."""
    return stream.key_by("word").count(name="place").gather().count(name="all", output="at")


def deduplicated(stream: Stream) -> Stream:
    """Some of the rows, as they came."""
    once = stream.key_by("word").count(name="place").deduplicate("text", name="once")
    return once.gather().count(name="all", output="at")


def of_both(stream: Stream) -> Stream:
    counted = stream.key_by("word").count(name="place")
    return counted.union(counted).gather().count(name="all", output="at")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def start(env: StreamEnvironment, seed: int, **options: Any) -> Cluster:
        made.append(Cluster(tmp_path, env.graph.fuse(), 3, seed, **options))
        made[-1].deploy()
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("shape", [ranked, counted, deduplicated, of_both])
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_nobody_is_found_to_be_another(start, shape, seed):
    """Each subtask has consumers that live on, in its slot and in others, and compare."""
    env = environment()
    shape(env.generate(row, schema=SCHEMA, count=ROWS, name="rows")).collect(name="out")
    cluster = start(env, seed, batch_rows=BATCH_ROWS)
    workers = [s for s in cluster.subtasks if not cluster.graph.vertex_of(s.vertex).is_source]
    for subtask in cluster.random.sample(workers, len(workers)):
        cluster.turns(cluster.random.randint(1, 6))
        cluster.fail_over([subtask], moves={subtask: (cluster.assignment[subtask] + 1) % 3})
    table: pa.Table = cluster.finish()
    assert table.num_rows >= ROWS
