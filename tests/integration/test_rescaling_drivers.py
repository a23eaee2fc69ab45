"""A driver that dies by SIGKILL in a live rescale: the next one runs the old subtasks or the new ones, all of them."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import PATIENCE_S, assert_each_count_once, wait_for_checkpoint, wait_until
from tests.integration.programs import program, script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROGRAM = """
import importlib, os, signal, sys, time
from pyspark.sql import SparkSession
from flinkplus import StreamEnvironment, spark_settings

corpus, before, after, module, owner, method, moment, recovery = sys.argv[1:]
owner = getattr(importlib.import_module(f"flinkplus.{module}"), owner)
real = getattr(owner, method)

def struck(*arguments, **named):
    if moment == "after":
        real(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

settings = {**spark_settings(), "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
settings["spark.driver.host"] = "127.0.0.1"
spark = SparkSession.builder.config(map=settings).master("local[4]").getOrCreate()
env = StreamEnvironment(
    spark, parallelism=int(before), recovery=recovery, checkpoint_interval=0.3, checkpoint_dir=os.path.abspath("kept")
)
lines = env.read_text(corpus, name="lines", repeat=1_000).tokenize(name="tokenize").throttle(3_000.0)
lines.key_by("word").count(name="count").to_parquet(os.path.abspath("out"), name="out")
job = env.execute("rescaled")
while job.metrics()["checkpoints_completed"] < 1:
    time.sleep(0.01)
setattr(owner, method, struck)
job.rescale(int(after)).await_done(120)
time.sleep(60)
"""

RESCALES = "runtime.coordinator.membership.rescales", "Rescales"
DRIVER = "runtime.coordinator.drivers.rescale", "RescaleDriver"
DIVIDER = "runtime.job.restoring", "CheckpointDivider"
PLAN = "state.durable.blobs", "Blobs", "put_signed"
LONG = pytest.mark.long


def of_parallelism(parallelism: int, names: Collection[str]) -> bool:
    """Whether these are the subtasks of both vertices at this parallelism."""
    found = Counter(name[name.index("[") :] for name in names)
    return found == {f"[{index}]": 2 for index in range(parallelism)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "point", "divided", "recovery"),
    [
        pytest.param(2, 3, (*DIVIDER, "divide", "before"), False, "rollback", id="before-it-is-divided", marks=LONG),
        pytest.param(3, 2, (*PLAN, "before"), True, "rollback", id="before-the-plan-is-stored"),
        pytest.param(2, 3, (*RESCALES, "_await_slots", "before"), False, "standby", id="slots-start", marks=LONG),
        pytest.param(2, 3, (*RESCALES, "_await_files", "after"), False, "standby", id="prefetching", marks=LONG),
        pytest.param(3, 1, (*RESCALES, "_switch", "after"), False, "standby", id="interrupted", marks=LONG),
        pytest.param(2, 3, (*PLAN, "after"), True, "standby", id="divided", marks=LONG),
        pytest.param(2, 3, (*DRIVER, "_replace", "after"), True, "standby", id="deployed", marks=LONG),
        pytest.param(3, 2, (*RESCALES, "_end", "before"), True, "standby", id="slots-end", marks=LONG),
    ],
)
def test_a_driver_killed_in_a_rescale(
    spark: SparkSession,
    corpus: Path,
    tmp_path: Path,
    before: int,
    after: int,
    point: tuple[str, str, str, str],
    divided: bool,
    recovery: Any,
) -> None:
    """``divided``: whether the checkpoint of the new subtasks is stored by then. The plan follows it: until then a
    driver that is given no parallelism divides once more, and has the old one."""
    command = [sys.executable, script(tmp_path, PROGRAM), str(corpus), str(before), str(after), *point, recovery]
    with program(command, tmp_path) as run:
        assert run.wait() == -signal.SIGKILL, run.err
        stored = CheckpointStorage(tmp_path / "kept", trust=True).manifests
        newest = stored.read(stored.checkpoints()[-1]).subtasks
        assert of_parallelism(after if divided else before, newest), newest
        parallelism = after if divided and point != (*PLAN, "before") else before
        with StreamEnvironment.resume(spark, tmp_path / "kept") as job:
            assert job.restored_from is not None
            wait_for_checkpoint(job, 1)
            assert of_parallelism(parallelism, job.placement()) and len(job.slot_pids()) == parallelism
            job.drain()
            job.await_finish(PATIENCE_S)
            words = job.metrics()["operators"]["tokenize"]["rows_out"]
        wait_until(lambda: not run.living(), "the end of the dead driver's processes")
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == words > 1_000
    assert_each_count_once(table)
