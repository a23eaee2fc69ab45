"""Files of a checkpoint directory, on local disks and on anything pyarrow.fs reaches.

Rules:
- names are relative, with ``/`` between parts; a name is written whole or not at all as far as the file system
  allows it (local: temporary file, fsync, rename; object stores: a write is visible when it is closed);
- ``create`` writes a name only if it does not exist (local: a hard link; S3: a conditional request). Elsewhere there is
  a warning, and only a look beforehand;
- a missing file is ``FileNotFoundError``, any other failure an ``OSError``;
- a listing is whole, or an ``OSError``, since callers remove files by it: only a missing folder lists as empty, and a
  symbolic link in the place of a local folder is an ``OSError``;
- any thread may call anything.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pyarrow import fs

from flinkplus.errors import without_secrets
from flinkplus.local_files import LocalFolder, open_regular
from flinkplus.state.removal import remove_file
from flinkplus.state.s3.bucket import NoConditionalWrites, S3Bucket, warn_unconditional

COPY_CHUNK_BYTES = 1 << 20
SYNC_BYTES = 4 << 20
TEMPORARY_SUFFIX = ".tmp"
SINGLE_UPLOADS = "allow_delayed_open"
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
LOST_AND_FOUND = "lost+found"
"""The file system's own folder at the top of a volume: only root may list it, and nothing of a job is in it."""


def file_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a local file, a chunk at a time."""
    with open(open_regular(path, follow=True), "rb") as source:
        while chunk := source.read(COPY_CHUNK_BYTES):
            yield chunk


def sync_path(path: Path) -> None:
    """Sync a file to disk, or a folder, so that a rename in it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SteadyFile:
    """A new local file that reaches the disk as it grows, so that the final sync waits for ``SYNC_BYTES`` at most."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._unsynced = 0

    def write(self, data: memoryview) -> None:
        """All of ``data``, at the end."""
        written = 0
        while written < len(data):
            written += self._file.write(data[written:]) or 0
        self._wrote(len(data))

    def take(self, source: int, begin: int, end: int) -> None:
        """These bytes of an open file, at the end; where the system can do that by itself."""
        at = begin
        while at < end:
            at += os.sendfile(self._file.fileno(), source, at, min(end - at, SYNC_BYTES))
        self._wrote(end - begin)

    def _wrote(self, count: int) -> None:
        self._unsynced += count
        if self._unsynced >= SYNC_BYTES:
            os.fdatasync(self._file.fileno())
            self._unsynced = 0

    def close(self) -> None:
        self._file.close()


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a local file, or a copy where the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def replace_name(temporary: str, last: str, folder: int) -> None:
    """Give a file of ``folder`` its name; a file of that name is replaced."""
    os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)


def take_name(temporary: str, last: str, folder: int) -> None:
    """As ``replace_name``; raises ``FileExistsError`` instead of replacing. Where the file system has no hard links,
    that is looked at before, with a warning."""
    try:
        os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
    else:
        os.unlink(temporary, dir_fd=folder)
        return
    warn_unconditional("the file system", "it has no hard links")
    with suppress(FileNotFoundError):
        os.stat(last, dir_fd=folder, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, "the file exists", last)
    replace_name(temporary, last, folder)


class LocalDirectory:
    """A directory on a local (or mounted) disk."""

    bucket: S3Bucket | None = None  # as in ``ArrowDirectory``

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = LocalFolder(root)

    def describe(self, name: str) -> str:
        return str(self._root / name)

    def make_root(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes:
        with self._folder.open(name) as source:
            return source.read()

    def write(self, name: str, data: bytes, check: Callable[[], None] | None = None, private: bool = False) -> None:
        """``check``: called before the file has its name; if it raises, nothing was written. ``private``: for this user
        only, where a file system has users.
        """
        with self._published(name, check, 0o600 if private else 0o666) as target:
            target.write(data)

    def create(self, name: str, data: bytes, check: Callable[[], None] | None = None) -> bool:
        """Write a file if none of its name exists. Whether it has this content now.

        ``True``, too, if it had it before: an earlier call may have failed after its write. ``check`` as in ``write``.
        Raises ``OSError``; on an object store, the file may appear later.
        """
        try:
            with self._published(name, check, publish=take_name) as target:
                target.write(data)
        except (FileExistsError, FileNotFoundError) as error:  # the latter: ``delete_unfinished`` came first
            with suppress(FileNotFoundError):
                return self.read(name) == data
            raise error
        return True

    def put(self, local: Path, name: str) -> None:
        with local.open("rb") as source, self._published(name) as target:
            shutil.copyfileobj(source, target, COPY_CHUNK_BYTES)

    def store(self, chunks: Iterable[bytes], name: str) -> None:
        """Write a file in pieces; if ``chunks`` raises, nothing was written."""
        with self._published(name) as target:
            for chunk in chunks:
                target.write(chunk)

    def take(self, source: LocalDirectory, old: str, name: str) -> bool:
        """Give the file ``old`` of ``source``, which must never change, the further name ``name`` here. ``False``, with
        nothing done, where the file system cannot."""
        with source._folder.at(old) as (there, last):
            if not stat.S_ISREG(source._folder.found_in(there, last, old).st_mode):
                return False
            with self._folder.at(name, make=True) as (here, new):
                try:
                    os.link(last, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
                except OSError:  # another device, no hard links, the name exists, no permission
                    return False
                os.fsync(here)
        return True

    @contextmanager
    def _published(
        self,
        name: str,
        check: Callable[[], None] | None = None,
        mode: int = 0o666,
        publish: Callable[[str, str, int], None] = replace_name,
    ) -> Iterator[BinaryIO]:
        """A file to write; it appears under its name, durably, when the block ends without an error."""
        with self._folder.at(name, make=True) as (folder, last):
            with suppress(FileNotFoundError):
                self._folder.found_in(folder, last, name)  # a link is not replaced in silence
            # Its name is unpredictable, and a file or link that is there already is not opened.
            temporary = f"{last}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
            try:
                made = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder=folder)
                with open(made, "wb") as target:
                    yield target
                    target.flush()
                    os.fsync(target.fileno())
                if check is not None:
                    check()
                publish(temporary, last, folder)
                os.fsync(folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def fetch(self, name: str, local: Path) -> None:
        with self._folder.open(name) as source, local.open("wb") as target:
            shutil.copyfileobj(source, target, COPY_CHUNK_BYTES)

    def link(self, name: str, local: Path) -> bool:
        """Give a file the further name ``local``, if it is on the same disk and no other user can change it: whether
        that was done."""
        local.unlink(missing_ok=True)
        try:
            with self._folder.at(name) as (folder, last):
                os.link(last, local, src_dir_fd=folder, follow_symlinks=False)
                found = local.lstat()
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or a file system without hard links
            return False
        writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not writable:
            return True
        local.unlink()
        return False

    def size(self, name: str) -> int:
        return self._folder.found(name).st_size

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._folder.open(name) as source:
            while chunk := source.read(COPY_CHUNK_BYTES):
                yield chunk

    def names(self, folder: str) -> list[str]:
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """The names in a folder, and below it, with the sizes of the files in bytes."""
        return dict(self._walk(folder))

    def first_name(self) -> str | None:
        """The name of any file; ``None``: there is none."""
        return next((name for name, _ in self._walk("")), None)

    def _walk(self, folder: str) -> Iterator[tuple[str, int]]:
        left = [folder]
        while left:
            inside = left.pop()
            with suppress(FileNotFoundError):
                for entry, known in self._folder.entries(inside):
                    name = f"{inside}/{entry}" if inside else entry
                    if not stat.S_ISDIR(known.st_mode):
                        yield name, known.st_size
                    elif entry != LOST_AND_FOUND:
                        left.append(name)

    def delete_empty_folders(self) -> None:
        """Remove the folders below this one that hold no file."""
        folders = [folder for folder, *_ in os.walk(self._root)]
        for folder in reversed(folders[1:]):
            with suppress(OSError):
                os.rmdir(folder)

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._folder.at(name) as (folder, last):
            remove_file(last, folder)  # what is a link itself is removed as such

    def delete_unfinished(self, folder: str) -> None:
        """Remove what is being written there: it will never have its name."""
        with suppress(FileNotFoundError):
            for name, _ in self._folder.entries(folder):
                if name.endswith(TEMPORARY_SUFFIX):
                    self.delete(f"{folder}/{name}" if folder else name)


class ArrowDirectory:
    """A directory of any pyarrow file system: S3, GCS, HDFS. ``bucket``: that it is in, for conditional writes."""

    def __init__(self, filesystem: fs.FileSystem, root: str, bucket: S3Bucket | None = None) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self.bucket = bucket

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root and name else self._root or name

    def describe(self, name: str) -> str:
        return f"{self._fs.type_name}:{self._path(name)}"

    def make_root(self) -> None:
        if self._root:
            self._fs.create_dir(self._root, recursive=True)

    def read(self, name: str) -> bytes:
        with self._fs.open_input_stream(self._path(name)) as source:
            return bytes(source.read())

    def write(self, name: str, data: bytes, check: Callable[[], None] | None = None, private: bool = False) -> None:
        if check is not None:
            check()
        self._make_parent(name)
        with self._fs.open_output_stream(self._path(name)) as target:
            target.write(data)

    def create(self, name: str, data: bytes, check: Callable[[], None] | None = None) -> bool:
        """As ``LocalDirectory.create``."""
        if check is not None:
            check()
        reason = "Arrow does not offer them"
        if self.bucket is not None:
            try:
                return self.bucket.create(self._path(name), data)
            except NoConditionalWrites as error:
                reason = str(error)
        warn_unconditional(f"storage of type {self._fs.type_name}", reason)
        with suppress(FileNotFoundError):
            return self.read(name) == data
        self.write(name, data)
        return True

    def put(self, local: Path, name: str) -> None:
        self.store(file_chunks(local), name)

    def store(self, chunks: Iterable[bytes], name: str) -> None:
        """As ``LocalDirectory.store``."""
        self._make_parent(name)
        target = self._fs.open_output_stream(self._path(name))
        try:
            with target:
                for chunk in chunks:
                    target.write(chunk)
        except BaseException:  # Arrow cannot give a write up: what was written is there, under this name
            with suppress(OSError):
                self.delete(name)
            raise

    def _make_parent(self, name: str) -> None:
        parent = PurePosixPath(self._path(name)).parent.as_posix()
        if parent not in ("", "."):
            self._fs.create_dir(parent, recursive=True)

    def fetch(self, name: str, local: Path) -> None:
        with local.open("wb") as target:
            for chunk in self.chunks(name):
                target.write(chunk)

    def link(self, name: str, local: Path) -> bool:
        """As ``LocalDirectory.link``."""
        return False

    def size(self, name: str) -> int:
        info = self._fs.get_file_info(self._path(name))
        if info.type != fs.FileType.File:
            raise FileNotFoundError(self.describe(name))
        return int(info.size)

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._fs.open_input_stream(self._path(name)) as source:
            while chunk := source.read(COPY_CHUNK_BYTES):
                yield bytes(chunk)

    def names(self, folder: str) -> list[str]:
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """As ``LocalDirectory.sizes``."""
        path = self._path(folder)
        # With allow_not_found, Arrow's HDFS takes every folder that it fails to list for missing, also below this one.
        selector = fs.FileSelector(path, allow_not_found=False, recursive=True)
        try:
            found = self._fs.get_file_info(selector)
        except FileNotFoundError:
            if self._fs.get_file_info(path).type != fs.FileType.NotFound:
                raise
            return {}
        skip = len(self._root) + 1 if self._root else 0
        return {info.path[skip:]: int(info.size) for info in found if info.type == fs.FileType.File}

    def first_name(self) -> str | None:
        """The name of any file; ``None``: there is none."""
        return next(iter(self.sizes("")), None)

    def delete_empty_folders(self) -> None:
        """Nothing to do: most object stores have no folders."""

    def delete(self, name: str) -> None:
        if self._fs.get_file_info(self._path(name)).type == fs.FileType.File:
            self._fs.delete_file(self._path(name))

    def delete_unfinished(self, folder: str) -> None:
        """Nothing to do: a write is there when it is closed."""


Files: TypeAlias = LocalDirectory | ArrowDirectory


def linked(source: Files, target: Files, name: str) -> bool:
    """Give a file of one directory the same name in another, without copying it; whether that can be done."""
    if isinstance(source, LocalDirectory) and isinstance(target, LocalDirectory):
        return target.take(source, name, name)
    return False


def is_uri(location: str) -> bool:
    """Whether this is a URI, and not a local path."""
    return "://" in location or location.startswith("file:")


def absolute(location: str) -> str:
    """A local path made absolute (processes of one job differ in their working directories); a URI as it is."""
    return location if is_uri(location) else os.path.abspath(os.path.expanduser(location))


def filesystem_of(location: str) -> tuple[fs.FileSystem, str]:
    """What a local path or a URI (``file:``, ``s3:``, ``gs:``, ``hdfs:``) means: a file system, and the path in it.

    Raises ``OSError`` or ``ValueError`` for a URI that names no file system; they show no secret of it.
    """
    if not is_uri(location):
        return fs.LocalFileSystem(), location
    try:
        filesystem, path = fs.FileSystem.from_uri(_with_single_uploads(location))
    except (OSError, ValueError) as error:
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(without_secrets(str(error))) from None  # the original's text would be part of a traceback
    return filesystem, path


def _with_single_uploads(location: str) -> str:
    """The same URI; for S3, one with which files below Arrow's part size (10 MB) are stored by a single request.

    Otherwise Arrow begins a multipart upload when a file is opened, and that of a killed process stays in the bucket,
    invisible and paid for.
    """
    parts = urlsplit(location)
    if parts.scheme != "s3" or SINGLE_UPLOADS in dict(parse_qsl(parts.query)):
        return location
    option = f"{SINGLE_UPLOADS}=true"
    return urlunsplit(parts._replace(query=f"{parts.query}&{option}" if parts.query else option))


def open_directory(uri_or_path: str | Path, filesystem: fs.FileSystem | None = None) -> Files:
    """The directory named by a local path or by a URI; raises as ``filesystem_of`` does."""
    if filesystem is not None:
        return ArrowDirectory(filesystem, str(uri_or_path))
    if isinstance(uri_or_path, Path):
        return LocalDirectory(uri_or_path.expanduser().absolute())
    filesystem, path = filesystem_of(uri_or_path)
    if isinstance(filesystem, fs.LocalFileSystem):
        return LocalDirectory(Path(path).expanduser().absolute())
    return ArrowDirectory(filesystem, path, S3Bucket.of(uri_or_path))
