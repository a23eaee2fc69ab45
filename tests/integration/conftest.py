"""A real SparkSession for all integration tests, and the check that matters: every pair (word, 1..n) exactly once."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.job import JobHandle
from flinkplus.cli import session
from flinkplus.corpus import write_corpus
from flinkplus.runtime.coordinator.dispatch import registry
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.slot.process.slot import Slot
from tests.typed import Command, typed_here

T = TypeVar("T")
registry.REHEARSED_WRITES = 10  # those of a user's job make its first failover quick; a test does not measure that
THREADS = 6
"""Two jobs of three slots beside each other."""
PATIENCE_S = 150.0
"""How long a test waits for what is to come: only one that fails waits so long, however busy the machine is."""

ON_A_BUSY_MACHINE: dict[str, Any] = {
    "spark.flinkplus.hangTimeout": "3",  # a healthy process may not run for longer than the default, 0.4 s
    "spark.flinkplus.slotTimeout": str(PATIENCE_S),  # its start may take longer than the default, 60 s
    "spark.flinkplus.deployTimeout": str(PATIENCE_S),
}
"""Settings of jobs that do not set them."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master(f"local[{THREADS}]")
        .appName("flinkplus-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.python.daemon.module", "flinkplus.runtime.daemon")
        .config("spark.log.level", "OFF")
        .config(map=ON_A_BUSY_MACHINE)
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Zipf text of 60,000 words."""
    path = tmp_path_factory.mktemp("corpus") / "zipf.txt"
    write_corpus(str(path), words=60_000, vocabulary=3_000, seed=7)
    return path


def expected_counts(path: Path, repeat: int = 1) -> Counter[str]:
    """How often each word occurs, by plain Python."""
    counts: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        counts.update(line.lower().split())
    return Counter({word: count * repeat for word, count in counts.items()})


def assert_exact(output: Path, expected: Counter[str]) -> None:
    """The Parquet files in ``output`` hold (word, 1) ... (word, n) for every word, each once, and nothing else."""
    table = pq.read_table(output)
    assert table.schema.names == ["word", "count"]
    pairs = list(zip(table.column("word").to_pylist(), table.column("count").to_pylist(), strict=True))
    assert len(pairs) == sum(expected.values())
    assert Counter(pairs) == Counter((word, n) for word, total in expected.items() for n in range(1, total + 1))


def assert_each_count_once(table: pa.Table) -> None:
    """For an input of unknown length: each word has the counts 1 to n, each of them once."""
    counts: dict[str, list[int]] = {}
    for name, count in zip(table.column("word").to_pylist(), table.column("count").to_pylist(), strict=True):
        counts.setdefault(name, []).append(count)
    for name, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"counts of {name}"


def in_pairs(items: Sequence[T]) -> list[tuple[T, ...]]:
    """For jobs that run beside each other: each of them waits most of the time."""
    return [tuple(items[at : at + 2]) for at in range(0, len(items), 2)]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fail naming it."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)


def wait_for_checkpoint(job: JobHandle, count: int = 1) -> None:
    """Wait until ``count`` checkpoints are complete."""
    wait_until(lambda: job.metrics()["checkpoints_completed"] >= count or job.done, f"{count} complete checkpoints")


def wait_for_standbys(job: JobHandle) -> None:
    """Wait until every standby could take over. Behind a complete checkpoint some may still be catching up."""
    wait_until(lambda: job.done or job.missing_standbys() == 0, "standbys")


def running_job(job: JobHandle) -> RunningJob:
    """What is behind the handle of a job that was started here."""
    assert isinstance(job._running, RunningJob)
    return job._running


def this_slot() -> Slot:
    """The slot whose loop has called, at whatever depth, the user function that asks."""
    frame = sys._getframe()
    while not isinstance(slot := frame.f_locals.get("self"), Slot):
        assert frame.f_back is not None
        frame = frame.f_back
    return slot


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs the command in this process, without Spark; returns exit code, stdout and stderr."""

    def no_spark(master: str) -> SparkSession:
        raise AssertionError(f"Spark was to be started on {master}")

    monkeypatch.setattr(session, "open_session", no_spark)
    with typed_here(capsys) as run:
        yield run
