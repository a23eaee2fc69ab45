"""The last row of each key against plain Python, for every type to order by, however rows are cut into batches."""

from __future__ import annotations

import datetime
import math
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import UserFunctionError
from flinkplus.operators.keyed.last import KeepLast, LargestView, ordered_numbers, ordered_values
from flinkplus.operators.keyed.rankings import Order
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, run

UTC = datetime.timezone.utc
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [None, -(2**63) + 1, -1, 0, 1, 2**63 - 2]),
    (pa.int8(), [None, -128, 0, 127]),
    (pa.float64(), [None, -math.inf, -1.5, -0.0, 0.0, 5e-324, math.inf, math.nan]),
    (pa.float32(), [None, -1.5, 0.0, 3.25]),
    (pa.date32(), [None, datetime.date(1960, 1, 1), datetime.date(2024, 1, 1)]),
    (pa.timestamp("us", "UTC"), [None, *(datetime.datetime(year, 1, 1, tzinfo=UTC) for year in (1960, 2024))]),
]  # fmt: skip


def place(value: Any) -> Any:
    """Where a value stands: null first, NaN last."""
    if value is None:
        return (0, 0)
    return (2, 0) if value != value else (1, value)


@settings(max_examples=examples(150), deadline=None)
@given(
    kind=st.integers(0, len(VALUES) - 1),
    rows=st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 7)), max_size=25),
    at=st.integers(0, 25),
    many=st.booleans(),
)
def test_against_python(kind: int, rows: list[tuple[str | None, int]], at: int, many: bool) -> None:
    dtype, values = VALUES[kind]
    rows = rows * 40 if many else rows
    given_rows = [(key, values[number % len(values)], n) for n, (key, number) in enumerate(rows)]
    schema = pa.schema([("k", pa.string()), ("v", dtype), ("n", pa.int64())])
    columns = [pa.array([row[i] for row in given_rows], field.type) for i, field in enumerate(schema)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    largest: dict[str | None, Any] = {}
    wanted = []
    for key, value, n in given_rows:
        if key not in largest or place(value) >= place(largest[key]):
            largest[key] = value
            wanted.append(n)
    found = run(
        KeepLast("last", ("k",), (Order("v", False),)),
        [batch.slice(0, at), batch.slice(min(at, len(batch)))],
        schema,
        FakeState(),
    )
    assert [row["n"] for row in found] == wanted


@settings(max_examples=examples(60), deadline=None)
@given(rows=st.lists(st.tuples(*[st.sampled_from([None, 0, 1, 2])] * 3), max_size=25), cut=st.integers(0, 25))
def test_several_columns_each_in_its_direction(rows: list[tuple[int | None, ...]], cut: int) -> None:
    """The highest price, of equal ones the earliest, of equal ones the last row; nulls stand before any value."""
    schema = pa.schema([("k", pa.int64()), ("price", pa.int64()), ("at", pa.timestamp("us")), ("n", pa.int64())])
    columns = [*zip(*rows, strict=True)] or [(), (), ()]
    batch = pa.record_batch(
        [*(pa.array(c, pa.int64()) for c in columns), pa.array(range(len(rows)))], names=schema.names
    )
    batch = batch.set_column(2, schema.field(2), batch.column(2).cast(schema.field(2).type)).cast(schema)
    best: dict[int | None, Any] = {}
    wanted = []
    for n, (key, price, at) in enumerate(rows):
        place = (price is not None, price or 0, at is not None, -(at or 0))
        if key not in best or place >= best[key]:
            best[key] = place
            wanted.append(n)
    last = KeepLast("last", ("k",), (Order("price", False), Order("at", True)))
    state = FakeState()
    found = run(last, [batch.slice(0, cut), batch.slice(min(cut, len(batch)))], schema, state)
    assert [row["n"] for row in found] == wanted
    assert set(state.numbers) == {"last", "last#1"}


@pytest.mark.parametrize(("dtype", "values"), VALUES, ids=str)
def test_numbers_of_the_reverse_order(dtype: pa.DataType, values: list[Any]) -> None:
    numbers = ordered_numbers(pa.array(values, dtype), descending=True)
    assert 0 not in numbers and numbers[0] == min(numbers) and list(numbers[1:]) == sorted(numbers[1:], reverse=True)
    back = ordered_values(numbers, dtype, descending=True)
    assert str(back.to_pylist()).replace("-0.0", "0.0") == str(pa.array(values, dtype).to_pylist()).replace(
        "-0.0", "0.0"
    )


@pytest.mark.parametrize(("dtype", "values"), VALUES, ids=str)
def test_numbers_are_in_order_and_give_the_values_back(dtype: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, dtype)
    numbers = ordered_numbers(array)
    assert 0 not in numbers and list(numbers) == sorted(numbers)
    assert ordered_values(numbers[2:], dtype).equals(pa.array([0.0 if v == 0 else v for v in values[2:]], dtype)) or (
        str(ordered_values(numbers[2:], dtype).to_pylist()).replace("-0.0", "0.0")
        == str(array[2:].to_pylist()).replace("-0.0", "0.0")
    )
    view = LargestView("last", orders=(Order("v", False),), types=(dtype,), states=("last",))
    assert view.value_type == pa.struct([("v", dtype)])


@pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63)])
def test_the_largest_and_smallest_numbers_are_refused(extreme: int) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    batch = pa.record_batch([pa.array(["a", "b"]), pa.array([1, extreme])], schema=schema)
    with pytest.raises(UserFunctionError, match=r"too large or small for order_by; input row: Row\(k='b'"):
        run(KeepLast("last", ("k",), (Order("v", False),)), [batch], schema, FakeState())


def test_a_time_that_python_cannot_show_is_an_error_of_its_row() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.timestamp("us"))])
    batch = pa.record_batch([pa.array(["a", "b"]), pa.array([1, 2**63 - 1]).cast(pa.timestamp("us"))], schema=schema)
    with pytest.raises(UserFunctionError, match=r"column 'v' of type .* holds a value that Python cannot show"):
        run(KeepLast("last", ("k",), (Order("v", False),)), [batch], schema, FakeState())
