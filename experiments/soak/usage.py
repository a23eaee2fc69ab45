"""What a job takes while it runs, sampled beside it: rows put out, memory of all its processes, room on disks.

Memory is PSS (shared pages are divided among the processes that share them), by kind of process; the harness of a
cluster adds up what runs on each host. Disk is what checkpoints take, and what slots have in their working directories:
state, staged versions, output logs.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import override

from experiments.cluster.control import Control
from experiments.cluster.usage import KINDS, add_up, directory_mb
from experiments.harness.sampling import SamplingThread
from flinkplus.api.job import JobHandle
from flinkplus.cli.wordcount import COUNT

OUTPUT_PERIOD_S, USAGE_PERIOD_S = 1.0, 5.0
WARM_UP = 0.1
"""Share of the run that does not count for what is flat: processes grow into their work."""
LIMITS = {"slots": (0.10, 30.0), "driver": (0.10, 30.0), "java": (0.30, 150.0), "disk": (0.25, 20.0)}
"""Growth from the median of the first quarter to that of the last: by a share, and by MB that say nothing.
A Java heap grows up to its limit, independent of its content."""
LEAST_SAMPLES = 8
SLOT_COUNT = "slot_count"


class Sampler(SamplingThread):
    """A context manager that samples in a thread of its own. ``usage``: memory by kind and ``disk``, in MB."""

    def __init__(self, job: JobHandle, usage: Callable[[], dict[str, float]]) -> None:
        super().__init__("soak-sampler", OUTPUT_PERIOD_S)
        self._job = job
        self._usage = usage
        self._next_usage_s = 0.0
        self._began_s = time.time()
        self.output: list[dict[str, float]] = []
        self.usage: list[dict[str, float]] = []
        self.failed: str | None = None

    def since_begin_s(self) -> float:
        """Seconds since the first sample."""
        return round(time.time() - self._began_s, 3)

    @override
    def _sample(self) -> None:
        if self._job.done:
            return
        at_s = self.since_begin_s()
        self.output.append({"at_s": at_s, "rows": sum(self._job.rows_out(COUNT).values())})
        if at_s < self._next_usage_s:
            return
        self._next_usage_s = at_s + USAGE_PERIOD_S
        try:
            self.usage.append({"at_s": at_s, **self._usage(), SLOT_COUNT: len(self._job.slot_pids())})
        except Exception as problem:  # a sample that is missing is reported, and the run continues
            self.failed = f"{type(problem).__name__}: {problem}"


def local_usage(checkpoints: Path, work: Path) -> Callable[[], dict[str, float]]:
    """Of this process and its descendants."""

    def usage() -> dict[str, float]:
        own = psutil.Process()
        disk = round(directory_mb(checkpoints) + directory_mb(work), 2)
        return {**add_up([own, *own.children(recursive=True)], own.pid), "disk": disk}

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


def flatness(usage: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """For memory by kind and disk: the medians of the first and the last quarter after warming up, and the limit.

    Rescales change how many slots there are: memory of slots is compared where their number is the most frequent one.
    """
    if not usage:
        return []
    begin_s, end_s = usage[0]["at_s"], usage[-1]["at_s"]
    settled = [sample for sample in usage if sample["at_s"] >= begin_s + WARM_UP * (end_s - begin_s)]
    if len(settled) // 4 * 4 < LEAST_SAMPLES:
        return []
    usual = Counter(sample.get(SLOT_COUNT, 0.0) for sample in settled).most_common(1)[0][0]
    alike = [sample for sample in settled if sample.get(SLOT_COUNT, 0.0) == usual]
    rows = []
    for name in (*KINDS, "disk"):
        samples = alike if name == "slots" else settled
        quarter = max(1, len(samples) // 4)
        first, last = (
            statistics.median(sample.get(name, 0.0) for sample in part)
            for part in (samples[:quarter], samples[-quarter:])
        )
        share, slack = LIMITS.get(name, (None, 0.0))
        limit = None if share is None else round(first * (1 + share) + slack, 1)
        flat = limit is None or last <= limit
        rows.append(
            {"of": name, "first_mb": round(first, 1), "last_mb": round(last, 1), "limit_mb": limit, "flat": flat}
        )
    return rows
