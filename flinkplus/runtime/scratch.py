"""Working directories of slots on their hosts, and those that killed slots have left; the mark of a running job.

Rules: the name says whose it is: job, slot and process. A slot of the same job that starts or ends on the host removes
what dead processes left there; nobody touches the directory of a living one.

A job's own directory, on the driver's host, is marked: ``RUNNING``, then ``OVER`` until the driver has removed it. A
slot that Spark starts when the job is over has nothing to do. A directory without a mark was made anew, by a slot that
was late: that slot removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import psutil

RUNNING, OVER = "RUNNING", "OVER"
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


def mark_running(job: Path) -> None:
    """Say in a job's own directory that the job runs."""
    (job / RUNNING).touch()


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
