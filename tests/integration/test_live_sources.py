"""The source and the sink of docs/connectors.md, as they stand there: log files that grow while slots and drivers die.

Each line says its file and its number in it. The operator behind the source gives, for each line, the number before it
in the same file with the same word, and how many lines with this word there were so far. The first is what a batch
gives, too; the second shows whether two incarnations of the source read in different orders.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import JobHandle, StreamEnvironment
from tests.documents import ROOT, blocks_of
from tests.integration.conftest import PATIENCE_S, running_job, wait_for_checkpoint, wait_until
from tests.integration.ordered import with_the_one_before
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.integration

FILES, WORDS = 5, 7
SCHEMA = "word string, file long, number long, before long, so_far long"


def shown() -> dict[str, Any]:
    """What the program in docs/connectors.md defines."""
    page = (ROOT / "docs" / "connectors.md").read_text(encoding="utf-8")
    program = next(block for block in blocks_of("docs/connectors.md", page) if block.language == "python")
    around: dict[str, Any] = {"__name__": "__main__"}  # so that its classes travel by value, as those of a program do
    exec(compile(program.text, str(program), "exec"), around)
    return around


class Logs:
    """Files to which a thread appends ``lines`` lines each, in bursts with pauses; now and then half a line at first.

    A context manager; its end waits for the last line.
    """

    def __init__(self, directory: Path, lines: int, pause_s: float = 0.03) -> None:
        directory.mkdir()
        self.paths = [directory / f"{at}.log" for at in range(FILES)]
        rng = random.Random(lines)
        self.rows = [[(f"w{rng.randrange(WORDS)}", at, n) for n in range(lines)] for at in range(FILES)]
        self._pause_s, self._rng = pause_s, rng
        self._thread = threading.Thread(target=self._append)

    def _append(self) -> None:
        left = [[" ".join(map(str, row)) + "\n" for row in rows] for rows in self.rows]
        while any(left):
            at = self._rng.randrange(FILES)
            count = self._rng.choice((1, 2, 5, 40))
            text, left[at] = "".join(left[at][:count]), left[at][count:]
            cut = self._rng.randrange(len(text) + 1)
            for part in (text[:cut], text[cut:]):
                with self.paths[at].open("a") as file:
                    file.write(part)
            time.sleep(self._rng.choice((0.0, self._pause_s, 3 * self._pause_s)))

    def __enter__(self) -> Logs:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> None:
        """Until all is written."""
        self._thread.join()

    @property
    def size(self) -> int:
        return sum(map(len, self.rows))

    def expected(self) -> Counter[tuple[str, int, int, int]]:
        return with_the_one_before(self.rows)


def parsed(row: Any) -> tuple[str, int, int]:
    word, at, number = row.line.split(" ")
    return word, int(at), int(number)


def in_order(word: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int, int, int]]:
    seen = ctx.state("seen")
    last, so_far = seen.get(({}, 0))
    yield word, row.file, row.number, last.get(row.file, -1), so_far + 1
    seen.put(({**last, row.file: row.number}, so_far + 1))


class Job:
    """logs | key_by(word) | in_order | JSON files."""

    def __init__(self, spark: SparkSession, logs: Logs, directory: Path) -> None:
        self.spark, self.logs, self.directory = spark, logs, directory
        self.made = shown()

    def run(self, resume: Any = False, rate: float | None = None, **options: Any) -> JobHandle:
        given = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": self.directory / "checkpoints"}
        env = StreamEnvironment(self.spark, **{**given, **options})
        source = self.made["Tail"](tuple(map(str, self.logs.paths)))
        lines = env.from_source(source, name="logs").map(parsed, schema="word string, file long, number long")
        if rate is not None:
            lines.throttle(rate)
        counted = lines.key_by("word").process(in_order, schema=SCHEMA, name="in_order")
        counted.to_sink(self.made["JsonFiles"]("json", str(self.directory / "out")))
        return env.execute("tail", resume=resume)

    def rows(self) -> list[dict[str, Any]]:
        """What is visible."""
        paths = sorted((self.directory / "out").glob("[!.]*.json"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def wait_for_rows(self, job: JobHandle, count: int) -> None:
        wait_until(lambda: job.done or len(self.rows()) >= count, f"{count} rows; {len(self.rows())} are there")

    def drain(self, job: JobHandle) -> None:
        """Everything is read, and the job ends."""
        self.wait_for_rows(job, self.logs.size)
        job.drain()
        job.await_finish(PATIENCE_S)

    def check(self, once: bool = True) -> None:
        rows = self.rows()
        found = Counter((row["word"], row["file"], row["number"], row["before"]) for row in rows)
        if not once:
            assert {key[:3] for key in found} == {key[:3] for key in self.logs.expected()}
            return
        assert found == self.logs.expected()
        for word in {row["word"] for row in rows}:
            of_word = sorted((row["so_far"], row["file"], row["number"]) for row in rows if row["word"] == word)
            assert [so_far for so_far, _, _ in of_word] == list(range(1, len(of_word) + 1))
            for at in range(FILES):
                numbers = [number for _, file, number in of_word if file == at]
                assert numbers == sorted(numbers)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs", lines=300)


def wait_for_recoveries(job: JobHandle, count: int, slots: int = 2) -> None:
    """So many recoveries have ended, and all slots and standbys are there again."""
    coordinator = running_job(job).coordinator
    options = coordinator.options

    def is_whole() -> bool:
        if job.state != "running" or len(job.recoveries()) < count or len(job.slot_pids()) != slots:
            return False
        if not options.local:
            return True
        metrics, protocol = job.metrics(), coordinator.parts.machines.failover
        if protocol is None or protocol.active or metrics["failovers"] + metrics["fallbacks"] < count:
            return False
        members = min(options.replicas, slots)
        chains = protocol.chains.values() if options.standbys else ()
        return protocol.missing == 0 and all(len(chain) == members for chain in chains)

    wait_until(lambda: job.done or is_whole(), f"{count} recoveries, and full strength")


def test_slots_die_while_files_grow_and_when_nothing_comes_any_more(
    spark: SparkSession, tmp_path: Path, logs: Logs
) -> None:
    tail = Job(spark, logs, tmp_path)
    with logs, tail.run() as job:
        wait_for_checkpoint(job, 1)
        assert job.kill("logs:0")
        wait_for_recoveries(job, 1)
        logs.wait()
        tail.wait_for_rows(job, logs.size)
        operators = job.metrics()["operators"]
        assert operators["logs"]["lag_rows"] == 0
        done = job.metrics()["checkpoints_completed"]
        wait_for_checkpoint(job, done + 2)  # the sources have nothing to read
        assert job.kill("logs:1")
        wait_for_recoveries(job, 2)
        wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
        tail.drain(job)
        assert [recovery["mode"] for recovery in job.recoveries()] == ["standby", "standby"]
        assert job.metrics()["fallbacks"] == 0
        assert "lag_rows" not in job.metrics()["operators"]["logs"]
    tail.check()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ({"recovery": "rollback"}, {"rollback"}),
        ({"recovery": "partial"}, {"partial"}),
        ({"checkpoint_mode": "unaligned"}, {"standby"}),
        ({"guarantee": "at-least-once"}, {"standby"}),
        ({"parallelism": 3, "replicas": 2}, {"standby"}),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_every_kind_of_recovery(
    spark: SparkSession, tmp_path: Path, logs: Logs, options: dict[str, Any], modes: set[str]
) -> None:
    tail = Job(spark, logs, tmp_path)
    with logs, tail.run(**options) as job:
        for count, victim in enumerate(("logs:0", "in_order:1", "logs:1"), 1):
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            assert job.kill(victim)
            wait_for_recoveries(job, count, options.get("parallelism", 2))
        logs.wait()
        tail.drain(job)
        assert {recovery["mode"] for recovery in job.recoveries()} == modes
    tail.check(once=options.get("guarantee") is None)


def copied(directory: Path, image: Path) -> bool:
    """Copy all as it is just now; false when something was renamed between being listed and being copied. The output
    comes last, so that it has all that the checkpoints name."""
    shutil.rmtree(image, ignore_errors=True)
    try:
        for name in ("checkpoints", "out"):
            shutil.copytree(directory / name, image / name)
    except shutil.Error:
        return False
    return True


@pytest.mark.long
def test_a_driver_that_is_gone_and_another_parallelism(spark: SparkSession, tmp_path: Path, logs: Logs) -> None:
    """A driver that is killed leaves its directories as they are at that moment: a copy of them is what the next one
    finds. Further runs are cancelled in the midst of the stream; the last one is stopped while its source is idle."""
    place, image = tmp_path / "job", tmp_path / "image"
    place.mkdir()
    tail = Job(spark, logs, place)
    with logs:
        with tail.run() as job:
            tail.wait_for_rows(job, 200)
            while not copied(place, image):
                assert not job.done
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 2)
        shutil.rmtree(place)
        image.rename(place)
        with tail.run(resume=True, parallelism=3) as job:
            assert job.restored_from is not None
            wait_for_checkpoint(job, 2)
        with StreamEnvironment.resume(spark, place / "checkpoints", parallelism=1) as job:
            wait_for_checkpoint(job, 1)
        logs.wait()
        with tail.run(resume=True, rate=2_000.0) as job:
            tail.wait_for_rows(job, logs.size)
            assert job.stop_with_savepoint(tmp_path / "savepoint").await_done(PATIENCE_S)
    tail.check()


@pytest.mark.long
def test_the_parallelism_changes_while_files_grow_and_while_nothing_comes(
    spark: SparkSession, tmp_path: Path, logs: Logs
) -> None:
    tail = Job(spark, logs, tmp_path)
    with logs, tail.run() as job:
        wait_for_checkpoint(job, 1)
        job.rescale(3).await_done(PATIENCE_S)
        wait_until(lambda: job.missing_standbys() == 0, "standbys")
        assert job.kill("logs:2")
        wait_for_recoveries(job, 1, slots=3)
        logs.wait()
        tail.wait_for_rows(job, logs.size)
        job.rescale(1).await_done(PATIENCE_S)
        job.rescale(2).await_done(PATIENCE_S)
        tail.drain(job)
        assert job.metrics()["fallbacks"] == 0
    tail.check()


@pytest.mark.long
def test_files_that_cannot_be_read_end_the_job_with_their_name(spark: SparkSession, tmp_path: Path, logs: Logs) -> None:
    logs.paths[0].mkdir()
    tail = Job(spark, logs, tmp_path)
    with tail.run(recovery="rollback", max_restarts=1) as job:
        wait_until(lambda: job.done, "the end")
        assert job.state == "failed"
        with pytest.raises(Exception, match=r"InputError.*0\.log.*Is a directory"):
            job.await_finish(PATIENCE_S)


def windowed(row: Any) -> tuple[str, int, int]:
    return row.word, int(row.window_start.timestamp()), row.n


@pytest.mark.long
def test_event_time_goes_on_without_a_file_to_which_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    """Of two readers one has nothing. Windows are put out all the same, each once, also after both were killed. Then it
    is the other one that has nothing, and so on."""
    made, paths, out = shown(), [str(tmp_path / f"{at}.log") for at in range(2)], tmp_path / "out"

    def write(at: int, seconds: range) -> None:
        with open(paths[at], "a") as file:
            file.writelines(f"w{ms % 3} {ms} {ms}\n" for ms in range(seconds.start * 1000, seconds.stop * 1000, 10))

    def windows() -> list[int]:
        rows = [json.loads(line) for path in out.glob("[!.]*.json") for line in path.read_text().splitlines()]
        return sorted(row["start"] for row in rows)

    def has_windows(count: int) -> bool:
        return job.done or len(windows()) >= count

    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2, work_dir=str(tmp_path))
    lines = env.from_source(made["Tail"](tuple(paths)), name="logs").map(parsed, schema="word string, ts long, n long")
    marked = lines.with_watermark("ts", 0, every="1 ms", idle_after="500 ms")
    counts = marked.key_by("word").tumbling_window("ts", "1 second").count(output="n", name="window")
    counts.map(windowed, schema="word string, start long, n long").to_sink(made["JsonFiles"]("json", str(out)))
    write(0, range(10))
    with env.execute("idle") as job:
        for count in (1, 2):
            wait_until(partial(has_windows, 27), "nine windows of three words")
            assert job.kill(f"logs:{2 - count}")
            wait_for_recoveries(job, count)
        assert windows() == sorted(3 * [*range(9)])
        for at, end in ((1, 20), (0, 30), (1, 40)):
            write(at, range(end - 10, end))
            wait_until(partial(has_windows, 3 * (end - 1)), "all windows but the last one")
        job.drain()
        job.await_finish(PATIENCE_S)
        assert job.metrics()["operators"]["window"]["late_rows"] == 0
    assert windows() == sorted(3 * [*range(40)])
    rows = [json.loads(line) for path in out.glob("[!.]*.json") for line in path.read_text().splitlines()]
    assert sum(row["n"] for row in rows) == 40 * 100


@pytest.mark.long
def test_rows_that_are_visible_at_once_behind_files_that_grow(
    spark: SparkSession, tmp_path: Path, logs: Logs, request: pytest.FixtureRequest
) -> None:
    """All slots are killed, and then one: no row that was seen is taken back, whatever the files hold by then."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")
    request.getfixturevalue("empty_postgres")
    postgres: PostgresServer = request.getfixturevalue("postgres")
    query = "SELECT word, file, number, before, so_far FROM lines"
    seen: set[tuple[Any, ...]] = set()

    def rows() -> set[tuple[Any, ...]]:
        try:
            found = postgres.execute(query)
        except Exception:  # the table is not made yet
            return set()
        assert len(found) == len(set(found)) and seen <= set(found), "a row was doubled, or taken back"
        seen.update(found)
        return seen

    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.4)
    source = shown()["Tail"](tuple(map(str, logs.paths)))
    lines = env.from_source(source, name="logs").map(parsed, schema="word string, file long, number long")
    counted = lines.key_by("word").process(in_order, schema=SCHEMA, name="in_order")
    counted.to_postgres(postgres.dsn, "lines", visibility="at_once")
    with logs, env.execute("at once") as job:
        wait_until(lambda: job.done or len(rows()) > 100, "visible rows")
        assert job.kill("logs:0") and job.kill("logs:1")
        wait_until(lambda: job.done or bool(job.metrics()["fallback_reasons"]), "a rollback")
        before = len(rows())
        wait_until(lambda: job.done or len(rows()) > before + 50, "further rows")
        wait_until(lambda: job.done or job.missing_standbys() == 0, "standbys")
        assert job.kill("logs:1")
        wait_until(lambda: job.done or len(job.recoveries()) == 2, "a recovery")
        wait_until(lambda: job.done or len(rows()) == logs.size, "all rows")
        job.drain()
        job.await_finish(PATIENCE_S)
    assert Counter(row[:4] for row in rows()) == logs.expected()
    for word in {word for word, *_ in rows()}:
        numbers = sorted(so_far for other, *_, so_far in rows() if other == word)
        assert numbers == list(range(1, len(numbers) + 1))
