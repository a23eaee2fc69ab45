"""The descendants of this process, and what each has used so far: a job's, or those of all hosts of a cluster."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from experiments.cluster.usage import MB

LOOK_PERIOD_S = 2.0


class Reading(NamedTuple):
    """One process at one moment. ``process``: a key that no other process has; ``cpu_s``: since the process began."""

    process: str
    name: str
    cpu_s: float
    rss_mb: float


def kind_in_job(process: psutil.Process) -> str:
    """A name for a process of a job that is neither its driver nor one of its slots."""
    command = " ".join(process.cmdline())
    if "zookeeper" in command.lower():
        return "zookeeper"
    return "spark" if "java" in process.name() else "other"


@dataclass
class ProcessTable:
    """The descendants of this process, and what each has used so far.

    ``slot_pids``: the process of each slot. ``own``: the name of this process, ``None`` to leave it out.
    ``kind``: the name of any other process. ``look_s``: between two searches for new ones, which take milliseconds.
    ``without``: IDs of processes that do not count.
    """

    slot_pids: Callable[[], dict[int, int]] = dict
    own: str | None = "driver"
    kind: Callable[[psutil.Process], str] = kind_in_job
    look_s: float = LOOK_PERIOD_S
    without: Collection[int] = ()
    _names: dict[psutil.Process, str] = field(default_factory=dict)
    _looked_s: float = -math.inf

    def read(self) -> list[Reading]:
        """All processes that are alive."""
        self._look()
        found = []
        for process, name in list(self._names.items()):
            try:
                times = process.cpu_times()
                size = process.memory_info().rss / MB
            except psutil.NoSuchProcess:
                del self._names[process]
                continue
            key = f"{process.pid}/{process.create_time()}"
            found.append(Reading(key, name, times.user + times.system, size))
        return found

    def _look(self) -> None:
        """Find processes that are new: slots at once, others now and then."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for slot, pid in self.slot_pids().items():
                self._names[psutil.Process(pid)] = f"slot {slot}"
        now_s = time.monotonic()
        if now_s - self._looked_s < self.look_s:
            return
        self._looked_s = now_s
        own = psutil.Process()
        if self.own is not None:
            self._names[own] = self.own
        for process in own.children(recursive=True):
            if process not in self._names and process.pid not in self.without:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._names[process] = self.kind(process)
