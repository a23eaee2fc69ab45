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

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.table import Table

from experiments.recovery.processes import ProcessSampler
from experiments.recovery.report import Document, number, plain_table
from experiments.running import RunError, run_until
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.config import CHECKPOINT_MODES, options_from
from flinkplus.corpus import write_corpus

WORDS = 1_100_000
VOCABULARY = 50_000
ENDLESS = 1_000_000_000
SETTLE_S = 2.0
LEAST_CHECKPOINTS = 2
LONGEST_S = 60.0
"""How long a run is prolonged, at most, until it has completed ``LEAST_CHECKPOINTS``."""
POLL_S = 0.05
SOURCE, TOKENIZE, LAST = "lines", "tokenize", "last"
KEYS = 1 << 14
"""Of the second and third shuffle; a power of two."""
PHASES = ("trigger_ms", "alignment_ms", "sync_ms", "async_ms", "durable_ms", "duration_ms")


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
class OverheadSettings:
    """What to run. ``seconds`` are measured in each run, more where two checkpoints take longer."""

    intervals: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
    modes: tuple[str, ...] = CHECKPOINT_MODES
    parallelism: int = 2
    rounds: int = 3
    seconds: float = 8.0
    seed: int = 1

    @property
    def groups(self) -> dict[float, list[Variant]]:
        """What runs side by side, by interval."""
        return {interval: [Variant(), *(Variant(mode, interval) for mode in self.modes)] for interval in self.intervals}

    @property
    def runs(self) -> int:
        """How many there are in all."""
        return self.rounds * len(self.intervals) * (1 + len(self.modes))

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"parallelism": self.parallelism, **variant.options()}

    def seconds_of(self, variant: Variant) -> float:
        return max(self.seconds, LEAST_CHECKPOINTS * (variant.interval_s or 0.0))

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        for variant in [variant for group in self.groups.values() for variant in group]:
            options_from({}, self.options(variant))


def overhead_document(settings: OverheadSettings, path: Path) -> Document:
    return Document("overhead", settings, path, lambda runs: {"summary": summarize(runs)})


def run_all(spark: SparkSession, settings: OverheadSettings, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """The figures of one run after the other. Raises ``RunError`` soon after ``stop`` is set."""
    with tempfile.TemporaryDirectory(prefix="flinkplus-overhead-") as directory:
        text = Path(directory) / "zipf.txt"
        write_corpus(text, WORDS, VOCABULARY, settings.seed)
        for round_number in range(settings.rounds):
            for interval, group in settings.groups.items():
                for variant in group if round_number % 2 == 0 else group[::-1]:
                    figures = _run(spark, settings, variant, text, stop)
                    place = {"round": round_number, "beside_s": interval}
                    yield {"variant": variant.name, **asdict(variant), **place, **figures}


def draw(env: StreamEnvironment, text: str, repeat: int = ENDLESS) -> None:
    """Draw the job; the text is read ``repeat`` times."""
    words = env.read_text(text, name=SOURCE, repeat=repeat).tokenize("value", output="word", name=TOKENIZE)
    counts = words.key_by("word").count(name="words").map_batches(_bits_of_count, schema="bits long", name="bits")
    again = counts.key_by("bits").count(name="again").map_batches(_bits_of_count, schema="bits long", name="lower")
    again.key_by("bits").count(name=LAST).discard(name="out")


def _bits_of_count(batch: pa.RecordBatch) -> pa.RecordBatch:
    bits = np.bitwise_and(batch.column("count").to_numpy(), KEYS - 1)
    return pa.RecordBatch.from_arrays([pa.array(bits)], ["bits"])


def _run(
    spark: SparkSession, settings: OverheadSettings, variant: Variant, text: Path, stop: threading.Event
) -> dict[str, Any]:
    env = StreamEnvironment(spark, **settings.options(variant))
    draw(env, str(text))
    with env.execute("overhead") as job:

        def done() -> int:
            return sum(job.rows_out(LAST).values())

        run_until(job, SETTLE_S, stop)
        begun_s, before, earlier = time.monotonic(), done(), len(job.checkpoints())
        with ProcessSampler(job.slot_pids) as sampler:
            run_until(job, SETTLE_S + settings.seconds_of(variant), stop)
            _prolong(job, earlier, variant, stop)
            ended_s, after = time.monotonic(), done()
        complete = _complete(job, earlier)
        recoveries = len(job.recoveries())
        job.cancel()
    return {
        "records_per_s": round((after - before) / (ended_s - begun_s), 1),
        "checkpoints": len(complete),
        **{phase: _middle([c[phase] for c in complete if c[phase] is not None]) for phase in PHASES},
        "bytes_new": _middle([c["bytes_new"] for c in complete]),
        "bytes_total": _middle([c["bytes_total"] for c in complete]),
        "usage": sampler.figures(),
        "recoveries": recoveries,
    }


def _complete(job: JobHandle, earlier: int) -> list[dict[str, Any]]:
    """The completed ones of the job's checkpoints, without the first ``earlier``."""
    return [checkpoint for checkpoint in job.checkpoints()[earlier:] if checkpoint["status"] == "complete"]


def _prolong(job: JobHandle, earlier: int, variant: Variant, stop: threading.Event) -> None:
    """Let the job run until enough checkpoints are complete: without any, the run would not show what they cost.

    Raises ``RunError`` after ``LONGEST_S``.
    """
    running_s = job.running_s or 0.0
    longest_s = running_s + LONGEST_S
    while variant.mode is not None and len(_complete(job, earlier)) < LEAST_CHECKPOINTS:
        running_s += POLL_S
        if running_s > longest_s:
            raise RunError(f"{variant.name}: fewer than {LEAST_CHECKPOINTS} checkpoints completed in time")
        run_until(job, running_s, stop)


def _middle(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant: medians over the rounds, and what is lost against no checkpoints."""
    base = {(run["round"], run["beside_s"]): run["records_per_s"] for run in runs if run["mode"] is None}
    rows = []
    for name in dict.fromkeys(run["variant"] for run in runs):
        mine = [run for run in runs if run["variant"] == name]
        both = [(run["records_per_s"], base.get((run["round"], run["beside_s"]), 0.0)) for run in mine]
        losses = [100 * (1 - with_them / without) for with_them, without in both if without > 0]
        rows.append(
            {
                "variant": name,
                "mode": mine[0]["mode"],
                "interval_s": mine[0]["interval_s"],
                "runs": len(mine),
                "records_per_s": _middle([run["records_per_s"] for run in mine]),
                "loss_percent": _middle(losses),
                "checkpoints": _middle([run["checkpoints"] for run in mine]),
                **{phase: _middle([run[phase] for run in mine if run[phase] is not None]) for phase in PHASES},
                "bytes_new": _middle([run["bytes_new"] for run in mine if run["bytes_new"] is not None]),
            }
        )
    return rows


def table_of(content: dict[str, Any]) -> Table:
    """For people."""
    headings = ("records/s", "loss %", "taken", "alignment ms", "sync ms", "async ms", "checkpoint ms", "new KB")
    table = plain_table("Throughput by checkpoints, medians; loss against none beside them", ("checkpoints",), headings)
    for row in content["summary"]:
        table.add_row(
            row["variant"],
            number(row["records_per_s"], 0),
            number(row["loss_percent"]),
            number(row["checkpoints"], 0),
            number(row["alignment_ms"]),
            number(row["sync_ms"]),
            number(row["async_ms"]),
            number(row["duration_ms"], 0),
            number(None if row["bytes_new"] is None else row["bytes_new"] / 1e3, 0),
        )
    return table
