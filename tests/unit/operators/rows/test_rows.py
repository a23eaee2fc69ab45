"""Row functions and batch functions: what they see, what they may return, and what is said when they fail."""

from __future__ import annotations

import datetime
import pickle
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyspark.sql
import pytest
from hypothesis import given, settings
from pyspark import cloudpickle

from flinkplus.errors import UserFunctionError
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.row import Row, make_row, row_type
from flinkplus.operators.rows.rows import MAX_COLLECTED_ROWS, Filter, FlatMap, Map, MapBatches
from tests.unit.operators.operator_fakes import create, run

SCHEMA = pa.schema([("value", pa.string()), ("n", pa.int64())])
BATCH = pa.record_batch([["To be", "or not", None], [1, 2, 3]], schema=SCHEMA)
AWKWARD = row_type(("count", "index", "my word", "_hidden", "class", "value"))


def failing(operator: Operator, batch: pa.RecordBatch = BATCH) -> UserFunctionError:
    with pytest.raises(UserFunctionError) as caught:
        run(operator, [batch], batch.schema)
    assert caught.value.operator == operator.name
    assert caught.value.subtask == f"{operator.name}[1]"
    return caught.value


def test_a_row_knows_its_columns_whatever_they_are_called() -> None:
    row: Any = make_row(AWKWARD, (1, 2, 3, 4, 5, 6))
    assert (row.count, row.index, row["my word"], row._hidden, row["class"], row[-1]) == (1, 2, 3, 4, 5, 6)
    assert getattr(row, "class") == row[4]
    assert row == (1, 2, 3, 4, 5, 6)
    assert row[1:3] == (2, 3)
    assert row.as_dict()["my word"] == 3
    assert repr(row).startswith("Row(count=1, index=2, my word=3")
    again = pickle.loads(pickle.dumps(row))
    assert again == row and again.value == 6 and type(again) is AWKWARD
    with pytest.raises(AttributeError, match="'words'"):
        _ = row.words
    with pytest.raises(KeyError, match="'words'"):
        _ = row["words"]


def test_map_filter_flat_map() -> None:
    assert run(Map("m", lambda row: (row.n * 2, row["value"]), "d long, v string"), [BATCH], SCHEMA)[1] == {
        "d": 4,
        "v": "or not",
    }
    assert run(Filter("f", lambda row: row.n != 2), [BATCH], SCHEMA) == [BATCH.to_pylist()[0], BATCH.to_pylist()[2]]
    assert run(Filter("f", lambda row: []), [BATCH], SCHEMA) == []
    split = FlatMap("t", lambda row: row.value.lower().split() if row.value else [], "word string")
    assert [r["word"] for r in run(split, [BATCH, BATCH], SCHEMA)] == ["to", "be", "or", "not"] * 2


def test_functions_get_plain_values_of_encoded_columns() -> None:
    batch = pa.RecordBatch.from_arrays([BATCH.column(0).dictionary_encode(), BATCH.column(1)], names=SCHEMA.names)
    assert run(Map("m", lambda row: row, SCHEMA), [batch], SCHEMA) == BATCH.to_pylist()
    seen: list[pa.Schema] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema)
        return batch

    run(MapBatches("b", look, SCHEMA), [batch], SCHEMA)
    assert seen == [SCHEMA]


Pair = namedtuple("Pair", "n word")


@pytest.mark.parametrize(
    "returned",
    [
        ("a", 1),
        ["a", 1],
        {"n": 1, "word": "a"},
        make_row(row_type(("n", "word")), (1, "a")),
        make_row(row_type(("x", "y")), ("a", 1)),
        pyspark.sql.Row(n=1, word="a"),
        pyspark.sql.Row("a", 1),  # type: ignore[call-overload]
        Pair(1, "a"),
    ],
)
def test_what_may_stand_for_a_row(returned: Any) -> None:
    for operator in (
        Map("m", lambda row: returned, "word string, n long"),
        FlatMap("f", lambda row: [returned], "word string, n long"),
        FlatMap("f", lambda row: iter((returned,)), "word string, n long"),
    ):
        assert run(operator, [BATCH.slice(0, 1)], SCHEMA) == [{"word": "a", "n": 1}]


@pytest.mark.parametrize(
    ("schema", "returned", "expected"),
    [
        ("w string", "ab", "ab"),
        ("w string", ("ab",), "ab"),
        ("w string", {"w": "ab"}, "ab"),
        ("w string", None, None),
        ("w string", {}, None),
        ("w array<long>", [1, 2], [1, 2]),
        ("w array<array<string>>", [["a"], None], [["a"], None]),
        ("w double", 3, 3.0),
        ("w long", __import__("numpy").int32(3), 3),
        ("w date", datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
        ("w boolean", True, True),
        ("w binary", bytearray(b"x"), b"x"),
    ],
)
def test_bare_values_for_one_column(schema: str, returned: Any, expected: Any) -> None:
    assert run(Map("m", lambda row: returned, schema), [BATCH.slice(0, 1)], SCHEMA) == [{"w": expected}]


@pytest.mark.parametrize(
    ("schema", "returned", "message"),
    [
        ("w long", 1.5, "column 'w' of type int64 cannot hold 1.5"),
        ("w long", "1", "cannot hold '1'"),
        ("w long", True, "bool"),
        ("w int", 2**40, "too large"),
        ("w string", 1, "int is not string"),
        ("w string", b"a", "bytes is not string"),
        ("w string", "\ud800", "surrogate"),
        ("w boolean", 1, "int is not bool"),
        ("w date", datetime.datetime(2024, 1, 1), "datetime is not date"),
        ("w array<long>", "ab", "str is not list"),
        ("w array<long>", [1.5], "float is not int64"),
        ("w long not null", None, "NOT NULL"),
        ("w string, n long", ("a",), "returned 1 values"),
        ("w string, n long", "a", "returned str"),
        ("w string, n long", {"word": "a"}, r"\['word'\]"),
    ],
)
def test_what_a_schema_does_not_allow(schema: str, returned: Any, message: str) -> None:
    good: Any = pa.array([None], parse(schema)).to_pylist()[0]
    good = {"w string, n long": ("a", 1), "w long not null": 1}.get(schema, good)
    for operator in (
        Map("m", lambda row: returned if row.n == 2 else good, schema),
        FlatMap("f", lambda row: [good, returned] if row.n == 2 else [good], schema),
    ):
        error = failing(operator)
        assert error.row == "Row(value='or not', n=2)"
        with pytest.raises(UserFunctionError, match=message):
            raise error


def parse(schema: str) -> pa.DataType:
    from flinkplus.operators.base.schema import parse_schema

    return parse_schema(schema).field(0).type


def test_a_function_that_raises() -> None:
    def broken(row: Row) -> Any:
        return [len(row.value)]

    def broken_later(row: Row) -> Iterator[int]:
        yield 1
        raise ValueError("half way")

    for operator, cause in [
        (Map("m", broken, "l long"), "TypeError: object of type 'NoneType' has no len()"),
        (FlatMap("f", broken, "l long"), "TypeError"),
        (Filter("filter", broken), "TypeError"),
    ]:
        error = failing(operator)
        assert error.row == "Row(value=None, n=3)"
        assert cause in error.cause
        assert "test_rows.py" in error.cause and "in broken" in error.cause
        assert isinstance(error.__cause__, TypeError)
    assert "half way" in failing(FlatMap("f", broken_later, "l long")).cause


@pytest.mark.parametrize("returned", ["word", b"word", None, 5, {"w": "a"}, make_row(row_type(("a",)), ("x",))])
def test_flat_map_must_return_rows(returned: Any) -> None:
    assert "not an iterable of rows" in failing(FlatMap("f", lambda row: returned, "w string")).cause


def test_the_row_in_an_error_is_cut() -> None:
    batch = pa.record_batch([["x" * 5000], [1]], schema=SCHEMA)
    assert len(failing(Map("m", lambda row: 1 / 0, "a long"), batch).row) == 1003

    class Hidden:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Hidden whose repr raises RuntimeError" in failing(Map("m", lambda row: Hidden(), "a long")).cause


def test_one_row_may_give_any_number_of_rows_in_bounded_batches() -> None:
    count = 2 * MAX_COLLECTED_ROWS + 5
    produced: list[int] = []

    def many(row: Row) -> Iterator[int]:
        for i in range(count):
            produced.append(i)
            yield i

    batches = iter(create(FlatMap("f", many, "i long"), SCHEMA).process(BATCH.slice(0, 1)))
    first = next(batches)
    assert first.num_rows == len(produced) == MAX_COLLECTED_ROWS
    assert [b.num_rows for b in batches] == [MAX_COLLECTED_ROWS, 5]


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 5))
@settings(deadline=None)
def test_flat_map_against_a_comprehension(sizes: list[int], rows_per_batch: int) -> None:
    batch = pa.record_batch({"n": pa.array(sizes, pa.int64())})
    batches = [batch.slice(i, rows_per_batch) for i in range(0, len(sizes), rows_per_batch)]
    functions: list[Callable[[Row], Any]] = [lambda row: range(row.n), lambda row: list(range(row.n))]
    for fn in functions:
        rows = run(FlatMap("f", fn, "i long"), batches, batch.schema)
        assert [r["i"] for r in rows] == [i for n in sizes for i in range(n)]


def test_map_batches() -> None:
    operator = MapBatches("b", lambda b: b.append_column("m", pa.array([1.0] * b.num_rows)), "m float, n int")
    assert run(operator, [BATCH], SCHEMA)[2] == {"m": 1.0, "n": 3}
    doubled = MapBatches("b", lambda b: [b, pa.Table.from_batches([b, b])], SCHEMA)
    assert len(run(doubled, [BATCH], SCHEMA)) == 9
    assert run(MapBatches("b", lambda b: iter(()), SCHEMA), [BATCH], SCHEMA) == []
    assert run(MapBatches("b", lambda b: 1 / 0, SCHEMA), [BATCH.slice(0, 0)], SCHEMA) == []


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda b: 1 / 0, "ZeroDivisionError"),
        (lambda b: None, "TypeError"),
        (lambda b: [1], "returned int"),
        (lambda b: b.select(["n"]), "value"),
        (lambda b: b.set_column(1, "n", pa.array(["x"] * b.num_rows)), "ArrowInvalid"),
    ],
)
def test_map_batches_fails_with_the_first_row(fn: Callable[[pa.RecordBatch], Any], message: str) -> None:
    error = failing(MapBatches("b", fn, SCHEMA))
    assert message in error.cause
    assert error.row == "a batch of 3 rows that begins with {'value': 'To be', 'n': 1}"


def test_descriptors_travel_and_empty_batches_pass() -> None:
    operators: list[Operator] = [
        Map("m", lambda row: row.n, "n long"),
        Filter("f", lambda row: True),
        FlatMap("f", lambda row: [row], SCHEMA),
        MapBatches("b", lambda b: b, SCHEMA),
    ]
    for operator in operators:
        again = pickle.loads(cloudpickle.dumps(operator))
        assert again.output_schema(SCHEMA) == operator.output_schema(SCHEMA)
        assert run(again, [BATCH.slice(0, 0)], SCHEMA) == []
        assert len(run(again, [BATCH], SCHEMA)) == 3
