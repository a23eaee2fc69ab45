"""Event time in jobs that are hurt: windows and timers give what a sequential model gives, whoever dies."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment, agg
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import ConfigurationError
from tests.integration.conftest import PATIENCE_S
from tests.integration.failover_jobs import Victim, word
from tests.integration.test_failover import assert_local

pytestmark = pytest.mark.integration

SIZE_MS, OUT_OF_ORDER_MS = 50, 20
RATE = 1_000.0
"""Each row is worth two calls of a Python function; a job that can hardly keep up recovers slowly."""
SUMS = "bucket long, start long, rows long, total long, paid decimal(22, 2)"


def event_time_ms(i: int) -> int:
    """About a millisecond a row, up to 20 ms out of order."""
    return i - i * 7919 % OUT_OF_ORDER_MS


def marks(stream: Stream) -> Stream:
    return stream.with_watermark("i", "20 ms", every="5 ms", name="marks")


def windows(stream: Stream) -> Stream:
    """Aggregate the rows of each bucket; event time has come through the count."""
    timed = stream.map(
        lambda row: (row.i % 7, event_time_ms(row.i), row.i, Decimal(row.i) / 4),
        schema="bucket long, ts long, i long, price decimal(12, 2)",
    )
    window = timed.key_by("bucket").tumbling_window("ts", "50 ms")
    small = window.aggregate(rows="count", total=("sum", "i"), paid=("sum", "price"), name="small")
    return small.map(
        lambda row: (row.bucket, round(row.window_start.timestamp() * 1000), row.rows, row.total, row.paid), schema=SUMS
    )


def test_windows_of_a_job_whose_slots_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    with HurtWindows(spark, tmp_path, before=marks, between=windows, rate=RATE) as victim:
        for count, slot in ((1, 1), (2, 0)):
            victim.wait_for_strength()
            victim.wait_for_checkpoints(1)
            victim.kill_slot(slot)
            victim.wait_for_failovers(count)
        victim.wait_for_strength()
        victim.finish()
    assert_local(victim, 2)


class HurtWindows(Victim):
    """Its output is of windows: what has been read is told by the metrics alone."""

    def check(self) -> None:
        metrics = self.job.metrics()["operators"]
        read = self.rows_read()
        expected: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i in read:
            expected[i % 7, event_time_ms(i) // SIZE_MS * SIZE_MS].append(i)
        table = pq.read_table(self.out)
        found = {
            (bucket, start): (rows, total, paid)
            for bucket, start, rows, total, paid in zip(*(column.to_pylist() for column in table.columns), strict=True)
        }
        assert len(found) == table.num_rows, "a window was put out twice"
        sums = {key: (len(numbers), sum(numbers)) for key, numbers in expected.items()}
        assert found == {key: (rows, total, Decimal(total) / 4) for key, (rows, total) in sums.items()}
        assert metrics["small"]["late_rows"] == metrics["marks"]["late_rows"] == 0
        assert len(expected) > 100

    def rows_read(self) -> list[int]:
        """Each source subtask reads every ``parallelism``-th number from its own index on."""
        parallelism = self.job._running.coordinator.options.parallelism
        counts = [self.job.rows_out("numbers")[f"numbers[{index}]"] for index in range(parallelism)]
        return [index + parallelism * n for index, count in enumerate(counts) for n in range(count)]


def late_ms(i: int) -> int:
    """As ``event_time_ms``; every tenth row is half a second late."""
    return event_time_ms(i) - 500 * (i % 10 == 0)


class HurtLateRows(HurtWindows):
    """Of the rows that were read each is in its window, or among the late rows."""

    def check(self) -> None:
        late = pq.read_table(self.out.parent / "late").to_pydict()
        numbers = set(late["i"])
        assert len(numbers) == len(late["i"]) > 10 and late["ts"] == [late_ms(i) for i in late["i"]]
        expected: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i in self.rows_read():
            if i not in numbers:
                expected[i % 7, late_ms(i) // SIZE_MS * SIZE_MS].append(i)
        table = pq.read_table(self.out).to_pydict()
        found = list(zip(*table.values(), strict=True))
        even = {key: sum(i % 2 == 0 for i in rows) for key, rows in expected.items()}
        assert sorted(found) == sorted((*key, len(rows), sum(rows), even[key]) for key, rows in expected.items())
        assert self.job.metrics()["operators"]["small"]["late_rows"] == len(numbers)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"checkpoint_mode": "unaligned"}], ids=str)
def test_late_rows_of_a_job_whose_slot_is_killed(spark: SparkSession, tmp_path: Path, options: Any) -> None:
    def late(stream: Stream) -> Stream:
        timed = stream.map(lambda row: (row.i % 7, late_ms(row.i), row.i), schema="bucket long, ts long, i long")
        window = timed.key_by("bucket").tumbling_window("ts", "50 ms", on_late="side-output")
        small = window.aggregate(rows="count", total=("sum", "i"), even=agg("count", where="i % 2 = 0"), name="small")
        small.late_rows().to_parquet(str(tmp_path / "late"), name="late")
        return small.map(
            lambda row: (row.bucket, round(row.window_start.timestamp() * 1000), row.rows, row.total, row.even),
            schema="bucket long, start long, rows long, total long, even long",
        )

    with HurtLateRows(spark, tmp_path, before=marks, between=late, rate=RATE, **options) as victim:
        victim.wait_for_strength()
        victim.wait_for_checkpoints(1)
        victim.kill_slot(1)
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.finish()


def joined(stream: Stream) -> Stream:
    """Each row with those of its bucket that are up to 6 ms later: the stream with itself, by way of two exchanges."""
    timed = stream.map(lambda row: (row.i % 7, event_time_ms(row.i), row.i), schema="bucket long, ts long, i long")
    keyed = timed.key_by("bucket")
    pairs = keyed.interval_join(keyed, left_time="ts", right_time="ts", lower=0, upper="6 ms", name="pairs")
    return pairs.map(lambda row: (row.left_i, row.right_i), schema="a long, b long")


class HurtJoin(HurtWindows):
    def check(self) -> None:
        buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
        read = self.rows_read()
        for i in read:
            buckets[i % 7, event_time_ms(i)].append(i)
        expected = [
            (i, other)
            for i in read
            for ts in range(event_time_ms(i), event_time_ms(i) + 7)
            for other in buckets.get((i % 7, ts), ())
        ]
        table = pq.read_table(self.out)
        assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == sorted(expected)
        assert len(expected) > len(read) > 100


def live_through_a_kill(job: Victim, slot: int) -> None:
    """One slot dies behind a checkpoint; the output is right, and was not taken back."""
    with job as victim:
        victim.wait_for_strength()
        victim.wait_for_checkpoints(1)
        victim.kill_slot(slot)
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.finish()
    assert_local(job, 1)


@pytest.mark.long
def test_a_join_of_a_job_whose_slots_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    live_through_a_kill(HurtJoin(spark, tmp_path, before=marks, between=joined), 0)


GAP_MS = 40


def on_row(key: str, row: Any, ctx: Any) -> None:
    """A session of a word ends when it has not been seen for ``GAP_MS``; rows come in any order until then."""
    times = ctx.state("times")
    times.put([*times.get([]), row.i])
    ctx.event_timer(row.i + GAP_MS)
    return None


def on_timer(key: str, at_ms: int, ctx: Any) -> Any:
    times, last = ctx.state("times").get([]), at_ms - GAP_MS
    if not any(last < ts < at_ms for ts in times):
        session = [ts for ts in times if ts <= last]
        ctx.state("times").put([ts for ts in times if ts > last] or None)
        yield key, min(session), max(session), len(session)


def sessions(stream: Stream) -> Stream:
    return stream.key_by("word").process(
        on_row, on_timer=on_timer, schema="word string, first long, last long, rows long", name="sessions"
    )


class HurtSessions(HurtWindows):
    def check(self) -> None:
        times: dict[str, list[int]] = defaultdict(list)
        for i in sorted(self.rows_read()):
            times[word(i)].append(i)
        expected: Counter[tuple[str, int, int, int]] = Counter()
        for name, found in times.items():
            begin = 0
            for at in range(1, len(found) + 1):
                if at == len(found) or found[at] - found[at - 1] >= GAP_MS:
                    expected[name, found[begin], found[at - 1], at - begin] += 1
                    begin = at
        table = pq.read_table(self.out)
        assert Counter(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
        assert expected.total() > 100


@pytest.mark.long
def test_sessions_by_timers_in_a_job_whose_slots_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    live_through_a_kill(HurtSessions(spark, tmp_path, before=marks, between=sessions), 2)


def session_windows(stream: Stream) -> Stream:
    """The same sessions: rows up to ``GAP_MS`` - 1 apart are in one."""
    counted = (
        stream.key_by("word")
        .session_window("i", "39 ms")
        .aggregate(rows="count", last=("max", "i"), different=("count_distinct", "i"), name="sessions")
    )
    return counted.map(
        lambda row: (row.word, round(row.window_start.timestamp() * 1000), row.last, row.different),
        schema="word string, first long, last long, rows long",
    )


@pytest.mark.long
def test_session_windows_in_a_job_whose_slots_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    live_through_a_kill(HurtSessions(spark, tmp_path, before=marks, between=session_windows, rate=250.0), 1)


def hopping(stream: Stream) -> Stream:
    timed = stream.map(lambda row: (row.i % 7, event_time_ms(row.i), row.i), schema="bucket long, ts long, i long")
    window = timed.key_by("bucket").hopping_window("ts", "50 ms", "20 ms", allowed_lateness="30 ms", emit_every="15 ms")
    rows = window.aggregate(rows="count", different=("count_distinct", "i"), numbers=("collect_list", "i"))
    return rows.map(
        lambda row: (
            row.bucket,
            round(row.window_start.timestamp() * 1000),
            row.window_timing,
            row.rows,
            row.different,
            sum(row.numbers),
        ),
        schema="bucket long, start long, timing string, rows long, different long, total long",
    )


class HurtHopping(HurtWindows):
    def check(self) -> None:
        expected: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i in self.rows_read():
            ts = event_time_ms(i)
            for start in range((ts - 50) // 20 * 20 + 20, ts + 1, 20):
                expected[i % 7, start].append(i)
        table = pq.read_table(self.out)
        found = {}
        for bucket, start, timing, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if timing == "on time":
                assert (bucket, start) not in found, "a window ended twice"
                found[bucket, start] = values
            assert timing != "late", "no row is late"
        assert found == {key: [len(numbers), len(numbers), sum(numbers)] for key, numbers in expected.items()}
        assert table.num_rows > len(found) > 100, "early rows"


@pytest.mark.long
def test_hopping_windows_of_a_job_whose_slots_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    live_through_a_kill(HurtHopping(spark, tmp_path, before=marks, between=hopping, rate=250.0), 2)


@pytest.mark.long
def test_windows_are_those_of_spark_sql(spark: SparkSession, tmp_path: Path) -> None:
    """Hopping windows, sessions, and days of Berlin."""
    df = spark.sql(
        """select id % 5 as k, id % 11 as n, id % 3 = 0 as w,
        timestamp'2024-03-30 20:00:00Z' + make_interval(0, 0, 0, 0, 0, 0, cast(id * id % 997 * 173 as int)) as ts
        from range(600)"""
    ).orderBy("ts")
    env = StreamEnvironment(spark, parallelism=2, recovery="rollback", work_dir=str(tmp_path))
    keyed = env.from_spark(df).with_watermark("ts", "1 minute").key_by("k")
    made = {
        "hopping": (keyed.hopping_window("ts", "1 hour", "25 minutes"), "window(ts, '1 hour', '25 minutes')"),
        "sessions": (keyed.session_window("ts", "20 minutes"), "session_window(ts, '20 minutes')"),
        "days": (
            keyed.tumbling_window("ts", "1 day", time_zone="Europe/Berlin"),
            "date_trunc('day', from_utc_timestamp(to_utc_timestamp(ts, current_timezone()), 'Europe/Berlin'))",
        ),
    }
    for name, (window, _) in made.items():
        window.aggregate(
            rows="count",
            total=("sum", "n"),
            average=("avg", "n"),
            different=("count_distinct", "n"),
            marked=agg("count", where="w"),
        ).to_parquet(str(tmp_path / name))
    with env.execute("windows") as job:
        job.await_finish(PATIENCE_S)
    df.createOrReplaceTempView("events")
    for name, (_, grouping) in made.items():
        wanted = spark.sql(
            f"""select k, g, count(*), sum(n), avg(n), count(distinct n), count_if(w)
            from (select *, {grouping} as g from events) group by k, g"""
        ).collect()
        found = spark.read.parquet(str(tmp_path / name)).collect()
        assert sorted((row[0], *row[2:]) for row in wanted) == sorted((row[0], *row[3:]) for row in found)
        if name != "days":
            assert {(row[0], *row[1]) for row in wanted} == {tuple(row[:3]) for row in found}
        assert len(found) > 5


def test_windows_of_timestamps_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2, recovery="rollback", work_dir=str(tmp_path))
    begin = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
    rows = env.generate(
        lambda i: (f"k{i % 3}", begin + datetime.timedelta(seconds=i)), schema="k string, ts timestamp", count=120
    )
    counts = rows.with_watermark("ts", "1 second").key_by("k").tumbling_window("ts", "1 minute").count(output="n")
    counts.to_parquet(str(tmp_path / "out"))
    with env.execute("windows") as job:
        job.await_finish(PATIENCE_S)
    found = spark.read.parquet(str(tmp_path / "out")).selectExpr(
        "k", "unix_timestamp(window_start)", "unix_timestamp(window_end)", "n"
    )
    start = int(begin.timestamp())
    assert sorted(map(tuple, found.collect())) == [
        (f"k{k}", start + 60 * w, start + 60 * w + 60, 20) for k in range(3) for w in range(2)
    ]


def test_event_time_without_watermarks_is_refused(spark: SparkSession) -> None:
    env = StreamEnvironment(spark, parallelism=2)
    keyed = env.generate(lambda i: (i, i), schema="k long, ts long", count=1).key_by("k")
    with pytest.raises(ConfigurationError, match="'window_count' needs event time: call with_watermark"):
        keyed.tumbling_window("ts", "1 second").count()
    with pytest.raises(ConfigurationError, match="'process' needs event time: call with_watermark"):
        keyed.process(on_row, on_timer=on_timer, schema="k long")
