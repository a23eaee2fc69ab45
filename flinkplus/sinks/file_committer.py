"""The driver's side of the file sinks: staged files are moved into the output directory, then listed, all at once.

The output directory::

    part-c00000007-s1-g2-0-1a2b3c4d.parquet   committed (or about to be: visible only once it is listed)
    day=2026-11-27/part-...                   the same, in the folder of a partition
    _spark_metadata/                          the list of committed files (spark_log.py)
    _staging/<job id>/                        what the running job has staged or is writing
    _flinkplus.json                           which job and which sink of it write here

Invariants: a listed file exists, whole, from before it is listed until it is no longer listed. A file is moved only
when the checkpoint that covers it is complete. The highest checkpoint in the names of the job's listed files is the
only record of what is committed. Files of generations that were rolled back are removed at the latest by ``finish``.
What others have written to the directory (``append``) is listed from the start, and never touched; nor is what they
put there later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from flinkplus.errors import OutputDirectoryError
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import SinkCommitter, not_yet_committed
from flinkplus.sinks.earlier import EarlierData, OutputForm
from flinkplus.sinks.file_names import OWNER_FILE, STAGING_DIRECTORY, PartName, job_tag, staging_directory
from flinkplus.sinks.files import TEMPORARY_SUFFIX, OutputFiles
from flinkplus.sinks.spark_log import LOG_DIRECTORY, LoggedFile, SparkFileLog, logged
from flinkplus.sinks.staging import StagingFolder, is_later, placed_name

OWNER_FORMAT = 2


class FileCommitter(SinkCommitter):
    """Commits the files of one sink."""

    def __init__(self, files: OutputFiles, job_id: str, sink: str, form: OutputForm) -> None:
        self._files = files
        self._owner = {"format": OWNER_FORMAT, "job": job_id, "sink": sink}
        self._job_id = job_id
        self._tag = job_tag(job_id)
        self._staging = StagingFolder(files, staging_directory(job_id))
        self._form = form
        self._log = SparkFileLog(files)
        self._committed_through: int | None = None  # None: not read from the log yet
        self._is_fenced = False  # whether writes of earlier drivers have no effect any more

    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._files.check = check

    # --- before the first deployment ----------------------------------------------------------------------------------

    def prepare(self, resume: bool) -> None:
        try:
            self._prepare_resumed() if resume else self._prepare_new()
            self._staging.make()
        except OSError as error:
            raise OutputDirectoryError(f"output directory {self._files.location}: {error}") from error
        with self._loaded():
            return

    def _prepare_new(self) -> None:
        self._files.make_dir()
        before = self._owner_file()
        earlier: Sequence[LoggedFile] = ()
        if self._form.append:
            earlier = self._earlier(self._parsed(before))
        elif (blocking := self._what_is_in_the_way()) is not None:
            raise OutputDirectoryError(
                f"output directory {self._files.location} is not empty (it holds {printable(blocking)}): "
                "choose another one, remove it, or resume the job that wrote it; to_parquet adds to it with append=True"
            )
        self._take(before)
        self._log.create(earlier)

    def _earlier(self, owner: object) -> Sequence[LoggedFile]:
        """What is in the directory and not listed. Raises ``OutputDirectoryError`` if this output cannot be added."""
        return EarlierData(self._files, self._log, self._form).files(owner, self._owner)

    def _prepare_resumed(self) -> None:
        before = self._owner_file()
        owner = self._parsed(before)
        if not self._is_of(owner, self._job_id):
            raise OutputDirectoryError(
                f"output directory {self._files.location} does not hold the output of the job to be resumed: "
                "give the directory that the job wrote to, unchanged, or start a new job"
            )
        if owner != self._owner:  # the sink was renamed
            self._take(before)
        if not self._log.is_made() and not any(self._own(entry.name) for _, entry in self._files.data_files()):
            self._prepare_new()  # a run before died while it did so; with files of the job, its list was lost

    def _take(self, before: bytes | None) -> None:
        """Make the directory this job's. ``before``: the file that says whose it was."""
        mine = json.dumps(self._owner).encode()
        files = self._files
        if not (files.create(OWNER_FILE, mine) if before is None else files.swap(OWNER_FILE, before, mine)):
            raise OutputDirectoryError(
                f"output directory {files.location} was taken by another job at the same time: choose another one"
            )

    def _what_is_in_the_way(self) -> str | None:
        """The name of an entry that belongs neither to this job nor to one that ended before its first commit."""
        is_mine = self._read_owner() == self._owner

        def is_in_the_way(name: str) -> bool:
            if name == LOG_DIRECTORY:
                return not self._log.is_empty()
            unfinished = name.startswith(f".{OWNER_FILE}.") and name.endswith(TEMPORARY_SUFFIX)
            return not (unfinished or name == OWNER_FILE or (name == STAGING_DIRECTORY and is_mine))

        return next((entry.name for entry in self._files.entries() if is_in_the_way(entry.name)), None)

    def _owner_file(self) -> bytes | None:
        try:
            return self._files.read(OWNER_FILE)
        except FileNotFoundError:
            return None

    def _read_owner(self) -> object:
        return self._parsed(self._owner_file())

    def _parsed(self, owner_file: bytes | None) -> object:
        try:
            return None if owner_file is None else json.loads(owner_file)
        except (ValueError, RecursionError) as error:
            raise OutputDirectoryError(
                f"output directory {self._files.location}: {OWNER_FILE} is damaged ({error}); choose another directory"
            ) from error

    # --- a new job that starts from a savepoint

    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        try:
            owner = self._read_owner()
            if job_id is not None and self._is_of(owner, job_id):
                self._check_nothing_after(job_id, checkpoint)
            elif owner == self._owner:
                return
            elif self._form.append:
                self._earlier(owner)
            elif (blocking := self._what_is_in_the_way()) is not None:
                raise OutputDirectoryError(
                    f"output directory {self._files.location} holds neither the output of the job that the savepoint "
                    f"was taken of, nor nothing (it holds {printable(blocking)}): choose another one"
                )
        except OSError as error:
            raise OutputDirectoryError(f"output directory {self._files.location}: {error}") from error

    def _check_nothing_after(self, job_id: str, checkpoint: int) -> None:
        with self._loaded():
            committed = _highest_checkpoint(self._log.last_batch(), job_tag(job_id))
            if committed > checkpoint:
                raise OutputDirectoryError(
                    f"output directory {self._files.location} holds output up to checkpoint {committed}, and "
                    f"the savepoint is of checkpoint {checkpoint}: what comes after it would be there twice; choose "
                    "another directory, or the newest savepoint, taken with stop_with_savepoint"
                )

    def _is_of(self, owner: object, job_id: str | None) -> bool:
        """Whether an output is that of a job; its sink may have had another name."""
        return isinstance(owner, dict) and {**owner, "sink": ""} == {**self._owner, "job": job_id, "sink": ""}

    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        self.check_successor(job_id, checkpoint)
        try:
            before = self._owner_file()
            if self._is_of(self._parsed(before), job_id):
                self._take(before)
            is_mine = self._read_owner() == self._owner
        except OSError as error:
            raise OutputDirectoryError(f"output directory {self._files.location}: {error}") from error
        self.prepare(resume=is_mine)

    def _check_owner(self) -> None:
        """Raises ``OutputDirectoryError`` once another job has taken over (``succeed``)."""
        owner = self._read_owner()
        if owner is not None and owner != self._owner:
            raise OutputDirectoryError(
                f"output directory {self._files.location} belongs to another job now, which was started from a "
                "savepoint of this one, or adds to its output"
            )

    # --- while the job runs -------------------------------------------------------------------------------------------

    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        self._check_owner()
        with self._loaded() as committed_through:
            new = not_yet_committed(files, committed_through)
            names = {file.name for file in new}
            for file in files:
                if file.name not in names and self._files.info(placed_name(file)) is None:
                    raise self._lost(file)
            entries = [self._placed(file) for file in new]
            if entries:
                self._log.append(entries)
                self._committed_through = max(file.checkpoint for file in new)
            if self._staging.is_new_generation(new):
                self._staging.sweep(checkpoint, {file.name for file in files})
            self._files.uploads.abort_old(self._staging.name)

    def retract_after(self, checkpoint: int | None) -> None:
        self._check_owner()
        with self._loaded():
            if not self._is_fenced:
                self._log.fence()
                self._is_fenced = True
            self._log.retain(lambda entry: not is_later(self._own(entry.name), checkpoint))
            for name, entry in self._files.data_files():
                if is_later(self._own(entry.name), checkpoint):
                    self._files.delete(name)
            self._staging.remove_after(checkpoint)
            self._committed_through = _highest_checkpoint(self._log.last_batch(), self._tag)

    def _own(self, name: str) -> PartName | None:
        """The name of a file that this job has written; otherwise ``None``."""
        part = PartName.parse(name)
        return part if part is not None and part.job == self._tag else None

    def _placed(self, file: StagedFile) -> LoggedFile:
        """The line for a file in its final place."""
        entry = self._staging.place(file)
        if entry is None:
            raise self._lost(file)
        return logged(self._files, placed_name(file), entry)

    def _lost(self, file: StagedFile) -> OutputDirectoryError:
        return OutputDirectoryError(
            f"output directory {self._files.location}: file {placed_name(file)} of checkpoint {file.checkpoint} is "
            f"missing or has not the {file.bytes} bytes that were written; something else changed the directory"
        )

    # --- at the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        self._check_owner()
        with self._loaded():
            visible = {entry.name for entry in self._log.all_files()} or {self._commit_empty_file()}
            for name, entry in list(self._files.data_files()):
                part = PartName.parse(entry.name)
                may_be_mine = part is not None and (part.job == self._tag or not self._form.append)
                if may_be_mine and entry.name not in visible:
                    self._files.delete(name)
            for entry in self._files.entries():
                if entry.name.endswith(TEMPORARY_SUFFIX):
                    self._files.delete(entry.name)
        self.discard()

    def _commit_empty_file(self) -> str:
        """So that readers find the schema; returns its name."""
        name = PartName(0, 0, 0, 0, self._tag).text(self._form.suffix)
        self._files.write(self._staging.path(name), self._form.empty_file)
        size = len(self._form.empty_file)
        self._log.append([self._placed(StagedFile(name=name, rows=0, bytes=size, checkpoint=0))])
        return name

    def discard(self) -> None:
        self._staging.discard()

    @contextmanager
    def _loaded(self) -> Iterator[int]:
        """The highest committed checkpoint, as the log says; it is read again after any failure."""
        if self._committed_through is None:
            self._log.load()
            self._committed_through = _highest_checkpoint(self._log.last_batch(), self._tag)
        try:
            yield self._committed_through
        except BaseException:
            self._committed_through = None
            raise


def _highest_checkpoint(files: Sequence[LoggedFile], tag: str) -> int:
    """Of the files of the job with this tag."""
    parts = (PartName.parse(file.name) for file in files)
    return max((part.checkpoint for part in parts if part is not None and part.job == tag), default=0)
