"""What windows emit: rankings, what functions make, days of time zones; and what is refused."""

from __future__ import annotations

import datetime
import random
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.event_time import contents
from flinkplus.operators.event_time.assigners import DAY_MS, CalendarWindows, FixedWindows, Sessions
from flinkplus.operators.event_time.contents import Aggregated, Called, Ranked
from flinkplus.operators.event_time.windows import KeyedWindow
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.rankings import Order, Ties
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from tests.unit.operators.event_time.test_window_kinds import SCHEMA, shown
from tests.unit.operators.operator_fakes import FakeState, context

COUNT = Aggregated((Aggregate("rows", "count"),))


def minutes(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def test_a_ranking_is_emitted_once_when_the_window_ends() -> None:
    window = KeyedWindow("top", ("k",), "ts", FixedWindows(10, 10), Ranked(2, (Order("n", True),), "rank"))
    instance = window.create(context(window, SCHEMA, FakeState()))
    for n, ts in ((3, 1), (5, 9), (None, 2), (5, 4), (1, 3), (9, 12)):
        assert list(instance.process(minutes([("a", ts, n, None)]))) == []
    list(instance.process(minutes([("b", 3, None, True), ("c", 0, 7, True)])))
    found = shown(window, instance.on_watermark(10))
    assert [(row["k"], row["rank"], row["n"], row["ts"]) for row in found] == [
        ("a", 1, 5, 4),
        ("a", 2, 5, 9),
        ("c", 1, 7, 0),
    ]
    assert [(row["window_start"], row["window_end"]) for row in found] == [(0, 10)] * 3
    assert [row["n"] for row in shown(window, instance.on_watermark(END_OF_TIME_MS))] == [9]
    assert window.output_schema(SCHEMA).names == ["k", "window_start", "window_end", "rank", "ts", "n", "w"]


@pytest.mark.parametrize(("ties", "ranks"), [("first", [1, 2, 3]), ("rank", [1, 1, 3, 3]), ("dense", [1, 1, 2, 2, 3])])
def test_ties_have_the_ranks_of_sql(ties: Ties, ranks: list[int]) -> None:
    orders = (Order("n", True), Order("w", False))
    window = KeyedWindow("top", ("k",), "ts", FixedWindows(10, 10), Ranked(3, orders[:1], "rank", ties))
    instance = window.create(context(window, SCHEMA, FakeState()))
    for n, ts in ((3, 1), (5, 9), (2, 3), (5, 4), (3, 2), (1, 5), (None, 6)):
        list(instance.process(minutes([("a", ts, n, None)])))
    found = shown(window, instance.on_watermark(10))
    assert [(row["rank"], row["n"], row["ts"]) for row in found] == list(
        zip(ranks, [5, 5, 3, 3, 2], [4, 9, 1, 2, 3], strict=False)
    )


def test_a_ranking_by_several_columns_of_one_batch_and_of_many() -> None:
    window = KeyedWindow(
        "top", ("k",), "ts", FixedWindows(10, 10), Ranked(3, (Order("n", True), Order("ts", True)), "rank", "rank")
    )
    rows = [("a", ts, n, None) for n, ts in ((3, 1), (5, 9), (5, 4), (3, 2), (5, 9))]
    for parts in ([rows], [[row] for row in rows]):
        instance = window.create(context(window, SCHEMA, FakeState()))
        for part in parts:
            list(instance.process(minutes(part)))
        found = shown(window, instance.on_watermark(10))
        assert [(row["rank"], row["n"], row["ts"]) for row in found] == [(1, 5, 9), (1, 5, 9), (3, 5, 4)]


def test_a_ranking_of_windows_keeps_their_bounds() -> None:
    counts = pa.schema(
        [("k", pa.string()), ("window_start", pa.int64()), ("window_end", pa.int64()), ("count", pa.int64())]
    )
    window = KeyedWindow("top", (), "window_start", FixedWindows(4, 4), Ranked(1, (Order("count", True),), "rank"))
    assert window.output_schema(counts).names == ["rank", "k", "window_start", "window_end", "count"]
    instance = window.create(context(window, counts, FakeState()))
    rows = [{"k": k, "window_start": 4, "window_end": 14, "count": n} for k, n in (("a", 2), ("b", 3))]
    list(instance.process(pa.RecordBatch.from_pylist(rows, counts)))
    (best,) = instance.on_watermark(8)
    assert best.to_pylist() == [{"rank": 1, **rows[1]}]


def test_a_ranking_for_each_window_of_the_windows_before() -> None:
    """By ``window_start`` as the key, so that several subtasks share the work."""
    counts = pa.schema([("k", pa.string()), ("window_start", pa.int64()), ("count", pa.int64())])
    window = KeyedWindow(
        "top", ("window_start",), "window_start", FixedWindows(4, 4), Ranked(1, (Order("count", True),), "rank")
    )
    assert window.output_schema(counts).names == ["window_start", "window_end", "rank", "k", "count"]
    instance = window.create(context(window, counts, FakeState()))
    rows = [{"k": k, "window_start": at, "count": n} for k, at, n in (("a", 5, 2), ("b", 5, 3), ("c", 6, 1))]
    list(instance.process(pa.RecordBatch.from_pylist(rows, counts)))
    (best,) = instance.on_watermark(8)
    best = best.drop_columns("window_end")
    assert sorted(best.to_pylist(), key=lambda row: row["k"]) == [{"rank": 1, **rows[1]}, {"rank": 1, **rows[2]}]


def called(key: Any, window: Any, rows: list[Any]) -> Any:
    if key == "fails":
        raise ValueError("no")
    times = [row.ts for row in rows]
    assert times == sorted(times) and window.start_ms <= times[0] and times[-1] < window.end_ms
    assert window.end - window.start == datetime.timedelta(milliseconds=10)
    if key != "silent":
        yield key, window.start_ms, window.timing, [row.n for row in rows]


@pytest.mark.parametrize("shown_rows", [1, 8_192])
def test_a_function_gets_the_rows_of_each_key_and_window(shown_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_SHOWN_ROWS", shown_rows)
    content = Called(called, "k string, start long, timing string, n array<int>")
    window = KeyedWindow("made", ("k",), "ts", FixedWindows(10, 5), content, lateness_ms=20)
    instance = window.create(context(window, SCHEMA, FakeState()))
    list(instance.process(minutes([("a", 7, 1, None), ("b", 3, 2, None), ("a", 6, 3, None), ("silent", 1, 1, None)])))

    def emitted(watermark_ms: int) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for batch in instance.on_watermark(watermark_ms) for row in batch.to_pylist()]

    assert emitted(10) == [("b", -5, "on time", [2]), ("a", 0, "on time", [3, 1]), ("b", 0, "on time", [2])]
    list(instance.process(minutes([("a", 4, 5, None)])))
    assert emitted(15) == [("a", -5, "late", [5]), ("a", 0, "late", [5, 3, 1]), ("a", 5, "on time", [3, 1])]
    list(instance.process(minutes([("fails", 20, 5, None)])))
    with pytest.raises(UserFunctionError, match=r"the window of key 'fails' from 15 to 25 ms"):
        emitted(30)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Apia", "America/Sao_Paulo", "Asia/Kolkata"])
def test_days_of_a_time_zone_are_those_of_the_calendar(zone: str) -> None:
    """Apia has left out a day; in Sao Paulo clocks went from midnight to one."""
    rng, info, windows = random.Random(zone), ZoneInfo(zone), CalendarWindows(DAY_MS, DAY_MS, 0, zone)
    times = np.array([rng.randrange(-20 * 365 * DAY_MS, 60 * 365 * DAY_MS) for _ in range(2_000)])
    starts = windows.starts(times)
    for ms, start in zip(times.tolist(), starts.tolist(), strict=True):
        day = datetime.datetime.fromtimestamp(ms / 1000, info).date()
        first, last = (datetime.datetime.fromtimestamp(at / 1000, info).date() for at in (start, start - 1))
        assert start <= ms and first == day and last < day
    assert (windows.last_ends(starts) > times).all()


def test_a_day_that_a_zone_left_out_is_in_no_other_day() -> None:
    """Apia had no 30 December 2011. Windows of two days, one for each day."""
    window = KeyedWindow("days", (), "ts", CalendarWindows(2 * DAY_MS, DAY_MS, 0, "Pacific/Apia"), COUNT)
    instance = window.create(context(window, SCHEMA, FakeState()))
    times = [
        int(datetime.datetime(2011, 12, day, 12, tzinfo=ZoneInfo("Pacific/Apia")).timestamp() * 1000)
        for day in (28, 29, 31)
    ]
    list(instance.process(minutes([("a", ms, 1, None) for ms in times])))
    found = shown(window, instance.on_watermark(END_OF_TIME_MS))
    assert [row["rows"] for row in found] == [
        sum(row["window_start"] <= ms < row["window_end"] for ms in times) for row in found
    ]
    assert len(found) == 5


def test_a_day_of_berlin_has_23_24_or_25_hours() -> None:
    window = KeyedWindow("days", (), "ts", CalendarWindows(DAY_MS, DAY_MS, 0, "Europe/Berlin"), COUNT)
    instance = window.create(context(window, SCHEMA, FakeState()))
    noon = [datetime.datetime(2024, 3, 31, 12), datetime.datetime(2024, 7, 1, 12), datetime.datetime(2024, 10, 27, 12)]
    utc = [int(moment.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000) for moment in noon]
    far = [-(1 << 60), 1 << 60]
    list(instance.process(minutes([("a", ms, 1, None) for ms in [*utc, *far]])))
    rows = [
        row
        for batch in instance.on_watermark(END_OF_TIME_MS)
        for row in batch.column("window_end").cast("int64").to_pylist()
    ]
    starts = sorted(int(s) for s in windows_of_days(utc))
    assert len(rows) == 5
    lengths = [(windows_of_days([s + DAY_MS + 3_600_001])[0] - s) // 3_600_000 for s in starts]
    assert lengths == [23, 24, 25]


def windows_of_days(times: list[int]) -> list[int]:
    starts: list[int] = CalendarWindows(DAY_MS, DAY_MS, 0, "Europe/Berlin").starts(np.array(times)).tolist()
    return starts


def test_what_was_over_stays_over_with_a_longer_lateness() -> None:
    """The rows of such a window are gone: a late row must not replace its result."""
    state = FakeState()

    def windows(lateness_ms: int) -> Any:
        window = KeyedWindow("w", ("k",), "ts", FixedWindows(10, 10), COUNT, lateness_ms)
        return window, window.create(context(window, SCHEMA, state))

    window, instance = windows(5)
    list(instance.process(minutes([("a", ts, 1, None) for ts in (1, 2, 11)])))
    assert [row["rows"] for row in shown(window, instance.on_watermark(20))] == [2, 1]
    saved = instance.snapshot(1)
    window, instance = windows(1_000)
    instance.restore(saved)
    list(instance.process(minutes([("a", ts, 1, None) for ts in (3, 12)])))
    found = shown(window, instance.on_watermark(30))
    assert [(row["window_start"], row["window_timing"], row["rows"]) for row in found] == [(10, "late", 2)]


def test_a_watermark_costs_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the number of slices times that of the windows of each."""
    calls = 0
    real = FixedWindows.boundary

    def counted(self: FixedWindows, number: int) -> int:
        nonlocal calls
        calls += 1
        return real(self, number)

    for early_ms in (None, 1_000):
        window = KeyedWindow("w", ("k",), "ts", FixedWindows(500, 1), COUNT, early_ms=early_ms)
        instance = window.create(context(window, SCHEMA, FakeState()))
        list(instance.process(minutes([("a", ts, 1, None) for ts in range(2_000, 2_400)])))
        list(instance.on_watermark(2_001))
        list(instance.process(minutes([("a", ts, 1, None) for ts in range(2_100, 2_400)])))
        monkeypatch.setattr(FixedWindows, "boundary", counted)
        assert [row["rows"] for row in shown(window, instance.on_watermark(2_002))] == [2]
        assert calls < 20
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (KeyedWindow("w", ("k",), "ts", FixedWindows(10, 20), COUNT), "hop .20 ms. is above the size"),
        (KeyedWindow("w", ("k",), "ts", FixedWindows(3_600_000, 7), COUNT), "choose a hop that divides"),
        (KeyedWindow("w", ("k",), "ts", CalendarWindows(10, 10, 0, "UTC"), COUNT), "are whole days"),
        (
            KeyedWindow("w", ("k",), "ts", CalendarWindows(DAY_MS, DAY_MS, 0, "Mars"), COUNT),
            "'Mars' is not",
        ),
        (
            KeyedWindow("w", ("k",), "ts", CalendarWindows(DAY_MS, DAY_MS, 0, "../x"), COUNT),
            "is not a time",
        ),
        (
            KeyedWindow("w", ("k",), "ts", CalendarWindows(DAY_MS, DAY_MS, 0, 5), COUNT),  # type: ignore[arg-type]
            "5 is not a time zone",
        ),
        (KeyedWindow("w", ("k",), "ts", Sessions(9), COUNT, 5), "sessions have neither allowed_lateness"),
        (
            KeyedWindow("w", ("k",), "ts", FixedWindows(9, 9), Ranked(0, (Order("n", True),), "rank")),
            "k is a number from 1",
        ),
        (
            KeyedWindow("w", ("k",), "ts", FixedWindows(9, 9), Ranked(1, (Order("k", True),), "rank")),
            "only numbers and times",
        ),
        (
            KeyedWindow("w", ("k",), "ts", FixedWindows(9, 9), Ranked(1, (Order("n", True),), "n")),
            "the column 'n' twice",
        ),
    ],
)
def test_windows_that_cannot_be(window: KeyedWindow, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        window.output_schema(SCHEMA)
