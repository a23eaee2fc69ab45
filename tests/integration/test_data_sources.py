"""The Python data source of docs/sources.md as it stands there, read by slots that die; partitions; sockets.

Each line says a word and its number. The operator behind the source adds how many lines with the word there were so far
and the number before it, so that both a lost and a doubled row show, and rows in another order.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from flinkplus import JobFailed, JobHandle, StreamEnvironment
from tests.documents import ROOT, blocks_of
from tests.integration.conftest import PATIENCE_S, running_job, wait_for_checkpoint, wait_for_standbys, wait_until

pytestmark = pytest.mark.integration

WORDS = 7
SCHEMA = "word string, number long, before long, so_far long"


def shown(batch_bytes: int) -> Any:
    """The data source in docs/sources.md. ``batch_bytes``: that it reads at once."""
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    block = next(block for block in blocks_of("docs/sources.md", page) if "class Appended(" in block.text)
    text = block.text[: block.text.index("spark = ")]
    assert "1 << 20" in text
    text = text.replace("1 << 20", str(batch_bytes))
    around: dict[str, Any] = {"__name__": "__main__"}  # so that its classes travel by value, as those of a program do
    exec(compile(text, str(block), "exec"), around)
    return around["Appended"]


def word_of(number: int) -> str:
    return f"w{number * number % 11 % WORDS}"


class Log:
    """A file to which a thread appends lines, in bursts; now and then half a line at first."""

    def __init__(self, path: Path, lines: int) -> None:
        self.path, self.lines = path, lines
        path.touch()
        self._thread = threading.Thread(target=self._append)

    def _append(self) -> None:
        rng, left = random.Random(3), [f"{word_of(n)} {n}\n" for n in range(self.lines)]
        while left:
            count = rng.choice((1, 5, 40))
            text, left = "".join(left[:count]), left[count:]
            cut = rng.randrange(len(text) + 1)
            for part in (text[:cut], text[cut:]):
                with self.path.open("a") as file:
                    file.write(part)
            time.sleep(rng.choice((0.0, 0.02, 0.05)))

    def __enter__(self) -> Log:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def parsed(row: Any) -> tuple[str, int]:
    word, number = row[0].split(" ")
    return word, int(number)


def in_order(word: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int, int]]:
    seen = ctx.state("seen")
    before, so_far = seen.get((-1, 0))
    yield word, row.number, before, so_far + 1
    seen.put((row.number, so_far + 1))


class Job:
    """source | key_by(word) | in_order | Parquet."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.out, self.checkpoints = spark, directory / "out", directory / "checkpoints"

    def environment(self, **options: Any) -> StreamEnvironment:
        given = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": self.checkpoints}
        return StreamEnvironment(self.spark, **{**given, **options})

    def execute(self, env: StreamEnvironment, lines: Any, resume: Any = False) -> JobHandle:
        rows = lines.map(parsed, schema="word string, number long", name="parsed")
        rows.key_by("word").process(in_order, schema=SCHEMA, name="in_order").to_parquet(self.out)
        return env.execute("data source", resume=resume)

    def follow(self, path: Path, resume: Any = False, batch_bytes: int = 64, **options: Any) -> JobHandle:
        """The file at ``path``, in small batches: most kills happen within one, or while its end is logged."""
        env = self.environment(**options)
        lines = env.from_data_source(shown(batch_bytes), options={"path": str(path)}, poll="10 ms", name="file")
        return self.execute(env, lines, resume)

    def rows(self) -> list[dict[str, Any]]:
        """What is visible."""
        return pq.read_table(self.out).to_pylist() if list(self.out.rglob("*.parquet")) else []

    def check(self, lines: int) -> None:
        """All lines are there, each once, and those of a word in their order."""
        assert Counter(row["number"] for row in self.rows()) == Counter(range(lines))
        self.check_order(self.rows())

    @staticmethod
    def check_order(rows: list[dict[str, Any]]) -> None:
        """What was counted for each word is one sequence, in the order of the source."""
        for word in {row["word"] for row in rows}:
            found = sorted((row["so_far"], row["number"], row["before"]) for row in rows if row["word"] == word)
            numbers = [number for _, number, _ in found]
            assert [so_far for so_far, _, _ in found] == list(range(1, len(found) + 1))
            assert [before for _, _, before in found] == [-1, *numbers[:-1]]
            assert numbers == sorted(numbers)

    @staticmethod
    def drain(job: JobHandle, lines: int, source: str = "file") -> None:
        def read() -> int:
            found = job.metrics()["operators"].get(source, {})
            return int(found.get("rows", 0))

        wait_until(lambda: job.done or read() >= lines, f"{lines} rows read")
        job.drain()
        job.await_finish(PATIENCE_S)


def wait_for_recoveries(job: JobHandle, count: int, slots: int = 2) -> None:
    """So many recoveries have ended, and all slots and standbys are there again."""
    coordinator = running_job(job).coordinator

    def is_whole() -> bool:
        if job.state != "running" or len(job.recoveries()) < count or len(job.slot_pids()) != slots:
            return False
        protocol = coordinator.parts.machines.failover
        if not coordinator.options.local:
            return True
        return protocol is not None and not protocol.active and protocol.missing == 0 and job.missing_standbys() == 0

    wait_until(lambda: job.done or is_whole(), f"{count} recoveries, and full strength")


def kill_in_turn(job: JobHandle, victims: tuple[str, ...], slots: int = 2) -> None:
    for count, victim in enumerate(victims, 1):
        wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
        wait_for_standbys(job)
        assert job.kill(victim)
        wait_for_recoveries(job, count, slots)


def test_the_slot_that_reads_a_data_source_dies(spark: SparkSession, tmp_path: Path) -> None:
    job, lines = Job(spark, tmp_path), 1_000
    with Log(tmp_path / "log", lines) as log, job.follow(log.path, batch_bytes=1 << 20) as handle:
        wait_for_checkpoint(handle, 1)
        wait_for_standbys(handle)
        assert handle.kill("file:0")
        wait_until(lambda: handle.done or bool(handle.recoveries()), "the recovery")
        job.drain(handle, lines)
        assert {recovery["mode"] for recovery in handle.recoveries()} == {"standby"}, handle.recoveries()
        assert handle.metrics()["fallbacks"] == 0
    job.check(lines)


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
    job, lines = Job(spark, tmp_path), 6_000
    with Log(tmp_path / "log", lines) as log, job.follow(log.path, **options) as handle:
        kill_in_turn(handle, ("file:0", "in_order:1", "file:0"), options.get("parallelism", 2))
        job.drain(handle, lines)
        assert {recovery["mode"] for recovery in handle.recoveries()} == {mode}
    job.check(lines)


@pytest.mark.long
def test_a_driver_that_is_gone_and_another_parallelism(spark: SparkSession, tmp_path: Path) -> None:
    job, lines = Job(spark, tmp_path), 6_000
    with Log(tmp_path / "log", lines) as log:
        with job.follow(log.path) as handle:
            wait_for_checkpoint(handle, 2)
        with job.follow(log.path, resume=True, parallelism=3) as handle:
            assert handle.restored_from is not None
            wait_for_checkpoint(handle, 2)
            handle.rescale(2).await_done(PATIENCE_S)
        with StreamEnvironment.resume(spark, job.checkpoints, parallelism=1) as handle:
            wait_for_checkpoint(handle, 1)
        with job.follow(log.path, resume=True) as handle:
            job.drain(handle, lines)
    job.check(lines)


@pytest.mark.long
def test_a_data_source_that_fails_ends_the_job_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    with Job(spark, tmp_path).follow(tmp_path / "missing", recovery="rollback", max_restarts=1) as handle:
        wait_until(lambda: handle.done, "the end")
        with pytest.raises(JobFailed, match=r"source 'file': read of Appended raised FileNotFoundError: .*missing"):
            handle.await_finish(PATIENCE_S)


class Ranges(DataSource):
    """Numbered lines, in ``partitions`` parts."""

    def schema(self) -> str:
        return "line string"

    def reader(self, schema: Any) -> DataSourceReader:
        return RangesReader(int(self.options["lines"]), int(self.options["partitions"]))


class RangesReader(DataSourceReader):
    def __init__(self, lines: int, parts: int) -> None:
        self.lines, self.parts = lines, parts

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        for number in range(
            partition.value * self.lines // self.parts, (partition.value + 1) * self.lines // self.parts
        ):
            yield (f"w{partition.value} {number}",)


@pytest.mark.long
def test_partitions_are_read_once_through_a_kill_and_at_another_parallelism(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, lines = Job(spark, tmp_path), 40_000

    def run(resume: Any, rate: float | None, **options: Any) -> JobHandle:
        env = job.environment(**options)
        given = {"Lines": str(lines), "partitions": "7"}
        rows = env.from_data_source(Ranges, options=given, batch=True, name="ranges")
        return job.execute(env, rows if rate is None else rows.throttle(rate), resume)

    with run(False, 4_000.0) as handle:
        kill_in_turn(handle, ("ranges:0", "ranges:1"))
    with run(True, None, parallelism=3) as handle:
        assert handle.restored_from is not None
        handle.await_finish(PATIENCE_S)
    job.check(lines)


class LineServer:
    """Sends numbered lines to its clients, without an end; one at a time."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            with client:
                try:
                    while not self._stop.wait(0.002):
                        client.sendall(f"{word_of(self.sent)} {self.sent}\r\n".encode())
                        self.sent += 1
                except OSError:  # the client is gone
                    continue

    def __enter__(self) -> LineServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._listener.close()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["standby", "rollback"])
def test_lines_of_a_socket_may_be_lost_and_are_not_doubled(spark: SparkSession, tmp_path: Path, recovery: str) -> None:
    job = Job(spark, tmp_path)
    with LineServer() as server:
        env = job.environment(recovery=recovery, checkpoint_interval=1.5)
        with job.execute(env, env.from_socket("127.0.0.1", server.port, name="socket")) as handle:
            if recovery == "standby":
                wait_for_checkpoint(handle, 1)
                assert handle.kill("in_order:1")
                wait_for_recoveries(handle, 1)
            wait_for_checkpoint(handle, handle.metrics()["checkpoints_completed"] + 1)
            so_far = server.sent
            wait_until(lambda: server.sent > so_far + 200, "lines that no checkpoint covers")
            assert handle.kill("socket:0")
            wait_for_recoveries(handle, 1 + (recovery == "standby"))
            wait_until(lambda: handle.done or server.sent > so_far + 500, "more lines")
            server.stop()  # which ends the stream
            handle.await_finish(PATIENCE_S)
            assert handle.metrics()["fallbacks"] == (recovery == "standby")
    rows = job.rows()
    numbers = Counter(row["number"] for row in rows)
    assert max(numbers.values()) == 1 and max(numbers) == server.sent - 1
    assert len(numbers) < server.sent
    job.check_order(rows)
