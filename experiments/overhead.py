"""What checkpoints cost: ``flinkplus experiment overhead``.

After figure 6 of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015): six operators,
three shuffles, keyed counts and the offsets of sources as state, a fixed input at unlimited rate; its running time
against the interval between checkpoints, for each mode, and without any but the one that ends the job.

The job: lines | tokenize | count by word | count by some bits of that count | count by some bits of that count |
nowhere. Every record passes three shuffles; the state is as large as the vocabulary, and all of it changes.

Rules: for each interval the modes, and none, take turns, in an order that turns round with every round; what
checkpoints cost is the median of the ratios against the run without any beside them: the machine's speed changes over
minutes. Recovery is by rollback, so that nothing is measured but checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.harness.arguments import choices, option, positive_numbers
from experiments.harness.console import interval, numbers, plain_table
from experiments.harness.experiment import Experiment
from experiments.harness.pictures import BLACK, BLUE, FONT_SIZE, GREEN, ORANGE, draw_medians, legend_above, picture
from experiments.harness.processes import ProcessSampler
from experiments.harness.running import ENDLESS, WORDS, Context, S, TextSettings, complete, wait_until
from experiments.harness.statistics import grouped, in_turn, median, with_interval
from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.arguments import positive
from flinkplus.config import CHECKPOINT_MODES, options_from

RUN_S = 300.0
LEAST_WORDS_PER_S = 50_000
"""A run may take ``RUN_S`` and the time for its input at this rate."""
SOURCE, TOKENIZE, LAST = "lines", "tokenize", "last"
KEYS = 1 << 14
"""Of the second and third shuffle; a power of two."""
BYTES = ("bytes_new", "bytes_total")
PHASES = ("trigger_ms", "alignment_ms", "sync_ms", "async_ms", "durable_ms", "duration_ms")
COLUMNS = {
    "runs": ("n", 0),
    "taken": ("checkpoints", 0),
    "align": ("alignment_ms", 1),
    "sync": ("sync_ms", 1),
    "async": ("async_ms", 1),
    "all": ("duration_ms", 0),
    "KB": ("new_kb", 0),
}
COLOURS = {"aligned": BLUE, "unaligned": GREEN, "synchronous": ORANGE}


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
    """What to run."""

    intervals: tuple[float, ...] = option(
        (0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
        positive_numbers,
        metavar="S,...",
        help="between checkpoints (default: 0.25,0.5,1,2,5,10)",
    )
    modes: tuple[str, ...] = option(CHECKPOINT_MODES, choices(CHECKPOINT_MODES), metavar=",".join(CHECKPOINT_MODES))
    parallelism: int = option(2, positive, metavar="N")
    rounds: int = option(10, positive, metavar="N", help="of every variant (default: 10)")
    repeat: int = option(24, positive, metavar="N", help="1.1 M words are read N times over (24)")
    seed: int = option(1, int, metavar="S")

    @property
    def groups(self) -> dict[float, list[Variant]]:
        """What runs side by side, by interval."""
        return {interval: [Variant(), *(Variant(mode, interval) for mode in self.modes)] for interval in self.intervals}

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"parallelism": self.parallelism, **self.job_options(), **variant.options()}

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


def run_to_end(context: Context[S], options: dict[str, Any], text: Path, repeat: int) -> dict[str, Any]:
    """Run the job over its fixed input. ``seconds``: from the start of its subtasks to the end of the job;
    ``checkpoints``: complete ones, the one that ends the job among them; medians are of the others.
    """
    env = StreamEnvironment(context.spark, **options)
    draw(env, str(text), repeat)
    deadline = time.monotonic() + RUN_S + WORDS * repeat / LEAST_WORDS_PER_S
    with env.execute("fixed-input") as job:
        with ProcessSampler(job.slot_pids) as sampler:
            wait_until(job, lambda: job.done, deadline, context.stop)
        job.await_finish()
        metrics, taken = job.metrics(), complete(job)[:-1]
        return {
            "seconds": metrics["running_s"],
            "checkpoints": metrics["checkpoints_completed"],
            **{name: median((checkpoint[name] for checkpoint in taken), 4) for name in (*PHASES, *BYTES)},
            "usage": sampler.figures(),
            "recoveries": len(job.recoveries()),
        }


def summarize(runs: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each variant: medians over the rounds, and what is lost against no checkpoints, both with intervals."""
    base = {(run["round"], run["beside_s"]): run["seconds"] for run in runs if run["mode"] is None}
    rows = []
    for (variant,), mine in grouped(runs, "variant").items():
        both = [(run["seconds"], base.get((run["round"], run["beside_s"]), 0.0)) for run in mine]
        losses = [100 * (with_them / without - 1) for with_them, without in both if without > 0]
        middle = {name: median((run[name] for run in mine), 4) for name in ("checkpoints", *PHASES, "bytes_new")}
        rows.append(
            {
                "variant": variant,
                "mode": mine[0]["mode"],
                "interval_s": mine[0]["interval_s"],
                "n": len(mine),
                **with_interval("running", "s", (run["seconds"] for run in mine), seed),
                **with_interval("loss", "percent", losses, seed),
                **middle,
            }
        )
    return rows


def time_by_interval(content: dict[str, Any], target: Path) -> bool:
    """Running time against the interval, medians with their 95 % interval and every run as a dot; a line for each mode,
    and one across for no checkpoints. ``False``: nothing to draw.
    """
    rows = [row for row in content["summary"] if row["mode"] is not None]
    if not rows:
        return False
    with picture(target, (8, 5)) as (_, axes):
        for none in (row for row in content["summary"] if row["mode"] is None):
            axes.axhline(none["running_s"], color=BLACK, linestyle="--", linewidth=1.5, label="no checkpoints")
            axes.axhspan(none["running_low_s"], none["running_high_s"], color=BLACK, alpha=0.12, linewidth=0)
        modes = grouped(rows, "mode")
        for at, ((mode,), group) in enumerate(modes.items()):
            aside = 1 + 0.05 * (at - (len(modes) - 1) / 2)  # so that intervals do not hide each other
            mine = sorted(group, key=lambda row: float(row["interval_s"]))
            draw_medians(
                axes, [aside * row["interval_s"] for row in mine], mine, "running", "s", color=COLOURS[mode], label=mode
            )
            runs = [run for run in content["runs"] if run["mode"] == mode]
            places = [aside * run["interval_s"] for run in runs]
            axes.scatter(places, [run["seconds"] for run in runs], s=10, alpha=0.4, color=COLOURS[mode], linewidths=0)
        intervals = sorted({row["interval_s"] for row in rows})
        axes.set_xscale("log")
        axes.set_xticks(intervals, [f"{interval_s:g}" for interval_s in intervals])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0)
        axes.tick_params(labelsize=FONT_SIZE)
        axes.set_xlabel("snapshot interval, s", fontsize=FONT_SIZE)
        axes.set_ylabel("running time, s (median, 95 % interval)", fontsize=FONT_SIZE)
        axes.grid(axis="y", linewidth=0.3, alpha=0.6)
        legend_above(axes, 1 + len(modes))
    return True


def runs(context: Context[OverheadSettings]) -> Generator[dict[str, Any], None, None]:
    settings, text = context.settings, context.text()
    for round_number in range(settings.rounds):
        for beside_s, group in settings.groups.items():
            for variant in in_turn(group, round_number):
                context.begin(f"round {round_number + 1}, {variant.name}")
                case = {"variant": variant.name, **asdict(variant), "round": round_number, "beside_s": beside_s}
                yield {**case, **run_to_end(context, settings.options(variant), text, settings.repeat)}


def tables(content: dict[str, Any]) -> list[object]:
    title = "Running time by checkpoints, medians (95 % interval); loss against none beside them; parts in ms"
    rows = [{**row, "new_kb": row["bytes_new"] and row["bytes_new"] / 1e3} for row in content["summary"]]
    cells = (
        (row["variant"], interval(row, "running", "s"), interval(row, "loss", "percent", 1), *numbers(row, COLUMNS))
        for row in rows
    )
    return [plain_table(title, ("checkpoints",), ("running time s", "loss %", *COLUMNS), cells)]


EXPERIMENT = Experiment(
    "overhead",
    OverheadSettings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: settings.rounds * len(settings.intervals) * (1 + len(settings.modes)),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.seed)},
    tables=tables,
    pictures=(("overhead.png", time_by_interval),),
)
