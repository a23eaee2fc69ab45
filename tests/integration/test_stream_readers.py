"""The data source with batches of partitions of docs/sources.md as it stands there, while slots and drivers die.

Each line says a word, its file and its number there. The operator behind the source adds how many lines with the word
there were so far, so that both a lost and a doubled row show.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import JobFailed, JobHandle, StreamEnvironment
from tests.documents import ROOT, blocks_of
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_for_standbys, wait_until
from tests.integration.programs import program, script
from tests.integration.test_directory import wait_for_recoveries

pytestmark = pytest.mark.integration

ROW = "word string, file long, number long"
SCHEMA = f"{ROW}, so_far long"
FILES = 3


def shown(batch_bytes: int = 1 << 20) -> Any:
    """The data source in docs/sources.md. ``batch_bytes``: that a batch has at most of each file."""
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    block = next(block for block in blocks_of("docs/sources.md", page) if "class GrowingFiles(" in block.text)
    text = block.text[: block.text.index("spark = ")]
    assert "1 << 20" in text
    text = text.replace("1 << 20", str(batch_bytes))
    around: dict[str, Any] = {"__name__": "__main__"}  # so that its classes travel by value, as those of a program do
    exec(compile(text, str(block), "exec"), around)
    return around["GrowingFiles"]


class Logs:
    """A directory with files to which a thread appends ``lines`` lines each, in bursts; now and then half a line."""

    def __init__(self, path: Path, lines: int) -> None:
        self.path, self.lines = path, lines
        path.mkdir()
        self._thread = threading.Thread(target=self._append)

    def _append(self) -> None:
        rng = random.Random(5)
        left = {file: [f"w{n * n % 7} {file} {n}\n" for n in range(self.lines)] for file in range(FILES)}
        while any(left.values()):
            file, count = rng.randrange(FILES), rng.choice((1, 5, 40))
            text, left[file] = "".join(left[file][:count]), left[file][count:]
            cut = rng.randrange(len(text) + 1)
            for part in (text[:cut], text[cut:]):
                with (self.path / f"log-{file}").open("a") as target:
                    target.write(part)
            time.sleep(rng.choice((0.0, 0.01, 0.02)))

    def __enter__(self) -> Logs:
        self._thread.start()
        return self

    def wait(self) -> None:
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.wait()

    @property
    def rows(self) -> int:
        return FILES * self.lines


def parsed(row: Any) -> tuple[str, int, int]:
    word, file, number = row[0].split(" ")
    return word, int(file), int(number)


def counted(word: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int, int]]:
    so_far = ctx.state("so_far")
    so_far.put(so_far.get(0) + 1)
    yield word, row.file, row.number, so_far.get()


class Job:
    """source | key_by(word) | counted | Parquet."""

    def __init__(self, spark: SparkSession, directory: Path, logs: Path) -> None:
        self.spark, self.logs = spark, logs
        self.out, self.checkpoints = directory / "out", directory / "checkpoints"

    def run(self, resume: Any = False, source: Any = None, reading: Any = None, **options: Any) -> JobHandle:
        given = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": self.checkpoints}
        start = {"start_from": options.pop("start_from")} if "start_from" in options else {"resume": resume}
        env = StreamEnvironment(self.spark, **{**given, **options})
        source = source or shown(400)
        lines = env.from_data_source(
            source, options={"path": str(self.logs)}, poll="10 ms", name="files", **(reading or {})
        )
        rows = lines.map(parsed, schema=ROW, name="parsed").key_by("word")
        rows.process(counted, schema=SCHEMA, name="counted").to_parquet(self.out, name="out")
        return env.execute("stream reader", **start)

    def planned(self) -> list[Path]:
        return sorted(self.checkpoints.glob("staged/files-*/*.planned"))

    def rows(self) -> list[dict[str, Any]]:
        return pq.read_table(self.out).to_pylist()

    def check(self, lines: int) -> None:
        rows = self.rows()
        found = Counter((row["file"], row["number"]) for row in rows)
        assert found == Counter((file, number) for file in range(FILES) for number in range(lines))
        so_far: dict[str, list[int]] = {}
        for row in rows:
            so_far.setdefault(row["word"], []).append(row["so_far"])
        for word, counts in so_far.items():
            assert sorted(counts) == list(range(1, len(counts) + 1)), word


def rows_read(job: JobHandle) -> int:
    return int(job.metrics()["operators"].get("files", {}).get("rows", 0))


def drain(job: JobHandle, logs: Logs) -> None:
    logs.wait()
    wait_until(lambda: job.done or rows_read(job) >= logs.rows, f"{logs.rows} rows read")
    job.drain()
    job.await_finish(PATIENCE_S)


def kill_in_turn(job: JobHandle, victims: tuple[str, ...]) -> None:
    for count, victim in enumerate(victims, 1):
        wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
        wait_for_standbys(job)
        if not job.kill(victim):
            job.await_finish(PATIENCE_S)  # which raises the reason
            pytest.fail(f"{victim} could not be killed")
        wait_for_recoveries(job, count)


@pytest.mark.long
def test_a_slot_dies_and_another_driver_continues(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path, tmp_path / "logs")
    with Logs(tmp_path / "logs", 600) as logs:
        with job_of.run() as job:
            wait_until(lambda: job.done or rows_read(job) > 0, "rows")
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            wait_for_standbys(job)
            assert job.kill("files:0")
            wait_for_recoveries(job, 1)
            assert {recovery["mode"] for recovery in job.recoveries()} == {"standby"}, job.recoveries()
            assert job.metrics()["fallbacks"] == 0
        with StreamEnvironment.resume(spark, job_of.checkpoints, parallelism=1, recovery="rollback") as job:
            assert job.restored_from is not None
            drain(job, logs)
    job_of.check(600)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"recovery": "rollback"}, "rollback"),
        ({"recovery": "partial"}, "partial"),
        ({"checkpoint_mode": "unaligned"}, "standby"),
        ({"parallelism": 3, "replicas": 2}, "standby"),
    ],
)
def test_every_kind_of_recovery(spark: SparkSession, tmp_path: Path, options: dict[str, Any], mode: str) -> None:
    job_of = Job(spark, tmp_path, tmp_path / "logs")
    with Logs(tmp_path / "logs", 3_000) as logs, job_of.run(**options) as job:
        kill_in_turn(job, ("files:0", "counted:1", "files:1"))
        drain(job, logs)
    job_of.check(3_000)
    assert {recovery["mode"] for recovery in job.recoveries()} == {mode}


@pytest.mark.long
def test_the_parallelism_changes(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path, tmp_path / "logs")
    with Logs(tmp_path / "logs", 3_000) as logs:
        with job_of.run() as job:
            wait_until(lambda: job.done or rows_read(job) > 0, "rows")
            job.rescale(3).await_done(PATIENCE_S)
            wait_for_standbys(job)
            assert job.kill("files:2")
            wait_for_recoveries(job, 1)
            job.rescale(1).await_done(PATIENCE_S)
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
        with job_of.run(resume=True, parallelism=3) as job:
            drain(job, logs)
    job_of.check(3_000)


@pytest.mark.long
def test_a_savepoint_has_the_planned_batches(spark: SparkSession, tmp_path: Path) -> None:
    """The first job goes on behind its savepoint, removes what it had planned, and both read each row once."""
    first, second = tmp_path / "first", tmp_path / "second"
    job_of = Job(spark, first, tmp_path / "logs")
    other = Job(spark, second, tmp_path / "logs")
    with Logs(tmp_path / "logs", 2_000) as logs:
        with job_of.run() as job:
            wait_until(lambda: job.done or rows_read(job) > 500, "rows")
            job.savepoint(str(tmp_path / "savepoint"))
            drain(job, logs)
        job_of.check(2_000)
    with other.run(start_from=str(tmp_path / "savepoint"), parallelism=3) as job:
        assert job.restored_from is not None
        drain(job, logs)
    # what was counted before the savepoint is in the output of the first job alone
    found = Counter((row["file"], row["number"]) for row in other.rows())
    assert max(found.values()) == 1
    before = {(row["file"], row["number"]) for row in job_of.rows()} - found.keys()
    assert before and len(before) + len(found) == FILES * 2_000
    for word in {row["word"] for row in other.rows()}:
        counts = sorted(row["so_far"] for row in other.rows() if row["word"] == word)
        assert counts == list(range(counts[0], counts[0] + len(counts)))


def test_what_is_there_and_then_the_end(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path, tmp_path / "logs")
    with Logs(tmp_path / "logs", 100) as logs:
        logs.wait()
    with job_of.run(source=shown(), reading={"trigger": {"availableNow": True}}, recovery="rollback") as job:
        job.await_finish(PATIENCE_S)
    job_of.check(100)
    assert len(job_of.planned()) <= 3  # the batch, the end, and before the batch is removed the first offset


@pytest.mark.long
def test_commit_follows_the_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets are committed in ascending order, and batches that were passed are removed."""
    noted = tmp_path / "committed"

    class Noting(shown(400)):  # type: ignore[misc]
        def streamReader(self, schema: Any) -> Any:
            reader = super().streamReader(schema)

            def commit(end: dict[str, int]) -> None:
                with noted.open("a") as file:
                    file.write(json.dumps(end) + "\n")

            reader.commit = commit
            reader.stop = lambda: noted.with_name("stopped").touch()
            return reader

    job_of = Job(spark, tmp_path, tmp_path / "logs")
    with Logs(tmp_path / "logs", 1_500) as logs, job_of.run(source=Noting) as job:
        logs.wait()
        wait_until(lambda: job.done or rows_read(job) >= logs.rows, "all rows")
        wait_until(lambda: job.done or len(job_of.planned()) == 1, "the removal of all batches but the last")
        drain(job, logs)
    job_of.check(1_500)
    offsets = [json.loads(line) for line in noted.read_text().splitlines()]
    ends = [sum(offset.values()) for offset in offsets]
    assert len(ends) > 1 and ends == sorted(set(ends))
    assert ends[-1] == sum(path.stat().st_size for path in (tmp_path / "logs").iterdir())
    assert noted.with_name("stopped").exists()


@pytest.mark.long
def test_an_error_of_the_planner_ends_the_job_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    message = r"source 'files': latestOffset of GrowingFiles raised FileNotFoundError"
    with Job(spark, tmp_path, tmp_path / "missing").run(recovery="rollback") as job, pytest.raises(JobFailed) as caught:
        job.await_finish(PATIENCE_S)
    assert re.search(message, str(caught.value)) and type(caught.value.__cause__).__name__ == "InputError"


PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from flinkplus import spark_settings
from tests.integration.conftest import ON_A_BUSY_MACHINE
from tests.integration.test_stream_readers import Job, PATIENCE_S, rows_read

ROWS = {rows}
settings = {{**spark_settings(), **ON_A_BUSY_MACHINE, "spark.ui.enabled": "false"}}
settings |= {{"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}}
spark = SparkSession.builder.config(map=settings).master("local[3]").getOrCreate()
job_of = Job(spark, Path({directory!r}), Path({logs!r}))
with job_of.run("auto", parallelism=int(sys.argv[1]), recovery="rollback") as job:
    begun = rows_read(job)
    while not job.done and rows_read(job) < ROWS:
        time.sleep(0.02)
        if rows_read(job) > begun + 400 and job.metrics()["checkpoints_completed"] > 0:
            print("400 rows", flush=True)
    job.drain()
    job.await_finish(PATIENCE_S)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_driver_is_killed_again_and_again(tmp_path: Path) -> None:
    """Twice, with another parallelism each time; Spark's Java process dies with it."""
    with Logs(tmp_path / "logs", 2_000) as logs:
        text = PROGRAM.format(rows=logs.rows, directory=str(tmp_path), logs=str(logs.path))
        for parallelism, killed in ((2, True), (3, True), (2, False)):
            command = [sys.executable, script(tmp_path, text), str(parallelism)]
            with program(command, tmp_path) as run:
                if killed:
                    run.wait_for(lambda run=run: "400 rows" in run.out, "rows")  # type: ignore[misc]
                    os.kill(run.process.pid, signal.SIGKILL)
                    run.wait()
                else:
                    assert run.wait() == 0, run.err
    Job(None, tmp_path, logs.path).check(2_000)  # type: ignore[arg-type]
