"""Joins beside DuckDB: the same rows, however they are cut into batches, with limits that few rows reach."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.operators.event_time.assigners import FixedWindows
from flinkplus.operators.joins import windowed
from flinkplus.operators.joins.bounds import Bounds, bounds_of
from flinkplus.operators.joins.sides import KEEPS, JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.joins.windowed import WindowJoin
from tests.examples import examples
from tests.unit.operators.joins.drawn import LEFT, RIGHT, Fed, Rows, counted, limits, rows, run, small

SIDES = JoinSide(LEFT, ("k",), "ts", "left_"), JoinSide(RIGHT, ("id",), "due", "right_")
cuts = st.lists(st.integers(0, 8), max_size=20)


@cache
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def by_sql(query: str, left: Rows, right: Rows) -> Rows:
    """The rows of ``query`` over the tables ``l`` and ``r``."""
    tables = [
        pa.table([pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)], schema=schema)
        for rows, schema in ((left, LEFT), (right, RIGHT))
    ]
    for name, table in zip("lr", tables, strict=True):
        connection().register(name, table)
    return connection().execute(query).fetchall()


INTERVALS: dict[str, tuple[Any, Any, Any, str]] = {
    "constants": ("-0.005", "0.02", None, "due - ts BETWEEN -5 AND 20"),
    "one instant": (0, 0, None, "due = ts"),
    "one side": ("3 ms", "20 ms", None, "due - ts BETWEEN 3 AND 20"),
    "last": (0, "last", None, "due BETWEEN ts AND last"),
    "first": ("ts - n % 7", "left.last", "30 ms", "due BETWEEN ts - n % 7 AND last AND abs(due - ts) <= 30"),
    "until": (0, "right.until", None, "ts BETWEEN due AND until"),
    "within": ("due - 5", "until", "12 ms", "ts BETWEEN due - 5 AND until AND abs(due - ts) <= 12"),
    "case": ("-4 ms", "CASE WHEN n > 50 THEN last ELSE ts + 9 END", None,
             "due >= ts - 4 AND due <= CASE WHEN n > 50 THEN last ELSE ts + 9 END"),
}  # fmt: skip


def interval(kind: str) -> Bounds:
    lower, upper, within, _ = INTERVALS[kind]
    lower, upper = (each if each != "-0.005" and each != "0.02" else float(each) for each in (lower, upper))
    return bounds_of("join", lower, upper, within, (LEFT, RIGHT))


@given(rows, rows, cuts, small, st.sampled_from(sorted(INTERVALS)), st.sampled_from(sorted(KEEPS)))
@settings(max_examples=examples(90), deadline=None)
def test_rows_close_in_time(
    left: Rows, right: Rows, cuts: list[int], drawn: dict[str, Any], kind: str, how: Any
) -> None:
    operator = KeyedJoin("join", ("k",), *SIDES, interval(kind), how=how)
    operator.check()
    expected = by_sql(f"SELECT * FROM l {how} JOIN r ON k = id AND {INTERVALS[kind][3]}", left, right)
    with limits(drawn):
        assert counted(run(operator, (left, right), cuts).output) == counted(expected)


@given(rows, rows, cuts, small, st.sampled_from(sorted(KEEPS)))
@settings(max_examples=examples(50), deadline=None)
def test_all_rows(left: Rows, right: Rows, cuts: list[int], drawn: dict[str, Any], how: Any) -> None:
    left_side, right_side = (replace(side, column=None) for side in SIDES)
    operator = KeyedJoin("join", ("k",), left_side, right_side, Bounds(), how=how)
    operator.check()
    expected = by_sql(f"SELECT * FROM l {how} JOIN r ON k = id", left, right)
    with limits(drawn):
        assert counted(run(operator, (left, right), cuts, timed=False).output) == counted(expected)


@given(rows, rows, cuts, small, st.sampled_from([(10, 10, 0), (20, 5, 3), (9, 6, 0)]), st.sampled_from(sorted(KEEPS)))
@settings(max_examples=examples(60), deadline=None)
def test_rows_of_one_window(
    left: Rows, right: Rows, cuts: list[int], drawn: dict[str, Any], windows: tuple[int, int, int], how: Any
) -> None:
    size, hop, offset = windows
    operator = WindowJoin("join", ("k",), *SIDES, FixedWindows(size, hop, offset), how=how)
    operator.check()
    starts = f"range(-60, 120, {hop})"
    sides = [
        f"(SELECT t.*, s.w + {offset} AS w FROM {table} t, (SELECT unnest({starts}) AS w) s "
        f"WHERE {time} >= s.w + {offset} AND {time} < s.w + {offset + size})"
        for table, time in (("l", "ts"), ("r", "due"))
    ]
    expected = by_sql(
        f"SELECT k, ts, n, last, id, due, m, until, epoch_ms(coalesce(l.w, r.w)::BIGINT), "
        f"epoch_ms(coalesce(l.w, r.w)::BIGINT + {size}) FROM {sides[0]} l {how} JOIN {sides[1]} r "
        "ON k = id AND l.w = r.w",
        left,
        right,
    )
    with limits(drawn):
        found = run(operator, (left, right), cuts).output
        assert counted([(*row[:-2], *(time.replace(tzinfo=None) for time in row[-2:])) for row in found]) == counted(
            expected
        )
        again = run(operator, (left, right), [3, 0, 5]).output
        assert [row for row in again if None not in row] == [row for row in found if None not in row], "one order"


CUT_ALIKE: dict[str, KeyedJoin | WindowJoin] = {
    "times": KeyedJoin("join", ("k",), *SIDES, Bounds(-30, 30), how="full"),
    "windows": WindowJoin("join", ("k",), *SIDES, FixedWindows(20, 20), how="full"),
}


@pytest.mark.parametrize("kind", CUT_ALIKE)
def test_output_is_cut_alike_whatever_memory_holds(kind: str) -> None:
    """Each batch is a message. A subtask that repeats a step makes the same ones, with less or more in memory."""
    left = [("a" if i % 3 else "b", i, i, 99) for i in range(14)]
    right = [("a" if i % 2 else "b", i, i, 99) for i in range(14)]
    runs = []
    for kept in (0, 1 << 20):
        with limits({"kept": kept, "cell": 6, "read": 8, "pairs": 16, "shelf": 1_000, "collide": False}):
            runs.append(run(CUT_ALIKE[kind], (left, right), [7, 7, 0, 7, 7]))
    assert runs[0].output == runs[1].output
    assert runs[0].sizes == runs[1].sizes
    assert max(runs[0].sizes) > 4


def test_short_slices_are_looked_up_together() -> None:
    """Of a window of 60 slices, the rows of one side are looked up once in each slice of the other."""
    fed = Fed(WindowJoin("join", ("k",), *SIDES, FixedWindows(60, 59), how="full"))
    for which in (0, 1):
        fed.feed(which, [(str(i + which), i, i, 0) for i in range(1, 59)])
    with mock.patch.object(windowed, "pairs_of", wraps=windowed.pairs_of) as looked_up:
        fed.advance(60)
    assert len(fed.output) == 57 + 1 + 1
    assert looked_up.call_count == 2
