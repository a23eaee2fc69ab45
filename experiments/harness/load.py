"""The load of the machine: how much of its processors is busy, and processes that make more."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import psutil
from typing_extensions import override

from experiments.harness.sampling import SamplingThread

SPAN_S = 0.5
PERIOD_S = 0.05
BUSY_LOOP = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""
"""A loop in Python that ends with the process that started it."""


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[tuple[int, ...]]:
    """So many processes in busy loops inside the block; yields their IDs. Ctrl-C does not reach them."""
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", BUSY_LOOP, str(os.getpid())], stdin=subprocess.DEVNULL, start_new_session=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        yield tuple(pids)


class Spent(NamedTuple):
    """Processor seconds of all processors until ``time_s``, busy and in all."""

    time_s: float
    busy_s: float
    total_s: float


def busy_share(samples: list[Spent], span_s: float = SPAN_S) -> float | None:
    """The share of the processors that was busy in the last ``span_s`` of ``samples``; ``None``: not sampled for so
    long."""
    if not samples:
        return None
    last = samples[-1]
    first = next((sample for sample in reversed(samples) if sample.time_s <= last.time_s - span_s), None)
    if first is None or last.total_s <= first.total_s:
        return None
    return round((last.busy_s - first.busy_s) / (last.total_s - first.total_s), 4)


class LoadSampler(SamplingThread):
    """A context manager that samples the processors of the machine in a thread of its own, and keeps the last ones."""

    def __init__(self) -> None:
        super().__init__("load-sampler", PERIOD_S)
        self._samples: deque[Spent] = deque(maxlen=round(4 * SPAN_S / PERIOD_S))

    def share(self) -> float | None:
        """The share of the processors that was busy in the last ``SPAN_S``."""
        return busy_share([*self._samples.copy(), _spent()])

    @override
    def _sample(self) -> None:
        self._samples.append(_spent())


def _spent() -> Spent:
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # they are in the times of users as well
    total_s = sum(times) - guests
    return Spent(time.monotonic(), total_s - times.idle - getattr(times, "iowait", 0.0), total_s)
