"""Whether the output of a job is exact to the last row after any failure: ``flinkplus experiment exactness``.

One job after the other. When as much of its input has been read as the seed says, its failures come, at once or one
after the other (``strikes``); then the rest of the input, the end, and the check (``check``).

Rules: a run that fails is a run with an ``error``, and the next one follows. The exit code is 0 when every run was
exact. Where all parts of the protocol are left out that protect against one kind of damage (``Settings.does_damage``),
it is 0 when the check found damage in some run, since this is what is to be shown.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
from experiments.exactness import pipeline
from experiments.exactness.check import check
from experiments.exactness.rescales import SHARE, met
from experiments.exactness.strikes import APART_S, WORDS, Case, drawn
from experiments.exactness.striking import Striking
from experiments.harness.arguments import choices, option
from experiments.harness.console import number, plain_table
from experiments.harness.experiment import Experiment
from experiments.harness.running import Context, JobSettings, error_of, wait_until
from experiments.harness.statistics import median, percentile
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.coordinator.record.recovery_times import ROLLBACK
from flinkplus.runtime.faults.points import CURSOR, DETERMINANTS, DIGESTS, FILTER, PARTS, SUPPRESSION, WITHOUT
from flinkplus.runtime.job.homes import local_master

PATIENCE_S = 40.0
"""For a job, beyond the time that its input takes."""
CHECKPOINT_TIMEOUT_S = 3.0
"""A job that lacks a part may lose a barrier; then it continues when the checkpoint is aborted."""
PROTECTIONS = ({DETERMINANTS, DIGESTS}, {SUPPRESSION, FILTER, CURSOR})
"""Each of these parts is enough against one kind of damage: histories that are mixed; messages that are taken twice."""
RECORDED = ("mode", "failure", "subtasks", "reason", "recovery_ms", "fallback")
RESCALED = ("begin_s", "checkpoint", "fence_ms", "promote_ms", "restore_ms", "recovery_ms", "fallback")
NOTED = ("running_s", "slot_restarts", "failovers", "handovers", "fallbacks", "fallback_reasons", "message_ids")
RECORD, OUTPUT = "machines", "out"
SHOWN = ("runs", "exact", "local", "rollback", "in_rescale", "wrong", "failed", "failovers", "rescaled")


@dataclass(frozen=True)
class Settings(JobSettings):
    """What to run.

    ``without``: parts of the protocol that the jobs lack (``flinkplus.runtime.faults.points``). ``replicas``: ``None``
    for as many as there are slots. ``more_s``: seconds of input behind all else: a job that lacks determinants makes
    fewer messages than it did, and its consumers should not take the end of its input for old messages.
    """

    runs: int = option(200, positive, metavar="N", help="jobs (default: 200)")
    first: int = option(0, int, metavar="N", help="number of the first run (default: 0)")
    seed: int = option(1, int, metavar="S")
    parallelism: int = option(4, positive, metavar="N", help="slots (default: 4)")
    replicas: int | None = option(
        None, positive, metavar="N", help="of each subtask (default: as many as slots, so any may die)"
    )
    recovery: str = option("standby", choices=["standby", "partial"], help="of the jobs")
    interval: float = option(0.3, positive_number, metavar="S", help="between checkpoints")
    apart: float = option(APART_S, positive_number, metavar="S", help=f"between failures (default: {APART_S})")
    without: tuple[str, ...] = option((), choices(PARTS), metavar="PART,...", help=f"jobs that lack {', '.join(PARTS)}")
    rescales: bool = option(False, action="store_true", help="rescale the jobs of all runs (default: of one in four)")
    more_s: float = 0.0

    def __post_init__(self) -> None:
        if self.replicas is None:
            object.__setattr__(self, "replicas", self.parallelism)

    @property
    def does_damage(self) -> bool:
        """Whether damage is to be expected: no part is left that protects against one kind of it."""
        return any(parts.issubset(self.without) for parts in PROTECTIONS)

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        options_from({}, self.options())
        if self.rescales and self.parallelism < 2:
            raise ConfigurationError("a job that is started with one slot cannot be rescaled: take 2 at least")

    def options(self) -> dict[str, Any]:
        """The options of a run's job."""
        return {
            "parallelism": self.parallelism,
            "replicas": self.replicas,
            "checkpoint_interval": self.interval,
            "checkpoint_timeout": CHECKPOINT_TIMEOUT_S,
            "recovery": self.recovery,
            **self.job_options(),
            "max_restarts": 100,
            "faults": tuple(WITHOUT + part for part in self.without),
        }

    def cases(self) -> list[Case]:
        """All runs, in their order."""
        numbers = range(self.first, self.first + self.runs)
        share = 1.0 if self.rescales else SHARE
        return [drawn(run, self.seed, self.parallelism, self.apart, self.more_s, share) for run in numbers]


def runs(context: Context[Settings]) -> Generator[dict[str, Any], None, None]:
    """The runs that the document does not have yet."""
    known = {run["run"] for run in context.content["runs"]}
    with _one_zookeeper(str(context.spark.sparkContext.master)) as zookeeper:
        yield from outcomes(context, [case for case in context.settings.cases() if case.run not in known], zookeeper)


@contextlib.contextmanager
def _one_zookeeper(master: str) -> Iterator[str | None]:
    """One server for all jobs, where all of them are on this machine; elsewhere each has its own."""
    if local_master(master) is None:
        yield None
        return
    with EmbeddedZooKeeper() as server:
        yield server.hosts


def outcomes(
    context: Context[Settings], cases: Sequence[Case], zookeeper: str | None, patience_s: float = PATIENCE_S
) -> Generator[dict[str, Any], None, None]:
    """The figures of one run after the other. ``zookeeper``: an ensemble that all jobs use (``None``: one each).

    The output of a run that is not exact or not local, and the record of the coordinator's machines, are kept in the
    directory of ``--out``.
    """
    for case in cases:
        if context.stop.is_set():
            return
        planned = [f"{strike.kind} {strike.subtask}" for strike in case.strikes]
        planned += [f"rescale to {rescale.parallelism}" for rescale in case.rescales]
        context.begin(f"run {case.run}: {', '.join(planned)}")
        began = time.monotonic()
        with context.run_directory(f"run-{case.run}") as directory:
            run = _Run(context, case, directory, zookeeper, patience_s)
            error = error_of(run.run)
            figures = {**asdict(case), **run.figures, "error": error, "took_s": round(time.monotonic() - began, 2)}
            right = figures["exact"] and not (_rolled_back(figures) and not _in_rescale(figures))
            if context.out is not None and not right and not context.stop.is_set():
                shutil.copytree(directory, context.out / directory.name, dirs_exist_ok=True)
        if not figures["exact"] and not context.settings.does_damage:
            context.say(f"run {case.run} is not exact: {error or figures['examples']}")
        yield figures


class _Run:
    """One run; ``figures`` holds what is known so far, also when it fails."""

    def __init__(
        self, context: Context[Settings], case: Case, directory: Path, zookeeper: str | None, patience_s: float
    ) -> None:
        self._context, self._case, self._directory = context, case, directory
        self._zookeeper, self._patience_s = zookeeper, patience_s
        self._raises = pipeline.triggers(directory)
        self.figures: dict[str, Any] = {"exact": False, "damage": {}, "examples": {}}
        self.figures |= {"failovers": 0, "fallbacks": 0, "recoveries": [], "struck": [], "requests": [], "rescaled": []}

    def run(self) -> None:
        """Raises ``RunError``, or what the job raises."""
        case, settings = self._case, self._context.settings
        words = pipeline.Input(case.seed, case.vocabulary)
        output = self._directory / OUTPUT
        for trigger in self._raises.values():
            trigger.directory.mkdir()
        env = StreamEnvironment(
            self._context.spark,
            zookeeper=self._zookeeper,
            record_machines=str(self._directory / RECORD),
            **settings.options(),
        )
        pipeline.draw(env, words, case.rows, case.rate, str(output), self._raises)
        deadline = time.monotonic() + case.rows / case.rate + self._patience_s
        with env.execute("exactness") as job:

            def until(condition: Callable[[], bool]) -> None:
                wait_until(job, condition, deadline, self._context.stop)

            striking = Striking(job, case, self._raises, until, self._context.stop)
            try:
                until(lambda: sum(job.rows_out(WORDS).values()) >= case.at_row)
                striking.run()
                until(lambda: job.done)
            finally:
                self._note(job, striking)
            job.await_finish()
        parallelisms = [case.parallelism, *(rescale.parallelism for rescale in case.rescales)]
        findings = check(pipeline.rows_of(pq.read_table(output)), words.words(case.rows), parallelisms)
        self.figures |= {"exact": findings.exact, "damage": findings.damage, "examples": findings.examples}
        self.figures["rows_out"] = findings.rows

    def _note(self, job: JobHandle, striking: Striking) -> None:
        metrics, rescaled = job.metrics(), job.rescales()
        striking.note()
        struck = zip(striking.struck, met(striking.struck, rescaled, self._case.parallelism), strict=True)
        self.figures |= {name: metrics[name] for name in NOTED}
        self.figures |= {
            "checkpoints": metrics["checkpoints_completed"],
            "raised": striking.raised(),
            "recoveries": [{name: recovery[name] for name in RECORDED} for recovery in job.recoveries()],
            "struck": [{**strike, "met_rescale": met_one} for strike, met_one in struck],
            "requests": striking.requests,
            "rescaled": [{name: one[name] for name in RESCALED} for one in rescaled],
        }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``summary``: a row for each number of failures and time between them, without and with rescales, and one for all.
    ``damage``: kind -> rows; ``fallback_reasons``: reason -> runs; ``requests``: how rescales ended -> requests.
    """
    groups: dict[tuple[bool, int, float], list[dict[str, Any]]] = {}
    damage: Counter[str] = Counter()
    for run in runs:
        groups.setdefault((bool(run["rescales"]), len(run["strikes"]), run["apart_s"]), []).append(run)
        damage.update(run["damage"])
    rows = [
        {"failures": count, "apart_s": apart_s, "with_rescales": with_rescales, **_row(group)}
        for (with_rescales, count, apart_s), group in sorted(groups.items())
    ]
    return {
        "summary": [*rows, {"failures": None, "apart_s": None, "with_rescales": None, **_row(runs)}],
        "damage": dict(sorted(damage.items())),
        "fallback_reasons": dict(Counter(reason for run in runs for reason in run.get("fallback_reasons", ()))),
        "requests": dict(Counter(request["status"] for run in runs for request in run["requests"])),
    }


def _rolled_back(run: dict[str, Any]) -> bool:
    """A rescale is not a rollback: it is neither a fallback nor a recovery."""
    return bool(run["fallbacks"]) or any(recovery["mode"] == ROLLBACK for recovery in run["recoveries"])


def _in_rescale(run: dict[str, Any]) -> bool:
    """Whether a failure met a rescale, so that a rollback may be its consequence."""
    return any(strike["met_rescale"] for strike in run["struck"])


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    recoveries = [recovery for run in runs for recovery in run["recoveries"]]
    times = [recovery["recovery_ms"] for recovery in recoveries]
    return {
        "runs": len(runs),
        "exact": sum(run["exact"] for run in runs),
        "local": sum(run["exact"] and run["failovers"] > 0 and not _rolled_back(run) for run in runs),
        "rollback": sum(map(_rolled_back, runs)),
        "in_rescale": sum(_rolled_back(run) and _in_rescale(run) for run in runs),
        "untouched": sum(not run["recoveries"] for run in runs),
        "wrong": sum(bool(run["damage"]) for run in runs),
        "failed": sum(run["error"] is not None for run in runs),
        "failovers": sum(run["failovers"] for run in runs),
        "handovers": sum(run.get("handovers", 0) for run in runs),
        "requested": sum(len(run["requests"]) for run in runs),
        "rescaled": sum(len(run["rescaled"]) for run in runs),
        "subtasks": sum(len(recovery["subtasks"]) for recovery in recoveries),
        "rows": sum(run["rows"] for run in runs),
        "recovery_ms_median": median(times),
        "recovery_ms_p95": percentile(times, 95),
    }


def tables(content: dict[str, Any]) -> list[object]:
    """How many runs were exact, and how many stayed local; which were not, why there were rollbacks, what damage."""
    without = content["parameters"]["without"]
    title = f"Runs without {' and without '.join(without)}" if without else "Runs"
    rows = []
    for row in content["summary"]:
        times = (number(row["recovery_ms_median"], 0), number(row["recovery_ms_p95"], 0))
        rows.append((_failures(row), *(f"{row[name]:,}" for name in SHOWN), *times))
    lines = []
    for run in content["runs"]:
        if run["error"] is not None or run["damage"]:
            found = ", ".join(f"{kind}: {times}" for kind, times in run["damage"].items())
            lines.append(f"run {run['run']}: {run['error'] or found}")
    lines += [f"rollback in {times} runs: {reason}" for reason, times in content["fallback_reasons"].items()]
    lines += [f"rescales: {times} {status}" for status, times in content["requests"].items()]
    lines += [f"{kind}: {times} in all" for kind, times in content["damage"].items()]
    headings = tuple(name.replace("_", " ") for name in SHOWN)
    title += "; in rescale: rollbacks whose failure met a rescale; ms: kill to first new output, median"
    return [plain_table(title, ("failures",), (*headings, "ms", "p95"), rows), *lines]


def _failures(row: dict[str, Any]) -> str:
    if row["failures"] is None:
        return "all"
    apart = f", {row['apart_s'] * 1e3:.0f} ms apart" if row["apart_s"] else " at once"
    rescales = ", rescales" if row["with_rescales"] else ""
    return f"{row['failures']}{apart if row['failures'] > 1 else ''}{rescales}"


def passed(settings: Settings, content: dict[str, Any]) -> bool:
    whole = content["summary"][-1]
    return bool(whole["wrong"] > 0 if settings.does_damage else whole["exact"] == whole["runs"])


EXPERIMENT = Experiment(
    "exactness",
    Settings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: settings.runs,
    runs=runs,
    derive=lambda runs, settings: summarize(runs),
    tables=tables,
    passed=passed,
    can_go_on=True,
    files="for files, and what is left of runs that are not exact or not local",
)
