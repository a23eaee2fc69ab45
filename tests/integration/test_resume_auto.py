"""``resume="auto"``: one command that begins a job, continues it after any death of its driver, and leaves a finished
one alone.

A driver that dies by SIGKILL leaves its directories as they are at that moment. So a copy of them, taken while the job
runs and put in their place after its end, is what the next driver finds.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flinkplus import (
    CheckpointDirectoryError,
    ConfigurationError,
    JobHandle,
    JobRunsElsewhere,
    OutputDirectoryError,
    StreamEnvironment,
)
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job import staging, start
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts, wait_for_checkpoint, wait_until

pytestmark = pytest.mark.integration

CHECKPOINTS, OUT = "checkpoints", "out"


class Supervised:
    """What a supervisor runs again and again, and the directories that its runs share."""

    def __init__(self, spark: SparkSession, corpus: Path, directory: Path) -> None:
        self.spark, self.corpus, self.directory = spark, corpus, directory
        self.interval: float | None = 0.1

    def run(self, name: str = "supervised", rate: float = 1_000_000.0, from_spark: bool = False) -> JobHandle:
        env = StreamEnvironment(
            self.spark,
            parallelism=2,
            checkpoint_interval=self.interval,
            checkpoint_dir=self.directory / CHECKPOINTS,
        )
        if from_spark:
            lines = env.from_spark(self.spark.read.text(str(self.corpus)), name="lines")
        else:
            lines = env.read_text(self.corpus, name="lines")
        words = lines.tokenize(name="tokenize").throttle(rate)
        words.key_by("word").count(name="count").to_parquet(str(self.directory / OUT), name="out")
        return env.execute(name, resume="auto")

    def runs_to_its_end(self, from_spark: bool = False) -> JobHandle:
        with self.run(from_spark=from_spark) as job:
            job.await_finish(PATIENCE_S)
        assert_exact(self.directory / OUT, expected_counts(self.corpus))
        return job

    def image(self) -> Path:
        """A copy of all directories as they are just now."""
        copy = self.directory.with_name(f"{self.directory.name}-image")
        while True:
            shutil.rmtree(copy, ignore_errors=True)
            try:
                return Path(shutil.copytree(self.directory, copy))
            except shutil.Error:  # a file was renamed between being listed and being copied
                continue

    def put_back(self, image: Path) -> None:
        shutil.rmtree(self.directory)
        image.rename(self.directory)


@pytest.fixture
def supervised(spark: SparkSession, corpus: Path, tmp_path: Path) -> Supervised:
    directory = tmp_path / "job"
    directory.mkdir()
    return Supervised(spark, corpus, directory)


def files(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_mtime_ns for path in directory.rglob("*.parquet")}


def test_it_begins_then_continues_then_leaves_the_finished_job_alone(supervised: Supervised) -> None:
    with supervised.run(rate=20_000.0) as first:
        assert first.restored_from is None
        wait_for_checkpoint(first, 2)
        with pytest.raises(JobRunsElsewhere, match=r"is run by process \d+ on .*; end that driver first"):
            supervised.run()
    second = supervised.runs_to_its_end()
    assert second.restored_from is not None and second.job_id == first.job_id
    written = files(supervised.directory / OUT)
    third = supervised.runs_to_its_end()
    assert (third.state, third.done, third.job_id) == ("finished", True, first.job_id)
    assert files(supervised.directory / OUT) == written, "nothing is written again"
    third.cancel()
    assert third.wait(0) and third.state == "finished"
    before, after = second.metrics(), third.metrics()
    assert set(before) == set(after)
    same = ("state", "committed_rows", "operators", "state_keys", "last_checkpoint")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert third.recoveries() == [] and third.restored_from == after["last_checkpoint"]
    with pytest.raises(CheckpointDirectoryError, match=r"belongs to another job .name 'supervised', this job has 'x'"):
        supervised.run("x")


@pytest.mark.long
def test_the_first_run_died_before_its_first_checkpoint(supervised: Supervised) -> None:
    supervised.interval = 3600.0
    with supervised.run(rate=20_000.0, from_spark=True) as first:
        wait_until(lambda: first.state == "running" and first.rows_out("count") != {}, "some rows")
        image = supervised.image()
    supervised.put_back(image)
    assert list((supervised.directory / OUT / "_staging").iterdir()), "output is left behind, staged"
    again = supervised.runs_to_its_end(from_spark=True)
    assert again.restored_from is None and again.job_id == first.job_id


class Died(BaseException):
    """What stands for SIGKILL, at a place in the driver that no signal can be aimed at."""


PLACES: dict[str, tuple[object, str, bool]] = {
    "while Spark stages the input": (staging, "stage", False),
    "before the output is prepared": (Commits, "prepare", True),
    "before the slots are started": (start, "RunningJob", True),
}


@pytest.mark.long  # ``test_the_first_run_died_before_its_first_checkpoint`` is the one that users meet
@pytest.mark.parametrize("place", PLACES)
def test_the_first_run_died_while_it_began(supervised: Supervised, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    where, name, begun = PLACES[place]
    images: list[Path] = []

    def die(*_arguments: object, **_more: object) -> None:
        images.append(supervised.image())
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(where, name, die)
        with pytest.raises(Died):
            supervised.run(from_spark=True)
    supervised.put_back(images[0])
    assert CheckpointStorage(supervised.directory / CHECKPOINTS).ownership.has_begun() is begun
    assert supervised.runs_to_its_end(from_spark=True).restored_from is None


def test_a_run_that_was_refused_leaves_the_directory_free(supervised: Supervised) -> None:
    (supervised.directory / OUT).mkdir()
    (supervised.directory / OUT / "part-of-something-else.parquet").write_text("")
    with pytest.raises(OutputDirectoryError, match="is not empty"):
        supervised.run()
    assert not CheckpointStorage(supervised.directory / CHECKPOINTS).ownership.has_begun()
    shutil.rmtree(supervised.directory / OUT)
    supervised.runs_to_its_end()


def test_output_that_is_gone_is_not_begun_again(supervised: Supervised) -> None:
    with supervised.run(rate=20_000.0) as job:
        wait_for_checkpoint(job, 2)
    shutil.rmtree(supervised.directory / OUT)
    with pytest.raises(OutputDirectoryError, match="does not hold the output of the job to be resumed"):
        supervised.run()


def test_what_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, parallelism=2)
    env.generate(lambda i: (i,), schema="n long", count=1).discard()
    with pytest.raises(ConfigurationError, match="resume='auto' needs checkpoint_dir"):
        env.execute("nowhere", resume="auto")
    with pytest.raises(ConfigurationError, match="resume must be True, False or 'auto', not 'always'"):
        env.execute("nowhere", resume="always")  # type: ignore[call-overload]
    (tmp_path / "notes.txt").write_text("")
    env = StreamEnvironment(spark, parallelism=2, checkpoint_dir=tmp_path)
    env.generate(lambda i: (i,), schema="n long", count=1).discard()
    with pytest.raises(CheckpointDirectoryError, match=r"holds other data \('notes.txt'\)"):
        env.execute("somewhere", resume="auto")
