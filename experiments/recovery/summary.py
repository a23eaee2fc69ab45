"""Statistics of runs: median with its 95 % interval, 95th percentile, and rollback against the others.

The interval is a percentile bootstrap with a seed: the same runs give the same interval. Percentiles interpolate
linearly between runs; with ten runs the 95th lies between the two slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flinkplus.protocol.vocabulary.phases import DURATIONS

RESAMPLES = 10_000
CASE = ("parallelism", "recovery", "failure", "state_keys")


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is known, ``None`` when nothing is."""
    return percentile(values, 50)


def percentile(values: Iterable[float | None], percent: float) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.percentile(known, percent)), 3) if known else None


def median_interval(values: Iterable[float | None], seed: int) -> tuple[float | None, float | None]:
    """The 95 % interval of the median by bootstrap."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return None, None
    draws = np.random.default_rng(seed).integers(len(known), size=(RESAMPLES, len(known)))
    low, high = np.percentile(np.median(known[draws], axis=1), [2.5, 97.5])
    return round(float(low), 3), round(float(high), 3)


def summarize(runs: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """One row for each parallelism, recovery, failure and size of state, in the order in which they were run."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in CASE), []).append(run)
    return [{**dict(zip(CASE, case, strict=True)), **_row(group, seed)} for case, group in groups.items()]


def _row(group: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    def column(key: str) -> list[float | None]:
        return [run.get(key) for run in group]

    recovery = column("recovery_ms")
    low, high = median_interval(recovery, seed)
    return {
        "runs": len(group),
        "exact_runs": sum(bool(run["exact"]) for run in group),
        "fallbacks": sum(bool(run["fallback"]) for run in group),
        "unmeasured": sum(value is None for value in recovery),
        "median_ms": median(recovery),
        "median_low_ms": low,
        "median_high_ms": high,
        "p95_ms": percentile(recovery, 95),
        **{f"{phase}_median_ms": median(column(f"{phase}_ms")) for phase in (*DURATIONS, "registry")},
        "caught_up_median_ms": median(column("caught_up_ms")),
        **{
            f"output_gap_{which}_{name}_ms": percentile(column(f"output_gap_{which}_ms"), percent)
            for which in ("failed", "others", "before")
            for name, percent in (("median", 50), ("p95", 95))
        },
        "cores_median": median(run["usage"]["total"]["cores"] for run in group if run.get("usage")),
        "rss_mb_median": median(run["usage"]["total"]["rss_mb"] for run in group if run.get("usage")),
    }


def compare(summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The modes side by side, like the paper's table: ``reduction_percent`` of the medians, standby against rollback;
    where there were partial recoveries, ``partial_ms`` and ``partial_reduction_percent`` as well."""
    by_case: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in summary:
        case = (row["failure"], row["state_keys"], row["parallelism"])
        by_case.setdefault(case, {})[row["recovery"]] = row
    table = []
    for (failure, state_keys, parallelism), rows in by_case.items():
        medians = {recovery: rows[recovery]["median_ms"] for recovery in rows}
        rollback, standby = medians.get("rollback"), medians.get("standby")
        line = {
            "parallelism": parallelism,
            "failure": failure,
            "state_keys": state_keys,
            "rollback_ms": rollback,
            "standby_ms": standby,
            "reduction_percent": _reduction(rollback, standby),
        }
        if "partial" in medians:
            line |= {
                "partial_ms": medians["partial"],
                "partial_reduction_percent": _reduction(rollback, medians["partial"]),
            }
        table.append(line)
    return table


def _reduction(rollback_ms: float | None, other_ms: float | None) -> float | None:
    return None if not rollback_ms or other_ms is None else round(100 * (1 - other_ms / rollback_ms), 2)
