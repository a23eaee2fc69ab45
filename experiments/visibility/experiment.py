"""When rows become visible in PostgreSQL, and how many a second: ``flinkplus experiment visibility``.

Each run of each visibility is a job at a steady rate, with a reader in a process of its own and then a SIGKILL of a
slot; and a job at unlimited rate. Visibilities take turns. In each round one client writes the same rows with ``COPY``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.harness.arguments import choices, option, positive_numbers
from experiments.harness.document import command_line
from experiments.harness.experiment import Experiment
from experiments.harness.postgres_server import check_postgres
from experiments.harness.running import Context, JobSettings, error_of
from experiments.harness.statistics import in_turn
from experiments.visibility import pictures
from experiments.visibility import runs as carried_out
from experiments.visibility.summary import COPY, STEADY, THROUGHPUT, VISIBILITIES, summarize
from experiments.visibility.tables import tables
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import options_from
from flinkplus.errors import HIDDEN

NO_THROUGHPUT = "leave out the jobs at unlimited rate and COPY"


@dataclass(frozen=True)
class VisibilitySettings(JobSettings):
    """What to run."""

    visibility: tuple[str, ...] = option(VISIBILITIES, choices(VISIBILITIES), metavar=",".join(VISIBILITIES))
    rate: float = option(10_000.0, positive_number, metavar="ROWS_PER_S", help="(default: 10,000)")
    parallelism: int = option(4, positive, metavar="N", help="slots (default: 4)")
    seconds: float = option(10.0, positive_number, metavar="S", help="that are measured (default: 10)")
    flush_interval: tuple[float | None, ...] = option(
        (None,), positive_numbers, metavar="S,...", help="of the jobs, in turn (default: the option's)"
    )
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints (default: 1)")
    kill: bool = option(
        True, action=argparse.BooleanOptionalAction, help="SIGKILL a slot behind the time measured (default: yes)"
    )
    throughput: bool = option(True, flag="--no-throughput", action="store_false", help=NO_THROUGHPUT)
    runs: int = option(10, positive, metavar="N", help="of each kind (default: 10)")
    poll_ms: float = option(3.0, positive_number, metavar="MS", help="the reader waits between polls (default: 3)")
    dsn: str | None = option(None, metavar="DSN", help="a PostgreSQL that exists (default: one of its own)")
    seed: int = option(1, int, metavar="S")

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for flush_interval in self.flush_interval:
            options_from({}, carried_out.options_of(self, flush_interval))
        if self.dsn is None:
            check_postgres()

    @property
    def kinds(self) -> tuple[tuple[str, str | None, float | None], ...]:
        """What each round has: the kind of run, the visibility, and the ``flush_interval``."""
        jobs = tuple(itertools.product(self.visibility, self.flush_interval))
        steady = tuple((STEADY, *job) for job in jobs)
        if not self.throughput:
            return steady
        return (*steady, *((THROUGHPUT, *job) for job in jobs), (COPY, None, None))


def runs(context: Context[VisibilitySettings]) -> Generator[dict[str, Any], None, None]:
    """The figures of one run after the other."""
    settings = context.settings
    context.begin("starting PostgreSQL")
    with carried_out.server(settings.dsn) as dsn:
        for run in range(settings.runs):
            for number, (kind, visibility, flush_interval) in enumerate(in_turn(settings.kinds, run)):
                context.begin(f"run {run + 1}: {kind}{f', {visibility}' if visibility else ''}")
                table = f"flinkplus_visibility_{settings.seed}_{run}_{number}"
                chance = np.random.default_rng((settings.seed, run))
                figures = {"kind": kind, "visibility": visibility, "flush_interval": flush_interval, "run": run}
                figures |= _figures(context, dsn, figures, table, chance)
                carried_out.dropped(dsn, table)
                if figures["error"] is not None:
                    context.say(f"a run failed: {figures['error']}")
                yield figures
                if context.stop.is_set():
                    return


def _figures(
    context: Context[VisibilitySettings], dsn: str, case: dict[str, Any], table: str, chance: np.random.Generator
) -> dict[str, Any]:
    visibility, flush_interval = case["visibility"], case["flush_interval"]
    if case["kind"] == STEADY:
        steady = carried_out.SteadyRun(context, dsn, visibility, flush_interval, table, chance)
        error = error_of(steady.run)
        return {**steady.figures, "error": error}
    found: dict[str, Any] = {"rows_per_s": None}
    work: Callable[[], dict[str, Any]] = partial(carried_out.copied, dsn, table)
    if case["kind"] == THROUGHPUT:
        work = partial(carried_out.throughput, context, dsn, visibility, flush_interval, table)
    error = error_of(lambda: found.update(work()))
    return {**found, "error": error}


def _without_password(settings: VisibilitySettings) -> dict[str, Any]:
    """The command and parameters of the document, without what a DSN has."""
    if settings.dsn is None:
        return {}
    shown = [HIDDEN if argument == settings.dsn else argument for argument in sys.argv]
    shown = [f"--dsn={HIDDEN}" if argument == f"--dsn={settings.dsn}" else argument for argument in shown]
    return {"parameters": {**dataclasses.asdict(settings), "dsn": HIDDEN}, "command": command_line(shown)}


def passed(settings: VisibilitySettings, content: dict[str, Any]) -> bool:
    """Whether all runs came to their end, and all tables were exact."""
    return all(run["error"] is None and run.get("exact", True) for run in content["runs"])


EXPERIMENT = Experiment(
    "visibility",
    VisibilitySettings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: settings.runs * len(settings.kinds),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.rate, settings.parallelism, settings.seed)},
    tables=tables,
    pictures=(("visibility.png", pictures.times),),
    more=_without_password,
    passed=passed,
)
