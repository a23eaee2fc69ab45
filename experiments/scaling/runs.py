"""Running time of a fixed input by parallelism: ``flinkplus experiment scaling``.

After the scalability experiment of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows"
(2015), on the job of ``experiments.overhead``: six operators, three shuffles. Without checkpoints (but the one that
ends the job), and with aligned ones.

Rules: measured as far as it is asked for, as a rule up to the machine's cores; with more slots than cores it is said
that cores are shared. Beyond, by the model, and every such point says ``simulated``. Where there are both, the model is
also asked about this very machine, and how far it is off is printed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.table import Table

from experiments.overhead.runs import VOCABULARY, WORDS, draw
from experiments.recovery.report import Document, number, plain_table
from experiments.running import wait_until
from experiments.scaling.busy import crowding
from experiments.scaling.costs import Costs, measure_costs
from experiments.scaling.model import NETWORK_LATENCY_S, Setting, Simulation
from flinkplus.api.environment import StreamEnvironment
from flinkplus.config import Options, options_from
from flinkplus.corpus import write_corpus
from flinkplus.graph import JobGraph

RUN_S = 300.0
COSTS_AT = (1, 4, 8)
"""Parallelisms at which steps are timed: from few large messages to many small ones."""
NONE = "none"
JOBS_OF_ONE_ROW = 3


@dataclass(frozen=True)
class ScalingSettings:
    """``measured``: the highest parallelism that is measured; ``batch_rows``: ``None`` for the default;
    ``costs_seconds``: that steps are timed, at each of ``COSTS_AT``."""

    parallelism: tuple[int, ...] = (1, 2, 4, 8, 16)
    measured: int = 2
    interval: float = 1.0
    repeat: int = 6
    rounds: int = 3
    batch_rows: int | None = None
    costs_seconds: float = 4.0
    seed: int = 1

    @property
    def words(self) -> int:
        """The fixed input."""
        return WORDS * self.repeat

    @property
    def intervals(self) -> tuple[float | None, ...]:
        return (None, self.interval)

    @property
    def to_measure(self) -> list[int]:
        return [parallelism for parallelism in self.parallelism if parallelism <= self.measured]

    @property
    def steps(self) -> int:
        """Runs, simulations and measurements of costs."""
        runs = self.rounds * len(self.to_measure) + len(self.parallelism) + len(self.to_measure)
        return len(COSTS_AT) + 1 + len(self.intervals) * runs

    def options(self, parallelism: int, interval_s: float | None) -> dict[str, Any]:
        options = {"parallelism": parallelism, "checkpoint_interval": interval_s, "recovery": "rollback"}
        return options if self.batch_rows is None else {**options, "batch_rows": self.batch_rows}

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for parallelism in self.parallelism:
            options_from({}, self.options(parallelism, self.interval))


def scaling_document(settings: ScalingSettings, path: Path) -> Document:
    document = Document("scaling", settings, path, lambda runs: {"summary": summarize(runs)})
    document.content["assumed"] = {"network_latency_ms": NETWORK_LATENCY_S * 1e3, "cores_beyond": "one for each slot"}
    return document


def run_all(
    spark: SparkSession, settings: ScalingSettings, stop: threading.Event
) -> Iterator[dict[str, Any] | Costs | None]:
    """Measured runs, what the model is made of, simulated runs, one after the other. ``None``: costs are under way.

    Raises ``RunError`` soon after ``stop`` is set."""
    with tempfile.TemporaryDirectory(prefix="flinkplus-scaling-") as directory:
        text = Path(directory) / "zipf.txt"
        write_corpus(text, WORDS, VOCABULARY, settings.seed)
        for round_number in range(settings.rounds):
            for parallelism in settings.to_measure:
                for interval_s in settings.intervals[:: 1 if round_number % 2 == 0 else -1]:
                    figures = _measure(spark, settings, parallelism, interval_s, text, stop)
                    yield {**_case(parallelism, interval_s, False), "round": round_number, **figures}

        def job(parallelism: int) -> tuple[JobGraph, Options]:
            env = StreamEnvironment(spark, **settings.options(parallelism, settings.interval))
            draw(env, str(text), 1000)
            env.graph.fuse()
            return env.graph, env.options

        costs = None
        for found in measure_costs(job, COSTS_AT, settings.costs_seconds, Path(directory) / "costs", stop):
            if found is not None:
                cores, busy = os.cpu_count() or 1, Path(directory) / "busy"
                found.crowded = crowding(*job(1), busy, cores, settings.costs_seconds / 2)
                found.job_s = _of_one_row(spark, settings, Path(directory), stop)
            costs = found
            yield found
        options = job(1)[1]
    if stop.is_set() or costs is None:
        return
    here = os.cpu_count() or 1
    for parallelism in settings.parallelism:
        for interval_s in settings.intervals:
            setting = Setting(parallelism, settings.words, interval_s, options.window, options.snapshot_spread)
            yield simulate(costs, setting, None)
            if parallelism in settings.to_measure:
                yield simulate(costs, setting, here)


def _case(parallelism: int, interval_s: float | None, simulated: bool) -> dict[str, Any]:
    checkpoints = NONE if interval_s is None else f"aligned, {interval_s:g} s"
    return {"simulated": simulated, "parallelism": parallelism, "variant": checkpoints, "interval_s": interval_s}


def simulate(costs: Costs, setting: Setting, machine_cores: int | None) -> dict[str, Any]:
    """The figures of one run of the model. ``machine_cores``: on a machine with so many, ``None`` for one a slot."""
    cores = setting.parallelism if machine_cores is None else min(machine_cores, setting.parallelism)
    begun = time.perf_counter()
    crowded = machine_cores is not None and cores > 1
    simulation = Simulation(costs, replace(setting, cores=cores, slower=costs.crowded if crowded else 1.0))
    seconds = simulation.run()
    return {
        **_case(setting.parallelism, setting.interval_s, True),
        "as_this_machine": machine_cores is not None,
        "cores": cores,
        "seconds": round(seconds, 4),
        "checkpoints": simulation.checkpoints,
        "took_s": round(time.perf_counter() - begun, 2),
    }


def _of_one_row(spark: SparkSession, settings: ScalingSettings, directory: Path, stop: threading.Event) -> float:
    text = directory / "one.txt"
    text.write_text("word")
    once = replace(settings, repeat=1)
    parallelism = min(os.cpu_count() or 1, max(settings.to_measure, default=1))
    return statistics.median(
        _measure(spark, once, parallelism, None, text, stop)["seconds"] for _ in range(JOBS_OF_ONE_ROW)
    )


def _measure(
    spark: SparkSession,
    settings: ScalingSettings,
    parallelism: int,
    interval_s: float | None,
    text: Path,
    stop: threading.Event,
) -> dict[str, Any]:
    env = StreamEnvironment(spark, **settings.options(parallelism, interval_s))
    draw(env, str(text), settings.repeat)
    with env.execute("scaling") as job:
        wait_until(job, lambda: job.done, time.monotonic() + RUN_S, stop)
        job.await_finish()
        metrics, checkpoints, recoveries = job.metrics(), job.checkpoints(), len(job.recoveries())
    return {
        "cores": os.cpu_count(),
        "seconds": round(metrics["running_s"], 4),
        "checkpoints": len([c for c in checkpoints if c["status"] == "complete"]),
        "recoveries": recoveries,
    }


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each parallelism and variant: what was measured (median), what the model says of one core a slot and of
    this machine, and by how much it is off there."""
    rows = []
    for parallelism, variant in dict.fromkeys((run["parallelism"], run["variant"]) for run in runs):
        mine = [run for run in runs if (run["parallelism"], run["variant"]) == (parallelism, variant)]
        measured = [run["seconds"] for run in mine if not run["simulated"]]
        model = [run["seconds"] for run in mine if run["simulated"] and not run["as_this_machine"]]
        here = [run["seconds"] for run in mine if run["simulated"] and run["as_this_machine"]]
        cores = [run["cores"] for run in mine if not run["simulated"]]
        found = round(statistics.median(measured), 4) if measured else None
        rows.append(
            {
                "parallelism": parallelism,
                "variant": variant,
                "interval_s": mine[0]["interval_s"],
                "measured_s": found,
                "measured_runs": len(measured),
                "shares_cores": bool(cores) and cores[0] is not None and parallelism > cores[0],
                "simulated_s": model[0] if model else None,
                "simulated_on_this_machine_s": here[0] if here else None,
                "model_error_percent": round(100 * (here[0] / found - 1), 2) if here and found else None,
                "simulated": not measured,
            }
        )
    return sorted(rows, key=lambda row: (row["variant"] != NONE, row["parallelism"]))


def table_of(content: dict[str, Any]) -> Table:
    """For people."""
    headings = ("measured s", "", "model s", "error %", "a core a slot, s", "")
    title = (
        "Running time of a fixed input: measured, by the model of this machine, and simulated with a core for each slot"
    )
    table = plain_table(title, ("checkpoints", "parallelism"), headings)
    for row in content["summary"]:
        table.add_row(
            row["variant"],
            str(row["parallelism"]),
            number(row["measured_s"], 2),
            "shares cores" if row["shares_cores"] else "",
            number(row["simulated_on_this_machine_s"], 2),
            number(row["model_error_percent"]),
            number(row["simulated_s"], 2),
            "" if row["simulated_s"] is None else "simulated",
        )
    return table
