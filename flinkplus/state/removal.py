"""Removing files without blocking the disk for others.

Freeing the blocks of a large file may take the disk more than a millisecond per megabyte (with ``discard``, as on many
virtual machines). A thread that syncs another file waits for it.

Rules:
- a name is gone when the call returns; a separate thread frees the space, in pieces, with pauses longer than the work
  unless the queue is long;
- only a file without another name, and not open elsewhere, is truncated piecewise: a file being read stays whole;
- the thread exists as long as it has something to do, and no thread waits for it. When the job ends, the rest goes
  at once (``hurry``); when the process ends, the system does it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import threading
import time
from collections import deque
from pathlib import Path

PIECE_BYTES = 4 << 20
"""Files up to this are removed as they are; others by so much at a time."""
PAUSE = 4
"""Times as long as a piece took."""
HURRY_FILES = 64


class _Remover:
    """Large files that have lost their last name, and the thread that takes them to pieces."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[int] = deque()
        self._thread: threading.Thread | None = None
        self._hurried = False

    def add(self, handle: int) -> None:
        """An open file, which is closed in the end."""
        with self._guard:
            self._waiting.append(handle)
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._thread = threading.Thread(target=self._run, name="flinkplus-removal", daemon=True)
                self._thread.start()

    def hurry(self) -> None:
        """The job is over: free the space of all removed files at once, before another job has to wait for that."""
        with self._guard:
            self._hurried = self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._thread = None
                    self._hurried = False
                    return
                handle = self._waiting.popleft()
            try:
                with contextlib.suppress(OSError):
                    self._take_to_pieces(handle)
            finally:
                os.close(handle)

    def _take_to_pieces(self, handle: int) -> None:
        """Raises ``OSError`` when that must not be, or cannot."""
        found = os.fstat(handle)
        if found.st_nlink:
            return
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # granted when no other process has it open
        for size in range(found.st_size - PIECE_BYTES, 0, -PIECE_BYTES):
            if self._hurried:
                return
            begun = time.monotonic()
            os.ftruncate(handle, size)
            if len(self._waiting) < HURRY_FILES:
                time.sleep(PAUSE * (time.monotonic() - begun))


_remover = _Remover()
hurry = _remover.hurry


def remove_file(path: str | Path, folder: int | None = None) -> None:
    """Remove a file, if it exists. ``folder``: the open folder that ``path`` is relative to. Raises ``OSError``."""
    handle = _open_large(path, folder)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=folder)
    except BaseException:
        if handle is not None:
            os.close(handle)
        raise
    if handle is not None:
        _remover.add(handle)


def remove_folder(path: str | Path) -> None:
    """Remove a folder and what is in it, as far as that can be done."""
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                remove_file(os.path.join(folder, name))
    shutil.rmtree(path, ignore_errors=True)


def _open_large(path: str | Path, folder: int | None) -> int | None:
    """The file, if it is worth the trouble and this is its last name."""
    with contextlib.suppress(OSError):
        found = os.stat(path, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size > PIECE_BYTES:
            return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    return None
