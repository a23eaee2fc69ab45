"""The folder in which the subtasks of a sink stage output, as the driver keeps it tidy.

Rules: before a file, an upload or a folder goes it is checked that this driver still runs the job
(``OutputFiles.check``), since a later run stages in the same folder.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from posixpath import join

from typing_extensions import override

from flinkplus.errors import OutputError
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import SinkCommitter
from flinkplus.sinks.file_names import STAGING_DIRECTORY, OpenName, PartName
from flinkplus.sinks.files import FileEntry, OutputFiles


class StagingFolder:
    """The folder ``name`` in ``files``."""

    def __init__(self, files: OutputFiles, name: str) -> None:
        self._files = files
        self.name = name
        self._generations: dict[int, int] = {}  # the newest one seen of each subtask
        self._folders: set[str] = set()  # of partitions, made once where that costs requests

    def path(self, name: str) -> str:
        """Where the staged file ``name`` is, in ``files``."""
        return join(self.name, name)

    def make(self) -> None:
        """Make the folder before the first deployment of a run."""
        self._abort_uploads()
        self._files.make_dir(self.name)

    def _abort_uploads(self) -> None:
        """No process of this job writes any more, so uploads in progress are never completed."""
        self._files.check()
        self._files.uploads.abort(self.name)

    def place(self, file: StagedFile) -> FileEntry | None:
        """Move a staged file to its place in the output directory (``placed_name``), unless it is there already.
        ``None``: it is missing, or has another size."""
        name = placed_name(file)
        entry = self._files.info(name)
        if entry is None:
            staged = self._files.info(self.path(file.name))
            if staged is None or staged.size != file.bytes:
                return None
            if file.folder and (self._files.has_folders or file.folder not in self._folders):
                self._files.make_dir(file.folder)  # each time: others may remove one that is empty
                self._folders.add(file.folder)
            self._files.move(self.path(file.name), name)
            entry = self._files.info(name)
        return None if entry is None or entry.size != file.bytes else entry

    def is_new_generation(self, files: Sequence[StagedFile]) -> bool:
        """Note the generations of ``files``; true when one of them is newer than what was seen of its subtask."""
        is_new = False
        for file in files:
            part = PartName.parse(file.name)
            if part is not None and part.generation > self._generations.get(part.subtask, -1):
                self._generations[part.subtask] = part.generation
                is_new = True
        return is_new

    def sweep(self, checkpoint: int, described: Collection[str] = ()) -> None:
        """Remove what is staged up to ``checkpoint`` and not ``described``, and what older generations left
        unfinished."""
        self._remove(
            lambda name, part: part.checkpoint <= checkpoint and name not in described,
            lambda left: left.generation < self._generations.get(left.subtask, -1),
        )

    def remove_committed(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        """Remove ``files``, whose rows are committed and are needed no more. After a new generation, also what is
        staged up to ``checkpoint`` and described by no snapshot."""
        is_new = self.is_new_generation(files)
        for file in files:
            self._files.delete(self.path(file.name))
        if is_new:
            self.sweep(checkpoint)
        self._files.uploads.abort_old(self.name)

    def remove_after(self, checkpoint: int | None) -> None:
        """Remove what is staged after ``checkpoint``; ``None``: everything that is staged."""
        self._remove(lambda _, part: is_later(part, checkpoint), lambda _: False)

    def _remove(self, is_staged: Callable[[str, PartName], bool], is_left: Callable[[OpenName], bool]) -> None:
        for entry in self._files.entries(self.name):
            part, left = PartName.parse(entry.name), OpenName.parse(entry.name)
            if (part is not None and is_staged(entry.name, part)) or (left is not None and is_left(left)):
                self._files.delete(self.path(entry.name))

    def discard(self) -> None:
        """Remove everything, and the folders that are empty then."""
        self._abort_uploads()
        for entry in self._files.entries(self.name):
            self._files.delete(self.path(entry.name))
        for folder in (self.name, STAGING_DIRECTORY):
            if not self._files.entries(folder):  # files of a later run were not in the listing above
                self._files.delete_dir(folder)


class LastingCommitter(SinkCommitter):
    """A committer that stages in a folder, and whose commits are not taken back: those to a table, calls."""

    _staging: StagingFolder

    @abstractmethod
    def _last_committed(self) -> int:
        """Up to which checkpoint rows are committed, or may be."""

    @abstractmethod
    def _lasts(self, checkpoint: int, consequence: str) -> OutputError:
        """The error for a job that would have to go back behind ``checkpoint``, with what that means for it."""

    @override
    def retract_after(self, checkpoint: int | None) -> None:
        through, committed = checkpoint or 0, self._last_committed()
        if committed > through:
            target = f"checkpoint {through}" if through else "the start"
            raise self._lasts(committed, f"cannot be taken back: the job cannot continue from {target}")
        self._staging.remove_after(through)

    @override
    def finish(self) -> None:
        self.discard()

    @override
    def discard(self) -> None:
        self._staging.discard()


def is_later(part: PartName | None, checkpoint: int | None) -> bool:
    """Whether a file belongs to a checkpoint after ``checkpoint`` (``None``: to any)."""
    return part is not None and (checkpoint is None or part.checkpoint > checkpoint)


def placed_name(file: StagedFile) -> str:
    """Where a staged file goes, relative to the output directory."""
    return join(file.folder, file.name)


def written_order(file: StagedFile) -> tuple[int, ...]:
    """A key by which files are sorted so that the rows of one subtask are in the order in which it wrote them."""
    part = PartName.parse(file.name)
    return (file.checkpoint,) if part is None else (file.checkpoint, part.subtask, part.generation, part.number)
