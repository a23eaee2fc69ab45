"""How long checkpoints take under back-pressure: aligned ones, unaligned ones, and aligned ones with a time-out.

Run: ``python -m experiments.bench_backpressure [--windows 16,64] [--parallelism 2] [--cost-ms 5] [--timeout 0.2]
[--checkpoints 8] [--json FILE]``. The job: numbers | count by key | slow count by key, which takes ``cost-ms`` for each
500 rows on top. Unloaded, the source keeps to a fifth of what the slow count can do; loaded, it does not, and all
channels fill up: ``window`` messages each, and what producers hold. Prints the median time from the trigger of a
checkpoint to its completion, and what it holds of messages that were in flight.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.table import Table

from experiments.harness.arguments import option, script, whole_numbers
from experiments.harness.console import plain_table, show
from experiments.harness.document import write_figures
from experiments.harness.running import complete, one_session, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 1_000
BATCH_ROWS = 500
UNLOADED = 0.2
"""Of what the slow count can do."""
SETTLE = 2
"""Checkpoints at the start that do not count: channels fill up meanwhile."""
INTERVAL_S = 0.5
PATIENCE_S = 120.0
ALIGNED, TIMED, UNALIGNED = "aligned", "aligned, time-out", "unaligned"
MODES = (ALIGNED, TIMED, UNALIGNED)


SHOWN = ("mode", "duration_ms", "alignment_ms", "in_flight_bytes")


@dataclass(frozen=True)
class Setting:
    """One run. ``window`` ``None``: unloaded."""

    mode: str
    window: int | None

    def options(self, timeout_s: float) -> dict[str, Any]:
        options: dict[str, Any] = {"checkpoint_mode": ALIGNED if self.mode == ALIGNED else UNALIGNED}
        if self.mode == TIMED:
            options["aligned_timeout"] = timeout_s
        return options if self.window is None else {**options, "window": self.window}


def numbers(start: int, count: int) -> pa.RecordBatch:
    """Rows from ``start`` on."""
    return pa.record_batch({"k": pa.array([number % KEYS for number in range(start, start + count)], pa.int64())})


def only_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the counts."""
    return batch.select(["k"])


def slowly(cost_s: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Takes ``cost_s`` for each ``BATCH_ROWS`` rows."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(cost_s * batch.num_rows / BATCH_ROWS)
        return batch

    return work


def measure(spark: SparkSession, setting: Setting, options: Namespace) -> dict[str, Any]:
    """Figures of one run. JSON-able."""
    from flinkplus.api.environment import StreamEnvironment

    cost_s = options.cost_ms / 1e3
    env = StreamEnvironment(
        spark,
        parallelism=options.parallelism,
        checkpoint_interval=INTERVAL_S,
        batch_rows=BATCH_ROWS,
        **setting.options(options.timeout),
    )
    rate = None if setting.window is not None else UNLOADED * options.parallelism * BATCH_ROWS / cost_s
    stream = env.generate(numbers, schema="k long", batches=True, rate=rate, name="numbers")
    stream = stream.key_by("k").count(name="first").map_batches(only_keys, schema="k long", name="keys")
    stream = stream.key_by("k").count(name="slow")
    stream.map_batches(slowly(cost_s), schema="k long, count long", name="slowly").discard(name="out")
    wanted = SETTLE + options.checkpoints
    with env.execute("backpressure") as job:
        wait_until(job, lambda: len(complete(job)) >= wanted, time.monotonic() + PATIENCE_S)
        found = complete(job)[SETTLE:wanted]
        job.cancel()

    def median(what: str) -> float:
        return round(statistics.median(checkpoint[what] for checkpoint in found), 1)

    return {
        **asdict(setting),
        "duration_ms": median("duration_ms"),
        "longest_ms": max(checkpoint["duration_ms"] for checkpoint in found),
        "alignment_ms": median("alignment_ms"),
        "in_flight_bytes": median("in_flight_bytes"),
        "modes": sorted({checkpoint["mode"] for checkpoint in found}),
        "checkpoints": [{what: checkpoint[what] for what in SHOWN} for checkpoint in found],
    }


def table(runs: list[dict[str, Any]]) -> Table:
    """One line for each run."""
    unloaded = {run["mode"]: run["duration_ms"] for run in runs if run["window"] is None}
    rows = (
        (
            run["mode"],
            "none" if run["window"] is None else f"window {run['window']}",
            f"{run['duration_ms']:,.0f} ms",
            f"{run['duration_ms'] / unloaded[run['mode']]:.2f}" if unloaded.get(run["mode"]) else "-",
            f"{run['longest_ms']:,.0f} ms",
            f"{run['in_flight_bytes'] / 1e3:,.0f} KB",
        )
        for run in runs
    )
    headings = ("duration", "by unloaded", "longest", "in flight")
    return plain_table("Checkpoints under back-pressure (median)", ("checkpoints", "load"), headings, rows)


def main() -> None:
    options = script(
        "Measure checkpoints under back-pressure.",
        windows=option((16, 64), whole_numbers(2), metavar="N,...", help="option window"),
        parallelism=option(2, int),
        cost_ms=option(5.0, float, help="of 500 rows, at the slow count"),
        timeout=option(0.2, float, help="option aligned_timeout, in seconds"),
        checkpoints=option(8, int, help="measured in each run"),
    )
    runs = []
    with one_session(None, options.parallelism) as spark:
        for mode in MODES:
            for window in (None, *options.windows):
                runs.append(measure(spark, Setting(mode, window), options))
                show(f"{mode}, window {window}: {runs[-1]['duration_ms']:,.1f} ms")
    show(table(runs))
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    write_figures(options.json, {"interval_s": INTERVAL_S, "batch_rows": BATCH_ROWS, **settings, "runs": runs})


if __name__ == "__main__":
    main()
