"""The list of committed files, in the format of Spark's own file sink (``<out>/_spark_metadata``).

``spark.read`` and ``spark.readStream`` take a directory that has such a log to hold exactly the files the log names. A
commit appears in it by one rename, so a reader sees all files of a commit or none.

The format is that of Spark's ``CompactibleFileStreamLog`` and ``FileStreamSinkLog``, version 1:

- A log is a sequence of numbered batches. Batch *b* is the file ``b``, or ``b.compact`` when ``b + 1`` is a multiple of
  the compaction interval: a compaction lists the files of all batches up to and with *b*.
- A file is the line ``v1`` and one line of JSON for each output file. Paths are absolute, percent-encoded URIs.
- All files = those of the last compaction, and of the batches after it. These batches have no gaps.
- Readers take the distance of the two newest compactions for the interval. Only without any do they assume a default.

A compaction is as long as the output has files. So ``create`` makes two empty ones, ``COMPACT_INTERVAL`` batches apart,
and batches begin behind the second one: the next compaction is due that many batches later. ``append`` adds to the
newest batch, which is replaced whole, and begins another one when it has ``BATCH_BYTES``. The cost of a commit is
therefore independent of the age of the log. (Where a rename does not replace, on HDFS, each commit is a batch.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

from flinkplus.errors import OutputDirectoryError
from flinkplus.sinks.files import TEMPORARY_SUFFIX, FileEntry, OutputFiles

LOG_DIRECTORY = "_spark_metadata"
COMPACT_INTERVAL = 500_000
"""Batches. A reader holds in memory one number for each batch from the first compaction to the last batch."""
EMPTY_COMPACTIONS = 2
BATCH_BYTES = 64 * 1024
"""A batch takes no more commits once it would be larger. One commit may be: it is never split."""

_VERSION = "v1"
_COMPACT_SUFFIX = ".compact"
_BLOCK_SIZE = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One line of the log: Spark's ``SinkFileStatus``, with its names."""

    path: str
    size: int
    isDir: bool
    modificationTime: int
    blockReplication: int
    blockSize: int
    action: str

    @property
    def name(self) -> str:
        return unquote(self.path.rsplit("/", 1)[1])


def logged(files: OutputFiles, entry: FileEntry) -> LoggedFile:
    """The line for a file of the output directory."""
    return LoggedFile(files.uri(entry.name), entry.size, False, entry.modified_ms, 1, _BLOCK_SIZE, "add")


def is_compaction(batch: int) -> bool:
    return (batch + 1) % COMPACT_INTERVAL == 0


def empty_compactions() -> list[int]:
    """The batches that a new log begins with."""
    return [number * COMPACT_INTERVAL - 1 for number in range(1, EMPTY_COMPACTIONS + 1)]


def first_batch() -> int:
    """The first batch that lists something."""
    return EMPTY_COMPACTIONS * COMPACT_INTERVAL


def batch_file(batch: int) -> str:
    """The name of a batch's file, below the output directory."""
    return f"{LOG_DIRECTORY}/{batch}{_COMPACT_SUFFIX if is_compaction(batch) else ''}"


class SparkFileLog:
    """The log of one output directory; one writer. After an exception, ``load`` before anything else."""

    def __init__(self, files: OutputFiles) -> None:
        self._files = files
        self.latest = first_batch() - 1
        """The last batch; or the last empty compaction."""
        self._content: bytes | None = None  # of the last batch; None: not read yet

    def load(self) -> None:
        """Find the last batch; remove what a crashed writer left. Raises ``OutputDirectoryError``."""
        self.latest, self._content = first_batch() - 1, None
        for entry in self._files.entries(LOG_DIRECTORY):
            if entry.name.endswith(TEMPORARY_SUFFIX):
                self._files.delete(f"{LOG_DIRECTORY}/{entry.name}")
            number = _batch_number(entry)
            if number is not None and number < first_batch() and number not in empty_compactions():
                raise self._unreadable(f"{LOG_DIRECTORY}/{entry.name}", "an older version of FlinkPlus wrote it")
            self.latest = max(self.latest, -1 if number is None else number)

    def create(self) -> None:
        """Make the empty log, so that readers which come before the first batch already go by it. May be repeated."""
        self._files.make_dir(LOG_DIRECTORY)
        existing = {f"{LOG_DIRECTORY}/{entry.name}" for entry in self._files.entries(LOG_DIRECTORY)}
        for name in map(batch_file, empty_compactions()):
            if name not in existing:
                self._files.write(name, _VERSION.encode())

    def is_empty(self) -> bool:
        """Whether no batch exists."""
        expected = {batch_file(batch) for batch in empty_compactions()}
        return all(
            f"{LOG_DIRECTORY}/{entry.name}" in expected or entry.name.endswith(TEMPORARY_SUFFIX)
            for entry in self._files.entries(LOG_DIRECTORY)
        )

    def append(self, new: Iterable[LoggedFile]) -> None:
        """Make ``new`` visible, all at once."""
        added = "".join("\n" + json.dumps(asdict(entry), separators=(",", ":")) for entry in new).encode()
        batch, content = self.latest, self._last_content()
        if content is None or len(content) + len(added) > BATCH_BYTES or not self._files.move_replaces:
            batch += 1
            content = _encoded(self.all_files() if is_compaction(batch) else ())
        content += added
        self._files.write(batch_file(batch), content)
        self.latest, self._content = batch, None if is_compaction(batch) else content

    def all_files(self) -> Iterator[LoggedFile]:
        """All visible files, batch by batch."""
        for batch in range((self.latest + 1) // COMPACT_INTERVAL * COMPACT_INTERVAL - 1, self.latest + 1):
            yield from self._read(batch)

    def last_batch(self) -> list[LoggedFile]:
        """What the file of the last batch lists."""
        return self._read(self.latest) if self.latest >= first_batch() else []

    def retain(self, keep: Callable[[LoggedFile], bool]) -> None:
        """Make invisible what ``keep`` refuses, which are the files of the newest batches.

        Goes back batch by batch, down to one of which something is kept, or to a compaction, which lists everything
        before it. After each step the log is whole, so this can be repeated after a crash.
        """
        while self.latest >= first_batch():
            entries = self._read(self.latest)
            kept = [entry for entry in entries if keep(entry)]
            if len(kept) == len(entries):
                return
            self._content = None
            if kept or is_compaction(self.latest):
                self._files.write(batch_file(self.latest), _encoded(kept))
                return
            self._files.delete(batch_file(self.latest))
            self.latest -= 1

    def _last_content(self) -> bytes | None:
        """The file of the last batch; None when nothing is added to that: it is a compaction."""
        if self._content is None and not is_compaction(self.latest):
            self._content = _encoded(self._read(self.latest))
        return self._content

    def _read(self, batch: int) -> list[LoggedFile]:
        name = batch_file(batch)
        try:
            version, *lines = self._files.read(name).decode().split("\n")
            entries = [LoggedFile(**_known(json.loads(line))) for line in lines if line]
        except (ValueError, TypeError, KeyError) as error:
            raise self._unreadable(name, str(error)) from error
        except FileNotFoundError as error:
            raise self._unreadable(name, "it is missing") from error
        if version != _VERSION:
            raise self._unreadable(name, f"its version is {version!r}, not {_VERSION!r}")
        return entries

    def _unreadable(self, name: str, reason: str) -> OutputDirectoryError:
        return OutputDirectoryError(
            f"{self._files.location}: the list of committed files {name} cannot be read ({reason}); "
            "start the job again with another output directory"
        )


def _encoded(entries: Iterable[LoggedFile]) -> bytes:
    lines = (json.dumps(asdict(entry), separators=(",", ":")) for entry in entries)
    return "\n".join([_VERSION, *lines]).encode()


def _batch_number(entry: FileEntry) -> int | None:
    number = entry.name.removesuffix(_COMPACT_SUFFIX)
    return int(number) if number.isdecimal() else None


def _known(line: dict[str, Any]) -> dict[str, Any]:
    return {field: line[field] for field in LoggedFile.__dataclass_fields__}
