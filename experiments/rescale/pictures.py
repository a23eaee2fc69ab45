"""The pictures of the experiment, drawn from its document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.pictures import BLUE, FONT_SIZE, GREEN, ORANGE, draw_medians, legend_above, picture
from experiments.rescale.summary import CASE
from experiments.rescale.tables import GAPS, TIMES, change

COLOURS = (ORANGE, BLUE, GREEN)


def gaps(content: dict[str, Any], target: Path) -> bool:
    """The longest output gap of each change and mode: every run, medians with intervals. ``False``: nothing to draw."""
    return not content["parameters"]["restore"] and _drawn(content, target, GAPS, "longest output gap (ms)")


def restores(content: dict[str, Any], target: Path) -> bool:
    """The time from resume at each parallelism and mode, in the same way."""
    return content["parameters"]["restore"] and _drawn(content, target, TIMES, "from resume (ms)")


def _drawn(content: dict[str, Any], target: Path, figures: dict[str, str], label: str) -> bool:
    """A field for each size of state."""
    summary = [row for row in content["summary"] if all(row[f"{name}_ms"] is not None for name in figures)]
    sizes = sorted({row["state_mb"] for row in summary})
    if not sizes:
        return False
    fields: dict[str, Any] = {"ncols": len(sizes), "sharey": True, "squeeze": False}
    with picture(target, (7 * len(sizes), 5), **fields) as (_, all_axes):
        for axes, size in zip(all_axes[0], sizes, strict=True):
            rows = [row for row in summary if row["state_mb"] == size]
            for at, ((name, text), colour) in enumerate(zip(figures.items(), COLOURS, strict=False)):
                places = [place + 0.2 * (at - (len(figures) - 1) / 2) for place in range(len(rows))]
                for place, row in zip(places, rows, strict=True):
                    mine = [run for run in content["runs"] if all(run[key] == row[key] for key in CASE)]
                    known = [run[f"{name}_ms"] for run in mine if run[f"{name}_ms"] is not None]
                    spread = place + np.linspace(-0.05, 0.05, len(known))
                    axes.scatter(spread, known, s=8, color=colour, alpha=0.4, linewidths=0)
                draw_medians(axes, places, rows, name, "ms", color=colour, label=text, linestyle="none")
            axes.set_yscale("log")
            axes.set_xlim(-0.5, len(rows) - 0.5)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.set_xticks(range(len(rows)), [f"{change(row)}\n{row['recovery']}" for row in rows])
            axes.tick_params(labelsize=FONT_SIZE)
            axes.set_xlabel(f"{size:,} MB of state (medians, 95 % intervals)", fontsize=FONT_SIZE)
            axes.grid(axis="y", which="both", linewidth=0.3, alpha=0.6)
        all_axes[0][0].set_ylabel(label, fontsize=FONT_SIZE)
        legend_above(all_axes[0][0], len(figures))
    return True
