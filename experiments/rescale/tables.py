"""The tables of the experiment, from its document alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from experiments.harness.console import interval, number, plain_table
from experiments.rescale import live, restore

Row = dict[str, Any]
CASE_HEADINGS = ("change", "recovery", "MB")
GAPS = {"gap": "around the change", "switch_gap": "of the switch", "without_gap": "without a change"}
TIMES = {"running": "all subtasks run", "output": "first new output"}
LIVE_TIMES = ("moved_ms", "moved_p95_ms", "output_ms", "caught_up_ms")


def tables(content: dict[str, Any]) -> list[object]:
    """The figures, where the time goes, and the runs that are not right."""
    restored = content["parameters"]["restore"]
    found = _restored(content) if restored else _live(content)
    return [*found, *(_wrong(run) for run in content["runs"] if run["error"] or not run["exact"])]


def _live(content: dict[str, Any]) -> list[Table]:
    times = ("moved", "p95", "output", "caught up", *_headings(live.PHASES_MS), "recoveries")
    cells = _numbers(*LIVE_TIMES, *live.PHASES_MS, "recoveries")
    return [
        _figures("Longest output gap of any partition, ms: median (95 % interval)", content, GAPS),
        _rows("From the request, ms: medians; recoveries meanwhile", content, times, cells),
    ]


def _restored(content: dict[str, Any]) -> list[Table]:
    headings, cells = (*_headings(restore.PHASES_MS), "recoveries"), _numbers(*restore.PHASES_MS, "recoveries")
    phases = _rows("Its phases, ms: medians; recoveries meanwhile", content, headings, cells)
    return [_figures("From resume, ms: median (95 % interval)", content, TIMES), phases]


def _figures(title: str, content: dict[str, Any], figures: dict[str, str]) -> Table:
    """A line for each row of the summary and each of its ``figures``."""
    rows = [
        (
            *_case(row),
            f"{row['exact_runs']} of {row['runs']}",
            text,
            interval(row, name, "ms", 0),
            number(row[f"{name}_p95_ms"], 0),
        )
        for row in content["summary"]
        for name, text in figures.items()
    ]
    return plain_table(title, (*CASE_HEADINGS, "exact", ""), ("ms", "p95"), rows)


def _numbers(*names: str) -> Callable[[Row], list[str]]:
    return lambda row: [number(row[name], 0) for name in names]


def _headings(names: Sequence[str]) -> list[str]:
    return [name.removesuffix("_ms").replace("_", " ") for name in names]


def _rows(title: str, content: dict[str, Any], headings: Sequence[str], cells: Callable[[Row], Sequence[str]]) -> Table:
    """A line for each row of the summary."""
    rows = [(*_case(row), *cells(row)) for row in content["summary"]]
    return plain_table(title, CASE_HEADINGS, headings, rows)


def _case(row: Row) -> tuple[str, ...]:
    return change(row), row["recovery"], f"{row['state_mb']:,}"


def change(row: Row) -> str:
    return f"{row['before']} to {row['after']}"


def _wrong(run: dict[str, Any]) -> str:
    wrong = (
        f"{run.get('wrong')} words differ, such as {run.get('example_of_wrong')!r}, or keys of the state are missing"
    )
    return f"{change(run)}, {run['recovery']}, {run['state_mb']} MB, run {run['run']}: {run['error'] or wrong}"
