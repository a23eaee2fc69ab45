"""Processor time and memory of process trees, and their end.

Rules: of a process that dies, what it had used at the last sample counts; what it used before the first one does not.
Memory is resident; pages that processes share count in each of them. Nothing that was started here is left: a tree is
ended from its root on, by the numbers of its processes, and what does not end by SIGTERM within ``END_S`` is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

import psutil
from typing_extensions import Self, override

from experiments.harness.sampling import SamplingThread

PERIOD_S = 0.25
END_S = 5.0
KILLED_S = 30.0
MB = 1e6


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """The processes with these numbers, as far as they live, and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
    return list(found.values())


def bound(command: Sequence[str]) -> list[str]:
    """The command of a process that the system ends when the thread that has started it is gone, also when this
    process is killed; the same command where there is no ``setpriv``."""
    setpriv = shutil.which("setpriv")
    return list(command) if setpriv is None else [setpriv, "--pdeathsig", "KILL", *command]


def command_of(process: psutil.Process) -> str:
    """Its command line; nothing of one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def end_tree(process: subprocess.Popen[bytes] | None, patience_s: float = END_S) -> None:
    """End a child and all that it has started. May be repeated."""
    if process is None:
        return
    processes = tree([process.pid]) if process.poll() is None else []
    if process.poll() is None:
        process.terminate()
    end_all(processes, patience_s)
    process.wait()


def end_all(processes: list[psutil.Process], patience_s: float = END_S) -> None:
    """Wait for the end of these processes, and kill those that are left."""
    _, left = psutil.wait_procs(processes, patience_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(left, KILLED_S)


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all its descendants, so that none of them can react to the end of another."""
    processes = tree([pid])
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


class TreeSampler(SamplingThread):
    """A context manager that samples what the trees below ``roots`` use, in a thread of its own.

    Behind the block: ``cpu_s``, ``span_s`` and ``rss_mb`` (the mean of the samples).
    """

    def __init__(self, roots: Callable[[], list[int]]) -> None:
        super().__init__("tree-sampler", PERIOD_S)
        self._roots = roots
        self._cpu_s: dict[psutil.Process, float] = {}
        self._rss_mb: list[float] = []
        self.cpu_s = 0.0
        self.span_s = self.rss_mb = 0.0
        self._begun_s = 0.0

    @override
    def __enter__(self) -> Self:
        self._sample(first=True)
        self._begun_s = time.monotonic()
        return super().__enter__()

    @override
    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._sample()
        self.span_s = time.monotonic() - self._begun_s
        self.rss_mb = statistics.mean(self._rss_mb)

    @override
    def _sample(self, first: bool = False) -> None:
        rss_mb = 0.0
        for process in tree(self._roots()):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent = times.user + times.system
                rss_mb += process.memory_info().rss / MB
                self.cpu_s += spent - self._cpu_s.get(process, spent if first else 0.0)
                self._cpu_s[process] = spent
        self._rss_mb.append(rss_mb)
