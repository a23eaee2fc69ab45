"""Spark's Java processes start quickly for tests: many tests start one, and loading classes takes most of that.

``python -m tests.java_classes`` runs a small job in a Java process that writes what it loaded to an archive of classes
(class data sharing). ``tests/conftest.py`` gives the archive to every Java process that a test starts. Java ignores an
archive of another Java version or class path. Without an archive tests take longer, and find the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyspark

ARCHIVE = Path(sys.prefix) / f"spark-{pyspark.__version__}.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Tests are over before the code of the optimising compiler would pay for itself."""
TIMEOUT_S = 120.0


def options() -> str:
    """For ``SPARK_SUBMIT_OPTS``: the Java options of Spark's own Java process."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else QUICK


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
    if not ARCHIVE.exists():
        write()
