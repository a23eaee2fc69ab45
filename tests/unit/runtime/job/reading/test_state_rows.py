"""The state of every keyed operator, read as data, is what the operator's output says that it must be."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkplus import read_state
from flinkplus.operators.base.keys import row_keys
from flinkplus.operators.base.operator import KeyedOperator
from flinkplus.operators.event_time.assigners import FixedWindows, Sessions
from flinkplus.operators.event_time.contents import Aggregated
from flinkplus.operators.event_time.windows import KeyedWindow
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.deduplicate import Deduplicate
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.keyed.last import KeepLast
from flinkplus.operators.keyed.rankings import Order, TopRows
from flinkplus.operators.keyed.top import Top
from flinkplus.protocol.vocabulary.key_groups import owner_of
from flinkplus.state.hashing import group_of
from flinkplus.state.reading.plain_objects import jsonable, to_json
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.runtime.job.reading.kept import KeptVertex, Row
from tests.unit.runtime.job.rescaling.vertices import MAX_PARALLELISM, SCHEMA

SIDES = JoinSide(SCHEMA, ("t",), "ts", "left_"), JoinSide(SCHEMA, ("t",), "ts", "right_")
LOWER, UPPER, TTL, ROUNDS, KEYS = -20, 30, 150, 9, 40
END_MS = 1 << 40
FIRED = -1_000_000
Rows = list[Row]


def seen(key: Any, row: Any, ctx: Any) -> Iterator[tuple[int, int | None]]:
    state = ctx.state("seen")
    n = row.n or 0
    state.put(state.get(0) + 1 if n % 9 else None)
    ctx.event_timer(row.ts + 70)
    if n % 4 == 0:
        ctx.delete_event_timer(row.ts + 70)
        if n % 8 == 0:
            ctx.event_timer(row.ts + 70)
    ctx.event_timer(row.ts - 300)
    yield key, state.get()


def fired(key: Any, at_ms: int, ctx: Any) -> Iterator[tuple[int, int]]:
    yield key, FIRED - at_ms


def batch(rng: random.Random, number: int) -> pa.RecordBatch:
    rows = []
    for _ in range(rng.choice([1, 5, 150])):
        k = rng.randrange(KEYS)
        n = None if rng.random() < 0.3 or k % 5 == 0 else rng.randrange(-5, 100)
        rows.append({"k": k, "t": f"t{k % 17}", "n": n, "ts": number * 40 + rng.randrange(60), "d": Decimal(k) / 4})
    if rng.random() < 0.3:
        rows[0]["t"] = rows[0]["k"] = None
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def fed(operator: KeyedOperator, folder: Path, seed: int = 3) -> KeptVertex:
    """Some batches, snapshots between, another parallelism half-way; the last snapshot is stored."""
    rng = random.Random(seed)
    vertex = KeptVertex(operator, SCHEMA, folder, 2)
    for number in range(ROUNDS):
        for position in range(len(vertex.graph.exchanges)):
            vertex.feed(batch(rng, number), position)
        vertex.now_ms += 40
        if number % 3 != 1:
            vertex.advance(number * 40)
        if number == ROUNDS // 2:
            vertex.rescale(3)
        elif number % 2:
            vertex.store()
    vertex.store()
    return vertex


def last_of(rows: Rows, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Row]:
    return {tuple(row[key] for key in keys): row for row in rows}


def last_value(column: str) -> Callable[[KeptVertex, KeyedOperator], Rows]:
    """The value of each key is ``column`` of its last output row."""

    def expected(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
        rows = last_of(vertex.rows, operator.keys)
        return [shown(operator, key, value={column: row[column]}) for key, row in rows.items()]

    return expected


def shown(operator: KeyedOperator, key: tuple[Any, ...], **cells: Any) -> Row:
    """A row as it is to be read; a time is in ms."""
    found = dict(zip(operator.keys, key, strict=True)) if operator.keys else "{}"
    empty: Row = {"kind": "value", "state": None, "value": None, "timer": None, "window": None}
    return {**empty, "key": found, **cells}


def reduced(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    return [shown(operator, key, value=row) for key, row in last_of(vertex.rows, operator.keys).items()]


def ranked(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    rankings: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in vertex.rows:
        place = {name: row[name] for name in ("rank", "k", "n")}
        rankings.setdefault(tuple(row[key] for key in operator.keys), {})[row["rank"]] = place
    best = {key: [row for _, row in sorted(ranks.items()) if row["n"] is not None] for key, ranks in rankings.items()}
    return [shown(operator, key, value=rows) for key, rows in best.items() if rows]


def ranked_rows(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    rankings: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in vertex.rows:
        place = {name: row[name] for name in SCHEMA.names}
        rankings.setdefault(tuple(row[key] for key in operator.keys), {})[row["rank"]] = place
    best = {key: [row for _, row in sorted(ranks.items())] for key, ranks in rankings.items()}
    return [shown(operator, key, value=rows) for key, rows in best.items()]


def last_by_columns(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    rows = last_of(vertex.rows, operator.keys)
    return [shown(operator, key, value={name: row[name] for name in ("ts", "n")}) for key, row in rows.items()]


def processed(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    rows = [row for row in vertex.take_rows() if row["n"] is None or row["n"] >= 0]
    found = [
        shown(operator, key, state="seen", value=str(row["n"]))
        for key, row in last_of(rows, operator.keys).items()
        if row["n"] is not None
    ]
    vertex.advance(END_MS)
    assert vertex.rows
    return found + [shown(operator, (row["k"],), kind="timer", timer=FIRED - row["n"]) for row in vertex.rows]


def keeps(key: Any, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
    """Keeps numbers in all forms, some for a while."""
    n = row.n or 0
    ctx.state("v", ttl="1000 s").put([n])
    ctx.list_state("l").append(n)
    ctx.map_state("m", ttl="1000 s").put((n % 3, "x"), n)
    ctx.processing_timer(1 << 40)
    yield key, n, ctx.processing_time + 1_000_000


def never(key: Any, at_ms: int, ctx: Any) -> None: ...


def kept(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    found = []
    given: dict[Any, Rows] = {}
    for row in vertex.rows:
        given.setdefault((row["k"],), []).append(row)
    for key, rows in given.items():
        for at, row in enumerate(rows):
            found.append(shown(operator, key, state="l", value=to_json({"at": at, "value": row["n"]})))
        for rest, row in {row["n"] % 3: row for row in rows}.items():
            entry = to_json({"key": [rest, "x"], "value": row["n"]})
            found.append(shown(operator, key, state="m", value=entry, timer=row["expires"]))
        found.append(shown(operator, key, state="v", value=to_json([rows[-1]["n"]]), timer=rows[-1]["expires"]))
        found.append(shown(operator, key, kind="timer", state="processing time", timer=1 << 40))
    return found


def windowed(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    vertex.take_rows()
    vertex.advance(END_MS)
    names = [a.output for a in operator.content.aggregates]  # type: ignore[attr-defined]
    assert vertex.rows
    return [
        shown(
            operator,
            tuple(row[key] for key in operator.keys),
            kind="window",
            value={name: row[name] for name in names},
            window=(milliseconds(row["window_start"]), milliseconds(row["window_end"])),
        )
        for row in vertex.rows
    ]


def remembered(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    return [shown(operator, key) for key in last_of(vertex.rows, operator.keys)]


def held(vertex: KeptVertex, operator: KeyedOperator) -> Rows:
    """Rows that come now are paired with all that is held: those of each side are asked for with rows of the other."""
    found = []
    watermark = (ROUNDS - 1) * 40
    for position, (side, other, before, after) in enumerate(
        (("left", "right", LOWER, UPPER), ("right", "left", -UPPER, -LOWER))
    ):
        vertex.take_rows()
        probes = [
            {"k": -1, "t": f"t{t}", "n": -1, "ts": ts, "d": None}
            for t in range(17)
            for ts in range(watermark, watermark + 200)
        ]
        vertex.feed(pa.RecordBatch.from_pylist(probes, schema=SCHEMA), 1 - position)
        rows = [
            {name: row["t" if name == "t" else f"{side}_{name}"] for name in SCHEMA.names} | {"at": row[f"{other}_ts"]}
            for row in vertex.rows
            if row[f"{side}_k"] >= 0
        ]
        first = [row for row in rows if row["at"] == max(watermark, row["ts"] + before)]
        assert first and after >= before
        for row in first:
            value = {"left": None, "right": None, side: {name: row[name] for name in SCHEMA.names}}
            found.append(shown(operator, (row["t"],), kind="row", state=side, value=value))
    return found


AGGREGATES = (
    Aggregate("c", "count"),
    Aggregate("d", "count_distinct", "n"),
    Aggregate("l", "collect_list", "n"),
    Aggregate("f", "first", "n", where=lambda batch: batch["ts"].is_valid()),
)
OPERATORS: dict[str, tuple[KeyedOperator, Callable[[KeptVertex, Any], Rows]]] = {
    "count by number": (Count("op", ("k",)), last_value("count")),
    "count by text": (Count("op", ("t",), "much"), last_value("much")),
    "count by both": (Count("op", ("k", "t")), last_value("count")),
    "count of all": (Count("op", ()), last_value("count")),
    "sum with nulls": (Sum("op", ("k",), "n"), last_value("sum")),
    "sum of decimals": (Sum("op", ("t",), "d"), last_value("sum")),
    "total": (Sum("op", (), "n", "total"), last_value("total")),
    "reduce": (Reduce("op", ("k",), lambda a, b: (a.k, a.t, (a.n or 0) + (b.n or 0) % 7, b.ts, b.d)), reduced),
    "top": (Top("op", ("t",), 3, "n", "k"), ranked),
    "top of all": (Top("op", (), 3, "n", "k", ascending=True), ranked),
    "top of rows": (TopRows("op", ("t",), 3, (Order("n", True), Order("ts", False))), ranked_rows),
    "last row": (KeepLast("op", ("k",), (Order("ts", False), Order("n", True))), last_by_columns),
    "process with timers": (Process("op", ("k",), seen, "k long, n long", fired), processed),
    "lists, maps and times to live": (
        Process("op", ("k",), keeps, "k long, n long, expires long", on_processing_timer=never),
        kept,
    ),
    "window": (
        tumbling("op", ("t",), "ts", 100, (Aggregate("c", "count"), Aggregate("s", "mean", "n"))),
        windowed,
    ),
    "window of all": (tumbling("op", (), "ts", 100, (Aggregate("m", "max", "d"),)), windowed),
    "hopping window": (KeyedWindow("op", ("t",), "ts", FixedWindows(100, 40), Aggregated(AGGREGATES)), windowed),
    "sessions": (KeyedWindow("op", ("k",), "ts", Sessions(60), Aggregated(AGGREGATES)), windowed),
    "join": (KeyedJoin("op", ("t",), *SIDES, Bounds(LOWER, UPPER)), held),
    "deduplicate": (Deduplicate("op", ("k", "t")), remembered),
}


def milliseconds(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def plain(row: Row) -> Row:
    """A row that was read, as ``shown`` makes it."""
    bounds = milliseconds(row["window_start"]), milliseconds(row["window_end"])
    kept = {name: row[name] for name in ("kind", "state", "key", "value")}
    return {**kept, "timer": milliseconds(row["timer"]), "window": None if bounds == (None, None) else bounds}


def ordered(rows: Rows) -> list[str]:
    return sorted(json.dumps(jsonable(row), sort_keys=True) for row in rows)


@pytest.mark.parametrize("kind", OPERATORS)
def test_state_is_what_the_output_says(kind: str, tmp_path: Path) -> None:
    operator, expected = OPERATORS[kind]
    vertex = fed(operator, tmp_path)
    typed = read_state(vertex.directory, "op", trust=True).read_all()
    texts = read_state(vertex.directory, trust=True).read_all()
    try:
        wanted = expected(vertex, operator)
    finally:
        vertex.close()
    assert ordered(list(map(plain, typed.to_pylist()))) == ordered(wanted)
    assert len(wanted) >= (1 if not operator.keys else 10)
    check_texts(typed.to_pylist(), texts.to_pylist())
    check_places(typed, operator)


def check_texts(typed: Rows, texts: Rows) -> None:
    """Key and value as JSON say the same."""
    for row, text in zip(typed, texts, strict=True):
        assert json.loads(text["key"]) == (json.loads(row["key"]) if type(row["key"]) is str else row["key"])
        if type(row["value"]) is str or row["value"] is None:
            assert text["value"] == row["value"]
        else:
            assert json.loads(text["value"]) == json.loads(to_json(row["value"]))
        rest = {"operator", "kind", "state", "timer", "window_start", "window_end", "subtask", "key_group"}
        assert {name: row[name] for name in rest} == {name: text[name] for name in rest}


def check_places(typed: pa.Table, operator: KeyedOperator) -> None:
    """Subtask and key group are those of the key."""
    for part in typed.to_batches():
        keys = pa.RecordBatch.from_struct_array(part.column("key")) if operator.keys else part
        for key, row in zip(row_keys(keys, operator.keys).to_pylist(), part.to_pylist(), strict=True):
            assert row["key_group"] == group_of(key, MAX_PARALLELISM)
            owner = owner_of(row["key_group"], 3, MAX_PARALLELISM) if operator.keys else 0
            assert row["subtask"] == f"op+out[{owner}]" and row["operator"] == "op"


def test_expiry_times(tmp_path: Path) -> None:
    """What has expired may be shown, with its time; all else is what the output says."""
    operator = Deduplicate("op", ("t",), ttl_ms=TTL)
    vertex = KeptVertex(operator, SCHEMA, tmp_path, 3)
    expiries = {}
    for number in range(ROUNDS):
        vertex.feed(batch(random.Random(number), number))
        expiries.update({row["t"]: vertex.now_ms + TTL for row in vertex.take_rows()})
        vertex.now_ms += 40
    vertex.store()
    rows = read_state(vertex.directory, "op", trust=True).read_all().to_pylist()
    vertex.close()
    found = {row["key"]["t"]: milliseconds(row["timer"]) for row in rows}
    assert len(found) == len(rows) and found.items() <= expiries.items()
    now = {key for key, expiry in expiries.items() if expiry > vertex.now_ms}
    assert now and now < expiries.keys() and now <= found.keys()


@pytest.mark.parametrize("kind", [kind for kind in OPERATORS if kind not in ("top of rows", "last row")])
def test_one_key(kind: str, tmp_path: Path) -> None:
    """As the key is shown, in the program and as text, it is asked for; other subtasks are not read."""
    operator, _ = OPERATORS[kind]
    vertex = fed(operator, tmp_path)
    vertex.close()
    rows = read_state(vertex.directory, "op", trust=True).read_all().to_pylist()
    by_key: dict[str, Rows] = {}
    for row in rows:
        by_key.setdefault(to_json(row["key"]), []).append(row)
    for text, wanted in random.Random(2).sample(sorted(by_key.items()), min(4, len(by_key))):
        asked = [text, wanted[0]["key"]] if operator.keys else ["[]"]
        for key in asked:
            assert read_state(vertex.directory, "op", key=key, trust=True).read_all().to_pylist() == wanted


def test_large_states_are_read_in_batches(tmp_path: Path) -> None:
    """In the order of key groups; no batch has more than some thousand rows."""
    vertex = KeptVertex(Count("op", ("k",)), SCHEMA, tmp_path, 1)
    numbers = pa.array(np.arange(20_000))
    columns = [numbers if field.name in ("k", "n") else pa.nulls(20_000, field.type) for field in SCHEMA]
    vertex.feed(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    vertex.store()
    vertex.close()
    batches = list(read_state(vertex.directory, "op", trust=True))
    assert max(each.num_rows for each in batches) <= 8192 and len(batches) >= 3
    table = pa.Table.from_batches(batches)
    groups = table["key_group"].to_pylist()
    assert groups == sorted(groups) and set(groups) == set(range(MAX_PARALLELISM))
    assert sorted(row["k"] for row in table["key"].to_pylist()) == numbers.to_pylist()
