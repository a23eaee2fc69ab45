"""A program compared with the one that a checkpoint is of: what passes, what is refused, and with what words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from flinkplus.protocol.program.comparison import Comparison, Requests, compare
from flinkplus.protocol.program.description import (
    LOCATION,
    Column,
    EdgeDescription,
    OperatorDescription,
    Program,
    StateDescription,
)
from flinkplus.protocol.program.rows import is_wider, why_unreadable

ROWS = (Column(name="word", type="string"), Column(name="n", type="int32"))
COUNT = StateDescription(keys=("string",))
SUM = StateDescription(keys=("string",), settings={"nulls": True}, rows={"": (Column(name="sum", type="int64"),)})
KEPT = StateDescription(keys=("string",), rows={"": ROWS}, form="tuples")
WINDOW = StateDescription(keys=("string",), settings={"size_ms": 1_000})


def operator(*inputs: str, state: StateDescription | None = None, body: str = "Map", **others: Any) -> Any:
    fields = {"kind": "operator", "columns": ROWS, **others}
    return OperatorDescription(body=body, inputs=inputs, state=state, **fields)


def source(**settings: Any) -> Any:
    return operator(kind="source", body="TextFiles", settings=settings)


def sink(of: str, where: str | None, columns: tuple[Column, ...] = ROWS, body: str = "ParquetSink") -> Any:
    settings = {} if where is None else {LOCATION: where}
    return operator(of, kind="sink", body=body, settings=settings, columns=columns)


def program(**operators: Any) -> Program:
    """``lines`` and ``out`` are there unless they are given."""
    named = {"lines": source(path="/in"), **operators}
    named.setdefault("out", sink("count", "/out"))
    present = {name: known for name, known in named.items() if known is not None}
    edges = (EdgeDescription(producer="lines", consumer="count", keys=("word",), route="hash"),)
    return Program(max_parallelism=128, operators=present, edges=edges, vertices=("lines", "count+out"))


def verdicts(change: Comparison) -> dict[str, str]:
    return {one.operator: one.verdict for one in change.changes}


def after(old: Program, new: Program, held: Collection[str] = (), **requests: Any) -> Comparison:
    """Compared as it is read from a manifest."""
    return compare(Program.from_json(json.loads(json.dumps(old.to_json()))), new, Requests(**requests), held)


BEFORE = program(count=operator("lines", state=COUNT, body="Count"))


def test_the_same_program_is_restored_as_it_is() -> None:
    change = after(BEFORE, BEFORE)
    assert set(verdicts(change).values()) == {"unchanged"} and change.is_direct
    assert change.origins == {"lines": "lines", "count": "count", "out": "out"}


STATELESS: dict[str, Mapping[str, Any]] = {
    "added": {"count": operator("only", state=COUNT, body="Count"), "only": operator("lines")},
    "moved": {"only": operator("count"), "out": sink("only", "/out")},
}


@pytest.mark.parametrize("how", STATELESS)
def test_operators_without_state_pass(how: str) -> None:
    count = operator("lines", state=COUNT, body="Count")
    old, new = program(count=count, moves=operator("lines")), program(**{"count": count, **STATELESS[how]})
    change = after(old, new)
    assert not change.refused and change.origins["count"] == "count"
    assert verdicts(change)["moves"] == "gone" and verdicts(change)["only"] == "new"
    assert not after(new, old).refused


def test_new_state_begins_empty() -> None:
    change = after(BEFORE, program(count=operator("lines", state=COUNT, body="Count"), more=operator(state=SUM)))
    (new,) = [one for one in change.changes if one.operator == "more"]
    assert (new.verdict, new.why, not change.refused) == ("new", "its state begins empty", True)


def test_state_whose_operator_is_gone_is_refused_unless_it_is_dropped() -> None:
    new = program(out=sink("lines", "/out"))
    (refused,) = after(BEFORE, new).refused
    assert refused.operator == "count" and "its state would be lost: name it in drop_state" in refused.why
    change = after(BEFORE, new, drop_state=["count", "what is not there"])
    assert not change.refused and verdicts(change)["count"] == "dropped" and "count" not in change.origins


def test_state_that_no_description_has_is_found_in_the_checkpoint() -> None:
    old = program(count=operator("lines", state=COUNT, body="Count"), mine=operator("lines"))
    new = program(count=operator("lines", state=COUNT, body="Count"))
    assert not after(old, new).refused
    assert [one.operator for one in after(old, new, held=["mine"]).refused] == ["mine"]
    changed = program(count=new.operators["count"], mine=operator("lines", body="Other"))
    (refused,) = after(old, changed, held=["mine"]).refused
    assert refused.why == "its class was 'Map' and is 'Other'"


def test_a_renamed_operator_takes_its_state_and_the_request_may_be_repeated() -> None:
    new = program(total=operator("lines", state=COUNT, body="Count"), out=sink("total", "/out"))
    assert [one.operator for one in after(BEFORE, new).refused] == ["count"]
    change = after(BEFORE, new, state_from={"total": "count"})
    assert not change.refused and change.origins["total"] == "count" and verdicts(change)["total"] == "renamed"
    again = after(new, new, state_from={"total": "count"})
    assert not again.refused and again.origins["total"] == "total" and again.is_direct


@pytest.mark.parametrize(
    ("state_from", "why"),
    [
        ({"total": "cuont"}, "state_from names 'cuont', which the checkpoint does not have"),
        ({"nowhere": "count"}, "the program has no such operator"),
        ({"count": "lines"}, "it has state of its own"),
        ({"total": "lines"}, "its kind was 'source' and is 'operator'"),
    ],
)
def test_a_name_that_makes_no_sense_is_refused(state_from: dict[str, str], why: str) -> None:
    count = operator("lines", state=COUNT, body="Count")
    new = program(count=count, total=operator("lines", state=COUNT, body="Count"))
    assert any(why in one.why for one in after(BEFORE, new, state_from=state_from).refused)


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (COUNT, replace(COUNT, keys=("int64",)), "its key was string and is int64"),
        (COUNT, replace(COUNT, keys=("string", "string")), "its key was string and is string, string"),
        (WINDOW, replace(WINDOW, settings={"size_ms": 2_000}), "its size_ms was 1000 and is 2000"),
        (COUNT, None, "it had state and has none now"),
        (SUM, replace(SUM, rows={"": (Column(name="sum", type="double"),)}), "was sum int64; is sum double"),
        (
            KEPT,
            replace(KEPT, rows={"": ROWS[:1]}),
            "column 'n' is gone (rows: was word string, n int32; is word string",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused_with_both_values_and_may_be_dropped(
    was: StateDescription, now: StateDescription | None, words: str
) -> None:
    old = program(count=operator("lines", state=was))
    new = program(count=operator("lines", state=now))
    (refused,) = after(old, new).refused
    assert refused.operator == "count" and words in refused.why
    change = after(old, new, drop_state=["count"])
    assert not change.refused and "count" not in change.origins
    again = after(new, new, drop_state=["count"])
    assert again.is_direct and again.origins["count"] == "count", "the request of before drops nothing again"


def test_rows_that_can_be_read_as_new_ones_pass() -> None:
    wider = (Column(name="word", type="string"), Column(name="n", type="int64"), Column(name="more", type="double"))
    old, new = (program(count=operator("lines", state=replace(KEPT, rows={"": rows}))) for rows in (ROWS, wider))
    change = after(old, new)
    (converted,) = [one for one in change.changes if one.verdict == "converted"]
    assert converted.why == "rows: was word string, n int32; is word string, n int64, more double"
    assert change.converted == {"count"} and not change.is_direct
    assert after(new, old).refused


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("int8", "int16", True), ("int32", "int64", True), ("uint8", "int16", True), ("uint32", "uint64", True),
        ("float", "double", True), ("halffloat", "float", True), ("decimal128(10, 2)", "decimal128(12, 2)", True),
        ("int64", "int32", False), ("uint32", "int32", False), ("int8", "uint16", False), ("int32", "double", False),
        ("double", "float", False), ("decimal128(10, 2)", "decimal128(12, 3)", False), ("string", "binary", False),
        ("int32", "int32", False), ("decimal128(12, 2)", "decimal128(10, 2)", False),
    ],
)  # fmt: skip
def test_which_numbers_are_wider(old: str, new: str, wider: bool) -> None:
    assert is_wider(old, new) == wider


def test_nulls_may_become_possible_and_not_impossible() -> None:
    without, with_nulls = (Column(name="n", type="int64", nullable=nullable) for nullable in (False, True))
    assert not why_unreadable([without], [with_nulls])
    assert "may have been null" in why_unreadable([with_nulls], [without])
    assert "has no value for it" in why_unreadable([], [without]) or "have no value for it" in why_unreadable(
        [], [without]
    )


def test_sources() -> None:
    count = operator("lines", state=COUNT, body="Count")
    changed = program(count=count, lines=source(path="/elsewhere"))
    (refused,) = after(BEFORE, changed).refused
    assert refused.why == "its path was '/in' and is '/elsewhere'"
    assert "lines" not in after(BEFORE, changed).origins
    assert verdicts(after(BEFORE, changed, drop_state=["lines"]))["lines"] == "dropped"
    more = program(count=count, late=source(path="/late"))
    (new,) = [one for one in after(BEFORE, more).changes if one.operator == "late"]
    assert (new.verdict, new.why) == ("new", "it is read from its beginning")
    (gone,) = after(more, BEFORE).refused
    assert gone.operator == "late" and "its position would be lost" in gone.why
    assert not after(more, BEFORE, drop_state=["late"]).refused
    renamed = program(count=count, late=source(path="/in"), lines=None)
    assert after(BEFORE, renamed, state_from={"late": "lines"}).origins["late"] == "lines"


def test_outputs_are_known_by_their_location() -> None:
    def change(new: Any, name: str = "out") -> Comparison:
        operators = {"out": None, "count": BEFORE.operators["count"], name: new}
        return after(BEFORE, program(**operators))

    assert verdicts(change(sink("count", "/other"))) | {"out": ""} == {
        "lines": "unchanged",
        "count": "unchanged",
        "out": "",
    }
    assert [one.verdict for one in change(sink("count", "/other")).changes if one.operator == "out"] == ["new", "gone"]
    renamed = change(sink("count", "/out"), "words")
    assert renamed.origins["words"] == "out" and verdicts(renamed)["words"] == "renamed"
    text = change(sink("count", "/out", body="TextSink"))
    assert "its class was 'ParquetSink' and is 'TextSink': give the changed output another dir" in text.refused[0].why
    more = (*ROWS, Column(name="more", type="string"))
    assert not change(sink("count", "/out", more)).refused
    assert "column 'n' is gone" in change(sink("count", "/out", ROWS[:1])).refused[0].why
    assert not change(sink("count", "/elsewhere", ROWS[:1])).refused
    memory = program(count=BEFORE.operators["count"], out=sink("count", None, body="CollectSink"))
    assert after(memory, memory).origins["out"] == "out" and not after(BEFORE, memory).refused


def test_another_number_of_key_groups_is_refused() -> None:
    (refused,) = after(BEFORE, replace(BEFORE, max_parallelism=64)).refused
    assert (refused.operator, refused.why) == ("(job)", "its max_parallelism was 128 and is 64")


def test_event_time_may_go_with_its_operator() -> None:
    marks = operator("lines", state=StateDescription(progress=True), body="WithWatermark")
    old = program(count=operator("marked", state=COUNT, body="Count"), marked=marks)
    assert not after(old, BEFORE, held=["marked"]).refused
