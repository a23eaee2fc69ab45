"""Watermarks in the fused operators of a subtask: behind what they were made of, before what comes next, none twice."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flinkplus.graph import JobGraph, Node
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance
from flinkplus.operators.base.steps import StepBatches, separate
from flinkplus.operators.event_time.event_time import WithWatermark
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS, IDLE_MS
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.generator import Generator
from tests.handles import copied
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.operators.operator_fakes import FakeState

SCHEMA = pa.schema([("ts", pa.int64())])
Sent = list[tuple[int, Any]]


@dataclass(frozen=True)
class Firing(Operator):
    """Gives a row with each watermark, and passes on what it gets."""

    name: str
    hears_watermarks = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _Firing()


class _Firing(OperatorInstance):
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return (batch,)

    def on_watermark(self, watermark_ms: int) -> Iterable[pa.RecordBatch]:
        yield rows(-watermark_ms)

    def end(self) -> Iterable[pa.RecordBatch]:
        yield rows(0)


def rows(*times: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(times, pa.int64())], schema=SCHEMA)


class Wires:
    """What has left the subtask, by edge."""

    def __init__(self) -> None:
        self.sent: Sent = []

    def append(self, edge: int, batch: pa.RecordBatch) -> Iterator[None]:
        self.sent.append((edge, batch.column(0).to_pylist()))
        yield

    def append_together(self, edge: int, steps: StepBatches) -> list[Iterator[None]]:
        return [self.append(edge, batch) for step in separate(steps) for batch in step]

    def watermark(self, edge: int, watermark_ms: int) -> Iterator[None]:
        self.sent.append((edge, watermark_ms))
        yield

    def take(self) -> Sent:
        sent, self.sent = self.sent, []
        return sent


def graph_of(*operators: tuple[Operator, int, bool]) -> JobGraph:
    """A source, then operators: each with its parent, and whether there is an exchange before it; a sink behind."""
    graph = JobGraph()
    graph.add(Node("source", "source", Generator("source", lambda i: i, SCHEMA, 1, False), SCHEMA))
    for operator, parent, exchanged in operators:
        node = graph.add(Node(operator.name, "operator", operator, SCHEMA), None if exchanged else parent)
        if exchanged:
            graph.link(parent, node, ("ts",))
    graph.add(Node("sink", "sink", DiscardSink("sink").bind(SCHEMA, "out"), SCHEMA), len(operators))
    return graph.fuse()


def fused(
    graph: JobGraph, vertex: int, wires: Wires, saved: dict[str, Any] | None = None, state: Any = None
) -> FusedOperators:
    operators = FusedOperators(graph, graph.vertices[vertex], 0, 1, 1, state, wires, lambda: 0, random.Random)
    operators.restore(copied(saved or {}))
    return operators


def exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def test_a_watermark_follows_the_rows_it_was_made_of() -> None:
    graph = graph_of((WithWatermark("marks", "ts", 10), 0, False), (Firing("fires"), 1, True))
    wires = Wires()
    operators = fused(graph, 0, wires)
    exhaust(operators.push(rows(30, 20)))
    exhaust(operators.push(rows(25)))
    exhaust(operators.push(rows(31)))
    assert wires.take() == [(0, [30, 20]), (0, 20), (0, [25]), (0, [31]), (0, 21)]
    again = fused(graph, 0, wires, operators.stage(1))
    exhaust(again.push(rows(31)))
    exhaust(again.push(rows(40)))
    exhaust(again.end())
    assert wires.take() == [(0, [31]), (0, [40]), (0, 30)]


def test_event_time_does_not_go_back_behind_inputs_of_another_program() -> None:
    """An operator that has emitted up to 50 hears nothing of a watermark before that."""
    graph = graph_of((WithWatermark("marks", "ts", 0), 0, False), (Firing("fires"), 1, True), (Firing("last"), 2, True))
    wires = Wires()
    before = fused(graph, 1, wires)
    exhaust(before.advance(50))
    assert wires.take() == [(1, [-50]), (1, 50)]
    operators = fused(graph, 1, wires, before.stage(1))
    exhaust(operators.advance(40))
    assert wires.take() == []
    exhaust(operators.advance(60))
    assert wires.take() == [(1, [-60]), (1, 60)]


def test_what_an_operator_gives_comes_before_the_watermark() -> None:
    graph = graph_of(
        (WithWatermark("marks", "ts", 0), 0, False),
        (Firing("first"), 1, True),
        (Firing("second"), 2, False),
        (Firing("third"), 3, True),
    )
    wires = Wires()
    operators = fused(graph, 1, wires)
    exhaust(operators.push(rows(7)))
    exhaust(operators.advance(5))
    assert wires.take() == [(1, [7]), (1, [-5]), (1, [-5]), (1, 5)]
    exhaust(operators.end())
    assert wires.take() == [(1, [-END_OF_TIME_MS]), (1, [0]), (1, [-END_OF_TIME_MS]), (1, [0])]


def test_a_watermark_stays_behind_what_is_put_out() -> None:
    window = tumbling("window", (), "ts", 10, (Aggregate("n", "count"),))
    graph = JobGraph()
    graph.add(Node("source", "source", Generator("source", lambda i: i, SCHEMA, 1, False), SCHEMA))
    graph.add(Node("marks", "operator", WithWatermark("marks", "ts", 0), SCHEMA), 0)
    graph.link(1, graph.add(Node("window", "operator", window, window.output_schema(SCHEMA))), ("ts",))
    graph.link(2, graph.add(Node("fires", "operator", Firing("fires"), SCHEMA)), ("n",))
    graph.add(Node("sink", "sink", DiscardSink("sink").bind(SCHEMA, "out"), SCHEMA), 3)
    wires = Wires()
    operators = fused(graph.fuse(), 1, wires, state=FakeState())
    exhaust(operators.push(rows(1, 12, 19)))
    exhaust(operators.advance(25))
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    assert wires.take() == [(1, [start]), (1, [start + datetime.timedelta(milliseconds=10)]), (1, 15)]


def test_the_inputs_of_a_join_are_told_apart() -> None:
    left, right = (JoinSide(SCHEMA, ("ts",), "ts", prefix) for prefix in ("left_", "right_"))
    join = KeyedJoin("join", ("ts",), left, right, Bounds(0, 5))
    join.check()
    graph = JobGraph()
    for name in ("one", "two"):
        graph.add(Node(name, "source", Generator(name, lambda i: i, SCHEMA, 1, False), SCHEMA))
    graph.add(Node("join", "operator", join, SCHEMA))
    graph.link(0, 2, ("ts",))
    graph.link(1, 2, ("ts",))
    graph.add(Node("sink", "sink", DiscardSink("sink").bind(SCHEMA, "out"), SCHEMA), 2)
    operators = fused(graph.fuse(), 2, Wires(), state=FakeState())
    exhaust(operators.push(rows(7, 8), 0))
    exhaust(operators.push(rows(8, 9), 0))
    assert operators.nodes[2].rows_out == 0
    exhaust(operators.push(rows(8), 1))
    assert (operators.nodes[2].rows_in, operators.nodes[2].rows_out) == (5, 2)


def test_watermarks_end_where_others_are_made() -> None:
    graph = graph_of(
        (WithWatermark("marks", "ts", 0), 0, False),
        (Firing("fires"), 1, True),
        (WithWatermark("anew", "ts", 3), 2, False),
        (Firing("last"), 3, True),
    )
    wires = Wires()
    operators = fused(graph, 1, wires)
    exhaust(operators.advance(9))
    exhaust(operators.push(rows(20)))
    assert wires.take() == [(1, [-9]), (1, [20]), (1, 17)]


def test_nothing_is_sent_where_nobody_listens() -> None:
    graph = graph_of(
        (WithWatermark("marks", "ts", 0), 0, False),
        (WithWatermark("anew", "ts", 3), 1, True),
        (Firing("last"), 2, True),
    )
    wires = Wires()
    exhaust(fused(graph, 0, wires).push(rows(20)))
    assert wires.take() == [(0, [20])]
    assert [graph.hears_watermarks(edge) for edge in (0, 1)] == [False, True]
    assert [graph.has_watermarks(node) for node in range(5)] == [False, True, True, True, True]


def idle_after(operators: FusedOperators) -> int | None:
    return operators.idle_after_ms


def test_an_idle_source_says_so_once_and_its_watermark_counts_again_with_its_next_rows() -> None:
    marks = WithWatermark("marks", "ts", 0, 1, idle_after_ms=500)
    graph = graph_of((marks, 0, False), (Firing("fires"), 1, True))
    wires = Wires()
    operators = fused(graph, 0, wires)
    assert idle_after(operators) == 500
    exhaust(operators.become_idle())
    assert wires.take() == [(0, IDLE_MS)] and idle_after(operators) is None
    exhaust(operators.become_idle())
    assert wires.take() == []
    exhaust(operators.push(rows(7)))
    assert wires.take() == [(0, [7]), (0, 7)] and idle_after(operators) == 500
    exhaust(operators.become_idle())
    again = fused(graph, 0, wires, operators.stage(1))
    assert wires.take() == [(0, IDLE_MS)]
    for one in (operators, again):
        assert idle_after(one) is None, "it is a part of the snapshot"
        exhaust(one.push(rows(5)))
        assert wires.take() == [(0, [5]), (0, 7)], "no watermark rises, so the last one is sent once more"
        exhaust(one.push(rows(6)))
        assert wires.take() == [(0, [6])]
        exhaust(one.become_idle())
        exhaust(one.push(rows(9)))
        assert wires.take() == [(0, IDLE_MS), (0, [9]), (0, 9)]


def test_without_idle_after_a_source_is_never_idle() -> None:
    graph = graph_of((WithWatermark("marks", "ts", 0), 0, False), (Firing("fires"), 1, True))
    wires = Wires()
    operators = fused(graph, 0, wires)
    assert idle_after(operators) is None
    exhaust(operators.become_idle())
    assert wires.take() == []


def test_the_watermark_of_a_subtask_is_the_lowest_of_its_operators() -> None:
    graph = graph_of(
        (WithWatermark("marks", "ts", 10), 0, False), (Firing("first"), 1, True), (Firing("second"), 2, False)
    )
    assert fused(graph, 0, Wires()).watermark_ms is None, "nothing was read"
    made = fused(graph, 0, Wires())
    exhaust(made.push(rows(30)))
    assert made.watermark_ms == 20
    behind = fused(graph, 1, Wires())
    exhaust(behind.advance(5))
    assert behind.watermark_ms == 5
    exhaust(behind.end())
    assert behind.watermark_ms == 5, "the end of the input is no time"
