"""What another parallelism costs: ``flinkplus experiment rescale``, of a running job; with ``--restore``, of a resumed
one.

For each size of state a job is filled once, and ended. Every run resumes it from there, so that all begin with the same
files. Recovery modes take turns, run by run, and so do the parallelisms of ``--restore``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from experiments.harness.arguments import choices, option, whole_numbers
from experiments.harness.experiment import Experiment
from experiments.harness.running import Context, TextSettings, error_of
from experiments.harness.statistics import in_turn
from experiments.rescale import live, pictures, restore
from experiments.rescale.filled import Filled
from experiments.rescale.job import KEYS_PER_MB, RescaledJob
from experiments.rescale.live import LiveRun
from experiments.rescale.restore import RestoreRun
from experiments.rescale.summary import summarize
from experiments.rescale.tables import tables
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError, JobFailed

RECOVERIES = ("standby", "rollback")
HELD_ENTRIES = 60_000
"""Keys of each state in memory when there is kept state: all words fit, all of a large state does not."""
SPAN_S, MB_PER_S = 20.0, 25.0
"""The usual span of a step: this, and for its state."""


@dataclass(frozen=True)
class RescaleSettings(TextSettings):
    """What to run."""

    steps: tuple[int, ...] = option((2, 8, 3), whole_numbers(1), metavar="N,...", help="parallelisms, one by one")
    recovery: tuple[str, ...] = option(RECOVERIES, choices(RECOVERIES), metavar=",".join(RECOVERIES))
    state_mb: tuple[int, ...] = option((0,), whole_numbers(0), metavar="MB,...", help="kept keyed state (default: 0)")
    restore: bool = option(
        False, action="store_true", help="resume a job at each parallelism, instead of a live change"
    )
    runs: int = option(10, positive, metavar="N", help="of each kind (default: 10)")
    rate: float = option(30_000.0, positive_number, metavar="WORDS_PER_S")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints (default: 1)")
    replicas: int = option(3, positive, metavar="N", help="of each subtask (default: 3)")
    calm: float = option(8.0, positive_number, metavar="S", help="that a job runs evenly before a step (default: 8)")
    span: float | None = option(
        None, positive_number, metavar="S", help="of input for each step (default: 20, and 1 for each 25 MB)"
    )
    seed: int = option(1, int, metavar="S")

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        if len(self.steps) < 2 and not self.restore:
            raise ConfigurationError(f"--steps {self.steps[0]} has no change; give two parallelisms, such as 2,8")
        for parallelism in self.steps:
            for recovery in self.recovery:
                options_from({}, {**self.options(recovery), "parallelism": parallelism})

    def options(self, recovery: str, state_mb: int = 0) -> dict[str, Any]:
        """The options of a job, which begins at the first parallelism."""
        options: dict[str, Any] = {
            "parallelism": self.steps[0],
            "checkpoint_interval": self.interval,
            "recovery": recovery,
            **self.job_options(),
        }
        if state_mb:
            options["memtable_entries"] = HELD_ENTRIES
        return {**options, "replicas": self.replicas} if recovery == "standby" else options

    def words(self, state_mb: int) -> int:
        """How long the input of a job must be."""
        if self.restore:
            return round(self.rate * restore.INPUT_S)
        span_s = SPAN_S + state_mb / MB_PER_S if self.span is None else self.span
        steps = len(self.steps) - 1
        return round(self.rate * (live.START_S + self.calm + steps * (self.calm + span_s)))

    @property
    def changes(self) -> tuple[tuple[int, int], ...]:
        """The parallelism before and afterwards of each figure of a run."""
        return tuple((self.steps[0], after) for after in self.steps) if self.restore else tuple(pairwise(self.steps))


def runs(context: Context[RescaleSettings]) -> Generator[dict[str, Any], None, None]:
    """The figures of one change after the other. Raises ``JobFailed`` when a state could not be filled."""
    settings = context.settings
    for state_mb in settings.state_mb:
        words = settings.words(state_mb)
        with context.run_directory(f"state-{state_mb}") as directory:
            job = RescaledJob(directory / "run", context.text(words), words, settings.rate, state_mb * KEYS_PER_MB)
            filled = Filled(job, directory / "filled")
            context.begin(f"filling {state_mb} MB")
            error = error_of(partial(filled.fill, context, settings.options("rollback", state_mb)))
            if error is not None:
                raise JobFailed(f"the state of {state_mb} MB was not filled: {error}")
            for run in range(settings.runs):
                for recovery in in_turn(settings.recovery, run):
                    for figures in _run(context, job, filled, recovery, state_mb, run):
                        if figures["error"] is not None:
                            context.say(f"a run failed: {figures['error']}")
                        yield {"state_mb": state_mb, "recovery": recovery, "run": run, **figures}
                    if context.stop.is_set():
                        return


def _run(
    context: Context[RescaleSettings], job: RescaledJob, filled: Filled, recovery: str, state_mb: int, run: int
) -> Generator[dict[str, Any], None, None]:
    """The figures of all changes of one run."""
    settings = context.settings
    options = settings.options(recovery, state_mb)
    what = f"{state_mb} MB, {recovery}, run {run + 1}"
    if not settings.restore:
        context.begin(what)
        filled.again()
        steps = LiveRun(context, job, options, settings.steps, settings.calm)
        error = error_of(steps.run)
        filled.clear()
        yield from ({**figures, "error": error} for figures in steps.steps)
        return
    for after in in_turn(settings.steps, run):
        context.begin(f"{what}, resumed at {after}")
        filled.again()
        resumed = RestoreRun(context, job, options, settings.steps[0], after)
        error = error_of(resumed.run)
        filled.clear()
        yield {**resumed.figures, "error": error}


EXPERIMENT = Experiment(
    "rescale",
    RescaleSettings,
    slots=lambda settings: max(settings.steps),
    total=lambda settings: len(settings.state_mb) * settings.runs * len(settings.recovery) * len(settings.changes),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.seed, settings.restore)},
    tables=tables,
    pictures=(("rescale.png", pictures.gaps), ("restore.png", pictures.restores)),
    passed=lambda settings, content: all(run["exact"] and run["error"] is None for run in content["runs"]),
)
