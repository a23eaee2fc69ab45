"""A sink's committer on a real server, without Spark: every way in which a commit can be cut short."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import JobRunsElsewhere, OutputTableError, OutputUnavailable
from flinkplus.sinks.postgres import committer as committing
from flinkplus.sinks.postgres import connecting
from flinkplus.sinks.postgres.committer import PostgresCommitter
from flinkplus.sinks.postgres.sink import postgres_sink
from tests.integration.conftest import wait_until
from tests.integration.postgres_tables import content, expected, job, staged_files, taken_over
from tests.postgres_server import PASSWORD, PostgresServer
from tests.unit.sinks.harness import SCHEMA, context, rows

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


# --- one driver after another -----------------------------------------------------------------------------------------


def test_an_earlier_driver_commits_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    old = job(postgres, tmp_path)
    old.checkpoint(1)
    described = old.stage(2)
    new = taken_over(postgres, tmp_path)
    with pytest.raises(JobRunsElsewhere, match="another driver has taken over the job"):
        old.committer.commit(2, described)
    assert content(postgres) == expected(1)
    new.committer.commit(2, described)
    assert content(postgres) == expected(1, 2)


def test_a_job_from_a_savepoint_continues_the_table(postgres: PostgresServer, tmp_path: Path) -> None:
    """The job that the savepoint was taken of commits nothing any more; both calls may be repeated."""
    old = job(postgres, tmp_path / "old")
    old.checkpoint(1)
    described = old.stage(2)
    new = job(postgres, tmp_path / "new", resume=True, job_id="job-2")
    for _ in range(2):
        new.committer.check_successor("job-1", 1)
    old.complete(1)
    for _ in range(2):
        new.committer.succeed("job-1", 1)
        new.committer.retract_after(1)
    with pytest.raises(JobRunsElsewhere):
        old.committer.commit(2, described)
    new.deploy()
    new.checkpoint(2)
    assert content(postgres) == expected(1, 2)
    with pytest.raises(OutputTableError, match="of this job already"):
        new.committer.succeed("job-1", 1)


def test_rows_after_the_savepoint_are_not_doubled(postgres: PostgresServer, tmp_path: Path) -> None:
    old = job(postgres, tmp_path / "old")
    old.checkpoint(1)
    old.checkpoint(2)
    new = job(postgres, tmp_path / "new", resume=True, job_id="job-2")
    for begin in (new.committer.check_successor, new.committer.succeed):
        with pytest.raises(
            OutputTableError, match=r"rows of checkpoint 2 of the job .* the savepoint is of checkpoint 1"
        ):
            begin("job-1", 1)
    old.checkpoint(3)
    assert content(postgres) == expected(1, 2, 3), "it runs on"
    new.committer.succeed(None, 1)
    new.deploy()
    new.checkpoint(4)
    assert content(postgres) == expected(1, 2, 3, 4), "an output that the job did not have begins beside other rows"


def test_a_sink_that_was_renamed_continues(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    found.checkpoint(1)
    described = found.stage(2)
    taken_over(postgres, tmp_path, name="renamed").committer.commit(2, described)
    assert content(postgres) == expected(1, 2)
    assert postgres.execute("SELECT sink, run, checkpoint, rows FROM flinkplus_progress") == [("renamed", 2, 2, 4)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_of_the_program_before_keep_their_columns(postgres: PostgresServer, tmp_path: Path, mode: str) -> None:
    """They wait when the job is resumed with columns in another order, and one more."""
    types = {"word": pa.int64(), "count": pa.int64()}
    made = postgres_sink("out", postgres.dsn, "pairs", mode, "word" if mode == "upsert" else (), "checkpoint")
    old = made.staged_in(str(tmp_path)).bind(pa.schema(list(types.items())), "job-1")
    old.committer().prepare(resume=False)
    writer = old.writer(context(0), 1)
    writer.write(pa.RecordBatch.from_pylist([{"word": 1, "count": 2}], schema=old.bound_schema))
    described = writer.settle(writer.stage(1))
    postgres.execute("ALTER TABLE pairs ADD COLUMN more text")
    columns = [("count", pa.int64()), ("more", pa.string()), ("word", pa.int64())]
    new = made.staged_in(str(tmp_path)).bind(pa.schema(columns), "job-1")
    committer, writer = new.committer(), new.writer(context(0), 100)
    committer.prepare(resume=True)
    writer.write(pa.RecordBatch.from_pylist([{"word": 3, "count": 4, "more": "m"}], schema=new.bound_schema))
    committer.commit(2, [*described, *writer.settle(writer.stage(2))])
    assert postgres.execute("SELECT word, count, more FROM pairs ORDER BY word") == [(1, 2, None), (3, 4, "m")]
    fewer = made.staged_in(str(tmp_path)).bind(pa.schema([("word", pa.int64())]), "job-1")
    writer.write(pa.RecordBatch.from_pylist([{"word": 5, "count": 6, "more": "m"}], schema=new.bound_schema))
    committer = fewer.committer()
    committer.prepare(resume=True)
    with pytest.raises(OutputTableError, match="staged rows have columns"):
        committer.commit(3, writer.settle(writer.stage(3)))


def test_a_driver_that_was_replaced_does_not_take_over(postgres: PostgresServer, tmp_path: Path) -> None:
    job(postgres, tmp_path).checkpoint(1)
    late = job(postgres, tmp_path, resume=True)

    def check() -> None:
        raise JobRunsElsewhere("replaced")

    late.committer.allow_only_if(check)
    with pytest.raises(JobRunsElsewhere, match="replaced"):
        late.committer.prepare(resume=True)
    assert postgres.execute("SELECT run FROM flinkplus_progress") == [(1,)]


def test_a_commit_that_hangs_does_not_keep_the_next_driver_waiting(postgres: PostgresServer, tmp_path: Path) -> None:
    """The old driver stops in the middle of its transaction, which holds the row of progress."""
    old, hung = job(postgres, tmp_path), threading.Event()
    described = old.stage(1)
    committer = old.committer
    assert isinstance(committer, PostgresCommitter)
    pieces, resumed = committer._pieces, threading.Event()

    def hanging(file: Any) -> Iterator[bytes]:
        yield from pieces(file)
        hung.set()
        resumed.wait(30)

    committer._pieces = hanging  # type: ignore[method-assign]
    failed: list[BaseException] = []

    def commit() -> None:
        try:
            committer.commit(1, described)
        except JobRunsElsewhere as error:
            failed.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    assert hung.wait(30)
    begun = time.monotonic()
    new = taken_over(postgres, tmp_path)
    assert time.monotonic() - begun < 5
    resumed.set()
    thread.join(30)
    assert len(failed) == 1 and content(postgres) == []
    new.committer.commit(1, described)
    assert content(postgres) == expected(1)


def test_the_next_driver_finishes_a_commit_whose_answer_was_lost(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first attempt the server has committed everything, and of the second too: no row is there twice."""
    found = job(postgres, tmp_path)
    described, commit, lost = found.stage(1), psycopg.Connection.commit, [1]

    def losing(connection: Any) -> None:
        commit(connection)
        if lost:
            lost.pop()
            raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(psycopg.Connection, "commit", losing)
    found.committer.commit(1, described)
    assert not lost and content(postgres) == expected(1)
    lost.append(1)
    committer = found.committer
    assert isinstance(committer, PostgresCommitter)
    committer.patience_s = 0.0
    second = found.stage(2)
    with pytest.raises(OutputUnavailable, match="the connection was lost"):
        committer.commit(2, second)
    taken_over(postgres, tmp_path).committer.commit(2, second)
    assert content(postgres) == expected(1, 2) and staged_files(tmp_path) == []


def test_what_is_confirmed_outlives_a_crash_of_the_server(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged files are removed after a commit, so it must be on disk by then, whatever the role prefers."""
    seen: list[str] = []
    found, commit = job(postgres, tmp_path), PostgresCommitter._commit

    def noting(committer: PostgresCommitter, connection: Any, *arguments: Any) -> int:
        seen.append(connection.execute("SHOW synchronous_commit").fetchone()[0])
        return commit(committer, connection, *arguments)

    monkeypatch.setattr(PostgresCommitter, "_commit", noting)
    for setting in ("off", "local"):
        postgres.execute(f"ALTER ROLE tester SET synchronous_commit = {setting}")
        found.checkpoint(len(seen) + 1)
    postgres.execute("ALTER ROLE tester RESET synchronous_commit")
    assert seen == ["on", "local"]


def test_a_driver_that_stood_still_in_a_transaction_commits_after_all(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ended its connection meanwhile, so that the table was not locked."""
    monkeypatch.setattr(connecting, "SESSION", connecting.SESSION.replace("'60s'", "'50ms'"))
    found, locked, pauses = job(postgres, tmp_path), PostgresCommitter._locked, [0.3]

    def standing_still(committer: PostgresCommitter, connection: Any) -> Any:
        known = locked(committer, connection)
        if pauses:
            time.sleep(pauses.pop())
        return known

    monkeypatch.setattr(PostgresCommitter, "_locked", standing_still)
    found.checkpoint(1)
    assert not pauses and content(postgres) == expected(1)


def test_a_commit_does_not_wait_forever_for_a_lock(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would keep the driver's process, too, after the job was cancelled."""
    monkeypatch.setattr(committing, "COMMIT_LOCK_TIMEOUT", "100ms")
    found = job(postgres, tmp_path)
    committer, described = found.committer, found.stage(1)
    assert isinstance(committer, PostgresCommitter)
    committer.patience_s = 0.0
    with psycopg.connect(postgres.dsn) as other:
        other.execute("LOCK TABLE counts")
        with pytest.raises(OutputUnavailable, match="lock timeout"):
            committer.commit(1, described)
    committer.commit(1, described)
    assert content(postgres) == expected(1)


# --- a server that dies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_server_killed_in_the_middle_of_a_commit(
    postgres: PostgresServer, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger waits for a lock of the test's, which goes with the server; then the same call finishes."""
    found = job(postgres, tmp_path, mode=mode, key=["word", "count"] if mode == "upsert" else ())
    found.checkpoint(1)
    postgres.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$"
    )
    postgres.execute("CREATE TRIGGER hold AFTER INSERT ON counts FOR EACH STATEMENT EXECUTE FUNCTION hold()")
    described, done, committer = found.stage(2), threading.Event(), found.committer
    assert isinstance(committer, PostgresCommitter)
    committer.patience_s = 60.0

    def commit() -> None:
        committer.commit(2, described)
        done.set()

    thread = threading.Thread(target=commit)
    holder = psycopg.connect(postgres.dsn)
    holder.execute("SELECT pg_advisory_lock(7)")
    thread.start()
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    wait_until(lambda: bool(postgres.execute(waiting)), "the commit is in its trigger", 20)
    postgres.kill()
    holder.close()
    time.sleep(0.3)
    assert not done.is_set()
    postgres.start()
    thread.join(30)
    assert done.is_set() and content(postgres) == expected(1, 2)
    assert "trying again for" in caplog.text and PASSWORD not in caplog.text


def test_a_server_that_stays_away(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    committer = found.committer
    assert isinstance(committer, PostgresCommitter)
    committer.patience_s = 0.5
    described = found.stage(1)
    postgres.kill()
    try:
        begun = time.monotonic()
        with pytest.raises(
            OutputUnavailable, match=r"table 127.0.0.1:\d+/postgres/counts: .*[Cc]onnection refused"
        ) as e:
            committer.commit(1, described)
        assert time.monotonic() - begun < 5 and PASSWORD not in str(e.value)
        with pytest.raises(OutputUnavailable):
            job(postgres, tmp_path, job_id="job-2")
        assert len(staged_files(tmp_path)) == 2
    finally:
        postgres.start()
    committer.commit(1, described)
    assert content(postgres) == expected(1)


def test_a_password_that_is_not_there_is_asked_for(postgres: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(OutputUnavailable, match="not stored with a job: set PGPASSWORD"):
        job(postgres, tmp_path, dsn=postgres.dsn.replace(f":{PASSWORD}", ""))


def test_a_database_that_was_restored_is_noticed(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    found.checkpoint(1)
    postgres.execute("UPDATE flinkplus_progress SET checkpoint = 0")
    with pytest.raises(OutputTableError, match="missing or older than it was"):
        found.checkpoint(2)


def test_a_staged_file_that_was_changed_is_noticed(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    described = found.stage(1)
    path = next(path for path in tmp_path.rglob("*-s0-*") if path.is_file())
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(OutputTableError, match="has not the"):
        found.committer.commit(1, described)
    path.unlink()
    with pytest.raises(OutputTableError, match="is missing"):
        found.committer.commit(1, described)
    assert content(postgres) == [] and SCHEMA.names == ["word", "count"]


def test_what_is_committed_is_not_taken_back(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    found.committer.retract_after(None)
    found.checkpoint(1)
    found.stage(2)
    found.committer.retract_after(1)
    assert staged_files(tmp_path) == []
    with pytest.raises(OutputTableError, match="cannot be taken back: the job cannot continue from the start"):
        found.committer.retract_after(None)
    assert content(postgres) == expected(1)


def test_what_a_lost_generation_left_goes_with_a_commit_of_the_next(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    found.checkpoint(1)
    found.stage(2)
    found.writers[0].write(rows(("open", 1)))
    found.deploy()
    found.checkpoint(3)
    assert content(postgres) == expected(1, 3) and staged_files(tmp_path) == []
