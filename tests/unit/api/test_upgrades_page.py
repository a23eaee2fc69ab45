"""``docs/upgrades.md``: every row of its tables is a test, and there is no test without a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from flinkplus import StreamEnvironment, agg
from flinkplus.api.streams.stream import Stream
from flinkplus.api.upgrades import Upgrade, requests_of
from flinkplus.errors import ConfigurationError
from flinkplus.job_options import JobOptions, RunOptions
from flinkplus.operators.keyed.latest import Emit
from flinkplus.operators.processors.handle import TimeMode
from flinkplus.protocol.program.comparison import Comparison, Requests, Verdict, compare
from flinkplus.protocol.program.description import Program
from flinkplus.runtime.job.upgrading.programs import check_permitted
from tests.stateful_processors import OUTPUT, Inventory, RunningCount
from tests.unit.api.drawing import environment

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "upgrades.md").read_text("utf-8")
REAL, FORMER = "tests/integration/test_upgrades.py: ", "tests/unit/runtime/job/rescaling/test_former.py: "
KEPT = "tests/unit/operators/keyed/test_kept_state.py: "
ELSEWHERE = {
    "job renamed": f"{REAL}test_refusals_a_dry_run_and_a_driver_that_dies_half_way",
    "kind of a named state of `process` (value, list, map, with `ttl` or without)": (
        f"{KEPT}test_state_of_another_kind_in_the_checkpoint_is_an_error"
    ),
    "`ttl` of a named state": f"{KEPT}test_times_of_another_clock_are_refused",
    "parallelism": f"{REAL}test_every_permitted_change_at_once",
    "messages in flight": f"{FORMER}test_messages_in_flight_pass_if_their_rows_stay",
    "loop with rows in flight": f"{FORMER}test_rows_in_a_loop_follow_their_exchange_or_are_refused",
    "new source before an operator whose input had ended": (
        f"{FORMER}test_a_new_source_is_refused_before_an_operator_whose_input_had_ended"
    ),
}
"""Rows that a comparison of two drawings does not decide, with the test that does."""

Draw = Callable[[StreamEnvironment], Any]
Verdicts = Mapping[str, Verdict]


@dataclass(frozen=True)
class Case:
    """``before`` is drawn, then ``after``. ``verdicts``: expected. ``why``: words of a refusal. ``requests``: with them
    it passes, with these ``passing`` verdicts."""

    before: Draw
    after: Draw
    verdicts: Verdicts = field(default_factory=dict)
    why: str = ""
    requests: Requests | None = None
    passing: Verdicts = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def rows_of(env: StreamEnvironment, schema: str = "k string, n int, ts long", **others: Any) -> Stream:
    given: dict[str, Any] = {"count": 9, "name": "rows", **others}
    return env.generate(lambda i: (str(i), i, i), schema=schema, **given)


def drawn(build: Callable[[Stream], Stream], name: str = "out", where: str = "/out", **others: Any) -> Draw:
    """A program with one source and one output."""

    def draw(env: StreamEnvironment) -> None:
        build(rows_of(env, **others)).to_parquet(where, name=name)

    return draw


def apart(build: Callable[[Stream], Stream], **others: Any) -> Draw:
    """As ``drawn``, with another output."""
    return drawn(build, where="/apart", **others)


def counted(rows: Stream, name: str = "count") -> Stream:
    return rows.key_by("k").count(name=name)


def marked(rows: Stream, delay: str = "0 seconds") -> Stream:
    return rows.with_watermark("ts", delay, name="marked")


def window(size: str = "1 second", **outputs: Any) -> Callable[[Stream], Stream]:
    made = outputs or {"c": "count"}
    return lambda rows: marked(rows).key_by("k").tumbling_window("ts", size).aggregate(name="window", **made)


def hopping(hop: str, **options: Any) -> Callable[[Stream], Stream]:
    return lambda rows: marked(rows).key_by("k").hopping_window("ts", "1 second", hop, **options).count(name="window")


def session(gap: str) -> Callable[[Stream], Stream]:
    return lambda rows: marked(rows).key_by("k").session_window("ts", gap).count(name="window")


def days(zone: str) -> Callable[[Stream], Stream]:
    return lambda rows: marked(rows).key_by("k").tumbling_window("ts", "1 day", time_zone=zone).count(name="window")


def running(**outputs: Any) -> Callable[[Stream], Stream]:
    return lambda rows: rows.key_by("k").aggregate(name="running", **outputs)


def reduced(rows: Stream) -> Stream:
    return rows.key_by("k").reduce(lambda a, b: b, name="last")


def joined(upper: str = "1 second", how: Any = "inner") -> Callable[[Stream], Stream]:
    def build(rows: Stream) -> Stream:
        left, right = marked(rows), rows.with_watermark("ts", "0 seconds", name="other")
        return left.key_by("k").interval_join(
            right.key_by("k"), left_time="ts", right_time="ts", lower="0 seconds", upper=upper, how=how, name="join"
        )

    return build


def kept(rows: Stream) -> Stream:
    return rows.filter(lambda row: True, name="kept")


def timed(**timers: Any) -> Callable[[Stream], Stream]:
    return lambda rows: (
        marked(rows).key_by("k").process(lambda k, row, ctx: [row], schema="k string", name="timed", **timers)
    )


def processed(time_mode: TimeMode, processor: Any = RunningCount) -> Callable[[Stream], Stream]:
    return lambda rows: rows.key_by("k").transform_with_state(
        processor(), schema=OUTPUT, time_mode=time_mode, name="processed"
    )


def best(by: str | tuple[str, ...], k: int = 3) -> Callable[[Stream], Stream]:
    return lambda rows: rows.key_by("k").top(k, by=by, name="best")


def emitting(emit: Emit) -> Callable[[Stream], Stream]:
    return lambda rows: rows.key_by("k").count(emit=emit, name="totals")


def latest(order_by: str | tuple[str, ...]) -> Callable[[Stream], Stream]:
    return lambda rows: rows.deduplicate("k", keep="last", order_by=order_by, name="once")


def chosen(condition: str, on_error: Any = "fail") -> Callable[[Stream], Stream]:
    """Rows for which a condition is true, counted; dead letters, if there are any, go nowhere in particular."""

    def build(rows: Stream) -> Stream:
        kept = rows.where(condition, on_error=on_error, name="chosen")
        if on_error == "dead-letter":
            kept.dead_letters().discard(name="dead")
        return counted(kept)

    return build


def once(ttl: str | None) -> Callable[[Stream], Stream]:
    return lambda rows: rows.deduplicate("k", ttl=ttl, name="once")


def top(k: int) -> Callable[[Stream], Stream]:
    return lambda rows: rows.key_by("k").top(k, by="n", item="ts", name="top")


def both(*draws: Draw) -> Draw:
    def draw(env: StreamEnvironment) -> None:
        for one in draws:
            one(env)

    return draw


def kafka(topics: str = "orders", servers: str = "a:9092", **given: Any) -> Draw:
    return lambda env: env.from_kafka(servers, topics, name="orders", **{"value": "text", **given}).discard(name="out")


def text(path: Path, name: str = "lines", where: str = "/lines", **others: Any) -> Draw:
    return lambda env: env.read_text(path, name=name, **others).to_parquet(where, name="lines out")


HERE = Path(__file__)
PLAIN = drawn(counted)
DROP = Requests(drop_state=["count"])
WIDER = "k string, n long, ts long"
CASES: dict[str, list[Case]] = {
    "body of a function": [
        Case(
            drawn(lambda rows: rows.map(lambda row: (row.k, 1), schema="k string, n int", name="map")),
            drawn(lambda rows: rows.map(lambda row: (row.k, 2), schema="k string, n int", name="map")),
            {"map": "unchanged"},
        ),
    ],
    "stateless operator added": [Case(PLAIN, drawn(lambda r: counted(kept(r))), {"kept": "new", "count": "changed"})],
    "stateless operator removed": [
        Case(drawn(lambda r: counted(kept(r))), PLAIN, {"kept": "gone", "count": "changed"})
    ],
    "stateless operator moved": [
        Case(
            drawn(lambda r: counted(kept(r))),
            drawn(lambda r: kept(counted(r))),
            {"kept": "changed", "count": "changed"},
        )
    ],
    "operator with state added": [
        Case(PLAIN, drawn(lambda r: counted(r).key_by("k").sum("n", name="sum")), {"sum": "new", "count": "unchanged"})
    ],
    "operator with state removed": [
        Case(PLAIN, apart(kept), {"count": "refused"}, "its state would be lost", DROP, {"count": "dropped"})
    ],
    "operator with state renamed": [
        Case(
            PLAIN,
            drawn(lambda r: counted(r, "total")),
            {"count": "refused"},
            "name it in drop_state, or in state_from",
            Requests({"total": "count"}),
            {"total": "renamed"},
        ),
    ],
    "state of another operator's kind": [
        Case(
            PLAIN,
            apart(lambda r: r.key_by("k").sum("n", name="count")),
            {"count": "refused"},
            "its class was 'Count' and is 'Sum'",
            DROP,
            {"count": "dropped"},
        ),
    ],
    "column added to state": [
        Case(drawn(build), drawn(build, schema="k string, n int, ts long, more string"), {name: "converted"})
        for name, build in (("last", reduced), ("join", joined()))
    ],
    "column removed from state": [
        Case(
            drawn(reduced),
            apart(reduced, schema="k string, ts long"),
            {"last": "refused"},
            "column 'n' is gone (rows: was k string, n int32, ts int64; is k string, ts int64)",
            Requests(drop_state=["last"]),
            {"last": "dropped"},
        ),
    ],
    "number in state widened": [
        Case(drawn(reduced), drawn(reduced, schema=WIDER), {"last": "converted"}),
        Case(drawn(joined()), drawn(joined(), schema=WIDER), {"join": "converted"}),
        Case(
            drawn(window(m=("max", "d")), schema=f"{WIDER}, d decimal(8, 2)"),
            drawn(window(m=("max", "d")), schema=f"{WIDER}, d decimal(9, 2)"),
            {"window": "converted"},
        ),
        Case(drawn(top(3)), drawn(top(3), schema=WIDER), {"top": "converted"}),
        Case(
            drawn(reduced, schema="k string, n float"),
            drawn(reduced, schema="k string, n double"),
            {"last": "converted"},
        ),
        Case(
            drawn(reduced, schema="k string, n decimal(8, 2)"),
            drawn(reduced, schema="k string, n decimal(9, 2)"),
            {"last": "converted"},
        ),
    ],
    "number in state narrowed": [
        Case(drawn(reduced, schema=WIDER), drawn(reduced), {"last": "refused"}, "column 'n' was int64 and is int32"),
    ],
    "type of a key": [
        Case(
            PLAIN,
            apart(counted, schema="k long, n int, ts long"),
            {"count": "refused"},
            "its key was string and is int64",
            DROP,
            {"count": "dropped"},
        ),
    ],
    "name of a key column": [
        Case(
            PLAIN,
            drawn(
                lambda r: (
                    r.map(lambda row: row, schema="word string, n int, ts long", name="map")
                    .key_by("word")
                    .count(name="count")
                ),
                where="/new",
            ),
            {"count": "changed"},
        ),
    ],
    "size of a window": [
        Case(
            drawn(window()),
            drawn(window("2 seconds")),
            {"window": "refused"},
            "its size_ms was 1000 and is 2000",
            Requests(drop_state=["window"]),
            {"window": "dropped"},
        ),
    ],
    "aggregates of a window": [
        Case(
            drawn(window()),
            drawn(window(c="count", s=("sum", "n"))),
            {"window": "refused"},
            "its aggregates was ['count'] and is ['count', 'sum']",
        ),
    ],
    "hop, offset, gap or time zone of a window": [
        Case(
            drawn(hopping("500 ms")), drawn(hopping("250 ms")), {"window": "refused"}, "its hop_ms was 500 and is 250"
        ),
        Case(drawn(session("1 second")), drawn(session("2 seconds")), {"window": "refused"}, "its gap_ms was 1000"),
        Case(drawn(days("UTC")), drawn(days("Asia/Tokyo")), {"window": "refused"}, "its time_zone was 'UTC' and is"),
        Case(drawn(window()), drawn(hopping("500 ms")), {"window": "refused"}, "its hop_ms"),
    ],
    "lateness and early rows of a window": [
        Case(
            drawn(hopping("500 ms", allowed_lateness="1 second")),
            drawn(hopping("500 ms", allowed_lateness="2 seconds", emit_every="1 second")),
            {"window": "unchanged"},
        ),
        Case(
            drawn(hopping("500 ms", allowed_lateness="1 second")),
            drawn(hopping("500 ms")),
            {"window": "refused"},
            "its timing",
        ),
    ],
    "filter of an aggregate": [
        Case(
            drawn(window(c=agg("count", where=lambda batch: batch["n"].is_valid()))),
            drawn(window(c=agg("count", where=lambda batch: batch["n"].is_null()))),
            {"window": "unchanged"},
        ),
        Case(
            drawn(window(c="count")),
            drawn(window(c=agg("count", where=lambda batch: batch["n"].is_null()))),
            {"window": "refused"},
            "its where",
        ),
        Case(
            drawn(window(c=agg("count", where="n > 1"))),
            drawn(window(c=agg("count", where="n > 2"))),
            {"window": "refused"},
            "its where was ['(n > 1)'] and is ['(n > 2)']",
        ),
        Case(
            drawn(running(c=agg("count", where="n > 1"))),
            drawn(running(c=agg("count", where="n > 2"))),
            {"running": "refused"},
            "its where",
        ),
    ],
    "running aggregates": [
        Case(
            drawn(running(c="count")),
            drawn(running(c="count", m=("max", "n"))),
            {"running": "refused"},
            "its aggregates was ['count'] and is ['count', 'max']",
        ),
        Case(
            drawn(running(c=("count_distinct", "ts"))),
            drawn(running(c=("count_distinct", "ts")), schema="k string, n int, ts string"),
            {"running": "refused"},
            "its values was ['int64'] and is ['string']",
        ),
    ],
    "bounds of a join": [
        Case(drawn(joined()), drawn(joined("3 seconds")), {"join": "refused"}, "its upper_ms was 1000 and is 3000"),
        Case(
            drawn(joined()), drawn(joined("left.ts + left.n")), {"join": "refused"}, "its upper_ms was 1000 and is None"
        ),
    ],
    "`how` of a join": [
        Case(drawn(joined()), drawn(joined(how="full")), {"join": "refused"}, "its how was 'inner' and is 'full'"),
    ],
    "number of ranked items or rows": [
        Case(drawn(top(3)), drawn(top(4)), {"top": "refused"}, "its k was 3 and is 4"),
        Case(drawn(best("n")), drawn(best("n", 4)), {"best": "refused"}, "its k was 3 and is 4"),
    ],
    "order of a ranking of rows, ties": [
        Case(
            drawn(best("n")),
            drawn(best(("n", "ts ASC"))),
            {"best": "refused"},
            "its by was ['n DESC'] and is ['n DESC', 'ts ASC']",
        ),
    ],
    "`emit` of `count`, `sum` and `aggregate`": [
        Case(drawn(emitting("every")), drawn(emitting("latest")), {"totals": "unchanged"}),
        Case(drawn(emitting("latest")), drawn(emitting("every")), {"totals": "unchanged"}),
    ],
    "time to live of `deduplicate`": [
        Case(drawn(once("1 hour")), drawn(once("2 hours")), {"once": "unchanged"}),
        Case(drawn(once("1 hour")), drawn(once(None)), {"once": "refused"}, "its expires was True and is False"),
    ],
    "`keep` of `deduplicate`, types and directions of its `order_by`": [
        Case(
            drawn(once(None)), drawn(latest("ts")), {"once": "refused"}, "its class was 'Deduplicate' and is 'KeepLast'"
        ),
        Case(drawn(latest("n")), drawn(latest("ts")), {"once": "refused"}, "its order was 'int32' and is 'int64'"),
        Case(
            drawn(latest("n")),
            drawn(latest(("n DESC", "ts"))),
            {"once": "refused"},
            "its order was 'int32' and is 'int32 DESC, int64'",
        ),
    ],
    "expressions of `select`, `where` and their like": [
        Case(drawn(chosen("n > 1")), drawn(chosen("n > 2 OR k = 'a'")), {"chosen": "unchanged", "count": "unchanged"}),
    ],
    "`on_error`, `on_late`, side outputs": [
        Case(drawn(chosen("n > 1")), drawn(chosen("n > 1", "skip")), {"chosen": "unchanged", "count": "unchanged"}),
        Case(
            drawn(chosen("n > 1")),
            drawn(chosen("n > 1", "dead-letter")),
            {"chosen": "unchanged", "chosen dead letters": "new", "chosen rows": "new", "count": "changed"},
        ),
    ],
    "timers of `process` removed, `on_timer` or `on_processing_timer`": [
        Case(drawn(timed(on_timer=print)), drawn(timed()), {"timed": "refused"}, "it had state '#timers' and has none"),
        Case(drawn(timed()), drawn(timed(on_timer=print)), {"timed": "converted"}),
        Case(
            drawn(timed(on_processing_timer=print)),
            drawn(timed()),
            {"timed": "refused"},
            "it had state '#clock#timers'",
        ),
        Case(drawn(timed()), drawn(timed(on_processing_timer=print)), {"timed": "converted"}),
    ],
    "`transform_with_state`": [
        Case(drawn(processed("none")), drawn(processed("none", Inventory)), {"processed": "unchanged"}),
        Case(drawn(processed("none")), drawn(processed("processing_time")), {"processed": "refused"}, "time_mode"),
    ],
    "delay of a watermark": [
        Case(drawn(marked), drawn(lambda rows: marked(rows, "5 seconds")), {"marked": "unchanged"}),
    ],
    "watermark removed": [
        Case(drawn(lambda r: counted(marked(r))), PLAIN, {"marked": "gone", "count": "changed"}),
        Case(PLAIN, drawn(lambda r: counted(marked(r))), {"marked": "new", "count": "changed"}),
    ],
    "source added": [Case(PLAIN, both(PLAIN, text(HERE)), {"lines": "new", "rows": "unchanged"})],
    "source removed": [
        Case(
            both(PLAIN, text(HERE)),
            PLAIN,
            {"lines": "refused"},
            "its position would be lost",
            Requests(drop_state=["lines"]),
            {"lines": "dropped"},
        ),
    ],
    "source renamed": [
        Case(
            text(HERE),
            text(HERE, "other"),
            {"lines": "refused"},
            "its position would be lost",
            Requests({"other": "lines"}),
            {"other": "renamed"},
        ),
    ],
    "source changed": [
        Case(
            text(HERE),
            text(HERE.parent / "drawing.py"),
            {"lines": "refused"},
            f"its path was {str(HERE)!r} and is",
            Requests(drop_state=["lines"]),
            {"lines": "dropped"},
        ),
        Case(text(HERE), text(HERE, repeat=2), {"lines": "refused"}, "its repeat was 1 and is 2"),
        Case(PLAIN, drawn(counted, count=10), {"rows": "refused"}, "its count was 9 and is 10"),
    ],
    "topics or value format of a Kafka source": [
        Case(
            kafka(),
            kafka("payments"),
            {"orders": "refused"},
            "its topics was ['orders'] and is ['payments']",
            Requests(drop_state=["orders"]),
            {"orders": "dropped"},
        ),
        Case(kafka(), kafka(value="bytes"), {"orders": "refused"}, "its value was 'text' and is 'bytes'"),
    ],
    "servers, `config`, `group`, `start`, `stop` of a Kafka source": [
        Case(kafka(), kafka(servers="b:9092", config={"client.rack": "x"}, group="g", start="latest", stop=5)),
    ],
    "function of a generator": [
        Case(
            PLAIN,
            lambda env: counted(
                env.generate(lambda i: (str(-i), i, i), schema="k string, n int, ts long", count=9, name="rows")
            ).to_parquet("/out", name="out"),
            {"rows": "unchanged"},
        ),
    ],
    "rate of a source": [Case(PLAIN, drawn(counted, rate=5.0), {"rows": "unchanged"})],
    "output renamed": [Case(PLAIN, drawn(counted, "words"), {"words": "renamed"})],
    "another output directory": [Case(PLAIN, drawn(counted, where="/other"), {"out": "gone"})],
    "output added": [
        Case(
            PLAIN,
            both(PLAIN, lambda env: rows_of(env, name="r2").discard(name="more")),
            {"more": "new", "out": "unchanged"},
        )
    ],
    "output removed": [
        Case(
            both(PLAIN, text(HERE)),
            both(PLAIN, lambda env: env.read_text(HERE, name="lines").discard(name="nowhere")),
            {"lines out": "gone"},
        ),
    ],
    "another format of an output": [
        Case(
            PLAIN,
            lambda env: counted(rows_of(env)).to_text("/out", name="out"),
            {"out": "refused"},
            "its class was 'ParquetSink' and is 'TextSink': give the changed output another directory",
        ),
    ],
    "partitions of an output": [
        Case(
            PLAIN,
            lambda env: counted(rows_of(env)).to_parquet("/out", partition_by="k", name="out"),
            {"out": "refused"},
            "partition_by",
        ),
    ],
    "a function for each batch": [
        Case(
            lambda env: counted(rows_of(env)).foreach_batch(print, name="out"),
            lambda env: counted(rows_of(env)).foreach_batch(divmod, name="out"),
            {"out": "unchanged"},
        ),
        Case(
            lambda env: counted(rows_of(env)).foreach_batch(print, name="out"),
            lambda env: counted(rows_of(env)).foreach_batch(print, name="other"),
            {"other": "new", "out": "gone"},
        ),
    ],
    "columns of an output": [
        Case(PLAIN, drawn(counted, schema="k string, n long, ts long, more string"), {"out": "changed"}),
        Case(PLAIN, drawn(counted, schema="k string, ts long"), {"out": "refused"}, "column 'n' is gone"),
        Case(PLAIN, drawn(counted, schema="k string, ts long", where="/other"), {"count": "changed"}),
    ],
    "max_parallelism": [
        Case(
            PLAIN, PLAIN, {"(job)": "refused"}, "its max_parallelism was 128 and is 64", options={"max_parallelism": 64}
        ),
    ],
}


def program_of(draw: Draw, **options: Any) -> Program:
    env = environment(**options)
    draw(env)
    return Program.from_json(env.graph.fuse().program(env.options.max_parallelism).to_json())


def verdicts_of(change: Comparison) -> dict[str, str]:
    return {one.operator: one.verdict for one in change.changes}


@pytest.mark.parametrize("row", CASES)
def test_a_change_does_what_its_row_says(row: str) -> None:
    for case in CASES[row]:
        old, new = program_of(case.before), program_of(case.after, **case.options)
        change = compare(old, new)
        found = verdicts_of(change)
        assert case.verdicts.items() <= found.items(), found
        assert bool(case.why) == bool(change.refused) == ("refused" in case.verdicts.values())
        if case.why:
            with pytest.raises(ConfigurationError, match=re.escape(case.why)):
                check_permitted(change, "here")
        if case.requests is not None:
            passing = compare(old, new, case.requests)
            assert not passing.refused and case.passing.items() <= verdicts_of(passing).items()
            assert compare(new, new, case.requests).is_direct, "the same request, once more"


def table_under(heading: str) -> dict[str, str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ", 1) for line in section.splitlines() if line.startswith("| ")]
    return {first.strip(): rest.strip() for first, rest in rows[2:]}


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    rows = table_under("What a change does")
    assert rows.keys() == CASES.keys() | ELSEWHERE.keys() and not CASES.keys() & ELSEWHERE.keys()
    for row, cases in CASES.items():
        refuses = [bool(case.why) for case in cases]
        assert rows[row].startswith("refused") == all(refuses) or any(refuses) == ("refused" in rows[row]), row
    for where in ELSEWHERE.values():
        path, _, name = where.partition(": ")
        assert name and f"def {name}" in (HERE.parents[3] / path).read_text("utf-8")


def test_options_that_are_special_are_options_and_no_other_is_part_of_a_program() -> None:
    special = {name.strip("`") for name in table_under("What an option does")}
    assert special <= set(JobOptions.__annotations__) | set(RunOptions.__annotations__)
    before = program_of(PLAIN)
    changed: dict[str, Any] = {"parallelism": 7, "encoding_errors": "strict", "checkpoint_mode": "unaligned"}
    changed |= {"recovery": "rollback", "guarantee": "exactly-once", "transport": "grpc", "batch_rows": 77}
    assert compare(before, program_of(PLAIN, **changed)).is_direct


def test_the_verdicts_are_those_of_the_page() -> None:
    section = PAGE.partition("\n| verdict | |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(get_args(Verdict))


def test_requests_that_make_no_sense() -> None:
    for wrong, words in (
        ((["a"], (), None, True), "state_from must be a dict"),
        (({"a": "b"}, "count", None, True), "drop_state must be a list of names"),
        (({"a": "c", "b": "c"}, (), None, True), "gives the state of one operator to two"),
        (({"a": "c"}, (), None, False), "need resume=True"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            requests_of(*wrong)


def test_what_a_dry_run_returns() -> None:
    change = compare(program_of(PLAIN), program_of(drawn(kept)))
    upgrade = Upgrade("job", "/checkpoints", True, change.changes)
    assert not upgrade.permitted and "count: refused (its state would be lost" in str(upgrade)
    assert upgrade.as_dict()["changes"][0] == {
        "operator": "rows",
        "was": "Generator (count=9, batches=False, block_rows=None)",
        "now": "Generator (count=9, batches=False, block_rows=None)",
        "verdict": "unchanged",
        "why": "",
    }
    assert Upgrade("job", "/nowhere", False, ()).permitted
