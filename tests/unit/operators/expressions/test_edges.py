"""Where values could depend on more than their row, or take far too long: batches, many parts, time zones, errors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.expressions.binding import bind
from flinkplus.operators.expressions.bound import RowValues
from flinkplus.operators.expressions.column import expression


def values(text: str, column: pa.Array) -> list[Any]:
    """An expression on the only column ``v``, and that each row has the same value alone."""
    batch = pa.record_batch([column], names=["v"])
    bound = bind(expression(text), batch.schema)
    found = bound.array(RowValues(batch, lambda: 0))
    assert found.type == bound.dtype
    alone = [bound.array(RowValues(batch.slice(at, 1), lambda: 0)) for at in range(batch.num_rows)]
    assert [str(one.to_pylist()[0]) for one in alone] == list(map(str, found.to_pylist()))
    return list(found.to_pylist())


@pytest.mark.parametrize("text", ["cast(v as string)", "round(v, 1)", "bround(v, 2)", "to_json(array(v))"])
@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64()])
def test_zero_and_minus_zero_beside_each_other_keep_their_own_values(text: str, dtype: pa.DataType) -> None:
    values(text, pa.array([-0.0, 0.0, 1.5, -0.0, None], dtype))


def test_many_arguments_are_computed_once_each() -> None:
    many = ", ".join(["v", *map(str, range(200))])
    numbers = pa.array([500, None, -1], pa.int64())
    assert values(f"greatest({many})", numbers) == [500, 199, 199]
    assert values(f"least({many})", numbers) == [0, 0, -1]
    deep = "v"
    for at in range(40):
        deep = f"nullif({deep}, {at})"
    assert values(deep, numbers) == [500, None, -1]
