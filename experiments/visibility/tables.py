"""The tables of the experiment, from its document alone."""

from __future__ import annotations

from typing import Any

from experiments.harness.console import interval, number, plain_table

TARGETS_MS = {"p50": 20, "p99": 50, "around_kill": 100}
"""For rows that are visible at once."""
HEADINGS = {"p50": "median", "p99": "99th", "around_kill": "around a SIGKILL"}
DEFINITIONS = (
    "time: from when a row was due, by a schedule that waits for nothing, to when a reader's answer first has it",
    "99th: percentile; around a SIGKILL: the longest time of rows due within 0.5 s of the signal",
    "rows per second: at unlimited rate, of what is visible; COPY: one client, one transaction, rows that are CSV",
)


def tables(content: dict[str, Any]) -> list[object]:
    """Times, rates, the reader's resolution, and the runs that are not right."""
    summary = content["summary"]
    times = plain_table(
        "Due to readable, ms: median of runs (95 % interval)",
        ("visibility", "flush"),
        (*HEADINGS.values(), "highest", "exact", "runs"),
        [
            (
                *_case(row),
                *(interval(row, name, "ms", 1) for name in HEADINGS),
                number(row["around_kill_highest_ms"]),
                "yes" if row["exact"] else "NO",
                str(row["n"]),
            )
            for row in summary
        ],
    )
    rates = plain_table(
        "Rows per second at unlimited rate: medians",
        ("visibility", "flush"),
        ("rows/s", "COPY", "share"),
        [(*_case(row), *_rates(row)) for row in summary],
    )
    targets = ", ".join(f"{HEADINGS[name]} {limit} ms" for name, limit in TARGETS_MS.items())
    return [
        times,
        rates,
        *DEFINITIONS,
        f"targets of at_once: {targets}",
        *(_resolution(row) for row in summary),
        *(_wrong(run) for run in content["runs"] if run["error"] is not None or not run.get("exact", True)),
    ]


def _case(row: dict[str, Any]) -> tuple[str, str]:
    return row["visibility"], interval_text(row["flush_interval"])


def interval_text(interval_s: float | None) -> str:
    """A ``flush_interval`` in milliseconds."""
    return "default" if interval_s is None else f"{interval_s * 1e3:g} ms"


def _rates(row: dict[str, Any]) -> tuple[str, str, str]:
    rate, copy = row["rows_per_s"], row["copy_rows_per_s"]
    share = "-" if rate is None or copy is None else f"{rate / copy:.0%}"
    return number(rate, 0), number(copy, 0), share


def _resolution(row: dict[str, Any]) -> str:
    shown = (number(row[f"reader_{name}_ms"]) for name in ("p50", "p99", "max"))
    cores = number(row["reader_cores"], 2)
    times = "resolution of the reader, {}: median {} ms, 99th percentile {} ms, highest {} ms (all in the times above)"
    return f"{times.format(', '.join(_case(row)), *shown)}; it used {cores} of a core"


def _wrong(run: dict[str, Any]) -> str:
    found = ", ".join(f"{name} {run[name]}" for name in ("lost", "doubled", "wrong") if run.get(name))
    return f"{run['kind']}, {run['visibility']}, run {run['run']}: {run['error'] or found}"
