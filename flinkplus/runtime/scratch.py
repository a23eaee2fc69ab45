"""Working directories of slots on their hosts, and those that killed slots have left.

Rules: the name says whose it is: job, slot and process. A slot of the same job that starts or ends on the host removes
what dead processes left there; nobody touches the directory of a living one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil


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
    pattern = re.compile(re.escape(_prefix(job_id)) + r"slot-\d+-(\d+)-")
    where = base or tempfile.gettempdir()
    try:
        names = os.listdir(where)
    except FileNotFoundError:
        return  # the whole job was cleaned up meanwhile
    for name in names:
        match = pattern.match(name)
        if match is not None and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(os.path.join(where, name), ignore_errors=True)


def _prefix(job_id: str) -> str:
    return f"flinkplus-{job_id}-"
