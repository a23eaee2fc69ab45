"""The experiment's document (JSON) and its table: how many runs were exact, and how many stayed local."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.exactness.settings import Settings
from experiments.recovery.report import Document, number, plain_table
from experiments.recovery.summary import median, percentile
from flinkplus.errors import ConfigurationError

SHOWN = ("runs", "exact", "local", "rollback", "untouched", "wrong", "failed", "failovers")


def exactness_document(settings: Settings, path: Path, go_on: bool = False) -> Document:
    """``summary``: a row for each number of failures and time between them, and one for all. ``damage``: kind -> rows;
    ``fallback_reasons``: reason -> runs.

    ``go_on``: with the runs that ``path`` holds already, if there is such a file. Raises ``ConfigurationError`` when
    they are another experiment's.
    """
    document = Document("exactness", settings, path, summarize)
    if go_on and path.exists():
        known = _read(path)
        for name in ("experiment", "parameters", "commit"):
            # As JSON: what was written has lists where tuples were.
            if json.dumps(known.get(name)) != json.dumps(document.content[name]):
                raise ConfigurationError(f"cannot go on with {path}: {name} differ; give another --json")
        document.content |= {"runs": known["runs"], "started": known["started"], **summarize(known["runs"])}
    return document


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot go on with {path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"cannot go on with {path}: it holds no experiment")
    return found


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is computed anew from all runs."""
    groups: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((len(run["strikes"]), run["apart_s"]), []).append(run)
    damage: Counter[str] = Counter()
    for run in runs:
        damage.update(run["damage"])
    rows = [
        {"failures": count, "apart_s": apart_s, **_row(groups[count, apart_s])} for count, apart_s in sorted(groups)
    ]
    return {
        "summary": [*rows, {"failures": None, "apart_s": None, **_row(runs)}],
        "damage": dict(sorted(damage.items())),
        "fallback_reasons": dict(Counter(reason for run in runs for reason in run.get("fallback_reasons", ()))),
    }


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    recoveries = [recovery for run in runs for recovery in run["recoveries"]]
    times = [recovery["recovery_ms"] for recovery in recoveries]
    return {
        "runs": len(runs),
        "exact": sum(run["exact"] for run in runs),
        "local": sum(run["exact"] and run["failovers"] > 0 and not run["fallbacks"] for run in runs),
        "rollback": sum(bool(run["fallbacks"]) for run in runs),
        "untouched": sum(not run["recoveries"] for run in runs),
        "wrong": sum(bool(run["damage"]) for run in runs),
        "failed": sum(run["error"] is not None for run in runs),
        "failovers": sum(run["failovers"] for run in runs),
        "handovers": sum(run.get("handovers", 0) for run in runs),
        "subtasks": sum(len(recovery["subtasks"]) for recovery in recoveries),
        "rows": sum(run["rows"] for run in runs),
        "recovery_ms_median": median(times),
        "recovery_ms_p95": percentile(times, 95),
    }


def exactness_table(content: dict[str, Any]) -> Table:
    """For people."""
    without = content["parameters"]["without"]
    title = f"Runs without {' and without '.join(without)}" if without else "Runs"
    title += "; ms: kill to first new output, median"
    table = plain_table(title, ("failures",), (*SHOWN, "ms", "p95"))
    for row in content["summary"]:
        times = (number(row["recovery_ms_median"], 0), number(row["recovery_ms_p95"], 0))
        table.add_row(_failures(row), *(f"{row[name]:,}" for name in SHOWN), *times)
    return table


def _failures(row: dict[str, Any]) -> str:
    if row["failures"] is None:
        return "all"
    if row["failures"] == 1:
        return "1"
    return (
        f"{row['failures']} at once"
        if not row["apart_s"]
        else f"{row['failures']}, {row['apart_s'] * 1e3:.0f} ms apart"
    )


def lines(content: dict[str, Any]) -> list[str]:
    """What else is to be said: runs that are not exact, why there were rollbacks, what damage there was."""
    said = []
    for run in content["runs"]:
        if run["error"] is not None or run["damage"]:
            found = ", ".join(f"{kind}: {times}" for kind, times in run["damage"].items())
            said.append(f"run {run['run']}: {run['error'] or found}")
    said += [f"rollback in {times} runs: {reason}" for reason, times in content["fallback_reasons"].items()]
    said += [f"{kind}: {times} in all" for kind, times in content["damage"].items()]
    return said
