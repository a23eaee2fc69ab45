"""What a planned move costs: ``python -m experiments.handover``.

WordCount at a steady rate; a drawn subtask of ``count`` is moved to a drawn slot, again and again. The *output gap* of
a partition is the longest time between two new outputs of it (``measure``), here around the handover: from its order
to the registry until ``AFTER_S`` later. It is told for the partition that moved and for the others, and, with no move
in it, for the same span of time before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments import console
from experiments.recovery.measure import longest_gap_s, milliseconds
from experiments.running import one_session, wait_until
from flinkplus.cli.wordcount import COUNT
from flinkplus.protocol.vocabulary.phases import DURATIONS

BEFORE_S, AFTER_S = 0.2, 0.5
PATIENCE_S = 60.0
CHECKPOINTS_BEFORE = 3
TIMES = (*(f"{phase}_ms" for phase in DURATIONS[1:]), "registry_ms")


def run(parallelism: int, moves: int, rate: float, interval: float, seed: int) -> dict[str, Any]:
    """The figures of one job with so many moves."""
    from flinkplus.api.environment import StreamEnvironment

    drawn = np.random.default_rng(seed)
    stop = threading.Event()
    with one_session(None, parallelism) as spark, tempfile.TemporaryDirectory(prefix="flinkplus-handover-") as folder:
        env = StreamEnvironment(
            spark, parallelism=parallelism, checkpoint_interval=interval, trace_output=str(Path(folder) / "trace")
        )
        words = env.generate(lambda i: (f"word-{i * 7919 % 5003}",), schema="word string", rate=rate, name="words")
        words.key_by("word").count(name=COUNT).to_parquet(str(Path(folder) / "out"), name="out")
        with env.execute("handover") as job:

            def until(condition: Any) -> None:
                wait_until(job, condition, time.monotonic() + PATIENCE_S, stop)

            until(lambda: job.metrics()["checkpoints_completed"] >= CHECKPOINTS_BEFORE)
            for done in range(moves):
                chains = {name: slots for name, slots in job.chains().items() if name.startswith(COUNT)}
                name = sorted(chains)[int(drawn.integers(len(chains)))]
                slot = int(drawn.choice([slot for slot in range(parallelism) if slot != chains[name][0]]))
                job.migrate(f"{COUNT}:{name.rstrip(']').rpartition('[')[2]}", slot).await_done(PATIENCE_S)
                until(lambda done=done: len(job.handovers()) > done)
                stop.wait(2 * AFTER_S)
            job.drain()
            job.await_finish(PATIENCE_S)
            found = [_figures(handover, job.output_trace()) for handover in job.handovers()]
    return {"parallelism": parallelism, "rate": rate, "interval": interval, "seed": seed, "moves": found}


def _figures(handover: dict[str, Any], trace: dict[str, list[tuple[float, int]]]) -> dict[str, Any]:
    begin_s = handover["begin_s"]

    def gap_ms(names: list[str], begin_s: float, end_s: float) -> float | None:
        gaps = [longest_gap_s(trace[name], begin_s, end_s) for name in names]
        return milliseconds(0.0, max((gap for gap in gaps if gap is not None), default=None))

    moved = [name for name in trace if name in handover["subtasks"]]
    others = [name for name in trace if name not in moved]
    until_s, span_s = begin_s + AFTER_S, AFTER_S + BEFORE_S
    return {
        "subtasks": handover["subtasks"],
        "reason": handover["reason"],
        "gap_moved_ms": gap_ms(moved, begin_s, until_s),
        "gap_others_ms": gap_ms(others, begin_s, until_s),
        "gap_before_ms": gap_ms(list(trace), begin_s - BEFORE_S - span_s, begin_s - BEFORE_S),
        **{name: handover[name] for name in TIMES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.handover", description=__doc__)
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--rate", type=float, default=10_000.0, help="words a second (%(default)s)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    content = run(arguments.parallelism, arguments.moves, arguments.rate, arguments.interval, arguments.seed)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(content, indent=1))
    for move in content["moves"]:
        console.show(f"{move['reason']}: " + ", ".join(f"{key} {move[key]}" for key in move if key.endswith("_ms")))
    for name in ("gap_moved_ms", "gap_others_ms", "gap_before_ms", *TIMES):
        known = [move[name] for move in content["moves"] if move[name] is not None]
        if known:
            console.show(f"{name}: median {statistics.median(known):.1f}, most {max(known):.1f}, of {len(known)}")


if __name__ == "__main__":
    main()
