"""What ``iterate`` draws, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.api.streams.stream import Stream
from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.job.checks import check_loops, recovery_of
from tests.unit.api.drawing import environment, numbers, shape

FORWARD = ("forward", ())
BY_KEY = ("hash", ("k",))


def counted(rows: Stream) -> Stream:
    return rows.key_by("k").count(output="n", name="count")


def back(rows: Stream, name: str = "back") -> Stream:
    return rows.map(lambda row: row[:2], schema="k string, v long", name=name)


def loop(rows: Stream) -> tuple[Stream, Stream]:
    counts = counted(rows)
    return back(counts), counts


def test_the_feedback_leads_back_to_the_head_and_the_output_out() -> None:
    env = environment()
    numbers(env, "a").iterate(loop, name="loop").key_by("k").count(name="total").discard(name="out")
    assert shape(env.graph) == [
        ("a", []),
        ("loop", [("a", *FORWARD), ("count+back", *FORWARD)]),
        ("count+back", [("loop", *BY_KEY)]),
        ("total+out", [("count+back", *BY_KEY)]),
    ]
    cycles = env.graph.cycles()
    assert cycles.loop_heads == ("loop",)
    assert cycles.back_edges == {2}
    assert [env.graph.producer_vertex(edge).name for edge in sorted(cycles.inner_edges)] == ["loop", "count+back"]


def test_a_loop_of_one_vertex() -> None:
    env = environment()
    out = numbers(env, "a").iterate(lambda rows: (back(rows), rows.filter(lambda row: row.v == 1, name="ones")))
    out.discard(name="out")
    assert shape(env.graph) == [
        ("a", []),
        ("iterate+back+ones+out", [("a", *FORWARD), ("iterate+back+ones+out", *FORWARD)]),
    ]
    assert env.graph.cycles().back_edges == {1}


def test_what_goes_round_may_come_from_several_streams_and_so_may_what_goes_in() -> None:
    env = environment()

    def body(rows: Stream) -> tuple[Stream, Stream]:
        counts = counted(rows)
        return back(counts).union(back(rows, "again")), counts

    numbers(env, "a").union(numbers(env, "b")).iterate(body, name="loop").discard(name="out")
    env.graph.fuse()
    assert [env.graph.producer_vertex(edge).name for edge in env.graph.vertex_of("loop").inputs] == [
        "a",
        "b",
        "count+back+out",
        "loop+again",
    ]
    assert env.graph.cycles().back_edges == {3, 4}


def test_one_loop_behind_another() -> None:
    env = environment()

    def second(rows: Stream) -> tuple[Stream, Stream]:
        return rows.filter(lambda row: row.v > 1, name="large"), rows.filter(lambda row: row.v <= 1, name="small")

    first = numbers(env, "a").iterate(loop, name="first")
    back(first, "some").iterate(second, name="second").discard(name="out")
    env.graph.fuse()
    assert env.graph.cycles().loop_heads == ("first", "second+large+small+out")


def test_what_comes_round_may_be_null() -> None:
    env = environment()
    strict = numbers(env, "a", "k string not null, v long not null")
    strict.iterate(loop, name="loop").discard(name="out")
    head = env.graph.fuse().vertex_of("loop")
    assert env.graph.nodes[head.nodes[0]].schema == pa.schema([("k", pa.string()), ("v", pa.int64())])


def test_the_loop_is_part_of_the_fingerprint() -> None:
    prints = set()
    for body in (loop, lambda rows: (back(counted(rows)).filter(lambda row: True), rows)):
        env = environment()
        numbers(env, "a").iterate(body, name="loop").discard(name="out")
        prints.add(env.graph.fuse().fingerprint(2))
    assert len(prints) == 2


def nested(rows: Stream) -> tuple[Stream, Stream]:
    counts = back(rows, "first").iterate(loop, name="inner")
    return back(counts, "last"), counts


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lambda rows: None, "must return two streams, \\(feedback, output\\), not NoneType"),
        (lambda rows: (rows, rows, rows), "must return two streams"),
        (lambda rows: (None, counted(rows)), "loop 'loop' has no feedback: NoneType is returned, not a stream"),
        (lambda rows: (back(rows), None), "loop 'loop' has no output: NoneType"),
        (lambda rows: (rows.key_by("k"), rows), "no feedback: KeyedStream is returned, not a stream"),
        (lambda rows: (rows, counted(rows)), "rows would circulate for ever"),
        (lambda rows: (rows.union(back(rows)), counted(rows)), "rows would circulate for ever"),
        (lambda rows: (counted(rows), rows), "'count', must have the columns of its input: .*v int64, n int64"),
        (
            lambda rows: (rows.map(lambda row: row, schema="k string, v double", name="m"), rows),
            "'m', must have the columns of its input: .*v double",
        ),
        (nested, "loop 'inner' is inside of loop 'loop': loops cannot be nested"),
        (
            lambda rows: (back(rows.with_watermark("v", "1 s", name="times")), rows),
            "cannot contain event time; draw 'times' before or after the loop",
        ),
    ],
)
def test_what_cannot_be_a_loop_is_said(body: Callable[[Stream], Any], problem: str) -> None:
    env = environment()
    with pytest.raises(ConfigurationError, match=problem):
        numbers(env, "a").iterate(body, name="loop")


def test_streams_from_elsewhere_are_no_part_of_a_loop() -> None:
    env = environment()
    a, b = numbers(env, "a"), numbers(env, "b")
    with pytest.raises(ConfigurationError, match="not all of its feedback, 'b', comes out of the loop"):
        a.iterate(lambda rows: (b, counted(rows)), name="one")
    with pytest.raises(ConfigurationError, match="not all of its feedback, 'union', comes out of the loop"):
        a.iterate(lambda rows: (back(rows, "x").union(b), rows), name="two")
    with pytest.raises(ConfigurationError, match="loop 'three' has no exit: its output, 'b', does not come out"):
        a.iterate(lambda rows: (back(rows, "y"), b), name="three")
    other = numbers(environment(), "c")
    with pytest.raises(ConfigurationError, match="its output, 'c', is of another StreamEnvironment"):
        a.iterate(lambda rows: (back(rows, "z"), other), name="four")


def test_a_loop_that_nobody_listens_to_is_refused() -> None:
    env = environment()
    a = numbers(env, "a")
    a.iterate(loop, name="loop")
    a.discard(name="out")
    with pytest.raises(ConfigurationError, match="nothing that comes out of loop 'loop' is written anywhere"):
        env.graph.fuse()


def test_event_time_ends_at_a_loop_and_may_begin_behind_it() -> None:
    env = environment()
    timed = numbers(env, "a", "k string, v timestamp").with_watermark("v", "1 s", name="before")

    def body(rows: Stream) -> tuple[Stream, Stream]:
        return rows.filter(lambda row: False), rows

    out = timed.iterate(body, name="loop")
    with pytest.raises(ConfigurationError, match="needs event time: call with_watermark"):
        out.key_by("k").tumbling_window("v", "1 s").count()
    windows = out.with_watermark("v", "1 s", name="behind").key_by("k").tumbling_window("v", "1 s").count(name="w")
    windows.discard(name="out")
    env.graph.fuse()
    into = env.graph.vertex_of("loop").inputs
    assert not any(env.graph.hears_watermarks(edge) for edge in into)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"guarantee": "at-least-once"}, "guarantee='at-least-once' cannot be used with a loop \\('loop'\\)"),
        ({"guarantee": "at-most-once"}, "guarantee='at-most-once' cannot be used with a loop"),
        ({"checkpoint_mode": "synchronous"}, "checkpoint_mode='synchronous' cannot be used with a loop"),
    ],
)
def test_what_loops_cannot_have_is_said(options: dict[str, Any], problem: str) -> None:
    env = environment(**options)
    numbers(env, "a").iterate(loop, name="loop").discard(name="out")
    with pytest.raises(ConfigurationError, match=problem):
        check_loops(env.graph.fuse(), env.options)
    check_loops(numbers(environment(), "b")._env.graph, env.options)


def test_with_a_sharing_depth_or_partially_a_job_with_loops_recovers_by_rollback() -> None:
    env = environment(sharing_depth=2)
    numbers(env, "a").iterate(loop, name="loop").discard(name="out")
    assert recovery_of(env.graph, env.options).recovery == "rollback"
    assert recovery_of(env.graph, Options()).recovery == "standby"
    assert recovery_of(env.graph, Options(recovery="partial")).recovery == "rollback"
    assert recovery_of(numbers(environment(), "b")._env.graph, env.options).recovery == "standby"
