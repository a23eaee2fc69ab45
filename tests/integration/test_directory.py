"""Directories that grow while slots and drivers die: every row once, in the order of its file.

The operator behind the source gives, for each row, the number before it in the same file with the same word, and how
many rows with this word there were so far. The first is what a batch gives, too; the second shows whether two
incarnations of the source read in different orders.
"""

from __future__ import annotations

import gzip
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import JobFailed, JobHandle, StreamEnvironment
from tests.integration.conftest import PATIENCE_S, running_job, wait_for_checkpoint, wait_until
from tests.integration.ordered import with_the_one_before
from tests.s3_server import s3_server

pytestmark = pytest.mark.integration

WORDS = 7
ROW = "word string, file long, number long"
SCHEMA = f"{ROW}, before long, so_far long"
Rows = list[tuple[str, int, int]]


def as_json(rows: Rows) -> bytes:
    lines = [json.dumps({"word": word, "file": file, "number": number}) for word, file, number in rows]
    return "".join(f"{line}\n" for line in lines).encode()


def as_csv_gz(rows: Rows) -> bytes:
    lines = [f"{number},{word},{file}\n" for word, file, number in rows]
    return gzip.compress("".join(["number,word,file\n", *lines]).encode())


def as_parquet(rows: Rows) -> bytes:
    columns = [list(column) for column in zip(*rows, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, names=["word", "file", "number"]), sink, row_group_size=20)
    return bytes(sink.getvalue())


class Arrivals:
    """A thread that puts files into a directory, in bursts with pauses.

    A context manager; its end waits for the last file. ``write``: makes a file appear, given its name and content.
    """

    def __init__(
        self, write: Callable[[str, bytes], None], files: int, form: Callable[[Rows], bytes] = as_json
    ) -> None:
        self._rng = random.Random(files)
        self.rows = [
            [(f"w{self._rng.randrange(WORDS)}", file, number) for number in range(self._rng.choice((1, 9, 60)))]
            for file in range(files)
        ]
        self._write, self._form = write, form
        self._thread = threading.Thread(target=self._arrive)
        self._stop = threading.Event()

    def _arrive(self) -> None:
        for file, rows in enumerate(self.rows):
            self._write(f"{file}.rows{'.gz' if self._form is as_csv_gz else ''}", self._form(rows))
            self._stop.wait(self._rng.choice((0.0, 0.02, 0.1)))

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Until all files are there."""
        self._thread.join()

    @property
    def size(self) -> int:
        return sum(map(len, self.rows))

    def expected(self) -> Counter[tuple[str, int, int, int]]:
        return with_the_one_before(self.rows)


def in_order(word: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int, int, int]]:
    seen = ctx.state("seen")
    last, so_far = seen.get(({}, 0))
    yield word, row.file, row.number, last.get(row.file, -1), so_far + 1
    seen.put(({**last, row.file: row.number}, so_far + 1))


class Job:
    """files | key_by(word) | in_order | Parquet. ``reading``: options of ``read_files``."""

    def __init__(self, spark: SparkSession, work: Path, **reading: Any) -> None:
        self.spark, self.path = spark, work
        self.input = work / "in"
        self.input.mkdir()
        known = {"path": str(self.input), "format": "json", "schema": ROW, "poll": "50 ms"}
        self.reading: dict[str, Any] = {**known, **reading}

    def write(self, name: str, content: bytes) -> None:
        hidden = self.input / f".{name}"
        hidden.write_bytes(content)
        hidden.rename(self.input / name)

    def run(self, resume: Any = False, rate: float | None = None, **options: Any) -> JobHandle:
        given = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": str(self.path / "checkpoints")}
        env = StreamEnvironment(self.spark, **{**given, **options})
        rows = env.read_files(name="files", **self.reading)
        if rate is not None:
            rows.throttle(rate)
        counted = rows.key_by("word").process(in_order, schema=SCHEMA, name="in_order")
        counted.to_parquet(str(self.path / "out"), name="out")
        return env.execute("directory", resume=resume)

    def seen(self, job: JobHandle) -> int:
        return int(job.metrics()["operators"].get("in_order", {}).get("rows_out", 0))

    def wait_for_rows(self, job: JobHandle, count: int) -> None:
        wait_until(lambda: job.done or self.seen(job) >= count, f"{count} rows")

    def drain(self, job: JobHandle, arrivals: Arrivals) -> None:
        """All is read, and the job ends."""
        arrivals.wait()
        self.wait_for_rows(job, arrivals.size)
        job.drain()
        job.await_finish(PATIENCE_S)

    def check(self, arrivals: Arrivals) -> None:
        rows = pq.read_table(self.path / "out").to_pylist()
        found = Counter((row["word"], row["file"], row["number"], row["before"]) for row in rows)
        assert found == arrivals.expected()
        for word in {row["word"] for row in rows}:
            of_word = sorted((row["so_far"], row["file"], row["number"]) for row in rows if row["word"] == word)
            assert [so_far for so_far, _, _ in of_word] == list(range(1, len(of_word) + 1))
            for file in {file for _, file, _ in of_word}:
                numbers = [number for _, of, number in of_word if of == file]
                assert numbers == sorted(numbers)


def wait_for_recoveries(job: JobHandle, count: int) -> None:
    wait_until(lambda: job.done or len(job.recoveries()) >= count, f"{count} recoveries")
    wait_until(lambda: job.done or job.missing_standbys() == 0, "standbys")
    coordinator = running_job(job).coordinator
    parallelism = coordinator.parts.deployment.parallelism

    def at_home() -> bool:
        heads = coordinator.view.assignment
        return len(heads) > 0 and all(head == subtask.index for subtask, head in heads.items())

    wait_until(lambda: job.done or (len(job.slot_pids()) >= parallelism and at_home()), "slots")


def test_slots_and_a_driver_die_while_files_appear(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path)
    with Arrivals(job_of.write, 60) as arrivals:
        with job_of.run() as job:
            wait_for_checkpoint(job, 1)
            assert job.kill("files:0")
            wait_for_recoveries(job, 1)
            assert [recovery["mode"] for recovery in job.recoveries()] == ["standby"]
            assert job.metrics()["fallbacks"] == 0
        with job_of.run(resume=True, parallelism=1, recovery="rollback") as job:
            assert job.restored_from is not None
            wait_for_checkpoint(job, 1)
            assert job.kill("files:0")
            wait_until(lambda: len(job.recoveries()) >= 1, "a recovery")
            job_of.drain(job, arrivals)
            source = job.metrics()["operators"]["files"]
            assert source["rows"] == source["rows_out"] == arrivals.size
    job_of.check(arrivals)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "form", "reading"),
    [
        ({"recovery": "rollback"}, as_csv_gz, {"format": "csv"}),
        ({"recovery": "partial"}, as_parquet, {"format": "parquet"}),
        ({"checkpoint_mode": "unaligned"}, as_json, {}),
        ({"parallelism": 3, "replicas": 2}, as_json, {"after": "delete"}),
    ],
    ids=["rollback csv.gz", "partial parquet", "unaligned json", "standbys delete"],
)
def test_every_kind_of_recovery(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], form: Callable[[Rows], bytes], reading: dict[str, Any]
) -> None:
    job_of = Job(spark, tmp_path, **reading)
    with Arrivals(job_of.write, 120, form) as arrivals, job_of.run(**options) as job:
        for count, victim in enumerate(("files:0", "in_order:1", "files:1"), 1):
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            assert job.kill(victim)
            wait_for_recoveries(job, count)
        arrivals.wait()
        job_of.wait_for_rows(job, arrivals.size)
        if reading.get("after") == "delete":
            wait_until(lambda: not list(job_of.input.iterdir()), "the end of all files")
        job_of.drain(job, arrivals)
    job_of.check(arrivals)


@pytest.mark.long
def test_the_parallelism_changes_while_files_appear(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path)
    with Arrivals(job_of.write, 150) as arrivals, job_of.run(rate=2_000.0) as job:
        wait_for_checkpoint(job, 1)
        job.rescale(3).await_done(PATIENCE_S)
        wait_until(lambda: job.missing_standbys() == 0, "standbys")
        assert job.kill("files:2")
        wait_for_recoveries(job, 1)
        job.rescale(1).await_done(PATIENCE_S)
        arrivals.wait()
        job.rescale(2).await_done(PATIENCE_S)
        job_of.drain(job, arrivals)
        assert job.metrics()["fallbacks"] == 0
    job_of.check(arrivals)


@pytest.mark.long
def test_a_directory_that_is_not_watched_ends(spark: SparkSession, tmp_path: Path) -> None:
    """Those files that were there when the job began; a resumed job reads the same ones."""
    job_of = Job(spark, tmp_path, watch=False)
    with Arrivals(job_of.write, 40) as arrivals:
        arrivals.wait()
    with job_of.run(rate=500.0) as job:
        wait_for_checkpoint(job, 1)
        job_of.write("late", as_json([("late", 99, 0)]))
    with job_of.run(resume=True, parallelism=3) as job:
        job.await_finish(PATIENCE_S)
    job_of.check(arrivals)


@pytest.mark.long
def test_a_bucket_that_grows(spark: SparkSession, tmp_path: Path) -> None:
    with s3_server() as bucket:
        job_of = Job(spark, tmp_path, path=bucket.uri("in"), after="archive", archive_dir=bucket.uri("done"))
        bucket.objects["in/"] = b""

        def write(name: str, content: bytes) -> None:
            bucket.objects[f"in/{name}"] = content

        with Arrivals(write, 40) as arrivals, job_of.run() as job:
            wait_for_checkpoint(job, 1)
            assert job.kill("files:0")
            wait_for_recoveries(job, 1)
            arrivals.wait()
            job_of.wait_for_rows(job, arrivals.size)
            wait_until(lambda: not bucket.below("in"), "the end of all files")  # copied, and then deleted
            assert len(bucket.below("done")) == 40
            job_of.drain(job, arrivals)
    job_of.check(arrivals)


@pytest.mark.long
def test_a_broken_row_ends_the_job_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    job_of = Job(spark, tmp_path)
    with job_of.run(recovery="rollback", max_restarts=0) as job:
        job_of.write("good", as_json([("a", 0, 0)]))
        job_of.write("bad", as_json([("a", 1, 0)]) + b'{"word": 7}\n')
        with pytest.raises(JobFailed, match=r"in/bad', row 2: .*changed from string to number"):
            job.await_finish(PATIENCE_S)
