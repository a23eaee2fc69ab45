"""Rows of the summary, tables and pictures, from runs. Pure, except for the files of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.baselines.case import (
    ENGINES,
    FAILURES,
    FLINK_MEMORY,
    FLINK_ROCKSDB,
    FLINKPLUS,
    MEASURES,
    RECOVERY,
    SPARK,
    STEADY,
    THROUGHPUT,
)
from experiments.harness.console import number, plain_table
from experiments.harness.pictures import picture
from experiments.harness.statistics import grouped, median, median_interval, percentile
from flinkplus.protocol.vocabulary.phases import DURATIONS

KEYS = ("engine", "job", "parallelism", "measure", "failure")
LEAST_FOR_INTERVAL = 3
FIGURES = {
    **{name: name for name in ("rows_per_s", "cpu_s_per_million", "cores", "rss_mb")},
    **{name: name for name in ("latency_p50_ms", "latency_p99_ms", "state_keys", "state_reads_per_row")},
    **{f"{name}_median_ms": f"{name}_ms" for name in ("first_output", "recovery", "caught_up")},
}
"""Medians of the summary, and the figures of runs that they are of."""
LEADING = {THROUGHPUT: "rows_per_s", STEADY: "latency_p50_ms", RECOVERY: "recovery_median_ms"}
"""The first one of each measure. Its interval is also ``low`` and ``high``."""
WITH_INTERVAL = {
    THROUGHPUT: ("rows_per_s", "cpu_s_per_million"),
    STEADY: ("latency_p50_ms", "latency_p99_ms"),
    RECOVERY: ("recovery_median_ms", "caught_up_median_ms"),
}
"""Whose interval is in the table."""
STATE_IN = {FLINKPLUS: "both", FLINK_MEMORY: "memory", FLINK_ROCKSDB: "RocksDB", SPARK: "RocksDB"}
"""Where an engine reads and writes keyed state while rows come."""
COLUMNS: dict[str, dict[str, tuple[str, int]]] = {
    THROUGHPUT: {
        "rows/s": ("rows_per_s", 0),
        "CPU s/M": ("cpu_s_per_million", 2),
        "cores": ("cores", 2),
        "memory MB": ("rss_mb", 0),
        "reads/row": ("state_reads_per_row", 2),
    },
    STEADY: {
        "p50 ms": ("latency_p50_ms", 0),
        "p99 ms": ("latency_p99_ms", 0),
        "rows/s": ("rows_per_s", 0),
        "cores": ("cores", 2),
        "CPU s/M": ("cpu_s_per_million", 2),
        "memory MB": ("rss_mb", 0),
    },
    RECOVERY: {
        "recovery ms": ("recovery_median_ms", 0),
        "p95": ("recovery_p95_ms", 0),
        "first output": ("first_output_median_ms", 0),
        "caught up": ("caught_up_median_ms", 0),
        "cores": ("cores", 2),
    },
}
TITLES = {
    THROUGHPUT: "Throughput at unlimited rate: medians (95 % interval)",
    STEADY: "At a steady rate: medians (95 % interval)",
    RECOVERY: "Recovery at a steady rate: medians (95 % interval)",
}
COLOURS = dict(zip(ENGINES, ("#1f77b4", "#e07b39", "#8c4f2b", "#5cb85c"), strict=True))


def summarize(runs: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each engine, job, parallelism, measure and failure.

    ``n``: runs that count; ``failed``: the others; ``not_held``: runs that did not hold the steady rate.
    ``intervals``: the 95 % interval of each median, if at least ``LEAST_FOR_INTERVAL`` runs have the figure; ``low``,
    ``high``: that of the leading figure. ``phases``: medians, of what an engine itself reports of its recoveries.
    """
    rows = []
    for key, group in grouped(runs, *KEYS).items():
        good = [run for run in group if run["error"] is None]
        row: dict[str, Any] = dict(zip(KEYS, key, strict=True))
        columns = {name: _known(good, of) for name, of in FIGURES.items()}
        intervals = {
            name: median_interval(values, seed) for name, values in columns.items() if len(values) >= LEAST_FOR_INTERVAL
        }
        low, high = intervals.get(LEADING[row["measure"]], (None, None))
        rows.append(
            {
                **row,
                "state_in": STATE_IN[row["engine"]],
                **{name: median(values, 4) for name, values in columns.items()},
                "recovery_p95_ms": percentile(columns["recovery_median_ms"], 95),
                "intervals": {name: list(interval) for name, interval in intervals.items()},
                "low": low,
                "high": high,
                "phases": _phases(good),
                "n": len(good),
                "failed": len(group) - len(good),
                "not_held": sum(run.get("held") is False for run in good),
            }
        )
    return rows


def _known(runs: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [value for run in runs if (value := run.get(name)) is not None]


def _phases(runs: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The median of each phase; nothing where no recovery was reported."""
    reported = [recovery for run in runs for recovery in run.get("recoveries", ())]
    names = [f"{phase}_ms" for phase in DURATIONS]
    return {name: median(recovery[name] for recovery in reported) for name in names} if reported else {}


# --- tables


def tables(content: dict[str, Any]) -> list[object]:
    """A table for each measure, what the figures mean, where engines differ, and the runs that failed."""
    summary = content["summary"]
    measures = [measure for measure in MEASURES if any(row["measure"] == measure for row in summary)]
    return [
        *(_table(measure, [row for row in summary if row["measure"] == measure]) for measure in measures),
        *(f"- {line}" for line in content["definitions"]),
        *(f"- {line}" for line in content["differences"]),
        *(_failed(run) for run in content["runs"] if run["error"] is not None),
    ]


def _table(measure: str, rows: Sequence[dict[str, Any]]) -> Table:
    ranked = sorted(rows, key=lambda row: (row["job"], row["parallelism"], _rank(row)))
    failures = measure == RECOVERY
    columns = _columns(measure, ranked)
    cells = []
    for row in ranked:
        names = (row["job"], row["engine"], row["failure"] if failures else row["state_in"])
        figures = [_cell(row, name, digits, name in WITH_INTERVAL[measure]) for name, digits in columns.values()]
        if row["not_held"]:
            figures[0] += " *"
        count = str(row["n"]) if not row["failed"] else f"{row['n']}, {row['failed']} failed"
        cells.append((*names, str(row["parallelism"]), *figures, count))
    left = ("job", "engine", "failure" if failures else "state in")
    title = TITLES[measure] + (" (*: the rate was not held)" if any(row["not_held"] for row in rows) else "")
    return plain_table(title, left, ("par.", *columns, "n"), cells)


def _columns(measure: str, rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Those of the measure; reads of RocksDB only if an engine has reported any."""
    columns = COLUMNS[measure]
    wanted = any(row["state_reads_per_row"] for row in rows)
    return {heading: column for heading, column in columns.items() if column[0] != "state_reads_per_row" or wanted}


def _cell(row: dict[str, Any], name: str, digits: int, with_interval: bool) -> str:
    text = number(row[name], digits)
    interval = row["intervals"].get(name) if with_interval else None
    return text if interval is None else f"{text} ({number(interval[0], digits)} - {number(interval[1], digits)})"


def _rank(row: dict[str, Any]) -> tuple[int, int]:
    failure = row["failure"]
    return (FAILURES.index(failure) if failure in FAILURES else 0, ENGINES.index(row["engine"]))


def _failed(run: dict[str, Any]) -> str:
    what = ", ".join(str(run[key]) for key in KEYS if run[key] is not None)
    return f"{what}, run {run['run']}: {run['error']}"


# --- pictures


def throughput_by_parallelism(content: dict[str, Any], target: Path) -> bool:
    return _lines(content, target, THROUGHPUT, "rows_per_s", "rows/s", log=True)


def latency_by_parallelism(content: dict[str, Any], target: Path) -> bool:
    return _lines(content, target, STEADY, "latency_p99_ms", "99th percentile of the latency, ms", log=True)


def recovery_by_parallelism(content: dict[str, Any], target: Path) -> bool:
    return _lines(content, target, RECOVERY, "recovery_median_ms", "recovery, ms", log=True)


def _lines(content: dict[str, Any], target: Path, measure: str, figure: str, label: str, log: bool) -> bool:
    """A field for each job (and failure), a line for each engine. False when there is nothing to draw."""
    rows = [row for row in content["summary"] if row["measure"] == measure and row[figure] is not None]
    groups = grouped(rows, "job", "failure")
    if not groups:
        return False
    with picture(target, (4.5 * len(groups), 3.6), ncols=len(groups), squeeze=False) as (_, fields):
        for axes, ((job, failure), mine) in zip(fields[0], groups.items(), strict=True):
            for (engine,), points in grouped(mine, "engine").items():
                pairs = sorted((row["parallelism"], row[figure]) for row in points)
                axes.plot(*zip(*pairs, strict=True), marker="o", color=COLOURS[engine], label=engine)
            numbers = sorted({row["parallelism"] for row in mine})
            axes.set_xscale("log", base=2)
            axes.set_xticks(numbers, [str(parallelism) for parallelism in numbers])
            if log:
                axes.set_yscale("log")
            axes.set_xlabel("parallelism")
            axes.set_ylabel(label)
            axes.set_title(job if failure is None else f"{job}: {failure}", fontsize=9)
            axes.grid(axis="y", linewidth=0.3, alpha=0.6)
            axes.legend(fontsize=7)
    return True
