"""Vertices with several inputs, and operators that read the clock, in slots of which one dies."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance
from flinkplus.runtime.slot.subtasks import subtask
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import SCHEMA, Cluster

ROWS = 1000


def number(i: int) -> tuple[str, int]:
    return f"key-{i * i % 37}", i


def other_number(i: int) -> tuple[str, int]:
    return number(i + ROWS)


def even_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("v"), 1), 0))


def sources(env: StreamEnvironment) -> tuple[Stream, Stream]:
    first = env.generate(number, schema=SCHEMA, count=ROWS, name="a")
    return first, env.generate(other_number, schema=SCHEMA, count=ROWS, name="b")


def to_the_keys(env: StreamEnvironment) -> Stream:
    a, b = sources(env)
    return a.union(b)


def over_an_operator(env: StreamEnvironment) -> Stream:
    a, b = sources(env)
    return a.union(b).map_batches(plainly, schema=SCHEMA)


def plainly(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def of_one_vertex(env: StreamEnvironment) -> Stream:
    a, b = sources(env)
    return a.union(a.map_batches(even_rows, schema=SCHEMA), b, b)


def expected(shape: Callable[[StreamEnvironment], Stream]) -> Counter[int]:
    rows = Counter(range(2 * ROWS))
    if shape is of_one_vertex:
        rows.update(range(0, ROWS, 2))
        rows.update(range(ROWS, 2 * ROWS))
    return rows


@dataclass(frozen=True)
class Sides(Operator):
    """Adds ``side``: which input a row came from."""

    name: str

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field("side", pa.int64()))

    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return SidesInstance()


class SidesInstance(OperatorInstance):
    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        raise AssertionError("nobody said which input")

    def process_input(self, position: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch.append_column("side", pa.array([position] * batch.num_rows))]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def start(env: StreamEnvironment, seed: int, batch_rows: int = 50) -> Cluster:
        made.append(Cluster(tmp_path, env.graph.fuse(), 3, seed, batch_rows=batch_rows))
        made[-1].deploy()
        return made[-1]

    yield start
    for each in made:
        each.close()


def check(table: pa.Table, rows: Counter[int]) -> None:
    assert Counter(table["v"].to_pylist()) == rows
    counts = defaultdict(list)
    for key, count in zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True):
        counts[key].append(count)
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), key


@pytest.mark.parametrize("shape", [to_the_keys, over_an_operator, of_one_vertex])
@pytest.mark.parametrize("seed", range(3))
def test_a_slot_dies(start, shape, seed):
    env = environment()
    shape(env).key_by("k").count(output="n", name="count").collect(name="out")
    cluster = start(env, seed)
    cluster.lose(1)
    check(cluster.finish(), expected(shape))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_dropped_by_the_clock_is_dropped_again(start, seed, monkeypatch):
    """Which rows are kept depends on the readings of a clock that nobody can read again. A promoted subtask that kept
    others would be found out: what it makes again is compared with what its consumers have had."""
    chance = random.Random(seed)
    clock = accumulate(iter(lambda: chance.randrange(4), None), initial=1_700_000_000_000)
    monkeypatch.setattr(subtask, "wall_ms", lambda: next(clock))
    env = environment()
    a, b = sources(env)
    kept = a.union(b).deduplicate("k", ttl="20 ms")
    kept.key_by("v").count(output="n", name="count").collect(name="out")
    cluster = start(env, seed, batch_rows=5)
    cluster.turns(15)
    assert not cluster.exhausted  # without a checkpoint: all is made again
    cluster.kill(seed)
    cluster.fail_over(cluster.hosted(seed))
    table = cluster.finish()
    assert set(table["n"].to_pylist()) == {1}
    assert len(set(table["k"].to_pylist())) < table.num_rows < 2 * ROWS


def test_an_operator_may_tell_its_inputs_apart(start):
    """Also where many messages are taken in one step: its vertex has no outputs."""
    env = environment()
    a, b = sources(env)
    a.union(b)._then(Sides("sides"), "forward").collect(name="out")
    table = start(env, 0).finish()
    assert sorted(zip(table["v"].to_pylist(), table["side"].to_pylist(), strict=True)) == [
        (v, v // ROWS) for v in range(2 * ROWS)
    ]
