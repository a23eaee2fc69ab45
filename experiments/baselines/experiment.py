"""FlinkPlus beside Apache Flink and Spark: ``flinkplus experiment baselines``.

The same jobs (``jobs``) on every engine, on this machine, in turn: throughput at unlimited rate, latency and processor
time at a steady rate, recovery from failures.

Rules: within a run number the engines follow each other on the same job, measure and parallelism, in an order that
turns round with every run number: all of them run beside the same other load. A run has processes of its own. A run
that fails is a run with an ``error``, and the next one follows. Figures come from what each engine has noted of its
output, by the same code for all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from experiments.baselines import flink, spark, summary
from experiments.baselines.case import (
    ENGINES,
    FAILURES,
    FLINKPLUS,
    MEASURES,
    RECOVERY,
    THROUGHPUT,
    Case,
    Failure,
    RunFailed,
    job_options,
)
from experiments.baselines.engines import Engine, engines, run_directory
from experiments.baselines.failures import drawn, failures_of
from experiments.baselines.java_tools import FLINK_PACKAGE, default_home, java_version
from experiments.baselines.jobs import JOBS
from experiments.baselines.recovery import BEFORE_MS, CALM_MS, LEAST_SLACK_MS, SLACK
from experiments.baselines.text import Text
from experiments.harness.arguments import choices, option, whole_numbers
from experiments.harness.experiment import Experiment
from experiments.harness.running import VOCABULARY, Context, TextSettings
from experiments.harness.statistics import in_turn
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

DEFINITIONS = (
    "rows/s: rows that came out (of window: that went into the windows) in the seconds measured, after the job has "
    "settled; every running count and sum is a row that comes out, none is hidden in a batch",
    "CPU s/M: processor seconds of all processes of the engine (driver, workers, JVMs) per million of these rows; "
    "memory: their resident memory, pages that they share counted in each",
    "latency: from the moment when a row was due, by a schedule that never waits, to its output; so rows that "
    "wait for an engine that is behind count with all of their wait. Of window: from the end of the window",
    "recovery: from the failure until every partition that it hit has put out a row that was due later than all it had "
    "put out; first output: the same of any row, which may be one that was put out before",
    f"caught up: from the failure until, for {CALM_MS:g} ms, no row of any partition was later than {SLACK:g} times "
    f"the 99th percentile of the {BEFORE_MS / 1e3:g} s before it, and at least {LEAST_SLACK_MS:g} ms more than that",
    "output is noted when the last operator puts it out, before a checkpoint commits it; this is so for every engine",
    "state in: where an engine reads and writes keyed state while rows come: memory, RocksDB or both",
    "reads/row (of flinkplus): keys that were looked up in RocksDB, as memory did not have them, by rows that came to "
    "an operator with state; rows with the same key that come together are one look-up",
)
"""What holds for all engines."""
DIFFERENCES = (
    "flinkplus: with the recovery that the command names; raises its "
    "priority during a failover where the system lets it. Throughput and latency run as threads of one Java process "
    "with Python workers; recoveries on executors of a standalone cluster on this machine, one core each",
    "flinkplus: worker is SIGKILL of a Python worker, taskmanager SIGKILL of a Spark executor with its Python workers. "
    "Only the partitions on it are hit. Flink and Spark have no such worker: compare with their taskmanager",
    f"flink-memory, flink-rocksdb: throughput and latency in one Java process with a heap of {flink.LOCAL_HEAP_MB} MB, "
    f"{flink.MANAGED_MB} MB managed and {flink.NETWORK_MB} MB network memory; objects are reused, and buffers flushed "
    f"after {flink.BUFFER_TIMEOUT_MS} ms (FlinkPlus reads a paced source as often). Recoveries on a JobManager and "
    "TaskManagers of one slot each, one more than needed, so that no start of a process counts; no delay before a "
    "restart, heartbeats every 500 ms. taskmanager is SIGKILL of a TaskManager. A failure restarts the whole job, so "
    "every partition is hit",
    "spark: the same rows in micro-batches, one after the other; at unlimited rate of "
    f"{spark.BATCH_ROWS:,} rows for each subtask, so figures of a few seconds are rough by a batch. Running counts and "
    "sums by flatMapGroupsWithState (its update mode would hide all but the last of a batch, and allows no second "
    "aggregation), state in RocksDB; each batch is a checkpoint, --interval does not matter. A heap of "
    f"{spark.HEAP_MB} MB; recoveries on executors of {spark.EXECUTOR_MB} MB, one more than needed, with one retry of a "
    "fetch after a second. There is no local failover: a failed task, or what a lost executor had, is repeated within "
    "the micro-batch, which waits for it, so every partition is hit",
    "flink-rocksdb, spark: state is read from RocksDB and written to it at every row",
)
"""What still differs."""
STATE_OF_FLINKPLUS = (
    "flinkplus: state in memory up to {entries:,} keys of each state of a subtask (memtable_entries); it goes to "
    "RocksDB with each checkpoint, and is read from there for keys that memory does not have"
)


@dataclass(frozen=True)
class BaselinesSettings(TextSettings):
    """What to run."""

    engines: tuple[str, ...] = option(ENGINES, choices(ENGINES), metavar=",".join(ENGINES))
    jobs: tuple[str, ...] = option(JOBS, choices(JOBS), metavar=",".join(JOBS))
    parallelism: tuple[int, ...] = option((1, 2, 4, 8, 16), whole_numbers(1), metavar="N,...")
    measures: tuple[str, ...] = option(MEASURES, choices(MEASURES), metavar=",".join(MEASURES))
    runs: int = option(10, positive, metavar="N", help="of everything (default: 10)")
    seconds: float = option(10.0, positive_number, metavar="S", help="measured in each run (default: 10)")
    settle: float = option(10.0, positive_number, metavar="S", help="before that, for every engine (default: 10)")
    rate: float = option(
        30_000.0, positive_number, metavar="ROWS_PER_S", help="of steady and recovery (default: 30,000)"
    )
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints (default: 1)")
    recovery: str = option(
        "standby", choices=("standby", "partial", "rollback"), help="of FlinkPlus (default: standby)"
    )
    failures: tuple[str, ...] = option(FAILURES, choices(FAILURES), metavar=",".join(FAILURES), help="of recovery")
    repeats: int = option(1, positive, metavar="N", help="of each failure in one job (default: 1)")
    vocabulary: int = option(
        VOCABULARY, positive, metavar="N", help=f"different words of wordcount's text (default: {VOCABULARY:,})"
    )
    uniform: bool = option(False, action="store_true", help="its words are equally likely (default: by Zipf's law)")
    memtable_entries: int | None = option(
        None, positive, metavar="N", help="keys of each state of a subtask that FlinkPlus keeps in memory"
    )
    more_options: Sequence[str] | None = option(
        None, flag="--option", action="append", metavar="NAME=VALUE", help="another one of FlinkPlus's jobs; repeatable"
    )
    seed: int = option(1, int, metavar="S", help="of the text, and of failures (default: 1)")
    flink_home: str | None = option(
        None, metavar="DIR", help=f"of Flink's jars (default: fetched once, into {default_home()})"
    )

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for parallelism in self.parallelism:
            options_from({}, self.options(parallelism))
        if not self.cases():
            raise ConfigurationError("there is nothing to run")

    def options(self, parallelism: int) -> dict[str, Any]:
        """Of FlinkPlus's jobs. Raises ``ConfigurationError``."""
        own: dict[str, Any] = {
            "parallelism": parallelism,
            "recovery": self.recovery,
            "checkpoint_interval": self.interval,
            **self.job_options(),
        }
        if self.memtable_entries is not None:
            own["memtable_entries"] = self.memtable_entries
        return job_options(self.more_options or (), own)

    def cases(self) -> list[Case]:
        """All runs, in their order; without recoveries from failures that an engine has no processes for."""
        cases = [
            self._case(engine, job, parallelism, measure, run)
            for run in range(self.runs)
            for job in self.jobs
            for measure in self.measures
            for parallelism in self.parallelism
            for engine in in_turn(self.engines, run)
        ]
        return [case for case in cases if case.failures or case.measure != RECOVERY]

    def _failures(self, engine: str, job: str, parallelism: int, run: int) -> tuple[Failure, ...]:
        """Of the job with this number of run: every kind in turn, ``repeats`` times."""
        kinds = failures_of(engine, self.failures)
        seed = (self.seed, JOBS.index(job))
        every = {kind: drawn(kind, self.runs * self.repeats, parallelism, seed) for kind in kinds}
        return tuple(every[kind][run * self.repeats + at] for at in range(self.repeats) for kind in kinds)

    def _case(self, engine: str, job: str, parallelism: int, measure: str, run: int) -> Case:
        return Case(
            engine=engine,
            job=job,
            parallelism=parallelism,
            measure=measure,
            run=run,
            seconds=self.seconds,
            settle=self.settle,
            interval=self.interval,
            rate=self.rate,
            failures=self._failures(engine, job, parallelism, run) if measure == RECOVERY else (),
            options=tuple(self.options(parallelism).items()) if engine == FLINKPLUS else (),
        )


def runs(context: Context[BaselinesSettings]) -> Generator[dict[str, Any] | None, None, None]:
    """One run after the other; a recovery gives one for each of its failures."""
    settings = context.settings
    home = default_home() if settings.flink_home is None else Path(settings.flink_home)
    known = engines(settings.engines, home)
    for name, engine in known.items():
        context.begin(f"preparing {name}")
        engine.prepare(context.say)
    shape = Text(settings.vocabulary, settings.uniform)
    text = context.text(shape.words, shape.vocabulary, shape.uniform)
    for case in settings.cases():
        if context.stop.is_set():
            return
        context.begin(f"run {case.run + 1}, {case.job}, {case.measure}, parallelism {case.parallelism}, {case.engine}")
        found = list(_run(context, known[case.engine], case, text))
        yield from found
        yield from [None] * (len(case.failures) - len(found))


def _run(
    context: Context[BaselinesSettings], engine: Engine, case: Case, text: Path
) -> Generator[dict[str, Any], None, None]:
    names = ("engine", "job", "parallelism", "measure", "run")
    known: dict[str, Any] = {name: getattr(case, name) for name in names}
    known |= {"rate": case.paced, "failure": None, "error": None}
    try:
        with run_directory(context.directory) as directory:
            for figures in engine.run(case, directory, text, context.stop):
                yield {**known, **figures}
    except RunFailed as problem:
        failures: list[str | None] = [failure.kind for failure in case.failures]
        if not context.stop.is_set():
            context.say(f"a run of {case.engine} failed: {problem}")
        for failure in failures or [None]:
            yield {**known, "failure": failure, "error": str(problem)}


def provenance(settings: BaselinesSettings) -> dict[str, Any]:
    """What the document says beside commit, versions and machine."""
    case = next((case for case in settings.cases() if case.measure == THROUGHPUT), settings.cases()[0])
    flinkplus, text = options_from({}, settings.options(case.parallelism)), Text(settings.vocabulary, settings.uniform)
    return {
        "usable_cores": len(psutil.Process().cpu_affinity() or ()),
        "java": java_version(),
        "flink": {
            "package": FLINK_PACKAGE,
            "job": flink.settings_of(case, Path("/DIRECTORY")),
            "one_process": flink.process_settings(),
            "cluster": flink.cluster_settings(),
            "heap_mb": {
                "one_process": flink.LOCAL_HEAP_MB,
                "jobmanager": flink.JOBMANAGER_HEAP_MB,
                "taskmanager": flink.TASKMANAGER_MB["heap"],
            },
        },
        "spark": spark.settings_of(case, Path("/CLASSES"), Path("/DIRECTORY")),
        "flinkplus": asdict(flinkplus),
        "text": {**asdict(text), "words": text.words},
        "definitions": list(DEFINITIONS),
        "differences": [STATE_OF_FLINKPLUS.format(entries=flinkplus.memtable_entries), *DIFFERENCES],
    }


EXPERIMENT = Experiment(
    "baselines",
    BaselinesSettings,
    slots=lambda settings: max(settings.parallelism),
    total=lambda settings: sum(max(1, len(case.failures)) for case in settings.cases()),
    runs=runs,
    derive=lambda runs, settings: {"summary": summary.summarize(runs, settings.seed)},
    tables=summary.tables,
    pictures=(
        ("throughput.png", summary.throughput_by_parallelism),
        ("latency.png", summary.latency_by_parallelism),
        ("recovery.png", summary.recovery_by_parallelism),
    ),
    more=provenance,
    in_session=False,
    files="raw data and pictures",
)
