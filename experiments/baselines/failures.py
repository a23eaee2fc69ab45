"""Which failures are made, when and where: decided before any run, the same for all engines.

Rules: of the *n* failures of a kind that one job on one engine has at one parallelism, over all runs, number *j* falls
into one of *n* equal parts of the checkpoint interval, a different one for each *j*, in shuffled order, at a moment
drawn from that part. So the interval is covered evenly, however few failures there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.baselines.case import FAILURES, FLINKPLUS, WORKER, Failure
from experiments.harness.statistics import spread_shares


def failures_of(engine: str, kinds: Sequence[str] = FAILURES) -> tuple[str, ...]:
    """Those of ``kinds`` that an engine has processes for. Flink and Spark have no worker below the executor: their
    smallest process is what FlinkPlus's ``taskmanager`` is compared with."""
    return tuple(kind for kind in kinds if engine == FLINKPLUS or kind != WORKER)


def drawn(kind: str, count: int, parallelism: int, seed: Sequence[int]) -> list[Failure]:
    """All failures of one kind, in the order in which they happen. ``seed``: numbers that name job and experiment."""
    generator = np.random.default_rng((*seed, FAILURES.index(kind), parallelism))
    moments = spread_shares(count, generator)
    return [Failure(kind, round(share, 6), int(generator.integers(parallelism))) for share in moments]
