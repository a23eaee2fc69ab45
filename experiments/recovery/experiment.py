"""How fast a job recovers: ``flinkplus experiment recovery``.

Every combination of parallelism, size of state, failure and recovery mode, in a fixed order: as many kills each as were
asked for, some of them one after the other in one job (``plan``, ``job_run``), and what each took.

Rules: a job's text, and the moments and subtasks of its kills, are the same in every recovery mode and for every size
of the state, and these take turns, job by job: all of them run beside the same other load. When a job fails, its kills
are kills with an ``error``, and the next job follows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
from experiments.harness.arguments import choices, option, whole_numbers
from experiments.harness.experiment import HERE, NAMESPACES, Experiment
from experiments.harness.load import busy_processes
from experiments.harness.running import Context, TextSettings, error_of
from experiments.harness.workload import BALLAST_KEYS_PER_S
from experiments.recovery import pictures
from experiments.recovery.driver_run import INPUT_S, DriverRun
from experiments.recovery.job_run import CALM_S, CHECKPOINTS_AFTER_FILL, CHECKPOINTS_BEFORE, INTERVALS_BETWEEN, JobRun
from experiments.recovery.jobs import STAGES, WORDCOUNT, struck_job
from experiments.recovery.kill import REVIVE
from experiments.recovery.plan import DRIVER, EXCEPTION, FAILURES, HOST_FAILURES, SIGKILL, Case, Kind
from experiments.recovery.summary import CASE, compare, summarize
from experiments.recovery.tables import tables
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.cli.supervise.prepared import PREPARED, SPARK
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

RECOVERIES = ("standby", "partial", "rollback")
USUAL = ("standby", "rollback")
RESTORE_S = 4.0
"""Input of each kill for the job to be as before: caught up, handed back, with all standbys."""
FILL_TIMES = 2.5
"""The time for the ballast, in multiples of what it takes at its rate: its checkpoints delay it."""
HELD_ENTRIES = 60_000
"""Keys of each state in memory when there is ballast: all words fit, all of the ballast does not."""
MAX_RESTARTS = 1_000_000
OWN, ENSEMBLE = "own", "ensemble"


@dataclass(frozen=True)
class Settings(TextSettings):
    """What to run. ``state_keys``: objects of 1 KB in the keyed state of the job, beside its own. ``hosts``: workers of
    the cluster, ``None`` without one.
    """

    parallelism: tuple[int, ...] = option((1, 2, 4, 8), whole_numbers(1), metavar="N,...")
    recovery: tuple[str, ...] = option(USUAL, choices(RECOVERIES), metavar=",".join(RECOVERIES))
    failure: tuple[str, ...] = option(
        FAILURES,
        choices((*FAILURES, *HOST_FAILURES, DRIVER)),
        metavar=",".join((*FAILURES, *HOST_FAILURES, DRIVER)),
        help=f"default: {','.join(FAILURES)}; {DRIVER}: of the driver's process, under a supervisor; the others are "
        "of hosts of a cluster",
    )
    job: str = option(WORDCOUNT, choices=tuple(STAGES), help=f"(default: {WORDCOUNT})")
    runs: int = option(10, positive, metavar="N", help="kills of each kind (default: 10)")
    kills: int = option(5, positive, metavar="N", help="of a job, one after the other; 1 of hosts (default: 5)")
    rate: float = option(30_000.0, positive_number, metavar="ROWS_PER_S")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints")
    seed: int = option(1, int, metavar="S")
    replicas: int = option(3, positive, metavar="N", help="of each subtask (default: 3)")
    state_keys: tuple[int, ...] = option(
        (0,), whole_numbers(0), metavar="N,...", help="objects of 1 KB of further keyed state"
    )
    beside: int = option(0, int, metavar="N", help="busy processes beside the jobs (default: 0)")
    warm_up: bool = option(True, flag="--no-warm-up", action="store_false", help="measure from the first job on")
    prepare: str = option(SPARK, choices=PREPARED, help="of the next driver, before the kill (default: spark)")
    zookeeper: str = option(
        OWN,
        choices=(OWN, ENSEMBLE),
        help=f"of jobs whose driver is killed: their own server, which dies with it, or an {ENSEMBLE} of one server, "
        f"which does not (default: {OWN})",
    )
    hosts: int | None = None

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        alone = sorted(set(self.failure) & set(HOST_FAILURES))
        if self.hosts is None and alone:
            raise ConfigurationError(f"the failure {alone[0]} takes a cluster of hosts: --cluster namespaces")
        if self.hosts is not None and DRIVER in self.failure:
            raise ConfigurationError(f"the failure {DRIVER} is of a driver on this machine, without --cluster")
        if self.zookeeper == ENSEMBLE and set(self.failure) != {DRIVER}:
            raise ConfigurationError(f"--zookeeper {ENSEMBLE} is for the failure {DRIVER} alone")
        if self.beside < 0:
            raise ConfigurationError(f"--beside is {self.beside}; give a number of processes")
        for recovery in self.recovery:
            options_from({}, {"recovery": recovery})
        for case in self.cases():
            options_from({}, self.options(case))

    def cases(self) -> list[Case]:
        """All jobs, in their order."""
        return [
            Case(parallelism, recovery, failure, state_keys, job, kills)
            for parallelism in self.parallelism
            for failure in self.failure
            for job, kills in enumerate(
                self._kind(parallelism, failure).jobs(self.runs, self._per_job(failure), self.interval)
            )
            for state_keys in self.state_keys
            for recovery in self.recovery
        ]

    def _kind(self, parallelism: int, failure: str) -> Kind:
        return Kind(self.seed, parallelism, failure, STAGES[self.job])

    def _per_job(self, failure: str) -> int:
        return 1 if failure in (*HOST_FAILURES, DRIVER) else self.kills

    def options(self, case: Case) -> dict[str, Any]:
        """The options of a job."""
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
        if case.failure == EXCEPTION:
            options["max_restarts"] = MAX_RESTARTS  # more exceptions than a job should have
        return options

    @property
    def span_s(self) -> float:
        """The seconds of input that each kill of a job has."""
        return 2 * self.interval + max(INTERVALS_BETWEEN * self.interval, RESTORE_S)

    def rows(self, case: Case) -> int:
        """How long the input of a job must be."""
        if case.failure == DRIVER:
            return round(self.rate * (INPUT_S + 3 * self.interval))
        after_fill_s = CHECKPOINTS_AFTER_FILL * self.interval if case.state_keys else 0.0
        fill_s = FILL_TIMES * case.state_keys / BALLAST_KEYS_PER_S + after_fill_s
        before_s = (CHECKPOINTS_BEFORE + 0.5) * self.interval + CALM_S
        return round(self.rate * (before_s + fill_s + len(case.kills) * self.span_s))


def runs(context: Context[Settings]) -> Generator[dict[str, Any], None, None]:
    """One kill after the other; the document keeps the output around the first exact kill of each kind."""
    cases = context.settings.cases()
    with busy_processes(context.settings.beside) as others:
        if context.settings.warm_up:
            context.begin("warming up")
            _run(context, replace(cases[0], failure=SIGKILL, state_keys=0, kills=cases[0].kills[:1]), others)
        for case in cases:
            if context.stop.is_set():
                return
            context.begin(f"parallelism {case.parallelism}, {case.failure}, {case.recovery}")
            yield from _kills(context, case, others)


def _kills(context: Context[Settings], case: Case, others: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The figures of each kill of one job."""
    run, error = _run(context, case, others)
    if run.timeline is not None and error is None and run.kills[0]["exact"]:
        keep_timeline(context.content, run.timeline)
    if error is not None:
        context.say(f"a job failed: {error}")
    for figures in run.kills:
        yield {**figures, "error": error or figures["error"]}


def _run(context: Context[Settings], case: Case, others: tuple[int, ...]) -> tuple[JobRun | DriverRun, str | None]:
    """One job, and what ended it, in words (``None``: it came to its end)."""
    settings, place = context.settings, context.place
    with context.run_directory("run") as directory:
        job = struck_job(settings.job, context, directory / "out", settings.rows(case), settings.rate)
        if case.failure == DRIVER:
            with _ensemble(settings.zookeeper) as ensemble:
                options = settings.options(case) | ensemble
                supervised = DriverRun(context, case, job, directory, options, settings.prepare)
                return supervised, error_of(supervised.run)
        run = JobRun(context, case, job, directory, settings.options(case), settings.span_s, others)

        def carry_out() -> None:
            if place is not None and settings.hosts is not None:
                place.await_executors(context.spark, settings.hosts)
            run.run()

        try:
            error = error_of(carry_out)
        finally:
            for stroke in run.strokes:
                if place is not None and place.control is not None and stroke.struck.host is not None:
                    place.control.order(REVIVE, stroke.struck.host)  # the next job finds all hosts as they were
    return run, error


@contextmanager
def _ensemble(zookeeper: str) -> Iterator[dict[str, Any]]:
    """The options of a job that uses it."""
    if zookeeper == OWN:
        yield {}
        return
    with EmbeddedZooKeeper() as server:
        yield {"zookeeper": server.hosts}


def keep_timeline(content: dict[str, Any], timeline: dict[str, Any]) -> None:
    """Keep the output around a kill, if it is the first of its kind; written with the next run."""
    kept = content["timelines"]
    if not any(all(one[key] == timeline[key] for key in CASE) for one in kept):
        kept.append(timeline)


def derive(runs: list[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    summary = summarize(runs, settings.seed, settings.interval)
    return {"summary": summary, "comparison": compare(summary)}


def _ordered(settings: Settings) -> str | None:
    return next((f"the failure {failure}" for failure in settings.failure if failure in HOST_FAILURES), None)


EXPERIMENT = Experiment(
    "recovery",
    Settings,
    slots=lambda settings: max(settings.parallelism),
    total=lambda settings: sum(len(case.kills) for case in settings.cases()),
    runs=runs,
    derive=derive,
    tables=tables,
    pictures=(
        ("recovery.png", pictures.recovery_by_parallelism),
        ("state.png", pictures.recovery_by_state),
        ("timeline.png", pictures.timeline),
    ),
    more=lambda settings: {"timelines": []},
    passed=lambda settings, content: all(run["exact"] and run["error"] is None for run in content["runs"]),
    clusters=(NAMESPACES, HERE),
    ordered=_ordered,
)
