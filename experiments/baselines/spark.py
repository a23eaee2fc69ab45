"""Spark Structured Streaming: one process (throughput and latency), or one with executors of its own (recovery).

Rules: a micro-batch follows the one before it at once. State is in Spark's RocksDB store with changelog checkpoints;
the checkpoint that ends every batch takes the place of one at an interval. Executors are of a standalone cluster inside
of the driver's process, with one core each, and one more than needed. All is on loopback, and no file is left.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pyspark

from experiments.baselines.case import EXCEPTION, RECOVERY, Case, RunFailed
from experiments.baselines.flink import JavaProcesses, configured, job_arguments
from experiments.baselines.java_tools import java
from experiments.baselines.notes import NOTED, have_raised
from experiments.baselines.recovery import Struck
from experiments.baselines.trees import command_of, kill_tree, tree

HOME = Path(pyspark.__file__).parent
HEAP_MB = 2_048
DRIVER_HEAP_MB = 640
EXECUTOR_MB = 512
START_ALLOWANCE_MS = 10_000
BATCH_ROWS = 500_000
"""Of a micro-batch at unlimited rate, for each subtask."""
MAIN = "baselines.spark.Jobs"
EXECUTOR = "CoarseGrainedExecutorBackend"
EXECUTORS_S = 60.0
POLL_S = 0.1
OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref"),
    *("java.base/sun.nio.ch", "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar"),
)
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{8}
"""


def jars() -> list[Path]:
    """Of the Spark that FlinkPlus itself uses."""
    return sorted((HOME / "jars").glob("*.jar"))


def environment_in(directory: Path) -> dict[str, str]:
    """Of a driver, with a home of Spark in ``directory``: the workers of a cluster in a driver write into its home."""
    home = directory / "spark-home"
    home.mkdir()
    for path in HOME.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    core = next((HOME / "jars").glob("spark-core_*.jar")).name
    scala = core.removeprefix("spark-core_").partition("-")[0]  # executors are not started without
    return {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": scala}


def settings_of(case: Case, classes: Path, directory: Path) -> dict[str, str]:
    """What is not Spark's default."""
    master = f"local[{case.parallelism}]"
    if case.measure == RECOVERY:
        master = f"local-cluster[{case.parallelism + 1},1,{EXECUTOR_MB}]"
    return {
        "spark.master": master,
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.executor.extraClassPath": str(classes),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
        "spark.sql.shuffle.partitions": str(case.parallelism),
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "1s",
    }


@dataclass(frozen=True)
class Spark:
    """``classes``: of this project's programs."""

    classes: Path


class SparkJob:
    """A query; see ``recovery.BreakableJob``. A failed task holds up its micro-batch, so every partition is hit."""

    def __init__(self, spark: Spark, case: Case, directory: Path, text: Path, stop: threading.Event) -> None:
        self.notes = directory / "notes"
        self._case, self._stop = case, stop
        self._java = JavaProcesses(directory)
        logging = directory / "log4j2.properties"
        logging.write_text(LOGGING)
        heap_mb = DRIVER_HEAP_MB if case.measure == RECOVERY else HEAP_MB
        command = [
            java(),
            f"-Xmx{heap_mb}m",
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            f"-Djava.io.tmpdir={directory}",
            *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
            *("-cp", os.pathsep.join((str(spark.classes), str(HOME / "jars" / "*"))), MAIN),
            *job_arguments(case, self.notes, int(time.time() * 1e3) + START_ALLOWANCE_MS, text),
            *("--checkpoints", str(directory / "checkpoints"), "--batch", str(BATCH_ROWS * case.parallelism)),
            *configured(settings_of(case, spark.classes, directory)),
        ]
        self._java.start("spark", command, environment_in(directory))

    def roots(self) -> list[int]:
        return [process.pid for process in self._java.processes.values()]

    def origin_ms(self) -> float:
        return 0.0

    def check(self) -> None:
        self._java.check("spark")

    def strike(self, failure: str, index: int) -> Struck:
        everything = tuple(range(self._case.parallelism))
        if failure == EXCEPTION:
            raised_ms = have_raised(self.notes, index, self.check)
            return Struck(raised_ms, everything, f"an exception in partition {index}")
        executor = int((self.notes / f"{NOTED}-{index}.pid").read_text())
        if executor not in self._executors():
            raise RunFailed(f"partition {index} is on no executor with a process of its own")
        now_ms = time.time() * 1e3
        kill_tree(executor)
        return Struck(now_ms, everything, f"SIGKILL of the executor of partition {index}")

    def _executors(self) -> list[int]:
        return [process.pid for process in tree(self.roots()) if EXECUTOR in command_of(process)]

    def checkpoint_ms(self) -> float | None:
        """Each micro-batch is a checkpoint: there is no interval."""
        return None

    def mend(self) -> None:
        """The worker starts another executor by itself."""
        deadline_s = time.monotonic() + EXECUTORS_S
        while len(self._executors()) <= self._case.parallelism:
            self.check()
            if time.monotonic() > deadline_s:
                raise RunFailed(f"not all executors are back after {EXECUTORS_S:g} s")
            if self._stop.wait(POLL_S):
                raise RunFailed("interrupted")

    def close(self) -> None:
        self._java.close()
