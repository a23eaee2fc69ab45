"""What a job takes while it runs, sampled beside it: rows put out, memory of all its processes, room on disks.

Memory is PSS (shared pages are divided among those who share them), by kind of process; on a cluster the harness adds
up what runs on each host, since nobody else sees it all. Disk is what checkpoints take, and what slots have in their
working directories: state, staged versions, output logs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from typing_extensions import Self

from experiments.cluster.control import Control
from experiments.cluster.usage import add_up, directory_mb
from flinkplus.api.job import JobHandle
from flinkplus.cli.wordcount import COUNT

OUTPUT_PERIOD_S, USAGE_PERIOD_S = 1.0, 5.0


class Sampler:
    """A context manager that samples in a thread of its own. ``usage``: memory by kind and ``disk``, in MB."""

    def __init__(self, job: JobHandle, usage: Callable[[], dict[str, float]]) -> None:
        self._job = job
        self._usage = usage
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-sampler", daemon=True)
        self._began_s = time.time()
        self.output: list[dict[str, float]] = []
        self.usage: list[dict[str, float]] = []
        self.failed: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def since_begin_s(self) -> float:
        """Seconds since the first sample."""
        return round(time.time() - self._began_s, 3)

    def _run(self) -> None:
        next_usage_s = 0.0
        while not self._stop.wait(OUTPUT_PERIOD_S) and not self._job.done:
            at_s = self.since_begin_s()
            self.output.append({"at_s": at_s, "rows": sum(self._job.rows_out(COUNT).values())})
            if at_s < next_usage_s:
                continue
            next_usage_s = at_s + USAGE_PERIOD_S
            try:
                self.usage.append({"at_s": at_s, **self._usage()})
            except Exception as problem:  # a sample that is missing is told, and ends nothing
                self.failed = f"{type(problem).__name__}: {problem}"


def local_usage(checkpoints: Path, work: Path) -> Callable[[], dict[str, float]]:
    """Of this process and its descendants."""

    def usage() -> dict[str, float]:
        own = psutil.Process()
        return {**add_up([own, *own.children(recursive=True)], own.pid), "disk": disk_mb(checkpoints, [work])}

    return usage


def cluster_usage(control: Control, hosts: list[str], checkpoints: Path) -> Callable[[], dict[str, float]]:
    """Of all hosts, by the harness."""

    def usage() -> dict[str, float]:
        total: dict[str, float] = {"disk": directory_mb(checkpoints)}
        for host in hosts:
            for kind, size in control.usage(host).items():
                total[kind] = round(total.get(kind, 0.0) + size, 1)
        return total

    return usage


def disk_mb(checkpoints: Path, directories: list[Path]) -> float:
    """What checkpoints and working directories take."""
    return round(sum(directory_mb(path) for path in (checkpoints, *directories)), 2)
