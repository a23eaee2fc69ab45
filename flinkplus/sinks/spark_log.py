"""The list of committed files, in the format of Spark's own file sink (``<out>/_spark_metadata``).

``spark.read`` and ``spark.readStream`` take a directory that has such a log to hold exactly the files the log names. A
batch appears in it by one rename, so a reader sees all files of a commit or none.

The format is that of Spark's ``CompactibleFileStreamLog`` and ``FileStreamSinkLog``, version 1:

- Batches are numbered from 0 without gaps. Batch *b* is the file ``b``, or ``b.compact`` when ``(b + 1) % 10 == 0``: a
  compaction, which lists the files of all batches up to and with *b*. 10 is Spark's default interval, which readers
  assume until they see two compactions and take their distance.
- A file is the line ``v1`` and one line of JSON for each output file. Paths are absolute, percent-encoded URIs.
- All files = those of the last compaction, and of the batches after it. Older batches are of no use; they are removed
  after a while, in which a reader that has listed them can finish.

A compaction is as long as the output has files: a limit of the format.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

from flinkplus.errors import OutputDirectoryError
from flinkplus.sinks.files import TEMPORARY_SUFFIX, FileEntry, OutputFiles

LOG_DIRECTORY = "_spark_metadata"
COMPACT_INTERVAL = 10
KEPT_BATCHES = 20
KEPT_MS = 120_000

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


def batch_file(batch: int) -> str:
    """The name of a batch's file, below the output directory."""
    return f"{LOG_DIRECTORY}/{batch}{_COMPACT_SUFFIX if is_compaction(batch) else ''}"


class SparkFileLog:
    """The log of one output directory; one writer. After an exception, ``load`` before anything else."""

    def __init__(self, files: OutputFiles) -> None:
        self._files = files
        self.latest = -1
        """The last batch, -1 when there is none."""

    def load(self) -> None:
        """Find the last batch; remove what a crashed writer left."""
        self.latest = -1
        for entry in self._files.entries(LOG_DIRECTORY):
            if entry.name.endswith(TEMPORARY_SUFFIX):
                self._files.delete(f"{LOG_DIRECTORY}/{entry.name}")
            number = _batch_number(entry)
            self.latest = max(self.latest, -1 if number is None else number)

    def create(self) -> None:
        """Make the empty log, so that readers which come before the first batch already go by it."""
        self._files.make_dir(LOG_DIRECTORY)

    def append(self, new: Iterable[LoggedFile]) -> None:
        """Make ``new`` visible, all at once."""
        batch = self.latest + 1
        entries = [*(self.all_files() if is_compaction(batch) else ()), *new]
        self._write(batch, entries)
        self.latest = batch
        if is_compaction(batch):
            self._remove_expired(batch)

    def all_files(self) -> list[LoggedFile]:
        """All visible files."""
        first = max(0, (self.latest + 1) // COMPACT_INTERVAL * COMPACT_INTERVAL - 1)
        return [entry for batch in range(first, self.latest + 1) for entry in self._read(batch)]

    def last_batch(self) -> list[LoggedFile]:
        """What the file of the last batch lists."""
        return [] if self.latest < 0 else self._read(self.latest)

    def retain(self, keep: Callable[[LoggedFile], bool]) -> None:
        """Make invisible what ``keep`` refuses, which are the files of the newest batches.

        Goes back batch by batch, down to one of which all is kept, or to a compaction, which lists everything before it
        and is replaced. After each step the log is whole, so this can be repeated after a crash.
        """
        while self.latest >= 0:
            entries = self._read(self.latest)
            kept = [entry for entry in entries if keep(entry)]
            if len(kept) == len(entries):
                return
            if kept or is_compaction(self.latest):
                self._write(self.latest, kept)
                return
            self._files.delete(batch_file(self.latest))
            self.latest -= 1

    def _write(self, batch: int, entries: Iterable[LoggedFile]) -> None:
        lines = [_VERSION, *(json.dumps(asdict(entry), separators=(",", ":")) for entry in entries)]
        self._files.write(batch_file(batch), "\n".join(lines).encode())

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
            "start the job anew with another output directory"
        )

    def _remove_expired(self, batch: int) -> None:
        oldest_kept = batch + 1 - KEPT_BATCHES
        first_kept = oldest_kept - oldest_kept % COMPACT_INTERVAL - 1
        expired_ms = time.time_ns() // 1_000_000 - KEPT_MS
        for entry in self._files.entries(LOG_DIRECTORY):
            number = _batch_number(entry)
            if number is not None and number < first_kept and entry.modified_ms <= expired_ms:
                self._files.delete(f"{LOG_DIRECTORY}/{entry.name}")


def _batch_number(entry: FileEntry) -> int | None:
    number = entry.name.removesuffix(_COMPACT_SUFFIX)
    return int(number) if number.isdecimal() else None


def _known(line: dict[str, Any]) -> dict[str, Any]:
    return {field: line[field] for field in LoggedFile.__dataclass_fields__}
