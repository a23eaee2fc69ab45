"""Slots as one ordinary Spark job: checks of the cluster, submission under a job group, resubmission, the end.

The Spark job has one ``spark_task`` for each slot and is submitted from a background thread. Spark restarts a
``spark_task``
whose process died, up to ``spark.task.maxFailures`` times; when Spark gives the whole job up (at once in ``local[N]``,
which never retries), the launcher submits it again.

A spare slot is a Spark job of its own (``SpareSlotJobs``), in a job group of its own, so that it can be ended alone.

On several hosts each slot has one that Spark prefers for it (``at_home``): otherwise every restart would put a slot
anywhere, and after some of them most slots could be on one host.

Rules: the user's session is left as it was found; nothing of the job runs after ``stop`` returned, as far as Spark
obeys.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, InheritableThread, SparkContext
from pyspark.core.broadcast import Broadcast
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError, InsufficientSlots
from flinkplus.runtime.slot_config import SlotConfig
from flinkplus.runtime.slot_start import start_slot

LOOPBACK = "127.0.0.1"
ENOUGH_TASK_FAILURES = 100
RESUBMIT_PAUSE_S = 0.2
STOP_TIMEOUT_S = 15.0
READY_POLL_S = 0.05
LOCAL_MASTER = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?$")
LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*[0-9]+\s*\]$")

log = logging.getLogger("flinkplus.launcher")
_python_lock = threading.Lock()


def local_master(master: str | None) -> tuple[int, int] | None:
    """(threads, attempts of a task) of a ``local`` master, ``None`` for any other."""
    match = LOCAL_MASTER.match(master or "")
    if match is None:
        return None
    threads, failures = match.groups()
    count = (os.cpu_count() or 1) if threads == "*" else int(threads or 1)
    return count, int(failures or 1)


def check_cluster(spark: SparkSession, slots: int) -> None:
    """Raise when Spark cannot run ``slots`` tasks at once or would disturb them; warn when it will not retry them.

    Raises ``InsufficientSlots`` or ``ConfigurationError``, each naming the setting to change.
    """
    context = spark.sparkContext
    conf = context.getConf()
    master = context.master or ""
    cpus = int(conf.get("spark.task.cpus", "1") or 1)
    check_slots(master, slots, cpus)
    local = local_master(master)
    if local is not None:
        threads, failures = local
        where = f"master local[{threads},1000] instead of {master!r}"
    else:
        failures = int(conf.get("spark.task.maxFailures", "4") or 4)
        where = "spark.task.maxFailures=1000"
    if conf.get("spark.speculation", "false") == "true":
        raise ConfigurationError("spark.speculation would run slots twice; set spark.speculation=false")
    if failures < ENOUGH_TASK_FAILURES:
        warnings.warn(
            f"Spark gives a job up after {failures} failure(s) of a task, and then every slot has to be started again; "
            f"for fast recovery from killed processes use {where}",
            RuntimeWarning,
            stacklevel=4,
        )


def check_slots(master: str, slots: int, cpus: int = 1) -> None:
    """Raises ``InsufficientSlots`` when the master URL says that fewer than ``slots`` tasks can run at once."""
    room = room_of(master, cpus)
    if room is not None and room < slots:
        local = local_master(master) is not None
        use = f"local[{slots * cpus},1000] or more" if local else "more workers or more cores for each"
        raise InsufficientSlots(
            f"the job needs {slots} slots but master {master!r} runs {room} tasks at once; "
            f"use {use}, or parallelism={max(1, room)}"
        )


def room_of(master: str, cpus: int) -> int | None:
    """How many tasks run at once, if the master URL says so. Elsewhere executors come and go: slots that find no room
    are reported when they have not registered in time.
    """
    local, cluster = local_master(master), LOCAL_CLUSTER.match(master)
    if local is not None:
        return local[0] // cpus
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


def at_home(context: SparkContext, slots: Sequence[int], stopping: threading.Event) -> RDD[int]:
    """A row and a partition for each of ``slots``. When there are executors on several hosts, each of them is home to
    every so many-th slot: Spark starts a slot there while it has room, elsewhere after ``spark.locality.wait``, and
    there again when it is restarted and the host is back.
    """
    plain: RDD[int] = context.parallelize(slots, len(slots))
    if local_master(context.master) is not None:
        return plain
    try:
        hosts = _executor_hosts(context, stopping)
        return plain if len(hosts) < 2 else _with_homes(context, slots, [hosts[slot % len(hosts)] for slot in slots])
    except Py4JError as error:  # a Spark that is made differently inside
        log.info("slots have no homes: %s", (str(error).splitlines() or [type(error).__name__])[0])
        return plain


def _executor_hosts(context: SparkContext, stopping: threading.Event) -> list[str]:
    """The hosts with executors, once Spark itself would start tasks: when there are enough, or it waits no longer."""
    assert context._jsc is not None
    spark = context._jsc.sc()
    while not spark.schedulerBackend().isReady() and not stopping.wait(READY_POLL_S):
        pass
    addresses = spark.getExecutorMemoryStatus().keySet().iterator()
    found: list[str] = []
    while addresses.hasNext():
        found.append(addresses.next().rpartition(":")[0])
    driver = context.getConf().get("spark.driver.host")
    if driver in found:
        found.remove(driver)  # once: it is among them, and an executor may be beside it
    return sorted(set(found))


def _with_homes(context: SparkContext, slots: Sequence[int], homes: list[str]) -> RDD[int]:
    """What ``parallelize`` makes, with a preferred host for each partition, which PySpark cannot say itself."""
    assert context._jsc is not None and context._jvm is not None
    jvm = context._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    entries = jvm.java.util.ArrayList()
    for slot, host in zip(slots, homes, strict=True):
        preferred = jvm.java.util.ArrayList()
        preferred.add(host)
        entries.add(jvm.scala.Tuple2(pickle.dumps([slot]), to_seq(preferred)))
    tags = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$")
    made = context._jsc.sc().makeRDD(to_seq(entries), tags.apply(jvm.java.lang.Class.forName("[B")))
    return RDD(made.toJavaRDD(), context, AutoBatchedSerializer(CPickleSerializer()))


def _with_our_python(context: SparkContext, rdd: RDD[Any]) -> None:
    """Have this job's workers run the driver's own Python.

    In a local master they could run nothing better, and the default is the ``python3`` of the PATH, which need not have
    FlinkPlus when the program was started by a path such as ``.venv/bin/python``. The Java side of the RDD, made here,
    notes which Python to run; the session's own setting is as it was afterwards.
    """
    with _python_lock:
        theirs = context.pythonExec
        context.pythonExec = sys.executable
        try:
            _ = rdd._jrdd
        finally:
            context.pythonExec = theirs


class SlotsJob:
    """A Spark job that runs ``slots`` (``None``: all that a deployment needs)."""

    def __init__(
        self,
        spark: SparkSession,
        make_config: Callable[[], SlotConfig],
        job_id: str,
        on_down: Callable[[str], None],
        on_gone: Callable[[str], None],
        slots: Sequence[int] | None = None,
    ) -> None:
        """``make_config`` is called once, in this job's thread, and may wait. ``on_down``: all slots are gone, and are
        being started again; ``on_gone``: nothing can start them.
        """
        self._context = spark.sparkContext
        self._make_config = make_config
        self._slots = slots
        self._group = f"flinkplus-{job_id}" if slots is None else f"flinkplus-{job_id}-{slots[0]}"
        self._on_down = on_down
        self._on_gone = on_gone
        self._plan: Broadcast[SlotConfig] | None = None
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._run, name="flinkplus-slots-job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            config = self._make_config()
        except Exception as error:  # whatever it is, there is nothing to start slots with
            self._on_gone(f"{type(error).__name__}: {error}")
            return
        while not self._stopping.is_set():
            reason = "the Spark job of the slots ended"
            try:
                self._run_slots(config)
            except Exception as error:  # whatever Spark raises here means the same: the slots are gone
                reason = f"Spark gave the slots' job up: {(str(error).splitlines() or [type(error).__name__])[0][:300]}"
            if self._stopping.is_set():
                break
            if self._is_stopped():
                self._on_gone("Spark was stopped under the job; end a job (job.cancel()) before its session")
                return
            self._on_down(reason)
            self._stopping.wait(RESUBMIT_PAUSE_S)
        if self._plan is not None and not self._is_stopped():
            self._plan.unpersist(blocking=False)

    def _run_slots(self, config: SlotConfig) -> None:
        """One Spark job, to its end."""
        context = self._context
        context.setJobGroup(self._group, f"FlinkPlus slots of {config.job_name}", interruptOnCancel=False)
        plan = self._plan = self._plan or context.broadcast(config)
        numbers = tuple(range(config.slots) if self._slots is None else self._slots)

        def task(index: int, rows: Iterable[Any]) -> Iterator[Any]:
            list(rows)  # or Spark takes its worker for one that has not finished
            start_slot(numbers[index], plan)
            return iter(())

        tasks = at_home(context, numbers, self._stopping).mapPartitionsWithIndex(task)
        if config.local:
            _with_our_python(context, tasks)
        tasks.collect()

    def _is_stopped(self) -> bool:
        """Whether the user's session was stopped, here or in the JVM."""
        jsc = self._context._jsc
        try:
            return jsc is None or bool(jsc.sc().isStopped())
        except (Py4JError, OSError):  # the JVM is gone
            return True

    def stop(self, graceful_s: float) -> None:
        """Let the slots end by themselves for ``graceful_s`` seconds, then cancel the job; returns when it is over."""
        self._stopping.set()
        self._thread.join(graceful_s)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._context.cancelJobGroup(self._group)
            self._thread.join(0.2)
        if self._thread.is_alive():
            log.warning("Spark did not end the slots' job within %s s", STOP_TIMEOUT_S)


class SpareSlotJobs:
    """The Spark jobs of spare slots; see ``spares.SpareJobs``. ``make``: makes the one of a slot. All may be called in
    any thread; Spark itself, which may take its time, is in a thread of its own for each slot."""

    def __init__(self, spark: SparkSession, make: Callable[[int], SlotsJob]) -> None:
        self._context = spark.sparkContext
        self._make = make
        self._lock = threading.Lock()
        self._lives: dict[int, _SpareLife] = {}
        self._closed = False
        self._room = room_of(self._context.master or "", int(self._context.getConf().get("spark.task.cpus", "1") or 1))

    def check(self, slots: int) -> None:
        """Raises ``InsufficientSlots`` when the master URL says that fewer than ``slots`` tasks can run at once."""
        if self._room is not None and self._room < slots:
            raise InsufficientSlots(
                f"the job would have {slots} slots with them, but master {self._context.master!r} runs {self._room} "
                "tasks at once"
            )

    def start(self, slot: int) -> None:
        """Have Spark run ``slot``, unless all is over."""
        with self._lock:
            if not self._closed:
                self._lives[slot] = _SpareLife(self._make, slot)
                self._lives[slot].start()

    def end(self, slot: int, graceful_s: float, then: Callable[[], None]) -> None:
        """Let ``slot`` end by itself for so long, then cancel its Spark job; then call ``then``."""
        with self._lock:
            life = self._lives.pop(slot, None)
        if life is None:
            then()
        else:
            life.end(graceful_s, then)

    def stop(self, graceful_s: float) -> None:
        """As ``SlotsJob.stop``, of all; none is started after that."""
        with self._lock:
            self._closed = True
            lives = [*self._lives.values()]
        for life in lives:
            life.end(graceful_s, lambda: None)
        for life in lives:
            life.join(graceful_s + STOP_TIMEOUT_S)


class _SpareLife(threading.Thread):
    """From the start of a spare slot's Spark job to its end."""

    def __init__(self, make: Callable[[int], SlotsJob], slot: int) -> None:
        super().__init__(name=f"flinkplus-spare-{slot}", daemon=True)
        self._make = make
        self._slot = slot
        self._wanted = threading.Event()
        self._graceful_s = 0.0
        self._then: Callable[[], None] = lambda: None

    def end(self, graceful_s: float, then: Callable[[], None]) -> None:
        self._graceful_s, self._then = graceful_s, then
        self._wanted.set()

    def run(self) -> None:
        try:
            job = self._make(self._slot)
            job.start()
            self._wanted.wait()
            job.stop(self._graceful_s)
        except Exception:  # Spark itself may be gone; the job of the other slots says so
            log.warning("spare slot %d", self._slot, exc_info=True)
            self._wanted.wait()
        self._then()
