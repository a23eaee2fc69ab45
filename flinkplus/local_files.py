"""Opens local files in directories that other processes may write; no other module does.

Rules:
- only a regular file is opened: a named pipe would block, and a device may hold bytes without end;
- below a ``LocalFolder`` no symbolic link is followed, even if it is put there meanwhile: each part of a name is opened
  from the descriptor of its folder. Elsewhere a link is followed only if the caller says so.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO


class NoRegularFile(OSError):
    """A named pipe, a device, a socket or a directory instead of a file."""


def open_regular(
    path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666, follow: bool = False, folder: int | None = None
) -> int:
    """The descriptor of a regular file. Raises ``NoRegularFile``, and ``OSError`` otherwise. ``follow``: also through a
    symbolic link. ``folder``: the open folder that ``path`` is relative to."""
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    found = os.open(path, flags, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise NoRegularFile(errno.EINVAL, "no regular file", str(path))
    return found


class LocalFolder:
    """A folder on a local disk, which may itself be a link. Names in it are relative, with ``/`` between parts; a part
    that is a symbolic link raises ``OSError``."""

    def __init__(self, root: str | Path) -> None:
        self._root = str(root)

    @contextmanager
    def folder(self, name: str = "", make: bool = False) -> Iterator[int]:
        """The descriptor of a folder; ``make``: create it and its parents if they are missing."""
        if make:
            os.makedirs(self._root, exist_ok=True)
        found, path = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), self._root
        try:
            for part in PurePosixPath(name).parts:
                inner = _inner_folder(found, part, os.path.join(path, part), make)
                os.close(found)
                found, path = inner, os.path.join(path, part)
            yield found
        except OSError as error:
            if isinstance(error.filename, str) and not os.path.isabs(error.filename):
                error.filename = os.path.join(path, error.filename)
            raise
        finally:
            os.close(found)

    @contextmanager
    def at(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder of a file, and the last part of its name."""
        above, _, last = name.rpartition("/")
        with self.folder(above, make) as found:
            yield found, last

    def open(self, name: str) -> BinaryIO:
        """A file to read."""
        with self.at(name) as (folder, last):
            return open(open_regular(last, folder=folder), "rb")

    def create(self, name: str) -> BinaryIO:
        """A new file to write. It replaces one of this name, whose other hard links stay."""
        with self.at(name) as (folder, last):
            with suppress(FileNotFoundError):
                if stat.S_ISREG(self.found_in(folder, last, name).st_mode):
                    os.unlink(last, dir_fd=folder)
            return open(open_regular(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder), "wb")

    def found(self, name: str = "") -> os.stat_result:
        """The status of a file or folder."""
        if not name:
            return os.stat(self._root)
        with self.at(name) as (folder, last):
            return self.found_in(folder, last, name)

    def found_in(self, folder: int, last: str, name: str) -> os.stat_result:
        """``found`` of ``name``, which is ``last`` in ``folder`` (``at``)."""
        found = os.stat(last, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise _link(os.path.join(self._root, name))
        return found

    def entries(self, name: str = "") -> list[tuple[str, os.stat_result]]:
        """The entries of a folder with their status; links are not followed."""
        found = []
        with self.folder(name) as folder, os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found


def _inner_folder(folder: int, part: str, path: str, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=folder)
    try:
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:  # a link is one or the other of these errors, by system
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(part, folder):
            raise _link(path) from None
        raise OSError(error.errno, error.strerror, path) from None


def _is_link(part: str, folder: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _link(path: str) -> OSError:
    return OSError(errno.ELOOP, "a symbolic link, which is not followed here", path)
