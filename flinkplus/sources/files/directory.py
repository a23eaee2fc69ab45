"""A directory of input files, on a local disk or on anything that ``pyarrow.fs`` reaches.

Rules: names are relative to the directory, with ``/`` between parts. Hidden files (``seen``), and what is no regular
file, are not input.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from flinkplus.errors import InputError, without_secrets
from flinkplus.sources.files.seen import SeenFile, is_hidden
from flinkplus.state.file_system import filesystem_of, is_uri

STREAM_LOG = "_spark_metadata"
_SECOND_NS = 1_000_000_000
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".lz4": "lz4", ".zst": "zstd", ".br": "brotli"}
_UNKNOWN_COMPRESSIONS = (".xz", ".zip", ".snappy", ".lzo", ".7z", ".Z")


class FileHasChanged(InputError):
    """A file has another size or time than when it was found."""


class InputDirectory:
    """The directory ``location``. Opened when it is first used.

    ``recursive``: whether files of its folders are input too.
    """

    def __init__(self, location: str, recursive: bool = False) -> None:
        self.location = location
        self._recursive = recursive

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        try:
            filesystem, path = filesystem_of(self.location)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot open the directory {self.shown!r}: {error}") from error
        return filesystem, path.rstrip("/") or path

    @property
    def is_local(self) -> bool:
        return isinstance(self._opened[0], fs.LocalFileSystem)

    @property
    def shown(self) -> str:
        """The location without secrets and options."""
        if not is_uri(self.location):
            return self.location.rstrip("/") or self.location
        parts = urlsplit(self.location)
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        return without_secrets(urlunsplit(bare)).rstrip("/")

    def full_path(self, path: str) -> str:
        """A file's name as errors and the column of file names show it."""
        return f"{self.shown}/{path}"

    def check(self) -> None:
        """Raises ``InputError`` unless it is a directory that can be read as input."""
        filesystem, root = self._opened
        try:
            found = filesystem.get_file_info(root)
            log = filesystem.get_file_info(f"{root}/{STREAM_LOG}")
        except OSError as error:
            raise InputError(f"cannot read the directory {self.shown!r}: {error}") from error
        if found.type == fs.FileType.NotFound:
            raise InputError(f"there is no directory {self.shown!r}; create it before the job starts")
        if found.type != fs.FileType.Directory:
            raise InputError(f"{self.shown!r} is not a directory; read_text reads single files")
        if log.type != fs.FileType.NotFound:
            raise InputError(
                f"{self.shown!r} is the output of a streaming job, where {STREAM_LOG!r} tells which files count: read "
                "it with from_spark(spark.readStream.schema(...).parquet(...))"
            )

    def files(self) -> Iterator[SeenFile]:
        """All files that are input. Raises ``OSError``."""
        if self.is_local:
            yield from self._local_files("")
            return
        filesystem, root = self._opened
        for info in filesystem.get_file_info(fs.FileSelector(root, recursive=self._recursive)):
            path = info.path[len(root) :].lstrip("/")
            if info.is_file and path and not is_hidden(path):
                yield SeenFile.of(path, info.size, info.mtime_ns or 0)

    def _local_files(self, folder: str) -> Iterator[SeenFile]:
        folders = []
        with os.scandir(os.path.join(self._opened[1], folder)) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if is_hidden(path):
                    continue
                try:
                    if entry.is_file():
                        found = entry.stat()
                        yield SeenFile.of(path, found.st_size, found.st_mtime_ns)
                    elif self._recursive and entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                except FileNotFoundError:  # it was removed meanwhile
                    continue
        for path in folders:
            try:
                yield from self._local_files(path)
            except FileNotFoundError:
                continue

    def info(self, path: str) -> SeenFile:
        """A file as it is now. Raises ``FileNotFoundError`` and ``OSError``."""
        filesystem, root = self._opened
        found = filesystem.get_file_info(f"{root}/{path}")
        if found.type == fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return SeenFile.of(path, found.size or 0, found.mtime_ns or 0)

    def open(self, file: SeenFile) -> Any:
        """The bytes of a file, at random. Raises ``InputError`` when it has changed, ``OSError``."""
        filesystem, root = self._opened
        opened = filesystem.open_input_file(f"{root}/{file.path}")
        if not self._is_unchanged(file):
            raise self.changed(file)
        return opened

    def stream(self, file: SeenFile, offset: int) -> Any:
        """The content of a file, decompressed, from ``offset`` on. Raises as ``open`` does."""
        ending = os.path.splitext(file.path)[1]
        if ending in _UNKNOWN_COMPRESSIONS:
            known = ", ".join(_COMPRESSIONS)
            raise InputError(f"{self.full_path(file.path)!r} is compressed in a way that is not read; {known} are")
        compression = _COMPRESSIONS.get(ending)
        opened = self.open(file)
        if compression is None:
            opened.seek(offset)
            return opened
        decompressed = pa.CompressedInputStream(opened, compression)
        while offset > 0:
            skipped = len(decompressed.read(min(offset, 1 << 20)))
            if not skipped:
                raise self.changed(file)
            offset -= skipped
        return decompressed

    def _is_unchanged(self, file: SeenFile) -> bool:
        """Raises ``FileNotFoundError`` and ``OSError``."""
        now = self.info(file.path)
        unit_ns = 1 if self.is_local else _SECOND_NS  # object stores show fractions of a second in listings alone
        return now.size == file.size and now.mtime_ns // unit_ns == file.mtime_ns // unit_ns

    def changed(self, file: SeenFile) -> FileHasChanged:
        return FileHasChanged(
            f"{self.full_path(file.path)!r} has changed after it was found: files must be complete when they appear, "
            "so write them elsewhere, or under a name that begins with '.', and move them here"
        )

    def _is_another(self, found: fs.FileInfo, file: SeenFile) -> bool:
        """Whether what is found at the target of a move is there, and is no copy of the file."""
        is_copy = not self.is_local and found.size == file.size and (found.mtime_ns or 0) >= file.mtime_ns
        return found.type != fs.FileType.NotFound and not is_copy

    def delete(self, file: SeenFile) -> None:
        """Remove a file, if it is there, unchanged. Raises ``OSError``."""
        filesystem, root = self._opened
        with contextlib.suppress(FileNotFoundError):
            if self._is_unchanged(file):
                filesystem.delete_file(f"{root}/{file.path}")

    def move(self, file: SeenFile, target: str) -> None:
        """Move a file, if it is there, unchanged, below ``target``, in the same file system.

        It keeps its name; where the target has another file of that name, a number is added. Raises ``OSError``.

        An object store copies and then deletes, so a copy may be there that was made before a failure.
        """
        filesystem, root = self._opened
        with contextlib.suppress(FileNotFoundError):
            if not self._is_unchanged(file):
                return
            _, base = filesystem_of(target)
            moved = f"{base.rstrip('/')}/{file.path}"
            if self._is_another(filesystem.get_file_info(moved), file):
                stem, ending = os.path.splitext(moved)
                moved = f"{stem}-{file.version:08x}{ending}"
            filesystem.create_dir(moved.rpartition("/")[0], recursive=True)
            filesystem.move(f"{root}/{file.path}", moved)
