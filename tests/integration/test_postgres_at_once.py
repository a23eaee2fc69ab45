"""Jobs whose rows are visible in PostgreSQL at once: slots, drivers and the server killed with SIGKILL. A reader that
polls meanwhile finds each row once, and none that is ever taken back."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from tests.integration.conftest import PATIENCE_S, wait_until
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")

ROWS, KEYS = 6_000, 37
EXPECTED = Counter((f"w{i % KEYS}", i // KEYS + 1) for i in range(ROWS))


def counting(spark: SparkSession, postgres: PostgresServer, rate: float, **options: Any) -> StreamEnvironment:
    """Counts of words, to a table of all rows, at once."""
    env = StreamEnvironment(spark, checkpoint_interval=0.5, **{"parallelism": 2, **options})
    words = env.generate(lambda i: f"w{i % KEYS}", schema="word string", count=ROWS, rate=rate, name="words")
    counts = words.key_by("word").count(name="count")
    counts.to_postgres(postgres.dsn, "every", name="every", visibility="at_once")
    return env


class Reader:
    """Polls the table, and notes all that is wrong: a row twice, a gap in the counts of a word, fewer rows than before.
    All rows of a word come from one subtask, in order."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._postgres = postgres
        self.wrong: list[Any] = []
        self.rows = 0
        self._seen: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(0.01):
            try:
                rows = self._postgres.execute(
                    "SELECT word, count(*), max(count), min(count) FROM every GROUP BY word"
                )
            except Exception:  # the server is away, or the table is not made yet
                continue
            for word, number, highest, lowest in rows:
                if number != highest or lowest != 1 or number < self._seen[word]:
                    self.wrong.append((word, number, highest, lowest, self._seen[word]))
                self._seen[word] = number
            self.rows = sum(self._seen.values())

    def await_rows(self, rows: int) -> None:
        wait_until(lambda: self.rows >= rows, f"{rows} visible rows")


def every(postgres: PostgresServer) -> Counter[Any]:
    return Counter(postgres.execute("SELECT word, count FROM every"))


@pytest.mark.parametrize("recovery", ["standby", "rollback", "partial"])
def test_slots_are_killed(spark: SparkSession, postgres: PostgresServer, recovery: str) -> None:
    with (
        Reader(postgres) as reader,
        counting(spark, postgres, 2_000.0, recovery=recovery).execute(f"killed-{recovery}") as job,
    ):
        reader.await_rows(1_000)
        assert job.kill("count:1")
        wait_until(lambda: bool(job.recoveries()), "a recovery")
        reader.await_rows(3_000)
        assert job.kill("count:0")
        job.await_finish(PATIENCE_S)
    assert reader.wrong == []
    assert every(postgres) == EXPECTED
