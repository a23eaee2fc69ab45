"""The driver's side of a Delta table: the files that a checkpoint describes are added to it, all in one commit.

Staged files are moved into the table's directory, which is no part of the table; then one commit names them.

Rules and invariants:

- A commit also sets the version of the application ``flinkplus-<job>`` (Delta's ``txn`` action) to the checkpoint up to
  which rows are in the table. So a commit that is repeated, by this driver or by the next one, finds what is left.
- A run that begins sets that version too, to what it was. A commit of an earlier run that is based on what was before
  then conflicts with it; before each further one the earlier run finds that it has been replaced (``check``). The order
  is: read the table, check, commit.
- A new job that continues the table sets the version of the old one to ``TAKEN``.
- The version of ``flinkplus-<job>:sink`` says which sink of the job writes (``mark_of``). It is set with the first one,
  and looked at before each commit: two sinks of a job must not take each other's version for theirs.
- What is committed stays: ``retract_after`` refuses to go back behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from flinkplus.errors import OutputTableError
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import not_yet_committed
from flinkplus.sinks.delta.table import AddedFile, DeltaOutput, attempts, version_of
from flinkplus.sinks.file_names import OWNER_FILE
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.partitions import values_of
from flinkplus.sinks.spark_log import LOG_DIRECTORY
from flinkplus.sinks.staging import LastingCommitter, StagingFolder, placed_name

TAKEN = 1 << 62
"""The version of a job whose table another job has taken over."""
MARK_BYTES = 7
"""A version is a signed number of 8 bytes."""
COMMIT_ATTEMPTS = 10
"""When other writers are faster; the coordinator repeats a failed commit several times."""


class DeltaCommitter(LastingCommitter):
    """Commits the files of one sink. ``files``: the table's directory; ``staging``: the folder in it."""

    def __init__(self, sink: str, job_id: str, output: DeltaOutput, files: OutputFiles, staging: str) -> None:
        self._sink = sink
        self._job_id = job_id
        self._output = output
        self._files = files
        self._staging = StagingFolder(files, staging)
        self._committed_through = 0

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._files.check = check

    def _versions(self, checkpoint: int) -> dict[str, int]:
        return {application(self._job_id): checkpoint}

    def _first_versions(self, checkpoint: int) -> dict[str, int]:
        return {**self._versions(checkpoint), f"{application(self._job_id)}:sink": mark_of(self._sink)}

    def _is_mine(self, table: Any) -> bool:
        """Whether this sink is the one of the job that writes."""
        return version_of(table, f"{application(self._job_id)}:sink") == mark_of(self._sink)

    def _shared(self) -> OutputTableError:
        return OutputTableError(
            f"{self._output} holds output of this job already: give each sink of a job a table of its own, or "
            "union their streams; to go on with that output, give the path as before"
        )

    # --- before the first deployment ----------------------------------------------------------------------------------

    @override
    def prepare(self, resume: bool) -> None:
        attempts(self._take_over if resume else self._begin, COMMIT_ATTEMPTS)
        self._staging.make()

    def _begin(self) -> None:
        table = self._output.load()
        if table is None:
            self._check_no_data()
            self._files.check()
            self._output.make(self._first_versions(0))
        else:
            known = version_of(table, application(self._job_id))
            if known is not None and (known > 0 or not self._is_mine(table)):
                raise self._shared()
            self._commit_versions(table, self._first_versions(0))
        self._committed_through = 0

    def _commit_versions(self, table: Any, versions: Mapping[str, int]) -> None:
        self._files.check()
        table = self._output.fit(table)  # which reads the table again, if it has changed it
        self._files.check()
        self._output.commit(table, versions)

    def _check_no_data(self) -> None:
        other = next((name for name in (OWNER_FILE, LOG_DIRECTORY) if self._files.info(name) is not None), None)
        found = other or next((name for name, _ in self._files.data_files()), None)
        if found is not None:
            raise OutputTableError(
                f"{self._output} does not exist, and there is other data in its place ({printable(found)}): choose "
                "another path"
            )

    def _take_over(self) -> None:
        table = self._output.load()
        known = None if table is None else version_of(table, application(self._job_id))
        if known is None:
            raise OutputTableError(
                f"{self._output} does not hold the output of the job to be resumed: give the path that the job wrote "
                "to, unchanged, or start a new job"
            )
        self._check_not_taken(known)
        self._commit_versions(table, self._first_versions(known))
        self._committed_through = known

    def _check_not_taken(self, known: int) -> None:
        if known == TAKEN:
            raise OutputTableError(
                f"{self._output} belongs to another job now, which was started from a savepoint of this one"
            )

    # --- a new job that starts from a savepoint

    @override
    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        table = self._output.load()
        if table is None:
            self._check_no_data()
            return
        self._former(table, job_id, checkpoint)
        self._output.fit(table, change=False)

    def _former(self, table: Any, job_id: str | None, checkpoint: int) -> int | None:
        """The version of the job ``job_id``; ``None``: it has written nothing here, or this job has taken over.

        Raises ``OutputTableError`` for rows after ``checkpoint``.
        """
        known = None if job_id is None else version_of(table, application(job_id))
        if known is None or (known == TAKEN and version_of(table, application(self._job_id)) is not None):
            return None
        self._check_not_taken(known)
        if known > checkpoint:
            raise OutputTableError(
                f"{self._output} holds the rows of checkpoint {known} of the job that the savepoint is of, and the "
                f"savepoint is of checkpoint {checkpoint}: what comes after it would be there twice; give another "
                "path, or the newest savepoint, taken with stop_with_savepoint"
            )
        return known

    @override
    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        def take_over() -> None:
            table = self._output.load()
            former = None if table is None else self._former(table, job_id, checkpoint)
            if former is None:
                is_mine = table is not None and version_of(table, application(self._job_id)) is not None
                return self._take_over() if is_mine else self._begin()
            assert job_id is not None
            self._commit_versions(table, {application(job_id): TAKEN, **self._first_versions(checkpoint)})
            self._committed_through = checkpoint

        attempts(take_over, COMMIT_ATTEMPTS)
        self._staging.make()

    # --- while the job runs -------------------------------------------------------------------------------------------

    def _current(self) -> tuple[Any, int]:
        """The table, and up to which checkpoint this job's rows are in it."""
        table = self._output.load()
        if table is None:
            raise OutputTableError(f"{self._output} has gone")
        known = version_of(table, application(self._job_id))
        if known is None or known < self._committed_through:
            raise OutputTableError(
                f"{self._output} has lost commits of this job: it was restored or made anew, and rows may be missing"
            )
        self._check_not_taken(known)
        if not self._is_mine(table):
            raise self._shared()
        return table, known

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        if not_yet_committed(files, self._committed_through):
            attempts(lambda: self._commit(files), COMMIT_ATTEMPTS)
        if self._staging.is_new_generation(files):
            self._staging.sweep(checkpoint, {file.name for file in files})
        self._files.uploads.abort_old(self._staging.name)

    def _commit(self, files: Sequence[StagedFile]) -> None:
        table, known = self._current()
        new = not_yet_committed(files, known)
        if new:
            table = self._output.fit(table, change=False)
            added = [self._placed(file) for file in new]
            self._files.check()
            known = max(file.checkpoint for file in new)
            self._output.commit(table, self._versions(known), added)
        self._committed_through = known

    def _placed(self, file: StagedFile) -> AddedFile:
        """The file in the table's directory."""
        entry = self._staging.place(file)
        if entry is None:
            raise self._lost(file)
        return AddedFile(placed_name(file), entry.size, file.rows, entry.modified_ms, values_of(file.folder))

    def _lost(self, file: StagedFile) -> OutputTableError:
        return OutputTableError(
            f"{self._output}: file {placed_name(file)} of checkpoint {file.checkpoint} is missing or has not the "
            f"{file.bytes} bytes that were written; something else changed the directory"
        )

    @override
    def _last_committed(self) -> int:
        return self._current()[1]

    @override
    def _lasts(self, checkpoint: int, consequence: str) -> OutputTableError:
        return OutputTableError(
            f"{self._output} holds the rows of checkpoint {checkpoint}, and what is committed to a table {consequence}"
        )


def application(job_id: str) -> str:
    """The ID of a job's transactions in Delta's log."""
    return f"flinkplus-{job_id}"


def mark_of(sink: str) -> int:
    """A sink's name as a version."""
    return int.from_bytes(hashlib.blake2b(sink.encode(), digest_size=MARK_BYTES).digest(), "big")
