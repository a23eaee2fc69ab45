"""Working directories of slots on their hosts, and those that killed slots have left; the mark of a running job.

Rules: the name says whose it is: job, slot and process. A slot of the same job that starts or ends on the host removes
what dead processes left there; nobody touches the directory of a living one.

A job's own directory, on the driver's host, is marked: ``RUNNING``, then ``OVER`` until the driver has removed it. A
slot that Spark starts when the job is over has nothing to do. A directory without a mark was made anew, by a slot that
was late: that slot removes it. The driver holds a lock on the mark as long as it lives: what a dead one has left is
removed by the next job on the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import psutil

RUNNING, OVER = "RUNNING", "OVER"
JOB_PREFIX = "flinkplus-"
LOOK_S = 0.01


def make_scratch(job_id: str, index: int, base: str | None) -> Path:
    """A new directory below ``base`` (``None``: the system's temporary space) for this process's slot ``index``."""
    sweep(job_id, base)
    return Path(tempfile.mkdtemp(prefix=f"{_prefix(job_id)}slot-{index}-{os.getpid()}-", dir=base))


def remove_scratch(path: Path, job_id: str) -> None:
    """Remove a slot's directory, and what dead ones of its job have left beside it."""
    shutil.rmtree(path, ignore_errors=True)
    sweep(job_id, str(path.parent))


def sweep(job_id: str, base: str | None) -> None:
    """Remove directories of slots of this job whose process does not live any more."""
    for path, pid in _directories(job_id, base or tempfile.gettempdir()):
        if not psutil.pid_exists(pid):
            shutil.rmtree(path, ignore_errors=True)


def wait_for_slots(job_id: str, base: str | Path, patience_s: float) -> None:
    """Return when no living slot of the job has a directory below ``base`` any more, or after ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while any(psutil.pid_exists(pid) for _, pid in _directories(job_id, base)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def mark_running(job: Path) -> int:
    """Say in a job's own directory that the job runs. The open file that is returned is its driver's sign of life."""
    unmarked = job / f".{RUNNING}"
    handle = os.open(unmarked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # this file system has no locks: nobody will take this driver for dead
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unmarked.rename(job / RUNNING)
    return handle


def sweep_jobs(base: str | None) -> None:
    """Remove the directories of jobs whose drivers are dead below ``base`` (``None``: the temporary space)."""
    for job in Path(base or tempfile.gettempdir()).glob(f"{JOB_PREFIX}*"):
        if _is_abandoned(job):
            shutil.rmtree(job, ignore_errors=True)


def _is_abandoned(job: Path) -> bool:
    for mark in (RUNNING, OVER):
        with contextlib.suppress(OSError):  # no such mark, not ours to open, no locks, or a driver that lives
            handle = os.open(job / mark, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            finally:
                os.close(handle)
    return False


def mark_over(job: Path) -> None:
    """Say that the job needs no slots any more."""
    with contextlib.suppress(FileNotFoundError):  # said before
        (job / RUNNING).rename(job / OVER)


def is_over(job: str | None) -> bool:
    """Whether the job with this directory has ended; ``None``, for a directory on another host: not known."""
    return job is not None and not os.path.exists(os.path.join(job, RUNNING))


def is_removed(job: str) -> bool:
    """Whether the driver has removed the directory, although it may be there again."""
    return is_over(job) and not os.path.exists(os.path.join(job, OVER))


def _directories(job_id: str, base: str | Path) -> list[tuple[str, int]]:
    """Directories of slots of a job, each with the process that made it."""
    pattern = re.compile(re.escape(_prefix(job_id)) + r"slot-\d+-(\d+)-")
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return []  # the whole job was cleaned up meanwhile
    return [(os.path.join(base, name), int(match[1])) for name in names if (match := pattern.match(name))]


def _prefix(job_id: str) -> str:
    return f"flinkplus-{job_id}-"


def is_alive(pid: int, created_s: float) -> bool:
    """Whether the very process (not a later one of the same number) still runs."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created_s and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
