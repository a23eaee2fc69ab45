"""What standbys cost while nothing fails: ``flinkplus experiment cost``.

The same WordCount with 0, 1 and 2 standbys (``replicas`` 1, 2, 3), and by rollback, where nothing is kept for anybody;
if asked for, with the most of these standbys and a weaker guarantee, or without a part of the protocol:

- at unlimited rate: words per second, from two seconds into the run on;
- at a steady rate: CPU (in cores) and memory of all processes, and whether the rate was held.

Rules: variants take turns, in an order that turns round with every round; a cost is the median of the ratios within the
rounds, against no standby (or the first variant, when that is not among them). Results are counted and not stored.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.table import Table

from experiments.recovery.processes import ProcessSampler
from experiments.recovery.report import Document, number, plain_table
from experiments.recovery.workload import draw
from experiments.running import run_until
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.wordcount import TOKENIZE
from flinkplus.config import options_from
from flinkplus.corpus import write_corpus
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.runtime.faults.points import WITHOUT

WORDS = 1_100_000
VOCABULARY = 50_000
ENDLESS = 1_000_000_000
SETTLE_S = 2.0
KINDS = ("unlimited", "steady")
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
class CostSettings:
    """What to run; ``seconds`` are measured in each run, after it has settled."""

    replicas: tuple[int, ...] = (1, 2, 3)
    guarantees: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    parallelism: int = 4
    rate: float = 30_000.0
    interval: float = 1.0
    rounds: int = 3
    seconds: float = 10.0
    seed: int = 1

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
        return {"parallelism": self.parallelism, "checkpoint_interval": self.interval, **variant.options()}

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for variant in self.variants:
            options_from({}, {"recovery": variant.options()["recovery"]})
            options_from({}, self.options(variant))


def cost_document(settings: CostSettings, path: Path) -> Document:
    return Document("cost", settings, path, lambda runs: {"summary": summarize_cost(runs)})


def run_costs(spark: SparkSession, settings: CostSettings, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """The figures of one run after the other. Raises ``RunError`` soon after ``stop`` is set."""
    with tempfile.TemporaryDirectory(prefix="flinkplus-cost-") as directory:
        text = Path(directory) / "zipf.txt"
        write_corpus(text, WORDS, VOCABULARY, settings.seed)
        for round_number in range(settings.rounds):
            variants = settings.variants if round_number % 2 == 0 else settings.variants[::-1]
            for kind in KINDS:
                for variant in variants:
                    figures = _run(spark, settings, variant, None if kind == "unlimited" else settings.rate, text, stop)
                    yield {"variant": variant.name, **asdict(variant), "kind": kind, "round": round_number, **figures}


def _run(
    spark: SparkSession, settings: CostSettings, variant: Variant, rate: float | None, text: Path, stop: threading.Event
) -> dict[str, Any]:
    env = StreamEnvironment(spark, **settings.options(variant))
    draw(env, str(text), None, rate, None, ENDLESS)
    with env.execute("cost") as job:
        run_until(job, SETTLE_S, stop)
        begun_s, before = time.monotonic(), _words(job)
        with ProcessSampler(job.slot_pids) as sampler:
            run_until(job, SETTLE_S + settings.seconds, stop)
            ended_s, after = time.monotonic(), _words(job)
        checkpoints = [c["duration_ms"] for c in job.checkpoints() if c["status"] == "complete"]
        recoveries = len(job.recoveries())
        job.drain()
        job.await_finish()
    return {
        "words_per_s": round((after - before) / (ended_s - begun_s), 1),
        "usage": sampler.figures(),
        "checkpoint_ms_median": statistics.median(checkpoints) if checkpoints else None,
        "recoveries": recoveries,
    }


def _words(job: JobHandle) -> int:
    return sum(job.rows_out(TOKENIZE).values())


def summarize_cost(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant: medians, and what is lost against no standby."""
    names = list(dict.fromkeys(run["variant"] for run in runs))
    base = next((run["variant"] for run in runs if run["variant"] == Variant(0).name), names[0] if names else "")
    rows = []
    for name in names:
        row: dict[str, Any] = {"variant": name, "base": base}
        for kind in KINDS:
            mine = {run["round"]: run for run in runs if (run["variant"], run["kind"]) == (name, kind)}
            theirs = {run["round"]: run for run in runs if (run["variant"], run["kind"]) == (base, kind)}
            both = [(mine[number], theirs[number]) for number in mine if number in theirs]
            row[kind] = _kind_row(list(mine.values()), both)
        rows.append(row)
    return rows


def _kind_row(mine: list[dict[str, Any]], both: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    def middle(values: list[float]) -> float | None:
        return round(statistics.median(values), 4) if values else None

    def cores(run: dict[str, Any]) -> float:
        return float(run["usage"]["total"]["cores"])

    return {
        "runs": len(mine),
        "words_per_s": middle([run["words_per_s"] for run in mine]),
        "throughput_loss_percent": middle([100 * (1 - a["words_per_s"] / b["words_per_s"]) for a, b in both]),
        "cores": middle([cores(run) for run in mine]),
        "more_cpu_percent": middle([100 * (cores(a) / cores(b) - 1) for a, b in both]),
        "rss_mb": middle([run["usage"]["total"]["rss_mb"] for run in mine]),
        "checkpoint_ms": middle([r["checkpoint_ms_median"] for r in mine if r["checkpoint_ms_median"] is not None]),
    }


def cost_table(content: dict[str, Any]) -> Table:
    """For people."""
    base = content["summary"][0]["base"]
    headings = ("words/s", "loss", "at the rate: words/s", "cores", "more CPU", "memory MB")
    table = plain_table(f"Without failures, medians; loss and more CPU against {base}, %", ("variant",), headings)
    for row in content["summary"]:
        unlimited, steady = row["unlimited"], row["steady"]
        table.add_row(
            row["variant"],
            number(unlimited["words_per_s"], 0),
            number(unlimited["throughput_loss_percent"]),
            number(steady["words_per_s"], 0),
            number(steady["cores"], 2),
            number(steady["more_cpu_percent"]),
            number(steady["rss_mb"], 0),
        )
    return table
