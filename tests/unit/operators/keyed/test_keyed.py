"""Running counts and sums against plain Python dicts, however the rows are cut into batches."""

from __future__ import annotations

import pickle
from collections import defaultdict
from itertools import pairwise
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, InvariantViolation, UserFunctionError
from flinkplus.operators.base.keys import HashPartitioner, encode_values
from flinkplus.operators.base.operator import MAX_OUTPUT_ROWS, Operator
from flinkplus.operators.keyed import keyed
from flinkplus.operators.keyed.keyed import Count, Sum
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, create, run

WORDS = pa.schema([("word", pa.string())])
SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", "é", None]),
        st.one_of(st.none(), st.integers(-(10**6), 10**6), st.sampled_from([2**61, -(2**61)])),
        st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32), st.just(0.1)),
    ),
    max_size=30,
)


def batches_of(rows: list[tuple[Any, ...]], cuts: list[int], encode: bool) -> list[pa.RecordBatch]:
    arrays = [pa.array([row[i] for row in rows], type=f.type) for i, f in enumerate(SCHEMA)]
    if encode:
        arrays[0] = arrays[0].dictionary_encode()
    whole = pa.RecordBatch.from_arrays(arrays, names=SCHEMA.names)
    bounds = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    return [whole.slice(a, b - a) for a, b in pairwise(bounds)]


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.one_of(st.none(), st.integers(-5, 5))), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.sampled_from([0, 4, keyed.FEW_NUMBERS]),
    st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_keys_that_are_whole_numbers(rows: list[tuple[int, Any]], cuts: list[int], few: int, nullable: bool) -> None:
    """Their rows are found without their bytes; the state has the bytes all the same."""
    if not nullable:
        rows = [(key, n or 0) for key, n in rows]
    schema = pa.schema([("key", pa.int64()), pa.field("n", pa.int64(), nullable)])
    whole = pa.record_batch([pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)], schema=schema)
    bounds = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    batches = [whole.slice(a, b - a) for a, b in pairwise(bounds)]
    counts: dict[int, int] = defaultdict(int)
    sums: dict[int, int] = {}
    expected = []
    for key, n in rows:
        counts[key] += 1
        if n is not None:
            sums[key] = sums.get(key, 0) + n
        expected.append((counts[key], sums.get(key)))
    state = FakeState()
    with mock.patch.multiple(keyed, FEW_ROWS=few, FEW_NUMBERS=few):
        counted = run(Count("count", ("key",)), batches, schema, state)
        summed = run(Sum("sum", ("key",), "n"), batches, schema, state)
    assert [(c["count"], s["sum"]) for c, s in zip(counted, summed, strict=True)] == expected
    assert state.numbers["count"].content() == {encode_values(pa.array([k]))[0].as_py(): c for k, c in counts.items()}


@given(rows, st.lists(st.integers(0, 30), max_size=4), st.booleans(), st.sampled_from([0, 4, keyed.FEW_ROWS]))
@settings(max_examples=examples(300), deadline=None)
def test_counts_and_sums_as_with_dicts(
    rows: list[tuple[Any, ...]], cuts: list[int], encode: bool, few_rows: int
) -> None:
    """However the rows are cut, and whether they are taken one by one or all at once."""
    with mock.patch.multiple(keyed, FEW_ROWS=few_rows, FEW_NUMBERS=few_rows):
        check_counts_and_sums(rows, cuts, encode)


def check_counts_and_sums(rows: list[tuple[Any, ...]], cuts: list[int], encode: bool) -> None:
    batches = batches_of(rows, cuts, encode)
    counts: dict[Any, int] = defaultdict(int)
    sums: dict[Any, int] = {}
    float_sums: dict[Any, float] = {}
    expected: list[tuple[int, int | None, float | None]] = []
    overflow = False
    for word, n, x in rows:
        counts[word] += 1
        if n is not None:
            sums[word] = sums.get(word, 0) + n
            overflow = overflow or not -(2**63) <= sums[word] < 2**63
        if x is not None:
            float_sums[word] = float_sums.get(word, 0.0) + x
        expected.append((counts[word], sums.get(word), float_sums.get(word)))
    state = FakeState()
    state.number_state("count", "int64")
    counted = run(Count("count", ("word",)), batches, SCHEMA, state)
    assert [tuple(row.values()) for row in counted] == [(*row, e[0]) for row, e in zip(rows, expected, strict=True)]
    stored = state.numbers["count"].content()
    assert stored == {b"\xff" if word is None else word.encode(): count for word, count in counts.items()}
    summed = run(Sum("float", ("word",), "x"), batches, SCHEMA, state)
    assert [row["sum"] for row in summed] == [e[2] for e in expected]
    if overflow:
        with pytest.raises(UserFunctionError, match="64 bits"):
            run(Sum("sum", ("word",), "n"), batches, SCHEMA, state)
    else:
        summed = run(Sum("sum", ("word",), "n", output="total"), batches, SCHEMA, state)
        assert [row["total"] for row in summed] == [e[1] for e in expected]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, None])), max_size=20),
    st.sampled_from([0, keyed.FEW_ROWS]),
)
@settings(deadline=None)
def test_keys_of_several_columns(rows: list[tuple[Any, ...]], few_rows: int) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    batch = pa.record_batch([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)
    counts: dict[Any, int] = defaultdict(int)
    expected = []
    for row in rows:
        counts[row] += 1
        expected.append(counts[row])
    with mock.patch.multiple(keyed, FEW_ROWS=few_rows, FEW_NUMBERS=few_rows):
        assert [r["count"] for r in run(Count("count", ("a", "b")), [batch], schema, FakeState())] == expected


def test_a_dictionary_with_the_same_word_twice_counts_it_once() -> None:
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1, None]), pa.array(["a", "b", "a"]), safe=False)
    batch = pa.RecordBatch.from_arrays([twice], names=["word"])
    rows = run(Count("count", ("word",)), [batch, batch], WORDS, FakeState())
    assert [(r["word"], r["count"]) for r in rows[:5]] == [("a", 1), ("b", 1), ("a", 2), ("b", 2), (None, 1)]
    assert [r["count"] for r in rows[5:]] == [3, 3, 4, 4, 2]


def test_words_of_the_dictionary_that_no_row_uses_get_no_state() -> None:
    array = pa.array(["a", "b", "c"]).dictionary_encode().slice(1, 1)
    state = FakeState()
    run(Count("count", ("word",)), [pa.RecordBatch.from_arrays([array], names=["word"])], WORDS, state)
    assert state.numbers["count"].content() == {b"b": 1}


def test_more_keys_in_a_batch_than_16_bits() -> None:
    count = 70_000
    words = [f"{i % 66_000}" for i in range(count)]
    state = FakeState()
    state.number_state("count", "int64").values = np.zeros(count, dtype=np.int64)
    rows = run(Count("count", ("word",)), [pa.record_batch({"word": words})], WORDS, state)
    assert [r["count"] for r in rows] == [1 if i < 66_000 else 2 for i in range(count)]


def test_key_column_stays_encoded_and_long_output_is_cut() -> None:
    instance = create(Count("count", ("word",)), WORDS, FakeState())
    out = list(instance.process(pa.record_batch({"word": ["a", "b"] * (MAX_OUTPUT_ROWS // 2 + 1)})))
    assert [b.num_rows for b in out] == [MAX_OUTPUT_ROWS, 2]
    assert isinstance(out[0].column("word"), pa.DictionaryArray)
    assert list(instance.process(pa.record_batch({"word": pa.array([], pa.string())}))) == []


def test_split_then_counted_is_the_same_as_counted_whole() -> None:
    batch = pa.record_batch({"word": [f"w{i * i % 97}" for i in range(1000)]})
    whole = run(Count("count", ("word",)), [batch], WORDS, FakeState())
    parts = HashPartitioner(("word",), 3).split(batch)
    split = [row for _, part in parts for row in run(Count("count", ("word",)), [part], WORDS, FakeState())]
    assert sorted(map(str, split)) == sorted(map(str, whole))


def test_integer_sum_near_the_limit_is_exact() -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.uint64())])
    batch = pa.record_batch([["a", "b", "a"], pa.array([2**62, 2**62, 2**62 - 1], pa.uint64())], schema=schema)
    state = FakeState()
    assert [r["sum"] for r in run(Sum("sum", ("k",), "n"), [batch], schema, state)] == [2**62, 2**62, 2**63 - 1]
    with pytest.raises(UserFunctionError, match=r"operator 'sum', subtask sum\[1\]"):
        run(Sum("sum", ("k",), "n"), [batch], schema, state)
    too_large = pa.record_batch([["a"], pa.array([2**63], pa.uint64())], schema=schema)
    with pytest.raises(UserFunctionError, match="64 bits"):
        run(Sum("sum", ("k",), "n"), [too_large], schema, FakeState())


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Count("count", ("w",)), "'w'"),
        (Count("count", ("word",), output="n"), "'n' already"),
        (Sum("sum", ("word",), "y"), "'y'"),
        (Sum("sum", ("word",), "word"), "only numbers"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(operator: Operator, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        operator.output_schema(SCHEMA)


def test_descriptors() -> None:
    count = Count("count", ("word",))
    assert pickle.loads(pickle.dumps(count)) == count
    assert count.key_columns == ("word",)
    assert Sum("sum", ("a", "b"), "n").key_columns == ("a", "b")
    assert count.output_schema(WORDS) == pa.schema([("word", pa.string()), ("count", pa.int64())])
    with pytest.raises(InvariantViolation, match="without keyed state"):
        create(count, WORDS)


@pytest.mark.parametrize(("nulls", "noted"), [([-1], 1), ([0], 1), ([], 0), ([0, 5, -1], 3)])
def test_only_the_keys_that_a_null_comes_to_first_are_looked_up_among_the_zeros(nulls: list[int], noted: int) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    values: list[int | None] = [1] * 1500
    for row in nulls:
        values[row] = None
    batch = pa.record_batch([pa.array([f"k{i}" for i in range(len(values))]), pa.array(values)], schema=schema)
    state = FakeState()
    rows = run(Sum("sum", ("k",), "n"), [batch], schema, state)
    assert [row["sum"] for row in rows] == values
    assert {name: len(numbers.rows) for name, numbers in state.numbers.items()} == {"sum": 1500, "sum#zero": noted}
