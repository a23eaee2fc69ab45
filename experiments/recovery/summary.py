"""From the kills of an experiment to rows: medians with intervals, by moment and by load; the modes side by side. Pure.

Rules: a kill that was not measured is counted wherever it belongs, and is in no median. A moment is where in the
checkpoint interval the kill was: its quarter, and whether a checkpoint was under way. A load is the share of the
machine's processors that was busy right before: the kills of a row in thirds by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from experiments.harness.statistics import grouped, median, median_interval, percentile
from flinkplus.protocol.vocabulary.phases import DURATIONS

Figures: TypeAlias = Mapping[str, Any]

CASE = ("parallelism", "recovery", "failure", "state_keys")
QUARTERS = ("quarter 1", "quarter 2", "quarter 3", "quarter 4")
DURING, OUTSIDE = CHECKPOINTS = ("checkpoint under way", "no checkpoint")
THIRDS = ("lowest third", "middle third", "highest third")
NOT_KNOWN = "not known"
GAPS = ("failed", "others", "before", "handback")


def summarize(runs: Sequence[dict[str, Any]], seed: int, interval: float) -> list[dict[str, Any]]:
    """One row for each parallelism, recovery, failure and size of state, in the order in which they were run."""
    groups = grouped(runs, *CASE).items()
    return [{**dict(zip(CASE, case, strict=True)), **_row(group, seed, interval)} for case, group in groups]


def _row(group: Sequence[Figures], seed: int, interval: float) -> dict[str, Any]:
    def column(key: str) -> list[float | None]:
        return [run.get(key) for run in group]

    without = [without_pause_ms(run) for run in group]
    low, high = median_interval(without, seed)
    return {
        "runs": len(group),
        "exact_runs": sum(bool(run["exact"]) for run in group),
        "fallbacks": sum(bool(run["fallback"]) for run in group),
        "not_restored": sum(run.get("restored_s") is None for run in group),
        **_times(column("recovery_ms"), seed),
        "without_pause_median_ms": median(without),
        "without_pause_low_ms": low,
        "without_pause_high_ms": high,
        **{f"{phase}_median_ms": median(column(f"{phase}_ms")) for phase in (*DURATIONS, "registry")},
        "caught_up_median_ms": median(column("caught_up_ms")),
        **{
            f"output_gap_{which}_{name}_ms": percentile(column(f"output_gap_{which}_ms"), percent)
            for which in GAPS
            for name, percent in (("median", 50), ("p95", 95))
        },
        "cores_median": median(run["usage"]["total"]["cores"] for run in group if run.get("usage")),
        "rss_mb_median": median(run["usage"]["total"]["rss_mb"] for run in group if run.get("usage")),
        "by_moment": by_moment(group, seed, interval),
        "by_load": by_load(group, seed),
        **_of_drivers(group),
    }


def _of_drivers(group: Sequence[Figures]) -> dict[str, Any]:
    """``restart_phases``, where drivers were killed: the median of each phase in milliseconds."""
    known = [run["restart_phases"] for run in group if run.get("restart_phases")]
    return {"restart_phases": {name: median(one[name] for one in known) for name in known[0]}} if known else {}


def _times(values: Sequence[float | None], seed: int) -> dict[str, Any]:
    low, high = median_interval(values, seed)
    return {
        "unmeasured": sum(value is None for value in values),
        "median_ms": median(values),
        "median_low_ms": low,
        "median_high_ms": high,
        "p95_ms": percentile(values, 95),
    }


def without_pause_ms(run: Figures) -> float | None:
    """The recovery time without what a rollback waited for the return of a host that hung or was cut off."""
    recovery_ms: float | None = run["recovery_ms"]
    return None if recovery_ms is None else round(recovery_ms - (run.get("waited_for_host_ms") or 0.0), 3)


def _part(runs: Sequence[Figures], seed: int) -> dict[str, Any]:
    return {"runs": len(runs), **_times([run["recovery_ms"] for run in runs], seed)}


def by_moment(group: Sequence[Figures], seed: int, interval: float) -> list[dict[str, Any]]:
    """The kills in each quarter of the interval since the last trigger of a checkpoint, and those during one or not.

    A kill that came later than an interval is in the last quarter.
    """

    def quarter(run: Figures) -> str:
        since_s = run.get("since_trigger_s")
        return NOT_KNOWN if since_s is None else QUARTERS[min(3, int(4 * since_s / interval))]

    def checkpoint(run: Figures) -> str:
        under_way = run.get("during_checkpoint")
        return NOT_KNOWN if under_way is None else DURING if under_way else OUTSIDE

    quarters, during = _by(group, quarter, QUARTERS, seed), _by(group, checkpoint, CHECKPOINTS, seed)
    return [*quarters, *(part for part in during if part["moment"] != NOT_KNOWN)]


def _by(
    group: Sequence[Figures], key: Callable[[Figures], str], names: Iterable[str], seed: int
) -> list[dict[str, Any]]:
    parts: dict[str, list[Figures]] = {name: [] for name in names}
    for run in group:
        parts.setdefault(key(run), []).append(run)
    return [{"moment": name, **_part(runs, seed)} for name, runs in parts.items()]


def by_load(group: Sequence[Figures], seed: int) -> list[dict[str, Any]]:
    """The kills in thirds by the share of busy processors; ``busy_from``, ``busy_to``: the lowest and the highest."""
    known = sorted((run for run in group if run.get("busy_share") is not None), key=lambda run: run["busy_share"])
    edges = [round(third * len(known) / len(THIRDS)) for third in range(len(THIRDS) + 1)]
    parts = {name: known[begin:end] for name, begin, end in zip(THIRDS, edges[:-1], edges[1:], strict=True)}
    if others := [run for run in group if run.get("busy_share") is None]:
        parts[NOT_KNOWN] = others
    return [
        {
            "load": name,
            "busy_from": min((run["busy_share"] for run in runs), default=None) if name in THIRDS else None,
            "busy_to": max((run["busy_share"] for run in runs), default=None) if name in THIRDS else None,
            **_part(runs, seed),
        }
        for name, runs in parts.items()
    ]


def compare(summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The modes side by side, like the paper's table: ``reduction_percent`` of the medians, standby against rollback;
    where there were partial recoveries, ``partial_ms`` and ``partial_reduction_percent`` as well.

    Medians are without what a rollback waited for the return of a host.
    """
    table = []
    for (failure, state_keys, parallelism), rows in grouped(summary, "failure", "state_keys", "parallelism").items():
        medians = {row["recovery"]: row["without_pause_median_ms"] for row in rows}
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
            partial = medians["partial"]
            line |= {"partial_ms": partial, "partial_reduction_percent": _reduction(rollback, partial)}
        table.append(line)
    return table


def _reduction(rollback_ms: float | None, other_ms: float | None) -> float | None:
    return None if not rollback_ms or other_ms is None else round(100 * (1 - other_ms / rollback_ms), 2)
