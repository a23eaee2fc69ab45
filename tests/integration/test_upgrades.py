"""Jobs that are stopped and resumed with another program: the output is that of a run without a stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import CheckpointDirectoryError, ConfigurationError, JobHandle, StreamEnvironment
from flinkplus.job_options import RunOptions
from flinkplus.runtime.base.logs import uninstall
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.state.durable.blobs import PLAN_BLOB, Blobs
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts, wait_for_checkpoint, wait_until

pytestmark = pytest.mark.integration

ROWS, SLOW, FAST = 2_400, 200.0, 1e6
KEYS, STEP_MS, WINDOW_MS, PRIME = 12, 10, 1_000, 1_000_003
RENAMED = {"tally": "count", "chain": "digest"}
DROPPED = ("once", "extra")


def row(i: int) -> tuple[int, int, int]:
    return i % KEYS, i, i * STEP_MS


def digested(so_far: Any, row: Any) -> tuple[int, int, int]:
    return row.k, row.n, (so_far.h * 31 + row.n) % PRIME


def digested_with_note(so_far: Any, row: Any) -> tuple[int, int, int, str]:
    note = "began before" if so_far.note is None else so_far.note
    return row.k, row.n, (so_far.h * 31 + row.n) % PRIME, note


def first_program(env: StreamEnvironment, rate: float, out: Path, corpus: Path) -> None:
    rows = env.generate(row, schema="k long, n int, ts long", count=ROWS, rate=rate, name="rows")
    marked = rows.with_watermark("ts", "0 seconds", name="marked")
    windows = marked.key_by("k").tumbling_window("ts", "1 second")
    windows.aggregate(n="count", least=("min", "n"), name="window").to_parquet(str(out / "windows"), name="windows")
    pairs = rows.map(lambda row: (row.k, row.n, row.n % PRIME), schema="k long, n int, h long", name="start")
    pairs.key_by("k").reduce(digested, name="digest").to_parquet(str(out / "digests"), name="digests")
    rows.deduplicate("k", name="once").discard(name="firsts")
    env.generate(row, schema="k long, n int, ts long", rate=rate, name="extra").discard(name="nowhere")
    words = env.read_text(corpus, name="lines").tokenize(name="words").throttle(10 * rate)
    words = words.filter(lambda row: bool(row.word), name="not empty")
    words.key_by("word").count(name="count").to_parquet(str(out / "counts"), name="counts")


def second_program(env: StreamEnvironment, rate: float, out: Path, corpus: Path) -> None:
    """Bodies, stateless operators, names, outputs, columns, sources: all others than in the first."""
    words = env.read_text(corpus, name="lines").tokenize(name="words").throttle(10 * rate)
    tally = words.map(lambda row: (row.word.strip(),), schema="word string", name="stripped").key_by("word")
    kept = tally.count(name="tally").filter(lambda row: len(row.word) > 0, name="not empty")
    kept.to_parquet(str(out / "counts"), name="words counted")
    rows = env.generate(row, schema="k long, n long, ts long", count=ROWS, rate=rate, name="rows")
    notes = "k long, n long, h long, note string"
    started = rows.map(lambda row: (row.k, row.n, row.n, "new"), schema=notes, name="start")
    started.key_by("k").reduce(digested_with_note, name="chain").to_parquet(str(out / "chains"), name="chains")
    marked = rows.filter(lambda row: True, name="all").with_watermark("ts", "0 seconds", name="marked")
    windows = marked.key_by("k").tumbling_window("ts", "1 second")
    results = windows.aggregate(n="count", least=("min", "n"), name="window")
    results.to_parquet(str(out / "later windows"), name="windows")
    rows.key_by("k").sum("n", name="sum").to_parquet(str(out / "sums"), name="sums")
    late = env.generate(lambda i: (i,), schema="i long", count=50, name="late")
    late.to_parquet(str(out / "late"), name="late ones")


def rows_of(out: Path, *names: str) -> list[dict[str, Any]]:
    return [one for name in names for one in pq.read_table(out / name).to_pylist()]


def assert_undisturbed(out: Path, corpus: Path) -> None:
    """All output together is that of one run in which nothing happened, by plain Python."""
    assert_exact(out / "counts", expected_counts(corpus))
    digests: dict[int, list[int]] = {}
    for i in range(ROWS):
        so_far = digests.setdefault(i % KEYS, [])
        so_far.append((so_far[-1] * 31 + i) % PRIME if so_far else i % PRIME)
    found: dict[int, list[tuple[int, int]]] = {}
    for one in rows_of(out, "digests", "chains"):
        found.setdefault(one["k"], []).append((one["n"], one["h"]))
    assert {k: [h for _, h in sorted(each)] for k, each in found.items()} == digests
    assert {one["note"] for one in rows_of(out, "chains")} == {"began before"}
    windows: dict[tuple[int, int], list[int]] = {}
    for i in range(ROWS):
        windows.setdefault((i % KEYS, i * STEP_MS // WINDOW_MS), []).append(i)
    emitted = Counter(
        (one["k"], int(one["window_start"].timestamp() * 1000) // WINDOW_MS, one["n"], one["least"])
        for one in rows_of(out, "windows", "later windows")
    )
    assert emitted == Counter((k, at, len(each), min(each)) for (k, at), each in windows.items())
    assert len(rows_of(out, "windows")) and len(rows_of(out, "later windows"))
    sums: dict[int, list[tuple[int, int]]] = {}
    for one in rows_of(out, "sums"):
        sums.setdefault(one["k"], []).append((one["n"], one["sum"]))
    for k, each in sums.items():  # it begins empty, with the first row behind the checkpoint
        numbers = [n for n, _ in sorted(each)]
        assert numbers == list(range(numbers[0], ROWS, KEYS)) and numbers[0] > k
        assert [total for _, total in sorted(each)] == [sum(numbers[: at + 1]) for at in range(len(numbers))]
    assert sorted(one["i"] for one in rows_of(out, "late")) == list(range(50))


def test_every_permitted_change_at_once_with_kills_and_another_parallelism(
    spark: SparkSession, tmp_path: Path, corpus: Path
) -> None:
    out = tmp_path / "out"

    def run(program: Any, rate: float, resume: Any, name: str = "second", **options: Any) -> JobHandle:
        env = StreamEnvironment(spark, checkpoint_interval=0.15, checkpoint_dir=tmp_path / "checkpoints", **options)
        program(env, rate, out, corpus)
        requests: Any = {"state_from": RENAMED, "drop_state": DROPPED, "renamed_from": "first"} if resume else {}
        return env.execute(name, resume=resume, **requests)

    with run(first_program, SLOW, False, "first", parallelism=2) as job:
        wait_for_checkpoint(job, 3)
        wait_until(lambda: job.metrics()["committed_rows"]["windows"] > 0, "a window")
        number = job.job_id
    with run(second_program, SLOW, True, parallelism=2) as job:
        assert job.job_id == number and job.name == "second"
        assert job.kill("chain:1")
        wait_until(lambda: bool(job.recoveries()), "a recovery")
        wait_for_checkpoint(job, 2)
    with run(second_program, FAST, "auto", parallelism=1, recovery="rollback", faults=("snapshot:tally[0]#2",)) as job:
        job.await_finish(PATIENCE_S)
        operators = job.metrics()["operators"]
    assert operators["window"]["late_rows"] == 0 and operators["rows"]["rows_out"] == ROWS
    assert_undisturbed(out, corpus)


OTHERWISE: dict[str, Any] = {
    "parallelism": 3,
    "checkpoint_interval": 0.2,
    "checkpoint_timeout": 30.0,
    "checkpoint_min_pause": 0.01,
    "max_concurrent_checkpoints": 2,
    "retained_checkpoints": 5,
    "checkpoint_mode": "unaligned",
    "aligned_timeout": 1.0,
    "in_flight_mb": 32,
    "recovery": "standby",
    "replicas": 2,
    "sharing_depth": 1,
    "placement": "near",
    "failback": "never",
    "session_timeout": 6.0,
    "cache_memory_mb": 32,
    "dedup_error_rate": 0.02,
    "max_restarts": 5,
    "restart_window": 300.0,
    "max_slot_losses": 9,
    "slot_timeout": 50.0,
    "deploy_timeout": 50.0,
    "heartbeat_interval": 0.2,
    "heartbeat_timeout": 8.0,
    "hang_timeout": 1.0,
    "batch_rows": 4_096,
    "flush_interval": 0.02,
    "window": 8,
    "window_kb": 1_024,
    "transport": "grpc",
    "tls": True,
    "memtable_entries": 5_000,
    "encoding_errors": "strict",
    "allow_inject": False,
    "log": "text:warning",
}
LAST: dict[str, Any] = {"guarantee": "at-least-once", "recovery": "rollback"}
PATHS = ("work_dir", "trace_output", "record_machines")
NOT_HERE = {"max_parallelism", "zookeeper", "zookeeper_acl", "signing_key", "faults", "ui", "ui_linger"}
"""The first is refused; ensembles, keys, faults and the page have tests of their own."""


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    """The option ``log`` sets up the loggers of the process for good."""
    yield
    uninstall()


def test_every_option_is_here() -> None:
    assert set(OTHERWISE) | set(LAST) | set(PATHS) | NOT_HERE == set(RunOptions.__annotations__)


@pytest.mark.long
@pytest.mark.usefixtures("loggers_as_before")
def test_refusals_a_dry_run_and_a_driver_that_dies_half_way(
    spark: SparkSession, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the new checkpoint is stored the old program counts; then the new one. Then with every other option."""

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def run(program: str, resume: Any = "auto", name: str = "words", rate: float = 20_000.0, **given: Any) -> Any:
        requests = {
            key: given.pop(key) for key in ("dry_run", "drop_state", "state_from", "renamed_from") if key in given
        }
        options = {"parallelism": 2, "checkpoint_interval": 0.1, **given}
        env = StreamEnvironment(spark, checkpoint_dir=tmp_path / "checkpoints", **options)
        words = env.read_text(corpus, name="lines").tokenize(name="words").throttle(rate)
        if program != "old":
            words = words.filter(lambda row: True, name="all")
        counts = words.key_by("length" if program == "other key" else "word").count(name="count")
        counts.to_parquet(str(tmp_path / "out"), name="out" if program == "old" else "counts")
        if program == "more":
            counts.key_by("word").sum("count", name="sum").to_parquet(str(tmp_path / "sums"), name="sums")
        return env.execute(name, resume=resume, **requests)

    with run("old") as job:
        wait_for_checkpoint(job, 2)
    before = {str(path): path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    upgrade = run("new", dry_run=True)
    assert upgrade.permitted and {one.operator: one.verdict for one in upgrade}["counts"] == "renamed"
    for wrong, given, message in (
        ("old", {"name": "letters"}, "give renamed_from='words'"),
        ("old", {"max_parallelism": 64}, "its max_parallelism was 128 and is 64"),
        ("old", {"resume": False}, "already has checkpoints of this job"),
    ):
        with pytest.raises((ConfigurationError, CheckpointDirectoryError), match=message):
            run(wrong, **given)
    now = {str(path): path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    assert now.keys() >= before.keys() and all(now[path] == before[path] for path in before if ".lock" not in path)
    stored = CheckpointStorage(str(tmp_path / "checkpoints"), trust=True).manifests

    def vertices() -> set[str]:
        return {name.partition("[")[0] for name in stored.read(stored.checkpoints()[-1]).subtasks}

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Commits, "store", dies)
        run("more")
    assert vertices() == {"lines+words", "count+out"}
    with run("old") as job:
        wait_for_checkpoint(job, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        put = Blobs.put_signed

        def dies_at_the_plan(blobs: Blobs, name: str, *rest: Any, **named: Any) -> None:
            return dies() if name == PLAN_BLOB else put(blobs, name, *rest, **named)

        patch.setattr(Blobs, "put_signed", dies_at_the_plan)
        run("new")
    assert vertices() == {"lines+words+all", "count+counts"}
    with pytest.raises(CheckpointDirectoryError, match="its last checkpoint is of another program"):
        StreamEnvironment.resume(spark, tmp_path / "checkpoints")
    places: Any = {name: tmp_path / name for name in PATHS}
    places["work_dir"].mkdir()
    with run("new", name="letters", renamed_from="words", **OTHERWISE, **places) as job:
        wait_for_checkpoint(job, 2)
        assert (job.name, job.restored_from is not None) == ("letters", True)
    with run("new", name="letters", rate=FAST, aligned_timeout=None, **LAST) as job:
        job.await_finish(PATIENCE_S)
        metrics = job.metrics()
    with pytest.raises(CheckpointDirectoryError, match="the job has finished"):
        run("old", name="letters")
    with run("new", name="letters", **LAST) as job:
        assert job.state == "finished" and job.metrics()["committed_rows"] == metrics["committed_rows"]
    assert_exact(tmp_path / "out", expected_counts(corpus))
