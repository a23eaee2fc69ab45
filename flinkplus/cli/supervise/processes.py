"""The processes of a driver: found also after the driver's death, and ended.

Rules: the supervisor is the *subreaper* of its descendants (Linux): when a driver dies, its children become the
supervisor's. A driver has a session of its own, by which its processes are found elsewhere. Java gets SIGTERM first,
because it removes its temporary files then; every other process holds nothing that its successor would miss.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
JAVA = "java"
JAVA_STOP_S = 3.0
KILLED_S = 5.0
POLL_S = 0.005


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have the system send this process SIGTERM when its parent has died."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def processes_of(driver: int, spared: int | None) -> list[psutil.Process]:
    """The processes of the driver ``driver``, also when it is dead; not ``spared`` and its descendants.

    A process that has exited counts until it was waited for (``reap``): other threads of it may still run.
    """
    keep = {os.getpid()}
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == driver:
                found[pid] = psutil.Process(pid)
    if spared is not None:
        with suppress(psutil.NoSuchProcess):
            keep |= {spared, *(child.pid for child in psutil.Process(spared).children(recursive=True))}
    return [process for pid, process in found.items() if pid not in keep and process.is_running()]


def reap(owned: set[int]) -> None:
    """Wait for dead orphans. ``owned``: children that the caller waits for itself."""
    for child in psutil.Process().children():
        if child.pid not in owned:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def wait_gone(find: Callable[[], list[psutil.Process]], patience_s: float) -> bool:
    """Whether there was nothing left within ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while find():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def end_all(find: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    """End what ``find`` returns until it returns nothing; returns what could not be ended."""
    begun, told = time.monotonic(), set()
    while left := find():
        waited_s = time.monotonic() - begun
        if waited_s > JAVA_STOP_S + KILLED_S:
            return left
        for process in left:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.name() != JAVA or waited_s > JAVA_STOP_S:
                    process.kill()
                elif process.pid not in told:
                    told.add(process.pid)
                    process.terminate()
        time.sleep(POLL_S)
    return []
