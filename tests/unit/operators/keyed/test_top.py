"""Top-k against plain lists, and, where it promises to be exact, against all items sorted."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError
from flinkplus.operators.keyed import top
from flinkplus.operators.keyed.top import Top
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, context, run

SCHEMA = pa.schema([("key", pa.string()), ("item", pa.string()), ("v", pa.int64())])
Input = tuple[str | None, str | None, int | None]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.sampled_from([*"uvwxyz", None]),
        st.one_of(st.integers(-3, 3), st.sampled_from([None, 2**63 - 1, -(2**63)])),
    ),
    max_size=60,
)


def batches_of(rows: list[Input], size: int, encode: bool) -> list[pa.RecordBatch]:
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    if encode:
        arrays[:2] = [array.dictionary_encode() for array in arrays[:2]]
    whole = pa.RecordBatch.from_arrays(arrays, names=SCHEMA.names)
    return [whole.slice(at, size) for at in range(0, len(rows), size)]


def by_the_book(rows: list[Input], k: int, ascending: bool) -> list[tuple[Any, ...]]:
    """The rules of the module, with no thought of speed."""
    rankings: dict[str | None, list[tuple[str | None, int]]] = {}
    out = []
    for key, item, value in rows:
        before = rankings.get(key, [])
        if (item, value) in before:
            continue
        after = [entry for entry in before if entry[0] != item]
        if value is not None:
            after.append((item, value))
            after.sort(key=lambda entry: entry[1], reverse=not ascending)  # stable: equal ones keep their order
        after = after[:k]
        for position in range(max(len(before), len(after))):
            was = before[position] if position < len(before) else (None, None)
            now = after[position] if position < len(after) else (None, None)
            if was != now:
                out.append((key, position + 1, *now))
        rankings[key] = after
    return out


@given(ROWS, st.integers(1, 4), st.booleans(), st.integers(1, 60), st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_every_change_is_put_out(rows: list[Input], k: int, ascending: bool, size: int, encode: bool) -> None:
    operator = Top("top", ("key",), k, "v", "item", ascending)
    state = FakeState()
    out = run(operator, batches_of(rows, size, encode), SCHEMA, state)
    assert [tuple(row.values()) for row in out] == by_the_book(rows, k, ascending)
    assert all(len(kept) <= 2 * k for kept in state.objects["top"].content.values())  # type: ignore[arg-type]


@given(ROWS, st.integers(1, 4), st.booleans(), st.integers(1, 60))
@settings(max_examples=examples(200), deadline=None)
def test_values_that_do_not_get_worse_are_ranked_exactly(rows: list[Input], k: int, ascending: bool, size: int) -> None:
    """Among all items, not only those that are kept."""
    best: dict[tuple[str | None, str | None], int] = {}
    reached: dict[tuple[str | None, str | None], int] = {}
    kept: list[Input] = []
    for at, (key, item, value) in enumerate(rows):
        if value is None or ((key, item) in best and (value < best[key, item]) != ascending):
            continue
        if best.get((key, item)) != value:
            best[key, item], reached[key, item] = value, at
        kept.append((key, item, value))
    ranking: dict[tuple[Any, int], tuple[Any, Any]] = {}
    for row in run(Top("top", ("key",), k, "v", "item", ascending), batches_of(kept, size, False), SCHEMA, FakeState()):
        ranking[row["key"], row["rank"]] = row["item"], row["v"]
    expected: dict[tuple[Any, int], tuple[Any, Any]] = {}
    for key in {key for key, _ in best}:
        items = sorted(
            (entry for entry in best if entry[0] == key),
            key=lambda entry: (best[entry] if ascending else -best[entry], reached[entry]),
        )
        expected.update(((key, rank), (e[1], best[e])) for rank, e in enumerate(items[:k], 1))
    assert ranking == expected


def test_of_the_whole_stream() -> None:
    rows: list[Input] = [("a", "x", 1), ("b", "y", 2), ("a", "z", 3), ("b", "x", 4)]
    out = run(Top("top", (), 2, "v", "item"), batches_of(rows, 3, False), SCHEMA, FakeState())
    assert [tuple(row.values()) for row in out] == [
        (1, "x", 1),
        (1, "y", 2), (2, "x", 1),
        (1, "z", 3), (2, "y", 2),
        (1, "x", 4), (2, "z", 3),
    ]  # fmt: skip


DAY = datetime.date(2024, 1, 1)
MOMENT = datetime.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("item", "value", "dtype"),
    [
        (1, 2.5, pa.float32()),
        (True, 2.5, pa.float64()),
        (DAY, 7, pa.uint64()),
        (b"\xff\x00", MOMENT, pa.timestamp("us", "UTC")),
        (2**64 - 1, DAY, pa.date32()),
        ("x", Decimal("1234567890123456789012345678901234567.8"), pa.decimal128(38, 1)),
        ("x", Decimal("-1234567890123456789012345678901234567.8"), pa.decimal128(38, 1)),
    ],
)
@pytest.mark.parametrize("ascending", [False, True])
def test_types_come_out_as_they_went_in(item: Any, value: Any, dtype: pa.DataType, ascending: bool) -> None:
    items = pa.array([item], pa.uint64() if isinstance(item, int) and not isinstance(item, bool) else None)
    schema = pa.schema([("k", pa.int64()), ("item", items.type), ("v", dtype)])
    first = pa.RecordBatch.from_arrays([pa.array([1]), items, pa.array([value], dtype)], schema=schema)
    empty = pa.RecordBatch.from_arrays([pa.array([1]), items, pa.array([None], dtype)], schema=schema)
    out = run(Top("top", ("k",), 3, "v", "item", ascending), [first, first, empty, empty], schema, FakeState())
    assert out == [{"k": 1, "rank": 1, "item": item, "v": value}, {"k": 1, "rank": 1, "item": None, "v": None}]


def test_no_number_takes_out() -> None:
    schema = pa.schema([("item", pa.string()), ("v", pa.float64())])
    batch = pa.record_batch([["x", "y", "x"], [1.0, 2.0, float("nan")]], schema=schema)
    out = run(Top("top", (), 2, "v", "item"), [batch], schema, FakeState())
    assert [tuple(row.values()) for row in out][3:] == [(2, None, None)]


def test_a_batch_that_changes_much_comes_out_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "MAX_OUTPUT_ROWS", 10)
    rows: list[Input] = [("a", str(i), i) for i in range(20)]
    operator = Top("top", ("key",), 4, "v", "item")
    state = FakeState()
    out = list(operator.create(context(operator, SCHEMA, state)).process(batches_of(rows, 20, False)[0]))
    assert [batch.num_rows for batch in out] == [10, 12, 12, 12, 12, 12, 4]
    assert state.objects["top"].content[b"a"] == ("19", 19, "18", 18, "17", 17, "16", 16)


def test_fewer_ranks_than_when_the_state_was_kept() -> None:
    rows: list[Input] = [("a", item, value) for value, item in enumerate("xyz")]
    state = FakeState()
    run(Top("top", ("key",), 3, "v", "item"), batches_of(rows, 9, False), SCHEMA, state)
    out = run(Top("top", ("key",), 2, "v", "item"), batches_of([("a", "w", 9)], 9, False), SCHEMA, state)
    assert [tuple(row.values()) for row in out] == [("a", 1, "w", 9), ("a", 2, "z", 2)]


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Top("t", ("nothing",), 3, "v", "item"), "'nothing'"),
        (Top("t", ("key",), 3, "w", "item"), "no column 'w'"),
        (Top("t", ("key",), 3, "v", "thing"), "no column 'thing'"),
        (Top("t", ("key",), 3, "item", "v"), "only numbers and times"),
        (Top("t", ("key",), 3, "v", "x"), "floating point"),
        (Top("t", ("key",), 0, "v", "item"), "from 1 to 10000, not 0"),
        (Top("t", ("key",), True, "v", "item"), "not True"),
        (Top("t", ("item",), 3, "v", "item"), "a column twice"),
        (Top("t", ("key",), 3, "v", "item", output="v"), "a column twice"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(operator: Top, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        operator.output_schema(SCHEMA.append(pa.field("x", pa.float64())))
