"""From what a reader has seen to figures. Pure.

- *time of a row*: from when it was due to when the answer of the reader's poll that first has it has arrived. The due
  time is that of a schedule that waits for nothing, so a row that waits for a slow job counts with all of its wait (no
  coordinated omission);
- *around the kill*: the longest time of the rows that were due within half a second before and after the signal;
- *resolution*: how late a poll may notice a row at most: from the beginning of the poll before to its own end.

Rule: which rows there must be follows from the schedule alone; a row that the reader has not seen is an error.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.baselines.jobs import Layout
from experiments.harness.running import RunError
from experiments.visibility.reader import Polls

AROUND_S = 0.5
EARLY_MS = 50.0
"""How early a row may come before the schedule counts as misunderstood: clocks are read in several processes."""
QUANTILES = (*range(100), 99.5, 99.9, 100)
BUCKET_MS = 20.0
SHOWN_MS = (-1_000.0, 2_000.0)
"""Of the time line around a kill."""


def times_ms(polls: Polls, layout: Layout, origin_s: float, count: int) -> npt.NDArray[np.float64]:
    """The time of each of ``count`` rows; of several answers that have a row the first counts. NaN: never seen.

    Raises ``RunError`` when rows came before they were due.
    """
    first_s = np.full(count, np.inf)
    inside = (polls.numbers >= 0) & (polls.numbers < count)
    np.minimum.at(first_s, polls.numbers[inside], polls.readable_s[inside])
    times = (first_s - origin_s) * 1e3 - layout.due_ms(np.arange(count))
    times[np.isinf(first_s)] = np.nan
    if len(times) and np.nanmin(times, initial=np.inf) < -EARLY_MS:
        raise RunError(f"a row came {-np.nanmin(times):.0f} ms before it was due: the schedule is another one")
    return times


def between(times: npt.NDArray[np.float64], layout: Layout, begin_s: float, end_s: float) -> npt.NDArray[np.float64]:
    """The times of the rows that were due between these seconds since the origin. Raises ``RunError`` if one was never
    seen, or none was due."""
    due_ms = layout.due_ms(np.arange(len(times)))
    found = times[(due_ms >= begin_s * 1e3) & (due_ms < end_s * 1e3)]
    unseen = int(np.count_nonzero(np.isnan(found)))
    if unseen or not len(found):
        raise RunError(f"the reader never saw {unseen} of {len(found)} rows that were due")
    return found


def steady_figures(times: npt.NDArray[np.float64], layout: Layout, begin_s: float, end_s: float) -> dict[str, Any]:
    """Of the rows due between these seconds since the origin."""
    found = between(times, layout, begin_s, end_s)
    return {
        "rows": len(found),
        "p50_ms": round(float(np.percentile(found, 50)), 2),
        "p99_ms": round(float(np.percentile(found, 99)), 2),
        "max_ms": round(float(found.max()), 2),
        "quantiles_ms": [round(float(value), 2) for value in np.percentile(found, QUANTILES)],
    }


def kill_figures(times: npt.NDArray[np.float64], layout: Layout, killed_s: float) -> dict[str, Any]:
    """Of the rows due around a kill, ``killed_s`` seconds after the origin."""
    found = between(times, layout, killed_s - AROUND_S, killed_s + AROUND_S)
    line = []
    for at_ms in np.arange(*SHOWN_MS, BUCKET_MS):
        begin_s = killed_s + at_ms / 1e3
        line.append(round(float(between(times, layout, begin_s, begin_s + BUCKET_MS / 1e3).max()), 2))
    return {"around_kill_ms": round(float(found.max()), 2), "around_kill_line_ms": line}


def resolution_figures(polls: Polls) -> dict[str, float]:
    """The reader's own resolution, and what it used."""
    spans = polls.resolution_ms()
    return {
        "reader_p50_ms": round(float(np.percentile(spans, 50)), 2),
        "reader_p99_ms": round(float(np.percentile(spans, 99)), 2),
        "reader_max_ms": round(float(spans.max()), 2),
        "reader_cores": round(polls.cores, 3),
    }


def rate_between_changes(samples: list[tuple[float, int]]) -> float | None:
    """Rows per second from ``(time_s, rows that are visible)``: from the first change to the last, so that rows that
    come together do not count for a time in which they did not come. ``None``: less than two changes."""
    changes = [after for before, after in itertools.pairwise(samples) if after[1] != before[1]]
    if len(changes) < 2:
        return None
    (first_s, first), (last_s, last) = changes[0], changes[-1]
    return round((last - first) / (last_s - first_s), 1)
