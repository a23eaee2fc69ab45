"""Broadcast state: what the functions may do with it, and that it comes back whole."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import UserFunctionError
from flinkplus.operators.base.operator import Inherited, OperatorContext
from flinkplus.operators.rows.broadcast import BroadcastContext, ProcessBroadcast, _ProcessBroadcastInstance
from tests.unit.operators.operator_fakes import FakeState

ROWS = pa.schema([("kind", pa.string()), ("n", pa.int64())])
RULES = pa.schema([("kind", pa.string()), ("factor", pa.int64())])


def rows(*pairs: tuple[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": kind, "n": n} for kind, n in pairs], schema=ROWS)


def rules(*pairs: tuple[str, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": kind, "factor": factor} for kind, factor in pairs], schema=RULES)


def keep(rule: Any, ctx: BroadcastContext) -> None:
    factors: Any = ctx.broadcast_state("factors")
    if rule.factor is None:
        del factors[rule.kind]
    else:
        factors[rule.kind] = [rule.factor]


def multiply(row: Any, ctx: BroadcastContext) -> Iterator[tuple[str, int]]:
    factors = ctx.broadcast_state("factors")
    if row.kind in factors:
        yield row.kind, row.n * factors[row.kind][0]


def created(
    state: FakeState, fn: Any = multiply, on_broadcast: Any = keep, index: int = 0
) -> _ProcessBroadcastInstance:
    operator = ProcessBroadcast("apply", fn, on_broadcast, "kind string, n long", RULES, 1)
    instance = operator.create(OperatorContext("apply", f"apply[{index}]", index, 2, ROWS, state))
    assert isinstance(instance, _ProcessBroadcastInstance)
    return instance


def given(instance: _ProcessBroadcastInstance, batch: pa.RecordBatch) -> list[int]:
    return [n for out in instance.process_input(0, batch) for n in out.column("n").to_pylist()]


def test_rows_are_processed_with_what_was_kept_so_far() -> None:
    instance = created(FakeState())
    assert given(instance, rows(("a", 1))) == []
    assert list(instance.process_input(1, rules(("a", 10), ("b", 100)))) == []
    assert given(instance, rows(("a", 1), ("b", 2), ("c", 3))) == [10, 200]
    list(instance.process_input(1, rules(("a", None), ("b", 7))))
    assert given(instance, rows(("a", 1), ("b", 2))) == [14]


def test_a_successor_and_subtasks_of_another_parallelism_have_the_same() -> None:
    state = FakeState()
    first = created(state)
    list(first.process_input(1, rules(*((f"kind-{i}", i) for i in range(300)), ("gone", 1))))
    list(first.process_input(1, rules(("gone", None))))
    saved = first.snapshot(1)
    again = created(state)
    again.restore(saved)
    own = FakeState()
    other = created(own)
    other.inherit([Inherited(saved, None, False, lambda keys: None), Inherited(saved, state, False, lambda keys: None)])  # type: ignore[arg-type,return-value]
    third = created(own)
    third.restore(other.snapshot(2))
    for instance in (again, other, third):
        assert given(instance, rows(*((f"kind-{i}", 1) for i in range(300)), ("gone", 1))) == list(range(300))


def test_the_state_is_shown_once_though_all_subtasks_have_it() -> None:
    state: Any = FakeState()
    instance = created(state)
    list(instance.process_input(1, rules(("a", 1), ("b", 2))))
    (view,) = instance._descriptor.state_views(ROWS, ["apply#factors"])
    assert (view.operator, view.state, view.reads) == ("apply", "factors", ("apply#factors",))
    shown = []
    for index in range(2):
        state.subtask = f"apply[{index}]"
        shown += [value for rows in view.rows(state, None) for value in rows.values or ()]
    assert sorted(map(str, shown)) == ["{'key': 'a', 'value': [1]}", "{'key': 'b', 'value': [2]}"]


class Kind(str, enum.Enum):
    A = "a"


UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "equal"),
    [("a", Kind.A), (NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=1))))],
)
def test_equal_keys_are_one_key_also_for_a_successor(key: Any, equal: Any) -> None:
    def keeps(rule: Any, ctx: Any) -> None:
        factors = ctx.broadcast_state("factors")
        if rule.kind == "gone":
            del factors[equal]
        else:
            factors[key if rule.kind == "first" else equal] = rule.factor

    state = FakeState()
    instance = created(state, on_broadcast=keeps)
    for kind, found in (("first", [1]), ("second", [2]), ("gone", []), ("second", [2])):
        list(instance.process_input(1, rules((kind, 1 if kind == "first" else 2))))
        again = created(state)
        again.restore(instance.snapshot(1))
        assert [again._reading.broadcast_state("factors")[key] for _ in found] == found
        assert len(again._reading.broadcast_state("factors")) == len(found)
        instance = created(state, on_broadcast=keeps)
        instance.restore(again.snapshot(2))


def test_a_function_for_broadcast_rows_that_has_not_run_is_an_error() -> None:
    def generator(rule: Any, ctx: Any) -> Iterator[Any]:
        ctx.broadcast_state("factors")[rule.kind] = 1
        yield rule

    async def coroutine(rule: Any, ctx: Any) -> None:
        ctx.broadcast_state("factors")[rule.kind] = 1

    for function in (generator, coroutine):
        with pytest.raises(UserFunctionError, match="gives no rows and awaits nothing"):
            list(created(FakeState(), on_broadcast=function).process_input(1, rules(("a", 1))))


def test_only_the_function_for_broadcast_rows_changes_the_state() -> None:
    def writes(row: Any, ctx: Any) -> list[Any]:
        ctx.broadcast_state("factors")["a"] = 1
        return []

    with pytest.raises(UserFunctionError, match="does not support item assignment"):
        given(created(FakeState(), writes), rows(("a", 1)))


def test_what_a_function_gets_is_its_own_copy() -> None:
    def spoils(row: Any, ctx: Any) -> list[Any]:
        ctx.broadcast_state("factors")["a"].append("spoilt")
        return [(row.kind, len(ctx.broadcast_state("factors")["a"]))]

    instance = created(FakeState(), spoils)
    list(instance.process_input(1, rules(("a", 1))))
    assert given(instance, rows(("a", 1), ("a", 2))) == [1, 1]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (1.5, 1, "a key of broadcast state is a text"),
        (("a", True), 1, "a key of broadcast state is a text"),
        ("a", None, "cannot be None"),
        ("a", lambda: 0, "pickle"),
    ],
)
def test_what_cannot_be_kept_is_an_error_of_the_row(key: Any, value: Any, message: str) -> None:
    def keeps(rule: Any, ctx: Any) -> None:
        ctx.broadcast_state("s")[key] = value

    with pytest.raises(UserFunctionError, match=message):
        list(created(FakeState(), on_broadcast=keeps).process_input(1, rules(("a", 1))))


def test_keys_of_all_kinds() -> None:
    keys = ["a", 7, b"x", datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), ("a", 1, b"x")]

    def keeps(rule: Any, ctx: Any) -> None:
        for at, key in enumerate(keys):
            ctx.broadcast_state("s")[key] = at + rule.factor

    def sums(row: Any, ctx: Any) -> list[Any]:
        state = ctx.broadcast_state("s")
        return [(row.kind, sum(state[key] for key in state) if set(state) == set(keys) else -1)]

    state = FakeState()
    instance = created(state, sums, keeps)
    list(instance.process_input(1, rules(("a", 0), ("a", 1))))
    again = created(state, sums, keeps)
    again.restore(instance.snapshot(1))
    assert given(again, rows(("a", 1))) == [21]


def test_the_function_for_broadcast_rows_has_no_clock() -> None:
    def keeps(rule: Any, ctx: Any) -> None:
        ctx.now()

    with pytest.raises(UserFunctionError, match="no clock"):
        list(created(FakeState(), on_broadcast=keeps).process_input(1, rules(("a", 1))))
