"""Jobs that are stopped and resumed at another parallelism, several times, with kills after that: nothing shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import CheckpointDirectoryError, ConfigurationError, JobHandle, StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import MoveCancelled
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job.rescaling.in_flight import InFlight
from flinkplus.state.durable.blobs import Blobs
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import (
    PATIENCE_S,
    assert_each_count_once,
    assert_exact,
    expected_counts,
    running_job,
    wait_for_checkpoint,
    wait_until,
)
from tests.typed import Command

pytestmark = pytest.mark.integration

ROWS, SLOW, FAST = 6_000, 100.0, 1e6
NUMBERED, NAMED = "k long, g string, n long, ts long", "g string, m long, t long"
LAPS = "n long, m long, laps long"
KEYS, STEP_MS, WINDOW_MS = 23, 10, 1_000


def row(i: int) -> tuple[int, str, int, int]:
    return i % KEYS, f"g{i % 7}", i, i * STEP_MS


def counted(key: int, row: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
    seen = ctx.state("seen")
    seen.put(seen.get(0) + 1)
    ctx.event_timer(row.ts + 2_000)
    yield key, seen.get(), -1


def timed(key: int, at_ms: int, ctx: Any) -> Iterator[tuple[int, int, int]]:
    yield key, -1, at_ms


def halving(rows: Stream) -> tuple[Stream, Stream]:
    """Round as often as ``n`` has bits, with a count of what has come for each ``n``."""
    halves = rows.key_by("m").process(lambda m, row, ctx: [(row.n, m // 2, row.laps + 1)], schema=LAPS, name="halve")
    return halves.filter(lambda row: row.m > 0, name="again"), halves.filter(lambda row: row.m == 0, name="done")


def draw(env: StreamEnvironment, rate: float, out: Path, corpus: Path, numbers: Path) -> None:
    """Every kind of source, keyed operator and file sink. ``rate``: rows per second of each source."""
    rows = env.generate(row, schema=NUMBERED, count=ROWS, rate=rate, name="rows")
    marked = rows.with_watermark("ts", "0 seconds", name="marked")
    windows = marked.key_by("k").tumbling_window("ts", "1 second")
    windows.aggregate(n="count", total=("sum", "n"), name="window").to_parquet(str(out / "windows"), name="windows")
    timers = marked.key_by("k").process(counted, schema="k long, seen long, at long", on_timer=timed, name="timers")
    timers.to_parquet(str(out / "timers"), name="timed")
    right = env.generate(lambda i: (f"g{i % 7}", i, i * STEP_MS), schema=NAMED, count=ROWS, rate=rate)
    right = right.with_watermark("t", "0 seconds")
    pairs = marked.key_by("g").interval_join(
        right.key_by("g"), left_time="ts", right_time="t", lower="0 seconds", upper="0.1 seconds", name="join"
    )
    pairs.to_parquet(str(out / "pairs"), name="pairs")
    thirds = rows.map(lambda row: (row.n // 3, row.g), schema="d long, g string")
    once = thirds.deduplicate("d", ttl="1 hour", name="once")
    once.key_by("g").reduce(lambda so_far, row: (so_far.d + 0, row.g), name="first").to_text(out / "once", name="text")
    ends = rows.filter(lambda row: row.n % 4 == 0).map(lambda row: (row.n, row.n, 0), schema=LAPS)
    ends.iterate(halving, name="loop").to_parquet(str(out / "laps"), name="laps")
    words = env.read_text(corpus, name="lines").tokenize(name="words").throttle(10 * rate)
    counts = words.key_by("word").count(name="count")
    counts.to_parquet(str(out / "counts"), name="counts")
    counts.gather().top(3, by="count", item="word", name="top").to_parquet(str(out / "top"), name="ranks")
    table = env.from_spark(env.spark.read.parquet(str(numbers)), name="table").throttle(rate)
    table.key_by("k").sum("n", name="sum").to_parquet(str(out / "sums"), name="sums")


def assert_phases(rescale: dict[str, Any]) -> None:
    """All phases are known, and end one after the other; none of a failure."""
    assert rescale["detect_ms"] is None and rescale["subtasks"] == []
    before_output = [rescale[f"{phase}_ms"] for phase in ("fence", "promote", "restore")]
    assert all(took > 0 for took in before_output)
    # Rounded one by one.
    assert sum(before_output) + rescale["replay_ms"] == pytest.approx(rescale["recovery_ms"], abs=0.01)
    assert sum(before_output) < rescale["recovery_ms"] <= rescale["caught_up_ms"]


def rows_of(out: Path, name: str) -> list[tuple[Any, ...]]:
    table = pq.read_table(out / name)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def assert_undisturbed(out: Path, corpus: Path) -> None:
    """All output is that of a run in which nothing happened, by plain Python."""
    rows = [row(i) for i in range(ROWS)]
    windows: dict[tuple[int, int], list[int]] = {}
    for k, _, n, ts in rows:
        windows.setdefault((k, ts // WINDOW_MS), []).append(n)
    found = Counter((k, int(at.timestamp() * 1000) // WINDOW_MS, n, t) for k, at, _, n, t in rows_of(out, "windows"))
    assert found == Counter((k, at, len(numbers), sum(numbers)) for (k, at), numbers in windows.items())
    per_key = Counter(k for k, *_ in rows)
    timers = [(k, -1, ts + 2_000) for k, _, _, ts in rows]
    timers += [(k, n + 1, -1) for k in per_key for n in range(per_key[k])]
    assert Counter(rows_of(out, "timers")) == Counter(timers)
    pairs = Counter((n, m) for n in range(ROWS) for m in range(n, min(ROWS, n + 11)) if n % 7 == m % 7)
    assert Counter((n, m) for _, _, n, _, m, _ in rows_of(out, "pairs")) == pairs
    lines = [line for part in out.joinpath("once").glob("part-*") for line in part.read_text().splitlines()]
    assert len(lines) == ROWS // 3
    laps = Counter((n, max(n.bit_length(), 1)) for n in range(0, ROWS, 4))
    assert Counter((n, laps) for n, _, laps in rows_of(out, "laps")) == laps
    expected = expected_counts(corpus)
    assert_exact(out / "counts", expected)
    best = {rank: max(c for r, _, c in rows_of(out, "top") if r == rank) for rank in (1, 2, 3)}
    assert list(best.values()) == sorted(expected.values(), reverse=True)[:3]
    sums: dict[int, list[int]] = {}
    for k, n, total in rows_of(out, "sums"):
        sums.setdefault(k, []).append(total)
        assert n >= 0
    assert {k: (len(totals), max(totals)) for k, totals in sums.items()} == {
        k: (len(range(k, ROWS, KEYS)), sum(range(k, ROWS, KEYS))) for k in range(KEYS)
    }


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Path:
    frame = spark.range(ROWS).selectExpr(f"id % {KEYS} as k", "id as n")
    frame.coalesce(1).write.parquet(str(tmp_path / "numbers"))
    return tmp_path / "numbers"


def resumed(spark: SparkSession, tmp_path: Path, corpus: Path, numbers: Path) -> Callable[..., JobHandle]:
    def run(rate: float, **options: Any) -> JobHandle:
        env = StreamEnvironment(spark, checkpoint_interval=0.15, checkpoint_dir=tmp_path / "checkpoints", **options)
        draw(env, rate, tmp_path / "out", corpus, numbers)
        return env.execute("all-kinds", resume="auto")

    return run


@pytest.mark.long  # the longest; test_upgrades resumes at another parallelism, test_rescaling_drivers rescales
def test_every_kind_at_one_parallelism_after_another(
    spark: SparkSession, tmp_path: Path, corpus: Path, numbers: Path, command: Command
) -> None:
    """2, then 3 with a kill and standbys, and live 4 and, by the command, 2, killed once more; then 1 and live 3; then,
    fast and to the end, 2 with a kill and rollback."""
    run = resumed(spark, tmp_path, corpus, numbers)
    with run(SLOW, parallelism=2) as job:
        wait_for_checkpoint(job, 2)
    with run(SLOW, parallelism=3) as job:
        assert job.restored_from is not None
        wait_for_checkpoint(job, 1)
        assert job.kill("window:1")
        wait_until(lambda: bool(job.recoveries()), "a recovery")
        wait_for_checkpoint(job, 3)
        job.rescale(4).await_done(PATIENCE_S)
        assert len(job.slot_pids()) == 4 and set(job.placement()) >= {"window+windows[3]", "window+windows[0]"}
        wait_until(lambda: job.rescales()[-1]["caught_up_ms"] is not None, "new output of everything")
        code, out, err = command("rescale", 2, "--checkpoint-dir", tmp_path / "checkpoints", "--json")
        assert code == 0 and json.loads(out.splitlines()[-1])["status"] == "done", err
        assert len(job.slot_pids()) == 2 and not {name for name in job.placement() if name.endswith("[2]")}
        wait_until(lambda: job.missing_standbys() == 0, "standbys")
        assert job.kill("window:1")
        wait_until(lambda: len(job.recoveries()) == 2, "a recovery after the rescales")
        assert [recovery["mode"] for recovery in job.recoveries()] == ["standby", "standby"]
        assert [rescale["reason"] for rescale in job.rescales()] == ["parallelism 4", "parallelism 2"]
        for index in range(4):
            assert f"count+counts[{index}]" in job.rescales()[0]["restarted"]
        assert_phases(job.rescales()[0])
        wait_for_checkpoint(job, 3)
    with run(SLOW, parallelism=1, recovery="rollback") as job:
        wait_for_checkpoint(job, 1)
        job.rescale(3).await_done(PATIENCE_S)
        wait_for_checkpoint(job, 1)
        assert job.metrics()["operators"]["rows"]["rows_out"] < ROWS
    with run(FAST, parallelism=2, recovery="rollback", faults=("snapshot:count[1]#1",)) as job:
        job.await_finish(PATIENCE_S)
        operators = job.metrics()["operators"]
        assert [recovery["mode"] for recovery in job.recoveries()] == ["rollback"]
    assert operators["rows"]["rows_out"] == ROWS and operators["table"]["rows_out"] == ROWS
    assert operators["window"]["late_rows"] == operators["join"]["late_rows"] == operators["timers"]["late_timers"] == 0
    assert_undisturbed(tmp_path / "out", corpus)


def test_what_is_refused_and_a_driver_that_dies_half_way(
    spark: SparkSession, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the new checkpoint is stored the old one counts; then the new one, although the plan is the old one."""

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def run(resume: Any, **options: Any) -> JobHandle:
        env = StreamEnvironment(spark, checkpoint_interval=0.1, checkpoint_dir=tmp_path / "checkpoints", **options)
        words = env.read_text(corpus, name="lines").tokenize(name="words").throttle(20_000.0)
        words.key_by("word").count(name="count").to_parquet(str(tmp_path / "out"), name="out")
        return env.execute("words", resume=resume)

    with run(False, parallelism=2, max_parallelism=4, in_flight_mb=10) as job:
        wait_for_checkpoint(job, 1)
        with monkeypatch.context() as patch:
            patch.setattr(InFlight, "excess", lambda _, slot_bytes: f"{slot_bytes:,} bytes are not enough")
            with pytest.raises(MoveCancelled, match="at parallelism 1 10,485,760 bytes are not enough"):
                job.rescale(1).await_done(PATIENCE_S)
        assert job.state == "running" and len(job.slot_pids()) == 2
        assert job.rescales() == [], "the job is not interrupted for what is refused"
    for wrong, message in (
        ({"parallelism": 5, "max_parallelism": 4}, "parallelism 5 is above max_parallelism, which is 4"),
        ({"parallelism": 2}, "max_parallelism was 4 and is 128"),
    ):
        with pytest.raises((ConfigurationError, CheckpointDirectoryError), match=message):
            run(True, **wrong)
    stored = CheckpointStorage(str(tmp_path / "checkpoints"), trust=True).manifests
    for where, name, subtasks in ((Commits, "store", 4), (Blobs, "put_signed", 6)):  # the plan is the first blob
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(where, name, dies)
            run(True, parallelism=3, max_parallelism=4)
        assert len(stored.read(stored.checkpoints()[-1]).subtasks) == subtasks
    with StreamEnvironment.resume(spark, tmp_path / "checkpoints", parallelism=4, recovery="rollback") as job:
        job.await_finish(PATIENCE_S)
        metrics = job.metrics()
    with run("auto", parallelism=3, max_parallelism=4) as job:
        assert job.state == "finished" and job.metrics()["committed_rows"] == metrics["committed_rows"]
        assert job.metrics()["operators"] == metrics["operators"]
    assert_exact(tmp_path / "out", expected_counts(corpus))


def in_zookeeper(job: JobHandle) -> set[int]:
    """The slots that have a session."""
    found = running_job(job)._registry
    return set() if found is None or found._registry is None else set(found._registry._slots)


@pytest.mark.long  # three rescales and three kills; `test_rescaling_drivers` and the others above show a rescale
def test_one_slot_has_standbys_as_soon_as_there_is_another(spark: SparkSession, tmp_path: Path, corpus: Path) -> None:
    """A job that begins small: no ZooKeeper, and recovery by rollback; with the second slot both are as in any job."""
    env = StreamEnvironment(spark, checkpoint_interval=0.15, parallelism=1, checkpoint_dir=tmp_path / "checkpoints")
    words = env.read_text(corpus, name="lines", repeat=1_000).tokenize(name="words").throttle(5_000.0)
    words.key_by("word").count(name="count").to_parquet(str(tmp_path / "out"), name="out")
    with env.execute("one-and-more") as job:
        wait_for_checkpoint(job, 1)
        assert job.metrics()["zookeeper"] is None
        for parallelism, mode in ((1, "rollback"), (2, "standby"), (1, "rollback")):
            before = len(job.recoveries())
            job.rescale(parallelism).await_done(PATIENCE_S)
            wait_until(lambda: job.missing_standbys() == 0, "standbys")
            if parallelism > 1:
                wait_until(lambda: in_zookeeper(job) == set(job.slot_pids()), "sessions")
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            assert job.kill(f"count:{parallelism - 1}")
            wait_until(lambda: len(job.recoveries()) > before, "a recovery")  # noqa: B023 - called at once
            wait_until(lambda: job.recoveries()[-1]["caught_up_ms"] is not None, "its end")
            assert job.recoveries()[-1]["mode"] == mode
        assert job.metrics()["zookeeper"] == "connected"
        job.drain()
        job.await_finish(PATIENCE_S)
        words_read = job.metrics()["operators"]["words"]["rows_out"]
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == words_read
    assert_each_count_once(table)


def test_shared_files_serve_a_standby_and_go_in_the_end(spark: SparkSession, tmp_path: Path, corpus: Path) -> None:
    """From 1 to 3, where all share the files of the one, with a kill; bases follow, and no shared file stays."""

    def run(rate: float, **options: Any) -> JobHandle:
        env = StreamEnvironment(spark, checkpoint_interval=0.1, checkpoint_dir=tmp_path / "checkpoints", **options)
        words = env.read_text(corpus, name="lines").tokenize(name="words").throttle(rate)
        words.key_by("word").count(name="count").to_parquet(str(tmp_path / "out"), name="out")
        return env.execute("words", resume="auto")

    def stored() -> CheckpointStorage:
        return CheckpointStorage(str(tmp_path / "checkpoints"), trust=True)

    def newest() -> Manifest:
        manifests = stored().manifests
        return manifests.read(manifests.checkpoints()[-1])

    with run(20_000.0, parallelism=1) as job:
        wait_for_checkpoint(job, 2)
    shared = {file.stored for file in newest().files}
    with run(5_000.0, parallelism=3) as job:
        divided = stored().manifests.read(job.restored_from or 0)
        files = [file for name, handle in divided.subtasks.items() if "count" in name for file in handle.files]
        assert {file.stored for file in files} == shared and all(file.clip is not None for file in files)
        assert job.kill("count:1")
        wait_until(lambda: bool(job.recoveries()), "a recovery")
        wait_until(lambda: not shared & set(stored().state_files.listed()), "the removal of the shared files")
    last = newest()
    assert all(part.counted for handle in last.subtasks.values() for part in handle.states.values())
    assert not any(file.clip for file in last.files)
    with run(FAST, parallelism=2, recovery="rollback") as job:
        job.await_finish(PATIENCE_S)
    counts = expected_counts(corpus)
    assert_exact(tmp_path / "out", counts)
    storage = stored()
    assert set(storage.state_files.listed()) == storage.manifests.all_named()
    ended = newest().subtasks.values()
    counted = all(part.counted for handle in ended for part in handle.states.values())  # or it ended before its bases
    assert sum(handle.keys for handle in ended) == (len(counts) if counted else pytest.approx(len(counts), rel=0.01))
