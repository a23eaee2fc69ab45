"""Every kind of window and every aggregate against plain Python: rows in any order, cut and restored anywhere."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flinkplus.operators.base import parts
from flinkplus.operators.base.columns import plain
from flinkplus.operators.event_time import slices
from flinkplus.operators.event_time.assigners import FixedWindows, Sessions
from flinkplus.operators.event_time.contents import Aggregated
from flinkplus.operators.event_time.sessions import SessionSlices
from flinkplus.operators.event_time.tables import DistinctTable, concatenated
from flinkplus.operators.event_time.windows import FixedInstance, KeyedWindow, OnLate
from flinkplus.operators.expressions.sql import parsed
from flinkplus.operators.expressions.tree import Name
from flinkplus.operators.keyed.aggregates import Aggregate, Groups
from flinkplus.operators.rows.rejects import tag_of
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("n", pa.int32()), ("w", pa.bool_())])
TIMES = range(-40, 70)
ON_LATE: tuple[OnLate, OnLate] = ("drop", "side-output")
Row = tuple[Any, ...]
AGGREGATES = (
    Aggregate("rows", "count"),
    Aggregate("total", "sum", "n"),
    Aggregate("different", "count_distinct", "n"),
    Aggregate("first", "first", "n"),
    Aggregate("last", "last", "n"),
    Aggregate("listed", "collect_list", "n"),
    Aggregate("marked", "count", where=Name(("w",))),
    Aggregate("greatest", "max", "n", where=lambda batch: pc.equal(batch["w"], True)),
    Aggregate("marked_list", "collect_list", "n", where=parsed("w AND k = k OR w")),
    Aggregate("marked_different", "count_distinct", "n", where=Name(("w",))),
    Aggregate("latest", "max", "ts"),
)


def aggregated(rows: list[Row]) -> dict[str, Any]:
    """``AGGREGATES`` of rows in the order in which they came."""
    rows = sorted(rows, key=lambda row: row[1])
    values = [row[2] for row in rows if row[2] is not None]
    marked = [row[2] for row in rows if row[2] is not None and row[3]]
    return {
        "rows": len(rows),
        "total": sum(values) if values else None,
        "different": len(set(values)),
        "first": values[0] if values else None,
        "last": values[-1] if values else None,
        "listed": values,
        "marked": sum(bool(row[3]) for row in rows),
        "greatest": max(marked, default=None),
        "marked_list": marked,
        "marked_different": len(set(marked)),
        "latest": rows[-1][1],
    }


def key_order(key: str | None) -> bytes:
    return b"\xff" if key is None else key.encode()


@dataclass
class FixedModel:
    """Windows ``size`` long, one every ``hop``, from ``offset`` on."""

    size: int
    hop: int
    offset: int
    lateness: int
    early: int | None
    watermark: int | None = None
    late: list[Row] = field(default_factory=list)
    rows: list[tuple[Row, frozenset[int]]] = field(default_factory=list)
    fresh: list[tuple[Row, frozenset[int]]] = field(default_factory=list)

    def windows(self, ts: int) -> frozenset[int]:
        return frozenset(s for s in range(ts - self.size + 1, ts + 1) if (s - self.offset) % self.hop == 0)

    def over(self, start: int, watermark: int | None) -> bool:
        return watermark is not None and start + self.size + self.lateness <= watermark

    def add(self, row: Row) -> None:
        if row[1] is None:
            return
        windows = self.windows(row[1])
        if all(self.over(start, self.watermark) for start in windows):
            self.late.append(row)
        else:
            mine = frozenset(start for start in windows if not self.over(start, self.watermark))
            self.rows.append((row, mine))
            self.fresh.append((row, windows))

    def timing(self, start: int, before: int | None, now: int) -> str | None:
        end = start + self.size
        if before is None or end > before:
            return "on time" if end <= now else "early"
        return None if self.over(start, before) else "late"

    def advance(self, now: int) -> list[dict[str, Any]]:
        before, self.watermark = self.watermark, now
        ticked = self.early is not None and (before is None or now // self.early > before // self.early)
        touched: set[frozenset[int]] = set()
        for _, windows in self.fresh:
            timings = {self.timing(start, before, now) for start in windows} - {None}
            if ticked or timings - {"early"}:
                touched.add(windows)
        out = []
        for start in sorted({start for windows in touched for start in windows}):
            timing = self.timing(start, before, now)
            if timing == "late" or (timing == "early" and self.early is not None):
                keys = {row[0] for row, windows in self.fresh if start in windows}
                out += self.emit(start, timing, keys)
        self.fresh = [(row, windows) for row, windows in self.fresh if windows not in touched]
        ended = {s for _, mine in self.rows for s in mine if self.timing(s, before, now) == "on time"}
        for start in sorted(ended):
            out += self.emit(start, "on time", None)
        return out

    def emit(self, start: int, timing: str, keys: set[Any] | None) -> list[dict[str, Any]]:
        members: dict[Any, list[Row]] = defaultdict(list)
        for row, mine in self.rows:
            if start in mine and (keys is None or row[0] in keys):
                members[row[0]].append(row)
        lead = {"window_start": start, "window_end": start + self.size}
        timed = {"window_timing": timing} if self.lateness or self.early is not None else {}
        return [{"k": key, **lead, **timed, **aggregated(members[key])} for key in sorted(members, key=key_order)]


@dataclass
class SessionModel:
    gap: int
    watermark: int | None = None
    late: list[Row] = field(default_factory=list)
    open: list[list[Row]] = field(default_factory=list)

    @property
    def step(self) -> int:
        return -(-self.gap // 8)

    def is_over(self, ts: int) -> bool:
        return self.watermark is not None and ts // self.step * self.step + self.step + self.gap <= self.watermark

    def add(self, row: Row) -> None:
        if row[1] is None:
            return
        if self.is_over(row[1]):
            self.late.append(row)
            return
        mine, others = [row], []
        for session in self.open:
            first, last = min(r[1] for r in session), max(r[1] for r in session)
            near = session[0][0] == row[0] and first - self.gap <= row[1] <= last + self.gap
            if near:
                mine = session + mine if len(mine) == 1 else mine[:-1] + session + mine[-1:]
            else:
                others.append(session)
        self.open = [*others, mine]

    def advance(self, now: int) -> list[dict[str, Any]]:
        self.watermark = now
        ended = [session for session in self.open if self.is_over(max(row[1] for row in session))]
        self.open = [session for session in self.open if session not in ended]
        ended.sort(key=lambda rows: (max(row[1] for row in rows) // self.step, key_order(rows[0][0])))
        out = []
        for rows in ended:
            times = [row[1] for row in rows]
            bounds = {"window_start": min(times), "window_end": max(times) + self.gap}
            out.append({"k": rows[0][0], **bounds, **aggregated(rows)})
        return out


def drawn_rows(rng: random.Random) -> list[Row]:
    """Rows whose times rise on the whole."""
    spread = rng.choice([5, 20, 60])
    keys: list[str | None] = rng.choice([["a"], ["a", "b"], ["a", "b", "é", None]])
    rows: list[Row] = []
    for at in range(rng.randrange(40)):
        ts = None if rng.random() < 0.05 else at * rng.choice([1, 2]) - 30 + rng.randrange(spread)
        n = None if rng.random() < 0.2 else rng.randrange(-3, 4)
        rows.append((rng.choice(keys), ts, n, rng.choice([None, False, True])))
    return rows


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    arrays = [pa.array([row[i] for row in rows], type=f.type) for i, f in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def shown(window: KeyedWindow, batches: Any) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        table = plain(batch, window.output_schema(SCHEMA))
        for name in ("window_start", "window_end"):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(at).cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
        found += table.to_pylist()
    return found


def compare(window: KeyedWindow, model: Any, rng: random.Random) -> None:
    """Feed both; the output must be equal at each watermark, and nothing may be left at the end."""
    rows, state, late = drawn_rows(rng), FakeState(), 0
    rows_late: list[Row] = []
    ctx = context(window, SCHEMA, state)
    instance = window.create(ctx)
    reached, behind, at = -1_000, rng.choice([0, 5, 15]), 0
    while at < len(rows):
        part = rows[at : at + rng.choice([1, 1, 3, 10])]
        at += len(part)
        for out in instance.process(batch_of(part)):
            assert tag_of(out) == b"late rows"
            rows_late += [tuple(row.values()) for row in out.to_pylist()]
        for row in part:
            model.add(row)
        latest = max([row[1] for row in rows[:at] if row[1] is not None], default=None)
        what = rng.choice(["cut", "restart", "watermark", "watermark"])
        if what == "restart":
            saved = json.loads(json.dumps(instance.snapshot(1)))
            late += ctx.metrics.get("late_rows", 0)
            ctx = context(window, SCHEMA, state)
            instance = window.create(ctx)
            instance.restore(saved)
        elif what == "watermark" and latest is not None and latest - behind > reached:
            reached = latest - behind
            assert shown(window, instance.on_watermark(reached)) == model.advance(reached)
    assert shown(window, instance.on_watermark(END_OF_TIME_MS)) == model.advance(END_OF_TIME_MS)
    assert late + ctx.metrics.get("late_rows", 0) == len(model.late)
    assert rows_late == ([] if window.on_late == "drop" else model.late)
    instance.snapshot(2)
    assert all(objects.content == {} for objects in state.objects.values()), "nothing is left behind"


@pytest.fixture(autouse=True)
def small_parts() -> Any:
    """Parts are merged early, and rows leave memory early."""
    with (
        mock.patch.object(parts, "MAX_WAITING_ROWS", 3),
        mock.patch.object(parts, "KEPT_ROWS", 2),
        mock.patch.object(slices, "MERGED_PARTS", 2),
    ):
        yield


def fixed(seed: int) -> None:
    rng = random.Random(seed)
    size, hop = rng.choice([(10, 10), (10, 5), (10, 4), (7, 3), (12, 1)])
    offset, lateness, early = rng.choice([0, 3, -4]), rng.choice([0, 0, 6, 40]), rng.choice([None, None, 4, 15])
    window = KeyedWindow(
        "w", ("k",), "ts", FixedWindows(size, hop, offset), Aggregated(AGGREGATES), lateness, early, ON_LATE[seed % 2]
    )
    compare(window, FixedModel(size, hop, offset, lateness, early), rng)


def sessions(seed: int) -> None:
    rng = random.Random(seed)
    gap = rng.choice([1, 3, 5, 9, 16])
    window = KeyedWindow("w", ("k",), "ts", Sessions(gap), Aggregated(AGGREGATES), on_late=ON_LATE[seed % 2])
    compare(window, SessionModel(gap), rng)


@pytest.mark.parametrize("check", [fixed, sessions])
@pytest.mark.parametrize(
    "block", [range(20), *(pytest.param(range(a, a + 80), marks=pytest.mark.long) for a in range(20, 500, 80))], ids=str
)
def test_windows_as_by_a_model(check: Callable[[int], None], block: range) -> None:
    for seed in block:
        try:
            check(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


ORIGINAL: Any = SessionSlices._continued
ORIGINAL_PICKED: Any = Groups.picked
FAULTS: dict[str, tuple[Callable[[int], None], Any, str, Any]] = {
    "a row at the gap begins a session": (
        sessions,
        SessionSlices,
        "_continued",
        lambda self, spans, near: ORIGINAL(Narrow(self), spans, near),
    ),
    "sessions are not continued far ahead": (
        sessions,
        SessionSlices,
        "_continued",
        lambda self, spans, near: ORIGINAL(self, spans, near[:1]),
    ),
    "rows are late too soon": (fixed, FixedWindows, "last_ends", lambda self, starts: starts + self.slice_ms),
    "rows are late too late": (fixed, FixedWindows, "last_ends", lambda self, starts: starts + self.size_ms + 50),
    "an end is reached twice": (fixed, FixedInstance, "_drop_over", lambda self: None),
    "late rows change nothing": (fixed, FixedInstance, "_changed", lambda self, fresh, timings: iter(())),
    "the last value is the first": (
        fixed,
        Groups,
        "picked",
        lambda self, times, valid, last: ORIGINAL_PICKED(self, times, valid, last=False),
    ),
    "values are counted twice": (fixed, DistinctTable, "merge", lambda self, parts: concatenated(parts)),
}


class Narrow:
    """Sessions with a shorter gap."""

    def __init__(self, real: SessionSlices) -> None:
        self._gap_ms = real._gap_ms - 1
        self._slices = real._slices


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, where, name, wrong = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, LookupError)):
        for seed in range(100):
            check(seed)
