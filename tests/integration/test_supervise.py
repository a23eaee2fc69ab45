"""``flinkplus supervise`` with a real job: its driver is killed, the prepared one continues it, and nothing is left.

With an ensemble, the next driver also follows the dead one there: it is elected, and has other subtasks than that.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient

from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
from flinkplus import CheckpointDirectoryError, checkpoints
from tests.integration.conftest import assert_each_count_once
from tests.integration.programs import Program, cli, program, script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from flinkplus import StreamEnvironment, spark_settings

settings = {**spark_settings(), "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
settings["spark.driver.host"] = "127.0.0.1"
spark = SparkSession.builder.config(map=settings).master("local[4]").getOrCreate()
parallelism, *ensemble = sys.argv[2:]
if ensemble and os.path.isdir("kept"):
    parallelism = 2
options = {"zookeeper": ensemble[0], "session_timeout": 2.0} if ensemble else {}
env = StreamEnvironment(
    spark, parallelism=int(parallelism), replicas=2, checkpoint_interval=0.3, checkpoint_dir="kept", **options
)
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


def assert_continued(run: Program, directory: Path) -> None:
    """The second driver has restored a checkpoint, and the output is exact."""
    restored = re.findall(r"from (\w+)", run.out)
    assert restored[0] == "None" and int(restored[1]) >= 1 and len(restored) == 2
    words = int(re.findall(r"words (\d+)", run.out)[0])
    table = pq.read_table(directory / "out")
    assert table.num_rows == words > 1_000
    assert_each_count_once(table)


def stored(directory: Path) -> int:
    """The number of checkpoints there, also before the job has begun."""
    try:
        return len(checkpoints(directory))
    except CheckpointDirectoryError:
        return 0


@pytest.mark.long
def test_a_driver_that_is_killed(corpus: Path, tmp_path: Path) -> None:
    command = cli("supervise", "--prepare-after", "3", script(tmp_path, PROGRAM), corpus, 2)
    with program(command, tmp_path) as run:
        run.wait_for(lambda: "is ready to be the next driver" in run.err, "the next driver")
        run.wait_for(lambda: stored(tmp_path / "kept") > 1, "checkpoints")
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
    assert_continued(run, tmp_path)


@pytest.mark.long  # about as long as the test above, which shows the rest
def test_a_driver_that_is_killed_is_followed_in_an_ensemble(corpus: Path, tmp_path: Path) -> None:
    """The program then has a parallelism of 2 instead of 3: records of subtasks that are no more are removed."""
    with EmbeddedZooKeeper() as server:
        client = KazooClient(server.hosts)
        client.start()

        def records() -> dict[str, int]:
            """Vertex -> number of its records."""
            found: dict[str, int] = {}
            for application in client.get_children("/flinkplus") if client.exists("/flinkplus") else []:
                for name in client.get_children(f"/flinkplus/{application}/subtasks"):
                    vertex, _, _ = name.partition("[")
                    found[vertex] = found.get(vertex, 0) + 1
            return found

        try:
            command = cli("supervise", script(tmp_path, PROGRAM), corpus, 3, server.hosts)
            with program(command, tmp_path) as run:
                run.wait_for(lambda: "from None" in run.out, "the job")
                run.wait_for(lambda: stored(tmp_path / "kept") > 1, "checkpoints")
                assert sorted(records().values()) == [3, 3]
                os.kill(int(re.findall(r"driver (\d+) runs", run.err)[0]), signal.SIGKILL)
                run.wait_for(lambda: len(re.findall(r"driver \d+ runs", run.err)) == 2, "a restart")
                run.wait_for(lambda: sorted(records().values()) == [2, 2], "the records of the new subtasks alone")
                assert run.wait() == 0, run.err
                run.assert_nothing_left()
            assert client.get_children("/flinkplus") == []
        finally:
            client.stop()
            client.close()
    assert_continued(run, tmp_path)
