"""Running rankings of whole rows against plain Python, cut and restored anywhere; orders and ranks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import plain
from flinkplus.operators.keyed import rankings
from flinkplus.operators.keyed.rankings import Order, TopRows, orders_of, ranks_of
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, create

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("s", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("n", pa.int64()),
    ]
)
TOP = TopRows("top", ("k",), 3, (Order("x", True), Order("at", False)), "place")
X = [None, math.nan, -1.5, -0.0, 0.0, 2.0]
Rows = list[tuple[Any, int, Any]]


def batch_of(rows: Rows, first: int = 0) -> pa.RecordBatch:
    columns = [
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([X[row[1]] for row in rows], pa.float64()),
        pa.array([row[2] for row in rows], pa.int64()).view(SCHEMA.field(2).type),
        pa.array([{"a": row[1], "b": ["x"] * (row[1] % 3)} for row in rows], SCHEMA.field(3).type),
        pa.array(range(first, first + len(rows)), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def model(rows: Rows) -> list[tuple[Any, int, int]]:
    """Key, rank and number of each row that is emitted."""
    best: dict[Any, list[tuple[float, bool, int, int]]] = {}
    found = []
    for n, (key, x, at) in enumerate(rows):
        value = X[x]
        if value is None or value != value:
            continue
        before = best.get(key, [])
        after = sorted([*before, (-value + 0.0, at is None, at or 0, n)])[:3]
        best[key] = after
        first = next((i for i, row in enumerate(after) if i >= len(before) or before[i] != row), len(after))
        found += [(key, rank + 1, after[rank][3]) for rank in range(first, len(after))]
    return found


@settings(max_examples=examples(120), deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 5), st.sampled_from([None, 0, 5])), max_size=30
    ),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    most=st.sampled_from([1, 1000]),
)
def test_against_python(rows: Rows, cuts: list[int], most: int) -> None:
    state, found = FakeState(), []
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    with mock.patch.object(rankings, "MAX_OUTPUT_ROWS", most):
        for start, end in pairwise(bounds):
            instance = create(TOP, SCHEMA, state)  # nothing but the state is kept
            for out in instance.process(batch_of(rows[start:end], start)):
                out.validate(full=True)
                found += plain(out, TOP.output_schema(SCHEMA)).to_pylist()
    assert [(row["k"], row["place"], row["n"]) for row in found] == model(rows)
    whole = {row["n"]: row for row in batch_of(rows).to_pylist()}
    for row in found:
        del row["place"]
        assert str(row) == str({name: whole[row["n"]][name] for name in row})
    assert TOP.output_schema(SCHEMA).names == ["k", "place", "x", "at", "s", "n"]


def test_ranks_with_ties() -> None:
    keys = pa.array([b"a", b"a", b"a", b"b", b"b", b"b"])
    values = [pa.array([1.0, 0.0, -0.0, 2.0, 2.0, 1.0]), pa.array([1, None, None, 1, 1, 1])]
    assert ranks_of(keys, values, "first").tolist() == [1, 2, 3, 1, 2, 3]
    assert ranks_of(keys, values, "rank").tolist() == [1, 2, 2, 1, 1, 3]
    assert ranks_of(keys, values, "dense").tolist() == [1, 2, 2, 1, 1, 2]
    assert ranks_of(keys[:0], [value[:0] for value in values], "dense").tolist() == []


def test_orders_as_users_give_them() -> None:
    schema = pa.schema([("n", pa.int64()), ("my DESC", pa.int64())])
    assert orders_of("by", "n", schema, descending=True) == (Order("n", True),)
    assert orders_of("by", ("n asc", "my DESC"), schema, descending=True) == (Order("n", False), Order("my DESC", True))
    assert orders_of("by", ["my DESC DESC"], schema, descending=False) == (Order("my DESC", True),)


@pytest.mark.parametrize("given", [(), "", ("n", "n DESC"), 3, ("n", None)])
def test_orders_that_are_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^by (is|names)"):
        orders_of("by", given, SCHEMA, descending=True)


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (TopRows("top", ("k",), 0, TOP.orders), "k is a number from 1 to 10000, not 0"),
        (TopRows("top", ("k",), 1, (Order("s", True),)), "only numbers and times can be ranked"),
        (TopRows("top", ("k",), 1, (Order("y", True),)), "'y'"),
        (TopRows("top", ("k",), 1, TOP.orders, "n"), "has a column 'n' already"),
        (TopRows("top", ("s",), 1, TOP.orders), "cannot be a key"),
    ],
)
def test_what_cannot_be_ranked(top: TopRows, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        top.output_schema(SCHEMA)
