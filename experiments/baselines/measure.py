"""From what an engine has noted (``notes``) to figures. Pure, except for ``measured``, which waits and samples.

- *rows per second*: rows put out between the beginning and the end of the time measured (of ``window``: rows that came
  to the windows), by linear interpolation between the lines of each incarnation of each partition;
- *latency*: output less due time of every row put out in that time. The due time is that of a schedule that waits
  for nothing, so rows that wait for a slow engine count with all of their wait (no coordinated omission);
- *processor seconds per million rows*: of all processes of the engine, over the same time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from experiments.baselines.case import STEADY, Case, RunFailed
from experiments.baselines.jobs import INPUT, WINDOW
from experiments.baselines.notes import NOTED, Line, read_notes
from experiments.baselines.trees import TreeSampler

START_S = 120.0
"""How long an engine may take from its start to the first row of every partition."""
POLL_S = 0.05
FALLS_BEHIND = 0.025
EARLY_MS = 50
"""How early a row may come before the schedule counts as misunderstood: clocks are read in several processes."""


class RunningJob(Protocol):
    """A job of any engine that has been started."""

    @property
    def notes(self) -> Path:
        """The directory of its notes."""

    def roots(self) -> list[int]:
        """The processes whose trees are the engine."""

    def origin_ms(self) -> float:
        """When the first row was due, where notes do not take account of it; else 0."""

    def check(self) -> None:
        """Raises ``RunFailed`` when the job has ended."""


def rows_at(lines: Sequence[Line], time_ms: float) -> float:
    """Rows that a partition had put out at this time; incarnations add up."""
    total = 0.0
    by_birth: dict[float, list[Line]] = {}
    for line in lines:
        by_birth.setdefault(line.born_ms, []).append(line)
    for born in by_birth.values():
        times, rows = [line.time_ms for line in born], [float(line.rows) for line in born]
        total += float(np.interp(time_ms, times, rows, left=0.0))
    return total


def rows_between(notes: Mapping[int, Sequence[Line]], begin_ms: float, end_ms: float) -> float:
    """Rows that all partitions have put out in this time."""
    return sum(rows_at(lines, end_ms) - rows_at(lines, begin_ms) for lines in notes.values())


def latencies(notes: Mapping[int, Sequence[Line]], begin_ms: float, end_ms: float) -> Counter[int]:
    """How many rows that were put out in this time were how late, in ms."""
    found: Counter[int] = Counter()
    for lines in notes.values():
        for line in lines:
            if begin_ms <= line.time_ms < end_ms:
                for late, count in line.late:
                    found[late] += count
    return found


def percentile_of(counts: Mapping[int, int], percent: float) -> float | None:
    """The least value that so many percent of what was counted do not exceed; ``None`` when nothing was."""
    total = sum(counts.values())
    if not total:
        return None
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values])
    return float(values[int(np.searchsorted(reached, total * percent / 100))])


def wait_for(running: RunningJob, case: Case, stop: threading.Event) -> None:
    """Wait until every partition has put out a row. Raises ``RunFailed``."""
    name = INPUT if case.job == WINDOW else NOTED
    deadline_s = time.monotonic() + START_S
    while len(list(running.notes.glob(f"{name}-*"))) < case.parallelism:
        running.check()
        if time.monotonic() > deadline_s:
            raise RunFailed(f"not all partitions have put out rows after {START_S:g} s")
        if stop.wait(POLL_S):
            raise RunFailed("interrupted")


def sleep(running: RunningJob, seconds: float, stop: threading.Event) -> None:
    """Let the job run. Raises ``RunFailed``."""
    deadline_s = time.monotonic() + seconds
    while (left_s := deadline_s - time.monotonic()) > 0:
        if stop.wait(min(POLL_S, left_s)):
            raise RunFailed("interrupted")
        running.check()


def measured(
    running: RunningJob, case: Case, stop: threading.Event, totals: Callable[[], Mapping[str, int]] = dict
) -> dict[str, Any]:
    """The figures of a ``throughput`` or ``steady`` run. Raises ``RunFailed``.

    ``totals``: counters of the engine itself, by name; the figures have by how much they grew in the time measured.
    """
    wait_for(running, case, stop)
    sleep(running, case.settle, stop)
    with TreeSampler(running.roots) as sampler:
        begin_ms, before = time.time() * 1e3, totals()
        sleep(running, case.seconds, stop)
        end_ms, after = time.time() * 1e3, totals()
    sleep(running, 2 * POLL_S, stop)
    grown = {name: after[name] - before[name] for name in before}
    return {**figures(running.notes, case, running.origin_ms(), (begin_ms, end_ms), sampler), **grown}


def figures(
    directory: Path, case: Case, origin_ms: float, span_ms: tuple[float, float], used: TreeSampler
) -> dict[str, Any]:
    """Rates, latencies and what was used in the time measured. Raises ``RunFailed``."""
    begin_ms, end_ms = span_ms
    counted = read_notes(directory, INPUT if case.job == WINDOW else NOTED)
    rows = rows_between(counted, begin_ms, end_ms)
    if rows <= 0:
        raise RunFailed("no row was put out in the time measured")
    found: dict[str, Any] = {
        "rows_per_s": round(rows / ((end_ms - begin_ms) / 1e3), 1),
        "cpu_s_per_million": round(used.cpu_s / rows * 1e6, 4),
        "cores": round(used.cpu_s / used.span_s, 3),
        "rss_mb": round(used.rss_mb, 1),
        "latency_p50_ms": None,
        "latency_p99_ms": None,
    }
    if case.measure == STEADY:
        notes = read_notes(directory, NOTED, origin_ms)
        found |= latency_figures(latencies(notes, begin_ms, end_ms))
        found["held"] = held(notes, begin_ms, end_ms)
    return found


def held(notes: Mapping[int, Sequence[Line]], begin_ms: float, end_ms: float) -> bool:
    """Whether the engine kept step: in the second half of the time rows were not later than in the first by more than
    ``FALLS_BEHIND`` of that time. (Rows a second do not show it where an engine puts them out in bursts.)"""
    middle_ms = (begin_ms + end_ms) / 2
    first = percentile_of(latencies(notes, begin_ms, middle_ms), 50)
    second = percentile_of(latencies(notes, middle_ms, end_ms), 50)
    if first is None or second is None:
        return False
    return second - first <= FALLS_BEHIND * (end_ms - begin_ms)


def latency_figures(counts: Counter[int]) -> dict[str, float | None]:
    """Median and 99th percentile. Raises ``RunFailed`` when rows came before they were due."""
    if counts and min(counts) < -EARLY_MS:
        raise RunFailed(f"a row came {-min(counts)} ms before it was due: the schedule of the source is another one")
    return {f"latency_p{percent}_ms": percentile_of(counts, percent) for percent in (50, 99)}
