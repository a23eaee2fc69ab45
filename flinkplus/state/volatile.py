"""Folders in shared memory for small files that need not survive the process, so that writing them waits for no disk.

Rules:
- each process has one folder there, and holds its lock while it lives; the next process removes folders without holder;
- space for content is reserved before it is written: at most ``MAX_BYTES`` per process, as long as ``MIN_FREE_BYTES``
  are left for others;
- without shared memory, or with too little of it, a process has no folder, and callers work without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path

ROOT = Path("/dev/shm")
PREFIX = "flinkplus-stores-"
LOCK_FILE = "lock"
MIN_FREE_BYTES = 32 << 20
MAX_BYTES = 64 << 20
ATTEMPTS = 5

_guard = threading.Lock()
_mine: dict[tuple[int, Path], tuple[Path, int]] = {}
"""(process, root) -> folder and the open lock: a forked child has a folder of its own."""
_reserved = {"bytes": 0}


def make_folder() -> Path | None:
    """A new, empty folder in shared memory; ``None`` when there is no room for it. The caller removes it."""
    with _guard, contextlib.suppress(OSError):
        if _is_room(0):
            return Path(tempfile.mkdtemp(dir=_process_folder()))
    return None


def reserve(size: int, share: float = 1.0) -> bool:
    """Whether this process may write ``size`` bytes more, up to ``share`` of ``MAX_BYTES``, until ``release``."""
    with _guard, contextlib.suppress(OSError):
        if _reserved["bytes"] + size <= share * MAX_BYTES and _is_room(size):
            _reserved["bytes"] += size
            return True
    return False


def _is_room(size: int) -> bool:
    space = os.statvfs(ROOT)
    return space.f_bavail * space.f_frsize >= MIN_FREE_BYTES + size


def release(size: int) -> None:
    """Bytes of ``reserve`` are free again."""
    with _guard:
        _reserved["bytes"] -= size


def _process_folder() -> Path:
    key = (os.getpid(), ROOT)
    if key in _mine and _mine[key][0].exists():
        return _mine[key][0]
    _sweep()
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=ROOT))
        with contextlib.suppress(OSError):
            handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _locked(handle) and (folder / LOCK_FILE).exists():
                _mine[key] = (folder, handle)
                return folder
            os.close(handle)  # a sweep came between
    raise OSError(f"no folder in {ROOT} could be kept")


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep() -> None:
    """Remove what dead processes have left."""
    for folder in ROOT.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _locked(handle):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
