"""Two drivers that begin a run of a job on one bucket at the same moment, without an ensemble: one of them runs it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkplus.corpus import write_corpus
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.spark_log import SparkFileLog
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import PATIENCE_S, expected_counts
from tests.integration.programs import program, script
from tests.s3_server import Bucket, s3_server

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
from flinkplus import JobRunsElsewhere, StreamEnvironment, spark_settings
from flinkplus.state.durable.runs import Runs

corpus, checkpoints, out, me, other = sys.argv[1:]
begin = Runs.begin

def together(runs, at_least=1):
    if not os.path.exists(me):  # both have seen the same runs now
        open(me, "w").close()
        while not os.path.exists(other):
            time.sleep(0.001)
    return begin(runs, at_least)

Runs.begin = together
settings = {**spark_settings(), "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
settings["spark.driver.host"] = "127.0.0.1"
spark = SparkSession.builder.config(map=settings).master("local[2]").getOrCreate()
env = StreamEnvironment(
    spark, parallelism=1, recovery="rollback", checkpoint_interval=0.5, checkpoint_dir=checkpoints
)
lines = env.read_text(corpus, name="lines").tokenize(name="tokenize").throttle(1_000.0)
lines.key_by("word").count(name="count").to_parquet(out, name="out")
try:
    job = env.execute("words", resume="auto" if os.environ["RESUME"] == "auto" else False)
    print("runs", flush=True)
    job.await_finish(300)
    print("finished", flush=True)
except JobRunsElsewhere as error:
    print("elsewhere:", error, flush=True)
"""


@pytest.fixture
def s3() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


def visible(s3: Bucket) -> pa.Table:
    log = SparkFileLog(OutputFiles(s3.uri("out")))
    log.load()
    return pa.concat_tables(pq.read_table(io.BytesIO(s3.objects[f"out/{file.name}"])) for file in log.all_files())


@pytest.mark.parametrize("resume", ["new", "auto"])
def test_one_of_two_drivers_runs_the_job(tmp_path: Path, s3: Bucket, resume: str) -> None:
    corpus = tmp_path / "corpus.txt"
    write_corpus(str(corpus), words=3_000, vocabulary=200, seed=3)
    if resume == "auto":  # there has been a run before
        CheckpointStorage(s3.uri("checkpoints")).begin()
    source, marks = script(tmp_path, PROGRAM), [str(tmp_path / name) for name in ("a", "b")]
    places = [str(corpus), s3.uri("checkpoints"), s3.uri("out")]
    with ExitStack() as stack:
        drivers = [
            stack.enter_context(program([sys.executable, source, *places, *order], tmp_path, env={"RESUME": resume}))
            for order in (marks, marks[::-1])
        ]
        for driver in drivers:
            assert driver.wait(PATIENCE_S) == 0, driver.err
        said = sorted(driver.out for driver in drivers)
    assert said[0].startswith("elsewhere: another driver has begun a run of the job in "), said
    assert said[1] == "runs\nfinished\n", said
    table = visible(s3)
    expected = expected_counts(corpus)
    assert table.num_rows == sum(expected.values())
    counts = table.group_by("word").aggregate([("count", "max"), ("count", "count_distinct")]).to_pydict()
    assert dict(zip(counts["word"], counts["count_max"], strict=True)) == expected
    assert counts["count_max"] == counts["count_count_distinct"], "each row is there once"
