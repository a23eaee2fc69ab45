"""The pictures of the experiment, drawn from its document alone, so that they can be drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.pictures import picture
from experiments.recovery.summary import CASE, without_pause_ms
from flinkplus.protocol.vocabulary.phases import DURATIONS

COLOURS = {"rollback": "#c0504d", "partial": "#8064a2", "standby": "#1f77b4"}
PHASE_COLOURS = dict(zip(DURATIONS, ("#d9534f", "#9467bd", "#f0ad4e", "#5bc0de", "#5cb85c"), strict=True))
FAILURE_NAMES = {
    "sigkill": "SIGKILL of a slot",
    "exception": "exception in a subtask",
    "host": "SIGKILL of a host",
    "hang": "a host hangs (rollback: without the wait for it)",
    "cut": "a host is cut off (rollback: without the wait for it)",
}
ORDER = ("rollback", "partial", "standby")
SHOWN_MS = 0.5
TOP_OVER_USUAL = 4.0
"""The height of a timeline over the usual rate: what is worked off after a rollback would dwarf everything else."""


def recovery_by_parallelism(content: dict[str, Any], target: Path) -> bool:
    """Every kill as a dot, medians with their interval, one field for each failure. ``False``: nothing to draw."""
    least = min((row["state_keys"] for row in content["summary"]), default=0)
    rows = [row for row in content["summary"] if row["state_keys"] == least]
    return _recoveries(content["runs"], rows, "parallelism", "parallelism", target)


def recovery_by_state(content: dict[str, Any], target: Path) -> bool:
    """The same against the size of the state, at the highest parallelism. ``False``: there is one size only."""
    most = max((row["parallelism"] for row in content["summary"]), default=0)
    rows = [row for row in content["summary"] if row["parallelism"] == most]
    if len({row["state_keys"] for row in rows}) < 2:
        return False
    return _recoveries(content["runs"], rows, "state_keys", "objects of 1 KB in the keyed state of the job", target)


def _recoveries(
    runs: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]], key: str, label: str, target: Path
) -> bool:
    summary = [row for row in summary if row["median_ms"] is not None]
    failures = sorted({row["failure"] for row in summary}, reverse=True)
    if not failures:
        return False
    levels = sorted({row[key] for row in summary})
    columns: dict[str, Any] = {"ncols": len(failures), "sharey": True, "squeeze": False}
    with picture(target, (5 * len(failures), 4), (0, 0.06, 1, 1), **columns) as (figure, fields):
        for axes, failure in zip(fields[0], failures, strict=True):
            drawn = [row for row in summary if row["failure"] == failure]
            recoveries = [recovery for recovery in ORDER if any(row["recovery"] == recovery for row in drawn)]
            for at, recovery in enumerate(recoveries):
                rows = [row for row in drawn if row["recovery"] == recovery]
                shift = 0.24 * (at - (len(recoveries) - 1) / 2)
                _draw_recovery(axes, runs, rows, [levels.index(row[key]) + shift for row in rows])
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.yaxis.set_minor_formatter("")
            axes.set_xticks(range(len(levels)), [f"{level:,}" for level in levels])
            axes.set_xlim(-0.5, len(levels) - 0.5)
            axes.set_xlabel(label)
            axes.set_title(FAILURE_NAMES.get(failure, failure), fontsize=10)
            axes.grid(axis="y", which="both", linewidth=0.3, alpha=0.6)
        fields[0][0].set_ylabel("kill to first new output of the failed keys (ms)")
        handles, labels = max((axes.get_legend_handles_labels() for axes in fields[0]), key=lambda found: len(found[1]))
        figure.legend(handles, labels, fontsize=8, loc="lower center", ncols=len(labels), frameon=False)
    return True


def _draw_recovery(
    axes: Any, runs: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], places: Sequence[float]
) -> None:
    """One mode: ``rows`` of the summary at ``places``, with their runs around them."""
    recovery = rows[0]["recovery"]
    colour = COLOURS[recovery]
    for row, place in zip(rows, places, strict=True):
        mine = [run for run in runs if all(run[key] == row[key] for key in CASE)]
        times = [time_ms for run in mine if (time_ms := without_pause_ms(run)) is not None]
        axes.scatter(place + np.linspace(-0.05, 0.05, len(times)), times, s=8, color=colour, alpha=0.4, linewidths=0)
    medians, lows, highs = ([row[f"without_pause_{name}_ms"] for row in rows] for name in ("median", "low", "high"))
    below = [median - low for median, low in zip(medians, lows, strict=True)]
    above = [high - median for median, high in zip(medians, highs, strict=True)]
    label = f"{recovery} (median, 95 % interval)"
    axes.errorbar(places, medians, [below, above], color=colour, marker="D", markersize=5, capsize=4, label=label)


def timeline(content: dict[str, Any], target: Path) -> bool:
    """Output around one kill in each mode, one above the other. ``False``: nothing to draw."""
    chosen = choose_timelines(content["timelines"])
    if not chosen:
        return False
    rows: dict[str, Any] = {"nrows": len(chosen), "sharex": True, "sharey": True, "squeeze": False}
    with picture(target, (9, 3.2 * len(chosen)), **rows) as (_, fields):
        for axes, one in zip(fields[:, 0], chosen, strict=True):
            _draw_timeline(axes, one)
        usual = float(np.median([rates for one in chosen for rates in one["rows_per_s"].values()])) / 1e3
        fields[0][0].set_ylim(0, max(1e-3, TOP_OVER_USUAL * usual))
        fields[-1][0].set_xlabel("seconds since the kill")
    return True


def choose_timelines(timelines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same kill in each mode: a SIGKILL if there is one, at the largest parallelism, with the least state."""
    if not timelines:
        return []
    best = max(timelines, key=lambda one: (one["failure"] == "sigkill", one["parallelism"], -one["state_keys"]))
    case = ("failure", "parallelism", "state_keys")
    same = [one for one in timelines if all(one[key] == best[key] for key in case)]
    return sorted(same, key=lambda one: ORDER.index(one["recovery"]))


def _draw_timeline(axes: Any, one: dict[str, Any]) -> None:
    failed = set(one["failed"])
    labelled = set()
    for subtask, rates in sorted(one["rows_per_s"].items(), key=lambda entry: entry[0] in failed):
        times = one["bucket_s"] * (np.arange(len(rates)) + 0.5) - one["kill_at_s"]
        hit = subtask in failed
        label = f"{subtask} (failed)" if hit else "the other partitions"
        axes.plot(
            times,
            np.array(rates) / 1e3,
            color="#c0504d" if hit else "#7f9db9",
            linewidth=1.8 if hit else 0.9,
            alpha=1.0 if hit else 0.7,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.axvline(0, color="black", linestyle="--", linewidth=1)
    begin = 0.0
    for phase, colour in PHASE_COLOURS.items():
        took = one["phases_ms"].get(phase)
        if took and took >= SHOWN_MS:
            label = f"{phase} {took:,.0f} ms"
            axes.axvspan(begin, begin + took / 1e3, color=colour, alpha=0.3, linewidth=0, label=label)
        begin += (took or 0.0) / 1e3
    total = one["recovery_ms"]
    took = "never recovered" if total is None else f"first new output of the failed keys after {total:,.0f} ms"
    most = max((max(rates) for rates in one["rows_per_s"].values()), default=0.0) / 1e3
    title = f"{one['recovery']}, parallelism {one['parallelism']}: {took} (highest rate: {most:,.0f} thousand rows/s)"
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("new rows/s (thousands)")
    axes.legend(fontsize=7, loc="upper left", ncols=2)
