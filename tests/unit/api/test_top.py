"""What rankings and running aggregates draw."""

from __future__ import annotations

import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.keyed.rankings import Order, TopRows
from flinkplus.operators.keyed.top import Top
from tests.unit.api.drawing import environment, numbers

SCHEMA = "k string, v long, at timestamp"


def test_whole_rows_or_items() -> None:
    keyed = numbers(environment(), "a", SCHEMA).key_by("k")
    rows = keyed.top(3, by=("v", "at ASC"), output="place", name="rows")
    assert rows.schema.names == ["k", "place", "v", "at"]
    assert keyed.top(1, by="v", ascending=True, name="least").schema.names == ["k", "rank", "v", "at"]
    assert keyed.top(1, by="v", item="at", name="items").schema.names == ["k", "rank", "at", "v"]
    assert [node.body for node in keyed._env.graph.nodes[1:]] == [
        TopRows("rows", ("k",), 3, (Order("v", True), Order("at", False)), "place"),
        TopRows("least", ("k",), 1, (Order("v", False),), "rank"),
        Top("items", ("k",), 1, "v", "at", False, "rank"),
    ]


def test_rankings_of_windows() -> None:
    stream = numbers(environment(), "a", SCHEMA).with_watermark("at", "1 second")
    window = stream.key_by("k").tumbling_window("at", "1 minute")
    found = window.top(2, by=("v ASC", "at"), ties="dense")
    assert found.schema.names == ["k", "window_start", "window_end", "rank", "v", "at"]
    with pytest.raises(ConfigurationError, match="ties is 'first', 'rank' or 'dense', not 'all'"):
        window.top(2, by="v", ties="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"top: by is a column, or a tuple of columns .*, not 3"):
        window.top(2, by=3)  # type: ignore[arg-type]


def test_what_cannot_be() -> None:
    keyed = numbers(environment(), "a", SCHEMA).key_by("k")
    with pytest.raises(ConfigurationError, match="with item, by is one column"):
        keyed.top(2, by=("v", "at"), item="v")
    with pytest.raises(ConfigurationError, match=r"no column 'vv'.*did you mean 'v'"):
        keyed.top(2, by=("vv", "at"))
    with pytest.raises(ConfigurationError, match="emit is 'every' or 'latest', not 'last'"):
        keyed.aggregate(n="count", emit="last")  # type: ignore[arg-type]


def test_event_time_ends_where_only_the_latest_rows_leave() -> None:
    stream = numbers(environment(), "a", SCHEMA).with_watermark("at", "1 second")
    stream.key_by("k").count().key_by("k").tumbling_window("at", "1 minute").count(output="n")
    held = stream.key_by("k").count(emit="latest", name="held")
    with pytest.raises(ConfigurationError, match="needs event time: call with_watermark"):
        held.key_by("k").tumbling_window("at", "1 minute").count(output="n")
