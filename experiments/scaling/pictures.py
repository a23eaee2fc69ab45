"""The picture of the experiment, drawn from its document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ("black", "#1f77b4", "#5cb85c", "#c0504d")
DPI = 120


def time_by_parallelism(content: dict[str, Any], target: Path) -> bool:
    """Seconds against parallelism: measured points are full, on lines; simulated ones hollow, on dashed lines.
    ``False``: nothing to draw.
    """
    rows = content["summary"]
    if not rows:
        return False
    figure, axes = plt.subplots(figsize=(7, 4), dpi=DPI)
    for colour, variant in zip(COLOURS, dict.fromkeys(row["variant"] for row in rows), strict=False):
        label = "no checkpoints" if variant == "none" else variant
        mine = [row for row in rows if row["variant"] == variant]
        real = [
            (row["parallelism"], row["measured_s"]) for row in mine if row["measured_s"] and not row["shares_cores"]
        ]
        shared = [(row["parallelism"], row["measured_s"]) for row in mine if row["shares_cores"]]
        model = [(row["parallelism"], row["simulated_s"]) for row in mine if row["simulated_s"]]
        if model:
            axes.plot(
                *zip(*model, strict=True),
                marker="o",
                markerfacecolor="white",
                linestyle="--",
                linewidth=1,
                color=colour,
                label=f"{label}: simulated, a core for each slot",
            )
        if real:
            axes.plot(*zip(*real, strict=True), marker="o", color=colour, label=f"{label}: measured")
        if shared:
            axes.scatter(*zip(*shared, strict=True), marker="x", color=colour, label=f"{label}: slots share cores")
    numbers = sorted({row["parallelism"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(parallelism) for parallelism in numbers])
    axes.set_ylim(0)
    axes.set_xlabel("parallelism (slots)")
    axes.set_ylabel("running time of the fixed input, s")
    axes.grid(axis="y", linewidth=0.3, alpha=0.6)
    axes.legend(fontsize=7)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    plt.close(figure)
    return True
