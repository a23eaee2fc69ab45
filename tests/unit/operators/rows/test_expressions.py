"""``Select`` and ``Where``: what they pass on, how they name rows that are errors, and in which form batches leave."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.steps import JoinedRows, process_together
from flinkplus.operators.expressions.column import expression
from flinkplus.operators.rows.expressions import Select, Where
from tests.unit.operators.operator_fakes import context, create, run

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("n", pa.int64())])
ROWS = [("a", 1), ("b", 2), ("a", None), ("c", 0)]
BATCH = pa.record_batch([pa.array([k for k, _ in ROWS]), pa.array([n for _, n in ROWS], pa.int64())], schema=SCHEMA)


def select(*texts: str, on_error: Any = "fail") -> Select:
    return Select("select", tuple(map(expression, texts)), on_error)


def where(text: str) -> Where:
    return Where("where", expression(text))


def test_columns_are_passed_on_and_computed() -> None:
    operator = select("*", "n * 2 AS twice", "'x' AS mark", "k AS key")
    assert operator.output_schema(SCHEMA) == pa.schema(
        [
            pa.field("k", pa.string(), nullable=False),
            ("n", pa.int64()),
            ("twice", pa.int64()),
            pa.field("mark", pa.string(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
        ]
    )
    rows = run(operator, [BATCH], SCHEMA)
    assert [row["twice"] for row in rows] == [2, 4, None, 0]
    assert rows[1] == {"k": "b", "n": 2, "twice": 4, "mark": "x", "key": "b"}
    assert run(select("n as m"), [BATCH.slice(0, 0)], SCHEMA) == []


def test_what_is_passed_on_is_not_copied_and_keeps_its_dictionary() -> None:
    coded = pa.record_batch([BATCH.column(0).dictionary_encode(), BATCH.column(1)], names=["k", "n"])
    (out,) = create(select("k", "n", "upper(k) AS up"), SCHEMA).process(coded)
    assert pa.types.is_dictionary(out.schema.field("k").type)
    assert out.column("up").to_pylist() == ["A", "B", "A", "C"]
    assert out.column("n").buffers()[1].address == BATCH.column(1).buffers()[1].address
    (same,) = create(where("n >= 0 or n is null"), SCHEMA).process(BATCH)
    assert same.column(0).buffers()[2].address == BATCH.column(0).buffers()[2].address


def test_only_rows_for_which_a_condition_is_true_are_kept() -> None:
    assert [row["k"] for row in run(where("n > 0"), [BATCH], SCHEMA)] == ["a", "b"]
    assert run(where("n > 5"), [BATCH], SCHEMA) == []
    assert run(where("null"), [BATCH], SCHEMA) == []
    assert len(run(where("true"), [BATCH], SCHEMA)) == 4
    assert where("n > 0").output_schema(SCHEMA) is SCHEMA


def test_the_row_that_is_an_error_is_named() -> None:
    with pytest.raises(UserFunctionError) as caught:
        run(select("k", "6 / n AS part"), [BATCH], SCHEMA)
    assert (caught.value.row, caught.value.subtask) == ("Row(k='c', n=0)", "select[1]")
    assert caught.value.cause == "part: division by zero"
    with pytest.raises(UserFunctionError, match=r"\(6 / n\) > 1\): division by zero; input row: Row\(k='c', n=0\)"):
        run(where("6 / n > 1"), [BATCH], SCHEMA)
    assert [row["k"] for row in run(where("n <> 0 and 6 / n > 3"), [BATCH], SCHEMA)] == ["a"]


def test_a_row_that_python_cannot_show_is_named_too() -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    batch = pa.record_batch([pa.array([2**60], pa.int64()).cast(pa.timestamp("us", "UTC"))], schema=schema)
    with pytest.raises(UserFunctionError, match=r"n: Integer value .* not in range.*; input row: ts="):
        run(select("cast(unix_micros(ts) as int) as n"), [batch], schema)


def test_steps_are_joined_unless_the_time_counts() -> None:
    steps = JoinedRows(BATCH, [1, 4])
    joined = process_together(create(select("n + 1 AS m"), SCHEMA), steps)
    assert isinstance(joined, JoinedRows) and joined.batch.to_pydict() == {"m": [2, 3, None, 1]}
    alone = process_together(create(where("n > 0"), SCHEMA), steps)
    assert [[batch.num_rows for batch in step] for step in alone] == [[1], [1]]  # type: ignore[union-attr]
    assert not create(select("current_timestamp() AS at"), SCHEMA).joins_steps
    assert not create(where("current_date() > date '2020-01-01'"), SCHEMA).joins_steps
    ctx = OperatorContext("select", "select[0]", 0, 1, SCHEMA, now_ms=lambda: 86_400_000)
    (out,) = select("cast(current_timestamp() as string) AS at").create(ctx).process(BATCH)
    assert out.column(0).to_pylist() == ["1970-01-02 00:00:00"] * 4


def test_operators_travel_without_the_parser() -> None:
    again = pickle.loads(pickle.dumps(select("k", "n * 0.5 AS h")))
    assert again == select("k", "n * 0.5 AS h")
    assert context(again, SCHEMA).operator == "select"


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ((), "at least one column"),
        (("n + 1", "n + 1"), "two columns are called"),
        (("null AS x",), "has no type: cast it"),
        (("interval 1 hour AS x",), "is an interval"),
        (("k.*",), "is no struct"),
        (("* + 1",), "can only stand alone"),
    ],
)
def test_columns_that_cannot_be(texts: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"operator 'select': .*{problem}"):
        select(*texts).output_schema(SCHEMA)


def test_structs_are_spread() -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int32()), ("b", pa.string())]))])
    batch = pa.RecordBatch.from_pylist([{"s": {"a": 1, "b": "x"}}, {"s": None}], schema=schema)
    assert run(select("s.*"), [batch], schema) == [{"a": 1, "b": "x"}, {"a": None, "b": None}]
