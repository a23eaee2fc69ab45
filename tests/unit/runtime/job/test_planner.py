"""The driver's side of a data source with a streamReader(): what it calls, stores, commits and removes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from flinkplus.errors import ConfigurationError, InputError, JobRunsElsewhere
from flinkplus.runtime.job.streams import planner as planners
from flinkplus.runtime.job.streams.planner import BatchPlanner
from flinkplus.sources.planned import calls
from flinkplus.sources.planned.area import PlanArea
from flinkplus.sources.planned.calls import PlanCalls
from flinkplus.sources.planned.planning import PlannedBatch
from flinkplus.sources.planned.source import DataSourceBatches
from flinkplus.sources.python.source import SparkDataSource
from flinkplus.state.durable.seals import SigningKey

PATIENCE_S = 10.0


class World:
    """What there is to read: ``size`` rows. ``calls``: of the reader. ``answers``: others than usual, by method."""

    def __init__(self) -> None:
        self.size = 0
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    def called(self, method: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == method]

    def answer(self, method: str, *arguments: Any, usual: Any = None) -> Any:
        self.calls.append((method, *arguments))
        found = self.answers.get(method, usual)
        if isinstance(found, Exception):
            raise found
        return found


class Counting(DataSourceStreamReader):
    def __init__(self, world: World) -> None:
        self.world = world

    def initialOffset(self) -> Any:
        return self.world.answer("initialOffset", usual={"at": self.world.size})

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:
        return self.world.answer("latestOffset", start["at"], limit, usual={"at": self.world.size})

    def partitions(self, start: Any, end: Any) -> Any:
        found = [InputPartition(n) for n in range(start["at"], end["at"])]
        return self.world.answer("partitions", start["at"], end["at"], usual=found)

    def read(self, partition: InputPartition) -> Any:
        raise AssertionError("called in the driver")

    def commit(self, end: Any) -> None:
        self.world.answer("commit", end["at"])

    def stop(self) -> None:
        self.world.answer("stop")


class Limited(Counting):
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(2)

    def latestOffset(self, start: Any, limit: Any) -> Any:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.world.size
        end = {"at": min(start["at"] + most, self.world.size)}
        return self.world.answer("latestOffset", start["at"], limit, usual=end)


class Bounded(Limited, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self) -> None:
        self.world.answer("prepare")


class Older(Counting):
    """As before PySpark 4.2."""

    def latestOffset(self) -> Any:  # type: ignore[override]
        return self.world.answer("latestOffset", usual={"at": self.world.size})


@dataclass
class Driver:
    """What planners are told of the job, and what they report."""

    directory: str
    world: World = field(default_factory=World)
    kind: type[Counting] = Counting
    begun: int = 0
    read: int = 0
    floor: int = 0
    looks: int = 0
    replaced: bool = False
    failures: list[Exception] = field(default_factory=list)
    failed: threading.Event = field(default_factory=threading.Event)
    planners: list[BatchPlanner] = field(default_factory=list)

    def source(self, **options: Any) -> DataSourceBatches:
        world, kind = self.world, self.kind

        class Numbers(DataSource):
            def schema(self) -> str:
                return "n long"

            def streamReader(self, schema: Any) -> Any:
                return world.answer("streamReader", usual=kind(world))

        described = SparkDataSource.of(Numbers, {"password": "hunter2"})
        struct = StructType().add("n", "long").json()
        source = DataSourceBatches("numbers", described, pa.schema([("n", pa.int64())]), struct, 0.005)
        return replace(source, folder="numbers-1", **options).placed(self.directory, SigningKey(b"k" * 32, "a key"))

    @property
    def area(self) -> PlanArea:
        return self.source().area()

    def check(self) -> None:
        if self.replaced:
            raise JobRunsElsewhere("another driver")

    def note(self, reason: str, cause: Exception) -> None:
        assert str(cause) in reason
        self.failures.append(cause)
        self.failed.set()

    def start(self, **options: Any) -> BatchPlanner:
        source = self.source(**options)
        made = BatchPlanner(source, self.begun, self.check, lambda: self.read, self.looked, self.note)
        self.planners.append(made)
        made.begin()
        return made

    def planned(self) -> list[tuple[str, str, int, list[Any]]]:
        """The stored batches: offsets, first partition, and values of partitions. Without batch 0 if others follow,
        which makes it superfluous."""
        area = self.area
        while True:
            numbers = area.ready()[0]
            with suppress(FileNotFoundError):  # it was removed meanwhile
                return [_shown(area.read(number)) for number in numbers if number or len(numbers) == 1]

    def end(self) -> str | None:
        """The end of the last stored batch."""
        return ([None, *(end for _, end, _, _ in self.planned())])[-1]

    def looked(self) -> int:
        self.looks += 1
        return self.floor

    def fails(self, message: str) -> None:
        self.start()
        assert self.failed.wait(PATIENCE_S)
        with pytest.raises(InputError, match=message):
            raise self.failures[0]


def _shown(batch: PlannedBatch) -> tuple[str, str, int, list[Any]]:
    return batch.start, batch.end, batch.first, [cloudpickle.loads(each).value for each in batch.partitions]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(planners, "LOOK_S", 0.01)
    made = Driver(str(tmp_path))
    yield made
    for planner in made.planners:
        planner.stop()
        assert not planner._thread.is_alive()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.002)


def test_batches_follow_each_other(driver: Driver) -> None:
    driver.world.size = 5
    driver.start()
    until(lambda: len(driver.world.called("latestOffset")) > 2, "idle asks")
    assert driver.planned() == [('{"at": 5}', '{"at": 5}', 0, [])] and not driver.world.called("partitions")
    driver.world.size = 7
    until(lambda: driver.end() == '{"at": 7}', "a batch")
    driver.world.size = 8
    until(lambda: len(driver.planned()) == 2, "another batch")
    assert driver.planned() == [('{"at": 5}', '{"at": 7}', 0, [5, 6]), ('{"at": 7}', '{"at": 8}', 2, [7])]
    driver.planners[0].stop()
    assert len(driver.world.called("stop")) == 1 and driver.failures == []


def test_another_driver_continues_behind_the_last_batch(driver: Driver) -> None:
    driver.start()
    until(lambda: len(driver.planned()) == 1, "the first offset")
    driver.planners[0].stop()
    driver.world.size = 3
    driver.start()
    until(lambda: driver.planned() == [('{"at": 0}', '{"at": 3}', 0, [0, 1, 2])], "a batch")
    assert len(driver.world.called("initialOffset")) == 1


def test_batches_wait_for_their_readers(driver: Driver) -> None:
    driver.kind, driver.world.size = Limited, 0
    driver.start(max_unread_batches=2)
    until(lambda: len(driver.planned()) == 1, "the first offset")
    driver.world.size = 9
    until(lambda: len(driver.planned()) == 2, "two batches")
    asked = len(driver.world.called("latestOffset"))
    looks = driver.looks
    until(lambda: driver.looks > looks + 2, "looks for room")
    assert len(driver.world.called("latestOffset")) == asked
    driver.read = 2
    until(lambda: len(driver.planned()) == 3, "one more")
    assert driver.planned()[2] == ('{"at": 4}', '{"at": 6}', 4, [4, 5])
    assert {limit for _, limit in map(_hashable, driver.world.called("latestOffset"))} == {"ReadMaxRows(max_rows=2)"}


def test_there_is_a_pause_behind_a_batch_without_partitions(driver: Driver) -> None:
    """An offset may be a time, which is another one whenever it is asked for."""
    driver.world.answers |= {"initialOffset": {"at": 0}, "partitions": []}
    driver.world.size = 1
    driver.start(poll_s=60.0)
    until(lambda: len(driver.planned()) == 1 and driver.end() == '{"at": 1}', "a batch without partitions")
    driver.world.size, looks = 2, driver.looks
    until(lambda: driver.looks > looks + 3, "looks")
    assert len(driver.world.called("latestOffset")) == 1


def _hashable(call: tuple[Any, ...]) -> tuple[int, str]:
    return call[0], repr(call[1])


def test_what_all_kept_checkpoints_have_passed_is_committed_and_removed(driver: Driver) -> None:
    driver.kind = Limited
    driver.start()
    until(lambda: len(driver.planned()) == 1, "the first offset")
    driver.world.size = 6
    until(lambda: len(driver.planned()) == 3, "three batches")
    driver.floor = 3
    until(lambda: driver.world.called("commit") == [(2,)], "the first commit")
    until(lambda: len(driver.planned()) == 2, "the removal of what was passed")
    driver.floor = 6
    until(lambda: driver.world.called("commit") == [(2,), (6,)], "the last commit")
    until(lambda: len(driver.planned()) == 1, "the removal of all but the last")
    driver.planners[0].stop()
    driver.begun = 6
    driver.start()
    until(lambda: driver.world.called("commit") == [(2,), (6,), (6,)], "the last commit once more")
    driver.world.size = 7
    until(lambda: driver.planned()[-1] == ('{"at": 6}', '{"at": 7}', 6, [6]), "the next batch")


@pytest.mark.parametrize(
    ("kind", "batches", "limit"),
    [
        (Bounded, 3, ReadMaxRows(2)),
        (Limited, 1, ReadAllAvailable()),
        (Counting, 1, ReadAllAvailable()),
        (Older, 1, None),
    ],
)
def test_what_is_there_and_then_the_end(driver: Driver, kind: type[Counting], batches: int, limit: Any) -> None:
    driver.kind, driver.world.answers["initialOffset"], driver.world.size = kind, {"at": 0}, 6
    driver.start(available_now=True)
    until(lambda: driver.area.ready()[1], "the end")
    assert len(driver.planned()) == batches and driver.end() == '{"at": 6}'
    assert len(driver.world.called("prepare")) == (kind is Bounded)
    if limit is not None:
        assert {repr(each) for _, each in driver.world.called("latestOffset")} == {repr(limit)}
    asked = len(driver.world.called("latestOffset"))
    driver.planners[0].stop()
    driver.world.size = 9
    driver.floor = driver.begun = 6
    driver.start(available_now=True)  # of a driver that resumes the job: the source has ended
    until(lambda: (6,) in driver.world.called("commit"), "the commit")
    assert len(driver.world.called("latestOffset")) == asked


class Unpicklable(InputPartition):
    def __reduce__(self) -> Any:
        raise TypeError("it is a lock")


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        (
            "streamReader",
            OSError("no hunter2"),
            r"streamReader of Numbers raised OSError: no \*\*\* \(.*test_planner.py:",
        ),
        ("initialOffset", LookupError("x"), r"initialOffset of Numbers raised LookupError: x \(.*test_planner.py:"),
        ("initialOffset", {1, 2}, "an offset must be JSON"),
        ("initialOffset", 5, "an offset must be a dict, not int"),
        ("latestOffset", None, "an offset must be a dict, not NoneType"),
        ("latestOffset", {"at": -1}, r'latestOffset went back from {"at": 0} to {"at": -1}'),
        ("latestOffset", {"at": float("nan")}, "an offset must be JSON"),
        ("latestOffset", ConnectionError("gone"), "latestOffset of Numbers raised ConnectionError: gone"),
        ("partitions", ValueError("no"), "partitions of Numbers raised ValueError: no"),
        ("partitions", [5], "partitions of Numbers raised TypeError: a partition must be an InputPartition, not int"),
        ("partitions", [Unpicklable(1)], "partitions of Numbers raised TypeError: it is a lock"),
        ("partitions", 5, "partitions of Numbers raised TypeError"),
    ],
)
def test_what_a_data_source_must_not_do_ends_the_job(driver: Driver, method: str, answer: Any, message: str) -> None:
    driver.world.answers = {"initialOffset": {"at": 0}, method: answer}
    driver.world.size = 3
    driver.fails(f"source 'numbers': {message}")


def test_large_batches_are_refused(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_BATCH_BYTES", 100)
    driver.world.answers["initialOffset"], driver.world.size = {"at": 0}, 50
    driver.fails("the partitions of one batch take .* bytes, more than 100")


def test_an_error_of_commit_ends_the_job(driver: Driver) -> None:
    driver.world.answers = {"initialOffset": {"at": 0}, "commit": LookupError("no slot")}
    driver.world.size, driver.floor = 2, 0
    driver.start()
    until(lambda: driver.end() == '{"at": 2}', "a batch")
    driver.floor = 2
    assert driver.failed.wait(PATIENCE_S) and "commit of Numbers raised LookupError: no slot" in str(driver.failures[0])


def test_an_error_of_stop_is_logged(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    driver.world.answers["stop"] = LookupError("no")
    driver.start()
    until(lambda: len(driver.planned()) == 1, "the first offset")
    driver.planners[0].stop()
    assert "stop of Numbers raised LookupError: no" in caplog.text and driver.failures == []


def test_planned_batches_that_are_gone_are_noticed_before_anything_is_planned(driver: Driver) -> None:
    driver.begun = 4
    driver.fails("a checkpoint has read 4 partitions, and only 0 are planned")
    assert driver.planned() == []


def test_another_driver_has_taken_over(driver: Driver) -> None:
    driver.replaced = True
    driver.start()
    assert driver.failed.wait(PATIENCE_S)
    assert isinstance(driver.failures[0], JobRunsElsewhere) and driver.area.ready() == ([], False)


def test_a_store_that_fails_is_tried_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "RETRY_S", 0.01)
    left = {"put": 2, "ready": 2, "remove": 1}

    def failing(method: str) -> Any:
        usual = getattr(PlanArea, method)

        def call(area: PlanArea, *arguments: Any) -> Any:
            if threading.current_thread().name.startswith("flinkplus-planner") and left[method]:
                left[method] -= 1
                raise OSError("the store is away")
            return usual(area, *arguments)

        return call

    for method in left:
        monkeypatch.setattr(PlanArea, method, failing(method))
    driver.start()
    until(lambda: len(driver.planned()) == 1, "the first offset")
    driver.world.size = 2
    until(lambda: driver.area.ready()[0] == [1], "a batch, and the removal of the first one")
    assert len(driver.world.called("initialOffset")) == 1 and len(driver.world.called("partitions")) == 1
    assert not any(left.values()) and driver.failures == []


def test_a_gap_before_the_last_batches_is_what_a_savepoint_may_have(driver: Driver) -> None:
    for number in (0, 2, 3):
        driver.area.put(
            PlannedBatch(number, f'{{"at": {number}}}', f'{{"at": {number + 1}}}', number, (b"",)), driver.check
        )
    driver.world.size = 5
    driver.start()
    until(lambda: driver.area.ready()[0][-1] == 4, "the next batch")
    assert _shown(driver.area.read(4)) == ('{"at": 4}', '{"at": 5}', 4, [4])


class Locked(DataSource):
    def streamReader(self, schema: Any) -> Any:
        raise LookupError(self.options["password"])


def test_a_driver_without_the_program_has_secrets_of_its_environment(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = cloudpickle.loads(
        cloudpickle.dumps(replace(driver.source(), source=SparkDataSource(Locked, {}, ("password",))))
    )
    with pytest.raises(ConfigurationError, match="password"):
        PlanCalls(stored)
    monkeypatch.setenv("DATA_SOURCE_PASSWORD", "hunter2")
    with pytest.raises(InputError, match=r"streamReader of Locked raised LookupError: \*\*\*"):
        PlanCalls(stored)


def test_neither_key_nor_secrets_are_pickled(driver: Driver) -> None:
    source = driver.source()
    shipped = cloudpickle.dumps(
        replace(source, source=SparkDataSource(DataSource, {}, ("password",), {"password": "x"}))
    )
    assert (
        source.seal is not None and source.seal.secret not in shipped and source.seal.secret.hex() not in repr(source)
    )
    there: DataSourceBatches = cloudpickle.loads(shipped)
    assert there.seal is None
    with pytest.raises(Exception, match="has no place for its planned batches"):
        there.area()
    again = there.with_secrets(source.secrets())
    assert (
        again.seal is not None
        and again.seal.secret == source.seal.secret
        and again.source.secrets == {"password": "hunter2"}
    )
    assert source.with_split_plan(source.split_plan()).folder == "numbers-1"
