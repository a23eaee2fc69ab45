"""Rows on which operators fail: what is left out, what goes to the dead letters, and that state is as if they had not
come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.expressions.column import expression
from flinkplus.operators.keyed.functions.context import ProcessContext
from flinkplus.operators.keyed.keyed_rows import Process
from flinkplus.operators.rows.expressions import Select, Where
from flinkplus.operators.rows.rejects import DEAD_LETTERS, OnError, SideOutput, stable, tag_of, tagged
from flinkplus.operators.rows.rows import Filter, FlatMap, Map, MapBatches
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, context, create

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
BAD = 13


def batch_of(numbers: list[int | None]) -> pa.RecordBatch:
    keys = [None if n is None else f"k{n % 3}" for n in numbers]
    return pa.record_batch([pa.array(keys, pa.string()), pa.array(numbers, pa.int64())], schema=SCHEMA)


def checked(n: int | None) -> int | None:
    if n == BAD:
        raise ValueError(f"{n} is not good, {object()}")
    return n


def twice(row: Any) -> Iterator[int | None]:
    yield row.n
    yield checked(row.n)


def whole_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    for n in batch.column("n").to_pylist():
        checked(n)
    return batch.select(["n"])


OPERATORS: dict[str, Callable[[OnError], Operator]] = {
    "map": lambda on_error: Map("op", lambda row: checked(row.n), "n long", on_error),
    "map to a wrong type": lambda on_error: Map("op", lambda row: "x" if row.n == BAD else row.n, "n long", on_error),
    "filter": lambda on_error: Filter("op", lambda row: checked(row.n) != 5, on_error),
    "flat map": lambda on_error: FlatMap("op", twice, "n long", on_error),
    "map batches": lambda on_error: MapBatches("op", whole_batch, "n long", on_error),
    "select": lambda on_error: Select("op", (expression("7 % (n - 13) AS m"), expression("n")), on_error),
    "where": lambda on_error: Where("op", expression("7 % (n - 13) > -100 or n is null"), on_error),
}


def split(operator: Operator, batches: list[pa.RecordBatch]) -> tuple[list[Any], list[dict[str, Any]], dict[str, int]]:
    """The column ``n`` of the rows, the dead letters, and the metrics."""
    ctx = context(operator, SCHEMA, FakeState())
    instance = operator.create(ctx)
    outputs = {DEAD_LETTERS: operator.side_outputs(SCHEMA).get(DEAD_LETTERS), None: operator.output_schema(SCHEMA)}
    sides = {name: create(SideOutput("s", "op", name, schema), SCHEMA) for name, schema in outputs.items()}
    found: dict[str | None, list[dict[str, Any]]] = {name: [] for name in outputs}
    for batch in batches:
        for given_batch in instance.process(batch):
            for name, side in sides.items():
                for out in side.process(given_batch):
                    assert out.schema.metadata is None and out.num_rows
                    found[name] += out.to_pylist()
    return [row["n"] for row in found[None]], found[DEAD_LETTERS], ctx.metrics


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_row_that_fails_is_left_out_or_becomes_a_dead_letter(kind: str) -> None:
    numbers = [1, BAD, None, 2, BAD, BAD, 4]
    with pytest.raises(UserFunctionError, match="13"):
        split(OPERATORS[kind]("fail"), [batch_of(numbers)])
    good = [1, None, 2, 4]
    wanted = [n for n in good for _ in range(2)] if kind == "flat map" else good
    rows, dead, metrics = split(OPERATORS[kind]("skip"), [batch_of(numbers)])
    assert (rows, dead, metrics["skipped_rows"]) == (wanted, [], 3)
    rows, dead, metrics = split(OPERATORS[kind]("dead-letter"), [batch_of(numbers)])
    assert (rows, metrics["dead_letters"]) == (wanted, 3)
    assert [(row["k"], row["n"], row["operator"]) for row in dead] == [("k1", BAD, "op")] * 3
    assert len({row["error"] for row in dead}) == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(sorted(OPERATORS)),
    st.lists(st.sampled_from([1, 2, 4, BAD, None]), max_size=20),
    st.integers(0, 20),
)
def test_what_is_rejected_does_not_depend_on_the_batch(kind: str, numbers: list[int | None], at: int) -> None:
    whole = batch_of(numbers)
    parts = [part for part in (whole.slice(0, at), whole.slice(min(at, len(numbers)))) if part.num_rows]
    rows, dead, metrics = split(OPERATORS[kind]("dead-letter"), [whole] if numbers else [])
    assert split(OPERATORS[kind]("dead-letter"), parts) == (rows, dead, metrics)
    assert len(dead) == numbers.count(BAD)


def test_a_batch_without_an_error_stays_whole() -> None:
    (out,) = create(OPERATORS["where"]("skip"), SCHEMA).process(batch_of([1, 2]))
    assert out.num_rows == 2 and out.column(1).to_pylist() == [1, 2]


def test_the_text_of_an_error_is_the_same_in_every_process() -> None:
    _, dead, _ = split(OPERATORS["map"]("dead-letter"), [batch_of([BAD])])
    assert dead[0]["error"].startswith("ValueError: 13 is not good, <object object at 0x> (test_rejects.py:")
    assert stable("a (/home/me/b.py:3 in f) 0x7f00deadbeef 0x12") == "a (b.py:3 in f) 0x 0x12"
    assert stable("x" * 5_000).endswith("... (5,000 characters)")


def test_what_a_function_writes_beside_its_rows_does_not_choose_their_output() -> None:
    def marked(batch: pa.RecordBatch) -> pa.RecordBatch:
        return tagged(batch.select(["n"]), DEAD_LETTERS)

    (out,) = create(MapBatches("op", marked, "n long", "skip"), SCHEMA).process(batch_of([1, 2]))
    assert tag_of(out) is None and out.column(0).to_pylist() == [1, 2]


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="on_error must be one of"):
        OPERATORS["map"]("ignore").side_outputs(SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has a column 'error': rename it before"):
        OPERATORS["map"]("dead-letter").side_outputs(pa.schema([("error", pa.string())]))
    with pytest.raises(ConfigurationError, match="cannot be called 'rows'"):
        Process("p", ("k",), lambda key, row, ctx: [], "n long", aside=(("rows", "n long"),)).side_outputs(SCHEMA)


def summed(key: Any, row: Any, ctx: ProcessContext) -> Iterator[tuple[Any, int]]:
    """Changes the state, and gives a row, before it fails; rows that are negative go aside."""
    total = ctx.state("total")
    total.put(total.get(0) + (row.n or 0))
    if row.n is not None and row.n < 0:
        ctx.side_output("negative", (key, row.n))
    yield key, total.get()
    checked(row.n)


def process(on_error: OnError) -> Process:
    return Process(
        "op", ("k",), summed, "k string, n long", on_error=on_error, aside=(("negative", "k string, n long"),)
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from([1, 2, -4, BAD, None]), max_size=20), st.integers(0, 20))
def test_a_row_that_fails_leaves_no_trace_in_the_state(numbers: list[int | None], at: int) -> None:
    whole = batch_of(numbers)
    parts = [part for part in (whole.slice(0, at), whole.slice(min(at, len(numbers)))) if part.num_rows]
    operator = process("dead-letter")
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    outputs: dict[str | None, pa.Schema] = {None: operator.output_schema(SCHEMA)}
    for output, schema in operator.side_outputs(SCHEMA).items():
        outputs[output] = schema
    sides = {name: create(SideOutput("s", "op", name, schema), SCHEMA) for name, schema in outputs.items()}
    found: dict[str | None, list[Any]] = {name: [] for name in outputs}
    for part in parts:
        for out in instance.process(part):
            for name, side in sides.items():
                found[name] += [tuple(row.values()) for each in side.process(out) for row in each.to_pylist()]
    totals: dict[Any, int] = {}
    wanted = []
    for key, n in zip(*whole.to_pydict().values(), strict=True):
        if n != BAD:
            totals[key] = totals.get(key, 0) + (n or 0)
            wanted.append((key, totals[key]))
    assert found[None] == wanted
    assert found["negative"] == [(f"k{n % 3}", n) for n in numbers if n is not None and n < 0]
    assert [row[:2] for row in found[DEAD_LETTERS]] == [("k1", BAD)] * numbers.count(BAD)


def test_a_side_output_that_is_not_declared_is_an_error_of_the_row() -> None:
    operator = Process("p", ("k",), lambda key, row, ctx: ctx.side_output("late", row), "n long")
    with pytest.raises(UserFunctionError, match=r"no side output 'late' among \[\]"):
        list(create(operator, SCHEMA, FakeState()).process(batch_of([1])))
