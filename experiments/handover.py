"""What a planned move costs: ``python -m experiments.handover``.

WordCount at a steady rate; a drawn subtask of ``count`` is moved to a drawn slot, again and again. The *output gap* of
a partition is the longest time between two new outputs of it (``measure``), here around the handover: from its order
to the registry until ``AFTER_S`` later. It is reported for the partition that moved and for the others, and for the
same span of time before, without a move.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import console
from experiments.harness.arguments import option, script
from experiments.harness.document import write_figures
from experiments.harness.running import one_session, wait_until
from experiments.recovery.measure import gap_ms
from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.wordcount import COUNT
from flinkplus.protocol.vocabulary.phases import DURATIONS

BEFORE_S, AFTER_S = 0.2, 0.5
PATIENCE_S = 60.0
CHECKPOINTS_BEFORE = 3
TIMES = (*(f"{phase}_ms" for phase in DURATIONS[1:]), "registry_ms")


def run(settings: Namespace) -> list[dict[str, Any]]:
    """The figures of each move of one job."""
    drawn = np.random.default_rng(settings.seed)
    parallelism = settings.parallelism
    with one_session(None, parallelism) as spark, tempfile.TemporaryDirectory(prefix="flinkplus-handover-") as folder:
        trace = str(Path(folder) / "trace")
        env = StreamEnvironment(
            spark, parallelism=parallelism, checkpoint_interval=settings.interval, trace_output=trace
        )
        words = env.generate(
            lambda i: (f"word-{i * 7919 % 5003}",), schema="word string", rate=settings.rate, name="words"
        )
        words.key_by("word").count(name=COUNT).to_parquet(str(Path(folder) / "out"), name="out")
        with env.execute("handover") as job:

            def until(condition: Callable[[], bool]) -> None:
                wait_until(job, condition, time.monotonic() + PATIENCE_S)

            until(lambda: job.metrics()["checkpoints_completed"] >= CHECKPOINTS_BEFORE)
            for done in range(settings.moves):
                chains = {name: slots for name, slots in job.chains().items() if name.startswith(COUNT)}
                name = sorted(chains)[int(drawn.integers(len(chains)))]
                slot = int(drawn.choice([slot for slot in range(parallelism) if slot != chains[name][0]]))
                job.migrate(f"{COUNT}:{name.rstrip(']').rpartition('[')[2]}", slot).await_done(PATIENCE_S)
                until(lambda done=done: len(job.handovers()) > done)  # type: ignore[misc]
                time.sleep(2 * AFTER_S)
            job.drain()
            job.await_finish(PATIENCE_S)
            return [_figures(handover, job.output_trace()) for handover in job.handovers()]


def _figures(handover: dict[str, Any], trace: dict[str, list[tuple[float, int]]]) -> dict[str, Any]:
    begin_s = handover["begin_s"]
    moved = [name for name in trace if name in handover["subtasks"]]
    others = [name for name in trace if name not in moved]
    until_s, span_s = begin_s + AFTER_S, AFTER_S + BEFORE_S
    return {
        "subtasks": handover["subtasks"],
        "reason": handover["reason"],
        "gap_moved_ms": gap_ms(trace, moved, begin_s, until_s),
        "gap_others_ms": gap_ms(trace, others, begin_s, until_s),
        "gap_before_ms": gap_ms(trace, trace, begin_s - BEFORE_S - span_s, begin_s - BEFORE_S),
        **{name: handover[name] for name in TIMES},
    }


def main() -> None:
    settings = script(
        __doc__,
        parallelism=option(4, int),
        moves=option(10, int),
        rate=option(10_000.0, float, help="words a second (%(default)s)"),
        interval=option(1.0, float, help="seconds between checkpoints (%(default)s)"),
        seed=option(1, int),
    )
    moves = run(settings)
    given = {name: getattr(settings, name) for name in ("parallelism", "rate", "interval", "seed")}
    write_figures(settings.json, {**given, "moves": moves})
    for move in moves:
        console.show(f"{move['reason']}: " + ", ".join(f"{key} {move[key]}" for key in move if key.endswith("_ms")))
    for name in ("gap_moved_ms", "gap_others_ms", "gap_before_ms", *TIMES):
        known = [move[name] for move in moves if move[name] is not None]
        if known:
            console.show(f"{name}: median {statistics.median(known):.1f}, most {max(known):.1f}, of {len(known)}")


if __name__ == "__main__":
    main()
