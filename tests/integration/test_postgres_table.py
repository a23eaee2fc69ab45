"""A sink's table on a real server, without Spark: which tables it takes, and what of a row is in them."""

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

from flinkplus.errors import OutputTableError, OutputUnavailable
from flinkplus.runtime.transport.auth import tls
from flinkplus.sinks.postgres.committer import PostgresCommitter
from flinkplus.sinks.postgres.sink import postgres_sink
from flinkplus.sinks.postgres.table import OutputTable
from tests.integration.conftest import wait_until
from tests.integration.postgres_tables import committed_through, content, expected, job, staged_files, taken_over
from tests.postgres_server import PostgresServer
from tests.unit.sinks.harness import context, rows

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


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
    types |= {"nested": pa.struct([("a", pa.list_(pa.int64())), ("b", pa.map_(pa.string(), pa.string()))])}
    schema = pa.schema(list(types.items()))
    full = {"i8": -128, "u64": 2**64 - 1, "f32": 0.5, "f64": 0.1 + 0.2, "flag": False, "text": 'a,"\n\\.', "at": at}
    full |= {"bytes": b"\x00\xff", "day": at.date(), "amount": Decimal("-0.001")}
    full["nested"] = {"a": [1, None], "b": {'x"': "y,\n"}}
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

    def slowly(table: OutputTable, connection: Any) -> None:
        time.sleep(0.2)
        make(table, connection)

    monkeypatch.setattr(OutputTable, "make", slowly)

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


# --- connections ------------------------------------------------------------------------------------------------------


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
