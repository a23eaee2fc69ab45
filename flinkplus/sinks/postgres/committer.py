"""The driver's side of a table: the files that a checkpoint describes are copied into it, all in one transaction.

Rules and invariants:

- One transaction has the rows, and the checkpoint up to which rows are in the table. So a commit that is repeated, by
  this driver or by the next one, finds what it has left to do, also when the answer to the first was lost.
- A transaction first locks the job's row of progress, and only those of the newest run can commit (``run_keeper``).
- Staged files are removed after their rows are committed; what nothing describes any more goes with the next commit
  of a new generation, or at the end.
- What is committed stays: ``retract_after`` refuses to go back behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from flinkplus.errors import OutputTableError
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import not_yet_committed
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.postgres.connecting import Address
from flinkplus.sinks.postgres.run_keeper import RunKeeper
from flinkplus.sinks.postgres.table import COMMIT_LOCK_TIMEOUT, OutputTable, Progress
from flinkplus.sinks.staging import LastingCommitter, StagingFolder, written_order


class PostgresCommitter(LastingCommitter, RunKeeper):
    """Commits the rows of one sink. ``staging``: the folder in ``files`` where its rows are staged."""

    def __init__(
        self, sink: str, job_id: str, address: Address, table: OutputTable, files: OutputFiles, staging: str
    ) -> None:
        super().__init__(sink, job_id, address, table)
        self._files = files
        self._staging = StagingFolder(files, staging)

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        super().allow_only_if(check)
        self._files.check = check

    @override
    def _ready(self, progress: Progress) -> None:
        super()._ready(progress)
        self._staging.make()

    # --- before the first deployment ----------------------------------------------------------------------------------

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
        self._staging.remove_committed(checkpoint, files)

    def _commit(self, connection: Any, checkpoint: int, files: Sequence[StagedFile]) -> int:
        known = self._locked(connection)
        new = not_yet_committed(files, known.checkpoint)
        if not new:
            return known.checkpoint
        self._table.load(connection, map(self._pieces, sorted(new, key=written_order)))
        through, rows = max(file.checkpoint for file in new), sum(file.rows for file in new)
        self._table.write_progress(connection, self._job_id, replace(known, checkpoint=through, rows=known.rows + rows))
        return through

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
    def _last_committed(self) -> int:
        return self._transacted(self._locked, self.patience_s, "read").checkpoint

    @override
    def _lasts(self, checkpoint: int, consequence: str) -> OutputTableError:
        return OutputTableError(
            f"{self._table} holds the rows of checkpoint {checkpoint}, and what is committed to a table {consequence}"
        )
