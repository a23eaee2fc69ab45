"""Every keyed operator at one parallelism after another, against one run without a stop; and deliberate faults."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, StateError
from flinkplus.operators.base.operator import JsonValue, KeyedOperator, Operator, OperatorContext, OperatorInstance
from flinkplus.operators.base.parts import Shelves
from flinkplus.operators.event_time import windows
from flinkplus.operators.event_time.assigners import FixedWindows, Sessions
from flinkplus.operators.event_time.contents import Aggregated, Ranked
from flinkplus.operators.event_time.slices import Slices
from flinkplus.operators.event_time.windows import KeyedWindow
from flinkplus.operators.expressions.sql import parsed
from flinkplus.operators.joins import timed
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.stored_rows import StoredNumbers
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.joins.windowed import WindowJoin
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.deduplicate import Deduplicate
from flinkplus.operators.keyed.distinct import DistinctValues
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.keyed.rankings import Order
from flinkplus.operators.keyed.running import RunningAggregates
from flinkplus.operators.keyed.timers import EventTimers
from flinkplus.operators.keyed.top import Top
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.protocol.snapshot.division import Estate
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.runtime.job.rescaling.keyed import GroupOwner
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.runtime.job.rescaling.vertices import SCHEMA, Vertex

KEYS, ROWS, ROUNDS = 40, 60, 12
SIDES = JoinSide(SCHEMA, ("t",), "ts", "left_"), JoinSide(SCHEMA, ("t",), "ts", "right_")
UNTIMED = JoinSide(SCHEMA, ("k",), None, "left_"), JoinSide(SCHEMA, ("k",), None, "right_")


def process(key: Any, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
    state = ctx.state("seen")
    n = row.n or 0
    state.put(state.get(0) + 1 if n % 9 else None)
    ctx.event_timer(row.ts + 70)
    if n % 4 == 0:
        ctx.delete_event_timer(row.ts + 70)
    ctx.event_timer(row.ts - 300)
    yield str(key), state.get(-1)


def on_timer(key: Any, at_ms: int, ctx: Any) -> Iterator[tuple[str, int]]:
    if at_ms % 3 == 0:
        ctx.event_timer(at_ms + 1)
    yield f"{key} {ctx.state('seen').get()}", at_ms


def kept(ttl: str | None) -> Any:
    def function(key: Any, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        n = row.n or 0
        value, items, entries = ctx.state("v", ttl), ctx.list_state("l", ttl), ctx.map_state("m", ttl)
        value.put((n, value.get()) if n % 5 else None)
        items.append(n)
        entries[n % 7] = n
        if n % 9 == 0:
            items.clear()
        if n % 4 == 0:
            entries.remove((n + 1) % 7)
        yield f"{key} {value.get()} {items.get()} {list(entries.items())}"[:300], n

    return function


def with_timer(key: Any, row: Any, ctx: Any) -> None:
    ctx.list_state("l").append(row.n)
    ctx.processing_timer(ctx.processing_time + 1 + (row.n or 0) * 7)
    if row.n == 50:
        ctx.delete_processing_timer(ctx.processing_time + 1 + 51 * 7)


def timer_fired(key: Any, at_ms: int, ctx: Any) -> Iterator[tuple[str, int]]:
    yield f"{key} {sorted(ctx.list_state('l').get(), key=str)}", at_ms
    ctx.list_state("l").clear()
    if at_ms % 3 == 0 and at_ms < 500:
        ctx.processing_timer(at_ms + 25)


AGGREGATES = (
    Aggregate("c", "count"),
    Aggregate("s", "mean", "n"),
    Aggregate("d", "count_distinct", "n"),
    Aggregate("m", "max", "ts"),
)
OPERATORS: dict[str, KeyedOperator] = {
    "count by number": Count("op", ("k",)),
    "count by text": Count("op", ("t",)),
    "count by both": Count("op", ("k", "t")),
    "sum with nulls": Sum("op", ("k",), "n"),
    "sum of decimals": Sum("op", ("t",), "d"),
    "top": Top("op", ("t",), 3, "n", "k"),
    "reduce": Reduce("op", ("k",), lambda a, b: (a.k, a.t, (a.n or 0) * 3 + (b.n or 0) % 7, b.ts, b.d)),
    "process with timers": Process("op", ("k",), process, "key string, n long", on_timer),
    "lists and maps": Process("op", ("t",), kept(None), "key string, n long"),
    "times to live": Process("op", ("t",), kept("70 ms"), "key string, n long", by_event_time=True),
    "times to live by the clock": Process("op", ("t",), kept("70 ms"), "key string, n long"),
    "timers of the clock": Process("op", ("k",), with_timer, "key string, n long", on_processing_timer=timer_fired),
    "window": tumbling("op", ("t",), "ts", 100, (Aggregate("c", "count"), Aggregate("s", "mean", "n"))),
    "hopping window": KeyedWindow("op", ("t",), "ts", FixedWindows(100, 40), Aggregated(AGGREGATES)),
    "window with late rows": KeyedWindow("op", ("t",), "ts", FixedWindows(100, 40), Aggregated(AGGREGATES), 60, 80),
    "sessions": KeyedWindow("op", ("k",), "ts", Sessions(60), Aggregated(AGGREGATES)),
    "ranked window": KeyedWindow("op", ("t",), "ts", FixedWindows(100, 100), Ranked(2, (Order("ts", False),), "rank")),
    "running aggregates": RunningAggregates("op", ("t",), (*AGGREGATES, Aggregate("l", "last", "d"))),
    "join": KeyedJoin("op", ("t",), *SIDES, Bounds(-20, 30), how="full"),
    "deduplicate": Deduplicate("op", ("k",)),
    "deduplicate for a while": Deduplicate("op", ("t",), ttl_ms=150),
    "count of all": Count("op", ()),
    "top of all": Top("op", (), 3, "n", "k"),
    "window of all": tumbling("op", (), "ts", 100, (Aggregate("s", "sum", "n"),)),
}


MORE_OPERATORS: dict[str, KeyedOperator] = {
    "inner join": KeyedJoin("op", ("t",), *SIDES, Bounds(-20, 30)),
    "join by columns": KeyedJoin("op", ("t",), *SIDES, Bounds(0, None, 0, upper=parsed("ts + n")), how="left"),
    "join of all rows": KeyedJoin("op", ("k",), *UNTIMED, Bounds(), how="full"),
    "join of windows": WindowJoin("op", ("t",), *SIDES, FixedWindows(100, 40), how="full"),
}
"""Besides ``OPERATORS``, in the long tests."""


def batch(rng: random.Random, number: int) -> pa.RecordBatch:
    rows = []
    for _ in range(rng.choice([1, 5, ROWS])):
        k = rng.randrange(KEYS)
        n = None if rng.random() < 0.3 else rng.randrange(-5, 100)
        late = rng.choice([0, 0, 0, 150])
        rows.append(
            {"k": k, "t": f"t{k % 17}", "n": n, "ts": number * 40 + rng.randrange(60) - late, "d": Decimal(k) / 4}
        )
    if rng.random() < 0.2:
        rows[0]["t"] = rows[0]["k"] = None
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def run(operator: KeyedOperator, folder: Path, scales: list[int], seed: int) -> Counter[str]:
    """The output of one run, at each of ``scales`` for a while."""
    folder.mkdir()
    rng = random.Random(seed)
    vertex = Vertex(operator, SCHEMA, folder, scales[0])
    try:
        for number in range(ROUNDS):
            for position in range(len(vertex.graph.exchanges)):
                vertex.feed(batch(rng, number), position)
            vertex.now_ms += 40
            vertex.tick()
            if number % 3 != 1:
                vertex.advance(number * 40)
            at = number * len(scales) // ROUNDS
            if scales[at] != scales[min((number + 1) * len(scales) // ROUNDS, len(scales) - 1)]:
                vertex.rescale(scales[at + 1])
        vertex.advance(END_OF_TIME_MS if isinstance(operator, KeyedJoin) else 1 << 40)
        vertex.now_ms += 1 << 40
        vertex.tick()
        return vertex.output
    finally:
        vertex.close()


LONGER = ("times to live", "times to live by the clock", "timers of the clock", *MORE_OPERATORS)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long) if kind in LONGER else kind for kind in (*OPERATORS, *MORE_OPERATORS)],
)
def test_output_is_that_of_an_undisturbed_run(kind: str, tmp_path: Path) -> None:
    operator = (OPERATORS | MORE_OPERATORS)[kind]
    expected = run(operator, tmp_path / "one", [1], len(kind))
    assert expected.total() >= 5
    assert run(operator, tmp_path / "many", [2, 16, 1, 3], len(kind)) == expected


def widened(self: GroupOwner) -> range:
    groups = ORIGINAL_GROUPS(self)
    return range(max(0, groups.start - 4), groups.stop)


def narrowed(self: GroupOwner) -> range:
    groups = ORIGINAL_GROUPS(self)
    return range(min(groups.start + 4, groups.stop), groups.stop)


ORIGINAL_GROUPS = GroupOwner.groups.fget  # type: ignore[attr-defined]
FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "ranges overlap": ("process with timers", GroupOwner, "groups", property(widened)),
    "ranges leave a gap": ("count by number", GroupOwner, "groups", property(narrowed)),
    "windows are left behind": ("window", Shelves, "inherit", lambda *_: None),
    "distinct values are left behind": ("running aggregates", DistinctValues, "inherit", lambda *_: None),
    "sessions are left behind": ("sessions", Slices, "inherit", lambda *_: None),
    "rows of a join are left behind": ("join", timed._Side, "inherit", lambda *_: None),
    "matches of a join are left behind": ("join", StoredNumbers, "has", lambda self, shelf, numbers: numbers < 0),
    "timers are left behind": ("process with timers", EventTimers, "inherit", lambda *_: None),
    "timers of the clock are left behind": ("timers of the clock", EventTimers, "inherit", lambda *_: None),
    "event time goes back": ("window", windows, "common_watermark", lambda parts: None),
    "rows of all keys are left behind": (
        "window of all",
        GroupOwner,
        "owned",
        lambda self, keys: np.zeros(len(keys), np.bool_),
    ),
    "files of one subtask only are taken": (
        "count by number",
        Estate,
        "overlaps",
        lambda self, mine: mine.start in self.groups,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, where, name, wrong = FAULTS[fault]
    expected = run(OPERATORS[kind], tmp_path / "one", [1], 5)
    monkeypatch.setattr(where, name, wrong)
    found: Counter[str] | None = None
    with contextlib.suppress(StateError):  # keys that two subtasks have are out of order in a file
        found = run(OPERATORS[kind], tmp_path / "many", [2, 3, 2], 5)
    assert found != expected


def test_no_state_of_keys_is_read_or_written(tmp_path: Path) -> None:
    vertex = Vertex(Count("op", ("k",)), SCHEMA, tmp_path, 3)
    vertex.feed(batch(random.Random(1), 0))
    vertex.feed(batch(random.Random(4), 0))

    def checksums(files: Any) -> set[str]:
        return {file.checksum for file in files if isinstance(file, StateFile)}

    def uploaded() -> set[str]:
        return set(vertex.storage.state_files.listed())

    before = vertex.manifest()
    files = uploaded()
    handles = [handle for subtask, handle in vertex.rescale(1) if subtask.vertex == "op+out"]
    assert checksums(handles[0].files) == checksums(before.files) and uploaded() == files
    assert all(file.clip is None for file in handles[0].files) and handles[0].states["op"].counted
    assert handles[0].states["op"].keys == sum(h.states["op"].keys for h in before.subtasks.values() if h.states)
    divided = [handle for subtask, handle in vertex.rescale(4) if subtask.vertex == "op+out"]
    assert checksums(f for h in divided for f in h.files) == checksums(before.files) and uploaded() == files
    assert sum(handle.keys for handle in divided) == handles[0].keys
    assert not any(handle.states["op"].counted for handle in divided)
    assert len({file.name for handle in divided for file in handle.files}) == sum(len(h.files) for h in divided)
    vertex.close()


class Mine(KeyedOperator):
    """An operator with state of its own, that says nothing of other parallelisms."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _MineInstance()


class _MineInstance(OperatorInstance):
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch

    def snapshot(self, checkpoint: int) -> JsonValue:
        return {"mine": 1}


def test_what_cannot_be_divided_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vertex = Vertex(Mine("op", ("k",)), SCHEMA, tmp_path, 2)
    with pytest.raises(ConfigurationError, match=r"operator 'op' does not say how its state .* at parallelism 2"):
        vertex.rescale(3)
    monkeypatch.setattr(Operator, "has_state", True)
    object.__setattr__(vertex.graph.exchanges[0], "route", "forward")
    vertex._begin(2, None)
    with pytest.raises(ConfigurationError, match="operator 'op' has state in a subtask that does not get all rows"):
        vertex.rescale(3)
