"""Jobs whose rows are visible in PostgreSQL at once get another parallelism, or another program: while they run, or
when they were stopped. A reader that polls meanwhile finds each row once, and none that is taken back."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.integration.programs import SESSION, program, script
from tests.integration.test_postgres_at_once import INPUT, KEYS, ROWS, SCHEMA, Reader, assert_exact, numbering, recipe
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("empty_postgres"),
    pytest.mark.timeout(300),
]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")

SLOW = 30.0
"""Rows per second: the job lives for minutes, also on a machine with other work."""


def subtasks(postgres: PostgresServer) -> int:
    """Of how many subtasks the progress is known. That has all rows that are visible."""
    ((known, rows, visible),) = postgres.execute(
        "SELECT count(*), sum(rows), (SELECT count(*) FROM numbered) FROM flinkplus_steps"
    )
    assert rows == visible
    return int(known)


def behind(postgres: PostgresServer, checkpoint: int) -> int:
    ((entries,),) = postgres.execute(f"SELECT count(*) FROM flinkplus_recipe WHERE checkpoint >= {checkpoint}")
    return int(entries)


def assert_consistent(postgres: PostgresServer, reader: Reader) -> None:
    """Each row that was read is there once, and the numbers of each key have no gap."""
    assert reader.wrong == []
    rows = postgres.execute("SELECT word, i, n FROM numbered")
    assert len({i for _, i, _ in rows}) == len(rows) > 0
    for word in {word for word, *_ in rows}:
        numbers = sorted(n for other, _, n in rows if other == word)
        assert numbers == list(range(1, len(numbers) + 1))


def test_rescaled_stopped_and_resumed(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> None:
    def run(rate: float, **options: Any) -> Any:
        options = {"recovery": "rollback", "checkpoint_dir": tmp_path / "kept", **options}
        return numbering(spark, postgres, rate, **options).execute("changed", resume="auto")

    with Reader(postgres) as reader:
        with run(SLOW) as job:
            wait_for_checkpoint(job, 1)
            job.rescale(3).await_done(PATIENCE_S)
            assert subtasks(postgres) == 3
            stopped = job.stop_with_savepoint(tmp_path / "savepoint")
            stopped.await_done(PATIENCE_S)
            job.await_finish(PATIENCE_S)
        assert behind(postgres, stopped.checkpoint) == 0
        shown = reader.rows
        with run(1e6, parallelism=1, batch_rows=300) as job:
            job.await_finish(PATIENCE_S)
        assert subtasks(postgres) == 1
    assert 0 < shown < ROWS
    assert_exact(postgres, reader)
    assert recipe(postgres) == 0


@pytest.mark.long
def test_live_rescales_and_kills(spark: SparkSession, postgres: PostgresServer) -> None:
    """From 2 to 4 to 3 to 1 to 2, with a slot that is killed before, within and after each switch."""
    with Reader(postgres) as reader, numbering(spark, postgres, SLOW).execute("live") as job:
        wait_for_checkpoint(job, 1)
        for parallelism in (4, 3, 1, 2):
            move = job.rescale(parallelism)
            job.kill("number:0")
            move.await_done(PATIENCE_S)
            assert subtasks(postgres) == parallelism
            job.kill("number:0")
            rows = reader.rows
            reader.await_rows(rows + 20)
        assert len(job.rescales()) == 4
        job.drain()
        job.await_finish(PATIENCE_S)
    assert_consistent(postgres, reader)


@pytest.mark.long
def test_a_job_that_was_not_stopped_begins_as_it_was_and_is_rescaled(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """As a program that a supervisor starts again, and that names another parallelism than the job has by now."""

    def run(parallelism: int) -> Any:
        options: dict[str, Any] = {"recovery": "rollback", "checkpoint_dir": tmp_path / "kept"}
        env = numbering(spark, postgres, SLOW, parallelism=parallelism, checkpoint_interval=3.0, **options)
        return env.execute("again", resume="auto")

    with Reader(postgres) as reader:
        with run(2) as job:
            wait_for_checkpoint(job, 1)
            rows = reader.rows
            reader.await_rows(rows + 20)
            job.cancel()
        with pytest.warns(RuntimeWarning, match="begins at parallelism 2, and is then rescaled to 3"), run(3) as job:
            wait_until(lambda: bool(job.rescales()) and subtasks(postgres) == 3, "a rescale")
            wait_for_checkpoint(job, 2)
            job.drain()
            job.await_finish(PATIENCE_S)
    assert_consistent(postgres, reader)


@pytest.mark.long
def test_a_stopped_job_goes_on_as_another_program(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """And at another parallelism."""

    def other(rate: float) -> StreamEnvironment:
        env = StreamEnvironment(spark, parallelism=3, recovery="rollback", checkpoint_dir=tmp_path / "kept")
        rows = env.generate(lambda i: (f"w{i % KEYS}", i, 1), schema=SCHEMA, count=ROWS, rate=rate, name="rows")
        kept = rows.filter(lambda row: True, name="kept").key_by("word").sum("one", output="n", name="number")
        kept.to_postgres(postgres.dsn, "numbered", name="numbered", visibility="at_once")
        return env

    options: dict[str, Any] = {"recovery": "rollback", "checkpoint_dir": tmp_path / "kept"}
    with Reader(postgres) as reader:
        with numbering(spark, postgres, SLOW, **options).execute("other") as job:
            wait_for_checkpoint(job, 1)
            reader.await_rows(reader.rows + 20)
        with numbering(spark, postgres, SLOW, **options).execute("other", resume="auto") as job:
            job.stop_with_savepoint(tmp_path / "savepoint").await_done(PATIENCE_S)
        with other(1e6).execute("other", resume="auto") as job:
            job.await_finish(PATIENCE_S)
    assert_exact(postgres, reader)


@pytest.mark.long
def test_a_job_starts_from_a_savepoint_and_is_resumed(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Into another table, at another parallelism. Both tables together are the output of one job."""

    def other(rate: float, **execute: Any) -> Any:
        env = StreamEnvironment(
            spark, parallelism=3, recovery="rollback", checkpoint_interval=60.0, checkpoint_dir=tmp_path / "other"
        )
        rows = env.generate(lambda i: (f"w{i % KEYS}", i, 1), schema=SCHEMA, count=ROWS, rate=rate, name="rows")
        numbered = rows.key_by("word").sum("one", output="n", name="number")
        numbered.to_postgres(postgres.dsn, "others", name="numbered", visibility="at_once")
        return env.execute("other", **execute)

    def others() -> list[Any]:
        return postgres.execute("SELECT word, i, n FROM others")

    options: dict[str, Any] = {"recovery": "rollback", "checkpoint_dir": tmp_path / "kept"}
    with Reader(postgres) as reader, numbering(spark, postgres, SLOW, **options).execute("begun") as job:
        wait_for_checkpoint(job, 1)
        reader.await_rows(20)
        job.stop_with_savepoint(tmp_path / "savepoint").await_done(PATIENCE_S)
        job.await_finish(PATIENCE_S)
    with other(SLOW, start_from=tmp_path / "savepoint") as job:
        wait_until(lambda: len(others()) >= 20, "rows behind the savepoint")
        job.cancel()
    seen = others()
    with other(1e6, resume=True) as job:
        job.await_finish(PATIENCE_S)
    assert set(seen) <= set(others())
    rows = others() + postgres.execute("SELECT word, i, n FROM numbered")
    assert len(rows) == ROWS and {(word, i) for word, i, _ in rows} == INPUT
    assert {(word, n) for word, _, n in rows} == {(f"w{i % KEYS}", i // KEYS + 1) for i in range(ROWS)}


STRUCK = (
    SESSION.replace("local[2]", "local[4]")
    + """
import importlib, os, signal, time

module, owner, method, moment = sys.argv[2:]
owner = getattr(importlib.import_module(f"flinkplus.{module}"), owner)
real = getattr(owner, method)

def struck(*arguments, **named):
    if moment == "after":
        real(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

env = StreamEnvironment(
    spark, parallelism=2, recovery="rollback", checkpoint_interval=0.3, checkpoint_dir=os.path.abspath("kept")
)
schema = "word string, i bigint, one bigint"
rows = env.generate(lambda i: (f"w{i % 7}", i, 1), schema=schema, count=6_000, rate=30.0, name="rows")
numbered = rows.key_by("word").sum("one", output="n", name="number")
numbered.to_postgres(sys.argv[1], "numbered", name="numbered", visibility="at_once")
job = env.execute("struck")
while job.metrics()["checkpoints_completed"] < 1:
    time.sleep(0.01)
setattr(owner, method, struck)
job.rescale(3).await_done(120)
time.sleep(60)
"""
)
RESCALES = "runtime.coordinator.membership.rescales", "Rescales", "_switch"
FENCED = "runtime.coordinator.drivers.recipes", "RecipeDriver", "fence_all"
DIVIDER = "runtime.job.restoring", "CheckpointDivider", "divide"
TABLES = "sinks.postgres.at_once", "AtOnceKeeper", "divide"
"""Called only for a checkpoint that was made of another one; the fence before the division does not come here."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "moment", "divided"),
    [
        pytest.param(RESCALES, "after", False, id="interrupted"),
        pytest.param(FENCED, "before", False, id="fenced"),
        pytest.param(DIVIDER, "before", False, id="before-it-is-divided"),
        pytest.param(DIVIDER, "after", True, id="divided"),
        pytest.param(TABLES, "before", True, id="before-the-output-is-divided"),
        pytest.param(TABLES, "after", True, id="output-divided"),
    ],
)
def test_a_driver_killed_in_a_rescale(
    spark: SparkSession,
    postgres: PostgresServer,
    tmp_path: Path,
    point: tuple[str, str, str],
    moment: str,
    divided: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old plan with its progress, or the new one; never a mixture."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)  # a resume without the program has none
    with Reader(postgres) as reader:
        command = [sys.executable, script(tmp_path, STRUCK), postgres.dsn, *point, moment]
        with program(command, tmp_path) as run:
            assert run.wait() == -signal.SIGKILL, run.err
            parallelism = 3 if divided else 2
            with StreamEnvironment.resume(spark, tmp_path / "kept") as job:
                wait_for_checkpoint(job, 1)
                assert len(job.slot_pids()) == subtasks(postgres) == parallelism
                job.stop_with_savepoint(tmp_path / "savepoint").await_done(PATIENCE_S)
            wait_until(lambda: not run.living(), "the end of the dead driver's processes")
    assert_consistent(postgres, reader)
