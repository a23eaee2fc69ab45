"""The driver's side of a table: the files that a checkpoint describes are copied into it, all in one transaction.

Rules and invariants:

- One transaction has the rows, and the checkpoint up to which rows are in the table. So a commit that is repeated, by
  this driver or by the next one, finds what it has left to do, also when the answer to the first was lost.
- A transaction first locks the job's row of progress. A run that begins raises ``run`` there, and from then on no
  transaction of an earlier run can commit. One that is under way is ended by the run that begins.
- Staged files are removed after their rows are committed; what nothing describes any more goes with the next commit
  of a new generation, or at the end.
- What is committed stays: ``retract_after`` refuses to go back behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from typing_extensions import override

from flinkplus.errors import InvariantViolation, JobRunsElsewhere, OutputTableError
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import SinkCommitter, not_yet_committed
from flinkplus.sinks.file_names import PartName
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.postgres.connecting import PATIENCE_S, Address, patiently, transaction
from flinkplus.sinks.postgres.table import BEGIN_LOCK_TIMEOUT, COMMIT_LOCK_TIMEOUT, OutputTable, Progress
from flinkplus.sinks.staging import StagingFolder

T = TypeVar("T")
log = logging.getLogger("flinkplus")


class PostgresCommitter(SinkCommitter):
    """Commits the rows of one sink. Connects for each transaction: an idle connection may be dead.

    ``sink``: its name. ``staging``: the folder in ``files`` where its rows are staged.
    """

    patience_s = PATIENCE_S

    def __init__(
        self, sink: str, job_id: str, address: Address, table: OutputTable, files: OutputFiles, staging: str
    ) -> None:
        self._sink = sink
        self._job_id = job_id
        self._address = address
        self._table = table
        self._files = files
        self._staging = StagingFolder(files, staging)
        self._check: Callable[[], None] = lambda: None
        self._run: int | None = None
        self._committed_through = 0

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._check = self._files.check = check

    def _transacted(
        self, action: Callable[[Any], T], patience_s: float, what: str, lock_timeout: str = BEGIN_LOCK_TIMEOUT
    ) -> T:
        def once() -> T:
            with transaction(self._address, f"{self._table}") as connection:
                settings = ["application_name", _application(self._job_id), "lock_timeout", lock_timeout]
                connection.execute("SELECT set_config(%s, %s, false), set_config(%s, %s, false)", settings)
                return action(connection)

        return patiently(once, patience_s, f"{self._table}: {what}")

    # --- before the first deployment ----------------------------------------------------------------------------------

    @override
    def prepare(self, resume: bool) -> None:
        """A new job does not wait for a server that does not answer: its address may be wrong."""
        progress = self._transacted(
            self._take_over if resume else self._begin, self.patience_s if resume else 0.0, "ready"
        )
        self._ready(progress)

    def _ready(self, progress: Progress) -> None:
        self._run, self._committed_through = progress.run, progress.checkpoint
        self._staging.make()

    def _begin(self, connection: Any) -> Progress:
        self._table.lock_names(connection)
        if not self._table.found(connection):
            self._table.make(connection)
        self._table.make_progress(connection)
        known = self._table.progress(connection, self._job_id)
        if known is not None and (known.sink != self._sink or known.checkpoint):
            raise OutputTableError(
                f"{self._table} holds output of sink {known.sink!r} of this job already: give each sink of a job a "
                "table of its own, or union their streams; to go on with that output, give the address as before"
            )
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

    @override
    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        self._transacted(lambda connection: self._former(connection, job_id, checkpoint), 0.0, "ready")

    def _former(self, connection: Any, job_id: str | None, checkpoint: int) -> Progress | None:
        """The progress of the job ``job_id``; ``None``: it has written nothing here. Raises ``OutputTableError`` for
        rows after ``checkpoint``."""
        if job_id is None or not self._table.found(connection):
            return None
        known = self._table.progress(connection, job_id)
        if known is not None and known.checkpoint > checkpoint:
            raise OutputTableError(
                f"{self._table} holds the rows of checkpoint {known.checkpoint} of the job that the savepoint is of, "
                f"and the savepoint is of checkpoint {checkpoint}: what comes after it would be there twice; give "
                "another table, or the newest savepoint, taken with stop_with_savepoint"
            )
        return known

    @override
    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        def take_over(connection: Any) -> Progress:
            self._check()
            if job_id is not None:
                self._end_earlier_runs(connection, job_id)
            former = self._former(connection, job_id, checkpoint)
            if job_id is not None and former is not None:
                self._table.write_progress(connection, job_id, replace(former, run=former.run + 1))
            return self._begin(connection)

        self._ready(self._transacted(take_over, self.patience_s, "ready"))

    def _end_earlier_runs(self, connection: Any, job_id: str) -> None:
        """End what an earlier driver of a job, which may hang, has under way: it would hold the row of progress."""
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s "
            "AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() "
            "AND xact_start < now()",
            [_application(job_id)],
        )

    def _written(self, connection: Any, progress: Progress) -> Progress:
        self._table.write_progress(connection, self._job_id, progress)
        self._check()  # under the lock of the row: a run that begins later raises ``run`` after this
        return progress

    # --- while the job runs -------------------------------------------------------------------------------------------

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        if not_yet_committed(files, self._committed_through):
            self._committed_through = self._transacted(
                lambda connection: self._commit(connection, checkpoint, files),
                self.patience_s,
                f"checkpoint {checkpoint} is committed",
                COMMIT_LOCK_TIMEOUT,
            )
        is_new = self._staging.is_new_generation(files)
        for file in files:
            self._files.delete(self._staging.path(file.name))
        if is_new:
            self._staging.sweep(checkpoint)
        self._files.uploads.abort_old(self._staging.name)

    def _commit(self, connection: Any, checkpoint: int, files: Sequence[StagedFile]) -> int:
        known = self._locked(connection)
        new = not_yet_committed(files, known.checkpoint)
        if not new:
            return known.checkpoint
        self._table.load(connection, map(self._pieces, sorted(new, key=_order)))
        through, rows = max(file.checkpoint for file in new), sum(file.rows for file in new)
        self._table.write_progress(connection, self._job_id, replace(known, checkpoint=through, rows=known.rows + rows))
        return through

    def _locked(self, connection: Any) -> Progress:
        """The progress of this run, locked. Raises ``JobRunsElsewhere`` if another driver has taken the job over."""
        if self._run is None:
            raise InvariantViolation(f"sink {self._sink!r} commits before it was prepared")
        if not self._table.found(connection):
            raise OutputTableError(f"{self._table} has gone")
        known = self._table.progress(connection, self._job_id)
        if known is None or known.checkpoint < self._committed_through:
            raise OutputTableError(
                f"{self._table}: the job's row of progress is missing or older than it was; the database "
                "was changed or restored, and rows may be missing"
            )
        if known.run != self._run:
            raise JobRunsElsewhere(f"another driver has taken over the job that writes {self._table}")
        return known

    def _pieces(self, file: StagedFile) -> Iterator[bytes]:
        """The content of a staged file. Raises ``OutputTableError`` if it is missing or has another size."""
        size = 0
        try:
            for piece in self._files.chunks(self._staging.path(file.name)):
                size += len(piece)
                yield piece
        except FileNotFoundError:
            size = -1
        if size != file.bytes:
            raise OutputTableError(
                f"{self._table}: staged file {file.name} of checkpoint {file.checkpoint} is missing in "
                f"{self._files.location!r} or has not the {file.bytes} bytes that were written"
            )

    @override
    def retract_after(self, checkpoint: int | None) -> None:
        through = checkpoint or 0
        committed = self._transacted(self._locked, self.patience_s, "read").checkpoint
        if committed > through:
            raise OutputTableError(
                f"{self._table} holds the rows of checkpoint {committed}, and what is committed to a table cannot be "
                f"taken back: the job cannot continue from {f'checkpoint {through}' if through else 'the start'}"
            )
        self._staging.remove_after(through)

    # --- at the end ---------------------------------------------------------------------------------------------------

    @override
    def finish(self) -> None:
        self.discard()

    @override
    def discard(self) -> None:
        self._staging.discard()


def _application(job_id: str) -> str:
    """What the server calls the connections of a job's driver."""
    return f"flinkplus/{job_id}"[:63]


def _order(file: StagedFile) -> tuple[int, ...]:
    """The rows of one subtask in the order in which it wrote them."""
    part = PartName.parse(file.name)
    return (file.checkpoint,) if part is None else (file.checkpoint, part.subtask, part.generation, part.number)
