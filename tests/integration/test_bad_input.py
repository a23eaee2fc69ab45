"""What goes wrong from outside: one test for each case. A clear error that names the thing, and nothing lost."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli import session
from flinkplus.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptCheckpoint,
    InputError,
    InsufficientSlots,
    JavaError,
    JobFailed,
    OutputDirectoryError,
    SlotStartError,
    UserFunctionError,
)
from flinkplus.runtime.job import launcher
from flinkplus.runtime.slot.process.config import SlotConfig
from tests.integration.conftest import PATIENCE_S, THREADS, assert_exact, expected_counts, wait_for_checkpoint
from tests.integration.failover_jobs import NO_CHECKPOINTS, Victim

pytestmark = pytest.mark.integration


@pytest.fixture
def env(spark: SparkSession) -> StreamEnvironment:
    return StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, max_restarts=0)


def run(env: StreamEnvironment, name: str = "job", timeout_s: float = PATIENCE_S) -> JobHandle:
    """Run a drawn job to its end."""
    with env.execute(name) as job:
        job.await_finish(timeout_s)
    return job


def failure(env: StreamEnvironment) -> JobFailed:
    """Run a drawn job that is to fail; returns its error."""
    with env.execute("to fail") as job, pytest.raises(JobFailed) as caught:
        job.await_finish(PATIENCE_S)
    assert job.state == "failed"
    return caught.value


# --- missing or unreadable input


def _missing(path: Path) -> str:
    return str(path / "missing.txt")


def _dangling(path: Path) -> str:
    (path / "link.txt").symlink_to(path / "nowhere.txt")
    return str(path / "link.txt")


def _pattern_without_match(path: Path) -> str:
    (path / "book.md").write_text("words")
    return str(path / "*.txt")


def _empty_directory(path: Path) -> str:
    return str(path)


def _only_hidden_files(path: Path) -> str:
    (path / "_SUCCESS").touch()
    return str(path)


def _pipe(path: Path) -> str:
    os.mkfifo(path / "pipe")
    return str(path / "pipe")


def _socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "socket"))
    return str(path / "socket")


def _compressed(path: Path) -> str:
    (path / "text.gz").write_bytes(b"\x1f\x8b")
    return str(path / "text.gz")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_missing, "no such file, and no file matches it"),
        (_dangling, "cannot read .*: No such file"),
        (_pattern_without_match, "no such file, and no file matches it"),
        (_empty_directory, "no files in the directory"),
        (_only_hidden_files, "no files in the directory"),
        (_pipe, "is not a regular file"),
        (_socket, "is not a regular file"),
        (_compressed, "is compressed"),
    ],
)
def test_missing_or_unreadable_input(
    env: StreamEnvironment, tmp_path: Path, make: Callable[[Path], str], reason: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(InputError, match=f"source 'lines': .*{reason}") as caught:
        env.read_text(path, name="lines")
    assert path in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_input_without_permission(env: StreamEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("words")
    path.chmod(0)
    with pytest.raises(InputError, match=r"cannot read .*secret.txt.*Permission denied"):
        env.read_text(str(path))


@pytest.mark.parametrize("change", ["removed", "longer"])
def test_input_that_changes_after_it_was_planned(env: StreamEnvironment, tmp_path: Path, change: str) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a few words\n")
    env.read_text(str(path)).discard()
    if change == "removed":
        path.unlink()
    else:
        path.write_text("a few words more\n")
    error = str(failure(env))
    assert "InputError" in error and str(path) in error
    assert ("No such file" if change == "removed" else "has changed: 12 bytes when") in error


def test_spark_cannot_read_what_it_is_to_stage(spark: SparkSession, env: StreamEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("words\n")
    frame = spark.read.text(str(path))
    path.unlink()
    env.from_spark(frame, name="lines").discard()
    with pytest.raises(InputError, match="source 'lines': Spark could not stage the DataFrame") as caught:
        env.execute("unstaged")
    assert "in.txt" in str(caught.value)
    assert "\n\tat " not in str(caught.value), "a Java stack trace in the message"


# --- empty input, bytes that are not UTF-8, long lines


def test_empty_files(spark: SparkSession, env: StreamEnvironment, tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    (books / "empty.txt").touch()
    (books / "full.txt").write_text("to be or not to be")
    (books / "newlines.txt").write_text("\n\n\r\n")
    env.read_text(str(books), name="lines").tokenize().key_by("word").count().to_parquet(str(tmp_path / "read"))
    empty = env.from_spark(spark.read.text(str(books / "empty.txt")), name="empty")
    empty.to_parquet(str(tmp_path / "staged"), name="staged")
    job = run(env)
    assert job.metrics()["operators"]["lines"]["rows_out"] == 4
    assert_exact(tmp_path / "read", Counter({"to": 2, "be": 2, "or": 1, "not": 1}))
    assert spark.read.parquet(str(tmp_path / "staged")).schema.names == ["value"]
    assert spark.read.parquet(str(tmp_path / "staged")).count() == 0


BAD_LINES = [b"fine", b"caf\xe9 au lait", "naïve".encode(), b"\xff\xfe\x00", b"cut \xe2\x82"]
REPLACED = ["fine", "caf\ufffd au lait", "naïve", "\ufffd\ufffd\x00", "cut \ufffd"]


@pytest.mark.parametrize("through_spark", [False, True])
def test_bytes_that_are_not_utf8_are_replaced_and_counted(
    spark: SparkSession, env: StreamEnvironment, tmp_path: Path, through_spark: bool
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\n".join(BAD_LINES) + b"\n")
    if through_spark:
        lines = env.from_spark(spark.read.text(str(path)), name="lines")
    else:
        lines = env.read_text(str(path), name="lines")
    lines.collect()
    job = run(env)
    assert Counter(job.collected("collect")["value"].to_pylist()) == Counter(REPLACED)
    assert job.metrics()["operators"]["lines"]["invalid_lines"] == 3


@pytest.mark.parametrize("through_spark", [False, True])
def test_bytes_that_are_not_utf8_are_an_error_by_option(
    spark: SparkSession, tmp_path: Path, through_spark: bool
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\n".join(BAD_LINES) + b"\n")
    env = StreamEnvironment(spark, parallelism=1, max_restarts=0, encoding_errors="strict")
    source = env.from_spark(spark.read.text(str(path))) if through_spark else env.read_text(str(path))
    source.discard()
    error = str(failure(env))
    assert "InputError" in error and "not UTF-8" in error
    if not through_spark:
        assert f"{str(path)!r} is not UTF-8 at byte 8 (0xe9)" in error


def test_a_line_of_100_megabytes(env: StreamEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    words = [bytes([97 + n % 26]) * (1_000 + n) for n in range(50)]
    line = b" ".join(words)
    times = 100_000_000 // len(line) + 1
    with path.open("wb") as file:
        file.write(b"first line\n")
        for _ in range(times):
            file.write(line + b" ")
        file.write(b"\nlast line")

    def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
        length = pa.compute.binary_length(batch.column("word")).cast(pa.int64())
        return pa.RecordBatch.from_arrays([length, batch.column("count")], names=["length", "count"])

    lines = env.read_text(str(path), name="lines")
    words_of = lines.tokenize(name="tokenize").key_by("word").count(name="count")
    words_of.map_batches(measured, schema="length long, count long", name="measured").collect(name="words")
    # The line itself goes over the wire too, as a value beside a small key.
    parts = lines.map(lambda row: (len(row.value) % 3, row.value), schema="part long, line string", name="part")
    whole = parts.key_by("part").count(name="whole")
    whole.map(lambda row: len(row.line), schema="bytes long", name="bytes").collect(name="lines_seen")
    job = run(env)
    assert sorted(job.collected("lines_seen")["bytes"].to_pylist()) == [9, 10, (len(line) + 1) * times]
    pairs = job.collected("words").to_pylist()
    expected = {(1_000 + n, count) for n in range(50) for count in range(1, times + 1)}
    assert {(row["length"], row["count"]) for row in pairs if row["length"] >= 1_000} == expected
    assert len(pairs) == len(expected) + 4


# --- output directories


def test_an_output_directory_that_holds_data_is_left_alone(env: StreamEnvironment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("all my work")
    env.generate(lambda i: i, schema="n long", count=10).to_parquet(str(out))
    with pytest.raises(OutputDirectoryError, match=r"out is not empty \(it holds thesis.tex\): choose another"):
        env.execute("overwriting")
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    assert (out / "thesis.tex").read_text() == "all my work"


def test_the_output_of_an_earlier_job_is_not_overwritten(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        env = StreamEnvironment(spark, parallelism=1)
        env.generate(lambda i, n=number: i + n, schema="n long", count=10).to_parquet(str(tmp_path / "out"))
        if number == 0:
            run(env)
    with pytest.raises(OutputDirectoryError, match="is not empty"):
        env.execute("again")
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(10))


def test_two_sinks_into_one_directory(env: StreamEnvironment, tmp_path: Path) -> None:
    numbers = env.generate(lambda i: i, schema="n long", count=10)
    numbers.to_parquet(str(tmp_path / "out"), name="one")
    numbers.to_parquet(str(tmp_path / "out"), name="two")
    with pytest.raises((ConfigurationError, OutputDirectoryError), match="out"):
        env.execute("both")


@pytest.mark.parametrize("place", ["file", "below a file", "read-only file system"])
def test_an_output_directory_that_cannot_be_made(env: StreamEnvironment, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    path = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "out"}.get(place, Path("/proc/out"))
    env.generate(lambda i: i, schema="n long", count=10).to_parquet(str(path))
    with pytest.raises(OutputDirectoryError, match=str(path)):
        env.execute("nowhere")
    assert (tmp_path / "file").read_text() == "not a directory"


# --- checkpoint directories


def draw(spark: SparkSession, directory: Path, out: Path, **options: Any) -> StreamEnvironment:
    """An endless WordCount of one word in ten, drawn and not started."""
    env = StreamEnvironment(
        spark, **{"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": str(directory), **options}
    )
    numbers = env.generate(lambda i: f"w{i % 10}", schema="word string", rate=2_000, name="words")
    numbers.key_by("word").count(name="count").to_parquet(str(out), name="out")
    return env


@pytest.mark.parametrize("place", ["file", "read-only file system", "other data", "unknown scheme"])
def test_a_checkpoint_directory_that_cannot_be_used(spark: SparkSession, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("all my work")
    path, reason = {
        "file": (tmp_path / "file", "cannot be read"),
        "read-only file system": (Path("/proc/checkpoints"), "cannot be written"),
        "other data": (tmp_path / "other", r"holds other data \('thesis.tex'\)"),
        "unknown scheme": ("nosuch://bucket/path", "cannot be opened"),
    }[place]
    env = draw(spark, path, tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(CheckpointDirectoryError, match=f"{path}.*{reason}"):
        env.execute("nowhere")
    assert not (tmp_path / "out").exists(), "the output directory was begun before the job could start"
    assert (tmp_path / "other" / "thesis.tex").read_text() == "all my work"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_checkpoint_directory_without_permission(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir(mode=0o500)
    with pytest.raises(CheckpointDirectoryError, match=r"cannot be written.*choose one that this user may write"):
        draw(spark, tmp_path / "checkpoints", tmp_path / "out").execute("nowhere")


def test_a_checkpoint_directory_of_another_job_or_with_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    with draw(spark, directory, tmp_path / "out").execute("first") as job:
        wait_for_checkpoint(job)
    kept = sorted(directory.rglob("*"))
    with pytest.raises(CheckpointDirectoryError, match=r"already has checkpoints of this job; resume it"):
        draw(spark, directory, tmp_path / "out2").execute("first")
    with pytest.raises(CheckpointDirectoryError, match=r"belongs to another job .name 'first', this job has 'second'"):
        draw(spark, directory, tmp_path / "out2").execute("second")
    with pytest.raises(ConfigurationError, match="its max_parallelism was 128 and is 64"):
        draw(spark, directory, tmp_path / "out2", max_parallelism=64).execute("first", resume=True)
    with pytest.raises(ConfigurationError, match="parallelism 200 is above max_parallelism, which is 128"):
        StreamEnvironment.resume(spark, str(directory), parallelism=200)
    assert sorted(directory.rglob("*")) == kept
    with pytest.raises(CheckpointDirectoryError, match="holds no job"):
        StreamEnvironment.resume(spark, str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists(), "a directory was made only by looking at it"


# --- damaged checkpoints


def flip(path: Path) -> None:
    """Flip one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def interrupted(spark: SparkSession, corpus: Path, tmp_path: Path) -> list[Path]:
    """A WordCount cancelled in the middle; returns the manifests of its checkpoints, oldest first."""
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1, checkpoint_dir=str(tmp_path / "checkpoints"))
    words = env.read_text(str(corpus), name="lines").tokenize(name="tokenize").throttle(30_000)
    words.key_by("word").count(name="count").to_parquet(str(tmp_path / "out"), name="out")
    with env.execute("wordcount") as job:
        wait_for_checkpoint(job, 3)
    assert job.state == "cancelled"
    return sorted((tmp_path / "checkpoints" / "checkpoints").glob("*.json"))


def number_of(manifest: Path) -> int:
    """The checkpoint of a manifest, whose name has its epoch as well."""
    return int(manifest.stem.partition("-")[0])


def newest_state_file(manifest: Path, storage: Path) -> Path:
    """A state file that only the newest checkpoint names."""
    subtasks: dict[str, Any] = json.loads(manifest.read_bytes().partition(b"\n")[2])["subtasks"]
    names = [file["name"] for handle in subtasks.values() for file in handle.get("files", ())]
    newest = max(int(name.rpartition("/")[2].split("-")[1]) for name in names)
    name = next(name for name in names if int(name.rpartition("/")[2].split("-")[1]) == newest)
    return storage / "state" / name


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("manifest", flip),
        pytest.param("state", truncate, marks=pytest.mark.long),
        pytest.param("state", Path.unlink, marks=pytest.mark.long),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    spark: SparkSession,
    corpus: Path,
    tmp_path: Path,
    what: str,
    damage: Callable[[Path], None],
) -> None:
    before, last = interrupted(spark, corpus, tmp_path)[-2:]
    damaged = last if what == "manifest" else newest_state_file(last, tmp_path / "checkpoints")
    damage(damaged)
    with pytest.warns(RuntimeWarning, match="checkpoint refused") as said:
        job = StreamEnvironment.resume(spark, tmp_path / "checkpoints")
    with job:
        assert job.restored_from == number_of(before)
        job.await_finish(PATIENCE_S)
    assert len(said) == 1
    assert f"resuming from checkpoint {number_of(before)}: checkpoint {number_of(last)}: " in str(said[0].message)
    assert str(damaged) in str(said[0].message)
    assert_exact(tmp_path / "out", expected_counts(corpus))
    with pytest.raises(CheckpointDirectoryError, match=r"the job has finished: .* cannot be resumed"):
        StreamEnvironment.resume(spark, str(tmp_path / "checkpoints"))


def test_when_no_checkpoint_is_whole_nothing_is_touched(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    manifests = interrupted(spark, corpus, tmp_path)
    for manifest, damage in zip(manifests, cycle([flip, truncate]), strict=False):
        damage(manifest)
    output = sorted(path for path in (tmp_path / "out").rglob("*.parquet"))
    with pytest.raises(CorruptCheckpoint, match=r"no checkpoint in .* can be restored") as caught:
        StreamEnvironment.resume(spark, str(tmp_path / "checkpoints"))
    assert all(str(manifest) in str(caught.value) for manifest in manifests)
    assert sorted((tmp_path / "out").rglob("*.parquet")) == output


def test_a_damaged_plan(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    with draw(spark, directory, tmp_path / "out").execute("planned") as job:
        wait_for_checkpoint(job)
    flip(directory / "blobs" / "plan")
    with pytest.raises(CorruptCheckpoint, match=r"plan does not match its checksum"):
        StreamEnvironment.resume(spark, str(directory))
    (directory / "JOB.json").write_text("{")
    with pytest.raises(CheckpointDirectoryError, match=r"JOB.json is damaged"):
        StreamEnvironment.resume(spark, str(directory))


def test_state_damaged_while_the_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    """No later checkpoint has whole files: the job begins again at its start."""
    kept = tmp_path / "checkpoints"
    options: dict[str, Any] = {
        "recovery": "rollback",
        "checkpoint_interval": NO_CHECKPOINTS,
        "checkpoint_dir": str(kept),
    }
    with Victim(spark, tmp_path, **options) as victim:
        victim.job.checkpoint_now()
        victim.wait(lambda: victim.metrics["checkpoints_completed"] == 2, "a second checkpoint")
        files = [*(kept / "state").rglob("*.sst")]
        assert files
        copies = victim.work.rglob("files/*.sst")  # a slot's next process would take what is on its host
        for path in [*files, *copies]:
            path.unlink(missing_ok=True)
        victim.job.kill("count:1")
        victim.wait(lambda: len(victim.job.recoveries()) > 0 and victim.job.state == "running", "the rollback")
        victim.may_be_empty = True  # its end may come before it has read anything once more
        victim.finish()
    assert any(recovery["fallback"] for recovery in victim.job.recoveries())


# --- slots and Java


def test_fewer_cores_than_slots(spark: SparkSession) -> None:
    env = StreamEnvironment(spark, parallelism=THREADS + 1)
    env.generate(lambda i: i, schema="n long", count=10).discard()
    with pytest.raises(InsufficientSlots, match=rf"needs {THREADS + 1} slots .*use local\[{THREADS + 1}\]"):
        env.execute("too wide")


class OnlyHere:
    """A function of the user's that needs what only the driver has."""

    def __init__(self) -> None:
        self.driver = os.getpid()

    def __call__(self, n: int) -> tuple[int]:
        return (n,)

    def __setstate__(self, state: dict[str, int]) -> None:
        if os.getpid() != state["driver"]:
            raise ImportError("libspecial.so.3: cannot open shared object file")


def test_a_plan_that_slots_cannot_load_ends_the_job_soon(env: StreamEnvironment) -> None:
    env.generate(OnlyHere(), schema="n long").discard()
    error = failure(env)
    assert isinstance(error.__cause__, SlotStartError)
    assert re.search(r"slot [01] cannot start on .*: ImportError: libspecial.* \(3 times in a row\)", str(error))


def without_libraries(index: int, config: SlotConfig) -> None:
    raise ModuleNotFoundError("No module named 'rocksdict'")


def test_executors_without_what_flinkplus_needs_end_the_job_soon(
    env: StreamEnvironment, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Spark the slots' tasks fail: their jobs are submitted again, and counted."""
    monkeypatch.setattr(launcher, "start_slot", without_libraries)
    env.generate(lambda i: i, schema="n long").discard()
    error = failure(env)
    assert isinstance(error.__cause__, SlotStartError)
    assert re.search(r"slot [01] cannot start: ModuleNotFoundError: No module named 'rocksdict'; install", str(error))
    assert "(3 times in a row)" in str(error)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def fake_java(directory: Path, text: str, code: int = 0) -> Path:
    """A ``bin/java`` that says ``text`` on stderr, as Java does."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {code}\n")
    java.chmod(0o755)
    return java.parent


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\njava version "21" 2023-09-19 LTS', 21),
        ('openjdk version "11.0.2" 2019-01-15', None),
        ('java version "1.8.0_391"', None),
        ("this is no Java", None),
    ],
)
def test_java_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, version: int | None) -> None:
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path, text)}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if version is not None:
        assert session.check_java() == version
        return
    with pytest.raises(JavaError, match="install it with: sudo apt-get install openjdk-17-jre-headless"):
        session.check_java()


def test_java_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaError, match="Java 17 or newer, but there is no java on the PATH; install it with"):
        session.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=f"JAVA_HOME={tmp_path} holds no bin/java"):
        session.check_java()


# --- the user's functions


def _raises(row: Any) -> Any:
    if row.n == 7:
        raise ValueError("seven is right out")
    return row.n


def _wrong_type(row: Any) -> Any:
    return "seven" if row.n == 7 else row.n


def _too_many_columns(row: Any) -> Any:
    return (7, 7) if row.n == 7 else row.n


def _exits(row: Any) -> Any:
    if row.n == 7:
        raise SystemExit("out of here")
    return row.n


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (_raises, "ValueError: seven is right out"),
        (_wrong_type, "column 'm' of type int64 cannot hold 'seven': str is not int64"),
        (_too_many_columns, r"returned 2 values for the columns \['m'\]"),
        (_exits, "SystemExit: out of here"),
    ],
)
def test_a_function_that_fails_on_a_row(env: StreamEnvironment, function: Callable[[Any], Any], cause: str) -> None:
    numbers = env.generate(lambda i: i, schema="n long", count=20, name="numbers")
    numbers.map(function, schema="m long", name="picky").discard()
    error = failure(env)
    with pytest.raises(JobFailed, match=cause):
        _raise(error)
    assert "'picky'" in str(error) and "Row(n=7)" in str(error)
    user = error.__cause__
    assert isinstance(user, UserFunctionError)
    assert (user.operator, user.row) == ("picky", "Row(n=7)")
    assert user.subtask in ("picky[0]", "picky[1]", "numbers+picky+discard[0]", "numbers+picky+discard[1]")


def _raise(error: BaseException) -> None:
    raise error


def test_functions_of_every_operator_name_the_row(spark: SparkSession) -> None:
    def draw_with(operator: str, env: StreamEnvironment) -> None:
        numbers = env.generate(lambda i: (i % 3, i), schema="k long, n long", count=20, name="numbers")
        match operator:
            case "filter":
                numbers.filter(lambda row: 1 // (row.n - 7), name="bad").discard()
            case "flat_map":
                numbers.flat_map(lambda row: [1 // (row.n - 7)], schema="x long", name="bad").discard()
            case "map_batches":
                numbers.map_batches(lambda batch: 1 // 0, schema="x long", name="bad").discard()
            case "reduce":
                numbers.key_by("k").reduce(lambda a, b: 1 // (b.n - 7), name="bad").discard()
            case "process":
                numbers.key_by("k").process(
                    lambda k, row, ctx: [1 // (row.n - 7)], schema="x long", name="bad"
                ).discard()

    for operator in ("filter", "flat_map", "map_batches", "reduce", "process"):
        env = StreamEnvironment(spark, parallelism=2, max_restarts=0)
        draw_with(operator, env)
        error = str(failure(env))
        assert "operator 'bad', subtask" in error, operator
        assert ("ZeroDivisionError" in error and "n=7" in error) or operator in ("reduce", "map_batches"), error


def test_none_where_a_row_is_needed(env: StreamEnvironment) -> None:
    numbers = env.generate(lambda i: i, schema="n long", count=20)
    forgetful: Any = lambda row: None  # noqa: E731 - as a user writes it
    numbers.flat_map(forgetful, schema="m long", name="forgetful").discard()
    error = str(failure(env))
    assert "operator 'forgetful'" in error
    assert "returned NoneType, not an iterable of rows; for a single row return a list of one" in error


def test_none_for_a_map_of_several_columns(env: StreamEnvironment) -> None:
    numbers = env.generate(lambda i: i, schema="n long", count=20)
    numbers.map(lambda row: None, schema="a long, b long", name="forgetful").discard()
    assert r"returned NoneType for a row of the columns ['a', 'b']" in str(failure(env))


def test_none_for_a_single_column_is_a_null(env: StreamEnvironment) -> None:
    numbers = env.generate(lambda i: i, schema="n long", count=20)
    numbers.map(lambda row: None, schema="m long").collect()
    assert run(env).collected("collect")["m"].null_count == 20


def test_a_function_that_cannot_be_shipped(env: StreamEnvironment) -> None:
    lock = threading.Lock()
    numbers = env.generate(lambda i: i, schema="n long", count=20)
    numbers.map(lambda row: lock.locked(), schema="m boolean", name="locked").discard()
    with pytest.raises(ConfigurationError, match="lock"):
        env.execute("unshippable")


# --- options and graphs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallelism": 0}, "parallelism must be a whole number from 1 to 1024, not 0"),
        ({"parallelism": 2.0}, r"parallelism must be a whole number from 1 to 1024, not 2\.0"),
        ({"parallelism": "4"}, "parallelism must be a whole number from 1 to 1024, not '4'"),
        ({"parallelism": True}, "parallelism must be a whole number"),
        ({"paralelism": 2}, "unknown option 'paralelism'; did you mean 'parallelism'"),
        (
            {"checkpoint_interval": 0},
            r"checkpoint_interval must be a number of seconds of at least 0\.01 or None, not 0",
        ),
        ({"checkpoint_interval": "1s"}, "checkpoint_interval must be a number of seconds"),
        ({"checkpoint_interval": float("nan")}, "checkpoint_interval must be a number of seconds"),
        ({"recovery": "magic"}, "recovery must be one of standby, partial, rollback, not 'magic'"),
        ({"max_restarts": -1}, "max_restarts must be a whole number from 0"),
        ({"encoding_errors": "ignore"}, "encoding_errors must be one of replace, strict, not 'ignore'"),
        ({"faults": "start:count[0]"}, "faults must be a sequence"),
        ({"checkpoint_dir": ""}, "checkpoint_dir"),
        ({"checkpoint_dir": 7}, "checkpoint_dir"),
    ],
)
def test_wrong_options(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StreamEnvironment(spark, **options)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spark.flinkplus.paralelism", "2", "unknown configuration key .*; did you mean 'spark.flinkplus.parallelism'"),
        ("spark.flinkplus.parallelism", "two", "spark.flinkplus.parallelism must be a number, not 'two'"),
        ("spark.flinkplus.checkpoint_interval", "1", "unknown configuration key.*spark.flinkplus.checkpointInterval"),
    ],
)
def test_wrong_configuration_keys(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: str, value: str, message: str
) -> None:
    configuration = spark.sparkContext.getConf().set(key, value)
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: configuration)
    with pytest.raises(ConfigurationError, match=message):
        StreamEnvironment(spark)


def test_wrong_fault(env: StreamEnvironment, spark: SparkSession) -> None:
    env = StreamEnvironment(spark, faults=("sometime:count[0]",))
    env.generate(lambda i: i, schema="n long", count=20).discard()
    with pytest.raises(ConfigurationError, match=r"'sometime:count.0.' is not a fault; write POINT:SUBTASK"):
        env.execute("faulty")


def test_a_work_dir_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    env = StreamEnvironment(spark, work_dir=str(tmp_path / "missing"))
    env.generate(lambda i: i, schema="n long", count=20).discard()
    with pytest.raises(ConfigurationError, match=r"work_dir .*missing' cannot be used"):
        env.execute("nowhere")


def test_wrong_graphs(env: StreamEnvironment) -> None:
    numbers = env.generate(lambda i: i, schema="n long", count=20, name="numbers")
    with pytest.raises(ConfigurationError, match="the job has no sink: end a stream with to_parquet"):
        env.execute("unfinished")
    with pytest.raises(ConfigurationError, match="two operators are called 'numbers'; give one another name="):
        numbers.filter(lambda row: True, name="numbers")
    with pytest.raises(ConfigurationError, match=r"no column.*'word'.*\['n'\]|'word'.*n"):
        numbers.key_by("word")
    with pytest.raises(ConfigurationError):
        numbers.key_by()
    with pytest.raises(ConfigurationError, match="operator name 'a/b' must be letters"):
        numbers.filter(lambda row: True, name="a/b")
    with pytest.raises(ConfigurationError, match="rows_per_s must be a positive number"):
        numbers.throttle(0)
    with pytest.raises(ConfigurationError, match="throttle must stand before the first key_by"):
        numbers.key_by("n").count().throttle(10)
    with pytest.raises(ConfigurationError, match="value"):
        numbers.tokenize("value")
    with pytest.raises(ConfigurationError):
        numbers.map(lambda row: row, schema="n lnog")


def test_kill_of_what_is_not_there(env: StreamEnvironment) -> None:
    env.generate(lambda i: i, schema="n long", rate=100, name="numbers").discard()
    with env.execute("killed") as job:
        with pytest.raises(ConfigurationError, match="no operator is called 'cuont'; the operators are: numbers"):
            job.kill("cuont:1")
        with pytest.raises(ConfigurationError, match="'numbers:2': 'numbers' has subtasks 0 to 1"):
            job.kill("numbers:2")
        with pytest.raises(ConfigurationError, match="'numbers' is not a subtask; write OPERATOR:INDEX"):
            job.kill("numbers")
        with pytest.raises(ConfigurationError, match="'nothing' is not a collect sink of this job"):
            job.collected("nothing")


def test_streaming_dataframe(spark: SparkSession, env: StreamEnvironment) -> None:
    frame = spark.readStream.format("rate").load()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"repeat": 2}, "read once, not 2 times"),
        ({"trigger": {"continuous": "1 second"}}, "trigger must be a dict with one of processingTime"),
        ({"max_unread_batches": 0}, "must be at least 1"),
    ]
    for options, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            env.from_spark(frame, **options)
    with pytest.raises(ConfigurationError, match="trigger is for a streaming DataFrame"):
        env.from_spark(spark.range(3), trigger={"once": True})
