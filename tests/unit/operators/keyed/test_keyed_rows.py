"""Reduce and Process against plain dicts, however rows are cut into batches."""

from __future__ import annotations

import copy
import pickle
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark import cloudpickle

from flinkplus.errors import ConfigurationError, InvariantViolation, UserFunctionError
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.row import Row
from flinkplus.operators.keyed.functions.context import ProcessContext
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, create, run

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
row_lists = st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.integers(-5, 5)), max_size=20)
cut_lists = st.lists(st.integers(0, 20), max_size=4)


def batches_of(rows: list[tuple[Any, ...]], cuts: list[int], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    whole = pa.record_batch([pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)], schema=schema)
    bounds = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    return [whole.slice(a, b - a) for a, b in pairwise(bounds)]


def history(key: Any, row: Row, ctx: ProcessContext) -> Iterator[tuple[str, int]]:
    """Keeps the last three numbers, a sum, and forgets both at a negative number."""
    seen = ctx.state("seen").get([])
    seen.append(row.n)
    if row.n < 0:
        ctx.state("seen").delete()
        ctx.state("sum").delete()
        return
    ctx.state("seen").put(seen[-3:])
    seen.append("after the put: must not be kept")
    ctx.state("sum").put(ctx.state("sum").get(0) + row.n)
    yield str(ctx.state("seen").get()), ctx.state("sum").get()


@given(row_lists, cut_lists)
@settings(max_examples=examples(150), deadline=None)
def test_process_against_dicts(rows: list[tuple[Any, ...]], cuts: list[int]) -> None:
    seen: dict[Any, list[int]] = defaultdict(list)
    sums: dict[Any, int] = defaultdict(int)
    expected = []
    for word, n in rows:
        if n < 0:
            seen.pop(word, None)
            sums.pop(word, None)
            continue
        seen[word] = [*seen[word], n][-3:]
        sums[word] += n
        expected.append({"seen": str(seen[word]), "sum": sums[word]})
    state = FakeState()
    operator = Process("p", ("word",), history, "seen string, sum long")
    assert run(operator, batches_of(rows, cuts), SCHEMA, state) == expected
    if rows:
        stored = state.objects["p/seen"].content
        assert stored == {b"\xff" if w is None else w.encode(): v for w, v in seen.items()}


@given(row_lists, cut_lists)
@settings(max_examples=examples(100), deadline=None)
def test_reduce_against_a_dict(rows: list[tuple[Any, ...]], cuts: list[int]) -> None:
    so_far: dict[Any, int] = {}
    expected = []
    for word, n in rows:
        so_far[word] = 3 * so_far[word] - n if word in so_far else n
        expected.append({"word": word, "n": so_far[word]})
    operator = Reduce("r", ("word",), lambda a, b: (b.word, 3 * a.n - b["n"]))
    assert run(operator, batches_of(rows, cuts), SCHEMA, FakeState()) == expected


def test_reduce_over_lists_that_the_function_changes() -> None:
    schema = pa.schema([("k", pa.string()), ("l", pa.list_(pa.int64()))])

    def grow(a: Row, b: Row) -> Row:
        a.l.extend(b.l)
        return a

    rows = [("a", [1]), ("a", [2]), ("a", [3])]
    for cuts in ([], [1], [2], [1, 2]):
        out = run(Reduce("r", ("k",), grow), batches_of(rows, cuts, schema), schema, FakeState())
        assert [r["l"] for r in out] == [[1], [1, 2], [1, 2, 3]]


def test_a_value_got_and_changed_but_not_put_is_not_changed() -> None:
    def careless(key: str, row: Row, ctx: ProcessContext) -> list[str]:
        state = ctx.state("s")
        if state.get() is None:
            state.put([0])
        state.get().append(1)
        return [str(state.get())]

    rows = [("a", 0)] * 3
    for cuts in ([], [1], [1, 2]):
        out = run(Process("p", ("word",), careless, "s string"), batches_of(rows, cuts), SCHEMA, FakeState())
        assert [r["s"] for r in out] == ["[0]"] * 3


def test_state_is_read_once_for_a_batch() -> None:
    state = FakeState()
    operator = Process("p", ("word",), lambda key, row, ctx: ctx.state("s").put(1), "s string")
    assert run(operator, batches_of([(w, 1) for w in "abcabc"], [4]), SCHEMA, state) == []
    assert state.objects["p/s"].reads == 2
    assert state.objects["p/s"].content == {b"a": 1, b"b": 1, b"c": 1}


def test_the_key_is_the_columns_value_or_values() -> None:
    seen: list[Any] = []
    rows = [("a", 1), (None, 2)]
    for keys in (("word",), ("n",), ("n", "word")):
        operator = Process("p", keys, lambda key, row, ctx: seen.append((key, ctx.key, ctx.subtask)), "s string")
        run(operator, batches_of(rows, []), SCHEMA, FakeState())
    assert [key for key, _, _ in seen] == ["a", None, 1, 2, (1, "a"), (2, None)]
    assert all(key == ctx_key and subtask == "p[1]" for key, ctx_key, subtask in seen)


def test_time_and_randomness_are_those_of_the_step() -> None:
    def told(key: str, row: Row, ctx: ProcessContext) -> Iterator[tuple[float, float]]:
        yield ctx.now(), ctx.random()

    operator = Process("p", ("word",), told, "now double, chance double")
    rng = random.Random(7)
    ctx = OperatorContext("p", "p[0]", 0, 1, SCHEMA, FakeState(), now_ms=lambda: 1_700_000_000_123, rng=lambda: rng)
    [out] = operator.create(ctx).process(batches_of([("a", 1), ("b", 2)], [])[0])
    again = random.Random(7)
    assert out.to_pylist() == [{"now": 1_700_000_000.123, "chance": again.random()} for _ in range(2)]


def test_there_is_no_time_outside_of_steps() -> None:
    operator = Process("p", ("word",), lambda key, row, ctx: [(ctx.now(),)], "now double")
    with pytest.raises(UserFunctionError, match="belong to a step"):
        run(operator, batches_of([("a", 1)], []), SCHEMA, FakeState())


def test_nothing_of_a_failed_batch_is_written() -> None:
    state = FakeState()

    def breaks(key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.state("s").put(row.n)
        if row.n == 3:
            raise ValueError("three")

    with pytest.raises(UserFunctionError, match=r"ValueError: three.*Row\(word='b', n=3\)"):
        run(Process("p", ("word",), breaks, "s string"), batches_of([("a", 1), ("b", 3)], []), SCHEMA, state)
    assert state.objects["p/s"].content == {}
    with pytest.raises(UserFunctionError, match=r"ZeroDivisionError.*n=2"):
        run(Reduce("r", ("word",), lambda a, b: 1 / 0), batches_of([("a", 1), ("a", 2)], []), SCHEMA, state)
    with pytest.raises(UserFunctionError, match=r"returned int.*n=2"):
        run(Reduce("r", ("word",), lambda a, b: 1), batches_of([("a", 1), ("a", 2)], []), SCHEMA, state)
    with pytest.raises(UserFunctionError, match=r"'n' of type int64.*n=2"):
        run(Reduce("r", ("word",), lambda a, b: ("a", "x")), batches_of([("a", 1), ("a", 2)], []), SCHEMA, state)
    assert state.objects["r"].content == {}


def test_what_cannot_be_kept_is_said() -> None:
    operator = Process("p", ("word",), lambda key, row, ctx: ctx.state("s").put(lambda: 0), "s string")
    with pytest.raises(UserFunctionError, match="pickle"):
        run(operator, batches_of([("a", 1)], []), SCHEMA, FakeState())


def test_descriptors() -> None:
    for operator in (
        Reduce("r", ("word",), lambda a, b: a),
        Process("p", ("word",), lambda key, row, ctx: [(key,)], "w string"),
    ):
        again = pickle.loads(cloudpickle.dumps(operator))
        assert again.key_columns == ("word",)
        assert run(again, batches_of([("a", 1)], []), SCHEMA, FakeState())[0]
        assert list(create(again, SCHEMA, FakeState()).process(batches_of([], [])[0])) == []
        with pytest.raises(ConfigurationError, match="'word'"):
            again.output_schema(pa.schema([("x", pa.string())]))
        with pytest.raises(InvariantViolation, match="without keyed state"):
            create(again, SCHEMA)


def test_values_of_different_kinds_come_back_as_they_were() -> None:
    values: list[Any] = [0, 1.5, "x", b"y", True, (1, "a"), (1, [2]), {"k": {1}}, [None], {1, 2}]
    state = FakeState()

    def keep(key: int, row: Row, ctx: ProcessContext) -> list[str]:
        ctx.state("s").put(values[row.n])
        return [repr(ctx.state("s").get())]

    rows = [("w", i) for i in range(len(values))]
    out = run(Process("p", ("n",), keep, "r string"), batches_of(rows, []), SCHEMA, state)
    assert [r["r"] for r in out] == list(map(repr, values))
    assert copy.copy(list(state.objects["p/s"].content.values())) == values
