"""The soak's document, verdict and picture.

The document: that of every experiment, with the faults as ``runs``; ``output`` and ``usage`` over time, ``final``,
``flat`` (first against last quarter, with limits) and ``problems``: what failed the soak, empty when nothing did.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from rich.table import Table

from experiments.cluster.usage import KINDS
from experiments.recovery.report import Document, number, plain_table
from experiments.recovery.summary import median
from experiments.soak.settings import (
    DISK_GROWTH,
    DISK_SLACK_MB,
    JAVA_GROWTH,
    JAVA_SLACK_MB,
    MEMORY_GROWTH,
    MEMORY_SLACK_MB,
    WARM_UP,
    Settings,
)

LIMITS = {
    "slots": (MEMORY_GROWTH, MEMORY_SLACK_MB),
    "driver": (MEMORY_GROWTH, MEMORY_SLACK_MB),
    "java": (JAVA_GROWTH, JAVA_SLACK_MB),
    "disk": (DISK_GROWTH, DISK_SLACK_MB),
}
LEAST_SAMPLES = 8
COLOURS = {
    "sigkill": "#c0504d",
    "exception": "#f0ad4e",
    "pause": "#8064a2",
    "host": "#7f0000",
    "hang": "#8064a2",
    "cut": "#1f77b4",
    "zookeeper": "#5cb85c",
}
DPI = 120


def soak_document(settings: Settings, path: Path) -> Document:
    document = Document("soak", settings, path, lambda runs: {"summary": summarize(runs)})
    document.content |= {"output": [], "usage": [], "final": None, "flat": [], "problems": []}
    return document


def summarize(faults: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind of fault, and one for all."""
    kinds = sorted({fault["kind"] for fault in faults})
    groups = [(kind, [fault for fault in faults if fault["kind"] == kind]) for kind in kinds]
    return [
        {
            "kind": kind,
            "faults": len(group),
            "failovers": sum(fault["failovers"] for fault in group),
            "fallbacks": sum(fault["fallbacks"] for fault in group),
            "recovery_median_ms": median(fault["recovery_ms"] for fault in group),
            "restored_median_s": median(fault["restored_s"] for fault in group),
            "restored_longest_s": max(fault["restored_s"] for fault in group),
        }
        for kind, group in [*groups, ("all", list(faults))]
        if group
    ]


def flatness(usage: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """For memory by kind and disk: the medians of the first and the last quarter after warming up, and the limit."""
    if not usage:
        return []
    begin_s, end_s = usage[0]["at_s"], usage[-1]["at_s"]
    settled = [sample for sample in usage if sample["at_s"] >= begin_s + WARM_UP * (end_s - begin_s)]
    quarter = len(settled) // 4
    if quarter * 4 < LEAST_SAMPLES:
        return []
    rows = []
    for name in (*KINDS, "disk"):
        first, last = (
            statistics.median(sample.get(name, 0.0) for sample in part)
            for part in (settled[:quarter], settled[-quarter:])
        )
        share, slack = LIMITS.get(name, (None, 0.0))
        limit = None if share is None else round(first * (1 + share) + slack, 1)
        flat = limit is None or last <= limit
        rows.append(
            {"of": name, "first_mb": round(first, 1), "last_mb": round(last, 1), "limit_mb": limit, "flat": flat}
        )
    return rows


def verdict(content: dict[str, Any]) -> list[str]:
    """What fails the soak beside what the run itself has told."""
    problems = [
        f"{row['of']} grew from {row['first_mb']} to {row['last_mb']} MB, more than to {row['limit_mb']}"
        for row in content["flat"]
        if not row["flat"]
    ]
    uncalled = [fault for fault in content["runs"] if fault["fallbacks"] and not fault["doomed"]]
    final = content["final"]
    if uncalled:
        reasons = [] if final is None else final["fallback_reasons"]
        problems.append(f"{len(uncalled)} rollbacks that the fault did not call for: {reasons}")
    if final is not None and final["unnamed_state_files"]:
        problems.append(f"{final['unnamed_state_files']} state files were left that no checkpoint names")
    doomed = [fault for fault in content["runs"] if fault["doomed"]]
    if doomed:
        problems.append(f"{len(doomed)} times a host was struck that had all members of a chain")
    return problems


def tables(content: dict[str, Any]) -> list[Table]:
    """Faults by kind; memory and disk."""
    headings = ("faults", "failovers", "rollbacks", "recovery ms", "full again s", "longest s")
    faults = plain_table("Faults: medians", ("fault",), headings)
    for row in content["summary"]:
        faults.add_row(
            row["kind"],
            *(str(row[name]) for name in ("faults", "failovers", "fallbacks")),
            *(number(row[name]) for name in ("recovery_median_ms", "restored_median_s", "restored_longest_s")),
        )
    flat = plain_table("Medians of the first and the last quarter, MB", ("",), ("first", "last", "limit", "flat"))
    for row in content["flat"]:
        cells = (number(row[name]) for name in ("first_mb", "last_mb", "limit_mb"))
        flat.add_row(row["of"], *cells, "-" if row["limit_mb"] is None else "yes" if row["flat"] else "NO")
    return [faults, flat]


def picture(content: dict[str, Any], target: Path) -> bool:
    """Output per second with the faults; memory; disk. ``False``: nothing to draw."""
    output, usage = content["output"], content["usage"]
    if len(output) < 2 or not usage:
        return False
    figure, (rows, memory, disk) = plt.subplots(
        3, 1, figsize=(11, 8), dpi=DPI, sharex=True, height_ratios=(2, 1.2, 0.8)
    )
    pairs = list(itertools.pairwise(output))
    times = [after["at_s"] / 60 for _, after in pairs]
    rates = [max(0.0, (b["rows"] - a["rows"]) / max(1e-3, b["at_s"] - a["at_s"])) for a, b in pairs]
    rows.plot(times, rates, color="#7f7f7f", linewidth=0.8)
    labelled: set[str] = set()
    for fault in content["runs"]:
        kind = fault["kind"]
        label = None if kind in labelled else kind
        labelled.add(kind)
        begin = fault["at_s"] / 60
        rows.axvline(begin, color=COLOURS.get(kind, "black"), linewidth=0.8, alpha=0.8, label=label)
    usual = statistics.median(rates)
    rows.set_ylim(0, max(1.0, 3 * usual))
    rows.set_ylabel("words counted per second")
    exact = content["final"] is not None and content["final"]["exact"]
    rows.set_title(
        f"{len(content['runs'])} faults, {'output exact' if exact else 'output not checked or not exact'}; "
        f"every {content['parameters']['every']:g} s, parallelism {content['parameters']['parallelism']}",
        fontsize=10,
    )
    if labelled:
        rows.legend(fontsize=7, loc="upper right", ncols=len(labelled))
    at = [sample["at_s"] / 60 for sample in usage]
    for kind in KINDS:
        sizes = [sample.get(kind, 0.0) for sample in usage]
        if max(sizes) > 0:
            memory.plot(at, sizes, linewidth=1.0, label=kind)
    memory.set_ylabel("memory (PSS), MB")
    memory.set_ylim(bottom=0)
    memory.legend(fontsize=7, loc="upper right", ncols=len(KINDS))
    disk.plot(at, [sample["disk"] for sample in usage], color="#8c564b", linewidth=1.0)
    disk.set_ylabel("disk, MB")
    disk.set_ylim(bottom=0)
    disk.set_xlabel("minutes")
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    plt.close(figure)
    return True
