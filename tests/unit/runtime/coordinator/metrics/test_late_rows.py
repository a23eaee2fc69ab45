"""Late rows: counted from 0, over restores, and named in a few warnings that say what to do."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from flinkplus.graph import JobGraph, Node
from flinkplus.operators.event_time.event_time import WithWatermark
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.keyed_rows import Process
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.generator import Generator
from tests.handles import copied
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.operators.operator_fakes import FakeState, context
from tests.unit.runtime.slot.subtasks.test_fused_watermarks import SCHEMA, Wires, exhaust, rows

NONE_LATE = {"late_rows": 0, "max_late_ms": 0, "rows_without_time": 0}


def graph() -> JobGraph:
    """source, marks | window, sink"""
    window = tumbling("window", (), "ts", 10, (Aggregate("n", "count"),))
    schema = window.output_schema(SCHEMA)
    drawn = JobGraph()
    drawn.add(Node("source", "source", Generator("source", lambda i: i, SCHEMA, 1, False), SCHEMA))
    drawn.add(Node("marks", "operator", WithWatermark("marks", "ts", 5), SCHEMA), 0)
    drawn.link(1, drawn.add(Node("window", "operator", window, schema)), ("ts",))
    drawn.add(Node("sink", "sink", DiscardSink("sink").bind(schema, "out"), schema), 2)
    return drawn.fuse()


def fused(vertex: int, saved: Any = None) -> FusedOperators:
    drawn = graph()
    operators = FusedOperators(drawn, drawn.vertices[vertex], 0, 1, 1, FakeState(), Wires(), lambda: 0, random.Random)
    operators.restore(copied(saved or {}))
    return operators


def test_late_rows_are_counted_where_watermarks_are_made() -> None:
    operators = fused(0)
    exhaust(operators.push(rows(100)))
    assert operators.counters()["marks"] == {**NONE_LATE, "rows_in": 1, "rows_out": 1}
    exhaust(operators.push(rows(95, 94, 200, 60)))
    assert operators.counters()["marks"] == {
        "late_rows": 2, "max_late_ms": 35, "rows_without_time": 0, "rows_in": 5, "rows_out": 5
    }  # fmt: skip


def test_late_rows_are_not_forgotten_by_a_restore() -> None:
    operators = fused(1)
    exhaust(operators.advance(100))
    assert operators.counters()["window"]["late_rows"] == 0
    exhaust(operators.push(rows(85, 99, 101)))
    again = fused(1, operators.stage(1))
    exhaust(again.push(rows(20)))
    counters = again.counters()["window"]
    assert (counters["late_rows"], counters["max_late_ms"], counters["rows_in"]) == (3, 80, 4)


def test_timers_that_come_too_late_are_counted() -> None:
    operator = Process("p", ("ts",), lambda key, row, ctx: ctx.event_timer(key), "n long", lambda *_: None)
    ctx = context(operator, SCHEMA, FakeState())
    instance = operator.create(ctx)
    list(instance.process(rows(5)))
    list(instance.on_watermark(10))
    assert ctx.metrics == {"late_timers": 0}
    list(instance.process(rows(9, 10, 11)))
    assert ctx.metrics == {"late_timers": 2}


def heartbeat(subtask: int, marks: int = 0, window: int = 0, late_ms: int = 0) -> dict[str, dict[str, Any]]:
    operators = {
        name: {"rows_in": 1, "rows_out": 1, "late_rows": late, "max_late_ms": late_ms}
        for name, late in (("marks", marks), ("window", window))
    }
    counters = {"busy_s": 0.0, "rows_out": 1, "keys": 0, "bytes": 0, "reads": 0, "operators": operators}
    return {f"window+sink[{subtask}]": counters}


def test_the_first_late_rows_are_named_and_then_a_few_more(caplog: pytest.LogCaptureFixture) -> None:
    figures = Figures(graph())
    with caplog.at_level(logging.WARNING, "flinkplus"):
        figures.update(heartbeat(0))
        assert caplog.messages == []
        figures.update(heartbeat(0, marks=1, late_ms=35))
        figures.update(heartbeat(1, window=2, late_ms=20))
        assert figures.operators()["window"]["max_late_ms"] == 35
        for late in (3, 150, 10**6, 10**7, 10**8, 10**9, 10**12):
            figures.update(heartbeat(1, window=late, late_ms=2000))
    assert caplog.messages[0].startswith("operator 'marks': 1 row came later than its delay of 5 ms allows;")
    assert "Use a delay of 40 ms" in caplog.messages[0]
    assert caplog.messages[1].startswith(
        "operator 'window' has dropped 2 rows that came too late, up to 35 ms before the watermark; raise the delay"
    )
    of_window = [message for message in caplog.messages if "'window'" in message]
    assert len(of_window) == 4 and "1,000,000 rows" in of_window[1]


def test_a_job_without_event_time_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    drawn = JobGraph()
    drawn.add(Node("source", "source", Generator("source", lambda i: i, SCHEMA, 1, False), SCHEMA))
    drawn.add(Node("sink", "sink", DiscardSink("sink").bind(SCHEMA, "out"), SCHEMA), 0)
    figures = Figures(drawn.fuse())
    counters = {"operators": {"source": {"rows_in": 0, "rows_out": 0, "late_rows": 1}}}
    with caplog.at_level(logging.WARNING, "flinkplus"):
        figures.update({"source+sink[0]": counters})
    assert caplog.messages == []
