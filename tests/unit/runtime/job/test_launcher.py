"""Slots as Spark jobs, with a Spark that is made up: which jobs are submitted, when again, and how they end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError, InsufficientSlots
from flinkplus.runtime.job import launcher
from flinkplus.runtime.job.homes import in_turn, local_master
from flinkplus.runtime.job.launcher import SlotJobs, check_cluster, check_slots, failure_reason, room_of
from tests.unit.runtime.slot.process.test_end_of_slots import config_of

PATIENCE_S = 30.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


class Rows:
    """Stands for an RDD."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.ctx: Any = None


class FakeSpark:
    """Stands for session, context and broadcast. Jobs run until they are failed or cancelled."""

    def __init__(self, master: str = "local[5]", **conf: str) -> None:
        self.sparkContext = self
        self.master = master
        self.pythonExec, self.environment = "/usr/bin/python3", {"PYTHONHASHSEED": "0"}
        self.conf = {key.replace("_", "."): value for key, value in conf.items()}
        self.properties = threading.local()
        self.submitted: list[int] = []
        self.contexts: list[Any] = []
        self.stopped = False
        self.broadcasts: list[str] = []
        self._lock = threading.Condition()
        self._groups: dict[int, str] = {}
        self._ends: dict[int, Exception | None] = {}
        self.pools: dict[int, str | None] = {}

    # what the launcher uses

    def getConf(self) -> dict[str, str]:
        return self.conf

    @property
    def _jsc(self) -> Any:
        return self

    def sc(self) -> Any:
        return self

    def isStopped(self) -> bool:
        return self.stopped

    def getLocalProperty(self, name: str) -> str | None:
        return cast("str | None", self.properties.__dict__.get(name))

    def setLocalProperty(self, name: str, value: str) -> None:
        self.properties.__dict__[name] = value

    def setJobGroup(self, group: str, _text: str, interruptOnCancel: bool) -> None:
        assert not interruptOnCancel
        self.properties.group = group

    def parallelize(self, slots: list[int], partitions: int) -> Rows:
        assert partitions == len(slots) == 1
        return Rows(slots[0])

    def broadcast(self, value: Any) -> Any:
        self.broadcasts.append("sent")
        spark = self

        class Sent:
            def __init__(self) -> None:
                self.value = value

            def unpersist(self, blocking: bool) -> None:
                spark.broadcasts.append("forgotten")

        return Sent()

    def runJob(self, rows: Rows, _task: Any) -> None:
        with self._lock:
            self.submitted.append(rows.slot)
            self.contexts.append(rows.ctx)
            self._groups[rows.slot] = self.properties.group
            self.pools[rows.slot] = self.getLocalProperty("spark.scheduler.pool")
            self._lock.notify_all()
            while rows.slot not in self._ends:
                assert self._lock.wait(PATIENCE_S)
            error = self._ends.pop(rows.slot)
            del self._groups[rows.slot]
        if error is not None:
            raise error

    def cancelJobGroup(self, group: str) -> None:
        with self._lock:
            for slot in [slot for slot, of in self._groups.items() if of == group]:
                self._ends[slot] = RuntimeError("cancelled")
            self._lock.notify_all()

    # what a test does

    @property
    def running(self) -> list[int]:
        with self._lock:
            return sorted(slot for slot in self._groups if slot not in self._ends)

    def fail(self, slot: int, error: Exception | None) -> None:
        with self._lock:
            self._ends[slot] = error
            self._lock.notify_all()


class World:
    """The slots' jobs on such a Spark."""

    def __init__(self, spark: FakeSpark, make_config: Callable[[], Any]) -> None:
        self.spark = spark
        self.failed: list[tuple[int, str]] = []
        self.gone: list[str] = []
        self.jobs = SlotJobs(
            cast(SparkSession, spark), make_config, "run", lambda *said: self.failed.append(said), self.gone.append
        )

    def start(self, *slots: int) -> None:
        for slot in slots:
            self.jobs.start(slot)
        wait_until(lambda: set(slots) <= set(self.spark.running), "they run")


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    made = World(FakeSpark(), lambda: config_of(tmp_path))
    yield made
    made.jobs.stop(0.0)
    assert made.spark.running == []


def test_a_job_that_fails_is_submitted_again_and_no_other_is_touched(world: World) -> None:
    world.start(0, 1, 2)
    world.spark.fail(1, RuntimeError("executor 3 was lost"))
    wait_until(lambda: len(world.spark.submitted) == 4 and len(world.spark.running) == 3, "slot 1 runs again")
    assert sorted(world.spark.submitted[:3]) == [0, 1, 2] and world.spark.submitted[3] == 1
    assert world.failed == [(1, "executor 3 was lost")] and world.gone == []
    world.spark.fail(2, None)  # its task ended by itself, and the job has not
    wait_until(lambda: len(world.spark.submitted) == 5, "slot 2 runs again")
    assert world.spark.submitted[4] == 2 and len(world.failed) == 1
    assert world.spark.broadcasts == ["sent"]


def test_a_job_that_fails_at_once_again_and_again_waits_longer_each_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    world.start(0)
    stopping = world.jobs._jobs[0].stopping
    monkeypatch.setattr(stopping, "wait", pauses.append)
    for count in range(12):
        world.spark.fail(0, RuntimeError("no"))
        wait_until(lambda count=count: len(world.spark.submitted) == count + 2, "it is tried again")  # type: ignore[misc]
    assert pauses[:3] == [0.2, 0.4, 0.8] and pauses[-1] == launcher.LONGEST_PAUSE_S
    monkeypatch.setattr(launcher, "LONG_LIFE_S", -1.0)  # it has run for long this time
    world.spark.fail(0, RuntimeError("no"))
    wait_until(lambda: len(pauses) == 13, "it pauses")
    assert pauses[-1] == 0.2


def test_each_slot_can_be_ended_alone(world: World) -> None:
    world.start(0, 3, 4)
    ended = threading.Event()
    world.jobs.end(3, 0.0, ended.set)
    assert ended.wait(PATIENCE_S)
    assert world.spark.running == [0, 4] and world.spark.submitted.count(3) == 1
    again = threading.Event()
    world.jobs.end(3, 0.0, again.set)  # nothing to do
    assert again.is_set()


def test_the_end_waits_for_a_slot_that_is_just_being_ended(world: World) -> None:
    world.start(0, 3)
    ended = threading.Event()
    world.jobs.end(3, PATIENCE_S, ended.set)
    world.jobs.stop(0.0)
    assert world.spark.running == [] and ended.wait(PATIENCE_S)


def test_after_the_end_nothing_is_started(world: World) -> None:
    world.start(0)
    world.jobs.stop(0.0)
    world.jobs.start(1)
    assert world.spark.submitted == [0] and world.spark.running == []
    assert world.spark.broadcasts == ["sent", "forgotten"]


def test_without_a_configuration_nothing_can_be_started() -> None:
    calls: list[int] = []

    def make() -> Any:
        calls.append(1)
        raise ConfigurationError("no ZooKeeper")

    world = World(FakeSpark(), make)
    for slot in range(3):
        world.jobs.start(slot)
    wait_until(lambda: len(world.gone) == 3, "each says so")
    assert set(world.gone) == {"ConfigurationError: no ZooKeeper"} and calls == [1]
    world.jobs.stop(0.0)


def test_a_session_that_is_stopped_under_the_job_ends_it(world: World) -> None:
    world.start(0)
    world.spark.stopped = True
    world.spark.fail(0, Py4JError("the context is gone"))
    wait_until(lambda: world.gone, "it is gone")
    assert "the Spark session was stopped" in world.gone[0] and world.failed == []


def test_slots_run_in_the_users_pool_with_workers_of_their_own(tmp_path: Any) -> None:
    spark = FakeSpark()
    spark.setLocalProperty("spark.scheduler.pool", "mine")
    spark.properties.group = "my group"
    world = World(spark, lambda: config_of(tmp_path))
    world.start(0)
    assert spark.pools == {0: "mine"} and spark.properties.group == "my group"
    (context,) = spark.contexts
    assert context.pythonExec == sys.executable  # of a local master
    assert context.environment == {"PYTHONHASHSEED": "0", launcher.SLOT_MARK: "1"}
    assert (spark.pythonExec, spark.environment) == ("/usr/bin/python3", {"PYTHONHASHSEED": "0"})
    assert context.master == "local[5]"  # all else is the user's context
    world.jobs.stop(0.0)


# --- the master


def test_a_master_that_says_what_it_runs_is_believed() -> None:
    jobs = World(FakeSpark(), lambda: None).jobs
    jobs.check(5)
    with pytest.raises(InsufficientSlots, match=r"6 slots with them, but master 'local\[5\]' runs 5 tasks"):
        jobs.check(6)
    assert room_of("local-cluster[2,3,1024]", 2) == 2 and room_of("spark://master:7077", 1) is None
    check_slots("spark://master:7077", 1000)
    assert [local_master(text) for text in ("local", "local[3]", "local[4, 1000]", "yarn", None)] == [
        1,
        3,
        4,
        None,
        None,
    ]


def check(**conf: str) -> None:
    check_cluster(cast(SparkSession, FakeSpark(**conf)), 4)


def test_few_attempts_of_tasks_are_as_good_as_many(recwarn: pytest.WarningsRecorder) -> None:
    check()
    check(spark_task_maxFailures="1")
    check_cluster(cast(SparkSession, FakeSpark("local[4]")), 4)
    assert not recwarn.list


def test_speculation_never_copies_a_job_of_one_task_unless_a_time_is_set() -> None:
    check(spark_speculation="true")
    with pytest.raises(ConfigurationError, match=r"unset spark\.speculation\.task\.duration\.threshold"):
        check(spark_speculation="true", spark_speculation_task_duration_threshold="10s")


def test_homes_are_on_one_host_after_the_other() -> None:
    executors = [("b", "4"), ("a", "1"), ("a", "2"), ("c", "3"), ("a", "5")]
    assert in_turn(executors) == [
        "executor_a_1",
        "executor_b_4",
        "executor_c_3",
        "executor_a_2",
        "executor_a_5",
    ]
    assert in_turn([]) == []


# --- why a Spark job failed

JAVA = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.runJob.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
"""
PYTHON = """Traceback (most recent call last):
  File "worker.py", line 1, in main
    raise
ModuleNotFoundError: No module named 'flinkplus'

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Caused by: java.lang.Exception: x
"""


def test_the_reason_of_a_failed_job_is_one_line() -> None:
    reason = failure_reason(RuntimeError(JAVA + PYTHON))
    assert reason == (
        "ModuleNotFoundError: No module named 'flinkplus'; install FlinkPlus and its dependencies in the Python "
        "environment of the executors"
    )
    assert failure_reason(RuntimeError(JAVA)).startswith("org.apache.spark.SparkException: Job aborted due to stage")
    assert failure_reason(RuntimeError()) == "RuntimeError"
    cancelled = (
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled as part of cancellation of all jobs"
    )
    assert "Ctrl-C in a PySpark session" in failure_reason(RuntimeError(cancelled))
