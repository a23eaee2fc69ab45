"""The tables of the experiment, from its document alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from experiments.harness.console import number, plain_table
from experiments.harness.statistics import grouped
from experiments.recovery.summary import CHECKPOINTS, NOT_KNOWN, QUARTERS, THIRDS
from flinkplus.protocol.vocabulary.phases import DURATIONS

LEAST_FOR_INTERVAL = 3
REDUCTIONS = {"partial": "partial_reduction_percent", "standby": "reduction_percent"}
"""Modes that are compared with rollback, and where the comparison says how much less they take."""
PHASES = (*(f"{phase}_median_ms" for phase in DURATIONS), "median_ms", "p95_ms")
GAPS = ("failed_median", "others_median", "others_p95", "before_median", "handback_median", "handback_p95")
GAP_HEADINGS = ("caught up", "failed", "others", "p95", "before", "hand-back", "p95")


def tables(content: dict[str, Any]) -> list[object]:
    """The comparison, how many kills count, where the milliseconds go, what the output looked like, recovery by moment
    and load, and the kills that are not right."""
    gaps = ("caught_up_median_ms", *(f"output_gap_{gap}_ms" for gap in GAPS))
    return [
        _comparison(content),
        _rows("Kills", content, ("kills", "unmeasured", "exact", "fallbacks", "not restored in time"), _counts),
        _rows("Where the time goes, ms: medians", content, (*DURATIONS, "total", "p95"), _cells(PHASES)),
        _rows("Output, ms: medians of the longest gaps", content, GAP_HEADINGS, _cells(gaps)),
        _by("Recovery by quarter of the checkpoint interval, ms: median (kills)", content, "moment", QUARTERS),
        _by("Recovery during a checkpoint and outside, ms: median (kills)", content, "moment", CHECKPOINTS),
        _by("Recovery by load right before, ms: median (kills; busy processors)", content, "load", THIRDS),
        *_restarts(content),
        *(_wrong(run) for run in content["runs"] if run["error"] or not run["exact"]),
    ]


def _restarts(content: dict[str, Any]) -> list[Table]:
    """Where the time goes when a driver was killed; nothing if none was."""
    rows = [row for row in content["summary"] if row.get("restart_phases")]
    if not rows:
        return []
    names = tuple(rows[0]["restart_phases"])

    def cells(row: dict[str, Any]) -> list[str]:
        return [*(number(row["restart_phases"][name], 0) for name in names), number(row["median_ms"], 0)]

    headings = (*(name.removesuffix("_ms").replace("_", " ") for name in names), "total")
    return [_rows("Restart of a driver, ms: medians", {**content, "summary": rows}, headings, cells)]


def _wrong(run: dict[str, Any]) -> str:
    wrong = f"{run.get('wrong')} keys or rows differ, such as {run.get('example_of_wrong')!r}"
    what = f"parallelism {run['parallelism']}, {run['recovery']}, {run['failure']}, run {run['run']}"
    return f"{what}: {run['error'] or wrong}"


def _states(content: dict[str, Any]) -> tuple[str, ...]:
    return ("state keys",) if any(row["state_keys"] for row in content["summary"]) else ()


def _comparison(content: dict[str, Any]) -> Table:
    """The modes by parallelism, as in the paper; ``reduction``: against rollback."""
    states = _states(content)
    ran = any(row["recovery"] == "partial" for row in content["summary"])
    reductions = {mode: key for mode, key in REDUCTIONS.items() if ran or mode != "partial"}
    columns = [heading for mode in reductions for heading in (mode, "reduction")]
    found = grouped(content["summary"], "failure", "state_keys", "parallelism", "recovery")
    rows = []
    for case in content["comparison"]:
        key = (case["failure"], case["state_keys"], case["parallelism"])
        cells = [_median(found.get((*key, "rollback")))]
        for mode, reduction in reductions.items():
            percent = case.get(reduction)
            cells += [_median(found.get((*key, mode))), "-" if percent is None else f"{percent:.2f} %"]
        rows.append((case["failure"], str(case["parallelism"]), *(f"{case['state_keys']:,}" for _ in states), *cells))
    waited = any(run.get("waited_for_host_ms") for run in content["runs"])
    title = "Kill to first new output, ms: median (95 % interval)"
    title += "; rollback without the wait for a host that hung or was cut off" if waited else ""
    headings = ("par." if ran else "parallelism", *states, "rollback", *columns)
    return plain_table(title, ("failure",), headings, rows)


def _median(found: Sequence[dict[str, Any]] | None) -> str:
    if found is None or found[0]["without_pause_median_ms"] is None:
        return "-"
    row = found[0]
    value = number(row["without_pause_median_ms"])
    if row["runs"] - row["unmeasured"] < LEAST_FOR_INTERVAL:
        return value
    return f"{value} ({number(row['without_pause_low_ms'], 0)} - {number(row['without_pause_high_ms'], 0)})"


def _counts(row: dict[str, Any]) -> list[str]:
    exact = f"{row['exact_runs']} of {row['runs']}"
    return [*(str(row[key]) for key in ("runs", "unmeasured")), exact, str(row["fallbacks"]), str(row["not_restored"])]


def _cells(columns: Sequence[str]) -> Callable[[dict[str, Any]], Sequence[str]]:
    return lambda row: [number(row[column]) for column in columns]


def _by(title: str, content: dict[str, Any], key: str, names: Sequence[str]) -> Table:
    """The recovery times of each part; a further column for kills of which that is not known, if there are any."""
    if any(part[key] == NOT_KNOWN for row in content["summary"] for part in row[f"by_{key}"]):
        names = (*names, NOT_KNOWN)

    def cells(row: dict[str, Any]) -> list[str]:
        found = {part[key]: _part(part) for part in row[f"by_{key}"]}
        return [found.get(name, "-") for name in names]

    return _rows(title, content, names, cells)


def _part(part: dict[str, Any]) -> str:
    if not part["runs"]:
        return "-"
    kills = f"{part['runs'] - part['unmeasured']} of {part['runs']}" if part["unmeasured"] else str(part["runs"])
    busy = ""
    if part.get("busy_from") is not None:
        busy = f"; {100 * part['busy_from']:.0f}-{100 * part['busy_to']:.0f} %"
    return f"{number(part['median_ms'], 0)} ({kills}{busy})"


def _rows(
    title: str, content: dict[str, Any], headings: Sequence[str], cells: Callable[[dict[str, Any]], Sequence[str]]
) -> Table:
    """A line for each row of the summary."""
    states = _states(content)
    rows = [
        (
            row["recovery"],
            row["failure"],
            str(row["parallelism"]),
            *(f"{row['state_keys']:,}" for _ in states),
            *cells(row),
        )
        for row in content["summary"]
    ]
    return plain_table(title, ("recovery", "failure"), ("par.", *states, *headings), rows)
