"""Structs, arrays and maps in rows: on their way to other subtasks, and in the state of operators that keep rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.canonical import canonical
from flinkplus.operators.base.columns import merge, plain
from flinkplus.operators.base.keys import HashPartitioner
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.event_time.event_time import WithWatermark
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.keyed.deduplicate import Deduplicate
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.rows.rows import Filter, FlatMap, Map, MapBatches
from flinkplus.runtime.transport.wire.message_format import decode_records, encode_canonical
from tests.unit.operators.operator_fakes import FakeState, create, run

DDL = (
    "k string, t long, s struct<a: int, b: struct<c: string not null, d: array<double>>>, l array<map<string, int>>, "
    "m map<string, struct<x: decimal(5,2), y: timestamp>>"
)
SCHEMA = parse_schema(DDL)


def row(i: int) -> dict[str, Any]:
    return {
        "k": f"k{i % 5}",
        "t": i,
        "s": None if i % 7 == 0 else {"a": i, "b": None if i % 3 else {"c": "é" * (i % 4), "d": [i / 2, None]}},
        "l": None if i % 11 == 0 else [[("p", i), ("q", None)], None, []],
        "m": [] if i % 2 else [(f"x{i}", {"x": None, "y": None}), ("z", None)],
    }


def batch_of(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(i) for i in range(count)], schema=SCHEMA)


@pytest.mark.parametrize("count", [3, 1500])
def test_they_travel_as_they_are(count: int) -> None:
    batch = batch_of(count)
    assert canonical(batch).to_pylist() == batch.to_pylist()
    assert decode_records(encode_canonical(canonical(batch.slice(1)))).to_pylist() == batch.slice(1).to_pylist()
    parts = HashPartitioner(("k",), 3, 128).split(batch)
    assert sorted((r["t"] for _, part in parts for r in part.to_pylist())) == list(range(count))
    assert merge([batch.slice(0, 1), batch.slice(1)]).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    "operator",
    [
        Count("op", ("k",), "count"),
        Sum("op", ("k",), "t", "sum"),
        Deduplicate("op", ("k", "t")),
        Map("op", lambda row: row, DDL),
        Filter("op", lambda row: True),
        FlatMap("op", lambda row: [row], DDL),
        MapBatches("op", lambda batch: batch, DDL),
        WithWatermark("op", "t", 0, 1, None),
        Reduce("op", ("k",), lambda before, now: now),
        Process("op", ("k",), lambda key, row, ctx: [row], DDL),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_operators_pass_them_on(operator: Operator) -> None:
    batch = batch_of(600)
    given = run(operator, [batch.slice(0, 7), batch.slice(7)], SCHEMA, FakeState())
    assert [{name: row[name] for name in SCHEMA.names} for row in given] == batch.to_pylist()


def test_they_are_kept_in_the_state_of_a_key() -> None:
    """``reduce`` keeps rows, ``process`` whatever a function puts; both survive what functions do with them."""

    def keep_longer(before: Any, now: Any) -> Any:
        before.l.append(None)
        return before if len(before.m) >= len(now.m) else now

    def remember(key: Any, row: Any, ctx: Any) -> Any:
        earlier = ctx.state("last").get()
        ctx.state("last").put({"s": row.s, "m": row.m})
        yield row.k, row.t, None if earlier is None else earlier["s"], row.l, (earlier or row.as_dict())["m"]

    batch = pa.RecordBatch.from_pylist([row(i) for i in (1, 6, 16, 26, 36)], schema=SCHEMA)
    state = FakeState()
    reduced = run(Reduce("r", ("k",), keep_longer), [batch.slice(0, 2), batch.slice(2)], SCHEMA, state)
    assert [r["t"] for r in reduced] == [1, 6, 6, 6, 6]
    assert reduced[0]["m"] == [] and reduced[-1]["m"] == batch.to_pylist()[1]["m"]
    given = run(Process("p", ("k",), remember, DDL), [batch.slice(0, 3), batch.slice(3)], SCHEMA, FakeState())
    rows = batch.to_pylist()
    assert [r["s"] for r in given] == [None, *(r["s"] for r in rows[:-1])]
    assert [r["m"] for r in given[1:]] == [r["m"] for r in rows[:-1]]


def test_a_join_holds_them() -> None:
    right = parse_schema("k string, at long, l array<struct<u: int>>")
    join = KeyedJoin(
        "join", ("k",), JoinSide(SCHEMA, ("k",), "t", ""), JoinSide(right, ("k",), "at", "right_"), Bounds(0, 0)
    )
    state, left = FakeState(), batch_of(40)
    instance = create(join, SCHEMA, state)
    assert list(instance.process_input(0, left)) == []
    saved = instance.snapshot(1)
    again = create(join, SCHEMA, state)
    again.restore(saved)
    others = [{"k": f"k{i % 5}", "at": i, "l": [{"u": i}, None]} for i in range(10, 30)]
    found = [
        out for batch in again.process_input(1, pa.RecordBatch.from_pylist(others, schema=right))
        for out in plain(batch, join.output_schema(SCHEMA)).to_pylist()
    ]  # fmt: skip
    assert len(found) == 20
    for out in found:
        i = out["t"]
        assert {name: out[name] for name in ("k", "t", "s", "m")} == {n: row(i)[n] for n in ("k", "t", "s", "m")}
        assert out["right_l"] == [{"u": i}, None]


def test_a_key_cannot_be_one() -> None:
    with pytest.raises(ConfigurationError, match=r"key column 's' has the type struct.*cannot be a key"):
        Count("op", ("s",), "count").output_schema(SCHEMA)
