"""A reader with a connection of its own that notes when each row is there: ``python -m experiments.visibility.reader``.

It polls the table for rows that the snapshot before did not show. Each row has the transaction that wrote it, in the
column ``written_by``, so a row of a transaction that ends later than others with higher numbers is not missed. A row
counts as readable when the answer that has it has arrived.

Stdin: one line of JSON with ``dsn``, ``table``, ``poll_s`` and ``path``; then it polls until stdin ends. It prints a
line when it begins, and writes ``path`` at the end (``read_polls``).
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

WRITTEN_BY = "written_by"
READY = "polling"
_NEW = (
    "SELECT pg_current_snapshot()::text, coalesce(array_agg(value), '{{}}') FROM {table} "
    "WHERE written_by >= pg_snapshot_xmin(%(known)s::pg_snapshot) "
    "AND NOT pg_visible_in_snapshot(written_by, %(known)s::pg_snapshot)"
)


@dataclass(frozen=True)
class Polls:
    """What a reader has seen. ``asked_s``, ``answered_s``: of each poll, in seconds since the Unix epoch.
    ``numbers``: of rows, in the order of the polls that found them; ``poll``: which poll found each. ``cores``: what
    the reader used of a processor, without what the server used for it."""

    asked_s: npt.NDArray[np.float64]
    answered_s: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.int64]
    poll: npt.NDArray[np.int64]
    cores: float = 0.0

    @property
    def readable_s(self) -> npt.NDArray[np.float64]:
        """When each row was there."""
        return self.answered_s[self.poll]

    def resolution_ms(self) -> npt.NDArray[np.float64]:
        """How late each poll may notice a row at most: from the beginning of the one before to its own end."""
        return (self.answered_s[1:] - self.asked_s[:-1]) * 1e3


def read_polls(path: Path) -> Polls:
    """What a reader has written."""
    with np.load(path) as arrays:
        found = {name: arrays[name] for name in ("asked_s", "answered_s", "numbers", "poll")}
        return Polls(**found, cores=float(arrays["cores"]))


def make_table(connection: Any, table: str, columns: str) -> None:
    """A table whose new rows a reader finds by an index."""
    connection.execute(
        f"CREATE TABLE {table} ({columns}, {WRITTEN_BY} xid8 NOT NULL DEFAULT pg_current_xact_id())".encode()
    )
    connection.execute(f"CREATE INDEX ON {table} ({WRITTEN_BY})".encode())


def main() -> None:
    import psycopg

    given = json.loads(sys.stdin.readline())
    asked: list[float] = []
    answered: list[float] = []
    found: list[tuple[int, list[int]]] = []
    query = _NEW.format(table=given["table"]).encode()
    with psycopg.connect(given["dsn"], autocommit=True) as connection:
        (known,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone() or ("",)
        print(READY, flush=True)
        begun_s, before_s = time.monotonic(), time.process_time()
        while not select.select([sys.stdin], [], [], given["poll_s"])[0]:
            asked.append(time.time())
            row = connection.execute(query, {"known": known}, binary=True, prepare=True).fetchone()
            answered.append(time.time())
            assert row is not None
            known = row[0]
            if row[1]:
                found.append((len(asked) - 1, row[1]))
        cores = (time.process_time() - before_s) / (time.monotonic() - begun_s)
    np.savez(
        given["path"],
        asked_s=np.array(asked, np.float64),
        answered_s=np.array(answered, np.float64),
        numbers=np.array([number for _, numbers in found for number in numbers], np.int64),
        poll=np.array([poll for poll, numbers in found for _ in numbers], np.int64),
        cores=np.float64(cores),
    )


if __name__ == "__main__":
    main()
