"""The queries of Nexmark on FlinkPlus and Flink, one after the other: ``flinkplus experiment nexmark``.

Of each query on FlinkPlus: its output over a fixed input beside DuckDB's, undisturbed and, with ``--kill``, with a
SIGKILL of a slot; and its throughput, to a sink that drops rows. Of each query on Flink its throughput.

Rules: engines take turns on the same query, in an order that turns round with every run number. A run that fails is a
run with an ``error``, and the next one follows. A query that an engine cannot run has a row that says what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.baselines.case import FLINKPLUS, job_options
from experiments.baselines.flink import Flink
from experiments.baselines.java_tools import default_home, java_version
from experiments.harness.arguments import choices, option
from experiments.harness.experiment import Experiment
from experiments.harness.running import Context, JobSettings, error_of
from experiments.harness.statistics import in_turn
from experiments.nexmark.catalogue import NAMES
from experiments.nexmark.check import check_duckdb
from experiments.nexmark.flink import FlinkRun, flink_of, settings_of
from experiments.nexmark.flink_sql import FLINK_LACKS
from experiments.nexmark.runs import FlinkPlusRuns
from experiments.nexmark.summary import (
    DEFINITIONS,
    ENGINES,
    EXACT,
    KILL,
    LACKS,
    THROUGHPUT,
    passed,
    ratios,
    summarize,
    tables,
)
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError


@dataclass(frozen=True)
class NexmarkSettings(JobSettings):
    """What to run."""

    queries: tuple[str, ...] = option(NAMES, choices(NAMES), metavar="q0,...", help="(default: all)")
    engine: tuple[str, ...] = option((FLINKPLUS,), choices(ENGINES), metavar=",".join(ENGINES))
    kill: bool = option(False, action="store_true", help="compare outputs once more, with a SIGKILL of a slot")
    compare: bool = option(True, flag="--no-check", action="store_false", help="leave out the undisturbed comparison")
    throughput: bool = option(True, flag="--no-throughput", action="store_false", help="leave out throughput")
    parallelism: int = option(4, positive, metavar="N", help="(default: 4)")
    events: int = option(1_000_000, positive, metavar="N", help="whose output is compared (default: 1,000,000)")
    kill_seconds: float = option(
        10.0, positive_number, metavar="S", help="that this input takes with a kill, at least (default: 10)"
    )
    seconds: float = option(10.0, positive_number, metavar="S", help="measured in each run (default: 10)")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints (default: 1)")
    runs: int = option(1, positive, metavar="N", help="of everything (default: 1)")
    seed: int = option(1, int, metavar="S", help="of kills (default: 1)")
    more_options: Sequence[str] | None = option(
        None, flag="--option", action="append", metavar="NAME=VALUE", help="another one of FlinkPlus's jobs; repeatable"
    )
    flink_home: str | None = option(
        None, metavar="DIR", help=f"of Flink's jars (default: fetched once, into {default_home()})"
    )
    flink_conf: Sequence[str] | None = option(
        None, action="append", metavar="NAME=VALUE", help="another setting of Flink's jobs; repeatable"
    )

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        options_from({}, self.options())
        self.further()
        if all(kind == LACKS for _, _, _, kind in self.cases()):
            raise ConfigurationError("there is nothing to run: the engines lack the queries, or all runs are left out")
        if FLINKPLUS in self.engine and (self.compare or self.kill):
            check_duckdb()

    def options(self) -> dict[str, Any]:
        """Of FlinkPlus's jobs. Raises ``ConfigurationError``."""
        own = {"parallelism": self.parallelism, "recovery": "standby", "checkpoint_interval": self.interval}
        return job_options(self.more_options or (), {**own, **self.job_options()})

    def further(self) -> Mapping[str, str]:
        """Further settings of Flink's jobs. Raises ``ConfigurationError``."""
        pairs = [text.partition("=") for text in self.flink_conf or ()]
        for name, sign, _ in pairs:
            if not name or not sign:
                raise ConfigurationError(f"--flink-conf takes NAME=VALUE, not {name!r}")
        return {name: value for name, _, value in pairs}

    def kinds(self, query: str, engine: str) -> tuple[str, ...]:
        """The kinds of runs of a query on an engine."""
        if lacks(query, engine) is not None:
            return (LACKS,)
        wanted = {EXACT: self.compare, KILL: self.kill, THROUGHPUT: self.throughput}
        return tuple(kind for kind, asked in wanted.items() if asked and (engine == FLINKPLUS or kind == THROUGHPUT))

    def cases(self) -> list[tuple[int, str, str, str]]:
        """Run number, query, engine and kind of all runs, in their order. What an engine lacks is said once."""
        return [
            (run, query, engine, kind)
            for run in range(self.runs)
            for query in self.queries
            for engine in in_turn(self.engine, run)
            for kind in self.kinds(query, engine)
            if kind != LACKS or run == 0
        ]


def lacks(query: str, engine: str) -> str | None:
    """What an engine lacks for a query; ``None``: nothing."""
    return None if engine == FLINKPLUS else FLINK_LACKS.get(query)


def runs(context: Context[NexmarkSettings]) -> Generator[dict[str, Any], None, None]:
    """The figures of one run after the other."""
    settings = context.settings
    flink = None
    if set(settings.engine) != {FLINKPLUS}:
        context.begin("preparing Flink")
        home = default_home() if settings.flink_home is None else Path(settings.flink_home)
        flink = flink_of(home, context.say)
    own = FlinkPlusRuns(context)
    for run, query, engine, kind in settings.cases():
        context.begin(f"run {run + 1}: {query}, {engine}, {kind}")
        figures: dict[str, Any] = {"query": query, "engine": engine, "kind": kind, "run": run, "error": None}
        if kind == LACKS:
            yield {**figures, "lacks": lacks(query, engine)}
            continue
        found: dict[str, Any] = {} if kind == THROUGHPUT else {"exact": False}
        work = _work(context, own, flink, (run, query, engine, kind))
        error = error_of(lambda found=found, work=work: found.update(work()))  # type: ignore[misc]
        if error is not None:
            context.say(f"{query}, {engine}, {kind}: {error}")
        yield {**figures, **found, "error": error}
        if context.stop.is_set():
            return


def _work(
    context: Context[NexmarkSettings], own: FlinkPlusRuns, flink: Flink | None, case: tuple[int, str, str, str]
) -> Callable[[], dict[str, Any]]:
    settings = context.settings
    run, query, engine, kind = case
    if kind == EXACT:
        return partial(own.exact, query)
    if kind == KILL:
        seed = (settings.seed, run, NAMES.index(query))
        return partial(own.exact_with_kill, query, np.random.default_rng(seed))
    if engine == FLINKPLUS:
        return partial(own.throughput, query)
    assert flink is not None
    return partial(_on_flink, context, flink, query, engine)


def _on_flink(context: Context[NexmarkSettings], flink: Flink, query: str, engine: str) -> dict[str, Any]:
    settings = context.settings
    with context.run_directory(f"{query}-{engine}") as directory:
        run = FlinkRun(flink, query, engine, settings.parallelism, settings.interval, directory, settings.further())
        return run.throughput(settings.seconds, context.stop)


def provenance(settings: NexmarkSettings) -> dict[str, Any]:
    """What the document says beside commit, versions and machine."""
    others = [engine for engine in settings.engine if engine != FLINKPLUS]
    flink = {engine: settings_of(engine, settings.interval, Path("/DIRECTORY")) for engine in others}
    return {
        "definitions": list(DEFINITIONS),
        **({"java": java_version(), "flink": {**flink, "further": dict(settings.further())}} if others else {}),
    }


def derived(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """``queries`` and ``ratios``."""
    rows = summarize(runs)
    return {"queries": rows, "ratios": ratios(rows)}


EXPERIMENT = Experiment(
    "nexmark",
    NexmarkSettings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: len(settings.cases()),
    runs=runs,
    derive=lambda runs, settings: derived(runs),
    tables=tables,
    more=provenance,
    passed=lambda settings, content: passed(content["runs"]),
)
