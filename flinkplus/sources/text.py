"""Lines of text files, read in parallel by byte ranges.

Rules:

- A line ends with LF or CR LF, which do not belong to it; the last one may end with the file. (A lone CR ends
  nothing.) A UTF-8 byte order mark at the beginning of a file is skipped, as Spark does.
- A line belongs to the split in which its first byte lies, as in Hadoop. So with any splits the readers together give
  every line once. The cursor of a split is the byte offset in the file at which the next line begins.
- Files are planned in the driver, with their sizes; a file that has another size later is an ``InputError``. Hidden
  files (``.`` or ``_``) and subdirectories of a directory are not input, as in Spark.
- Bytes that are not UTF-8 are replaced as ``bytes.decode("utf-8", "replace")`` does, line by line, and the lines
  counted in ``metrics["invalid_lines"]``; or, with ``errors="strict"``, they are an ``InputError`` that names file
  and byte.
- Memory is bounded by ``chunk_bytes``, or by the longest line, which must be shorter than 1 GB.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import Source
from flinkplus.sources.dealing import Extent
from flinkplus.sources.splits import Block, SplitReader, check_options, redealt
from flinkplus.sources.utf8 import first_invalid_byte, invalid_rows, repaired

SCHEMA = pa.schema([("value", pa.string())])
CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 30
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".snappy", ".zip")


@dataclass(frozen=True, slots=True, order=True)
class InputFile:
    """A file and its size when the job was planned."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, order=True)
class TextSplit:
    """The bytes ``[start, end)`` of a file."""

    file: InputFile
    start: int
    end: int

    @property
    def identity(self) -> tuple[str | int, ...]:
        """The file's name (not its directory) and size, and the bytes."""
        return os.path.basename(self.file.path), self.file.size, self.start, self.end


@dataclass(frozen=True)
class TextFiles(Source):
    """The lines of a file, of the files in a directory, or of all files that match a glob; one string column ``value``.

    ``repeat``: how many times to read everything; ``split_bytes``: the largest split; ``files``: set by ``planned``.
    """

    name: str
    path: str | os.PathLike[str]
    repeat: int = 1
    errors: str = "replace"
    split_bytes: int = 4 << 20
    chunk_bytes: int = CHUNK_BYTES
    files: tuple[InputFile, ...] | None = None

    def __post_init__(self) -> None:
        check_options(self.name, self.repeat, self.errors)
        if self.split_bytes < 1 or self.chunk_bytes < 1:
            raise ConfigurationError(f"source {self.name!r}: split_bytes and chunk_bytes must be at least 1")

    @property
    def schema(self) -> pa.Schema:
        """One string column, ``value``."""
        return SCHEMA

    @override
    def planned(self) -> TextFiles:
        return self if self.files is not None else replace(self, files=find_files(self.name, os.fspath(self.path)))

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        # as text, "replace" and "strict" read the same rows
        return {"path": os.fspath(self.path), "repeat": self.repeat, "split_bytes": self.split_bytes}

    @override
    def split_plan(self) -> JsonValue:
        return None if self.files is None else [[file.path, file.size] for file in self.files]

    @override
    def with_split_plan(self, plan: Any) -> TextFiles:
        return replace(self, files=tuple(InputFile(str(path), int(size)) for path, size in plan))

    def plan(self, parallelism: int = 1) -> list[TextSplit]:
        """All splits in order, their number a multiple of ``parallelism`` before they are cut at the ends of files.

        Split ``n`` of equal size goes to subtask ``n % parallelism``, so subtasks differ by little more than a line.
        """
        return [split for part in self._parts(parallelism) for split in part]

    def _parts(self, parallelism: int) -> list[list[TextSplit]]:
        if self.files is None:
            raise ConfigurationError(f"source {self.name!r} is not planned; the driver must call planned()")
        total = sum(file.size for file in self.files)
        count = -(-max(1, -(-total // self.split_bytes)) // parallelism) * parallelism
        bounds = [total * n // count for n in range(count + 1)]
        parts: list[list[TextSplit]] = [[] for _ in range(count)]
        first, n = 0, 0
        for file in self.files:
            start = 0
            while start < file.size:
                while bounds[n + 1] <= first + start:
                    n += 1
                end = min(file.size, bounds[n + 1] - first)
                parts[n].append(TextSplit(file, start, end))
                start = end
            first += file.size
        return parts

    @override
    def reader(self, index: int, parallelism: int) -> SplitReader[TextSplit]:
        splits = [split for part in self._parts(parallelism)[index::parallelism] for split in part]
        return _TextReader(self, splits)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        return redealt(self.reader, positions, parallelism, self.split_bytes)


def find_files(source: str, path: str) -> tuple[InputFile, ...]:
    """The files that ``path`` (file, directory or glob) means, sorted by name. Raises ``InputError`` without any."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise InputError(
            f"source {source!r}: {path!r} is not a local path; read it with from_spark(spark.read.text(...))"
        )
    exists = os.path.exists(path)
    matches = [path] if exists else glob.glob(path, recursive=True)
    found = [f for match in matches for f in (_visible_files(match) if os.path.isdir(match) else [match])]
    found = [file for file in found if exists or not _is_hidden(file)]
    if not found:
        problem = "no files in the directory" if os.path.isdir(path) else "no such file, and no file matches it"
        raise InputError(f"source {source!r}: {problem}: {path!r}")
    return tuple(_input_file(source, os.path.abspath(file)) for file in sorted(set(found)))


def _visible_files(directory: str) -> list[str]:
    try:
        entries = [entry.path for entry in os.scandir(directory) if entry.is_file()]
    except OSError as error:
        raise InputError(f"cannot read the directory {directory!r}: {error.strerror}") from error
    return [path for path in entries if not _is_hidden(path)]


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith((".", "_"))


def _input_file(source: str, path: str) -> InputFile:
    if path.endswith(_COMPRESSED):
        raise InputError(f"source {source!r}: {path!r} is compressed; decompress it, or read it with from_spark(...)")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe cannot be read again, and opening one may never return
            raise InputError(f"source {source!r}: {path!r} is not a regular file; write its content to a file first")
        with open(path, "rb") as file:
            return InputFile(path, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"source {source!r}: cannot read {path!r}: {error.strerror}") from error


class _TextReader(SplitReader[TextSplit]):
    def __init__(self, source: TextFiles, splits: list[TextSplit]) -> None:
        super().__init__(source.name, SCHEMA, splits, source.repeat)
        self._strict = source.errors == "strict"
        self._chunk_bytes = source.chunk_bytes
        self._files = source.files or ()

    @override
    def split_of(self, extent: Extent) -> TextSplit:
        return TextSplit(self._files[extent.place[0]], extent.start, extent.end)

    @override
    def extent_of(self, split: TextSplit) -> Extent:
        return Extent((self._files.index(split.file),), split.start, split.end)

    @override
    def blocks(self, split: TextSplit, cursor: int | None) -> Iterator[Block]:
        path, size = split.file.path, split.file.size
        try:
            with open(path, "rb", buffering=0) as file:
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    raise InputError(f"{path!r} has changed: {size} bytes when the job was planned, now {found}")
                if cursor is not None and not split.start <= cursor <= size:
                    raise InputError(
                        f"position {cursor} does not lie in the split {split.start} to {split.end} of {path!r}"
                    )
                lines = _LineBlocks(file, split, self._chunk_bytes, cursor)
                while (data := lines.next_lines()) is not None:
                    offset = lines.offset - len(data)
                    if offset == 0 and data.startswith(_BYTE_ORDER_MARK):
                        data, offset = data[len(_BYTE_ORDER_MARK) :], len(_BYTE_ORDER_MARK)
                    if data:
                        yield self._parsed(data, offset, path)
        except OSError as error:
            raise InputError(f"cannot read {path!r}: {error.strerror}") from error

    def _parsed(self, data: bytes, offset: int, path: str) -> Block:
        """The lines in ``data``, whole lines that begin at ``offset`` of the file."""
        lines, text, starts, ends = split_lines(data)
        lines, invalid = checked_lines(lines, text, offset + starts, path, self._strict)
        return Block(pa.RecordBatch.from_arrays([lines], schema=SCHEMA), offset + ends, invalid)


def split_lines(data: bytes) -> tuple[pa.StringArray, bytes, np.ndarray, np.ndarray]:
    """The lines in ``data``, not empty, which ends with the end of a line or of the file; the text of them all; where
    each line begins in ``data``, and where the next one does."""
    array = np.frombuffer(data, dtype=np.uint8)
    breaks = np.flatnonzero(array == ord("\n"))
    ends = breaks if data.endswith(b"\n") else np.append(breaks, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    text = data
    if b"\r\n" in data:
        lengths[: len(breaks)] -= (lengths[: len(breaks)] > 0) & (array[breaks - 1] == ord("\r"))
        text = text.replace(b"\r\n", b"")
    text = text.replace(b"\n", b"")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    following = ends + 1
    following[-1] = len(data)
    lines = pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return lines, text, starts, following


def checked_lines(
    lines: pa.StringArray, text: bytes, starts: np.ndarray, path: str, strict: bool
) -> tuple[pa.StringArray, np.ndarray | None]:
    """Lines with what is not UTF-8 replaced, and which ones that were (``None``: none). ``starts``: where each begins
    in the file. Raises ``InputError`` instead if ``strict``."""
    invalid = None if text.isascii() else invalid_rows(lines)
    if invalid is None:
        return lines, None
    if strict:
        row = int(invalid.argmax())
        line: bytes = lines[row].as_buffer().to_pybytes()
        at = first_invalid_byte(line)
        assert at is not None
        raise InputError(f"{path!r} is not UTF-8 at byte {int(starts[row]) + at} (0x{line[at]:02x})")
    return repaired(lines), invalid


class _LineBlocks:
    """Cuts the part of a file that belongs to a split into blocks of whole lines."""

    def __init__(self, file: BinaryIO, split: TextSplit, chunk_bytes: int, cursor: int | None) -> None:
        """Begins at ``cursor``, or, when it is ``None``, at the first line that begins in the split."""
        self._fd = file.fileno()
        self._split = split
        self._chunk_bytes = chunk_bytes
        self.offset = split.start if cursor is None else cursor
        if cursor is None and split.start > 0:
            self.offset = self._split.start - 1
            while self.offset < self._split.end:
                chunk = self._read(self.offset, min(self._chunk_bytes, self._split.end - self.offset))
                position = chunk.find(b"\n")
                if position >= 0:
                    self.offset += position + 1
                    return
                self.offset += len(chunk)

    def next_lines(self) -> bytes | None:
        """The next whole lines, at least one; ``None`` at the end of the split. ``offset`` is then behind them."""
        left = self._split.end - self.offset
        if left <= 0:
            return None
        data = self._read(self.offset, min(left, self._chunk_bytes))
        last = data.rfind(b"\n")
        if last < 0 or (left <= self._chunk_bytes and last < len(data) - 1):
            data = self._completed(data)
        else:
            data = data[: last + 1]
        self.offset += len(data)
        return data

    def _completed(self, data: bytes) -> bytes:
        """``data`` and what follows it up to the end of the line, or of the file."""
        parts, size = [data], len(data)
        while self.offset + size < self._split.file.size:
            chunk = self._read(self.offset + size, self._chunk_bytes)
            end = chunk.find(b"\n") + 1
            parts.append(chunk[:end] if end else chunk)
            size += len(parts[-1])
            if end:
                break
            if size >= MAX_LINE_BYTES:
                raise InputError(f"{self._split.file.path!r} has a line of 1 GB or more at byte {self.offset}")
        return b"".join(parts)

    def _read(self, offset: int, count: int) -> bytes:
        """``count`` bytes, or up to the planned end of the file."""
        count = min(count, self._split.file.size - offset)
        data = b""
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                raise InputError(f"{self._split.file.path!r} has become shorter while it was read")
            data += more
        return data
