"""From runs to rows: medians of runs with intervals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.harness.statistics import grouped, median, percentile, with_interval

AT_ONCE, CHECKPOINT = VISIBILITIES = ("at_once", "checkpoint")
STEADY, THROUGHPUT, COPY = "steady", "throughput", "copy"
FIGURES = ("p50", "p99", "around_kill")
READER = ("reader_p50_ms", "reader_p99_ms", "reader_max_ms", "reader_cores")


def summarize(runs: Sequence[dict[str, Any]], rate: float, parallelism: int, seed: int) -> list[dict[str, Any]]:
    """A row for each visibility and ``flush_interval``. ``n``: its steady runs; figures are medians over runs,
    ``around_kill_highest_ms`` is the highest of all runs."""
    copies = [run["rows_per_s"] for run in runs if run["kind"] == COPY]
    rows = []
    jobs = [run for run in runs if run["kind"] != COPY]
    for (visibility, flush_interval), group in grouped(jobs, "visibility", "flush_interval").items():
        steady = [run for run in group if run["kind"] == STEADY]
        row: dict[str, Any] = {"visibility": visibility, "flush_interval": flush_interval, "rate": rate}
        row |= {"parallelism": parallelism, "n": len(steady)}
        row["exact"] = bool(steady) and all(run["exact"] for run in steady)
        for name in FIGURES:
            row |= with_interval(name, "ms", [run.get(f"{name}_ms") for run in steady], seed)
        row["around_kill_highest_ms"] = percentile([run.get("around_kill_ms") for run in steady], 100)
        row |= {name: median(run.get(name) for run in steady) for name in READER}
        unlimited = [run["rows_per_s"] for run in group if run["kind"] == THROUGHPUT]
        row |= {"rows_per_s": median(unlimited), "copy_rows_per_s": median(copies)}
        rows.append(row)
    return rows
