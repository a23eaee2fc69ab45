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
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.harness.arguments import option, whole_numbers
from experiments.harness.console import interval, number, plain_table
from experiments.harness.experiment import Experiment
from experiments.harness.pictures import BLACK, BLUE, FONT_SIZE, draw_medians, legend_above, picture
from experiments.harness.running import WORDS, Context, TextSettings
from experiments.harness.statistics import grouped, in_turn, median, with_interval
from experiments.overhead import draw, run_to_end
from experiments.scaling.busy import crowding
from experiments.scaling.costs import Costs, measure_costs
from experiments.scaling.model import NETWORK_LATENCY_S, Setting, Simulation
from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import Options, options_from
from flinkplus.graph import JobGraph

CORES = os.cpu_count() or 1
COLOURS = (BLACK, BLUE)
COSTS_AT = (1, 4, 8)
"""Parallelisms at which steps are timed: from few large messages to many small ones."""
NONE = "none"
JOBS_OF_ONE_ROW = 3


@dataclass(frozen=True)
class ScalingSettings(TextSettings):
    """``measured``: the highest parallelism that is measured; ``batch_rows``: ``None`` for the default;
    ``costs_seconds``: that steps are timed, at each of ``COSTS_AT``."""

    parallelism: tuple[int, ...] = option(
        (1, 2, 4, 8, 16), lambda text: tuple(sorted(whole_numbers(1)(text))), metavar="N,...", help="(1,2,4,8,16)"
    )
    measured: int = option(
        CORES,
        positive,
        metavar="N",
        help="measured up to this parallelism, simulated beyond (default: the machine's cores)",
    )
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints (1.0)")
    repeat: int = option(6, positive, metavar="N", help="1.1 M words are read N times over (6)")
    rounds: int = option(3, positive, metavar="N", help="of every measured run (3)")
    batch_rows: int | None = option(None, positive, metavar="N", help="rows per message aimed at")
    costs_seconds: float = 4.0
    seed: int = option(1, int, metavar="S")

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
        options |= self.job_options()
        return options if self.batch_rows is None else {**options, "batch_rows": self.batch_rows}

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for parallelism in self.parallelism:
            options_from({}, self.options(parallelism, self.interval))


def runs(context: Context[ScalingSettings]) -> Generator[dict[str, Any] | None, None, None]:
    """Measured runs, what the model is made of (``None`` for each step of it), simulated runs."""
    settings, text = context.settings, context.text()
    for round_number in range(settings.rounds):
        for parallelism in settings.to_measure:
            for interval_s in in_turn(settings.intervals, round_number):
                case = _case(parallelism, interval_s, False)
                context.begin(f"measured: {parallelism}, {case['variant']}")
                figures = _measure(context, parallelism, interval_s, text, settings.repeat)
                yield {**case, "round": round_number, **figures}

    def job(parallelism: int) -> tuple[JobGraph, Options]:
        env = StreamEnvironment(context.spark, **settings.options(parallelism, settings.interval))
        draw(env, str(text), 1000)
        env.graph.fuse()
        return env.graph, env.options

    context.begin("costs")
    costs = None
    for costs in measure_costs(job, COSTS_AT, settings.costs_seconds, context.directory / "costs", context.stop):
        if costs is not None:
            busy = context.directory / "busy"
            costs.crowded = crowding(*job(1), busy, CORES, settings.costs_seconds / 2, context.stop)
            costs.job_s = _of_one_row(context)
            context.content["costs"] = asdict(costs)
        yield None
    if costs is not None:
        yield from simulated(context, costs, job(1)[1])


def simulated(
    context: Context[ScalingSettings], costs: Costs, options: Options
) -> Generator[dict[str, Any], None, None]:
    """Simulated runs. Raises ``RunError`` when ``context.stop`` is set."""
    settings = context.settings
    for parallelism in settings.parallelism:
        for interval_s in settings.intervals:
            setting = Setting(parallelism, settings.words, interval_s, options.window, options.snapshot_spread)
            setting = replace(setting, bundle_rows=options.bundle_rows)
            context.begin(f"simulated: {parallelism}, {_case(parallelism, interval_s, True)['variant']}")
            yield simulate(costs, setting, None, context.stop)
            if parallelism in settings.to_measure:
                yield simulate(costs, setting, CORES, context.stop)


def _case(parallelism: int, interval_s: float | None, simulated: bool) -> dict[str, Any]:
    checkpoints = NONE if interval_s is None else f"aligned, {interval_s:g} s"
    return {"simulated": simulated, "parallelism": parallelism, "variant": checkpoints, "interval_s": interval_s}


def simulate(
    costs: Costs, setting: Setting, machine_cores: int | None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """The figures of one run of the model. ``machine_cores``: on a machine with so many, ``None`` for one a slot.

    Raises ``RunError`` when ``stop`` is set.
    """
    cores = setting.parallelism if machine_cores is None else min(machine_cores, setting.parallelism)
    begun = time.perf_counter()
    crowded = machine_cores is not None and cores > 1
    simulation = Simulation(costs, replace(setting, cores=cores, slower=costs.crowded if crowded else 1.0))
    seconds = simulation.run(stop)
    return {
        **_case(setting.parallelism, setting.interval_s, True),
        "as_this_machine": machine_cores is not None,
        "cores": cores,
        "seconds": round(seconds, 4),
        "checkpoints": simulation.checkpoints,
        "took_s": round(time.perf_counter() - begun, 2),
    }


def _of_one_row(context: Context[ScalingSettings]) -> float:
    """Seconds that a job of one row takes."""
    text = context.directory / "one.txt"
    text.write_text("word")
    parallelism = min(CORES, max(context.settings.to_measure, default=1))
    times = [_measure(context, parallelism, None, text, 1)["seconds"] for _ in range(JOBS_OF_ONE_ROW)]
    return statistics.median(times)


def _measure(
    context: Context[ScalingSettings], parallelism: int, interval_s: float | None, text: Path, repeat: int
) -> dict[str, Any]:
    return {"cores": CORES, **run_to_end(context, context.settings.options(parallelism, interval_s), text, repeat)}


def summarize(runs: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each parallelism and variant: what was measured (``n`` runs), what the model says of one core a slot
    and of this machine, and by how much it is off there."""
    rows = []
    for (parallelism, variant), mine in grouped(runs, "parallelism", "variant").items():
        measured = [run for run in mine if not run["simulated"]]
        model = [run["seconds"] for run in mine if run["simulated"] and not run["as_this_machine"]]
        here = [run["seconds"] for run in mine if run["simulated"] and run["as_this_machine"]]
        figures = with_interval("measured", "s", (run["seconds"] for run in measured), seed)
        found = figures["measured_s"]
        cores = measured[0]["cores"] if measured else None
        rows.append(
            {
                "parallelism": parallelism,
                "variant": variant,
                "interval_s": mine[0]["interval_s"],
                **figures,
                "n": len(measured),
                "checkpoints": median((run["checkpoints"] for run in measured), 1),
                "shares_cores": cores is not None and parallelism > cores,
                "simulated_s": model[0] if model else None,
                "simulated_on_this_machine_s": here[0] if here else None,
                "model_error_percent": round(100 * (here[0] / found - 1), 2) if here and found else None,
                "simulated": not measured,
            }
        )
    return sorted(rows, key=lambda row: (row["variant"] != NONE, row["parallelism"]))


def tables(content: dict[str, Any]) -> list[object]:
    headings = ("measured s", "runs", "taken", "", "model s", "off, %", "a core a slot", "")
    title = (
        "Running time of a fixed input: measured (median, 95 % interval), by the model of this machine, and simulated "
        "with a core for each slot"
    )
    rows = (
        (
            row["variant"],
            str(row["parallelism"]),
            interval(row, "measured", "s"),
            str(row["n"]),
            number(row["checkpoints"], 0),
            "shares cores" if row["shares_cores"] else "",
            number(row["simulated_on_this_machine_s"], 2),
            number(row["model_error_percent"]),
            number(row["simulated_s"], 2),
            "" if row["simulated_s"] is None else "simulated",
        )
        for row in content["summary"]
    )
    return [plain_table(title, ("checkpoints", "par."), headings, rows)]


SHARED = {"marker": "x", "linestyle": "none"}
"""How measurements look in which slots share cores."""


def time_by_parallelism(content: dict[str, Any], target: Path) -> bool:
    """Seconds against parallelism: measured points are full, on lines; simulated ones hollow, on dashed lines.
    ``False``: nothing to draw.
    """
    rows = content["summary"]
    if not rows:
        return False
    with picture(target, (8, 5)) as (_, axes):
        for colour, ((variant,), mine) in zip(COLOURS, grouped(rows, "variant").items(), strict=False):
            label = "no checkpoints" if variant == NONE else variant
            model = [(row["parallelism"], row["simulated_s"]) for row in mine if row["simulated_s"]]
            if model:
                dashed = {"marker": "o", "markerfacecolor": "white", "linestyle": "--", "linewidth": 1}
                axes.plot(*zip(*model, strict=True), **dashed, color=colour, label=f"{label}: simulated, a core a slot")
            measured = [row for row in mine if row["measured_s"]]
            for shares, style in (
                (False, {"label": f"{label}: measured"}),
                (True, SHARED | {"label": f"{label}: shared cores"}),
            ):
                some = [row for row in measured if row["shares_cores"] is shares]
                if some:
                    draw_medians(
                        axes, [row["parallelism"] for row in some], some, "measured", "s", color=colour, **style
                    )
        numbers = sorted({row["parallelism"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [str(parallelism) for parallelism in numbers])
        axes.set_ylim(0)
        axes.tick_params(labelsize=FONT_SIZE)
        axes.set_xlabel("parallelism (slots)", fontsize=FONT_SIZE)
        axes.set_ylabel("running time of the fixed input, s", fontsize=FONT_SIZE)
        axes.grid(axis="y", linewidth=0.3, alpha=0.6)
        legend_above(axes, 2)
    return True


EXPERIMENT = Experiment(
    "scaling",
    ScalingSettings,
    slots=lambda settings: max(settings.to_measure, default=1),
    total=lambda settings: settings.steps,
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.seed)},
    tables=tables,
    pictures=(("scaling.png", time_by_parallelism),),
    more=lambda settings: {
        "assumed": {"network_latency_ms": NETWORK_LATENCY_S * 1e3, "cores_beyond": "one for each slot"}
    },
)
