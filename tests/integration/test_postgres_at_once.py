"""Jobs whose rows are visible in PostgreSQL at once: slots, drivers and the server are killed. A reader that polls
meanwhile finds each row once, in an order that never changes, and none that is taken back.

The rows tell the order in which a keyed subtask got those of several sources: each has the number of its key so far. So
a history that is not repeated exactly gives one number to two rows, or one row two numbers.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import ConfigurationError, JobFailed, JobHandle, MoveRefused, SavepointRefused, StreamEnvironment
from flinkplus.runtime.coordinator.drivers import recipes
from flinkplus.sinks.postgres.run_keeper import application
from flinkplus.sinks.postgres.spare import spare_name
from tests.integration.conftest import PATIENCE_S, wait_until
from tests.integration.programs import SESSION, kill_again_and_again
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")

ROWS, KEYS = 6_000, 7
SCHEMA = "word string, i bigint, one bigint"
INPUT = {(f"w{i % KEYS}", i) for i in range(ROWS)}


def numbering(spark: SparkSession, postgres: PostgresServer, rate: float, **options: Any) -> StreamEnvironment:
    """Rows with the number of their key so far, visible at once."""
    env = StreamEnvironment(spark, **{"parallelism": 2, "checkpoint_interval": 0.4, **options})
    rows = env.generate(lambda i: (f"w{i % KEYS}", i, 1), schema=SCHEMA, count=ROWS, rate=rate, name="rows")
    numbered = rows.key_by("word").sum("one", output="n", name="number")
    numbered.to_postgres(postgres.dsn, "numbered", name="numbered", visibility="at_once")
    return env


class Reader:
    """Polls the table, and notes all that is wrong."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._postgres = postgres
        self.wrong: list[Any] = []
        self._seen: Counter[str] = Counter()
        self._known: dict[int, tuple[str, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(0.02):
            try:
                rows = self._postgres.execute("SELECT i, word, n FROM numbered")
            except Exception:  # the server is away, or the table is not made yet
                continue
            found = {i: (word, n) for i, word, n in rows}
            changed = [(i, row, found.get(i)) for i, row in self._known.items() if found.get(i) != row]
            if len(found) < len(rows) or len(set(found.values())) < len(rows) or changed:
                self.wrong.append((len(rows), len(found), len(set(found.values())), changed[:3]))
            self._known = found

    @property
    def rows(self) -> int:
        return len(self._known)

    def await_rows(self, rows: int) -> None:
        wait_until(lambda: self.rows >= rows, f"{rows} visible rows")


def assert_exact(postgres: PostgresServer, reader: Reader | None = None) -> None:
    assert reader is None or reader.wrong == []
    rows = postgres.execute("SELECT word, i, n FROM numbered")
    assert len(rows) == ROWS
    assert {(word, i) for word, i, _ in rows} == INPUT
    numbers = {word: sorted(n for other, _, n in rows if other == word) for word in {word for word, _ in INPUT}}
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


def recipe(postgres: PostgresServer) -> int:
    ((entries,),) = postgres.execute("SELECT count(*) FROM flinkplus_recipe")
    return int(entries)


def backends(postgres: PostgresServer, name: str) -> list[int]:
    """The server's processes of the connections whose names begin so."""
    query = "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, %s) ORDER BY pid"
    return [pid for (pid,) in postgres.execute(query, name)]


@pytest.mark.long
def test_a_failover_opens_no_connection(spark: SparkSession, postgres: PostgresServer) -> None:
    """The fence has the driver's, and the successor the spare one of its slot."""
    with Reader(postgres) as reader, numbering(spark, postgres, 300.0).execute("ready") as job:
        spares, drivers = spare_name(job.job_id), application(job.job_id)
        wait_until(lambda: len(backends(postgres, spares)) == 2, "a spare connection for each slot")
        wait_until(lambda: job.missing_standbys() == 0, "standbys")
        before, kept = backends(postgres, spares), backends(postgres, drivers)
        written = reader.rows
        assert job.kill("number:1")
        wait_until(lambda: bool(job.recoveries()), "the failover")
        reader.await_rows(written + 500)
        assert [one["mode"] for one in job.recoveries()] == ["standby"]
        assert len(set(backends(postgres, "flinkplus writer")) & set(before)) == 1
        assert backends(postgres, drivers) == kept and len(kept) == 1
        job.await_finish(PATIENCE_S)
    assert_exact(postgres, reader)
    wait_until(lambda: not backends(postgres, "flinkplus"), "the end of all connections")


def test_all_slots_and_then_one_are_killed(spark: SparkSession, postgres: PostgresServer) -> None:
    """A rollback, and a failover."""
    with Reader(postgres) as reader, numbering(spark, postgres, 1_500.0).execute("killed") as job:
        reader.await_rows(500)
        assert job.kill("number:0") and job.kill("number:1")
        wait_until(lambda: bool(job.metrics()["fallback_reasons"]), "a rollback")
        reader.await_rows(2_500)
        wait_until(lambda: job.missing_standbys() == 0 or job.done, "standbys")
        assert job.kill("number:1")
        job.await_finish(PATIENCE_S)
        assert len(job.metrics()["fallback_reasons"]) == 1
    assert_exact(postgres, reader)
    wait_until(lambda: not backends(postgres, "flinkplus"), "the end of all connections")
    assert recipe(postgres) == 0


def test_a_job_without_standbys_is_killed_cancelled_and_resumed(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Rows behind the last complete checkpoint stay, whatever the next run would have chosen. No password is stored."""

    def run(rate: float, **options: Any) -> JobHandle:
        env = numbering(spark, postgres, rate, recovery="rollback", checkpoint_dir=tmp_path, **options)
        return env.execute("resumed", resume="auto")

    with Reader(postgres) as reader:
        with run(1_500.0) as job:
            reader.await_rows(500)
            assert job.kill("number:0")
            wait_until(lambda: bool(job.recoveries()), "a rollback")
            reader.await_rows(2_000)
            with pytest.raises(MoveRefused, match="visible at once"):
                job.rescale(3).await_done(PATIENCE_S)
            with pytest.raises(SavepointRefused, match="visible at once"):
                job.stop_with_savepoint(tmp_path / "savepoint").await_done(PATIENCE_S)
            assert recipe(postgres) > 0
        before = postgres.execute("SELECT word, i, n FROM numbered")
        assert len(before) < ROWS
        for option in ("parallelism", "batch_rows"):
            with pytest.raises(ConfigurationError, match=f"visible at once.*the same {option}="):
                run(1e6, **{option: 3})
        with run(1e6) as job:
            job.await_finish(PATIENCE_S)
            assert PASSWORD not in str(job.metrics())
    assert_exact(postgres, reader)
    assert set(before) <= set(postgres.execute("SELECT word, i, n FROM numbered"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


def test_another_program_is_refused_before_the_first_checkpoint(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"recovery": "rollback", "checkpoint_dir": tmp_path, "checkpoint_interval": 600.0}
    with Reader(postgres) as reader:
        with numbering(spark, postgres, 2_000.0, **options).execute("early"):
            reader.await_rows(500)
        other = StreamEnvironment(spark, parallelism=2, **options)
        rows = other.generate(lambda i: (f"w{i % KEYS}", i, 1), schema=SCHEMA, count=ROWS, name="rows")
        kept = rows.filter(lambda row: True, name="kept").key_by("word").sum("one", output="n", name="number")
        kept.to_postgres(postgres.dsn, "numbered", name="numbered", visibility="at_once")
        with pytest.raises(ConfigurationError, match=r"visible at once.*the same program"):
            other.execute("early", resume="auto")
        with numbering(spark, postgres, 1e6, **options).execute("early", resume="auto") as job:
            job.await_finish(PATIENCE_S)
    assert_exact(postgres, reader)


def test_the_server_is_killed(spark: SparkSession, postgres: PostgresServer) -> None:
    """The stream waits for it, and loses nothing."""
    with Reader(postgres) as reader, numbering(spark, postgres, 3_000.0).execute("server") as job:
        reader.await_rows(1_500)
        postgres.kill()
        threading.Timer(0.5, postgres.start).start()
        job.await_finish(PATIENCE_S)
        assert not job.metrics()["fallback_reasons"]
    assert_exact(postgres, reader)


def test_a_server_that_stays_away_in_a_rollback_ends_the_job_and_a_resume_continues(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "DEPLOYMENT_PATIENCE_S", 0.5)
    options = {"recovery": "rollback", "checkpoint_dir": tmp_path}
    with Reader(postgres) as reader:
        with numbering(spark, postgres, 2_000.0, **options).execute("away") as job:
            reader.await_rows(500)
            postgres.kill()
            try:
                assert job.kill("number:1")
                with pytest.raises(JobFailed, match="recipe of the output could not be read: OutputUnavailable: table"):
                    job.await_finish(PATIENCE_S)
            finally:
                postgres.start()
        with numbering(spark, postgres, 1e6, **options).execute("away", resume="auto") as job:
            job.await_finish(PATIENCE_S)
    assert_exact(postgres, reader)


def test_what_cannot_be_visible_at_once_is_refused(spark: SparkSession, postgres: PostgresServer) -> None:
    refused: dict[str, dict[str, Any]] = {
        "exactly-once": {"guarantee": "at-least-once"},
        "unaligned": {"checkpoint_mode": "unaligned"},
        "needs checkpoints": {"checkpoint_interval": None},
    }
    for why, options in refused.items():
        with pytest.raises(ConfigurationError, match=f"at_once'.*{why}"):
            numbering(spark, postgres, 1e6, **options).execute("refused")
    env = StreamEnvironment(spark, parallelism=2, sharing_depth=1)
    words = env.generate(lambda i: f"w{i % 3}", schema="word string", count=9, name="words")
    far = words.key_by("word").count(name="near").key_by("word").count(output="again", name="far")
    far.to_postgres(postgres.dsn, "far", visibility="at_once", name="first")
    with pytest.raises(ConfigurationError, match=r"'first'.*larger sharing_depth than 1"):
        env.execute("refused")
    far.to_postgres(postgres.dsn, "far2", visibility="at_once", name="second")
    with pytest.raises(ConfigurationError, match=r"'first'.*and 'second' are fed by one subtask"):
        env.execute("refused")
    assert postgres.execute("SELECT to_regclass('flinkplus_steps')") == [(None,)]


PROGRAM = (
    SESSION
    + """env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.3, checkpoint_dir="checkpoints")
schema = "word string, i bigint, one bigint"
rate = float(sys.argv[2])
rows = env.generate(lambda i: (f"w{i % 7}", i, 1), schema=schema, count=6_000, rate=rate, name="rows")
numbered = rows.key_by("word").sum("one", output="n", name="number")
numbered.to_postgres(sys.argv[1], "numbered", name="numbered", visibility="at_once")
with env.execute("program", resume="auto") as job:
    job.await_finish()
"""
)


@pytest.mark.long
def test_a_driver_killed_again_and_again(postgres: PostgresServer, tmp_path: Path) -> None:
    """Each run is killed at some moment after it has shown more than the one before."""
    with Reader(postgres) as reader:
        kill_again_and_again(PROGRAM, tmp_path, postgres.dsn, lambda: reader.rows, PASSWORD)
    assert_exact(postgres, reader)


@pytest.mark.long
def test_partial_recovery(spark: SparkSession, postgres: PostgresServer) -> None:
    with Reader(postgres) as reader, numbering(spark, postgres, 1_500.0, recovery="partial").execute("part") as job:
        for rows, subtask in ((500, "number:0"), (2_000, "rows:1"), (4_000, "number:1")):
            reader.await_rows(rows)
            assert job.kill(subtask)
        job.await_finish(PATIENCE_S)
    assert_exact(postgres, reader)
