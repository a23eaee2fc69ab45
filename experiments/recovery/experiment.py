"""How fast a job recovers: ``flinkplus experiment recovery``.

Every combination of parallelism, size of state, failure, run and recovery mode, in a fixed order: one kill each
(``kill``), and what it took.

Rules: a run's text, moment and subtask depend on the seed, the parallelism, the failure and the number of the run, not
on the recovery mode nor on the size of the state, and these take turns: all of them run beside the same other load. A
run that fails is a run with an ``error``, and the next one follows.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table

from experiments.harness.arguments import choices, option, whole_numbers
from experiments.harness.console import number, plain_table
from experiments.harness.experiment import HERE, NAMESPACES, Experiment
from experiments.harness.running import Context, TextSettings, error_of
from experiments.harness.statistics import grouped, median, median_interval, percentile
from experiments.harness.workload import BALLAST_KEYS_PER_S
from experiments.recovery import pictures
from experiments.recovery.kill import (
    CHECKPOINTS_AFTER_FILL,
    FAILURES,
    HOST_FAILURES,
    SIGKILL,
    Case,
    Kill,
    KillRun,
)
from experiments.recovery.pictures import CASE
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.protocol.vocabulary.phases import DURATIONS

RECOVERIES = ("standby", "partial", "rollback")
USUAL = ("standby", "rollback")
INTERVALS = 3.5
"""Checkpoint intervals before the latest possible kill."""
AFTER_S = 5.0
FILL_TIMES = 2.5
"""The time for the ballast, in multiples of what it takes at its rate: its checkpoints delay it."""
HELD_ENTRIES = 60_000
"""Keys of each state in memory when there is ballast: all words fit, all of the ballast does not."""
LEAST_FOR_INTERVAL = 3
REDUCTIONS = {"partial": "partial_reduction_percent", "standby": "reduction_percent"}
"""Modes that are compared with rollback, and where the comparison says how much less they take."""


@dataclass(frozen=True)
class Settings(TextSettings):
    """What to run. ``state_keys``: objects of 1 KB in the keyed state of the job, beside the words. ``hosts``: workers
    of the cluster, ``None`` without one.
    """

    parallelism: tuple[int, ...] = option((1, 2, 4, 8), whole_numbers(1), metavar="N,...")
    recovery: tuple[str, ...] = option(USUAL, choices(RECOVERIES), metavar=",".join(RECOVERIES))
    failure: tuple[str, ...] = option(
        FAILURES,
        choices((*FAILURES, *HOST_FAILURES)),
        metavar=",".join((*FAILURES, *HOST_FAILURES)),
        help=f"default: {','.join(FAILURES)}; the others are of hosts of a cluster",
    )
    runs: int = option(10, positive, metavar="N", help="kills of each kind (default: 10)")
    rate: float = option(30_000.0, positive_number, metavar="WORDS_PER_S")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints")
    seed: int = option(1, int, metavar="S")
    replicas: int = option(3, positive, metavar="N", help="of each subtask (default: 3)")
    state_keys: tuple[int, ...] = option(
        (0,), whole_numbers(0), metavar="N,...", help="objects of 1 KB of further keyed state"
    )
    warm_up: bool = option(True, flag="--no-warm-up", action="store_false", help="measure from the first run on")
    hosts: int | None = None

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        alone = sorted(set(self.failure) & set(HOST_FAILURES))
        if self.hosts is None and alone:
            raise ConfigurationError(f"the failure {alone[0]} takes a cluster of hosts: --cluster namespaces")
        for recovery in self.recovery:
            options_from({}, {"recovery": recovery})
        for case in self.cases():
            options_from({}, self.options(case))

    def cases(self) -> list[Case]:
        """All runs, in their order."""
        return [
            Case(parallelism, recovery, failure, state_keys, run, self._seed(parallelism, failure, run))
            for parallelism in self.parallelism
            for failure in self.failure
            for run in range(self.runs)
            for state_keys in self.state_keys
            for recovery in self.recovery
        ]

    def _seed(self, parallelism: int, failure: str, run: int) -> int:
        kind = (*FAILURES, *HOST_FAILURES).index(failure)
        parts = (self.seed, parallelism, kind, 0, run)  # 0: was the size; published runs have it
        return int(np.random.SeedSequence(parts).generate_state(1)[0])

    def options(self, case: Case) -> dict[str, Any]:
        """The options of a run's job."""
        options: dict[str, Any] = {
            "parallelism": case.parallelism,
            "checkpoint_interval": self.interval,
            "recovery": case.recovery,
            **self.job_options(),
        }
        if case.recovery == "standby":
            options["replicas"] = self.replicas
        if case.state_keys:
            options["memtable_entries"] = HELD_ENTRIES
        return options

    def words(self, state_keys: int) -> int:
        """How long the text must be."""
        after_fill_s = CHECKPOINTS_AFTER_FILL * self.interval if state_keys else 0.0
        fill_s = FILL_TIMES * state_keys / BALLAST_KEYS_PER_S + after_fill_s
        return round(self.rate * (INTERVALS * self.interval + AFTER_S + fill_s))


def runs(context: Context[Settings]) -> Generator[dict[str, Any], None, None]:
    """One run after the other; the document keeps the output around the first exact kill of each kind."""
    cases = context.settings.cases()
    if context.settings.warm_up:
        context.begin("warming up")
        _run(context, replace(cases[0], failure=SIGKILL, state_keys=0, run=-1))
    for case in cases:
        if context.stop.is_set():
            return
        context.begin(f"parallelism {case.parallelism}, {case.failure}, {case.recovery}")
        figures, timeline = _run(context, case)
        if figures["exact"] and timeline is not None:
            keep_timeline(context.content, timeline)
        if figures["error"] is not None:
            context.say(f"a run failed: {figures['error']}")
        yield figures


def _run(context: Context[Settings], case: Case) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The figures of one run, and its output around the kill for a picture (``None`` when it was not traced)."""
    settings, place = context.settings, context.place
    control = None if place is None else place.control
    options, words = settings.options(case), settings.words(case.state_keys)
    with context.run_directory("run") as directory:
        kill = Kill.drawn(case, settings.interval, directory, control)
        run = KillRun(context, case, kill, directory, options, settings.rate, words)

        def carry_out() -> None:
            if place is not None and settings.hosts is not None:
                place.await_executors(context.spark, settings.hosts)
            run.run()

        try:
            error = error_of(carry_out)
        finally:
            if control is not None and run.struck is not None and run.struck.host is not None:
                control.order("revive", run.struck.host)  # the next run finds all hosts as they were
    known = {**asdict(case), "subtask": kill.subtask, "offset_s": round(kill.offset_s, 4)}
    return {**known, **run.figures, "error": error}, run.timeline


def keep_timeline(content: dict[str, Any], timeline: dict[str, Any]) -> None:
    """Keep the output around a kill, if it is the first of its kind; written with the next run."""
    kept = content["timelines"]
    if not any(all(one[key] == timeline[key] for key in CASE) for one in kept):
        kept.append(timeline)


def summarize(runs: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """One row for each parallelism, recovery, failure and size of state, in the order in which they were run."""
    return [{**dict(zip(CASE, case, strict=True)), **_row(group, seed)} for case, group in grouped(runs, *CASE).items()]


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
    table = []
    for (failure, state_keys, parallelism), rows in grouped(summary, "failure", "state_keys", "parallelism").items():
        medians = {row["recovery"]: row["median_ms"] for row in rows}
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


def derive(runs: list[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    summary = summarize(runs, settings.seed)
    return {"summary": summary, "comparison": compare(summary)}


# --- tables


def tables(content: dict[str, Any]) -> list[object]:
    """The comparison, where the milliseconds go, what the output looked like, and the runs that are not right."""
    phases = [*(f"{phase}_median_ms" for phase in DURATIONS), "median_ms", "p95_ms"]
    gaps = ("failed_median", "others_median", "others_p95", "before_median")
    columns = ["caught_up_median_ms", *(f"output_gap_{gap}_ms" for gap in gaps)]
    headings = ("caught up", "gap failed", "others", "others p95", "before", "exact", "fallbacks")
    return [
        _comparison(content),
        _figures("Where the time goes, ms: medians", content, (*DURATIONS, "total", "p95"), phases),
        _figures("Output, ms: medians of the longest gaps", content, headings, columns),
        *(_wrong(run) for run in content["runs"] if run["error"] or not run["exact"]),
    ]


def _wrong(run: dict[str, Any]) -> str:
    wrong = f"{run.get('wrong_words')} words differ, such as {run.get('example_of_wrong_word')!r}"
    what = f"parallelism {run['parallelism']}, {run['recovery']}, {run['failure']}, run {run['run']}"
    return f"{what}: {run['error'] or wrong}"


def _states(content: dict[str, Any]) -> tuple[str, ...]:
    return ("state keys",) if any(row["state_keys"] for row in content["summary"]) else ()


def _comparison(content: dict[str, Any]) -> Table:
    """The modes by parallelism, as in the paper; ``reduction``: against rollback."""
    states = _states(content)
    ran = any(row["recovery"] == "partial" for row in content["summary"])
    reductions = {mode: key for mode, key in REDUCTIONS.items() if ran or mode != "partial"}
    columns = [heading for mode in reductions for heading in (mode, "reduction")]
    found = grouped(content["summary"], "failure", "state_keys", "parallelism", "recovery")
    rows = []
    for case in content["comparison"]:
        key = (case["failure"], case["state_keys"], case["parallelism"])
        cells = [_median(found.get((*key, "rollback")))]
        for mode, reduction in reductions.items():
            percent = case.get(reduction)
            cells += [_median(found.get((*key, mode))), "-" if percent is None else f"{percent:.2f} %"]
        rows.append((case["failure"], str(case["parallelism"]), *(f"{case['state_keys']:,}" for _ in states), *cells))
    title = "Kill to first new output, ms: median (95 % interval)"
    headings = ("par." if ran else "parallelism", *states, "rollback", *columns)
    return plain_table(title, ("failure",), headings, rows)


def _median(found: Sequence[dict[str, Any]] | None) -> str:
    if found is None or found[0]["median_ms"] is None:
        return "-"
    row = found[0]
    if row["runs"] - row["unmeasured"] < LEAST_FOR_INTERVAL:
        return number(row["median_ms"])
    low, high = number(row["median_low_ms"], 0), number(row["median_high_ms"], 0)
    return f"{number(row['median_ms'])} ({low} - {high})"


def _figures(title: str, content: dict[str, Any], headings: Sequence[str], columns: Sequence[str]) -> Table:
    states = _states(content)
    rows = []
    for row in content["summary"]:
        cells = [number(row[column]) for column in columns]
        if "exact" in headings:
            cells += [f"{row['exact_runs']} of {row['runs']}", str(row["fallbacks"])]
        case = (row["recovery"], row["failure"], str(row["parallelism"]), *(f"{row['state_keys']:,}" for _ in states))
        rows.append((*case, *cells))
    return plain_table(title, ("recovery", "failure"), ("par.", *states, *headings), rows)


def _ordered(settings: Settings) -> str | None:
    return next((f"the failure {failure}" for failure in settings.failure if failure in HOST_FAILURES), None)


EXPERIMENT = Experiment(
    "recovery",
    Settings,
    slots=lambda settings: max(settings.parallelism),
    total=lambda settings: len(settings.cases()),
    runs=runs,
    derive=derive,
    tables=tables,
    pictures=(
        ("recovery.png", pictures.recovery_by_parallelism),
        ("state.png", pictures.recovery_by_state),
        ("timeline.png", pictures.timeline),
    ),
    more=lambda settings: {"timelines": []},
    passed=lambda settings, content: all(run["exact"] for run in content["runs"]),
    clusters=(NAMESPACES, HERE),
    ordered=_ordered,
)
