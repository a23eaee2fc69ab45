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
import math
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

    def __init__(self, files: OutputFiles, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._files = files
        self._now_ms = now_ms
        self.latest = -1
        """The last batch, -1 when there is none."""

    def load(self) -> None:
        """Find the last batch; remove what a crashed writer left."""
        for entry in self._files.entries(LOG_DIRECTORY):
            if entry.name.endswith(TEMPORARY_SUFFIX):
                self._files.delete(f"{LOG_DIRECTORY}/{entry.name}")
        self.latest = max(self._batches(), default=-1)

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
        return [] if self.latest < 0 else self._all_files(self.latest)

    def last_batch(self) -> list[LoggedFile]:
        """What the file of the last batch lists."""
        return [] if self.latest < 0 else self._read(self.latest)

    def retain(self, keep: Callable[[LoggedFile], bool]) -> None:
        """Make invisible what ``keep`` refuses, the newest batch first; stops at a batch of which all is kept.

        After each step the log is whole, so it can be repeated after a crash.
        """
        while self.latest >= 0:
            entries = self._read(self.latest)
            kept = [entry for entry in entries if keep(entry)]
            if len(kept) == len(entries):
                return
            own = kept
            has_earlier = self._has_all_before(self.latest)
            if own and has_earlier and is_compaction(self.latest):
                earlier = {entry.path for entry in self._all_files(self.latest - 1)}
                own = [entry for entry in kept if entry.path not in earlier]
            if own:
                self._write(self.latest, kept)
                return
            if not has_earlier:
                self._remove_before(self.latest)
            self._files.delete(batch_file(self.latest))
            self.latest = self.latest - 1 if has_earlier else -1

    def _batches(self) -> list[int]:
        names = (entry.name.removesuffix(_COMPACT_SUFFIX) for entry in self._files.entries(LOG_DIRECTORY))
        return [int(name) for name in names if name.isdecimal()]

    def _has_all_before(self, batch: int) -> bool:
        """Whether the batches that would make up the log without ``batch`` are there (they may have expired)."""
        return batch > 0 and set(_needed(batch - 1)) <= set(self._batches())

    def _all_files(self, batch: int) -> list[LoggedFile]:
        return [entry for needed in _needed(batch) for entry in self._read(needed)]

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
        self._remove_before(oldest_kept - oldest_kept % COMPACT_INTERVAL - 1, self._now_ms() - KEPT_MS)

    def _remove_before(self, batch: int, modified_until_ms: float = math.inf) -> None:
        """Remove the files of batches before ``batch``, the oldest first, unless changed after the given time."""
        found = []
        for entry in self._files.entries(LOG_DIRECTORY):
            number = entry.name.removesuffix(_COMPACT_SUFFIX)
            if number.isdecimal() and int(number) < batch and entry.modified_ms <= modified_until_ms:
                found.append((int(number), entry.name))
        for _, name in sorted(found):
            self._files.delete(f"{LOG_DIRECTORY}/{name}")


def _needed(batch: int) -> range:
    """The batches whose files list all that is visible once ``batch`` is: from the last compaction on."""
    return range(max(0, (batch + 1) // COMPACT_INTERVAL * COMPACT_INTERVAL - 1), batch + 1)


def _known(line: dict[str, Any]) -> dict[str, Any]:
    return {field: line[field] for field in LoggedFile.__dataclass_fields__}
