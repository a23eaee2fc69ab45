"""Polls a table of PostgreSQL, by a connection of its own that needs only to read.

Rows have the transaction that wrote them in the column ``written_by``, so each look finds exactly the rows that the
snapshot before did not show. Now and then the rows are counted in the snapshot of such a look: a row that has gone, and
one that a look did not find, makes a difference, and then everything is read. Everything is also read after a lost
connection, since a server that has crashed may use the number of a transaction again of which nothing was stored.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import psycopg

from .history import History, Row

COUNT_S = 0.5
PAUSE_S = 0.05
TIMEOUT_S = 5
"""For a connection, and for a server that does not answer."""
FIELDS = ", ".join(Row._fields)
ANY_SNAPSHOT = "1:1:"


class Watch(Protocol):
    """Something that looks at the output again and again."""

    looks: int

    def look(self) -> None:
        """Take what is new. Raises nothing for an output that cannot be read just now."""

    def look_at_all(self) -> bool:
        """Compare all that is visible; false if it cannot be read just now."""

    def close(self) -> None: ...


class TableWatch:
    """Polls ``table`` of the server at ``dsn``."""

    def __init__(self, history: History, dsn: str, table: str) -> None:
        self._history = history
        self._dsn = dsn
        fields = FIELDS if history.input.buckets else FIELDS.replace("b, m", "0, 0")
        self._all = f"SELECT pg_current_snapshot()::text, {fields} FROM {table}".encode()
        self._new = (
            f"SELECT {fields} FROM {table} WHERE written_by >= pg_snapshot_xmin(%(known)s::pg_snapshot) "
            "AND NOT pg_visible_in_snapshot(written_by, %(known)s::pg_snapshot)"
        ).encode()
        self._count = f"SELECT count(*) FROM {table}".encode()
        self._connection: Any = None
        self._known = ANY_SNAPSHOT
        self._counted_s = 0.0
        self.looks = 0

    def look(self) -> None:
        try:
            self._look()
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.close()
            time.sleep(PAUSE_S)

    def look_at_all(self) -> bool:
        try:
            self._read_all()
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.close()
            time.sleep(PAUSE_S)
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look(self) -> None:
        if self._connection is None:
            self._read_all()
            return
        counted = time.monotonic() > self._counted_s + COUNT_S
        with self._snapshot() as (snapshot, cursor):
            rows = cursor.execute(self._new, {"known": self._known}, prepare=True).fetchall()
            count = cursor.execute(self._count).fetchone()[0] if counted else None
        self._known = snapshot
        self.looks += 1
        self._history.take(Row(*row) for row in rows)
        if counted:
            self._counted_s = time.monotonic()
            if count != len(self._history.known):
                self._read_all()

    def _read_all(self) -> None:
        with self._snapshot() as (snapshot, cursor):
            rows = cursor.execute(self._all).fetchall()
        self._known = snapshot
        self.looks += 1
        self._history.compare(Row(*row[1:]) for row in rows)

    def _snapshot(self) -> _Snapshot:
        if self._connection is None:
            self._connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=TIMEOUT_S,
                options=f"-c statement_timeout={TIMEOUT_S}s",
                tcp_user_timeout=TIMEOUT_S * 1_000,
            )
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return _Snapshot(self._connection)


class _Snapshot:
    """A transaction that sees one snapshot; the value is that snapshot, and a cursor."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None

    def __enter__(self) -> tuple[str, Any]:
        self._transaction = self._connection.transaction()
        self._transaction.__enter__()
        cursor = self._connection.cursor()
        return cursor.execute("SELECT pg_current_snapshot()::text").fetchone()[0], cursor

    def __exit__(self, *error: Any) -> None:
        self._transaction.__exit__(*error)
