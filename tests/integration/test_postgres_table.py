"""A sink's committer on a real server, without Spark: what a table may be, and every way a commit can be cut short."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import JobRunsElsewhere, OutputTableError, OutputUnavailable
from flinkplus.runtime.transport.auth import tls
from flinkplus.sinks.postgres import committer as committing
from flinkplus.sinks.postgres import connecting
from flinkplus.sinks.postgres.committer import PostgresCommitter
from flinkplus.sinks.postgres.sink import postgres_sink
from flinkplus.sinks.postgres.table import OutputTable
from tests.integration.conftest import wait_until
from tests.postgres_server import PASSWORD, PostgresServer
from tests.unit.sinks.harness import SCHEMA, Job, context, rows

pytestmark = pytest.mark.integration
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


@pytest.fixture(autouse=True)
def _empty(postgres: PostgresServer) -> Iterator[None]:
    yield
    postgres.execute("DROP SCHEMA public CASCADE")
    postgres.execute("CREATE SCHEMA public")


def job(postgres: PostgresServer, home: Path, resume: bool = False, **options: Any) -> Job:
    """Two subtasks that write ``(r<checkpoint>, subtask)``. ``job_id``, ``table``, ``mode``, ``key``, ``name``."""
    job_id = options.pop("job_id", "job-1")
    given = {"table": "counts", "mode": "append", "key": (), "visibility": "checkpoint", "dsn": postgres.dsn, **options}
    return Job(postgres_sink(given.pop("name", "out"), **given).staged_in(str(home)), job_id, resume)


def taken_over(postgres: PostgresServer, home: Path, **options: Any) -> Job:
    """The same job by a driver that knows nothing of the one before."""
    found = job(postgres, home, resume=True, **options)
    found.committer.prepare(resume=True)
    found.generation = 100
    found.deploy()
    return found


def content(postgres: PostgresServer, table: str = "counts") -> list[tuple[Any, ...]]:
    return postgres.execute(f"SELECT * FROM {table} ORDER BY 1, 2")


def expected(*checkpoints: int) -> list[tuple[str, int]]:
    return [(f"r{checkpoint:04d}", index) for checkpoint in checkpoints for index in range(2)]


def staged_files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file())


def committed_through(postgres: PostgresServer) -> int:
    ((found,),) = postgres.execute("SELECT checkpoint FROM flinkplus_progress")
    return int(found)


# --- rows and tables --------------------------------------------------------------------------------------------------


def test_rows_become_visible_with_their_checkpoint(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path)
    found.stage(1)
    described = found.stage(2)
    assert content(postgres) == [] and len(staged_files(tmp_path)) == 4
    found.committer.commit(2, described)
    found.complete(2)
    assert content(postgres) == expected(1, 2) and staged_files(tmp_path) == []
    found.committer.commit(2, described)
    assert found.stage(3, with_rows=False) == []
    found.committer.commit(3, [])
    assert committed_through(postgres) == 2 and content(postgres) == expected(1, 2)
    found.stage(4)
    found.committer.finish()
    assert list(tmp_path.iterdir()) == [] and content(postgres) == expected(1, 2)


def test_every_type_is_read_as_it_was_written(postgres: PostgresServer, tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
    types = {"i8": pa.int8(), "u64": pa.uint64(), "f32": pa.float32(), "f64": pa.float64(), "flag": pa.bool_()}
    types |= {"text": pa.string(), "bytes": pa.binary(), "day": pa.date32(), "at": pa.timestamp("ns")}
    types |= {"zoned": pa.timestamp("us", "Europe/Oslo"), "amount": pa.decimal128(12, 3)}
    schema = pa.schema(list(types.items()))
    full = {"i8": -128, "u64": 2**64 - 1, "f32": 0.5, "f64": 0.1 + 0.2, "flag": False, "text": 'a,"\n\\.', "at": at}
    full |= {"bytes": b"\x00\xff", "day": at.date(), "amount": Decimal("-0.001")}
    full["zoned"] = at.replace(tzinfo=datetime.timezone.utc)
    sink = postgres_sink("out", postgres.dsn, "Odd Name", "append", (), "checkpoint").staged_in(str(tmp_path))
    bound = sink.bind(schema, "job-1")
    committer = bound.committer()
    committer.prepare(resume=False)
    writer = bound.writer(context(0), 1)
    writer.write(pa.RecordBatch.from_pylist([full, dict.fromkeys(types), {**full, "text": ""}], schema=schema))
    committer.commit(1, writer.settle(writer.stage(1)))
    found = postgres.execute('SELECT * FROM "Odd Name"')
    assert [dict(zip(types, row, strict=True)) for row in found] == [full, dict.fromkeys(types), {**full, "text": ""}]


def test_one_column_of_nulls(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string())])
    bound = postgres_sink("out", postgres.dsn, "one", "append", (), "checkpoint").staged_in(str(tmp_path))
    bound = bound.bind(schema, "job-1")
    committer = bound.committer()
    committer.prepare(resume=False)
    writer = bound.writer(context(0), 1)
    writer.write(pa.RecordBatch.from_arrays([pa.array(["x", None, "", "\\."])], schema=schema))
    committer.commit(1, writer.settle(writer.stage(1)))
    assert postgres.execute("SELECT a FROM one") == [("x",), (None,), ("",), ("\\.",)]


def test_with_a_key_the_last_row_counts(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("CREATE TABLE counts (word text UNIQUE, count bigint, note text DEFAULT 'new')")
    found = job(postgres, tmp_path, mode="upsert", key="word")
    for checkpoint, values in enumerate([(1, 2, 3), (5, 4)], 1):
        for value in values:
            found.writers[0].write(rows(("a", value)))
        found.writers[1].write(rows(("b", checkpoint)))
        described = found.stage(checkpoint, with_rows=False)
        found.committer.commit(checkpoint, described)
        postgres.execute("UPDATE counts SET note = 'mine' WHERE word = 'a'")
        found.complete(checkpoint)
    found.committer.commit(2, described)
    assert content(postgres) == [("a", 4, "mine"), ("b", 2, "new")]


def test_a_key_of_all_columns(postgres: PostgresServer, tmp_path: Path) -> None:
    found = job(postgres, tmp_path, mode="upsert", key=["count", "word"])
    found.writers[0].write(rows(("a", 1), ("a", 1), ("a", 2)))
    found.committer.commit(1, found.stage(1, with_rows=False))
    assert content(postgres) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("made", "options", "why"),
    [
        ("TABLE counts (word text)", {}, "no column 'count' of type bigint; it has word"),
        ("TABLE counts (word text, count integer)", {}, "'count' is integer, which does not hold int64 without loss"),
        ("TABLE counts (word text, count numeric(18))", {}, r"'count' is numeric\(18,0\)"),
        ("TABLE counts (word date, count bigint)", {}, "'word' is date"),
        ("TABLE counts (word text, count bigint, n int NOT NULL)", {}, "column 'n' is not in the stream"),
        ("TABLE counts (word text, count bigint GENERATED ALWAYS AS IDENTITY)", {}, "leave it out of the stream"),
        ("VIEW counts AS SELECT 'a' AS word, 1::bigint AS count", {}, "this is a view"),
        (
            "TABLE counts (word text, count bigint)",
            {"mode": "upsert", "key": "word"},
            r"unique index of exactly \(word\)",
        ),
        ("TABLE counts (word text, count bigint, UNIQUE (word, count))", {"mode": "upsert", "key": "word"}, "exactly"),
        ("TABLE other (word text)", {"table": "nowhere.counts"}, 'schema "nowhere" does not exist'),
        ("TABLE counts (word name, count bigint)", {}, "'word' is name"),
        ("UNLOGGED TABLE counts (word text, count bigint)", {}, "unlogged table, which a crash of the server empties"),
        (
            "TABLE counts (word text, count bigint) PARTITION BY LIST (word); "
            "CREATE UNLOGGED TABLE one PARTITION OF counts DEFAULT",
            {},
            "unlogged table",
        ),
        (
            "DOMAIN short AS numeric(20, 0); CREATE DOMAIN shorter AS numeric(9); "
            "CREATE TABLE counts (word text, count shorter)",
            {},
            "'count' is shorter",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    postgres: PostgresServer, tmp_path: Path, made: str, options: dict[str, Any], why: str
) -> None:
    postgres.execute(f"CREATE {made}")
    with pytest.raises(OutputTableError, match=why):
        job(postgres, tmp_path, **options)
    assert postgres.execute("SELECT to_regclass('flinkplus_progress')") == [(None,)]


def test_a_wider_table_and_rows_of_others_are_fine(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("CREATE TYPE letter AS ENUM ('old', 'r0001')")
    postgres.execute("CREATE TABLE counts (id serial PRIMARY KEY, count numeric(19), word letter, at date)")
    postgres.execute("INSERT INTO counts (word) VALUES ('old')")
    found = job(postgres, tmp_path)
    found.checkpoint(1)
    assert postgres.execute("SELECT word, count FROM counts ORDER BY id") == [("old", None), ("r0001", 0), ("r0001", 1)]
    other = job(postgres, tmp_path / "other", job_id="job-2")
    other.checkpoint(1)
    assert len(content(postgres)) == 5


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_in_a_database_of_another_encoding(postgres: PostgresServer, tmp_path: Path, encoding: str) -> None:
    """Neither the encoding of the database nor one in the DSN changes what the bytes of a text mean."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE other ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        try:
            dsn = postgres.dsn.removesuffix("/postgres") + "/other?client_encoding=latin1"
            found = job(postgres, tmp_path, dsn=dsn, table="zähler")
            found.writers[0].write(rows(("é", 1)))
            found.committer.commit(1, found.stage(1, with_rows=False))
            with psycopg.connect(dsn, client_encoding="utf8") as reader:
                assert reader.execute('SELECT word FROM "zähler"').fetchall() == [("é",)]
        finally:
            connection.execute("DROP DATABASE other WITH (FORCE)")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_names_are_names_whatever_is_in_them(postgres: PostgresServer, tmp_path: Path, mode: str) -> None:
    postgres.execute('CREATE SCHEMA "100%s"')
    names = ['a"; DROP TABLE x; --', "select", "A", "a", "50%", "new\nline"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    table = '100%s.t"; DROP TABLE x; --'
    sink = postgres_sink("out", postgres.dsn, table, mode, names[::2] if mode == "upsert" else None, "checkpoint")
    bound = sink.staged_in(str(tmp_path)).bind(schema, "job-1")
    for run in (1, 2):
        committer, writer = bound.committer(), bound.writer(context(0), run)
        committer.prepare(resume=run > 1)
        writer.write(pa.RecordBatch.from_pylist([{name: run for name in names}], schema=schema))
        committer.commit(run, writer.settle(writer.stage(run)))
    with psycopg.connect(postgres.dsn) as connection:
        text = psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier(*table.split(".")))
        cursor = connection.execute(text)
        assert [column.name for column in cursor.description] == names and sorted(cursor) == [(1,) * 6, (2,) * 6]
    postgres.execute('DROP SCHEMA "100%s" CASCADE')


def test_two_jobs_may_make_the_table_at_once(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, both = OutputTable.make, threading.Barrier(2)
    monkeypatch.setattr(OutputTable, "make", lambda *given: (time.sleep(0.2), make(*given)))

    def begin(job_id: str) -> None:
        both.wait()
        job(postgres, tmp_path / job_id, job_id=job_id).checkpoint(1)

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(begin, ["job-1", "job-2"])) == [None, None]
    assert len(content(postgres)) == 4


def test_two_sinks_of_a_job_do_not_share_a_table(postgres: PostgresServer, tmp_path: Path) -> None:
    job(postgres, tmp_path)
    job(postgres, tmp_path)  # a run that died before its first checkpoint
    with pytest.raises(OutputTableError, match="output of sink 'out' of this job"):
        job(postgres, tmp_path, name="another")


@pytest.mark.parametrize("what", ["no table", "no progress", "another job"])
def test_a_resume_needs_the_jobs_own_table(postgres: PostgresServer, tmp_path: Path, what: str) -> None:
    if what == "another job":
        job(postgres, tmp_path, job_id="job-2")
    elif what == "no progress":
        postgres.execute("CREATE TABLE counts (word text, count bigint)")
    with pytest.raises(OutputTableError, match="does not hold the output of the job to be resumed"):
        taken_over(postgres, tmp_path)


def test_what_the_database_refuses_names_the_reason(postgres: PostgresServer, tmp_path: Path) -> None:
    """And the job can be resumed, once that is changed."""
    postgres.execute("CREATE TABLE counts (word varchar(3), count bigint)")
    found = job(postgres, tmp_path)
    described = found.stage(1)
    with pytest.raises(OutputTableError, match="value too long"):
        found.committer.commit(1, described)
    assert content(postgres) == []
    postgres.execute("ALTER TABLE counts ALTER word TYPE text")
    taken_over(postgres, tmp_path).committer.commit(1, described)
    assert content(postgres) == expected(1)


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


@pytest.fixture
def authority(postgres: PostgresServer) -> Iterator[bytes]:
    """While a test runs, the server takes TLS connections, with a certificate of this authority for ``tls.NAME``."""
    certificates = tls.made_for("postgres")
    for name, text in {"ssl_cert_file": certificates.certificate, "ssl_key_file": certificates.key}.items():
        postgres.set_system(name, f"'{postgres.place(name, text)}'")
    postgres.set_system("ssl", "on")
    wait_until(lambda: postgres.execute("SHOW ssl") == [("on",)], "TLS", 20)
    yield certificates.authority
    for name in ("ssl", "ssl_cert_file", "ssl_key_file"):
        postgres.set_system(name, "DEFAULT")
    wait_until(lambda: postgres.execute("SHOW ssl") == [("off",)], "no TLS", 20)


def test_the_connection_is_encrypted_as_the_dsn_says(
    postgres: PostgresServer, tmp_path: Path, authority: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, other = tmp_path / "trusted.pem", tmp_path / "other.pem"
    trusted.write_bytes(authority)
    other.write_bytes(tls.made_for("another").authority)
    dsn = postgres.dsn.replace("127.0.0.1", tls.NAME) + "?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert="
    seen, commit = [], PostgresCommitter._commit

    def noting(committer: PostgresCommitter, connection: Any, *arguments: Any) -> int:
        seen.append(connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone())
        return commit(committer, connection, *arguments)

    monkeypatch.setattr(PostgresCommitter, "_commit", noting)
    with pytest.raises(OutputUnavailable, match="certificate verify failed"):
        job(postgres, tmp_path, dsn=f"{dsn}{other}")
    job(postgres, tmp_path, dsn=f"{dsn}{trusted}").checkpoint(1)
    assert seen == [(True,)] and content(postgres) == expected(1)


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
