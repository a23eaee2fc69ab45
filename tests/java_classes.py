"""Java processes start quickly for tests: many tests start one, and loading classes takes most of that.

``python -m tests.java_classes`` runs a small job on Spark, and a ZooKeeper server, in Java processes that write what
they loaded to archives of classes (class data sharing). ``tests/conftest.py`` gives the archives to the Java processes
that tests start. Java ignores an archive of another Java version or class path. Without archives tests take longer, and
find the same.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from chain_backup.zookeeper import embedded

ARCHIVE = Path(sys.prefix) / f"spark-{pyspark.__version__}.jsa"
ARCHIVE_OF_ZOOKEEPER = ARCHIVE.with_name(f"zookeeper-{pyspark.__version__}.jsa")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Tests are over before the code of the optimising compiler would pay for itself."""
TIMEOUT_S = 120.0


def options() -> str:
    """For ``SPARK_SUBMIT_OPTS``: the Java options of Spark's own Java process."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else QUICK


def options_of_zookeeper() -> tuple[str, ...]:
    """The same for a job's own ZooKeeper server."""
    archive = ARCHIVE_OF_ZOOKEEPER
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()


def write_zookeeper() -> None:
    """Start a server, use it, and write the archive."""
    from kazoo.client import KazooClient

    from chain_backup.zookeeper.client import _Handler
    from flinkplus.runtime.transport.auth.tls import context, made_for

    made = ARCHIVE_OF_ZOOKEEPER.with_suffix(f".{os.getpid()}")
    embedded.JVM_OPTIONS += (f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable")
    own = made_for("classes")
    tls = embedded.Tls(own.authority, own.certificate, own.key, context(own, server=False))
    with embedded.EmbeddedZooKeeper(tls=tls) as server:
        client = KazooClient(server.hosts, handler=_Handler(tls.client))
        client.start(TIMEOUT_S)
        client.create("/classes", b"1", ephemeral=True)
        client.stop()
        client.close()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)  # it writes the archive before it ends
        until_s = time.monotonic() + TIMEOUT_S
        while server.alive and time.monotonic() < until_s:
            time.sleep(0.05)
    made.rename(ARCHIVE_OF_ZOOKEEPER)


def write() -> None:
    """Run a job, and write the archive. Raises what Spark or Java raise."""
    made = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from flinkplus import StreamEnvironment

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        env = StreamEnvironment(spark, parallelism=2, checkpoint_dir=f"{directory}/checkpoints")
        rows = env.from_spark(spark.range(100).selectExpr("id", "cast(id as string) word"))
        rows.key_by("word").count().to_parquet(f"{directory}/out")
        with env.execute("classes") as job:
            job.await_finish(TIMEOUT_S)
        spark.read.parquet(f"{directory}/out").createOrReplaceTempView("counts")
        assert spark.sql("select word, max(count) from counts group by word").count() == 100
        spark.createDataFrame([(1, "a")], "n int, word string").collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()  # the Java process ends, and writes the archive before it does
    process.wait(TIMEOUT_S)
    made.rename(ARCHIVE)


if __name__ == "__main__":
    if not ARCHIVE_OF_ZOOKEEPER.exists():
        write_zookeeper()
    if not ARCHIVE.exists():
        write()
