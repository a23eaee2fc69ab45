"""Working directories of slots on their hosts, and those that killed slots have left; the mark of a running job.

Rules: the name of a directory has its job and slot. The slot's process holds a lock on a file in it as long as it
lives; process numbers differ between containers that share the directory. Where the file system has no locks, no
directory counts as that of a dead slot.

The next process of a killed slot on the host takes over its state files (``state.left``) and removes the rest. A
directory that no process takes over is removed after one to two times ``TIDY_S``, or when a slot of the job ends there.

The job's own directory, on the driver's host, is marked: ``RUNNING``, then ``OVER`` until the driver has removed it. A
slot that starts when the job is over has nothing to do; if it has made the directory again, without a mark, it removes
it. The driver holds a lock on the mark as long as it lives. The next job on the host removes what a dead driver left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flinkplus.state.left import LEFT_FOLDER, has_state, take_over
from flinkplus.state.removal import remove_folder

RUNNING, OVER = "RUNNING", "OVER"
JOB_PREFIX = "flinkplus-"
LOCK_FILE = "LOCK"
LOOK_S = 0.01
ATTEMPTS = 5
TIDY_S = 300.0


@dataclass(eq=False)
class Scratch:
    """The directory ``path`` of this process's slot. ``lock``: an open file, locked while the slot lives."""

    path: Path
    job_id: str
    lock: int
    _dead: set[Path] | None = field(default=None, init=False)

    def tidy(self) -> None:
        """Every ``TIDY_S`` seconds: remove directories of slots that were dead at the last call, and unused files."""
        before = self._dead
        self._dead = {path for path in slot_directories(self.job_id, self.path.parent) if not _is_in_use(path)}
        if before is not None:
            for path in before & self._dead:
                _remove_dead(path)
            for left in self.path.glob(f"*/{LEFT_FOLDER}"):
                remove_folder(left)

    def close(self) -> None:
        """Release the lock: the slot's next process may take the directory over."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def make_scratch(job_id: str, index: int, base: str | None) -> Scratch:
    """A new directory below ``base`` (``None``: the system's temporary space) for slot ``index``, with the state files
    that dead processes of that slot have left there. Raises ``OSError``."""
    scratch = _make(job_id, index, base)
    for path in slot_directories(job_id, scratch.path.parent, index):
        if path != scratch.path:
            _remove_dead(path, scratch.path)
    return scratch


def _make(job_id: str, index: int, base: str | None) -> Scratch:
    for _ in range(ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=f"{JOB_PREFIX}{job_id}-slot-{index}-", dir=base))
        with contextlib.suppress(FileNotFoundError):  # a sweep came between
            handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _locks(handle) is not False and (path / LOCK_FILE).exists():
                return Scratch(path, job_id, handle)
            os.close(handle)
    raise OSError(f"no working directory could be kept below {base or tempfile.gettempdir()}")


def remove_scratch(scratch: Scratch) -> None:
    """Remove a slot's directory, and those of dead slots of its job beside it."""
    shutil.rmtree(scratch.path, ignore_errors=True)
    scratch.close()
    sweep(scratch.job_id, scratch.path.parent)


def leave_scratch(scratch: Scratch) -> None:
    """Leave a slot's directory to the slot's next process; without state files it is removed."""
    if not has_state(scratch.path):
        shutil.rmtree(scratch.path, ignore_errors=True)
    scratch.close()


def sweep(job_id: str, base: Path) -> None:
    """Remove directories of slots of this job whose processes are dead."""
    for path in slot_directories(job_id, base):
        _remove_dead(path)


def _remove_dead(path: Path, successor: Path | None = None) -> None:
    """Remove a slot's directory if its process is dead; its state files go to the directory ``successor`` first."""
    with contextlib.suppress(OSError):  # removed meanwhile
        handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _locks(handle):
                if successor is not None:
                    take_over(path, successor)
                remove_folder(path)
        finally:
            os.close(handle)


def wait_for_slots(job_id: str, base: str | Path, patience_s: float) -> None:
    """Return when no living slot of the job has a directory below ``base`` any more, or after ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while any(_is_in_use(path) for path in slot_directories(job_id, base)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _is_in_use(path: Path) -> bool:
    try:
        handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # removed meanwhile, or its process died while it made it
        return False
    try:
        return not _locks(handle)
    finally:
        os.close(handle)


def _locks(handle: int) -> bool | None:
    """Whether this process could lock an open file; ``None`` where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def mark_running(job: Path) -> int:
    """Mark a job's own directory as that of a running job. The driver keeps the returned file open while it lives."""
    unmarked = job / f".{RUNNING}"
    handle = os.open(unmarked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _locks(handle)  # where the file system has no locks, no job takes this driver for dead
    unmarked.rename(job / RUNNING)
    return handle


def sweep_jobs(base: str | None) -> None:
    """Remove the directories of jobs whose drivers are dead below ``base`` (``None``: the temporary space)."""
    for job in Path(base or tempfile.gettempdir()).glob(f"{JOB_PREFIX}*"):
        if is_own_directory(job) and _is_abandoned(job):
            shutil.rmtree(job, ignore_errors=True)


def _is_abandoned(job: Path) -> bool:
    for mark in (RUNNING, OVER):
        with contextlib.suppress(OSError):  # no such mark, not ours to open, no locks, or a driver that lives
            handle = os.open(job / mark, os.O_RDWR | os.O_CLOEXEC)
            try:
                return _locks(handle) is True
            finally:
                os.close(handle)
    return False


def mark_over(job: Path) -> None:
    """Mark the job as over: it needs no more slots."""
    with contextlib.suppress(FileNotFoundError):  # it is marked already
        (job / RUNNING).rename(job / OVER)


def is_over(job: str | None) -> bool:
    """Whether the job with this directory is known to be over; ``None``: the directory is on another host."""
    return job is not None and not os.path.exists(os.path.join(job, RUNNING))


def is_removed(job: str) -> bool:
    """Whether the driver has removed the directory, although it may be there again."""
    return is_over(job) and not os.path.exists(os.path.join(job, OVER))


def slot_directories(job_id: str, base: str | Path, index: int | None = None) -> list[Path]:
    """The directories of this user's slots of a job (``index``: of one slot), by name."""
    pattern = re.compile(rf"{JOB_PREFIX}{re.escape(job_id)}-slot-{r'[0-9]+' if index is None else index}-")
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return []  # the whole job was cleaned up meanwhile
    return [path for name in sorted(names) if pattern.match(name) and is_own_directory(path := Path(base, name))]


def is_own_directory(path: Path) -> bool:
    """Whether it is a directory of this user, and not a link: others can write into a shared temporary space."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def is_alive(pid: int, created_s: float) -> bool:
    """Whether this process still runs, and not a later one with the same number."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created_s and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
