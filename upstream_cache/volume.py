"""The files of a spill directory: the operating system's, or those of a test.

Rules: handles are opaque numbers; every call may raise ``OSError``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class Volume(Protocol):
    """What segments and their directory need of a file system."""

    def create(self, path: Path) -> int:
        """A handle to write and read a new, empty file."""

    def open(self, path: Path) -> int:
        """A handle to read a file."""

    def close(self, handle: int) -> None: ...

    def write(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        """Write buffers, one behind the other, at ``offset``; returns how many bytes were written, maybe not all."""

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; nothing at the end of the file."""

    def read_ahead(self, handle: int, offset: int, size: int) -> None:
        """This is about to be read."""

    def remove(self, path: Path) -> None:
        """Remove a file; no matter if it is not there."""

    def make_directory(self, path: Path) -> bool:
        """Have a directory; whether it was made by this."""

    def files(self, directory: Path, suffix: str) -> list[Path]:
        """The files of a directory (none, if it is not there) whose names end with ``suffix``."""

    def remove_directory(self, path: Path) -> None:
        """Remove a directory, if it is there and empty."""


class OsVolume:
    """The operating system's files."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        return os.pwritev(handle, buffers, offset)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return os.pread(handle, size, offset)

    def read_ahead(self, handle: int, offset: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, offset, size, os.POSIX_FADV_WILLNEED)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> bool:
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        return made

    def files(self, directory: Path, suffix: str) -> list[Path]:
        return list(directory.glob(f"*{suffix}"))

    def remove_directory(self, path: Path) -> None:
        if path.exists() and not any(path.iterdir()):
            path.rmdir()


OS_VOLUME: Volume = OsVolume()
