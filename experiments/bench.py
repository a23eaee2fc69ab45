"""The benchmark: ``python -m experiments.bench [--json FILE] [--quick] [--soak-minutes M]``.

The engine alone, that is without standbys; ``flinkplus experiment cost`` measures their cost. What is measured,
each in this one run:

- *throughput*: WordCount emitting the running count of every word, RocksDB state, exactly-once, a checkpoint every
  second, unlimited rate, a Zipf text of 1.1 M words read over and over for 30 s at parallelism 2;
- *checkpoint cost*: the same for 15 s with and without checkpoints, in turn, three pairs; the median of the ratios;
- *scaling with input*: time per word for an input and for ten times that input, both bounded, with exact output rows;
- *snapshot*: the synchronous part at 100,000 dirty keys (``experiments.bench_state``);
- *steps*: the fixed cost of a step and of a message, and that of a row, by operator (``experiments.bench_steps``);
- *memory* (with ``--soak-minutes``): resident memory of the slots, first minute against last.

Figures are from this machine and this run; compare the ratios. Output is printed and, with ``--json``, written.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from experiments.bench_state import measure_sync_part
from experiments.bench_steps import measure as measure_steps
from experiments.harness.arguments import option, script
from experiments.harness.document import environment
from experiments.harness.running import ENDLESS, VOCABULARY, WORDS, one_session
from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.figures import write_json
from flinkplus.cli.wordcount import TOKENIZE, WordCount, draw, run_wordcount
from flinkplus.corpus import write_corpus

SEED = 1
PARALLELISM = 2
ALONE: dict[str, Any] = {"recovery": "rollback"}
MEMORY_PERIOD_S = 1.0
STEPS = ("throughput", "checkpoint_cost", "scaling", "snapshot", "steps", "memory")


def throughput(spark: SparkSession, path: str, seconds: float, interval: float | None) -> dict[str, Any]:
    """Words per second of a timed run, with the figures of its checkpoints."""
    run = WordCount(
        input=path,
        repeat=ENDLESS,
        duration_s=seconds,
        options={"parallelism": PARALLELISM, "checkpoint_interval": interval, **ALONE},
    )
    result = run_wordcount(spark, run, progress=False)
    complete = [c for c in result["checkpoints"] if c["status"] == "complete"]
    return {
        "words_per_s": result["words_per_s"],
        "words": result["words"],
        "output_rows": result["output_rows"],
        "elapsed_s": result["elapsed_s"],
        "checkpoints": len(complete),
        "checkpoint_ms_median": statistics.median(c["duration_ms"] for c in complete),
        "sync_ms_max": max(c["sync_ms"] for c in complete),
        "async_ms_median": statistics.median(c["async_ms"] for c in complete),
    }


def checkpoint_cost(spark: SparkSession, path: str, seconds: float, pairs: int) -> dict[str, Any]:
    """Throughput with checkpoints every second over throughput without, pair by pair."""
    ratios, with_them, without = [], [], []
    for pair in range(pairs):
        order: list[float | None] = [1.0, None] if pair % 2 == 0 else [None, 1.0]
        rates = {interval: throughput(spark, path, seconds, interval)["words_per_s"] for interval in order}
        with_them.append(rates[1.0])
        without.append(rates[None])
        ratios.append(rates[1.0] / rates[None])
    median = statistics.median(ratios)
    return {
        "ratio_median": round(median, 4),
        "cost_percent": round((1 - median) * 100, 2),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "words_per_s_with": with_them,
        "words_per_s_without": without,
    }


def scaling(spark: SparkSession, path: str, base: int) -> dict[str, Any]:
    """Time per word of ``base`` rounds of the input, and of ten times as many."""
    times = {}
    for repeat in (base, base * 10):
        run = WordCount(input=path, repeat=repeat, options={"parallelism": PARALLELISM, **ALONE})
        result = run_wordcount(spark, run, progress=False)
        if result["words"] != WORDS * repeat or result["output_rows"] != WORDS * repeat:
            raise AssertionError(f"{result['words']} words and {result['output_rows']} rows for {WORDS * repeat} words")
        times[repeat] = result["elapsed_s"] / result["words"] * 1e9
    return {
        "ns_per_word": round(times[base], 1),
        "ns_per_word_10x": round(times[base * 10], 1),
        "ratio": round(times[base * 10] / times[base], 3),
    }


def memory(spark: SparkSession, path: str, minutes: float) -> dict[str, Any]:
    """Resident memory of the slots in the first and the last minute of a run at unlimited rate."""
    env = StreamEnvironment(spark, parallelism=PARALLELISM, **ALONE)
    draw(env, WordCount(repeat=ENDLESS), path)
    samples: list[tuple[float, dict[int, int]]] = []
    with env.execute("memory") as job:
        while job.running_s is None:
            time.sleep(0.05)
        while (now := job.running_s or 0.0) < minutes * 60:
            sizes = {slot: psutil.Process(pid).memory_info().rss for slot, pid in job.slot_pids().items()}
            samples.append((now, sizes))
            time.sleep(MEMORY_PERIOD_S)
        words = job.metrics()["operators"][TOKENIZE]["rows_out"]
        job.drain()
        job.await_finish()
    return {"minutes": minutes, "words": words, "slots": _growth(samples, minutes * 60)}


def _growth(samples: list[tuple[float, dict[int, int]]], end_s: float) -> dict[str, Any]:
    span = min(60.0, end_s / 3)
    growth = {}
    for slot in samples[-1][1]:
        first = statistics.mean(sizes[slot] for at, sizes in samples if at < span and slot in sizes)
        last = statistics.mean(sizes[slot] for at, sizes in samples if at > end_s - span and slot in sizes)
        growth[str(slot)] = {
            "first_minute_mb": round(first / 1e6, 1),
            "last_minute_mb": round(last / 1e6, 1),
            "ratio": round(last / first, 4),
        }
    return growth


def run(settings: Namespace) -> dict[str, Any]:
    """All of it, or the steps that are named; returns the figures."""
    seconds, pair_seconds, pairs = (8.0, 5.0, 1) if settings.quick else (30.0, 15.0, 3)
    figures: dict[str, Any] = {
        **environment(),
        "corpus": {"words": WORDS, "vocabulary": VOCABULARY, "seed": SEED},
        "parallelism": PARALLELISM,
    }
    with tempfile.TemporaryDirectory(prefix="flinkplus-bench-") as directory:
        path = str(Path(directory) / "zipf.txt")
        write_corpus(path, WORDS, VOCABULARY, SEED)
        with one_session(None, PARALLELISM) as spark:
            steps: list[tuple[str, Callable[[], dict[str, Any]]]] = [
                ("throughput", lambda: throughput(spark, path, seconds, 1.0)),
                ("checkpoint_cost", lambda: checkpoint_cost(spark, path, pair_seconds, pairs)),
                ("scaling", lambda: scaling(spark, path, 2 if settings.quick else 8)),
                ("snapshot", measure_sync_part),
                ("steps", lambda: measure_steps(waves=20 if settings.quick else 100)),
            ]
            if settings.soak_minutes:
                steps.append(("memory", lambda: memory(spark, path, settings.soak_minutes)))
            for name, step in steps:
                if settings.only and name not in settings.only:
                    continue
                figures[name] = step()
                print(f"{name}: {json.dumps(figures[name])}", flush=True)
    return figures


def main() -> None:
    """Command line."""
    settings = script(
        "The benchmark of FlinkPlus.",
        quick=option(False, action="store_true", help="short runs, to see that everything works"),
        soak_minutes=option(0.0, float, metavar="M", help="memory over M minutes as well"),
        only=option(None, choices=STEPS, action="append", help="this step alone (may be repeated)"),
    )
    write_json(settings.json, run(settings))


if __name__ == "__main__":
    main()
