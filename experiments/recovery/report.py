"""The experiment's document (JSON), and its tables.

The document: ``experiment``, ``parameters``, ``versions``, ``machine``, ``commit``, ``started``, ``interrupted``,
``runs`` (one object each), ``summary``, ``comparison`` and ``timelines`` (output around the first kill of each kind).

Rules: written anew after each run, whole or not at all, so that an experiment that is interrupted keeps what it has.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.table import Table

from experiments.recovery.settings import Settings
from experiments.recovery.summary import CASE, compare, summarize
from flinkplus.cli.figures import write_json
from flinkplus.protocol.vocabulary.phases import DURATIONS

PACKAGES = ("flinkplus", "pyspark", "pyarrow", "numpy", "grpcio", "rocksdict", "kazoo")
GIT_TIMEOUT_S = 10
LEAST_FOR_INTERVAL = 3
REDUCTIONS = {"partial": "partial_reduction_percent", "standby": "reduction_percent"}
"""Modes that are compared with rollback, and where the comparison says how much less they take."""


def environment() -> dict[str, Any]:
    """``versions``, ``machine``, ``commit`` and ``started`` of whatever runs now."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "versions": versions,
        "machine": machine(),
        "commit": commit(),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def machine() -> dict[str, Any]:
    """What this runs on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str | None:
    """The commit this program is of, with ``-dirty`` when files differ from it; ``None`` outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


class Document:
    """What an experiment has found so far, in ``path``. ``derive``: what is computed anew from all runs."""

    def __init__(
        self, name: str, parameters: Any, path: Path, derive: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> None:
        self.path = path
        self._derive = derive
        self.content: dict[str, Any] = {
            "experiment": name,
            "parameters": dataclasses.asdict(parameters),
            **environment(),
            "interrupted": False,
            "runs": [],
            **derive([]),
        }

    def add(self, figures: dict[str, Any]) -> None:
        """One more run."""
        self.content["runs"].append(figures)
        self.content |= self._derive(self.content["runs"])
        self.write()

    def interrupted(self) -> None:
        self.content["interrupted"] = True
        self.write()

    def write(self) -> None:
        write_json(self.path, self.content)


class RecoveryDocument(Document):
    """The document of the experiment on recoveries."""

    def __init__(self, parameters: Settings, path: Path) -> None:
        def derive(runs: list[dict[str, Any]]) -> dict[str, Any]:
            summary = summarize(runs, parameters.seed)
            return {"summary": summary, "comparison": compare(summary)}

        super().__init__("recovery", parameters, path, derive)
        self.content["timelines"] = []

    def add_timeline(self, timeline: dict[str, Any] | None) -> None:
        """Keep the output around a kill, if it is the first of its kind; written with the next run."""
        kept = self.content["timelines"]
        if timeline is not None and not any(all(one[key] == timeline[key] for key in CASE) for one in kept):
            kept.append(timeline)


def number(value: float | None, digits: int = 1) -> str:
    """For people; a dash where there is nothing."""
    return "-" if value is None else f"{value:,.{digits}f}"


def tables(content: dict[str, Any]) -> list[Table]:
    """What is printed at the end: the comparison, where the milliseconds go, and what the output looked like."""
    return [comparison_table(content), phase_table(content), output_table(content)]


def plain_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for headings, justify in ((left, "left"), (right, "right")):
        for heading in headings:
            table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def _states(content: dict[str, Any]) -> tuple[str, ...]:
    return ("state keys",) if any(row["state_keys"] for row in content["summary"]) else ()


def comparison_table(content: dict[str, Any]) -> Table:
    """The modes by parallelism, as in the paper; ``reduction``: against rollback."""
    states = _states(content)
    title = "Kill to first new output, ms: median (95 % interval)"
    ran = any(row["recovery"] == "partial" for row in content["summary"])
    reductions = {mode: key for mode, key in REDUCTIONS.items() if ran or mode != "partial"}
    columns = [heading for mode in reductions for heading in (mode, "reduction")]
    table = plain_table(title, ("failure",), ("par." if ran else "parallelism", *states, "rollback", *columns))
    rows = {(row["failure"], row["state_keys"], row["parallelism"], row["recovery"]): row for row in content["summary"]}
    for case in content["comparison"]:
        key = (case["failure"], case["state_keys"], case["parallelism"])
        cells = [_median(rows.get((*key, "rollback")))]
        for mode, reduction in reductions.items():
            percent = case.get(reduction)
            cells += [_median(rows.get((*key, mode))), "-" if percent is None else f"{percent:.2f} %"]
        table.add_row(case["failure"], str(case["parallelism"]), *(f"{case['state_keys']:,}" for _ in states), *cells)
    return table


def _median(row: dict[str, Any] | None) -> str:
    if row is None or row["median_ms"] is None:
        return "-"
    if row["runs"] - row["unmeasured"] < LEAST_FOR_INTERVAL:
        return number(row["median_ms"])
    low, high = number(row["median_low_ms"], 0), number(row["median_high_ms"], 0)
    return f"{number(row['median_ms'])} ({low} - {high})"


def phase_table(content: dict[str, Any]) -> Table:
    """Where the milliseconds go."""
    columns = [*(f"{phase}_median_ms" for phase in DURATIONS), "median_ms", "p95_ms"]
    return _figures("Where the time goes, ms: medians", content, (*DURATIONS, "total", "p95"), columns)


def output_table(content: dict[str, Any]) -> Table:
    """What came out meanwhile, and how right it was."""
    gaps = ("failed_median", "others_median", "others_p95", "before_median")
    columns = ["caught_up_median_ms", *(f"output_gap_{gap}_ms" for gap in gaps)]
    headings = ("caught up", "gap failed", "others", "others p95", "before", "exact", "fallbacks")
    return _figures("Output, ms: medians of the longest gaps", content, headings, columns)


def _figures(title: str, content: dict[str, Any], headings: Sequence[str], columns: Sequence[str]) -> Table:
    states = _states(content)
    table = plain_table(title, ("recovery", "failure"), ("par.", *states, *headings))
    for row in content["summary"]:
        cells = [number(row[column]) for column in columns]
        if "exact" in headings:
            cells += [f"{row['exact_runs']} of {row['runs']}", str(row["fallbacks"])]
        case = (row["recovery"], row["failure"], str(row["parallelism"]), *(f"{row['state_keys']:,}" for _ in states))
        table.add_row(*case, *cells)
    return table
