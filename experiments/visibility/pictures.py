"""The picture of the experiment, drawn from its document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.pictures import FONT_SIZE, PALETTE, legend_above, picture
from experiments.harness.statistics import grouped
from experiments.visibility.measure import BUCKET_MS, QUANTILES, SHOWN_MS
from experiments.visibility.summary import STEADY
from experiments.visibility.tables import interval_text


def times(content: dict[str, Any], target: Path) -> bool:
    """Left: the share of rows that were readable after so long; right: the longest time of rows by when they were due,
    around the kill. One thin line for each run. ``False``: nothing to draw."""
    runs = [run for run in content["runs"] if run["kind"] == STEADY and run.get("quantiles_ms")]
    if not runs:
        return False
    cases = sorted({(run["visibility"], run["flush_interval"]) for run in runs}, key=str)
    with picture(target, (13, 5), ncols=2) as (_, (shares, line)):
        for case, group in grouped(runs, "visibility", "flush_interval").items():
            colour = PALETTE[cases.index(case) % len(PALETTE)]
            style = {"color": colour, "linewidth": 0.9, "alpha": 0.7}
            for at, run in enumerate(group):
                label = f"{case[0]}, {interval_text(case[1])}" if at == 0 else None
                shares.plot(run["quantiles_ms"], QUANTILES, label=label, **style)
                if run.get("around_kill_line_ms"):
                    begin_ms, end_ms = SHOWN_MS
                    line.plot(np.arange(begin_ms, end_ms, BUCKET_MS), run["around_kill_line_ms"], label=label, **style)
        shares.set_xscale("log")
        shares.set_xlabel("due to readable (ms)", fontsize=FONT_SIZE)
        shares.set_ylabel("rows (%)", fontsize=FONT_SIZE)
        line.set_yscale("log")
        line.axvline(0.0, color="black", linewidth=0.8, linestyle=":")
        line.set_xlabel("due, ms after the SIGKILL of a slot", fontsize=FONT_SIZE)
        line.set_ylabel("longest time of rows (ms)", fontsize=FONT_SIZE)
        for axes in (shares, line):
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.grid(which="both", linewidth=0.3, alpha=0.6)
            axes.tick_params(labelsize=FONT_SIZE)
        line.yaxis.set_minor_formatter(lambda value, _: "")
        line.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        legend_above(shares, 2)
    return True
