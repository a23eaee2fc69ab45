"""The reader of one subtask of a directory.

Rules:

- A file is begun only when its first records are decoded, or its end is reached: a choice is made from what is there.
  So a file that is removed before it is begun is no error.
- The files that will be begun next are decoded while the open one is read.
- A repeated step waits until the listing shows its file, and until its records are decoded. A file that
  ``MISSING_AFTER`` listings do not show is gone: that is an ``InputError``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InputError
from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import LiveReader
from flinkplus.sources.files.backlog import Backlog
from flinkplus.sources.files.choices import (
    MAX_RECORDS,
    NOTHING,
    FileChoice,
    decode,
    encode,
    fingerprint_of,
    lower_half,
    upper_half,
)
from flinkplus.sources.files.decoding import ATTEMPTS, Decoding, FileDecoder
from flinkplus.sources.files.directory import FileHasChanged, InputDirectory
from flinkplus.sources.files.position import FilesPosition, OpenFile, position_of
from flinkplus.sources.files.records import FileFormat
from flinkplus.sources.files.seen import SeenFile
from flinkplus.sources.files.watch import DirectoryWatch

MISSING_AFTER = 5
AHEAD = 8
"""Files that are decoded ahead; their blocks share the decoder's limit of bytes."""
log = logging.getLogger("flinkplus")


@dataclass(frozen=True)
class FilesToRead:
    """What a reader knows of its source; see ``DirectoryFiles``.

    ``dispose``: what is done with a file that is no longer needed; ``None``: nothing.
    """

    source: str
    schema: pa.Schema
    directory: InputDirectory
    form: FileFormat
    poll_s: float
    max_age_ns: int | None
    ignores_changes: bool
    file_column: str | None
    files: tuple[SeenFile, ...] | None
    dispose: Callable[[SeenFile], None] | None

    def with_file_column(self, rows: pa.RecordBatch, file: SeenFile) -> pa.RecordBatch:
        """The rows of a file with its name, where that is asked for."""
        if self.file_column is None:
            return rows
        path = pa.repeat(pa.scalar(self.directory.full_path(file.path), pa.string()), rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, path], schema=self.schema)


class FilesReader(LiveReader):
    """Reads the files of ``source`` that subtask ``index`` of ``parallelism`` owns."""

    def __init__(self, source: FilesToRead, index: int, parallelism: int) -> None:
        super().__init__()
        self._source = source
        self._directory = source.directory
        self._nothing = pa.RecordBatch.from_pylist([], schema=source.schema)
        self._watch = DirectoryWatch(
            self._directory, lambda key: key % parallelism == index, source.poll_s, source.files, source.dispose
        )
        self._decoder = FileDecoder(
            lambda at: source.form.blocks(self._directory, at),
            1 if self._directory.is_local else ATTEMPTS,
            lambda file: self._directory.full_path(file.path),
        )
        self._half: int | None = None
        self._missing_since: int | None = None
        self._take_over(FilesPosition())

    def _take_over(self, at: FilesPosition) -> None:
        self._backlog = Backlog(at, self._source.max_age_ns, self._changed)
        self._half = at.half
        self.metrics = dict(at.metrics)

    def _changed(self, file: SeenFile) -> None:
        if not self._source.ignores_changes:
            raise self._directory.changed(file)

    @override
    def open(self, position: JsonValue) -> None:
        if position is not None:
            self._take_over(position_of(self._source.source, position))

    @override
    def begin(self, woken: Callable[[Exception | None], None]) -> None:
        self._watch.begin(woken)
        self._decoder.begin(woken)

    # --- choosing

    @override
    def choose(self, max_rows: int) -> int | None:
        self._take_listings()
        if self._half is not None:
            return self._choose_which(self._half)
        if not self._backlog.opened:
            return self._choose_file()
        decoding = self._decode_ahead()[0]
        records, ended, error = self._decoder.known(decoding)
        if not records and error is not None:
            raise self._gone(decoding.at.file) if isinstance(error, FileNotFoundError) else error
        chosen = min(records, max_rows, MAX_RECORDS)
        if ended and chosen == records:
            return encode(FileChoice.LAST_RECORDS, chosen)
        return encode(FileChoice.RECORDS, chosen) if chosen else None

    def _choose_file(self) -> int | None:
        """The oldest file, if something of it is decoded; the end, if there can be no more files."""
        while (file := self._backlog.oldest()) is not None:
            records, ended, error = self._decoder.known(self._decode_ahead()[0])
            if records or ended:
                return encode(FileChoice.BEGIN, upper_half(file.fingerprint))
            if error is None:
                return None
            self._give_back(file, error)
        self._decoder.want([])
        return NOTHING if self._source.files is not None and self._backlog.listings else None

    def _give_back(self, file: SeenFile, error: Exception) -> None:
        """A file that would be begun cannot be read. One that is gone, or is another by now, comes with the next
        listing as it is then; of files that the driver has listed, none may be missing."""
        if self._source.files is not None and isinstance(error, FileNotFoundError):
            raise self._gone(file) from error
        if self._source.files is not None or not isinstance(error, FileNotFoundError | FileHasChanged):
            raise error
        if isinstance(error, FileHasChanged):
            self._changed(file)
        self._backlog.forget(file)
        self._watch.look_again(file)

    def _choose_which(self, half: int) -> int | None:
        file = self._backlog.with_upper_half(half)
        if file is not None:
            return encode(FileChoice.FILE, lower_half(file.fingerprint))
        return NOTHING if self._backlog.listings else None  # it was removed

    def _decode_ahead(self) -> list[Decoding]:
        """What is decoded of the open file, and of those that follow."""
        following = [OpenFile(file) for file in self._backlog.upcoming(AHEAD)]
        return self._decoder.want([*self._backlog.opened[:AHEAD], *following])

    def _take_listings(self) -> None:
        for listing in self._watch.take():
            for file in self._backlog.apply(listing):
                log.warning(
                    "%r is ignored: it is older than the newest file by more than max_file_age",
                    self._directory.full_path(file.path),
                )

    # --- reading

    @override
    def can_read(self, choice: int) -> bool:
        self._take_listings()
        kind, value = decode(choice)
        if kind is FileChoice.BEGIN or choice == NOTHING:
            return True
        if kind is FileChoice.FILE:
            return self._can_begin(value)
        if not self._backlog.opened:
            raise InputError(f"source {self._source.source!r}: a repeated step reads a file, and none is open")
        decoding = self._decode_ahead()[0]
        try:
            return self._decoder.has(decoding, value, kind is FileChoice.LAST_RECORDS)
        except FileNotFoundError as error:
            raise self._gone(decoding.at.file) from error

    def _can_begin(self, lower: int) -> bool:
        if self._half is not None and self._backlog.find(fingerprint_of(self._half, lower)) is not None:
            self._missing_since = None
            return True
        if self._missing_since is None:
            self._missing_since = self._backlog.listings
        if self._backlog.listings - self._missing_since >= MISSING_AFTER:
            raise InputError(
                f"a file in {self._directory.shown!r} that was read before the failure, after the last complete "
                "checkpoint, was removed or has changed: keep files until a complete checkpoint covers them"
            )
        return False

    def _gone(self, file: SeenFile) -> InputError:
        return InputError(
            f"{self._directory.full_path(file.path)!r} was removed before it was read to its end: keep files until a "
            "complete checkpoint covers them"
        )

    @override
    def rows_of(self, choice: int) -> int:
        kind, value = decode(choice)
        return value if kind in (FileChoice.RECORDS, FileChoice.LAST_RECORDS) else 0

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        kind, value = decode(choice)
        if kind is FileChoice.BEGIN:
            self._half = value
            return self._nothing
        if choice == NOTHING:
            if self._half is None:
                return None
            self._half = None
            return self._nothing
        if kind is FileChoice.FILE:
            assert self._half is not None
            file = self._backlog.find(fingerprint_of(self._half, value))
            assert file is not None, "read without can_read"
            self._half = None
            self._backlog.begin(file)
            self._decode_ahead()
            return self._nothing
        return self._records(value, kind is FileChoice.LAST_RECORDS)

    def _records(self, records: int, last: bool) -> pa.RecordBatch:
        decoding = self._decode_ahead()[0]
        file = decoding.at.file
        found = self._decoder.take(decoding, records)
        self.metrics["invalid_rows"] += found.broken
        self.metrics["invalid_lines"] += found.repaired
        self._backlog.opened[0] = found.at
        if last:
            if self._decoder.known(decoding)[0]:
                raise self._decoder.changed(decoding)
            self._backlog.end()
        parts = [rows for rows in found.rows if rows.num_rows]
        if not parts:
            return self._nothing
        rows = parts[0] if len(parts) == 1 else merge(parts)
        self.metrics["rows"] += rows.num_rows
        return self._source.with_file_column(rows, file)

    # --- positions

    @override
    def position(self) -> JsonValue:
        return self._backlog.position(self._half, self.metrics).to_json(self._backlog.packed())

    @override
    def committed(self, position: JsonValue) -> None:
        if self._source.dispose is not None and position is not None:
            self._watch.cover(self._backlog.covered(position_of(self._source.source, position).read))

    @override
    def gauges(self) -> Mapping[str, int]:
        files, size = self._backlog.unread
        return {"lag_files": files, "lag_bytes": size, "ignored_files": self._backlog.ignored}

    @override
    def close(self) -> None:
        self._watch.close()
        self._decoder.close()
