"""The output directory of a job: every file operation of the file sinks, on a local path or a ``pyarrow.fs`` URI.

Rules:
- names are relative to the directory. ``write`` is atomic (a hidden temporary file, then a move); ``move`` replaces;
- ``create`` and ``swap`` write on a condition. On S3 that is one request, whose condition holds whenever it arrives.
  Elsewhere they are ``write``, whose move fails once another process has removed the temporary file; locally
  ``create`` also replaces nothing;
- removing a missing file is no error, so that every operation can be repeated;
- locally a path is made absolute but links are not followed, because Spark compares the logged paths with the one that
  the reader was given. Whether a write survives a power failure is left to the file system.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from flinkplus.local_files import LocalFolder
from flinkplus.state.durable.uploads import Uploads
from flinkplus.state.file_system import filesystem_of, take_name
from flinkplus.state.s3.bucket import NoConditionalWrites, S3Bucket, warn_unconditional

TEMPORARY_SUFFIX = ".tmp"
CHUNK_BYTES = 1 << 20
ABSENT = (FileNotFoundError, NotADirectoryError)
"""Errors for a missing name, or for a file in the place of a directory above it."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of a directory; ``size`` in bytes, ``modified_ms`` since 1970. ``is_dir``: a directory itself."""

    name: str
    size: int
    modified_ms: int
    is_dir: bool = False


class OutputFiles:
    """The directory ``location``: a local path, or a URI that ``pyarrow.fs`` knows.

    ``check`` is called before anything is renamed or removed, and raises when this process must not do that.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.check: Callable[[], None] = lambda: None
        self._fs, self._base = filesystem_of(location)
        self._local: LocalFolder | None = None
        self._bucket = S3Bucket.of(location)
        self.uploads = Uploads(self._bucket)
        """Multipart uploads into the directory."""
        if isinstance(self._fs, fs.LocalFileSystem):
            self._base = os.path.abspath(self._base)
            self._local = LocalFolder(self._base)
            self._uri_prefix = "file://"
        else:
            scheme = location.split("://", 1)[0]
            authority = "" if scheme in ("s3", "gs", "gcs", "abfs", "abfss") else location.split("/")[2]
            # What Hadoop calls the scheme that Arrow calls s3 and gcs; their buckets are part of the path.
            self._uri_prefix = {"s3": "s3a", "gcs": "gs"}.get(scheme, scheme) + "://" + authority
        self.move_replaces = self._fs.type_name != "hdfs"
        """Whether ``move`` replaces an existing file; on HDFS it fails."""
        self.has_folders = self._local is not None or self._fs.type_name == "hdfs"
        """Whether a folder exists by itself, and can be renamed; object stores have only files."""

    def _path(self, name: str) -> str:
        return posixpath.join(self._base, name) if name else self._base

    def uri(self, name: str) -> str:
        """The address of a file as Spark writes it: percent-encoded."""
        return self._uri_prefix + quote(self._path(name))

    def info(self, name: str) -> FileEntry | None:
        """The entry called ``name``; ``None`` when it does not exist."""
        if self._local is not None:
            with contextlib.suppress(*ABSENT):
                return _local_entry(posixpath.basename(name), self._local.found(name))
            return None
        info = self._fs.get_file_info(self._path(name))
        return None if info.type == fs.FileType.NotFound else _entry(info)

    def entries(self, directory: str = "") -> list[FileEntry]:
        """The entries of a directory in order of their names; none when it does not exist."""
        if self._local is not None:
            with contextlib.suppress(*ABSENT):
                found = self._local.entries(directory)
                return sorted((_local_entry(*one) for one in found), key=lambda entry: entry.name)
            return []
        selector = fs.FileSelector(self._path(directory), allow_not_found=True)
        return sorted((_entry(info) for info in self._fs.get_file_info(selector)), key=lambda entry: entry.name)

    def data_files(self, folder: str = "") -> Iterator[tuple[str, FileEntry]]:
        """The files of the directory that readers look at, with their names relative to it: also those in folders of
        partitions (``day=2026-11-27``), and in other folders; not what begins with ``_`` or a dot."""
        for entry in self.entries(folder):
            name = posixpath.join(folder, entry.name)
            if entry.name.startswith(".") or (entry.name.startswith("_") and "=" not in entry.name):
                continue
            if entry.is_dir:
                yield from self.data_files(name)
            else:
                yield name, entry

    def read(self, name: str) -> bytes:
        """The whole content. Raises ``FileNotFoundError``."""
        local = self._local
        with self._fs.open_input_stream(self._path(name)) if local is None else local.open(name) as stream:
            return bytes(stream.read())

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """A file to read, as a ``pyarrow.NativeFile`` with random access. Raises ``FileNotFoundError``."""
        if self._local is None:
            with self._fs.open_input_file(self._path(name)) as stream:
                yield stream
            return
        with self._local.open(name) as found, pa.PythonFile(found, "r") as stream:
            yield stream

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content, a piece at a time. Raises ``FileNotFoundError``."""
        local = self._local
        with self._fs.open_input_stream(self._path(name)) if local is None else local.open(name) as stream:
            while piece := stream.read(CHUNK_BYTES):
                yield bytes(piece)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all; an existing one is replaced."""
        self.move(self._written_aside(name, content), name)

    def _written_aside(self, name: str, content: bytes) -> str:
        """The hidden name of a new file beside ``name``."""
        directory, last = posixpath.split(name)
        temporary = posixpath.join(directory, f".{last}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        with self.open_output(temporary) as stream:
            stream.write(content)
        return temporary

    @property
    def is_conditional(self) -> bool:
        """Whether ``create`` and ``swap`` are single requests, which nothing but their condition can stop."""
        return self._bucket is not None and self._bucket.is_conditional

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if none of its name exists; whether it has this content now. Raises ``OSError``."""
        if self._bucket is not None:
            self.check()
            try:
                return self._bucket.create(self._path(name), content)
            except NoConditionalWrites as error:
                warn_unconditional(f"s3://{self._bucket.name}", str(error))
        elif self._local is not None:
            return self._created(self._local, name, content)
        with contextlib.suppress(*ABSENT):
            return self.read(name) == content
        self.write(name, content)
        return True

    def _created(self, local: LocalFolder, name: str, content: bytes) -> bool:
        temporary = self._written_aside(name, content)
        self.check()
        try:
            with local.at(name) as (folder, last):
                take_name(posixpath.basename(temporary), last, folder)
        except FileExistsError:
            self.delete(temporary)
            return self.read(name) == content
        return True

    def swap(self, name: str, before: bytes, content: bytes) -> bool:
        """Replace a file that has the content ``before``; whether it has the new content now. Raises ``OSError``."""
        if self._bucket is not None:
            self.check()
            try:
                return self._bucket.swap(self._path(name), before, content)
            except NoConditionalWrites as error:
                warn_unconditional(f"s3://{self._bucket.name}", str(error))
        self.write(name, content)
        return True

    def open_output(self, name: str) -> Any:
        """A new file, as a ``pyarrow.NativeFile`` to write to."""
        if self._local is not None:
            with self._local.create(name) as made:  # Arrow opens paths only; this one is of the file that was made
                return pa.OSFile(f"/dev/fd/{made.fileno()}", "wb")
        return self._fs.open_output_stream(self._path(name))

    def move(self, source: str, target: str) -> None:
        """Rename; atomic on a local file system and on HDFS."""
        self.check()
        if self._local is not None:
            with self._local.at(source) as (here, old), self._local.at(target) as (there, new):
                os.replace(old, new, src_dir_fd=here, dst_dir_fd=there)
        else:
            self._fs.move(self._path(source), self._path(target))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.check()
        with contextlib.suppress(*ABSENT):
            if self._local is not None:
                with self._local.at(name) as (folder, last):
                    os.unlink(last, dir_fd=folder)
            else:
                self._fs.delete_file(self._path(name))

    def make_dir(self, name: str = "") -> None:
        """Make a directory, and those above it."""
        if self._local is not None:
            with self._local.folder(name, make=True):
                return
        self._fs.create_dir(self._path(name), recursive=True)

    def delete_dir(self, name: str) -> None:
        """Remove an empty directory. One that is not empty by now stays, where the file system knows."""
        self.check()
        if self._local is not None:
            with contextlib.suppress(*ABSENT), self._local.folder(name):
                pass  # a link is an error
            with contextlib.suppress(OSError), self._local.at(name) as (folder, last):
                os.rmdir(last, dir_fd=folder)
            return
        with contextlib.suppress(*ABSENT):
            self._fs.delete_dir(self._path(name))


def _local_entry(name: str, found: os.stat_result) -> FileEntry:
    is_dir = stat.S_ISDIR(found.st_mode)
    return FileEntry(name, 0 if is_dir else found.st_size, found.st_mtime_ns // 1_000_000, is_dir)


def _entry(info: Any) -> FileEntry:
    is_dir = info.type == fs.FileType.Directory
    return FileEntry(info.base_name, info.size or 0, (info.mtime_ns or 0) // 1_000_000, is_dir)
