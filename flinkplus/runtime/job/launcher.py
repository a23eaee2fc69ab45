"""Slots as Spark jobs: checks of the cluster, submission, resubmission, the end.

Each slot is a separate Spark job with one task and its own job group. The task keeps the slot's process alive
(``keeper``), so the death of a process is no failure to Spark. If the task itself fails, for example with its executor,
Spark restarts it up to ``spark.task.maxFailures`` times; then the launcher submits this slot's job again. With several
executors, Spark prefers one for each slot (``homes``).

Rules: the user's session is not changed. Slots run in the scheduler pool of the thread that starts the job, but without
its job group and tags, and share no Python workers with other Spark jobs. After ``stop`` nothing of the job runs.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError, InsufficientSlots, described
from flinkplus.printable import printable
from flinkplus.runtime.job.homes import Home, at_home, homes_of, local_master
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.start import start_slot

LOOPBACK = "127.0.0.1"
RESUBMIT_PAUSE_S = 0.2
"""Pause before a failed job is submitted again; it doubles with each further failure, up to ``LONGEST_PAUSE_S``."""
LONGEST_PAUSE_S = 60.0
LONG_LIFE_S = 10.0  # a job that has run for this time resets the count of failures
STOP_TIMEOUT_S = 15.0
POOL = "spark.scheduler.pool"
SPECULATION_FROM = "spark.speculation.task.duration.threshold"
SLOT_MARK = "FLINKPLUS_SLOT"
"""Variable in the environment of the slots' workers: Spark reuses a worker only for an equal environment."""
LONGEST_REASON = 300
CANCELLED = "[SPARK_JOB_CANCELLED]"
LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*[0-9]+\s*\]$")

log = logging.getLogger("flinkplus.launcher")


def check_cluster(spark: SparkSession, slots: int, queries: bool = False) -> None:
    """Check that Spark can run ``slots`` tasks at once, and none of them twice. Raises ``InsufficientSlots`` or
    ``ConfigurationError``, which name the setting to change. ``queries``: streaming queries run beside the slots."""
    context = spark.sparkContext
    conf = context.getConf()
    master, cpus = context.master or "", int(conf.get("spark.task.cpus", "1") or 1)
    check_slots(master, slots, cpus)
    if queries and room_of(master, cpus) == slots:
        raise InsufficientSlots(
            f"master {master!r} runs {slots} tasks at once, and all of them are slots: the query of a streaming "
            f"DataFrame needs one more; use more cores, or parallelism={max(1, slots - 1)}"
        )
    # For a job with one task Spark starts a second copy only if this threshold is set.
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
    """Maximum number of concurrent tasks; ``None`` if the master URL does not determine it."""
    local, cluster = local_master(master), LOCAL_CLUSTER.match(master)
    if local is not None:
        return local // cpus
    if cluster is not None:
        return int(cluster[1]) * (int(cluster[2]) // cpus)
    return None


def coordinator_hosts(spark: SparkSession) -> tuple[str, str]:
    """The host that the coordinator binds, and the one at which slots reach it: loopback, or the driver's."""
    if local_master(spark.sparkContext.master) is not None:
        return LOOPBACK, LOOPBACK
    conf = spark.sparkContext.getConf()
    host = conf.get("spark.driver.host") or LOOPBACK
    return conf.get("spark.driver.bindAddress") or host, host


class _SlotContext:
    """The user's context for the RDDs of slots, with another environment and, with a local master, the driver's Python:
    Spark's default, the ``python3`` of the PATH, may not have FlinkPlus."""

    def __init__(self, context: SparkContext, local: bool) -> None:
        self._context = context
        self.pythonExec = sys.executable if local else context.pythonExec
        self.environment = {**context.environment, SLOT_MARK: "1"}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class SlotJobs:
    """The Spark jobs of a job's slots, with a thread each; implements ``SlotProcessJobs``. Any thread may call.

    ``make_config``: called once, in such a thread; may wait.
    ``on_failed``: called when the Spark job of a slot has failed and is submitted again (slot, reason).
    ``on_gone``: called when slots cannot be started any more (reason).
    ``queries``: streaming queries run beside the slots.
    """

    def __init__(
        self,
        spark: SparkSession,
        make_config: Callable[[], SlotConfig],
        job_id: str,
        on_failed: Callable[[int, str], None],
        on_gone: Callable[[str], None],
        queries: bool = False,
    ) -> None:
        self.context = spark.sparkContext
        self._queries = queries
        self.on_failed, self.on_gone = on_failed, on_gone
        self.pool = self.context.getLocalProperty(POOL)
        self._make_config = make_config
        self._config_lock = threading.Lock()
        self._plan: Broadcast[SlotConfig] | None = None
        self._homes: list[Home] = []
        self._error: Exception | None = None
        self._job_id = job_id
        self._lock = threading.Lock()
        self._jobs: dict[int, _SlotJob] = {}
        self._ending: list[_SlotJob] = []
        self._closed = False
        self._room = room_of(self.context.master or "", int(self.context.getConf().get("spark.task.cpus", "1") or 1))

    def check(self, slots: int) -> None:
        """Raises ``InsufficientSlots`` when the master URL allows fewer than ``slots`` tasks at once."""
        if self._room is not None and self._room < slots + self._queries:
            one = ", one of them for the query of a streaming DataFrame" if self._queries else ""
            raise InsufficientSlots(
                f"the job would have {slots} slots with them, but master {self.context.master!r} runs {self._room} "
                f"tasks at once{one}"
            )

    def start(self, slot: int) -> None:
        """Run ``slot`` as a Spark job, unless ``stop`` was called."""
        with self._lock:
            if not self._closed:
                job = self._jobs[slot] = _SlotJob(self, slot, f"flinkplus-{self._job_id}-{slot}")
                job.start()

    def end(self, slot: int, graceful_s: float, then: Callable[[], None]) -> None:
        """Let ``slot`` end by itself within ``graceful_s``, otherwise cancel its Spark job; then call ``then``."""
        with self._lock:
            job = self._jobs.pop(slot, None)
            if job is not None:
                self._ending.append(job)
        if job is None:
            then()
            return
        job.stopping.set()

        def end() -> None:
            _stop([job], graceful_s)
            with self._lock:
                self._ending.remove(job)
            then()

        threading.Thread(target=end, name=f"flinkplus-end-{slot}", daemon=True).start()

    def stop(self, graceful_s: float) -> None:
        """As ``end`` for all slots, but wait for it. No slot can be started afterwards."""
        with self._lock:
            self._closed = True
            jobs = [*self._jobs.values(), *self._ending]
        _stop(jobs, graceful_s)
        with self._config_lock:
            if self._plan is not None and not is_stopped(self.context):
                self._plan.unpersist(blocking=False)

    # --- for the threads of the slots

    def prepare(self, stopping: threading.Event) -> tuple[SlotConfig, Broadcast[SlotConfig]]:
        """The configuration of the slots, and its broadcast. Raises as ``make_config``."""
        with self._config_lock:
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
        """Where Spark should start ``slot``; a spare slot may use executors that were added since the start."""
        spare = slot >= config.slots and not config.local
        homes = homes_of(self.context, stopping) if spare else self._homes
        return homes[slot % len(homes)] if len(homes) > 1 else None


class _SlotJob(threading.Thread):
    """The Spark job of one slot, submitted again whenever it ends, until ``stopping`` is set."""

    def __init__(self, slots: SlotJobs, slot: int, group: str) -> None:
        super().__init__(name=f"flinkplus-slot-{slot}", daemon=True)
        self.stopping = threading.Event()
        self._slots, self._context = slots, slots.context
        self._slot, self._group = slot, group
        self._rows: RDD[int] | None = None

    def run(self) -> None:
        try:
            config, plan = self._slots.prepare(self.stopping)
        except Exception as error:  # of any kind: slots need the configuration
            if not self.stopping.is_set():
                self._slots.on_gone(self._why_gone() or described(error))
            return
        failures = 0
        while not self.stopping.is_set():
            begun_s = time.monotonic()
            failure = self._submit(config, plan)
            if self.stopping.is_set():
                return
            gone = self._why_gone()
            if gone is not None:
                self._slots.on_gone(gone)
                return
            if failure is not None:
                self._slots.on_failed(self._slot, failure_reason(failure))
            failures = 0 if time.monotonic() - begun_s > LONG_LIFE_S else failures + 1
            self.stopping.wait(min(LONGEST_PAUSE_S, RESUBMIT_PAUSE_S * 2 ** max(0, failures - 1)))

    def _make_rows(self, config: SlotConfig) -> RDD[int]:
        """One row in one partition, for the task. Sets the properties of the Spark job, in this thread only."""
        context = self._context
        context.setJobGroup(self._group, f"FlinkPlus slot {self._slot} of {config.job_name}", interruptOnCancel=False)
        if self._slots.pool is not None:
            context.setLocalProperty(POOL, self._slots.pool)
        rows = at_home(context, self._slot, self._slots.home(self._slot, config, self.stopping))
        rows.ctx = cast(SparkContext, _SlotContext(context, config.local))
        return rows

    def _submit(self, config: SlotConfig, plan: Broadcast[SlotConfig]) -> Exception | None:
        """Run one Spark job to its end; returns the error with which it failed."""
        slot = self._slot  # not ``self``, which Spark could not pickle

        def task(partition: Iterable[int]) -> Iterator[int]:
            list(partition)  # otherwise Spark counts its worker as unfinished
            start_slot(slot, plan)
            return iter(())

        try:
            self._rows = self._rows or self._make_rows(config)
            self._context.runJob(self._rows, task)
        except Exception as error:  # any error of Spark means that the task has failed
            return error
        return None

    def _why_gone(self) -> str | None:
        if is_stopped(self._context):
            return "the Spark session was stopped while the job was running; end the job first (job.cancel())"
        return None

    def cancel(self) -> None:
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
        except (Py4JError, OSError) as error:  # Spark has ended, and so have its jobs
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
    except (Py4JError, OSError):  # the JVM has ended
        return True


def failure_reason(error: Exception) -> str:
    """Why a Spark job failed, in one line: the error that Python raised in the task, or Spark's cause."""
    text = str(error)
    if CANCELLED in text:
        return "its Spark job was cancelled, perhaps by Ctrl-C in a PySpark session; it is submitted again"
    _, python, trace = text.partition("Traceback (most recent call last):")
    lines = [line.strip() for line in (trace if python else text).splitlines() if line.strip()]
    if not python:
        cause = next((line for line in lines if line.startswith((": ", "org.apache.spark"))), "")
        return printable(cause.removeprefix(": ") or (lines or [type(error).__name__])[0], LONGEST_REASON)
    until_java = takewhile(lambda line: not line.startswith("\tat "), trace.splitlines())
    of_python = [line for line in until_java if line and not line.startswith(" ")]
    reason = (of_python or lines)[-1]
    if reason.startswith(ModuleNotFoundError.__name__):
        reason += "; install FlinkPlus and its dependencies in the Python environment of the executors"
    return printable(reason, LONGEST_REASON)
