"""From the runs of the experiment to rows: medians with intervals. Pure. A figure that is not known is in no median."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.harness.statistics import grouped, median, percentile, with_interval
from experiments.rescale import live, restore

CASE = ("state_mb", "recovery", "before", "after")
LIVE = ("gap", "switch_gap", "without_gap", "moved", "output", "caught_up")
RESTORED = ("running", "output")
"""Figures with interval and 95th percentile; phases have medians alone."""


def summarize(runs: Sequence[dict[str, Any]], seed: int, restored: bool) -> list[dict[str, Any]]:
    """A row for each size of state, mode and change, in the order in which they were run."""
    figures, phases = (RESTORED, restore.PHASES_MS) if restored else (LIVE, live.PHASES_MS)
    return [
        {**dict(zip(CASE, case, strict=True)), **_row(group, seed, figures, phases)}
        for case, group in grouped(runs, *CASE).items()
    ]


def _row(group: Sequence[dict[str, Any]], seed: int, figures: Sequence[str], phases: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "runs": len(group),
        "exact_runs": sum(bool(run["exact"]) for run in group),
        "recoveries": sum(run["recoveries"] or 0 for run in group),
        "unmeasured": sum(run[f"{figures[0]}_ms"] is None for run in group),
    }
    for name in figures:
        values = [run[f"{name}_ms"] for run in group]
        row |= {**with_interval(name, "ms", values, seed), f"{name}_p95_ms": percentile(values, 95)}
    row |= {name: median(run[name] for run in group) for name in phases}
    if "without_s" in group[0]:
        row["without_s"] = median(run["without_s"] for run in group)
    return row
