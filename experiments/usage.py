"""Processor use and memory around a failure: ``flinkplus experiment usage``.

After figure 7 of the Flink+ paper. The WordCount at a share of the throughput that the machine holds, in each recovery
mode; a kill of one subtask; CPU and memory of all processes of the job from ``BEFORE_S`` before it to ``AFTER_S``
after it, kill after kill.

Rules: a first run of each mode at unlimited rate measures the throughput, and the lowest of them counts: every mode has
the same load. Modes take turns, with the same subtask and moment. Time 0 is right before the kill. CPU is that of all
processes together, in cores; memory is resident, and pages that processes share are counted in each. On a cluster the
harness samples, which sees the processes of all hosts. A run that fails is a run with an ``error``, and the next one
follows.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.harness import console
from experiments.harness.arguments import choices, option
from experiments.harness.experiment import HERE, LOCAL, NAMESPACES, Experiment
from experiments.harness.pictures import BLACK, BLUE, FONT_SIZE, ORANGE, PURPLE, legend_above, picture
from experiments.harness.processes import ProcessSampler, Sample, UsageSampler
from experiments.harness.running import (
    ENDLESS,
    Context,
    RunError,
    TextSettings,
    error_of,
    measure,
    run_until,
    wait_until,
)
from experiments.harness.statistics import grouped, in_turn, median, median_interval, with_interval
from experiments.harness.workload import PROBE, Probe, Trigger, draw
from experiments.recovery.job_run import CHECKPOINTS_BEFORE, PATIENCE_S
from experiments.recovery.kill import Striker
from experiments.recovery.plan import EXCEPTION, FAILURES, Kind, PlannedKill
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.cli.wordcount import COUNT, TOKENIZE
from flinkplus.config import options_from
from flinkplus.runtime.coordinator.record.recovery_times import HANDOVER

RECOVERIES = ("standby", "partial", "rollback")
COLOURS = {"standby": BLUE, "partial": PURPLE, "rollback": ORANGE}
BEFORE_S, AFTER_S = 3.0, 5.0
LOOK_S = 0.3
"""How late a new process may be found, in seconds; all that it has spent counts then."""
PHASES = ("before", "during", "after")
TOTAL, SLOTS = "total", "slots"
MEASURES = {"cores": "processors in use", "rss_mb": "memory, MB"}


@dataclass(frozen=True)
class UsageSettings(TextSettings):
    """What to run. ``hosts``: workers of the cluster, ``None`` without one."""

    parallelism: int = option(8, positive, metavar="N")
    recovery: tuple[str, ...] = option(("standby", "rollback"), choices(RECOVERIES), metavar=",".join(RECOVERIES))
    failure: str = option(FAILURES[0], choices=FAILURES, help="of a slot's process, or in a subtask")
    runs: int = option(5, positive, metavar="N", help="kills in each mode (5)")
    load: float = option(0.8, positive_number, metavar="X", help="share of the measured throughput (0.8)")
    rate: float | None = option(
        None, positive_number, metavar="WORDS_PER_S", help="instead of a share of the throughput, which is not measured"
    )
    seconds: float = option(8.0, positive_number, metavar="S", help="that the throughput is measured (8)")
    period: float = option(0.1, positive_number, metavar="S", help="between two samples (0.1)")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints (1.0)")
    replicas: int = option(3, positive, metavar="N", help="of each subtask (3)")
    seed: int = option(1, int, metavar="S")
    hosts: int | None = None

    def options(self, recovery: str) -> dict[str, Any]:
        options: dict[str, Any] = {
            "parallelism": self.parallelism,
            "checkpoint_interval": self.interval,
            "recovery": recovery,
        }
        options |= self.job_options()
        return {**options, "replicas": self.replicas} if recovery == "standby" else options

    def kills(self) -> list[PlannedKill]:
        """One for each job, the same in all modes."""
        kind = Kind(self.seed, self.parallelism, self.failure, (COUNT,))
        return [kill for kills in kind.jobs(self.runs, 1, self.interval) for kill in kills]

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for recovery in self.recovery:
            options_from({}, self.options(recovery))


# --- runs


def runs(context: Context[UsageSettings]) -> Generator[dict[str, Any] | None, None, None]:
    """One kill after the other; before them, unless the rate is given, the throughput (``None`` for each such run)."""
    settings, rate = context.settings, context.settings.rate
    if rate is None:
        found = context.content["throughput"] = {}
        for recovery in settings.recovery:
            context.begin(f"throughput, {recovery}")
            with context.run_directory("throughput") as directory, _start(context, recovery, directory) as job:
                found[recovery], _ = measure(job, TOKENIZE, settings.seconds, context.stop)
            yield None
        rate = settings.load * min(found.values())
    context.content["rate"] = round(rate, 1)
    for kill in settings.kills():
        for recovery in in_turn(settings.recovery, kill.run):
            context.begin(f"kill {kill.run + 1}, {recovery}")
            figures = _run(context, recovery, kill, rate)
            if figures["error"] is not None:
                context.say(f"a run failed: {figures['error']}")
            yield figures


def _start(
    context: Context[UsageSettings],
    recovery: str,
    directory: Path,
    rate: float | None = None,
    probe: Probe | None = None,
) -> JobHandle:
    """The job of one run, over an input without end. ``rate``: words per second."""
    options = context.settings.options(recovery)
    if context.place is not None:
        options |= context.place.options(directory)
    env = StreamEnvironment(context.spark, **options)
    draw(env, str(context.text()), None, rate, probe, ENDLESS)
    return env.execute("usage")


def _run(context: Context[UsageSettings], recovery: str, kill: PlannedKill, rate: float) -> dict[str, Any]:
    """The figures of one kill, also when something fails."""
    settings = context.settings
    figures: dict[str, Any] = {"samples": [], "recovery_ms": None, "caught_up_ms": None, "words_per_s": None}
    with context.run_directory("run") as directory:
        triggers = {COUNT: Trigger(directory)} if settings.failure == EXCEPTION else {}
        probe = Probe(PROBE, triggers[COUNT]) if triggers else None

        def carry_out() -> None:
            with _start(context, recovery, directory, rate, probe) as job:
                striker = Striker(job, settings.failure, triggers, stop=context.stop)
                figures.update(_struck(context, striker, kill))

        error = error_of(carry_out)
    known = {
        "parallelism": settings.parallelism,
        "recovery": recovery,
        "failure": settings.failure,
        "run": kill.run,
        "seed": kill.seed,
        "rate": round(rate, 1),
        "subtask": kill.subtask,
        "offset_s": round(kill.offset_s, 4),
    }
    return {**known, **figures, "error": error}


def _struck(context: Context[UsageSettings], striker: Striker, kill: PlannedKill) -> dict[str, Any]:
    """Strike a job that has settled. Raises ``RunError`` and what the job has failed with."""
    settings, stop, job = context.settings, context.stop, striker.job
    deadline = time.monotonic() + PATIENCE_S
    wait_until(job, lambda: job.metrics()["checkpoints_completed"] >= CHECKPOINTS_BEFORE, deadline, stop)
    with _sampler(context, job) as sampler:
        begun_s, before = time.monotonic(), _words(job)
        _run_on(job, BEFORE_S + settings.period + kill.offset_s, context)
        words_per_s = (_words(job) - before) / (time.monotonic() - begun_s)
        struck = striker.strike(kill)
        _run_on(job, AFTER_S + settings.period, context)
    if sampler.failed is not None:
        raise RunError(f"no more samples: {sampler.failed}")
    recoveries = [recovery for recovery in job.recoveries() if recovery["failure"] != HANDOVER]
    if not recoveries:
        raise RunError("the kill led to no recovery")
    first = recoveries[0]
    return {
        "samples": aligned(sampler.samples, struck.time_s),
        "words_per_s": round(words_per_s, 1),
        **{key: first[key] for key in ("mode", "fallback", "recovery_ms", "caught_up_ms")},
    }


def _sampler(context: Context[UsageSettings], job: JobHandle) -> UsageSampler:
    period_s = context.settings.period
    if context.place is None:
        return ProcessSampler(job.slot_pids, period_s, LOOK_S)
    assert context.place.control is not None
    return UsageSampler(context.place.control.processes, period_s)


def _run_on(job: JobHandle, seconds: float, context: Context[UsageSettings]) -> None:
    """Let the job run for so many more seconds."""
    run_until(job, (job.running_s or 0.0) + seconds, context.stop)


def _words(job: JobHandle) -> int:
    return sum(job.rows_out(TOKENIZE).values())


# --- figures


def aligned(samples: Sequence[Sample], zero_s: float) -> list[dict[str, Any]]:
    """Cores and memory by kind of process, and in total, from ``BEFORE_S`` before ``zero_s`` to ``AFTER_S`` after it.

    ``at_s``: of the sample; cores are a mean over the ``span_s`` seconds before it.
    """
    found = []
    for before, sample in pairwise(samples):
        at_s, span_s = sample.at_s - zero_s, sample.at_s - before.at_s
        if at_s - span_s >= -BEFORE_S and at_s <= AFTER_S and span_s > 0:
            cores = {kind: cpu_s / span_s for kind, cpu_s in _by_kind(sample.cpu_s).items()}
            memory = _by_kind(sample.rss_mb)
            found.append(
                {
                    "at_s": round(at_s, 4),
                    "span_s": round(span_s, 4),
                    "cores": {kind: round(value, 4) for kind, value in cores.items()},
                    "rss_mb": {kind: round(value, 2) for kind, value in memory.items()},
                }
            )
    return found


def _by_kind(by_name: dict[str, float]) -> dict[str, float]:
    """Sums over all slots, and over everything."""
    sums = {TOTAL: sum(by_name.values())}
    for name, value in by_name.items():
        kind = SLOTS if name.startswith("slot") else name
        sums[kind] = sums.get(kind, 0.0) + value
    return sums


def phases(run: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Means of each measure before, during and after the recovery, and ``seconds``.

    It lasts from the kill until the job has caught up (or has put out the first new row, or to the last sample, where
    the job does not say). A sample that has a part of it belongs to it.
    """
    ended_ms = run["caught_up_ms"] or run["recovery_ms"] or AFTER_S * 1e3
    parts: dict[str, list[dict[str, Any]]] = {phase: [] for phase in PHASES}
    for sample in run["samples"]:
        over = sample["at_s"] - sample["span_s"] >= ended_ms / 1e3
        parts["before" if sample["at_s"] <= 0 else "after" if over else "during"].append(sample)
    return {phase: _means(some) for phase, some in parts.items()}


def _means(samples: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    spans = [sample["span_s"] for sample in samples]
    if not spans:
        return dict.fromkeys((*MEASURES, "seconds"))
    means = {
        measure: round(float(np.average([sample[measure][TOTAL] for sample in samples], weights=spans)), 4)
        for measure in MEASURES
    }
    return {**means, "seconds": round(sum(spans), 3)}


def summarize(runs: Iterable[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each mode: medians, with intervals, of the means over each phase."""
    rows = []
    for (recovery,), mine in grouped((run for run in runs if run["error"] is None), "recovery").items():
        found = [phases(run) for run in mine]
        row: dict[str, Any] = {"recovery": recovery, "n": len(mine)}
        for phase in PHASES:
            for name in (*MEASURES, "seconds"):
                row |= with_interval(phase, name, (one[phase][name] for one in found), seed)
        row["recovery_ms"] = median(run["recovery_ms"] for run in mine)
        row["caught_up_ms"] = median(run["caught_up_ms"] for run in mine)
        row["words_per_s"] = median(run["words_per_s"] for run in mine)
        row["fallbacks"] = sum(run["fallback"] is not None for run in mine)
        rows.append(row)
    return rows


def tables(content: dict[str, Any]) -> list[object]:
    title = f"Processors and memory around a kill at {content['rate']:,.0f} words/s: medians (95 % interval)"
    rows = [
        (
            row["recovery"],
            phase,
            str(row["n"]),
            console.number(row[f"{phase}_seconds"]),
            console.interval(row, phase, "cores"),
            console.interval(row, phase, "rss_mb", 0),
        )
        for row in content["summary"]
        for phase in PHASES
    ]
    return [console.plain_table(title, ("recovery", "phase"), ("runs", "seconds", "cores", "memory MB"), rows)]


# --- the picture


def over_time(
    runs: Sequence[dict[str, Any]], measure: str, times_s: npt.NDArray[np.float64]
) -> list[list[float | None]]:
    """For each of ``times_s`` the total of each run, ``None`` where it has no samples."""
    columns = []
    for run in runs:
        back_s = 0.5 if measure == "cores" else 0.0  # a mean over the time before the sample
        at_s = [sample["at_s"] - back_s * sample["span_s"] for sample in run["samples"]]
        values = [sample[measure][TOTAL] for sample in run["samples"]]
        columns.append(np.interp(times_s, at_s, values, left=np.nan, right=np.nan))
    return [[None if np.isnan(value) else float(value) for value in row] for row in zip(*columns, strict=True)]


def usage_over_time(content: dict[str, Any], target: Path) -> bool:
    """Cores above, memory below: the median over the runs of each mode, and its 95 % interval. ``False``: nothing to
    draw.
    """
    runs = [run for run in content["runs"] if run["error"] is None and run["samples"]]
    if not runs:
        return False
    period_s, seed = content["parameters"]["period"], content["parameters"]["seed"]
    times_s = np.arange(-BEFORE_S, AFTER_S + period_s / 2, period_s)
    with picture(target, (8, 7), nrows=2, sharex=True) as (_, fields):
        for axes, (measure, label) in zip(fields, MEASURES.items(), strict=True):
            for recovery, mine in sorted(grouped(runs, "recovery").items()):
                rows = over_time(mine, measure, times_s)
                known = [(time_s, row) for time_s, row in zip(times_s, rows, strict=True) if set(row) != {None}]
                at_s = [time_s for time_s, _ in known]
                low, high = zip(*(median_interval(row, seed) for _, row in known), strict=True)
                colour = COLOURS[recovery[0]]
                axes.plot(at_s, [median(row) for _, row in known], color=colour, linewidth=2, label=recovery[0])
                axes.fill_between(at_s, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.axvline(0, color=BLACK, linestyle="--", linewidth=1.5, label="failure")
            axes.set_ylim(0)
            axes.set_xlim(-BEFORE_S, AFTER_S)
            axes.tick_params(labelsize=FONT_SIZE)
            axes.set_ylabel(label, fontsize=FONT_SIZE)
            axes.grid(axis="y", linewidth=0.3, alpha=0.6)
        legend_above(fields[0], 4)
        fields[-1].set_xlabel("seconds since the failure (medians, 95 % intervals)", fontsize=FONT_SIZE)
    return True


EXPERIMENT = Experiment(
    "usage",
    UsageSettings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: len(settings.recovery) * (settings.runs + (settings.rate is None)),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.seed)},
    tables=tables,
    pictures=(("usage.png", usage_over_time),),
    clusters=(LOCAL, NAMESPACES, HERE),
    ordered=lambda settings: "the sampling of hosts",
)
