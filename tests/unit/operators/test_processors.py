"""PySpark's processors, unchanged: against PySpark's own in-memory tester, over snapshots, and what is refused."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.operator import OperatorInstance
from flinkplus.operators.base.row import make_row, row_type
from flinkplus.operators.processors.handle import schema_of
from flinkplus.operators.processors.transform import (
    TransformWithState,
    pickled_processor,
    spark_rows,
    time_mode_of,
)
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from tests.stateful_processors import OUTPUT, Cache, Inventory, RunningCount, Sessions
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.int64())])
Rows = list[tuple[str, int, int]]


class Subject:
    def __init__(self, processor: Any, mode: Any, state: FakeState | None = None, saved: str | None = None) -> None:
        self.state = state or FakeState()
        self.now_ms = 1_000
        pickled = pickled_processor("t", processor, mode)
        operator = TransformWithState("t", ("k",), pickled, schema_of(OUTPUT), mode)
        self.operator = operator
        ctx = context(operator, SCHEMA, self.state)
        ctx.now_ms = lambda: self.now_ms
        self.instance: OperatorInstance = operator.create(ctx)
        if saved is not None:
            self.instance.restore(json.loads(saved))

    def rows(self, rows: Rows) -> list[tuple[Any, ...]]:
        batch = pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
        return given(self.instance.process(batch))


def given(batches: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def drawn(seed: int, count: int) -> list[Rows]:
    rng, at = random.Random(seed), 0
    batches: list[Rows] = []
    for _ in range(count):
        rows: Rows = []
        for _ in range(rng.randrange(1, 9)):
            at += rng.choice((0, 10, 300, 2_000))
            rows.append((rng.choice("abc"), rng.randrange(10), at))
        batches.append(rows)
    return batches


def by_key(rows: Rows) -> dict[str, list[SparkRow]]:
    found: dict[str, list[SparkRow]] = {}
    for k, n, at in rows:
        found.setdefault(k, []).append(SparkRow(k=k, n=n, at=at))
    return found


def plain(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("kind", [RunningCount, Inventory])
def test_as_in_sparks_own_tester(kind: Any) -> None:
    subject, tester = Subject(kind(), "none"), TwsTester(kind())
    for turn, rows in enumerate(drawn(5, 30)):
        expected = [row for key, mine in by_key(rows).items() for row in plain(tester.test(key, mine))]
        assert subject.rows(rows) == expected
        if turn % 9 == 8:
            saved = json.dumps(subject.instance.snapshot(1))
            subject = Subject(kind(), "none", subject.state, saved)


def test_sessions_by_timers_of_event_time() -> None:
    whole: dict[str, list[int]] = {}
    subject = Subject(Sessions(), "event_time")
    found: list[tuple[Any, ...]] = []
    for rows in drawn(6, 40):
        for k, _, at in rows:
            whole.setdefault(k, []).append(at)
        assert subject.rows(rows) == []
        found += given(subject.instance.on_watermark(rows[-1][2]))
        saved = json.dumps(subject.instance.snapshot(1))
        subject = Subject(Sessions(), "event_time", subject.state, saved)
    found += given(subject.instance.on_watermark(END_OF_TIME_MS))
    found += given(subject.instance.end())
    expected = []
    for k, times in whole.items():
        begin, count, last = times[0], 0, times[0]
        for at in times:
            if at > last + Sessions.GAP_MS:
                expected.append((k, count, begin))
                begin, count = at, 0
            count, last = count + 1, at
        expected.append((k, count, begin))
    assert sorted(found) == sorted(expected)
    assert not any(objects.content for objects in subject.state.objects.values())


def test_timers_of_processing_time() -> None:
    subject = Subject(Sessions(), "processing_time")
    assert waits(subject) is None
    subject.rows([("a", 1, 5_000), ("b", 2, 7_000)])
    fired: list[tuple[int, Any]] = []
    for _ in range(20):
        at_ms = waits(subject)
        if at_ms is None:
            break
        subject.now_ms = max(at_ms, subject.now_ms + 1)
        fired += [(subject.now_ms, row) for row in given(subject.instance.on_clock())]
    assert fired == [(6_000, ("a", 1, 5_000)), (8_000, ("b", 1, 7_000))]
    assert waits(subject) is None


class Periodic(RunningCount):
    """Registers the next timer whenever one fires."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.handle.registerTimer(2_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 1_000)
        yield SparkRow(k=key[0], count=1, total=expiredTimerInfo.getExpiryTimeInMs())


@pytest.mark.parametrize("mode", ["event_time", "processing_time"])
def test_a_timer_that_always_registers_the_next_one_ends_with_the_input(mode: Any) -> None:
    subject = Subject(Periodic(), mode)
    assert subject.rows([("a", 1, 0)]) == []
    found = given(subject.instance.on_watermark(END_OF_TIME_MS)) + given(subject.instance.end())
    assert [row[2] for row in found] == [2_000]


def waits(subject: Subject) -> int | None:
    """For which time of day it waits."""
    return subject.instance.clock_at_ms


def test_times_to_live() -> None:
    subject = Subject(Cache(), "processing_time")
    assert subject.rows([("a", 3, 0), ("a", 3, 0)]) == [("a", 0, -1), ("a", 1, 103)]
    subject.now_ms += Cache.TTL_MS - 1
    assert subject.rows([("a", 3, 0)]) == [("a", 2, 203)]
    subject.now_ms += 1
    assert subject.rows([("a", 4, 0)]) == [("a", 0, 103)]
    subject.now_ms += Cache.TTL_MS
    assert subject.rows([("a", 3, 0)]) == [("a", 0, -1)]


class Closing(RunningCount):
    def close(self) -> None:
        raise OSError("cannot close")


class Wrong(RunningCount):
    def __init__(self, gives: Any) -> None:
        self.gives = gives

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        self._count.update(self.gives)
        yield SparkRow(k=key[0], count=1, total=1)


class Frame:
    columns, iloc = ("a",), ()


class Pandas(RunningCount):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        yield Frame()


class Twice(RunningCount):
    def init(self, handle: Any) -> None:
        handle.getValueState("x", "n long")
        handle.getListState("x", "n long")


class Purging(RunningCount):
    def init(self, handle: Any) -> None:
        handle.deleteIfExists("x")


class Failing(RunningCount):
    def init(self, handle: Any) -> None:
        raise OSError("no such file")


def test_errors_of_a_processor_name_the_row() -> None:
    for processor, message in [
        (Wrong((1,)), "a value of state 'count' is a tuple of 2 columns, not one of 1"),
        (Wrong(7), "not one but a int"),
        (Pandas(), "processors of transformWithStateInPandas are not supported"),
    ]:
        with pytest.raises(UserFunctionError, match=message) as raised:
            Subject(processor, "none").rows([("a", 1, 2)])
        assert "k='a', n=1, at=2" in str(raised.value)


def test_what_is_refused_before_anything_starts() -> None:
    for processor, mode, message in [
        (RunningCount, "none", "needs an instance of a StatefulProcessor, not the class RunningCount"),
        (lambda: 1, "none", "needs an instance of a StatefulProcessor, not a function"),
        (Cache(), "event_time", "state 'last' has a time to live, which needs time_mode='processing_time'"),
        (Twice(), "none", "state 'x' is there already"),
        (Purging(), "none", "deleteIfExists would remove state 'x' of all keys"),
        (Failing(), "none", "init of the processor fails: OSError"),
        (Closing(), "none", "fails: OSError"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            pickled_processor("t", processor, mode)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="time_mode is one of"):
        time_mode_of("t", "eventually")
    assert [time_mode_of("t", name) for name in ("None", "EventTime", "processingTime")] == [
        "none",
        "event_time",
        "processing_time",
    ]


def test_timers_without_time_are_an_error_of_the_program() -> None:
    with pytest.raises(ConfigurationError, match="has no timers: give transform_with_state"):
        Subject(Sessions(), "none").rows([("a", 1, 2)])


def test_rows_are_those_of_pyspark() -> None:
    inner = pa.struct([("x", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    schema = pa.schema(
        [("t", pa.timestamp("us", "UTC")), ("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))]
    )
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc).astimezone()
    value = {"x": 1, "t": moment}
    row = spark_rows(schema)(make_row(row_type(tuple(schema.names)), [moment, value, [value, None], {"a": value}]))
    local = moment.replace(tzinfo=None)
    assert row == SparkRow(
        t=local, s=SparkRow(x=1, t=local), l=[SparkRow(x=1, t=local), None], m={"a": SparkRow(x=1, t=local)}
    )
    assert row.s.t == local and row.m["a"].x == 1
    by_time = pa.schema([("m", pa.map_(pa.timestamp("us", "UTC"), pa.int64()))])
    assert spark_rows(by_time)(make_row(row_type(("m",)), [{moment: 1}])).m == {local: 1}
    nothing = spark_rows(schema)(make_row(row_type(tuple(schema.names)), [None, None, None, None]))
    assert tuple(nothing) == (None, None, None, None)


def test_schemas() -> None:
    struct = StructType([StructField("a b", LongType(), False), StructField("c", StringType())])
    assert schema_of(struct) == pa.schema([pa.field("a b", pa.int64(), nullable=False), ("c", pa.string())])
    with pytest.raises(ConfigurationError, match="text or a StructType"):
        schema_of(7)
