"""Drawing with event time: what is drawn, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from flinkplus import agg
from flinkplus.errors import ConfigurationError
from flinkplus.functions import col
from flinkplus.operators.event_time.event_time import WithWatermark
from tests.unit.api.drawing import environment, numbers, shape


def test_windows_of_windows_over_all_rows() -> None:
    env = environment()
    marked = numbers(env, "numbers").with_watermark("v", "10 seconds")
    counts = marked.key_by("k").tumbling_window("v", "1 minute").count(output="n")
    assert counts.schema.names == ["k", "window_start", "window_end", "n"]
    assert counts.schema.field("window_end").type == pa.timestamp("us", "UTC")
    totals = (
        counts.gather()
        .tumbling_window("window_start", "1 hour")
        .aggregate(total=("sum", "n"), most=("max", "n"), groups="count", name="hourly")
    )
    totals.discard(name="out")
    assert totals.schema.names == ["window_start", "window_end", "total", "most", "groups"]
    assert shape(env.graph) == [
        ("numbers+with_watermark", []),
        ("window_count", [("numbers+with_watermark", "hash", ("k",))]),
        ("hourly+out", [("window_count", "gather", ())]),
    ]
    assert [env.graph.hears_watermarks(edge) for edge in (0, 1)] == [True, True]


def test_a_join_has_the_exchanges_of_both_sides() -> None:
    env = environment()
    one, two, three = (
        numbers(env, name, schema).with_watermark("v", 1)
        for name, schema in (("one", "k string, v long"), ("two", "k string, v long"), ("three", "id string, v long"))
    )
    joined = (
        one.union(two)
        .key_by("k")
        .interval_join(
            three.key_by("id"), left_time="v", right_time="v", lower="-5 seconds", upper="5 seconds", name="pairs"
        )
    )
    joined.discard(name="out")
    assert joined.schema.names == ["k", "left_v", "id", "right_v"]
    assert shape(env.graph)[-1] == (
        "pairs+out",
        [
            ("one+with_watermark", "hash", ("k",)),
            ("two+with_watermark-2", "hash", ("k",)),
            ("three+with_watermark-3", "hash", ("id",)),
        ],
    )
    (vertex,) = [vertex for vertex in env.graph.vertices if vertex.name == "pairs+out"]
    assert env.graph.root_schema(vertex).names == ["k", "v"]


def test_event_time_must_come_from_every_side() -> None:
    env = environment()
    marked, plain = numbers(env, "marked").with_watermark("v", 0.5), numbers(env, "plain")
    for stream in (plain, marked.union(plain), plain.union(marked)):
        with pytest.raises(ConfigurationError, match="needs event time: call with_watermark"):
            stream.key_by("k").tumbling_window("v", 1).sum("v")
    times: dict[str, Any] = {"left_time": "v", "right_time": "v", "lower": 0, "upper": 1}
    for left, right in ((marked, plain), (plain, marked)):
        with pytest.raises(ConfigurationError, match="needs event time: call with_watermark"):
            left.key_by("k").interval_join(right.key_by("k"), **times)
    marked.union(plain).with_watermark("v", 1).key_by("k").tumbling_window("v", 1).sum("v")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda s: s.with_watermark("v", "soon"), "operator 'with_watermark': the delay must be whole milliseconds"),
        (lambda s: s.with_watermark("v", -1), "the delay must be at least 0 ms"),
        (lambda s: s.with_watermark("k", 1), "column 'k' is string; event time is a timestamp"),
        (lambda s: s.with_watermark("v", 1).key_by("k").tumbling_window("v", 0), "size of a window must be at least 1"),
        (
            lambda s: s.with_watermark("v", 1).key_by("k").tumbling_window("v", 1).aggregate(n=("sum", "v", "w")),
            r"aggregate 'n' must be a name or \(name, column\)",
        ),
        (
            lambda s: (
                s.with_watermark("v", 1).key_by("k").interval_join(s, left_time="v", right_time="v", lower=0, upper=1)
            ),
            "joins keyed streams, not a Stream",
        ),
        (
            lambda s: (
                s.with_watermark("v", 1)
                .key_by("k")
                .interval_join(numbers(environment(), "x").key_by("k"), left_time="v", right_time="v", lower=0, upper=1)
            ),
            "both streams must be drawn in one StreamEnvironment",
        ),
    ],
)
def test_what_is_refused(draw: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        draw(numbers(environment(), "numbers"))


def test_idle_after_is_for_what_reads_itself() -> None:
    env = environment()
    rows = numbers(env, "numbers")
    rows.map(lambda row: row, schema="k string, v long").with_watermark("v", 1, idle_after="30 seconds", name="marks")
    assert env.graph.nodes[2].body == WithWatermark("marks", "v", 1_000, 100, 30_000)
    behind = rows.key_by("k").count()
    for stream in (behind, rows.union(numbers(env, "others"))):
        with pytest.raises(
            ConfigurationError, match="idle_after needs with_watermark before the first key_by or union"
        ):
            stream.with_watermark("v", 1, idle_after=5)
    with pytest.raises(ConfigurationError, match="idle_after"):
        rows.with_watermark("v", 1, idle_after=0)


def test_windows_of_all_kinds() -> None:
    env = environment()
    keyed = numbers(env, "numbers").with_watermark("v", "10 seconds").key_by("k")
    plain = keyed.hopping_window("v", "1 minute", "20 seconds").aggregate(n=agg("count"), mean=("avg", "v"))
    assert plain.schema.names == ["k", "window_start", "window_end", "n", "mean"]
    timings: list[dict[str, Any]] = [{"allowed_lateness": "5 seconds"}, {"emit_every": "5 seconds"}]
    for options in timings:
        timed = keyed.tumbling_window("v", "1 day", time_zone="Europe/Berlin", offset="6 hours", **options).count()
        assert timed.schema.names == ["k", "window_start", "window_end", "window_timing", "count"]
    sessions = keyed.session_window("v", "1 minute").aggregate(values=("collect_list", "v"))
    assert sessions.schema.field("values").type == pa.list_(pa.int64())
    best = plain.gather().tumbling_window("window_start", "20 seconds").top(3, by="n")
    assert best.schema.names == ["rank", "k", "window_start", "window_end", "n", "mean"]
    made = keyed.tumbling_window("v", 1).process(lambda key, window, rows: [(key, len(rows))], schema="k string, n int")
    assert made.schema.names == ["k", "n"]
    running = keyed.aggregate(n="count", different=("count_distinct", "v"), average=("avg", "v"))
    assert running.schema.names == ["k", "n", "different", "average"]
    timed = numbers(env, "others").with_processing_time("at").key_by("k").tumbling_window("at", "1 second").count()
    assert timed.schema.field("window_end").type == pa.timestamp("us", "UTC")


def test_late_rows_are_a_stream() -> None:
    env = environment()
    keyed = numbers(env, "numbers").with_watermark("v", 1).key_by("k")
    for windows in (
        keyed.tumbling_window("v", 1, on_late="side-output"),
        keyed.hopping_window("v", 2, 1, on_late="side-output"),
        keyed.session_window("v", 1, on_late="side-output"),
    ):
        counts = windows.count()
        counts.discard()
        with pytest.raises(ConfigurationError, match=r"late rows' go nowhere: end late_rows\(\) of what"):
            env.graph.fuse()
        assert counts.late_rows().schema == keyed.schema
        counts.late_rows().discard()
    env.graph.fuse()


def test_filters_of_aggregates_are_sql_columns_or_functions() -> None:
    keyed = numbers(environment(), "numbers").with_watermark("v", 1).key_by("k")
    wheres: list[Any] = ["v > 3 AND k IS NOT NULL", col("v") > 3, lambda batch: batch["v"].is_valid()]
    for where in wheres:
        assert keyed.aggregate(n=agg("count", where=where)).schema.names == ["k", "n"]
        assert keyed.tumbling_window("v", 1).aggregate(n=agg("sum", "v", where=where)).schema.names[-1] == "n"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda keyed: keyed.hopping_window("v", 1, 2).count(), r"hop \(2000 ms\) is above the size"),
        (lambda keyed: keyed.hopping_window("v", 1, 0), "the hop of windows must be at least 1 ms"),
        (lambda keyed: keyed.session_window("v", 0), "the gap of sessions must be at least 1 ms"),
        (
            lambda keyed: keyed.tumbling_window("v", 1, offset="noon"),
            "the offset of windows must be whole milliseconds",
        ),
        (lambda keyed: keyed.tumbling_window("v", 1, allowed_lateness=-1), "allowed_lateness must be at least 0 ms"),
        (lambda keyed: keyed.tumbling_window("v", 1, emit_every=0), "emit_every must be at least 1 ms"),
        (lambda keyed: keyed.tumbling_window("v", 1, time_zone="Europe/Berlin").count(), "are whole days"),
        (
            lambda keyed: keyed.tumbling_window("v", "1 day", time_zone="Nowhere").count(),
            "'Nowhere' is not a time zone",
        ),
        (lambda keyed: keyed.tumbling_window("v", 1).aggregate(n=agg("median", "v")), "'median' is not an aggregate"),
        (lambda keyed: keyed.aggregate(n=("collect_list", "v")), "collect_list is for windows"),
        (lambda keyed: keyed.aggregate(n=5), r"aggregate 'n' must be a name or \(name, column\), not 5"),
        (
            lambda keyed: keyed.aggregate(n=agg("sum", cast(Any, 5))),
            "names of an aggregate and of a column, not 'sum' and",
        ),
        (lambda keyed: keyed.aggregate(n=agg("count", where="v +")), "v +"),
        (lambda keyed: keyed.aggregate(n=agg("count", where="v + 1")), "operator 'aggregate': where: .*condition"),
        (
            lambda keyed: keyed.aggregate(n=agg("count", where=cast(Any, [True]))),
            "an expression is SQL text or a column",
        ),
        (lambda keyed: keyed.tumbling_window("v", 1, on_late="keep").count(), "on_late must be 'drop' or"),
        (lambda keyed: keyed.tumbling_window("v", 1).count().late_rows(), "give its windows on_late='side-output'"),
        (lambda keyed: keyed.count().with_processing_time(), "before the first key_by or union"),
    ],
)
def test_windows_that_are_refused(draw: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        draw(numbers(environment(), "numbers").with_watermark("v", 1).key_by("k"))
