"""What standbys cost while nothing fails: ``flinkplus experiment cost``.

The same WordCount with 0, 1 and 2 standbys (``replicas`` 1, 2, 3), and by rollback, where no standby is kept;
if asked for, with the most of these standbys and a weaker guarantee, or without a part of the protocol:

- at unlimited rate: words per second, from two seconds into the run on;
- at a steady rate: CPU (in cores) and memory of all processes, and whether the rate was held.

Rules: variants take turns, in an order that turns round with every round, so that over an even number of rounds what
drifts with time cancels out. A cost is the median of the ratios within the rounds, against no standby (or the first
variant, when that is not among them), with its 95 % interval. Results are counted and not stored.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from experiments.harness.arguments import choices, option, whole_numbers
from experiments.harness.console import number, plain_table
from experiments.harness.experiment import Experiment
from experiments.harness.running import ENDLESS, Context, TextSettings, complete, measure
from experiments.harness.statistics import grouped, in_turn, median, median_interval
from experiments.harness.workload import draw
from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.cli.wordcount import TOKENIZE
from flinkplus.config import GUARANTEES, options_from
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.runtime.faults.points import PARTS, WITHOUT

KINDS = ("unlimited", "steady")
UNLIMITED = {"words/s": ("words_per_s", 0), "loss": ("throughput_loss_percent", 1)}
STEADY = {
    "at the rate: words/s": ("words_per_s", 0),
    "cores": ("cores", 2),
    "more CPU": ("more_cpu_percent", 1),
    "memory MB": ("rss_mb", 0),
}
COSTS = ("throughput_loss_percent", "more_cpu_percent")
"""Figures of pairs: a run, and the one of the base in the same round."""
LEAST_FOR_INTERVAL = 3
EXACTLY_ONCE = Guarantee.EXACTLY_ONCE.value


@dataclass(frozen=True)
class Variant:
    """``standbys``: ``None`` for recovery by rollback. ``without``: a part of the protocol that is left out (see
    ``flinkplus.runtime.faults.points``)."""

    standbys: int | None
    guarantee: str = EXACTLY_ONCE
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        if self.standbys is None:
            return "rollback"
        name = f"{self.standbys} standby{'' if self.standbys == 1 else 's'}"
        if self.guarantee != EXACTLY_ONCE:
            name += f", {self.guarantee}"
        return f"{name}, no {' or '.join(self.without)}" if self.without else name

    def options(self) -> dict[str, Any]:
        if self.standbys is None:
            return {"recovery": "rollback"}
        faults = tuple(WITHOUT + part for part in self.without)
        return {
            "recovery": "standby",
            "replicas": self.standbys + 1,
            "guarantee": self.guarantee,
            "faults": faults,
        }


@dataclass(frozen=True)
class CostSettings(TextSettings):
    """What to run; ``seconds`` are measured in each run, after it has settled."""

    replicas: tuple[int, ...] = option((1, 2, 3), whole_numbers(1), metavar="N,...")
    guarantees: tuple[str, ...] = option(
        (), choices(GUARANTEES), metavar="G,...", help="weaker ones, beside exactly-once"
    )
    without: tuple[str, ...] = option(
        (),
        choices(PARTS),
        metavar="PART,...",
        help=f"also without these parts, all of them together: {', '.join(PARTS)}",
    )
    parallelism: int = option(4, positive, metavar="N")
    rate: float = option(30_000.0, positive_number, metavar="WORDS_PER_S")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints")
    rounds: int = option(3, positive, metavar="N", help="of every variant (default: 3)")
    seconds: float = option(10.0, positive_number, metavar="S", help="measured in each run")
    seed: int = option(1, int, metavar="S")

    @property
    def variants(self) -> list[Variant]:
        most = max(self.replicas) - 1
        return [
            *(Variant(replicas - 1) for replicas in self.replicas),
            *(Variant(most, guarantee) for guarantee in self.guarantees if guarantee != EXACTLY_ONCE),
            *([Variant(most, without=self.without)] if self.without else ()),
            Variant(None),
        ]

    def options(self, variant: Variant) -> dict[str, Any]:
        always = {"parallelism": self.parallelism, "checkpoint_interval": self.interval, **self.job_options()}
        return {**always, **variant.options()}

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for variant in self.variants:
            options_from({}, {"recovery": variant.options()["recovery"]})
            options_from({}, self.options(variant))


def _run(context: Context[CostSettings], variant: Variant, rate: float | None) -> dict[str, Any]:
    env = StreamEnvironment(context.spark, **context.settings.options(variant))
    draw(env, str(context.text()), None, rate, None, ENDLESS)
    with env.execute("cost") as job:
        words_per_s, usage = measure(job, TOKENIZE, context.settings.seconds, context.stop)
        taken = complete(job)
        recoveries = len(job.recoveries())
        job.drain()
        job.await_finish()
    checkpoint_ms = median((checkpoint["duration_ms"] for checkpoint in taken), 4)
    return {
        "words_per_s": words_per_s,
        "usage": usage,
        "checkpoint_ms_median": checkpoint_ms,
        "recoveries": recoveries,
    }


def summarize(runs: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each variant: medians, and what is lost against no standby (or the first variant).

    Of each kind: ``runs``; ``n``: pairs of runs of the same round; ``intervals``: the 95 % intervals of the medians
    over pairs, if there are at least ``LEAST_FOR_INTERVAL``. ``seed``: of the intervals.
    """
    groups = grouped(runs, "variant", "kind")
    names = list(dict.fromkeys(run["variant"] for run in runs))
    base = Variant(0).name if Variant(0).name in names else next(iter(names), "")
    rows = []
    for name in names:
        row: dict[str, Any] = {"variant": name, "base": base}
        for kind in KINDS:
            mine = {run["round"]: run for run in groups.get((name, kind), ())}
            theirs = {run["round"]: run for run in groups.get((base, kind), ())}
            row[kind] = _kind_row(list(mine.values()), [(mine[at], theirs[at]) for at in mine if at in theirs], seed)
        rows.append(row)
    return rows


def _kind_row(
    mine: list[dict[str, Any]], both: list[tuple[dict[str, Any], dict[str, Any]]], seed: int
) -> dict[str, Any]:
    def cores(run: dict[str, Any]) -> float:
        return float(run["usage"]["total"]["cores"])

    figures = {
        "words_per_s": [run["words_per_s"] for run in mine],
        "throughput_loss_percent": [100 * (1 - a["words_per_s"] / b["words_per_s"]) for a, b in both],
        "cores": [cores(run) for run in mine],
        "more_cpu_percent": [100 * (cores(a) / cores(b) - 1) for a, b in both],
        "rss_mb": [run["usage"]["total"]["rss_mb"] for run in mine],
        "checkpoint_ms": [run["checkpoint_ms_median"] for run in mine],
    }
    enough = len(both) >= LEAST_FOR_INTERVAL
    intervals = {name: list(median_interval(figures[name], seed)) for name in COSTS} if enough else {}
    medians = {name: median(values, 4) for name, values in figures.items()}
    return {"runs": len(mine), "n": len(both), **medians, "intervals": intervals}


def runs(context: Context[CostSettings]) -> Generator[dict[str, Any], None, None]:
    settings = context.settings
    for round_number in range(settings.rounds):
        for kind, rate in zip(KINDS, (None, settings.rate), strict=True):
            for variant in in_turn(settings.variants, round_number):
                context.begin(f"round {round_number + 1}, {kind}, {variant.name}")
                case = {"variant": variant.name, **asdict(variant), "kind": kind, "round": round_number}
                yield {**case, **_run(context, variant, rate)}


def tables(content: dict[str, Any]) -> list[object]:
    base = content["summary"][0]["base"]
    title = f"Without failures, medians; loss and more CPU, %: over n pairs with {base} (95 % interval)"
    rows = (
        (row["variant"], *_cells(row["unlimited"], UNLIMITED), *_cells(row["steady"], STEADY), _pairs(row))
        for row in content["summary"]
    )
    return [plain_table(title, ("variant",), (*UNLIMITED, *STEADY, "n"), rows)]


def _cells(row: dict[str, Any], columns: dict[str, tuple[str, int]]) -> Iterator[str]:
    for name, digits in columns.values():
        low, high = row["intervals"].get(name, (None, None))
        interval = "" if low is None else f" ({number(low, digits)} - {number(high, digits)})"
        yield number(row[name], digits) + interval


def _pairs(row: dict[str, Any]) -> str:
    """Pairs of runs of both kinds; they differ only in an experiment that was interrupted."""
    return ", ".join(dict.fromkeys(str(row[kind]["n"]) for kind in KINDS))


EXPERIMENT = Experiment(
    "cost",
    CostSettings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: len(KINDS) * settings.rounds * len(settings.variants),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.seed)},
    tables=tables,
    folder="recovery",
)
