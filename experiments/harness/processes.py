"""CPU and memory of everything a job consists of, by process and in total, sampled beside it.

Processes are those of this process and all of its descendants: the driver, the JVM, ZooKeeper, the slots, and Spark's
Python daemon with the workers of the user's own queries (``other``). A slot that was started again counts on as the
same slot.

Rules: CPU seconds are those spent between ``start`` and ``stop``, as far as they were seen (a process that dies takes
those since the last sample with it); memory is resident, and pages that processes share are counted in each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from typing_extensions import Self, override

from experiments.cluster.processes import LOOK_PERIOD_S, ProcessTable, Reading
from experiments.harness.sampling import SamplingThread

PERIOD_S = 0.25


class Sample(NamedTuple):
    """All processes at one moment, by name. ``at_s``: seconds since the Unix epoch; ``cpu_s``: spent since the last."""

    at_s: float
    cpu_s: dict[str, float]
    rss_mb: dict[str, float]


class UsageSampler(SamplingThread):
    """A context manager that samples in a thread of its own. ``read``: all processes, such as ``ProcessTable.read``.

    ``failed``: why there are no further samples, if reading failed.
    """

    def __init__(self, read: Callable[[], Iterable[Reading]], period_s: float = PERIOD_S) -> None:
        super().__init__("process-sampler", period_s)
        self._read = read
        self._cpu_s: dict[str, float] = {}
        self._began_s = self._ended_s = time.monotonic()
        self.samples: list[Sample] = []
        self.failed: str | None = None

    @override
    def __enter__(self) -> Self:
        self._sample()
        self._began_s = time.monotonic()
        return super().__enter__()

    @override
    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._ended_s = time.monotonic()

    @override
    def _run(self) -> None:
        try:
            super()._run()
            self._sample()
        except Exception as problem:  # the run continues; ``failed`` says why its samples end
            self.failed = f"{type(problem).__name__}: {problem}"

    @override
    def _sample(self) -> None:
        begun_s = time.time()
        readings = list(self._read())
        at_s = (begun_s + time.time()) / 2  # reading takes a moment
        spent: dict[str, float] = {}
        rss: dict[str, float] = {}
        for process, name, cpu_s, rss_mb in readings:
            # What a process had spent before the first sample is not this run's; one born later began with it.
            before_s = self._cpu_s.get(process, 0.0 if self.samples else cpu_s)
            spent[name] = spent.get(name, 0.0) + cpu_s - before_s
            rss[name] = rss.get(name, 0.0) + rss_mb
            self._cpu_s[process] = cpu_s
        self.samples.append(Sample(at_s, spent, rss))

    def figures(self) -> dict[str, Any]:
        """After the block: per process and in total, CPU seconds, cores' worth of CPU, mean and most memory."""
        span_s = max(1e-9, self._ended_s - self._began_s)
        rows = {}
        for name in sorted({name for sample in self.samples for name in sample.rss_mb}):
            cpu_s = sum(sample.cpu_s.get(name, 0.0) for sample in self.samples)
            rss_mb = [sample.rss_mb[name] for sample in self.samples if name in sample.rss_mb]
            rows[name] = {
                "cpu_s": round(cpu_s, 3),
                "cores": round(cpu_s / span_s, 4),
                "rss_mb": round(sum(rss_mb) / len(rss_mb), 1),
                "rss_mb_max": round(max(rss_mb), 1),
            }
        total = {key: round(sum(row[key] for row in rows.values()), 4) for key in ("cpu_s", "cores", "rss_mb")}
        return {"span_s": round(span_s, 3), "total": total, "processes": rows}


class ProcessSampler(UsageSampler):
    """The same for a job of this process; ``slot_pids`` gives the process of each slot, ``without``: IDs of processes
    that do not count."""

    def __init__(
        self,
        slot_pids: Callable[[], dict[int, int]],
        period_s: float = PERIOD_S,
        look_s: float = LOOK_PERIOD_S,
        without: Collection[int] = (),
    ) -> None:
        super().__init__(ProcessTable(slot_pids, look_s=look_s, without=without).read, period_s)
