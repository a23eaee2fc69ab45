"""``flinkplus supervise`` with a real job: its driver is killed, the prepared one continues it, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flinkplus import checkpoints
from tests.integration.conftest import assert_each_count_once
from tests.integration.programs import cli, program, script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from flinkplus import StreamEnvironment, spark_settings

settings = {**spark_settings(), "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
settings["spark.driver.host"] = "127.0.0.1"
spark = SparkSession.builder.config(map=settings).master("local[4]").getOrCreate()
env = StreamEnvironment(spark, parallelism=2, replicas=2, checkpoint_interval=0.3, checkpoint_dir="kept")
lines = env.read_text(sys.argv[1], name="lines", repeat=1_000).tokenize(name="tokenize").throttle(3_000.0)
lines.key_by("word").count(name="count").to_parquet("out", name="out")
with env.execute("supervised", resume="auto") as job:
    print("from", job.restored_from, "java", spark.sparkContext._gateway.proc.pid, flush=True)
    if job.restored_from is not None:
        job.wait(2)
        job.drain()
    job.await_finish()
    print("words", job.metrics()["operators"]["tokenize"]["rows_out"], flush=True)
"""


def test_a_driver_that_is_killed(corpus: Path, tmp_path: Path) -> None:
    command = cli("supervise", "--prepare-after", "3", script(tmp_path, PROGRAM), corpus)
    with program(command, tmp_path) as run:
        run.wait_for(lambda: "is ready to be the next driver" in run.err, "the next driver")
        run.wait_for(lambda: len(checkpoints(tmp_path / "kept")) > 1, "checkpoints")
        first, following = (
            int(re.findall(pattern, run.err)[0]) for pattern in (r"driver (\d+) runs", r"process (\d+) is")
        )
        java = int(re.findall(r"java (\d+)", run.out)[0])
        before = [process for process in run.living() if process.pid != run.process.pid]
        os.kill(first, signal.SIGKILL)
        run.wait_for(lambda: f"driver {following} runs" in run.err, "a restart")
        assert [process for process in before if process.pid in (first, java) and process.is_running()] == []
        assert run.wait() == 0, run.err
        run.assert_nothing_left()
    assert re.search(rf"driver {first} has ended after .* killed by SIGKILL", run.err) and "ended well" in run.err
    restored = re.findall(r"from (\w+)", run.out)
    assert restored[0] == "None" and int(restored[1]) >= 1 and len(restored) == 2
    words = int(re.findall(r"words (\d+)", run.out)[0])
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == words > 1_000
    assert_each_count_once(table)
