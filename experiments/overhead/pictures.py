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
    """Records per second, in percent of those of the runs without checkpoints beside them, against the interval; a line
    for each mode. ``False``: nothing to draw.
    """
    rows = [row for row in content["summary"] if row["mode"] is not None and row["loss_percent"] is not None]
    if not rows:
        return False
    base = {(run["round"], run["beside_s"]): run["records_per_s"] for run in content["runs"] if run["mode"] is None}
    figure, axes = plt.subplots(figsize=(7, 4), dpi=DPI)
    axes.axhline(100, color="black", linestyle="--", linewidth=1, label="no checkpoints")
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = sorted((row["interval_s"], 100 - row["loss_percent"]) for row in rows if row["mode"] == mode)
        axes.plot(*zip(*mine, strict=True), marker="o", color=COLOURS.get(mode), label=f"{mode} (median)")
        runs = [run for run in content["runs"] if run["mode"] == mode and (run["round"], run["beside_s"]) in base]
        found = [100 * run["records_per_s"] / base[run["round"], run["beside_s"]] for run in runs]
        axes.scatter([run["interval_s"] for run in runs], found, s=8, alpha=0.4, color=COLOURS.get(mode), linewidths=0)
    intervals = sorted({row["interval_s"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(intervals, [f"{interval:g}" for interval in intervals])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0)
    axes.set_xlabel("seconds between checkpoints")
    axes.set_ylabel("throughput, % of none beside it")
    axes.grid(axis="y", linewidth=0.3, alpha=0.6)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    plt.close(figure)
    return True
