"""Savepoints of running jobs, and new jobs that start from them: nothing is lost or doubled, and faults are refused."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import flinkplus
from flinkplus import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptCheckpoint,
    JobFailed,
    JobHandle,
    OutputDirectoryError,
    SavepointError,
    SavepointRefused,
    StreamEnvironment,
)
from flinkplus.corpus import write_corpus
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job import start
from flinkplus.state.durable.runs import CLAIMS
from flinkplus.state.file_system import LocalDirectory
from tests.integration.conftest import (
    PATIENCE_S,
    assert_exact,
    expected_counts,
    wait_for_checkpoint,
    wait_until,
)
from tests.s3_server import Bucket, s3_server
from tests.typed import Command

pytestmark = pytest.mark.integration

RARE, SLOW, FAST = 100.0, 1_500.0, 1e7
ROWS, KEYS = 1_500, 17


class Words:
    """The word count of these tests: each run draws it anew."""

    def __init__(self, spark: SparkSession, place: Path, corpus: Path) -> None:
        self.spark, self.place, self.corpus = spark, place, corpus

    def start(
        self,
        state: str,
        out: str,
        rate: float = SLOW,
        execute: dict[str, Any] | None = None,
        extra: bool = False,
        **options: Any,
    ) -> JobHandle:
        settings = {"parallelism": 2, "checkpoint_interval": 0.1, "recovery": "rollback", **options}
        env = StreamEnvironment(self.spark, checkpoint_dir=self.place / state, **settings)
        words = env.read_text(self.corpus, name="lines").tokenize(name="words").throttle(rate)
        words.key_by("word").count(name="count").to_parquet(str(self.place / out), name="out")
        if extra:
            words.deduplicate("word", name="once").discard(name="firsts")
        return env.execute("words", **(execute or {}))

    def finish(self, state: str, out: str, start_from: Path, **options: Any) -> None:
        with self.start(state, out, FAST, {"start_from": start_from}, **options) as job:
            job.await_finish(PATIENCE_S)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 words: seven seconds at the slow rate."""
    path = tmp_path_factory.mktemp("corpus") / "zipf.txt"
    write_corpus(str(path), words=10_000, vocabulary=1_000, seed=7)
    return path


@pytest.fixture
def words(spark: SparkSession, tmp_path: Path, corpus: Path) -> Words:
    return Words(spark, tmp_path, corpus)


@pytest.fixture
def s3() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


def dies(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def files_below(place: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with what a write to it changes."""
    found = {path: path.stat() for path in place.rglob("*") if path.is_file()}
    return {str(path.relative_to(place)): (s.st_mtime_ns, s.st_size, s.st_ino) for path, s in found.items()}


def pairs(*outputs: Path) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for output in outputs:
        table = pq.read_table(output)
        found.update(zip(table.column("word").to_pylist(), table.column("count").to_pylist(), strict=True))
    return found


def test_a_job_is_stopped_moved_and_continued_exactly_once(words: Words, tmp_path: Path, corpus: Path) -> None:
    """Into the same output, at other parallelisms, from a folder with another name; into another output as well."""
    with words.start("state", "out", checkpoint_mode="unaligned", aligned_timeout=0.0) as job:
        wait_for_checkpoint(job, 2)
        taken = job.stop_with_savepoint(tmp_path / "taken")
        assert taken.await_done(PATIENCE_S) == str(tmp_path / "taken")
        job.await_finish(PATIENCE_S)
        assert job.state == "stopped"
        metrics = job.metrics()
    rows = metrics["committed_rows"]["out"]
    visible = pairs(tmp_path / "out")
    assert 0 < sum(visible.values()) == rows < sum(expected_counts(corpus).values())
    assert metrics["last_savepoint"] == str(tmp_path / "taken") and metrics["savepoints_completed"] == 1
    (tmp_path / "taken").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "state")
    before = files_below(tmp_path / "moved")
    counted = flinkplus.read_state(tmp_path / "moved", "count").read_all().to_pylist()
    assert {one["key"]["word"]: one["value"]["count"] for one in counted} == dict(Counter(word for word, _ in visible))
    found = flinkplus.checkpoints(tmp_path / "moved", verify=True)
    assert (
        found.savepoint
        and found.intact
        and [(one.number, one.kind) for one in found] == [(taken.checkpoint, "savepoint")]
    )
    with pytest.raises(CheckpointDirectoryError, match="is a savepoint, which is never written to"):
        words.start("moved", "out", execute={"resume": True})
    words.finish("other-state", "other", tmp_path / "moved", parallelism=1)
    assert pairs(tmp_path / "out") == visible
    everything = Counter((word, n) for word, total in expected_counts(corpus).items() for n in range(1, total + 1))
    assert pairs(tmp_path / "out", tmp_path / "other") == everything
    with words.start("new", "out", execute={"start_from": tmp_path / "moved"}, parallelism=4) as job:
        job.await_running(PATIENCE_S)
        job.rescale(3).await_done(PATIENCE_S)
        job.stop_with_savepoint(tmp_path / "of three").await_done(PATIENCE_S)
        job.await_finish(PATIENCE_S)
    (later,) = flinkplus.checkpoints(tmp_path / "of three", verify=True)
    shutil.rmtree(tmp_path / "new")
    assert later.status == "readable" and later.parallelism == 3
    words.finish("last", "out", tmp_path / "of three")
    assert_exact(tmp_path / "out", expected_counts(corpus))
    assert files_below(tmp_path / "moved") == before
    with pytest.raises(OutputDirectoryError, match="neither the output of the job"):
        words.finish("third", "out", tmp_path / "moved")
    left = {path.relative_to(tmp_path / "third") for path in (tmp_path / "third").rglob("*") if path.is_file()}
    assert all(path.parts[0] == CLAIMS or path.name.startswith(".") for path in left), left


def test_a_savepoint_of_a_job_that_runs_on(
    words: Words, spark: SparkSession, tmp_path: Path, corpus: Path, command: Command
) -> None:
    """Unaligned, with standbys and a kill meanwhile; output behind the savepoint is not written twice."""
    options: dict[str, Any] = {
        "checkpoint_mode": "unaligned",
        "recovery": "standby",
        "checkpoint_interval": 0.2,
        "retained_checkpoints": 1,
    }
    with words.start("state", "out", rate=RARE, **options) as job:
        wait_for_checkpoint(job, 1)
        taken = job.savepoint(tmp_path / "one")
        assert job.kill("count:1")
        assert taken.await_done(PATIENCE_S)
        code, out, err = command("savepoint", tmp_path / "two", "--checkpoint-dir", tmp_path / "state")
        assert code == 0, err
        assert out.splitlines()[-1].startswith(f"savepoint {tmp_path / 'two'}: checkpoint ")
        code, _, err = command("savepoint", tmp_path / "two", "--checkpoint-dir", tmp_path / "state")
        assert code == 1 and "holds a savepoint" in err
        with pytest.raises(SavepointRefused, match="in the job's checkpoint directory"):
            job.savepoint(tmp_path / "state" / "inside")
        later = job.metrics()["last_checkpoint"] + 2
        wait_until(lambda: job.metrics()["last_checkpoint"] >= later or job.done, "later checkpoints")
        assert job.state == "running"
        code, out, err = command("savepoint", tmp_path / "last", "--stop", "--checkpoint-dir", tmp_path / "state")
        assert code == 0, err
        assert out.splitlines()[-1].endswith("; the job stops")
        assert job.wait(PATIENCE_S)
    (one,) = flinkplus.checkpoints(tmp_path / "one", verify=True)
    assert one.status == "readable" and one.in_flight_bytes == 0
    with pytest.raises(OutputDirectoryError, match="what comes after it would be there twice"):
        words.finish("new", "out", tmp_path / "one")
    with pytest.raises(ConfigurationError, match="never written to"):
        StreamEnvironment.resume(spark, tmp_path / "one")
    words.finish("new", "other", tmp_path / "one", checkpoint_mode="aligned")
    expected = expected_counts(corpus)
    found = pairs(tmp_path / "other")
    behind = Counter(word for word, _ in found.elements())
    assert found == Counter((word, expected[word] - n) for word, count in behind.items() for n in range(count))


@pytest.mark.long  # the tests of `savepoint` store one on S3, and those above begin jobs with them
def test_staged_input_and_collected_rows_on_s3(
    spark: SparkSession, tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataFrame belongs to the savepoint; as the job was drawn, by ``resume`` with a new checkpoint directory; or
    drawn again, by a driver that dies before its first checkpoint, and the next one."""
    place = s3.uri("savepoints/taken")

    def run(state: str, rate: float, **execute: Any) -> JobHandle:
        env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1, checkpoint_dir=tmp_path / state)
        frame = spark.range(ROWS).selectExpr("id", f"id % {KEYS} as k")
        numbers = env.from_spark(frame, name="numbers").throttle(rate)
        numbers.key_by("k").sum("id", name="sum").collect(name="sums")
        return env.execute("numbers", **execute)

    with run("state", 150.0) as job:
        wait_for_checkpoint(job, 1)
        assert job.stop_with_savepoint(place).await_done(PATIENCE_S) == place
        job.await_finish(PATIENCE_S)
        before = job.collected("sums").num_rows
    shutil.rmtree(tmp_path / "state")
    with StreamEnvironment.resume(spark, place, new_checkpoint_dir=tmp_path / "new", parallelism=1) as job:
        job.await_finish(PATIENCE_S)
        after = job.collected("sums")
        assert job.metrics()["committed_rows"]["sums"] == ROWS
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(start, "RunningJob", dies)
        run("drawn", FAST, start_from=place)
    with run("drawn", FAST, start_from=place, resume="auto") as job:
        job.await_finish(PATIENCE_S)
        again = job.collected("sums")
    for found in (after, again):
        assert before + found.num_rows == ROWS and before > 0
        totals: dict[int, int] = {}
        for k, total in zip(found.column("k").to_pylist(), found.column("sum").to_pylist(), strict=True):
            totals[k] = max(totals.get(k, 0), total)
        assert totals == {k: sum(range(k, ROWS, KEYS)) for k in range(KEYS)}
    del s3.objects[next(key for key in s3.objects if "/staged/" in key and key.endswith(".parquet"))]
    assert [one.status for one in flinkplus.checkpoints(place)] == ["damaged"]
    with pytest.raises(CorruptCheckpoint, match="cannot be read"):
        StreamEnvironment.resume(spark, place, new_checkpoint_dir=tmp_path / "again")


def test_another_program_starts_from_a_savepoint(
    words: Words, spark: SparkSession, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job with other names, another parallelism and one more operator; its driver dies half-way at first."""
    with words.start("state", "out", extra=True) as job:
        wait_for_checkpoint(job, 1)
        job.stop_with_savepoint(tmp_path / "taken").await_done(PATIENCE_S)
        job.await_finish(PATIENCE_S)
    shutil.rmtree(tmp_path / "state")
    before = files_below(tmp_path)
    changed: Any = {"start_from": tmp_path / "taken", "state_from": {"tally": "count"}, "drop_state": ["once"]}

    def run(**execute: Any) -> Any:
        env = StreamEnvironment(
            spark, parallelism=3, checkpoint_dir=tmp_path / "new", recovery="rollback", checkpoint_interval=0.1
        )
        lines = env.read_text(corpus, name="lines").tokenize(name="words").filter(lambda row: True, name="all")
        lines.key_by("word").count(name="tally").to_parquet(str(tmp_path / "out"), name="counted")
        return env.execute("renamed", **{**changed, **execute})

    wrong: dict[str, Any]
    for wrong in ({"state_from": {}}, {"drop_state": []}):
        assert not run(dry_run=True, **wrong).permitted
        with pytest.raises(ConfigurationError, match="its state would be lost"):
            run(**wrong)
    with pytest.raises(CheckpointDirectoryError, match="holds no job; check the path"):
        run(start_from=tmp_path / "out")
    found = run(dry_run=True)
    verdicts = {change.operator: change.verdict for change in found}
    assert found.permitted and found.directory == str(tmp_path / "taken")
    assert (verdicts["tally"], verdicts["once"], verdicts["counted"]) == ("renamed", "dropped", "renamed")
    assert files_below(tmp_path) == before

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Commits, "store", dies)
        run()
    with run(resume="auto") as job:
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus))


def test_storage_that_fails_half_way_leaves_the_job_running(
    words: Words, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that cannot be used, a disk that fills, two at once, the end of the job: each is said, nothing stays."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    (tmp_path / "file").touch()
    copying, go_on = threading.Event(), threading.Event()
    stored = LocalDirectory.store

    def full(self: LocalDirectory, chunks: Any, name: str) -> None:
        if "disk" in self.describe(name) and name.startswith("state/"):
            raise OSError(28, "No space left on device", name)
        copying.set()
        assert go_on.wait(PATIENCE_S)
        stored(self, chunks, name)

    monkeypatch.setattr(LocalDirectory, "take", lambda *_: False)
    monkeypatch.setattr(LocalDirectory, "store", full)
    with words.start("state", "out") as job:
        wait_for_checkpoint(job, 1)
        for place, why in (
            ("full", "is not empty"),
            ("file", "cannot be written"),
            ("file/below", "cannot be written"),
        ):
            with pytest.raises(SavepointRefused, match=why):
                job.savepoint(tmp_path / place)
        for take in (job.savepoint, job.stop_with_savepoint):
            with pytest.raises(SavepointError, match="No space left"):
                take(tmp_path / "disk").await_done(PATIENCE_S)
            wait_until(lambda: not list((tmp_path / "disk").iterdir()), "nothing is left")
        now = job.metrics()["checkpoints_completed"]
        held = job.savepoint(tmp_path / "held")
        assert copying.wait(PATIENCE_S) and job.metrics()["savepoint_under_way"]["status"] == "copying"
        with pytest.raises(SavepointRefused, match="is under way"):
            job.savepoint(tmp_path / "second")
        wait_until(lambda: job.metrics()["checkpoints_completed"] > now + 5, "checkpoints go on")
        with pytest.raises(CheckpointDirectoryError, match="was not completed"):
            flinkplus.checkpoints(tmp_path / "held")
        with pytest.raises(CheckpointDirectoryError, match="was not completed"):
            words.start("new", "other", execute={"start_from": tmp_path / "held"})
        go_on.set()
        held.await_done(PATIENCE_S)
        go_on.clear()
        copying.clear()
        cut = job.savepoint(tmp_path / "cut")
        assert copying.wait(PATIENCE_S)
        threading.Timer(0.5, go_on.set).start()
    with pytest.raises(SavepointError, match="the job has ended"):
        cut.await_done(PATIENCE_S)
    assert files_below(tmp_path / "cut") == {}
    assert flinkplus.checkpoints(tmp_path / "held", verify=True).intact


@pytest.mark.long
def test_only_one_job_goes_on_in_an_output_directory(words: Words, tmp_path: Path, corpus: Path) -> None:
    """Stopped with a savepoint, resumed from its checkpoints, and then overtaken by a job from the savepoint."""
    with words.start("state", "out") as job:
        wait_for_checkpoint(job, 1)
        job.stop_with_savepoint(tmp_path / "taken").await_done(PATIENCE_S)
        job.await_finish(PATIENCE_S)
    with words.start("state", "out", rate=1.0, execute={"resume": True}, checkpoint_interval=None) as old:
        old.await_running(PATIENCE_S)
        words.finish("new", "out", tmp_path / "taken")
        old.checkpoint_now()
        with pytest.raises(JobFailed, match="belongs to another job now"):
            old.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus))
    with pytest.raises(OutputDirectoryError, match="does not hold the output of the job"):
        words.start("state", "out", execute={"resume": True})
