"""The file operations of a spill directory; tests replace them.

Rules: handles are opaque numbers; every call may raise ``OSError``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Volume:
    """The operating system's files."""

    def create(self, path: Path) -> int:
        """A handle to write and read a new, empty file."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        """A handle to read a file."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        """Write buffers, one behind the other, at ``offset``; returns how many bytes were written, maybe not all."""
        return os.pwritev(handle, buffers, offset)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; nothing at the end of the file."""
        return os.pread(handle, size, offset)

    def read_ahead(self, handle: int, offset: int, size: int) -> None:
        """This is about to be read."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, offset, size, os.POSIX_FADV_WILLNEED)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> bool:
        """Make a directory, if it does not exist; whether it was made by this."""
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        return made

    def files(self, directory: Path, suffix: str) -> list[Path]:
        """The files of a directory whose names end with ``suffix``; none without the directory."""
        return list(directory.glob(f"*{suffix}"))

    def remove_directory(self, path: Path) -> None:
        """Remove a directory, if it exists and is empty."""
        if path.exists() and not any(path.iterdir()):
            path.rmdir()


OS_VOLUME = Volume()
