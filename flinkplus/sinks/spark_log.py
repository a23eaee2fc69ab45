"""The list of committed files, in the format of Spark's own file sink (``<out>/_spark_metadata``).

``spark.read`` and ``spark.readStream`` read exactly the files that the log names. A commit appears in it by one rename,
so a reader sees all files of a commit or none.

The format is that of Spark's ``CompactibleFileStreamLog`` and ``FileStreamSinkLog``, version 1:

- A log is a sequence of numbered batches. Batch *b* is the file ``b``, or ``b.compact`` when ``b + 1`` is a multiple of
  the compaction interval: a compaction lists the files of all batches up to and with *b*.
- A file is the line ``v1`` and one line of JSON for each output file. Paths are absolute, percent-encoded URIs.
- All files = those of the last compaction, and of the batches after it. These batches have no gaps.
- Readers take the distance of the two newest compactions for the interval.

A compaction lists all files of the output. So ``create`` makes two, an interval apart, which are empty or list what was
in the directory before, and batches begin behind the second one: the next compaction is due that many batches later.
The interval depends on the file system:

- Where a rename replaces, ``append`` adds to the newest batch, which is replaced whole, and begins another one when it
  has ``BATCH_BYTES``. ``COMPACT_INTERVAL`` such batches hold 32 GiB; the driver warns when a tenth of it is left.
- On S3 a batch is created, or replaced if it is unchanged, by one request. Such a request of an earlier driver may
  still arrive: ``fence`` makes its condition false. There no batch is removed.
- Elsewhere, on HDFS, each commit is a batch, and readers open each batch behind the last compaction. So a compaction
  comes every ``COMMITS_INTERVAL`` commits, as in Spark.
"""

from __future__ import annotations

import json
import logging
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import unquote

from flinkplus.documents import fits, parse_document
from flinkplus.errors import OutputDirectoryError
from flinkplus.local_files import NoRegularFile
from flinkplus.path_names import checked_foreign
from flinkplus.printable import printable
from flinkplus.sinks.files import TEMPORARY_SUFFIX, FileEntry, OutputFiles

LOG_DIRECTORY = "_spark_metadata"
COMPACT_INTERVAL = 500_000
"""Batches. A reader holds in memory one number for each batch from the first compaction to the last batch."""
COMMITS_INTERVAL = 1_000
"""Batches, where each of them is one commit."""
LARGE_COMPACTION_BYTES = 256 * 1024 * 1024
"""From this size on a compaction is announced by a warning."""
WARN_AT = 0.1
"""The part of an interval that is left then."""
EMPTY_COMPACTIONS = 2
BATCH_BYTES = 64 * 1024
"""A batch takes no more commits once it would be larger. One commit may be: it is never split."""

log = logging.getLogger("flinkplus.sinks")

_VERSION = "v1"
_EMPTY = _VERSION.encode()
_END = b"\n"
"""At the end of a batch that nothing is added to any more; readers take no notice of it."""
_COMPACT_SUFFIX = ".compact"
_BLOCK_SIZE = 32 * 1024 * 1024
_BEGUN = f"{LOG_DIRECTORY}.begun"
"""The log of a directory that holds data, until it is whole."""


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
        return unquote(self.path.rpartition("/")[2])


_FIELDS = typing.get_type_hints(LoggedFile)


def logged(files: OutputFiles, name: str, entry: FileEntry) -> LoggedFile:
    """The line for the file ``name`` of the output directory, whose last part is that of ``entry``."""
    return LoggedFile(files.uri(name), entry.size, False, entry.modified_ms, 1, _BLOCK_SIZE, "add")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which numbers the batches of a log have: a compaction every ``interval`` batches."""

    interval: int

    def is_compaction(self, batch: int) -> bool:
        return (batch + 1) % self.interval == 0

    @property
    def empty_compactions(self) -> list[int]:
        """The batches that a new log begins with."""
        return [number * self.interval - 1 for number in range(1, EMPTY_COMPACTIONS + 1)]

    @property
    def first_batch(self) -> int:
        """The first batch that lists something."""
        return EMPTY_COMPACTIONS * self.interval

    def file(self, batch: int) -> str:
        """The name of a batch's file, below the output directory."""
        return f"{LOG_DIRECTORY}/{batch}{_COMPACT_SUFFIX if self.is_compaction(batch) else ''}"


class SparkFileLog:
    """The log of one output directory; one writer. After an exception, ``load`` before anything else."""

    def __init__(self, files: OutputFiles) -> None:
        self._files = files
        self.layout = self._new_layout()
        self.latest = self.layout.first_batch - 1
        """The last batch; or the last empty compaction."""
        self._content: bytes | None = None  # of the last batch; None: not read yet
        self._has_warned = False

    def _new_layout(self) -> Layout:
        return Layout(COMPACT_INTERVAL if self._files.move_replaces else COMMITS_INTERVAL)

    def load(self) -> None:
        """Find the last batch; remove what a crashed writer left. Raises ``OutputDirectoryError``."""
        entries = self._without_unfinished()
        layout = self.layout = self._layout_of(entries)
        self.latest, self._content = layout.first_batch - 1, None
        for entry in entries:
            if (text := entry.name.removesuffix(_COMPACT_SUFFIX)).isdecimal():
                number, name = int(text), f"{LOG_DIRECTORY}/{printable(entry.name)}"
                if number < layout.first_batch and number not in layout.empty_compactions:
                    raise self._unreadable(name, "an older version of FlinkPlus wrote it")
                self.latest = max(self.latest, number)

    def _without_unfinished(self) -> list[FileEntry]:
        """The files of the log, listed once no writer before can give another one its name."""
        entries = self._files.entries(LOG_DIRECTORY)
        unfinished = [entry.name for entry in entries if entry.name.endswith(TEMPORARY_SUFFIX)]
        for name in unfinished:
            self._files.delete(f"{LOG_DIRECTORY}/{name}")
        return self._files.entries(LOG_DIRECTORY) if unfinished else entries

    def fence(self) -> None:
        """``load``, after which no write of an earlier driver has an effect.

        Such a driver may have begun to replace the last batch, or to create the next one. So both are done here: a line
        break more changes the last one, and the next one is created without entries. May be repeated.
        """
        self.load()
        while self._files.is_conditional:
            content = self._last_content()
            if content is not None and not content.endswith(_END):
                self._files.swap(self.layout.file(self.latest), content, content + _END)
            elif self._files.create(self.layout.file(self.latest + 1), self._new_content(self.latest + 1)):
                self.load()
                return
            self.load()

    def _layout_of(self, entries: Iterable[FileEntry]) -> Layout:
        """The layout by the empty compactions; those of the larger interval are also compactions of the smaller one."""
        names = {entry.name for entry in entries}
        known = map(Layout, sorted((COMPACT_INTERVAL, COMMITS_INTERVAL)))
        made = [layout for layout in known if all(f"{b}{_COMPACT_SUFFIX}" in names for b in layout.empty_compactions)]
        return made[0] if made else self._new_layout()

    def create(self, earlier: Sequence[LoggedFile] = ()) -> None:
        """Make the log, so that readers which come before the first batch already go by it. May be repeated.

        ``earlier``: what is in the directory already. Each of the compactions lists it, so that readers find it at any
        moment: they go by the log as soon as it has one file.
        """
        existing = {entry.name for entry in self._files.entries(LOG_DIRECTORY)}
        first = [self.layout.file(batch).removeprefix(f"{LOG_DIRECTORY}/") for batch in self.layout.empty_compactions]
        content = _encoded(earlier)
        if earlier and not existing and self._files.has_folders:  # an empty log hides what is there
            self._files.make_dir(_BEGUN)
            for name in first:
                self._files.write(f"{_BEGUN}/{name}", content)
            self._files.move(_BEGUN, LOG_DIRECTORY)
            return
        if not earlier:
            self._files.make_dir(LOG_DIRECTORY)
        for name in first:
            if name not in existing:
                self._files.write(f"{LOG_DIRECTORY}/{name}", content)

    def is_made(self) -> bool:
        """Whether ``create`` is done."""
        names = {f"{LOG_DIRECTORY}/{entry.name}" for entry in self._files.entries(LOG_DIRECTORY)}
        return any(
            all(layout.file(batch) in names for batch in layout.empty_compactions)
            for layout in map(Layout, (COMPACT_INTERVAL, COMMITS_INTERVAL))
        )

    def is_empty(self) -> bool:
        """Whether no file was listed."""
        expected = {self.layout.file(batch) for batch in self.layout.empty_compactions}
        names = [f"{LOG_DIRECTORY}/{entry.name}" for entry in self._files.entries(LOG_DIRECTORY)]
        return all(
            name in expected or name.endswith(TEMPORARY_SUFFIX) or self._files.read(name).rstrip(_END) == _EMPTY
            for name in names
        )

    def append(self, new: Iterable[LoggedFile]) -> None:
        """Make ``new`` visible, all at once."""
        added = "".join("\n" + json.dumps(asdict(entry), separators=(",", ":")) for entry in new).encode()
        batch, before = self.latest, self._last_content()
        full = before is None or len(before) + len(added) > BATCH_BYTES or before.endswith(_END)
        if before is None or full or not self._files.move_replaces:
            batch += 1
            content = self._new_content(batch) + added
            self._require(self._files.create(self.layout.file(batch), content), batch)
        else:
            content = before + added
            self._require(self._files.swap(self.layout.file(batch), before, content), batch)
        self.latest, self._content = batch, None if self.layout.is_compaction(batch) else content
        self._warn_of_a_large_compaction(len(content))

    def _new_content(self, batch: int) -> bytes:
        """What a batch begins with."""
        return _encoded(self.all_files() if self.layout.is_compaction(batch) else ())

    def _require(self, written: bool, batch: int) -> None:
        """Raises ``JobRunsElsewhere`` or ``OutputDirectoryError`` unless the batch was ``written``."""
        if not written:
            self._files.check()
            raise OutputDirectoryError(
                f"{self._files.location}: another process has written {self.layout.file(batch)}; give each job an "
                "output directory of its own"
            )

    def all_files(self) -> Iterator[LoggedFile]:
        """All visible files, batch by batch."""
        for batch in range(self._last_compaction(), self.latest + 1):
            yield from self._read(batch)

    def _last_compaction(self) -> int:
        return (self.latest + 1) // self.layout.interval * self.layout.interval - 1

    def _warn_of_a_large_compaction(self, batch_bytes: int) -> None:
        """Log once, when the next compaction is near, if it will be large. ``batch_bytes``: of the last batch."""
        compaction, interval = self._last_compaction(), self.layout.interval
        left = compaction + interval - self.latest
        if self._has_warned or left > WARN_AT * interval or self.layout.is_compaction(self.latest):
            return
        self._has_warned = True
        info = self._files.info(self.layout.file(compaction))
        each = BATCH_BYTES if self._files.move_replaces else batch_bytes
        expected = (0 if info is None else info.size) + (interval - left) * each
        if expected >= LARGE_COMPACTION_BYTES:
            log.warning(
                "%s: the list of committed files is rewritten whole %d batches from now, in one commit of about %d "
                "MiB, which the driver holds in memory; stop the job and start it with another output directory "
                "before that",
                self._files.location,
                left,
                expected >> 20,
            )

    def last_batch(self) -> list[LoggedFile]:
        """What the last batch lists that is not empty, from the last compaction on."""
        batches = range(self.latest, max(self.layout.first_batch, self._last_compaction()) - 1, -1)
        return next((found for batch in batches if (found := self._read(batch))), [])

    def retain(self, keep: Callable[[LoggedFile], bool]) -> None:
        """Make invisible what ``keep`` refuses, which are the files of the newest batches.

        Goes back batch by batch, to one of which something is kept, or to a compaction. (Where a rename does not
        replace, that is removed, and the batches before it count again.) May be repeated after a crash at any step.
        """
        if self._files.is_conditional:
            return self._empty(keep)
        while self.latest >= self.layout.first_batch:
            entries = self._read(self.latest)
            kept = [entry for entry in entries if keep(entry)]
            if len(kept) == len(entries) and entries:
                return
            self._content = None
            is_compaction = self.layout.is_compaction(self.latest)
            if self._files.move_replaces if is_compaction else kept:
                self._files.write(self.layout.file(self.latest), _encoded(kept))
                return
            self._files.delete(self.layout.file(self.latest))
            self.latest -= 1

    def _empty(self, keep: Callable[[LoggedFile], bool]) -> None:
        """``retain`` without removing a batch."""
        for batch in range(self.latest, self.layout.first_batch - 1, -1):
            name, entries = self.layout.file(batch), self._read(batch)
            kept = [entry for entry in entries if keep(entry)]
            if entries and len(kept) == len(entries):
                return
            if entries:
                self._content = None
                ended = _encoded(kept) + _END  # never what a late request may expect there
                self._require(self._files.swap(name, self._files.read(name), ended), batch)
            if kept or self.layout.is_compaction(batch):
                return

    def _last_content(self) -> bytes | None:
        """The file of the last batch; None when nothing is added to that: it is a compaction."""
        if self._content is None and not self.layout.is_compaction(self.latest):
            self._read(self.latest)
            self._content = self._files.read(self.layout.file(self.latest))
        return self._content

    def _read(self, batch: int) -> list[LoggedFile]:
        name = self.layout.file(batch)
        try:
            version, *lines = self._files.read(name).decode().split("\n")
            entries = [parse_logged(line) for line in lines if line]
        except FileNotFoundError as error:
            raise self._unreadable(name, "it is missing") from error
        except (ValueError, TypeError, KeyError, NoRegularFile) as error:
            raise self._unreadable(name, printable(error)) from error
        if version != _VERSION:
            raise self._unreadable(name, f"its version is {version!r:.100}, not {_VERSION!r}")
        return entries

    def _unreadable(self, name: str, reason: str) -> OutputDirectoryError:
        return OutputDirectoryError(
            f"{self._files.location}: the list of committed files {name} cannot be read ({reason}); "
            "start the job again with another output directory"
        )


def _encoded(entries: Iterable[LoggedFile]) -> bytes:
    lines = (json.dumps(asdict(entry), separators=(",", ":")) for entry in entries)
    return "\n".join([_VERSION, *lines]).encode()


def parse_logged(line: str) -> LoggedFile:
    """An entry of the log. Raises ``ValueError``, ``TypeError`` or ``KeyError``, also for an unsafe name."""
    found = parse_document(line.encode())
    entry = LoggedFile(**{name: found[name] for name in _FIELDS})
    if not all(fits(getattr(entry, name), hint) for name, hint in _FIELDS.items()):
        raise TypeError(f"{printable(line, 100)} lists no file")
    checked_foreign(entry.name)
    return entry
