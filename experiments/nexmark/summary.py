"""From runs to a row for each query and engine, and tables. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.baselines.case import FLINK_MEMORY, FLINK_ROCKSDB, FLINKPLUS
from experiments.harness.console import number, plain_table
from experiments.harness.statistics import grouped, median

ENGINES = (FLINKPLUS, FLINK_MEMORY, FLINK_ROCKSDB)
EXACT, KILL, THROUGHPUT = "exact", "kill", "throughput"
"""Kinds of runs."""
LACKS = "lacks"
"""Of a query that an engine cannot run."""
FIGURES = {
    "events_per_s": (THROUGHPUT, 1),
    "cpu_s_per_million": (THROUGHPUT, 4),
    "rss_mb": (THROUGHPUT, 1),
    "recovery_ms": (KILL, 3),
    "restart_ms": (KILL, 3),
}
"""Medians over runs: the kind of run that has the figure, and digits."""
DEFINITIONS = (
    "events/s: of all kinds, read in the seconds measured, after the job has settled; output is counted and dropped",
    "CPU s/M: processor seconds of all processes of the engine per million of these events; memory: resident, pages "
    "that processes share counted in each",
    "exact: the rows of a fixed input beside DuckDB's, undisturbed / with a SIGKILL of a slot in the middle",
    "recovery: from the signal to new output of all that failed, so where output is rare it waits for the next row; "
    "restart: from the signal to when all subtasks run again",
    "a query makes only the kinds of events that it reads, on every engine; the others are passed over by number",
)


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each query and engine, in the order of the runs.

    ``exact``, ``exact_with_kill``: whether all such runs were; ``None`` without one. ``recovered_by``: the ways of
    recovery that the kills had, ``None`` without one. ``lacks``: why there is no figure.
    """
    rows = []
    for (query, engine), group in grouped(runs, "query", "engine").items():
        row: dict[str, Any] = {"query": query, "engine": engine}
        for name, (kind, digits) in FIGURES.items():
            row[name] = median([run.get(name) for run in group if run["kind"] == kind], digits)
        row["exact"], row["exact_with_kill"] = (_all_exact(group, kind) for kind in (EXACT, KILL))
        modes = {run["mode"] for run in group if run["kind"] == KILL and run.get("mode")}
        row["recovered_by"] = "/".join(sorted(modes)) or None
        row["lacks"] = next((run["lacks"] for run in group if run["kind"] == LACKS), None)
        rows.append(row)
    return rows


def _all_exact(runs: Sequence[dict[str, Any]], kind: str) -> bool | None:
    found = [run.get("exact") is True for run in runs if run["kind"] == kind]
    return all(found) if found else None


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast FlinkPlus is as each other engine: geometric mean over the queries that both have, the
    least, and the query that has it; without such queries an engine is left out."""
    rates = {(row["query"], row["engine"]): row["events_per_s"] for row in rows if row["events_per_s"]}
    found = {}
    for engine in ENGINES[1:]:
        known = {
            query: rates[query, FLINKPLUS] / rate
            for (query, other), rate in rates.items()
            if other == engine and (query, FLINKPLUS) in rates
        }
        if known:
            least = min(known, key=known.__getitem__)
            mean = math.exp(sum(map(math.log, known.values())) / len(known))
            found[engine] = {
                "geometric_mean": round(mean, 3),
                "least": round(known[least], 3),
                "least_of": least,
                "queries": len(known),
            }
    return found


def passed(runs: Sequence[dict[str, Any]]) -> bool:
    """Whether all runs came to their end, and all outputs were exact."""
    return all(run["error"] is None and run.get("exact", True) for run in runs)


def tables(content: dict[str, Any]) -> list[object]:
    """Of the document: the table, definitions, ratios, what an engine lacks, and runs that are not right."""
    rows = content["queries"]
    shown = plain_table(
        "Nexmark: medians of runs",
        ("query", "engine"),
        ("events/s", "CPU s/M", "memory MB", "exact", "recovery ms", "restart ms", "by"),
        [
            (
                row["query"],
                row["engine"],
                number(row["events_per_s"], 0),
                number(row["cpu_s_per_million"], 2),
                number(row["rss_mb"], 0),
                "/".join(_word(row[name]) for name in ("exact", "exact_with_kill")),
                number(row["recovery_ms"]),
                number(row["restart_ms"]),
                row["recovered_by"] or "-",
            )
            for row in rows
        ],
    )
    return [
        shown,
        *DEFINITIONS,
        *(
            f"flinkplus beside {engine}: {one['geometric_mean']:g} times its events/s (geometric mean of "
            f"{one['queries']}), least {one['least']:g} ({one['least_of']})"
            for engine, one in content["ratios"].items()
        ),
        *(f"{row['query']}, {row['engine']}: lacks {row['lacks']}" for row in rows if row["lacks"]),
        *(_wrong(run) for run in content["runs"] if not passed([run])),
    ]


def _word(exact: bool | None) -> str:
    return "-" if exact is None else "yes" if exact else "NO"


def _wrong(run: dict[str, Any]) -> str:
    found = ", ".join(f"{name} {run[name]}" for name in ("lost", "wrong") if run.get(name))
    return f"{run['query']}, {run['engine']}, {run['kind']}, run {run['run']}: {run['error'] or found}"
