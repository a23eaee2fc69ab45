"""Random expressions give for each row what plain Python gives; a row that is an error is rejected, and no other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.expressions.tree import Alias, Call, Case, Literal, Name, Part, literal_of
from flinkplus.operators.rows.expressions import Select
from tests.examples import examples

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("x", pa.float64()), ("y", pa.float64()), ("p", pa.bool_())])
LIMIT = 2**63
SMALL = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([LIMIT - 1, -LIMIT]))
FLOATS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, -2.5, float("nan"), float("inf")]))
ROWS = st.lists(st.tuples(SMALL, SMALL, FLOATS, FLOATS, st.sampled_from([None, True, False])), max_size=12)

NUMBER = st.one_of(
    st.sampled_from([Name(("a",)), Name(("b",))]), st.integers(-2, 2).map(lambda n: Literal(n, pa.int64()))
)
REAL = st.sampled_from([Name(("x",)), Name(("y",)), literal_of(1.5), literal_of(float("nan"))])
SIGNS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def _called(sign: str, left: Part, right: Part) -> Part:
    return Call(sign, (left, right))


def numbers(depth: int) -> st.SearchStrategy[Part]:
    if depth == 0:
        return NUMBER
    inner = numbers(depth - 1)
    return st.one_of(
        NUMBER,
        st.builds(_called, st.sampled_from(["+", "-", "*", "%", "div"]), inner, inner),
        st.builds(lambda c, v, o: Case(((c, v),), o), conditions(depth - 1), inner, inner),
        st.builds(lambda *parts: Call("coalesce", parts), inner, inner),
    )


def conditions(depth: int) -> st.SearchStrategy[Part]:
    compared = st.builds(_called, st.sampled_from(SIGNS), REAL, REAL)
    if depth == 0:
        return st.one_of(st.just(Name(("p",))), compared)
    inner, number = conditions(depth - 1), numbers(depth - 1)
    return st.one_of(
        compared,
        st.builds(_called, st.sampled_from(SIGNS), number, number),
        st.builds(_called, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(lambda part: Call("not", (part,)), inner),
        st.builds(lambda part: Call("isnull", (part,)), number),
    )


class Wrong(Exception):
    """There is no value."""


def value(part: Any, row: dict[str, Any]) -> Any:
    match part:
        case Name():
            return row[part.parts[0]]
        case Case():
            for condition, then in part.branches:
                if value(condition, row) is True:
                    return value(then, row)
            return None if part.otherwise is None else value(part.otherwise, row)
        case Call():
            return called(part.function, part.arguments, row)
        case _:
            return part.value


def called(name: str, parts: Any, row: dict[str, Any]) -> Any:
    first = value(parts[0], row)
    if name == "coalesce":
        return value(parts[1], row) if first is None else first
    if name in ("and", "or"):
        decides = name == "or"
        if first is decides:
            return decides
        second = value(parts[1], row)
        return decides if second is decides else (None if first is None or second is None else not decides)
    if name == "not":
        return None if first is None else not first
    if name == "isnull":
        return first is None
    second = value(parts[1], row)
    if name == "<=>":
        return compared("=", first, second) if first is not None and second is not None else first is second
    if first is None or second is None:
        return None
    return compared(name, first, second) if name in SIGNS else arithmetic(name, first, second)


def ordered(number: float) -> tuple[bool, float]:
    return (number != number, 0.0 if number != number else number)


def compared(sign: str, a: Any, b: Any) -> bool:
    a, b = ordered(a), ordered(b)
    return {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]


def arithmetic(sign: str, a: int, b: int) -> int:
    if sign in ("%", "div"):
        if b == 0:
            raise Wrong
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        found = quotient if sign == "div" else a - quotient * b
    else:
        found = {"+": a + b, "-": a - b, "*": a * b}[sign]
    if not -LIMIT <= found < LIMIT:
        raise Wrong
    return found


@settings(max_examples=examples(150), deadline=None)
@given(rows=ROWS, parts=st.tuples(numbers(2), conditions(2)), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_values_and_errors_are_those_of_python(rows: list[Any], parts: tuple[Part, Part], cuts: list[int]) -> None:
    batch = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    select = Select("select", (Alias(parts[0], "n"), Alias(parts[1], "c"), Name(("a",))), "dead-letter")
    ctx = OperatorContext("select", "select[0]", 0, 1, SCHEMA)
    wanted, dead = [], 0
    for row in batch.to_pylist():
        try:
            wanted.append((value(parts[0], row), value(parts[1], row), row["a"]))
        except Wrong:
            dead += 1
    instance, output = select.create(ctx), select.output_schema(SCHEMA)
    found, rejected = [], 0
    ends = sorted({min(cut, batch.num_rows) for cut in cuts} | {0, batch.num_rows})
    for start, end in pairwise(ends):
        for given_batch in instance.process(batch.slice(start, end - start)):
            if given_batch.schema.metadata:
                rejected += given_batch.num_rows
            else:
                found += [tuple(row.values()) for row in plain(given_batch, output).to_pylist()]
    assert found == wanted
    assert rejected == dead == ctx.metrics["dead_letters"]
