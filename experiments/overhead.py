"""What checkpoints cost: ``flinkplus experiment overhead``.

After the experiment of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015): six
operators, three shuffles, keyed counts and the offsets of sources as state, at unlimited rate; records per second
against the interval between checkpoints, for each mode, and without any.

The job: lines | tokenize | count by word | count by some bits of that count | count by some bits of that count |
nowhere. Every record passes three shuffles; the state is as large as the vocabulary, and all of it changes.

Rules: for each interval the modes, and none, take turns, in an order that turns round with every round; what
checkpoints cost is the median of the ratios against the run without any beside them: the machine's speed changes over
minutes. Recovery is by rollback, so that nothing is measured but checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.harness import running
from experiments.harness.arguments import choices, option, positive_numbers
from experiments.harness.console import numbers, plain_table
from experiments.harness.experiment import Experiment
from experiments.harness.pictures import picture
from experiments.harness.running import ENDLESS, Context, RunError, TextSettings, complete, measure, run_until
from experiments.harness.statistics import grouped, in_turn, median
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.config import CHECKPOINT_MODES, options_from

LEAST_CHECKPOINTS = 2
LONGEST_S = 60.0
"""How long a run is prolonged, at most, until it has completed ``LEAST_CHECKPOINTS``."""
POLL_S = 0.05
SOURCE, TOKENIZE, LAST = "lines", "tokenize", "last"
KEYS = 1 << 14
"""Of the second and third shuffle; a power of two."""
BYTES = ("bytes_new", "bytes_total")
PHASES = ("trigger_ms", "alignment_ms", "sync_ms", "async_ms", "durable_ms", "duration_ms")
COLUMNS = {
    "records/s": ("records_per_s", 0),
    "loss %": ("loss_percent", 1),
    "taken": ("checkpoints", 0),
    "alignment ms": ("alignment_ms", 1),
    "sync ms": ("sync_ms", 1),
    "async ms": ("async_ms", 1),
    "checkpoint ms": ("duration_ms", 0),
    "new KB": ("new_kb", 0),
}
COLOURS = {"aligned": "#1f77b4", "unaligned": "#5cb85c", "synchronous": "#c0504d"}


@dataclass(frozen=True)
class Variant:
    """``mode`` ``None``: no checkpoints but the one that ends the job."""

    mode: str | None = None
    interval_s: float | None = None

    @property
    def name(self) -> str:
        return "none" if self.mode is None else f"{self.mode}, {self.interval_s:g} s"

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"checkpoint_interval": self.interval_s, "recovery": "rollback"}
        return options if self.mode is None else {**options, "checkpoint_mode": self.mode}


@dataclass(frozen=True)
class OverheadSettings(TextSettings):
    """What to run. ``seconds`` are measured in each run, more where two checkpoints take longer."""

    intervals: tuple[float, ...] = option(
        (0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
        positive_numbers,
        metavar="S,...",
        help="between checkpoints (default: 0.25,0.5,1,2,5,10)",
    )
    modes: tuple[str, ...] = option(CHECKPOINT_MODES, choices(CHECKPOINT_MODES), metavar=",".join(CHECKPOINT_MODES))
    parallelism: int = option(2, positive, metavar="N")
    rounds: int = option(3, positive, metavar="N", help="of every variant (default: 3)")
    seconds: float = option(8.0, positive_number, metavar="S", help="measured in each run")
    seed: int = option(1, int, metavar="S")

    @property
    def groups(self) -> dict[float, list[Variant]]:
        """What runs side by side, by interval."""
        return {interval: [Variant(), *(Variant(mode, interval) for mode in self.modes)] for interval in self.intervals}

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"parallelism": self.parallelism, **self.job_options(), **variant.options()}

    def seconds_of(self, variant: Variant) -> float:
        return max(self.seconds, LEAST_CHECKPOINTS * (variant.interval_s or 0.0))

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for variant in [variant for group in self.groups.values() for variant in group]:
            options_from({}, self.options(variant))


def draw(env: StreamEnvironment, text: str, repeat: int = ENDLESS) -> None:
    """Draw the job; the text is read ``repeat`` times."""
    words = env.read_text(text, name=SOURCE, repeat=repeat).tokenize("value", output="word", name=TOKENIZE)
    counts = words.key_by("word").count(name="words").map_batches(_bits_of_count, schema="bits long", name="bits")
    again = counts.key_by("bits").count(name="again").map_batches(_bits_of_count, schema="bits long", name="lower")
    again.key_by("bits").count(name=LAST).discard(name="out")


def _bits_of_count(batch: pa.RecordBatch) -> pa.RecordBatch:
    bits = np.bitwise_and(batch.column("count").to_numpy(), KEYS - 1)
    return pa.RecordBatch.from_arrays([pa.array(bits)], ["bits"])


def _run(context: Context[OverheadSettings], variant: Variant) -> dict[str, Any]:
    settings, stop = context.settings, context.stop
    env = StreamEnvironment(context.spark, **settings.options(variant))
    draw(env, str(context.text()))
    with env.execute("overhead") as job:
        run_until(job, running.SETTLE_S, stop)
        earlier = len(job.checkpoints())
        seconds = settings.seconds_of(variant)
        records_per_s, usage = measure(job, LAST, seconds, stop, lambda: _prolong(job, earlier, variant, stop))
        taken = complete(job, earlier)
        recoveries = len(job.recoveries())
        job.cancel()
    return {
        "records_per_s": records_per_s,
        "checkpoints": len(taken),
        **{name: median((checkpoint[name] for checkpoint in taken), 4) for name in (*PHASES, *BYTES)},
        "usage": usage,
        "recoveries": recoveries,
    }


def _prolong(job: JobHandle, earlier: int, variant: Variant, stop: threading.Event) -> None:
    """Let the job run until enough checkpoints are complete: without any, the run would not show what they cost.

    Raises ``RunError`` after ``LONGEST_S``.
    """
    running_s = job.running_s or 0.0
    longest_s = running_s + LONGEST_S
    while variant.mode is not None and len(complete(job, earlier)) < LEAST_CHECKPOINTS:
        running_s += POLL_S
        if running_s > longest_s:
            raise RunError(f"{variant.name}: fewer than {LEAST_CHECKPOINTS} checkpoints completed in time")
        run_until(job, running_s, stop)


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant: medians over the rounds, and what is lost against no checkpoints."""
    base = {(run["round"], run["beside_s"]): run["records_per_s"] for run in runs if run["mode"] is None}
    rows = []
    for (variant,), mine in grouped(runs, "variant").items():
        both = [(run["records_per_s"], base.get((run["round"], run["beside_s"]), 0.0)) for run in mine]
        losses = [100 * (1 - with_them / without) for with_them, without in both if without > 0]
        middle = {name: median((run[name] for run in mine), 4) for name in ("records_per_s", "checkpoints", *PHASES)}
        rows.append(
            {
                "variant": variant,
                "mode": mine[0]["mode"],
                "interval_s": mine[0]["interval_s"],
                "runs": len(mine),
                **middle,
                "loss_percent": median(losses, 4),
                "bytes_new": median((run["bytes_new"] for run in mine), 4),
            }
        )
    return rows


def throughput_by_interval(content: dict[str, Any], target: Path) -> bool:
    """Records per second, in percent of those of the runs without checkpoints beside them, against the interval; a line
    for each mode. ``False``: nothing to draw.
    """
    rows = [row for row in content["summary"] if row["mode"] is not None and row["loss_percent"] is not None]
    if not rows:
        return False
    base = {(run["round"], run["beside_s"]): run["records_per_s"] for run in content["runs"] if run["mode"] is None}
    with picture(target) as (_, axes):
        axes.axhline(100, color="black", linestyle="--", linewidth=1, label="no checkpoints")
        for (mode,), mine in grouped(rows, "mode").items():
            colour = COLOURS.get(mode)
            medians = sorted((row["interval_s"], 100 - row["loss_percent"]) for row in mine)
            axes.plot(*zip(*medians, strict=True), marker="o", color=colour, label=f"{mode} (median)")
            runs = [run for run in content["runs"] if run["mode"] == mode and (run["round"], run["beside_s"]) in base]
            found = [100 * run["records_per_s"] / base[run["round"], run["beside_s"]] for run in runs]
            axes.scatter([run["interval_s"] for run in runs], found, s=8, alpha=0.4, color=colour, linewidths=0)
        intervals = sorted({row["interval_s"] for row in rows})
        axes.set_xscale("log")
        axes.set_xticks(intervals, [f"{interval:g}" for interval in intervals])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0)
        axes.set_xlabel("seconds between checkpoints")
        axes.set_ylabel("throughput, % of none beside it")
        axes.grid(axis="y", linewidth=0.3, alpha=0.6)
        axes.legend(fontsize=8, loc="lower right")
    return True


def runs(context: Context[OverheadSettings]) -> Generator[dict[str, Any], None, None]:
    for round_number in range(context.settings.rounds):
        for interval, group in context.settings.groups.items():
            for variant in in_turn(group, round_number):
                context.begin(f"round {round_number + 1}, {variant.name}")
                case = {"variant": variant.name, **asdict(variant), "round": round_number, "beside_s": interval}
                yield {**case, **_run(context, variant)}


def tables(content: dict[str, Any]) -> list[object]:
    title = "Throughput by checkpoints, medians; loss against none beside them"
    rows = [{**row, "new_kb": row["bytes_new"] and row["bytes_new"] / 1e3} for row in content["summary"]]
    cells = ((row["variant"], *numbers(row, COLUMNS)) for row in rows)
    return [plain_table(title, ("checkpoints",), tuple(COLUMNS), cells)]


EXPERIMENT = Experiment(
    "overhead",
    OverheadSettings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: settings.rounds * len(settings.intervals) * (1 + len(settings.modes)),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs)},
    tables=tables,
    pictures=(("overhead.png", throughput_by_interval),),
)
