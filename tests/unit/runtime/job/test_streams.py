"""The driver's side of streaming DataFrames: batches are staged once, not too far ahead, and removed when passed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkplus.errors import InputError, JobRunsElsewhere
from flinkplus.runtime.job.streams.floors import BatchFloors
from flinkplus.runtime.job.streams.query import StreamQuery, StreamStopped, query_arguments
from flinkplus.sources.batches.area import StagingArea
from flinkplus.sources.batches.pieces import BatchPosition, redealt
from flinkplus.sources.batches.source import StreamedBatches

SCHEMA = pa.schema([("n", pa.int64())])
PATIENCE_S = 10.0


class Frame:
    """A batch, as far as the query uses it: ``df.write.parquet(place)``."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows
        self.written = 0

    @property
    def write(self) -> Frame:
        return self

    def parquet(self, place: str) -> None:
        self.written += 1
        os.makedirs(place)
        pq.write_table(pa.table({"n": pa.array(self.rows, pa.int64())}), f"{place}/part-0.parquet")


@dataclass
class Spark:
    """A streaming DataFrame and its query; the test gives the batches. ``error``: raised by the query."""

    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    stopped: bool = False
    error: Exception | None = None
    options: dict[str, Any] = field(default_factory=dict)
    take: Callable[[Any, int], None] | None = None

    @property
    def writeStream(self) -> Spark:
        return self

    def foreachBatch(self, take: Callable[[Any, int], None]) -> Spark:
        self.take = take
        return self

    def option(self, name: str, value: Any) -> Spark:
        self.options[name] = value
        return self

    def trigger(self, **arguments: Any) -> Spark:
        self.options.update(arguments)
        return self

    def start(self) -> Spark:
        self.started.set()
        return self

    def awaitTermination(self, timeout: float) -> bool:
        over = self.ended.wait(0.01)
        if over and self.error is not None:
            raise self.error
        return over

    def stop(self) -> None:
        self.stopped = True

    def give(self, number: int, *rows: int) -> Frame:
        frame = Frame(*rows)
        assert self.take is not None
        self.take(frame, number)
        return frame


@dataclass
class Driver:
    """What the query is told of the job, and what it reports."""

    area: StagingArea
    source: StreamedBatches
    read: int = 0
    floor: int = 0
    replaced: bool = False
    failures: list[str] = field(default_factory=list)
    failed: threading.Event = field(default_factory=threading.Event)
    queries: list[StreamQuery] = field(default_factory=list)

    def check(self) -> None:
        if self.replaced:
            raise JobRunsElsewhere("another driver")

    def note(self, reason: str, cause: Exception) -> None:
        assert type(cause).__name__ == "InputError" and str(cause) == reason
        self.failures.append(reason)
        self.failed.set()

    def start(self, spark: Spark | None = None, **options: Any) -> Spark:
        spark = spark or Spark()
        source = StreamedBatches("frame", SCHEMA, **options).staged_in(self.area.location)
        query = StreamQuery(source, spark, self.check, lambda: self.read, lambda: self.floor, self.note)  # type: ignore[arg-type]
        self.queries.append(query)
        query.begin()
        return spark

    def ready(self) -> list[int]:
        return self.area.ready()[0]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    area = StagingArea(str(tmp_path / "area"))
    made = Driver(area, StreamedBatches("frame", SCHEMA))
    yield made
    for query in made.queries:
        query.stop()
        assert not query._thread.is_alive()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.002)


def test_a_batch_is_staged_once(driver: Driver) -> None:
    spark = driver.start(trigger={"processingTime": "1 second"})
    assert spark.started.wait(PATIENCE_S)
    assert spark.options == {"checkpointLocation": f"{driver.area.location}/query", "processingTime": "1 second"}
    spark.give(0, 1, 2)
    spark.give(1)
    spark.give(2, 3)
    assert driver.ready() == [0, 2] and driver.area.read(2).rows_so_far == 3
    assert spark.give(2, 7, 8, 9).written == 0  # Spark has begun again, and gives its last batch once more
    driver.queries[-1].stop()
    assert spark.stopped
    again = driver.start()
    assert again.started.wait(PATIENCE_S)
    assert again.give(2, 7, 8, 9).written == 0
    again.give(3, 4)
    assert driver.ready() == [0, 2, 3] and driver.area.read(3).rows_so_far == 4
    assert driver.failures == []


def test_a_query_that_has_lost_its_checkpoint_is_an_error(driver: Driver) -> None:
    """Spark counts its batches anew then: new rows would be taken for batches that are staged."""
    spark = driver.start()
    assert spark.started.wait(PATIENCE_S)
    for number in range(3):
        spark.give(number, number)
    driver.queries[-1].stop()
    again = driver.start()
    assert again.started.wait(PATIENCE_S)
    with pytest.raises(InputError, match="gives batch 0 again, and batch 2 is staged already"):
        again.give(0, 7)
    assert driver.ready() == [0, 1, 2]


def test_a_batch_that_was_not_completed_is_staged_anew(driver: Driver) -> None:
    os.makedirs(driver.area.new_folder(0)[1])
    spark = driver.start()
    assert spark.started.wait(PATIENCE_S)
    spark.give(0, 1, 2)
    (folder,) = Path(driver.area.location, "batches").iterdir()
    assert driver.area.read(0).folder == folder.name


def test_the_query_waits_for_its_readers(driver: Driver) -> None:
    spark = driver.start(max_unread_batches=2)
    assert spark.started.wait(PATIENCE_S)
    spark.give(0, 1, 2)
    spark.give(1, 3)
    giving = threading.Thread(target=spark.give, args=(2, 4))
    giving.start()
    giving.join(0.2)
    assert giving.is_alive() and driver.ready() == [0, 1]
    driver.read = 1  # not all of the first batch
    giving.join(0.2)
    assert giving.is_alive()
    driver.read = 2
    giving.join(PATIENCE_S)
    assert driver.ready() == [0, 1, 2]


def test_bytes_are_limited_too(driver: Driver) -> None:
    spark = driver.start(max_unread_bytes=10)
    assert spark.started.wait(PATIENCE_S)
    spark.give(0, 1)
    stopped: list[Exception] = []

    def give() -> None:
        try:
            spark.give(1, 2)
        except StreamStopped as error:
            stopped.append(error)

    giving = threading.Thread(target=give)
    giving.start()
    driver.queries[-1].stop()  # the job ends while the query waits
    giving.join(PATIENCE_S)
    assert stopped and driver.ready() == [0] and driver.failures == []


def test_what_no_checkpoint_needs_is_removed(driver: Driver) -> None:
    spark = driver.start()
    assert spark.started.wait(PATIENCE_S)
    for number in range(4):
        spark.give(number, number)
    driver.floor = 2
    until(lambda: driver.ready() == [2, 3], "the removal of two batches")
    driver.floor = 9
    until(lambda: driver.ready() == [3], "the removal of all but the last")
    driver.queries[-1].stop()
    again = driver.start()
    assert again.started.wait(PATIENCE_S)
    again.give(4, 4)
    assert driver.area.read(4).rows_so_far == 5


def test_a_query_that_ends_ends_the_source(driver: Driver) -> None:
    spark = driver.start(trigger={"availableNow": True})
    spark.ended.set()
    until(lambda: driver.area.ready()[1], "the end")
    driver.queries[-1].stop()
    again = driver.start(trigger={"availableNow": True})  # of a driver that resumes the job
    until(driver.queries[-1]._thread.is_alive, "the thread")
    driver.queries[-1].stop()
    assert not again.started.is_set()


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError("no room"), "OSError: no room"), (None, "it was stopped")],
)
def test_a_query_that_fails_ends_the_job(driver: Driver, error: Exception | None, reason: str) -> None:
    spark = driver.start(Spark(error=error))
    spark.ended.set()
    assert driver.failed.wait(PATIENCE_S)
    assert len(driver.failures) == 1 and reason in driver.failures[0]
    assert "the streaming query of source 'frame' failed" in driver.failures[0]


def test_another_driver_has_taken_over(driver: Driver) -> None:
    spark = driver.start()
    assert spark.started.wait(PATIENCE_S)
    driver.replaced = True
    with pytest.raises(JobRunsElsewhere):
        spark.give(0, 1)
    assert driver.ready() == []


# --- floors


def handles(*positions: BatchPosition | None) -> list[tuple[Any, Any]]:
    """The snapshots of the subtasks of a source."""
    found = []
    for index, position in enumerate(positions):
        part = SimpleNamespace(position=None if position is None else position.to_json())
        found.append((f"frame[{index}]", SimpleNamespace(operator_state=SimpleNamespace(operators={"frame": part}))))
    return found


def at(first: int) -> BatchPosition:
    start = BatchPosition.start(0, 1)
    return start.advanced(0, start.pieces[0].after(first - 1)) if first else start


def test_the_slowest_reader_of_the_oldest_checkpoint_decides() -> None:
    floors = BatchFloors({"frame": StreamedBatches("frame", SCHEMA)}, kept=())
    assert floors.of("frame") == 0
    floors.stored(1, handles(at(3), at(5)))
    floors.stored(2, handles(at(8), at(9)))
    assert floors.of("frame") == 3
    floors.dropped(1)
    assert floors.of("frame") == 8
    floors.stored(3, handles(at(9), None))
    assert floors.of("frame") == 0
    floors.stored(4, handles(*redealt([at(12), at(20)], 3)))
    floors.dropped(2)
    floors.dropped(3)
    assert floors.of("frame") == 12


def test_checkpoints_of_earlier_runs_need_everything() -> None:
    floors = BatchFloors({"frame": StreamedBatches("frame", SCHEMA)}, kept=(4, 5))
    floors.stored(6, handles(at(7)))
    assert floors.of("frame") == 0
    floors.dropped(4)
    assert floors.of("frame") == 0
    floors.dropped(5)
    assert floors.of("frame") == 7


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {}, "once", {"once": True, "availableNow": True}])
def test_triggers_that_make_no_sense(trigger: Any) -> None:
    with pytest.raises(ValueError, match="trigger must be a dict with one of"):
        query_arguments(trigger)
    assert query_arguments(None) == {} and query_arguments({"once": True}) == {"once": True}
