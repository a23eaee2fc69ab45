"""The runs: a job at a steady rate with a reader beside it and a kill, a job at unlimited rate, and plain ``COPY``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from experiments.harness.postgres_server import PostgresServer
from experiments.harness.running import Context, JobSettings, RunError, run_until, wait_until
from experiments.visibility import job as drawn
from experiments.visibility import measure
from experiments.visibility.reader import READY, Polls, make_table, read_polls
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle

ROOT = Path(__file__).resolve().parents[2]
SETTLE_S = 3.0
"""How long a job runs before it is measured."""
CALM_S, AFTER_S = 1.5, 4.0
"""Of input around a kill, at least: before it, so that rows of the time measured are there; and after it."""
PATIENCE_S = 60.0
COUNT_S = 0.02
COPIED_ROWS = 1_000_000
PROGRESS = {
    "at_once": "SELECT coalesce(sum(rows), 0) FROM flinkplus_steps WHERE job = %s",
    "checkpoint": "SELECT coalesce(sum(rows), 0) FROM flinkplus_progress WHERE job = %s",
}
"""How many rows of a job are in the table, which is written in the same transactions: counting them would cost more."""


@contextlib.contextmanager
def server(dsn: str | None) -> Iterator[str]:
    """The DSN of a server: the given one, or that of a server of its own with PostgreSQL's default settings."""
    if dsn is not None:
        yield dsn
        return
    own = PostgresServer(None)
    try:
        yield own.dsn
    finally:
        own.close()


@contextlib.contextmanager
def reader(dsn: str, table: str, poll_s: float, path: Path) -> Iterator[Callable[[], Polls]]:
    """A reader in a process of its own; the value ends it and returns what it has seen."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.visibility.reader"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the experiment, which ends it
    )
    assert process.stdin is not None and process.stdout is not None

    def polls() -> Polls:
        assert process.stdin is not None
        process.stdin.close()
        if process.wait(PATIENCE_S):
            raise RunError(f"the reader ended with {process.returncode}")
        return read_polls(path)

    try:
        process.stdin.write(json.dumps({"dsn": dsn, "table": table, "poll_s": poll_s, "path": str(path)}) + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != READY:
            raise RunError("the reader could not begin")
        yield polls
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):
            process.stdin.close()


class SteadyRun:
    """A job at a steady rate. ``figures``: as far as they are known, also when it fails.

    ``table``: its name, which no other run has. ``chance``: decides when and where the kill comes.
    """

    def __init__(
        self,
        context: Context[Any],
        dsn: str,
        visibility: str,
        flush_interval: float | None,
        table: str,
        chance: np.random.Generator,
    ) -> None:
        settings = context.settings
        self._context, self._dsn, self._visibility, self._table = context, dsn, visibility, table
        self._options = options_of(settings, flush_interval)
        self._after_s = SETTLE_S + settings.seconds
        self._kill_after_s = self._after_s + CALM_S + settings.interval * float(chance.random())
        self._struck = int(chance.integers(settings.parallelism))
        length_s = self._kill_after_s + AFTER_S + settings.interval if settings.kill else self._after_s
        self._count = round(settings.rate * length_s)
        self._layout = drawn.layout(settings.parallelism, settings.rate)
        self.figures: dict[str, Any] = {name: None for name in ("p50_ms", "p99_ms", "max_ms", "around_kill_ms")}
        self.figures |= {"exact": False, "killed_at_s": None}

    def run(self) -> None:
        """Raises ``RunError``, and what the job raises."""
        settings = self._context.settings
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            make_table(connection, self._table, drawn.COLUMNS)
        env = StreamEnvironment(self._context.spark, **self._options)
        drawn.draw(env, self._dsn, self._table, self._visibility, self._count, settings.rate)
        path = self._context.directory / f"{self._table}.npz"
        with (
            reader(self._dsn, self._table, settings.poll_ms / 1e3, path) as polls,
            env.execute("visibility") as job,
        ):
            origin_s, killed_s = self._carry_out(job)
            time.sleep(settings.poll_ms / 1e3)
            seen = polls()
            recoveries = job.recoveries()
        self.figures |= measure.resolution_figures(seen)
        self.figures["recoveries"] = len(recoveries)
        self.figures["phases_ms"] = [
            {name: value for name, value in recovery.items() if name.endswith("_ms")} for recovery in recoveries
        ]
        self._check()
        times = measure.times_ms(seen, self._layout, origin_s, self._count)
        self.figures |= measure.steady_figures(times, self._layout, SETTLE_S, self._after_s)
        if killed_s is not None:
            self.figures |= measure.kill_figures(times, self._layout, killed_s - origin_s)

    def _carry_out(self, job: JobHandle) -> tuple[float, float | None]:
        """The job to its end; returns when its first row was due, and when a slot was killed."""
        settings, stop = self._context.settings, self._context.stop
        deadline = time.monotonic() + PATIENCE_S + self._count / settings.rate
        killed_s = None
        run_until(job, SETTLE_S, stop)
        origin_s = time.time() - (job.running_s or 0.0)
        if settings.kill:
            run_until(job, self._kill_after_s, stop)
            self.figures["missing_standbys"] = job.missing_standbys()
            killed_s = time.time()
            if not job.kill(f"{drawn.NUMBER}[{self._struck}]"):
                raise RunError("the input ended before the kill")
            self.figures["killed_at_s"] = round(killed_s - origin_s, 3)
        wait_until(job, lambda: job.done, deadline, stop)
        job.await_finish()
        return origin_s, killed_s

    def _check(self) -> None:
        """Compare the table with the input."""
        with psycopg.connect(self._dsn) as connection:
            rows = connection.execute(f"SELECT key, value, n FROM {self._table}".encode()).fetchall()
        keys, values, ns = np.array(rows, np.int64).reshape(-1, 3).T
        found = drawn.check(keys, values, ns, self._count)
        self.figures |= {"exact": found.exact, "lost": found.lost, "doubled": found.doubled, "wrong": found.wrong}


def options_of(settings: Any, flush_interval: float | None) -> dict[str, Any]:
    """The options of a job."""
    options: JobSettings = settings
    return {
        "parallelism": settings.parallelism,
        "checkpoint_interval": settings.interval,
        "flush_interval": flush_interval,
        **options.job_options(),
    }


def throughput(
    context: Context[Any], dsn: str, visibility: str, flush_interval: float | None, table: str
) -> dict[str, Any]:
    """Rows per second of a job at unlimited rate, by what is in the table. Raises as ``run_until``, and ``RunError``
    when the table has another number of rows than the job has recorded with them."""
    env = StreamEnvironment(context.spark, **options_of(context.settings, flush_interval))
    drawn.draw(env, dsn, table, visibility, None, None)
    samples: list[tuple[float, int]] = []
    with env.execute("visibility") as job, psycopg.connect(dsn, autocommit=True) as connection:
        run_until(job, SETTLE_S, context.stop)
        until_s = time.monotonic() + context.settings.seconds
        while time.monotonic() < until_s:
            row = connection.execute(PROGRESS[visibility].encode(), [job.job_id]).fetchone()
            samples.append((time.monotonic(), int(row[0] if row else 0)))
            run_until(job, 0.0, context.stop)
            time.sleep(COUNT_S)
        job.cancel()
        recorded = connection.execute(PROGRESS[visibility].encode(), [job.job_id]).fetchone()
        counted = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        if recorded != counted:
            raise RunError(f"{counted} rows are in the table, and {recorded} are recorded")
    return {"rows_per_s": measure.rate_between_changes(samples)}


def copied(dsn: str, table: str, rows: int = COPIED_ROWS) -> dict[str, Any]:
    """Rows per second of one client with one ``COPY`` of the same rows, which are CSV before it begins."""
    pieces = list(drawn.csv_pieces(drawn.numbered_rows(rows)))
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE TABLE {table} ({drawn.COLUMNS})".encode())
        connection.commit()
        begun_s = time.monotonic()
        with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv)".encode()) as copy:
            for piece in pieces:
                copy.write(piece)
        connection.commit()
        took_s = time.monotonic() - begun_s
    return {"rows_per_s": round(rows / took_s, 1)}


def dropped(dsn: str, table: str) -> None:
    """Remove a table, if it was made."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
