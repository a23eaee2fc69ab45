"""Which run of a job may write to a table: the job's row in ``flinkplus_progress``, as the driver reads and raises it.

A transaction first locks that row. A run that begins raises ``run`` there, and from then on no transaction of an
earlier run can commit. One that is under way is ended by the run that begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from typing_extensions import override

from flinkplus.errors import InvariantViolation, JobRunsElsewhere, OutputTableError
from flinkplus.sinks.at_once.attempts import patiently
from flinkplus.sinks.base import SinkCommitter
from flinkplus.sinks.postgres.connecting import PATIENCE_S, Address, transaction
from flinkplus.sinks.postgres.table import BEGIN_LOCK_TIMEOUT, OutputTable, Progress

T = TypeVar("T")
SETTINGS = "SELECT set_config(%s, %s, false), set_config(%s, %s, false)"


class RunKeeper(SinkCommitter):
    """The driver's side of a table, without its rows. Connects for each transaction: an idle connection may be dead.
    (For a fence, see ``kept``.)

    ``sink``: its name.
    """

    patience_s = PATIENCE_S

    def __init__(self, sink: str, job_id: str, address: Address, table: OutputTable) -> None:
        self._sink = sink
        self._job_id = job_id
        self._address = address
        self._table = table
        self._check: Callable[[], None] = lambda: None
        self._run: int | None = None
        self._committed_through = 0

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._check = check

    def _transacted(
        self, action: Callable[[Any], T], patience_s: float, what: str, lock_timeout: str = BEGIN_LOCK_TIMEOUT
    ) -> T:
        def once() -> T:
            with transaction(self._address, f"{self._table}") as connection:
                connection.execute(SETTINGS, self._settings(lock_timeout))
                return action(connection)

        return patiently(once, patience_s, f"{self._table}: {what}")

    def _settings(self, lock_timeout: str) -> list[str]:
        """The values of ``SETTINGS``."""
        return ["application_name", application(self._job_id), "lock_timeout", lock_timeout]

    # --- for other tables beside the output

    def _make_beside(self, connection: Any) -> None:
        """Make what else belongs to the table."""
        return None

    def _has_output(self, connection: Any) -> bool:
        """Whether the job has written rows, of which its progress says nothing."""
        return False

    # --- before the first deployment

    @override
    def prepare(self, resume: bool) -> None:
        """A new job does not wait for a server that does not answer: its address may be wrong."""
        progress = self._transacted(
            self._take_over if resume else self._begin, self.patience_s if resume else 0.0, "ready"
        )
        self._ready(progress)

    def _ready(self, progress: Progress) -> None:
        self._run, self._committed_through = progress.run, progress.checkpoint

    def _begin(self, connection: Any) -> Progress:
        self._table.lock_names(connection)
        if not self._table.found(connection):
            self._table.make(connection)
        self._table.make_progress(connection)
        known = self._table.progress(connection, self._job_id)
        if known is not None and (known.sink != self._sink or known.checkpoint or self._has_output(connection)):
            raise OutputTableError(
                f"{self._table} holds output of sink {known.sink!r} of this job already: give each sink of a job a "
                "table of its own, or union their streams; to go on with that output, give the address as before"
            )
        self._make_beside(connection)
        return self._written(connection, Progress(self._sink, 1 if known is None else known.run + 1, 0, 0))

    def _take_over(self, connection: Any) -> Progress:
        self._check()
        self._end_earlier_runs(connection, self._job_id)
        found = self._table.found(connection)
        known = self._table.progress(connection, self._job_id) if found else None
        if known is None:
            raise OutputTableError(
                f"{self._table} does not hold the output of the job to be resumed: give the database and "
                "table that the job wrote to, or start a new job"
            )
        return self._written(connection, replace(known, sink=self._sink, run=known.run + 1))

    def _end_earlier_runs(self, connection: Any, job_id: str) -> None:
        """End what an earlier driver of a job, which may hang, has under way: it would hold the row of progress."""
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s "
            "AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() "
            "AND xact_start < now()",
            [application(job_id)],
        )

    def _written(self, connection: Any, progress: Progress) -> Progress:
        self._table.write_progress(connection, self._job_id, progress)
        self._check()  # under the lock of the row: a run that begins later raises ``run`` after this
        return progress

    # --- while the job runs

    def _locked(self, connection: Any, looked: bool = False) -> Progress:
        """The progress of this run, locked. Raises ``JobRunsElsewhere`` if another driver has taken the job over.
        ``looked``: the table was checked before by this driver, and need not be checked again."""
        if self._run is None:
            raise InvariantViolation(f"sink {self._sink!r} commits before it was prepared")
        if not looked and not self._table.found(connection):
            raise OutputTableError(f"{self._table} has gone")
        known = self._table.progress(connection, self._job_id, made=looked)
        if known is None or known.checkpoint < self._committed_through:
            raise OutputTableError(
                f"{self._table}: the job's row of progress is missing or older than it was; the database "
                "was changed or restored, and rows may be missing"
            )
        if known.run != self._run:
            raise JobRunsElsewhere(f"another driver has taken over the job that writes {self._table}")
        return known


def application(job_id: str) -> str:
    """What the server calls the connections of a job's driver."""
    return f"flinkplus/{job_id}"[:63]
