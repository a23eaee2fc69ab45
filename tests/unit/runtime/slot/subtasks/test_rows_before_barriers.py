"""Rows that operators hold back until a barrier, in the fused operators of a subtask and in its steps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from experiments.harness.one_process import OneProcess
from flinkplus.operators.keyed.latest import Emit
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from tests.unit.api.drawing import environment
from tests.unit.operators.operator_fakes import FakeState
from tests.unit.runtime.slot.subtasks.test_fused_watermarks import Wires, exhaust, fused

SCHEMA = pa.schema([("k", pa.int64())])


def rows(*keys: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], schema=SCHEMA)


def operators(emit: Emit, wires: Wires) -> FusedOperators:
    env = environment()
    source = env.generate(lambda i: i, schema="k long", name="source")
    counts = source.key_by("k").count(emit=emit, name="count")
    counts.key_by("count").count(output="n", name="behind").discard(name="out")
    return fused(env.graph.fuse(), 1, wires, state=FakeState())


def test_fused_operators_let_rows_go_when_a_barrier_is_to_be_sent() -> None:
    wires = Wires()
    held = operators("latest", wires)
    assert held.holds_to_barrier and not held.joins_steps
    exhaust(held.push(rows(1, 2, 1)))
    assert wires.take() == []
    exhaust(held.before_barrier())
    ((_, keys),) = wires.take()
    assert keys == [1, 2]
    assert held.counters()["count"]["rows_out"] == 2
    exhaust(held.push(rows(2)))
    exhaust(held.end())
    assert [keys for _, keys in wires.take()] == [[2]]


def test_without_such_an_operator_there_is_nothing_to_do() -> None:
    wires = Wires()
    every = operators("every", wires)
    assert not every.holds_to_barrier
    exhaust(every.push(rows(1, 1)))
    assert [keys for _, keys in wires.take()] == [[1, 1]]
    exhaust(every.before_barrier())
    assert wires.take() == []


def test_the_rows_of_a_step_precede_its_snapshot_and_the_barrier(tmp_path: Path) -> None:
    env = environment(parallelism=1)
    numbers = env.generate(lambda i: i % 3, schema="k long", count=30, name="numbers")
    numbers.key_by("k").count(emit="latest", name="count").key_by("count").count(output="n", name="behind").discard()
    job = OneProcess(env.graph.fuse(), env.options, tmp_path, standbys=False)
    try:
        source, count, behind = (job.subtasks[SubtaskId(vertex.name, 0)] for vertex in job.graph.vertices)
        while source.work.rows_counted < 30:
            source.run()
        while count.steps.runnable(1e9):
            count.run()
        assert count.work._operators.counters()["count"]["rows_out"] == 0
        source.steps.trigger(CheckpointId(1))
        for subtask in (source, count, behind):
            while subtask.steps.runnable(1e9):
                subtask.run()
        (found,) = [h.operator_state.operators for h in job.snapshots if "count" in h.operator_state.operators]
        assert found["count"].rows_out == 3
        assert behind.work._operators.counters()["behind"]["rows_in"] == 3
    finally:
        job.close()
