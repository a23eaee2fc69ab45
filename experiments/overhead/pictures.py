"""The picture of the experiment, drawn from its document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = {"aligned": "#1f77b4", "unaligned": "#5cb85c", "synchronous": "#c0504d"}
DPI = 120


def throughput_by_interval(content: dict[str, Any], target: Path) -> bool:
    """Records per second against the interval, a line for each mode; none as a level. ``False``: nothing to draw."""
    rows = [row for row in content["summary"] if row["mode"] is not None and row["records_per_s"] is not None]
    if not rows:
        return False
    figure, axes = plt.subplots(figsize=(7, 4), dpi=DPI)
    for row in content["summary"]:
        if row["mode"] is None:
            axes.axhline(row["records_per_s"] / 1e6, color="black", linestyle="--", linewidth=1, label="no checkpoints")
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = sorted((row["interval_s"], row["records_per_s"] / 1e6) for row in rows if row["mode"] == mode)
        axes.plot(*zip(*mine, strict=True), marker="o", color=COLOURS.get(mode), label=mode)
        runs = [run for run in content["runs"] if run["mode"] == mode]
        at, found = [run["interval_s"] for run in runs], [run["records_per_s"] / 1e6 for run in runs]
        axes.scatter(at, found, s=8, alpha=0.4, color=COLOURS.get(mode), linewidths=0)
    intervals = sorted({row["interval_s"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(intervals, [f"{interval:g}" for interval in intervals])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0)
    axes.set_xlabel("seconds between checkpoints")
    axes.set_ylabel("million records per second")
    axes.grid(axis="y", linewidth=0.3, alpha=0.6)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    plt.close(figure)
    return True
