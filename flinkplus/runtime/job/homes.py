"""The home of a slot: the executor on which Spark should start it.

Spark could start all slots on one executor. So each slot has a home among the executors that exist when the
slots start: hosts in turn, and the executors of a host in turn. Spark starts a slot at its home if that has room. After
``spark.locality.wait`` it takes any executor of the same host, and after twice that time any executor.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import threading
from itertools import zip_longest
from typing import Any, NewType

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer

from flinkplus.errors import first_line

READY_POLL_S = 0.05
LOCAL_MASTER = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?$")
Home = NewType("Home", str)
"""An executor, as Spark's scheduler writes it: ``executor_HOST_ID``."""

log = logging.getLogger("flinkplus.launcher")


def local_master(master: str | None) -> int | None:
    """The number of threads of a ``local`` master; ``None`` for any other master."""
    match = LOCAL_MASTER.match(master or "")
    if match is None:
        return None
    threads = match[1]
    return (os.cpu_count() or 1) if threads == "*" else int(threads or 1)


def homes_of(context: SparkContext, stopping: threading.Event) -> list[Home]:
    """The executors in the order in which slots get them, if Spark lists any; waits until Spark would start tasks."""
    if local_master(context.master) is not None:
        return []
    try:
        return in_turn(_executors(context, stopping))
    except Py4JError as error:  # Spark's internals have changed
        log.info("slots have no preferred hosts: %s", first_line(error))
        return []


def in_turn(executors: list[tuple[str, str]]) -> list[Home]:
    """Orders (host, executor): the first executor of each host, then the second of each, and so on."""
    hosts: dict[str, list[Home]] = {}
    for host, executor in sorted(executors):
        hosts.setdefault(host, []).append(Home(f"executor_{host}_{executor}"))
    return [home for row in zip_longest(*hosts.values()) for home in row if home is not None]


def _executors(context: SparkContext, stopping: threading.Event) -> list[tuple[str, str]]:
    """(host, executor) of all living executors."""
    assert context._jsc is not None
    spark = context._jsc.sc()
    while not spark.schedulerBackend().isReady() and not stopping.wait(READY_POLL_S):
        pass
    addresses = _listed(spark.getExecutorMemoryStatus().keysIterator())  # including the driver's
    found = []
    for host in sorted({address.rpartition(":")[0] for address in addresses}):
        alive = spark.taskScheduler().getExecutorsAliveOnHost(host)
        if alive.isDefined():
            found += [(host, executor) for executor in sorted(_listed(alive.get().iterator()))]
    return found


def _listed(iterator: Any) -> list[str]:
    """The items of a Scala iterator."""
    found = []
    while iterator.hasNext():
        found.append(str(iterator.next()))
    return found


def at_home(context: SparkContext, slot: int, home: Home | None) -> RDD[int]:
    """An RDD of one row in one partition, which Spark prefers to compute at ``home``."""
    if home is not None:
        try:
            return _preferring(context, slot, home)
        except Py4JError as error:  # Spark's internals have changed
            log.info("slot %d has no preferred host: %s", slot, first_line(error))
    return context.parallelize([slot], 1)


def _preferring(context: SparkContext, slot: int, home: Home) -> RDD[int]:
    """As ``parallelize``, with a preferred executor, for which PySpark has no parameter."""
    assert context._jsc is not None and context._jvm is not None
    jvm = context._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    preferred, entries = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
    preferred.add(home)
    entries.add(jvm.scala.Tuple2(pickle.dumps([slot]), to_seq(preferred)))
    tags = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$")
    made = context._jsc.sc().makeRDD(to_seq(entries), tags.apply(jvm.java.lang.Class.forName("[B")))
    return RDD(made.toJavaRDD(), context, AutoBatchedSerializer(CPickleSerializer()))
