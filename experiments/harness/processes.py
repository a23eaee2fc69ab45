"""CPU and memory of everything a job consists of, by process and in total, sampled beside it.

Processes are those of this process and all of its descendants: the driver, the JVM, ZooKeeper, the slots, and Spark's
Python daemon with the workers of the user's own queries (``other``). A slot that was started again counts on as the
same slot.

Rules: CPU seconds are those spent between ``start`` and ``stop``, as far as they were seen (a process that dies takes
those since the last sample with it); memory is resident, and pages that processes share are counted in each.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import psutil
from typing_extensions import Self

PERIOD_S = 0.25
LOOK_PERIOD_S = 2.0
MB = 1e6


@dataclass
class _Usage:
    """What one name has used."""

    cpu_s: float = 0.0
    rss_mb: list[float] = field(default_factory=list)


class ProcessSampler:
    """A context manager that samples in a thread of its own; ``slot_pids`` gives the process of each slot.

    ``without``: IDs of processes that do not count.
    """

    def __init__(
        self, slot_pids: Callable[[], dict[int, int]], period_s: float = PERIOD_S, without: Collection[int] = ()
    ) -> None:
        self._slot_pids = slot_pids
        self._without = without
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-sampler", daemon=True)
        self._usage: dict[str, _Usage] = {}
        self._cpu_s: dict[psutil.Process, float] = {}
        self._names: dict[psutil.Process, str] = {}
        self._looked_s = -math.inf
        self._own = psutil.Process()
        self._began_s = self._ended_s = time.monotonic()
        self._first = True

    def __enter__(self) -> Self:
        self._sample()
        self._first = False
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._ended_s = time.monotonic()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        self._look()
        rss: dict[str, float] = {}
        for process, name in list(self._names.items()):
            try:
                times = process.cpu_times()
                size = process.memory_info().rss / MB
            except psutil.NoSuchProcess:
                del self._names[process]
                continue
            rss[name] = rss.get(name, 0.0) + size
            spent = times.user + times.system
            # What a process had spent before the first sample is not this run's; one born later began with it.
            usage = self._usage.setdefault(name, _Usage())
            usage.cpu_s += spent - self._cpu_s.get(process, spent if self._first else 0.0)
            self._cpu_s[process] = spent
        for name, size in rss.items():
            self._usage[name].rss_mb.append(size)

    def _look(self) -> None:
        """Find processes that are new: slots at once, others (which takes milliseconds) now and then."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for slot, pid in self._slot_pids().items():
                self._names[psutil.Process(pid)] = f"slot {slot}"
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_PERIOD_S:
            return
        self._looked_s = now_s
        self._names[self._own] = "driver"
        for process in self._own.children(recursive=True):
            if process not in self._names and process.pid not in self._without:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._names[process] = _kind(process)

    def figures(self) -> dict[str, Any]:
        """After the block: per process and in total, CPU seconds, cores' worth of CPU, mean and most memory."""
        span_s = max(1e-9, self._ended_s - self._began_s)
        rows = {
            name: {
                "cpu_s": round(usage.cpu_s, 3),
                "cores": round(usage.cpu_s / span_s, 4),
                "rss_mb": round(sum(usage.rss_mb) / len(usage.rss_mb), 1),
                "rss_mb_max": round(max(usage.rss_mb), 1),
            }
            for name, usage in sorted(self._usage.items())
            if usage.rss_mb
        }
        total = {key: round(sum(row[key] for row in rows.values()), 4) for key in ("cpu_s", "cores", "rss_mb")}
        return {"span_s": round(span_s, 3), "total": total, "processes": rows}


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "zookeeper" in command.lower():
        return "zookeeper"
    return "spark" if "java" in process.name() else "other"
