"""From rounds to rows, by pipeline and by kind of fault. Pure; and the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from experiments.blackbox.checker.history import KINDS
from experiments.harness.console import number, plain_table
from experiments.harness.statistics import grouped, median, percentile

SHOWN = ("rounds", "exact", "failed", "faults", "overlapping", *KINDS)


def summarize(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``summary``: a row for each pipeline, and one for all. ``by_kind``: a row for each pipeline and kind of fault,
    with what the checker found between such a fault and the next one. What it found in the last look counts for the
    last fault."""
    rows = [{"pipeline": pipeline, **_row(group)} for (pipeline,), group in sorted(grouped(rounds, "pipeline").items())]
    faults = [{**fault, "pipeline": one["pipeline"]} for one in rounds for fault in one["struck"]]
    by_kind = [
        {"pipeline": pipeline, "kind": kind, **_fault_row(group)}
        for (pipeline, kind), group in sorted(grouped(faults, "pipeline", "kind").items())
    ]
    return {"summary": [*rows, {"pipeline": "all", **_row(rounds)}], "by_kind": by_kind}


def _row(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: Counter[str] = Counter()
    for one in rounds:
        found.update(one["found"])
    faults = [fault for one in rounds for fault in one["struck"]]
    return {
        "rounds": len(rounds),
        "exact": sum(one["exact"] for one in rounds),
        "failed": sum(one["error"] is not None for one in rounds),
        "faults": len(faults),
        "overlapping": sum(fault["overlaps"] for fault in faults),
        **{kind: found[kind] for kind in KINDS},
        "rows": sum(one.get("rows", 0) for one in rounds),
        "looks": sum(one.get("looks", 0) for one in rounds),
        "took_s": round(sum(one["took_s"] for one in rounds), 1),
    }


def _fault_row(faults: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: Counter[str] = Counter()
    for fault in faults:
        found.update(fault.get("found", {}))
    times = [fault["recovered_s"] for fault in faults]
    return {
        "faults": len(faults),
        **{kind: found[kind] for kind in KINDS},
        "recovered_median_s": median(times),
        "recovered_longest_s": percentile(times, 100),
    }


def tables(content: dict[str, Any]) -> list[object]:
    """How many rounds were exact, and what was found, by pipeline and by kind of fault."""
    rounds = plain_table(
        "Rounds; what the checker found",
        ("pipeline",),
        (*SHOWN, "rows", "looks"),
        [(row["pipeline"], *(f"{row[name]:,}" for name in (*SHOWN, "rows", "looks"))) for row in content["summary"]],
    )
    kinds = plain_table(
        "Faults; recovered: until all slots and standbys are there, and new rows are visible",
        ("pipeline", "fault"),
        ("faults", *KINDS, "recovered s", "longest"),
        [
            (
                row["pipeline"],
                row["kind"],
                *(f"{row[name]:,}" for name in ("faults", *KINDS)),
                number(row["recovered_median_s"]),
                number(row["recovered_longest_s"]),
            )
            for row in content["by_kind"]
        ],
    )
    return [rounds, kinds, *(_wrong(one) for one in content["runs"] if not one["exact"])]


def _wrong(one: dict[str, Any]) -> str:
    examples = "; ".join(text for texts in one["examples"].values() for text in texts[:1])
    return f"round {one['round']}, {one['pipeline']}: {one['error'] or one['found']} {examples}"
