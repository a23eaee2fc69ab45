"""Removing files without keeping the disk from everybody else.

The blocks of a large file are not given back in no time: some 30 ms for 250 MB, and 0.3 s where the disk is told of
every block (ext4 with ``discard``, as many clouds have it), in which it does nothing else; whoever syncs a file then
waits.

Rules:
- a name is gone when the call returns; the room is given back by a thread of its own, in pieces, with pauses as long as
  the work, so that the disk always has time for others;
- only what nobody else has, by another name or open, is taken to pieces: a file that is being read stays whole;
- the thread is there as long as it has something to do, and nobody waits for it. When the process ends, the system does
  the rest.
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

PIECE_BYTES = 8 << 20
"""Files up to this are removed as they are; others by so much at a time."""

_guard = threading.Lock()
_nameless: deque[int] = deque()
_thread: threading.Thread | None = None


def remove_file(path: str | Path) -> None:
    """Remove a file, if it is there. Raises ``OSError`` when that cannot be done."""
    handle = _large(path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    except BaseException:
        if handle is not None:
            os.close(handle)
        raise
    if handle is not None:
        _give_back_later(handle)


def remove_folder(path: str | Path) -> None:
    """Remove a folder and what is in it, as far as that can be done."""
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                remove_file(os.path.join(folder, name))
    shutil.rmtree(path, ignore_errors=True)


def _large(path: str | Path) -> int | None:
    """The file, open, if it is worth it and this is its last name."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size > PIECE_BYTES:
            return os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    return None


def _give_back_later(handle: int) -> None:
    global _thread
    with _guard:
        _nameless.append(handle)
        if _thread is None or not _thread.is_alive():  # a forked child has none
            _thread = threading.Thread(target=_give_back_all, name="flinkplus-removal", daemon=True)
            _thread.start()


def _give_back_all() -> None:
    global _thread
    while True:
        with _guard:
            if not _nameless:
                _thread = None
                return
            handle = _nameless.popleft()
        try:
            with contextlib.suppress(OSError):
                _give_back(handle)
        finally:
            os.close(handle)


def _give_back(handle: int) -> None:
    """Take a file to pieces. ``OSError`` when that must not be, or cannot."""
    found = os.fstat(handle)
    if found.st_nlink:
        return
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # granted when nobody else has it open
    size = found.st_size
    while size > 0:
        begun = time.monotonic()
        size = max(0, size - PIECE_BYTES)
        os.ftruncate(handle, size)
        time.sleep(time.monotonic() - begun)
