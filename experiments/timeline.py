"""A picture of one kill: ``python -m experiments.timeline [--out DIR] [--parallelism N] [--rate WORDS_PER_S]``.

Runs WordCount at a steady rate, kills the process that hosts ``count[1]`` with SIGKILL, and draws what left each
subtask of
``count`` per tenth of a second, as the slots reported it, with the phases of the recovery. Rows that a rollback
takes back
are drawn as what they are: the curve shows new rows only, so it is flat until the subtask is beyond where it was.

Writes ``timeline.png`` and the samples beside it (``timeline.json``).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli import session
from flinkplus.cli.main import write_json
from flinkplus.cli.wordcount import COUNT, WordCount, draw
from flinkplus.corpus import write_demo

KILL_AT_S = 5.0
END_AT_S = 10.0
SAMPLE_S = 0.02
BIN_S = 0.1
REPEAT = 1_000


def record(parallelism: int, rate: float) -> dict[str, Any]:
    """One run with one kill; returns samples (seconds of running -> rows per subtask) and the recovery."""
    spark = session.open_session(session.default_master(parallelism))
    try:
        with tempfile.TemporaryDirectory(prefix="flinkplus-timeline-") as directory:
            path = str(Path(directory) / "demo.txt")
            write_demo(path)
            env = StreamEnvironment(spark, parallelism=parallelism, heartbeat_interval=0.02)
            draw(env, WordCount(rate=rate, repeat=REPEAT), path)
            samples: list[tuple[float, dict[str, int]]] = []
            killed_at: float | None = None
            with env.execute("timeline") as job:
                while (now := job.running_s or 0.0) < END_AT_S and not job.done:
                    if killed_at is None and now >= KILL_AT_S:
                        killed_at = now
                        job.kill(f"{COUNT}:1")
                    if job.running_s is not None:
                        samples.append((now, job.rows_out(COUNT)))
                    time.sleep(SAMPLE_S)
                recoveries = job.recoveries()
    finally:
        spark.stop()
    return {
        "parallelism": parallelism,
        "rate": rate,
        "killed_at_s": killed_at,
        "recovery": recoveries[0],
        "samples": samples,
    }


def new_rows_per_s(samples: list[tuple[float, dict[str, int]]], subtask: str) -> tuple[list[float], list[float]]:
    """Rows per second of a subtask in bins of ``BIN_S``, counting only rows beyond the most it ever had."""
    times: list[float] = []
    rates: list[float] = []
    best = samples[0][1].get(subtask, 0)
    edge, at_edge = samples[0][0] + BIN_S, best
    for now, rows in samples:
        best = max(best, rows.get(subtask, 0))
        if now >= edge:
            times.append(edge - BIN_S / 2)
            rates.append((best - at_edge) / BIN_S)
            at_edge, edge = best, edge + BIN_S
    return times, rates


def picture(run: dict[str, Any], target: Path) -> None:
    """Draw the run."""
    figure, axes = plt.subplots(figsize=(9, 4), dpi=120)
    killed, recovery = run["killed_at_s"], run["recovery"]
    for subtask in sorted(run["samples"][-1][1]):
        times, rates = new_rows_per_s(run["samples"], subtask)
        axes.plot(times, [rate / 1000 for rate in rates], linewidth=1.4, label=subtask)
    axes.axvline(killed, color="black", linestyle="--", linewidth=1)
    begin = killed
    colours = {"detect": "#d9534f", "promote": "#f0ad4e", "restore": "#5bc0de", "replay": "#5cb85c"}
    for phase, colour in colours.items():
        took = (recovery[f"{phase}_ms"] or 0.0) / 1000
        axes.axvspan(begin, begin + took, color=colour, alpha=0.25, label=f"{phase} {took * 1000:.0f} ms")
        begin += took
    axes.set_xlim(killed - 2.5, killed + 3.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the job began to run")
    axes.set_ylabel("new rows per second (thousands)")
    total = recovery["recovery_ms"]
    took = "not recovered in time" if total is None else f"first new output of the killed slot after {total:.0f} ms"
    axes.set_title(f"SIGKILL of one slot, recovery by {recovery['mode']}: {took}", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", ncols=2)
    figure.tight_layout()
    figure.savefig(target)
    plt.close(figure)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.timeline", description="A picture of one kill.")
    parser.add_argument("--out", default="results", metavar="DIR")
    parser.add_argument("--parallelism", type=int, default=4, metavar="N")
    parser.add_argument("--rate", type=float, default=60_000.0, metavar="WORDS_PER_S")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    run = record(arguments.parallelism, arguments.rate)
    write_json(str(out / "timeline.json"), run)
    picture(run, out / "timeline.png")
    print(f"{out / 'timeline.png'}: recovered after {run['recovery']['recovery_ms']} ms")


if __name__ == "__main__":
    main()
