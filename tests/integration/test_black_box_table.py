"""The checker that polls a table, without a job: rows by hand in transactions that overlap, go, and meet a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from experiments.blackbox.checker.history import DOUBLED, REORDERED, RETRACTED, History, Input, Row, linked
from experiments.blackbox.checker.table import TableWatch
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")

INPUT = Input(rows=60, readers=1, keys=1, buckets=2, seed=0, cuts=False)
COLUMNS = "i bigint, a bigint, n bigint, b bigint, m bigint, chain text"


def rows() -> list[Row]:
    """One key, two buckets in turn."""
    ends, found = {0: (0, ""), 1: (0, "")}, []
    for i in range(INPUT.rows):
        n = i + 1
        b = INPUT.bucket(0, n)
        m, chain = ends[b]
        chain = linked(chain, i, 0, n)
        ends[b] = m + 1, chain
        found.append(Row(i, 0, n, b, m + 1, chain))
    return found


@pytest.fixture
def watch(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TableWatch, History]]:
    """Counts at each look."""
    monkeypatch.setattr("experiments.blackbox.checker.table.COUNT_S", -1.0)
    postgres.execute(f"CREATE TABLE seen ({COLUMNS}, written_by xid8 NOT NULL DEFAULT pg_current_xact_id())")
    history = History(INPUT)
    made = TableWatch(history, postgres.dsn, "seen")
    yield made, history
    made.close()


def insert(connection: Any, taken: list[Row]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO seen VALUES (%s, %s, %s, %s, %s, %s)", taken)


def test_rows_of_a_transaction_that_ends_late(postgres: PostgresServer, watch: tuple[TableWatch, History]) -> None:
    made, history = watch
    even, odd = ([row for row in rows() if row.b == bucket] for bucket in (0, 1))
    with psycopg.connect(postgres.dsn) as late, psycopg.connect(postgres.dsn) as early:
        insert(late, even[:10])
        insert(early, odd[:10])
        early.commit()
        made.look()
        assert set(history.known.values()) == set(odd[:10])
        insert(early, odd[10:])
        early.commit()
        made.look()
        late.commit()
        made.look()
        assert len(history.known) == 40
        insert(late, even[10:])
    made.look()
    assert made.look_at_all()
    history.end()
    assert history.exact, history.examples
    assert made.looks == 5


def test_rows_that_go_and_rows_that_come_again(postgres: PostgresServer, watch: tuple[TableWatch, History]) -> None:
    made, history = watch
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        insert(connection, rows()[:20])
        made.look()
        connection.execute("DELETE FROM seen WHERE i = 7")
        insert(connection, rows()[20:21])  # the number of rows is as before
        made.look()
        assert history.found[RETRACTED] == 1 and history.found[DOUBLED] == 0
        insert(connection, rows()[20:21])
        made.look()
        assert history.found[DOUBLED] == 1
        insert(connection, rows()[24:25])
        made.look()
    assert history.found[REORDERED] == 1


def test_the_server_crashes_between_two_looks(postgres: PostgresServer, watch: tuple[TableWatch, History]) -> None:
    made, history = watch
    with psycopg.connect(postgres.dsn) as connection:
        insert(connection, rows()[:20])
    made.look()
    postgres.kill()
    try:
        made.look()
        assert not made.look_at_all()
    finally:
        postgres.start()
    with psycopg.connect(postgres.dsn) as connection:
        insert(connection, rows()[20:])
    made.look()
    made.look()
    history.end()
    assert history.exact, history.examples
