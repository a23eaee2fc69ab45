"""Slots as Spark jobs: checks of the cluster, submission, resubmission, the end.

Each slot is a Spark job of its own, with one task, in a job group of its own. The task keeps the slot's process alive
(``keeper``), so a process that dies is no failure to Spark. Where the task itself fails, as when an executor is lost,
Spark starts it again up to ``spark.task.maxFailures`` times, and then the launcher submits the job of this one slot
again. Needed slots and spare ones differ in when they are started and ended, in nothing else.

On several executors each slot has one that Spark prefers for it (``homes``).

Rules: the user's session is left as it was found. Slots run in the scheduler pool of the thread that starts the job,
and take nothing else from it: neither its job group nor its tags. Their Python workers are theirs alone. Nothing of the
job runs after ``stop`` returned, as far as Spark obeys.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError, InsufficientSlots, described
from flinkplus.printable import printable
from flinkplus.runtime.job.homes import Home, at_home, homes_of
from flinkplus.runtime.job.local_masters import local_master
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.start import start_slot

LOOPBACK = "127.0.0.1"
RESUBMIT_PAUSE_S = 0.2
"""Before a failed job is submitted again; twice as long after each further failure."""
LONGEST_PAUSE_S = 60.0
LONG_LIFE_S = 10.0
"""A job that has run for at least this time begins a new row of failures."""
STOP_TIMEOUT_S = 15.0
POOL = "spark.scheduler.pool"
SPECULATION_FROM = "spark.speculation.task.duration.threshold"
SLOT_MARK = "FLINKPLUS_SLOT"
"""In the environment of the workers: Spark reuses a worker only for tasks with the same environment."""
LONGEST_REASON = 300
CANCELLED = "[SPARK_JOB_CANCELLED]"
LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*[0-9]+\s*\]$")

log = logging.getLogger("flinkplus.launcher")


def check_cluster(spark: SparkSession, slots: int) -> None:
    """Raise when Spark cannot run ``slots`` tasks at once, or would run one of them twice.

    Raises ``InsufficientSlots`` or ``ConfigurationError``, each naming the setting to change.
    """
    context = spark.sparkContext
    conf = context.getConf()
    check_slots(context.master or "", slots, int(conf.get("spark.task.cpus", "1") or 1))
    # Of a job with one task Spark starts a second copy only after a time that is set explicitly.
    if conf.get("spark.speculation", "false") == "true" and conf.get(SPECULATION_FROM):
        raise ConfigurationError(f"spark.speculation would run slots twice; unset {SPECULATION_FROM}")


def check_slots(master: str, slots: int, cpus: int = 1) -> None:
    """Raises ``InsufficientSlots`` when the master URL allows fewer than ``slots`` tasks at once."""
    room = room_of(master, cpus)
    if room is not None and room < slots:
        local = local_master(master) is not None
        use = f"local[{slots * cpus}] or more" if local else "more workers or more cores for each"
        raise InsufficientSlots(
            f"the job needs {slots} slots but master {master!r} runs {room} tasks at once; "
            f"use {use}, or parallelism={max(1, room)}"
        )


def room_of(master: str, cpus: int) -> int | None:
    """How many tasks run at once, if the master URL determines it. Elsewhere executors come and go: slots that
    find no room are reported when they have not registered in time.
    """
    local, cluster = local_master(master), LOCAL_CLUSTER.match(master)
    if local is not None:
        return local // cpus
    if cluster is not None:
        return int(cluster[1]) * (int(cluster[2]) // cpus)
    return None


def coordinator_hosts(spark: SparkSession) -> tuple[str, str]:
    """The address the coordinator binds, and the one slots reach it at: loopback for local masters, else the
    driver's.
    """
    if local_master(spark.sparkContext.master) is not None:
        return LOOPBACK, LOOPBACK
    conf = spark.sparkContext.getConf()
    host = conf.get("spark.driver.host") or LOOPBACK
    return conf.get("spark.driver.bindAddress") or host, host


class _SlotContext:
    """The user's context as the RDDs of slots see it: with a Python and an environment of their own.

    In a local master workers run the driver's own Python: they could run nothing better, and the default is the
    ``python3`` of the PATH, which need not have FlinkPlus when the program was started by a path such as
    ``.venv/bin/python``.
    """

    def __init__(self, context: SparkContext, local: bool) -> None:
        self._context = context
        self.pythonExec = sys.executable if local else context.pythonExec
        self.environment = {**context.environment, SLOT_MARK: "1"}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Launch:
    """What the Spark jobs of all slots of a job share; see ``SlotJobs``."""

    def __init__(
        self,
        context: SparkContext,
        make_config: Callable[[], SlotConfig],
        on_failed: Callable[[int, str], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self.context = context
        self.on_failed = on_failed
        self.on_gone = on_gone
        self.pool = context.getLocalProperty(POOL)
        self._make_config = make_config
        self._lock = threading.Lock()
        self._plan: Broadcast[SlotConfig] | None = None
        self._homes: list[Home] = []
        self._error: Exception | None = None

    def prepare(self, stopping: threading.Event) -> tuple[SlotConfig, Broadcast[SlotConfig]]:
        """The configuration of the slots, also as it is sent to them. Raises what ``make_config`` raises."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._plan is None:
                try:
                    config = self._make_config()
                    self._plan = self.context.broadcast(config)
                    self._homes = [] if config.local else homes_of(self.context, stopping)
                except Exception as error:
                    self._error = error
                    raise
            return self._plan.value, self._plan

    def home(self, slot: int, config: SlotConfig, stopping: threading.Event) -> Home | None:
        """Where Spark should start ``slot``. Spare slots are for executors that came later, too."""
        spare = slot >= config.slots and not config.local
        homes = homes_of(self.context, stopping) if spare else self._homes
        return homes[slot % len(homes)] if len(homes) > 1 else None

    def forget(self) -> None:
        """Spark needs the configuration no more."""
        with self._lock:
            if self._plan is not None and not is_stopped(self.context):
                self._plan.unpersist(blocking=False)


class SlotJobs:
    """The Spark jobs of the slots of one job; see ``spares.SpareJobs``.

    ``make_config`` is called once, in a thread of the launcher, and may wait. ``on_failed``: the Spark job of a slot
    failed for a reason, and is submitted again; ``on_gone``: nothing can start the slots. All methods may be called in
    any thread; Spark, which may take its time, is called in a thread for each slot.
    """

    def __init__(
        self,
        spark: SparkSession,
        make_config: Callable[[], SlotConfig],
        job_id: str,
        on_failed: Callable[[int, str], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._context = spark.sparkContext
        self._launch = _Launch(self._context, make_config, on_failed, on_gone)
        self._job_id = job_id
        self._lock = threading.Lock()
        self._jobs: dict[int, _SlotJob] = {}
        self._ending: list[_SlotJob] = []
        self._closed = False
        self._room = room_of(self._context.master or "", int(self._context.getConf().get("spark.task.cpus", "1") or 1))

    def check(self, slots: int) -> None:
        """Raises ``InsufficientSlots`` when the master URL allows fewer than ``slots`` tasks at once."""
        if self._room is not None and self._room < slots:
            raise InsufficientSlots(
                f"the job would have {slots} slots with them, but master {self._context.master!r} runs {self._room} "
                "tasks at once"
            )

    def start(self, slot: int) -> None:
        """Have Spark run ``slot``, unless all is over."""
        with self._lock:
            if not self._closed:
                group = f"flinkplus-{self._job_id}-{slot}"
                self._jobs[slot] = _SlotJob(self._launch, slot, group)
                self._jobs[slot].start()

    def end(self, slot: int, graceful_s: float, then: Callable[[], None]) -> None:
        """Let ``slot`` end by itself for ``graceful_s``, then cancel its Spark job; then call ``then``."""
        with self._lock:
            job = self._jobs.pop(slot, None)
            if job is not None:
                self._ending.append(job)
        if job is None:
            then()
        else:
            job.stopping.set()
            ending = (job, graceful_s, then)
            threading.Thread(target=self._end, args=ending, name=f"flinkplus-end-{slot}", daemon=True).start()

    def _end(self, job: _SlotJob, graceful_s: float, then: Callable[[], None]) -> None:
        _stop([job], graceful_s)
        with self._lock:
            self._ending.remove(job)
        then()

    def stop(self, graceful_s: float) -> None:
        """Let all slots end by themselves for ``graceful_s`` seconds, then cancel their jobs; returns when that is
        over. No slot is started after that.
        """
        with self._lock:
            self._closed = True
            jobs = [*self._jobs.values(), *self._ending]
        _stop(jobs, graceful_s)
        self._launch.forget()


class _SlotJob(threading.Thread):
    """The Spark job of one slot, submitted again whenever it ends, until ``stopping`` is set."""

    def __init__(self, launch: _Launch, slot: int, group: str) -> None:
        super().__init__(name=f"flinkplus-slot-{slot}", daemon=True)
        self.stopping = threading.Event()
        self._launch = launch
        self._context = launch.context
        self._slot = slot
        self._group = group
        self._rows: RDD[int] | None = None

    def run(self) -> None:
        """In the thread: from the first submission to the end."""
        try:
            config, plan = self._launch.prepare(self.stopping)
        except Exception as error:  # of any kind: without a configuration no slot can start
            if not self.stopping.is_set():
                self._launch.on_gone(self._why_gone() or described(error))
            return
        failures = 0
        while not self.stopping.is_set():
            begun_s = time.monotonic()
            failure = self._submit(config, plan)
            if self.stopping.is_set():
                return
            gone = self._why_gone()
            if gone is not None:
                self._launch.on_gone(gone)
                return
            if failure is not None:
                self._launch.on_failed(self._slot, failure_reason(failure))
            failures = 0 if time.monotonic() - begun_s > LONG_LIFE_S else failures + 1
            self.stopping.wait(min(LONGEST_PAUSE_S, RESUBMIT_PAUSE_S * 2 ** max(0, failures - 1)))

    def _make_rows(self, config: SlotConfig) -> RDD[int]:
        """One row in one partition, for the task. Sets the properties of the job, which are of this thread alone."""
        context = self._context
        context.setJobGroup(self._group, f"FlinkPlus slot {self._slot} of {config.job_name}", interruptOnCancel=False)
        if self._launch.pool is not None:
            context.setLocalProperty(POOL, self._launch.pool)
        rows = at_home(context, self._slot, self._launch.home(self._slot, config, self.stopping))
        rows.ctx = cast(SparkContext, _SlotContext(context, config.local))
        return rows

    def _submit(self, config: SlotConfig, plan: Broadcast[SlotConfig]) -> Exception | None:
        """Run one Spark job, to its end; returns what it failed by."""
        slot = self._slot

        def task(partition: Iterable[int]) -> Iterator[int]:
            list(partition)  # or Spark takes its worker for one that has not finished
            start_slot(slot, plan)
            return iter(())

        try:
            self._rows = self._rows or self._make_rows(config)
            self._context.runJob(self._rows, task)
        except Exception as error:  # whatever Spark raises means the same: the task has failed
            return error
        return None

    def _why_gone(self) -> str | None:
        if is_stopped(self._context):
            return "Spark was stopped under the job; end a job (job.cancel()) before its session"
        return None

    def cancel(self) -> None:
        """End the Spark job now."""
        self._context.cancelJobGroup(self._group)


def _stop(jobs: Sequence[_SlotJob], graceful_s: float) -> None:
    for job in jobs:
        job.stopping.set()
    graceful_until_s = time.monotonic() + graceful_s
    for job in jobs:
        job.join(max(0.0, graceful_until_s - time.monotonic()))
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := [job for job in jobs if job.is_alive()]) and time.monotonic() < deadline:
        try:
            for job in left:
                job.cancel()
        except (Py4JError, OSError) as error:  # Spark is gone, and its jobs with it
            log.info("could not cancel the slots: %s", error)
            return
        left[0].join(0.2)
    if left:
        log.warning("Spark did not end %d slots within %s s", len(left), STOP_TIMEOUT_S)


def is_stopped(context: SparkContext) -> bool:
    """Whether the user's session was stopped, here or in the JVM."""
    jsc = context._jsc
    try:
        return jsc is None or bool(jsc.sc().isStopped())
    except (Py4JError, OSError):  # the JVM is gone
        return True


def failure_reason(error: Exception) -> str:
    """Why a Spark job failed, in one line: what Python raised in the task, where it did."""
    text = str(error)
    if CANCELLED in text:
        return "its Spark job was cancelled, as Ctrl-C in a PySpark session cancels all jobs; it is submitted again"
    _, python, trace = text.partition("Traceback (most recent call last):")
    lines = [line.strip() for line in (trace if python else text).splitlines() if line.strip()]
    if not python:
        cause = next((line for line in lines if line.startswith((": ", "org.apache.spark"))), "")
        return printable(cause.removeprefix(": ") or (lines or [type(error).__name__])[0], LONGEST_REASON)
    of_python = [line for line in _until_java(trace) if line and not line.startswith(" ")]
    reason = (of_python or lines)[-1]
    if reason.startswith(ModuleNotFoundError.__name__):
        reason += "; install FlinkPlus, with what it needs, in the Python environment of the executors"
    return printable(reason, LONGEST_REASON)


def _until_java(trace: str) -> list[str]:
    """The lines of a Python traceback, without the Java one that follows."""
    lines = trace.splitlines()
    end = next((at for at, line in enumerate(lines) if line.startswith("\tat ")), len(lines))
    return lines[:end]
