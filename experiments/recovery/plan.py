"""Which subtasks are killed when: jobs, and the kills of each. Pure.

Rules: a kill's moment and subtask depend on the seed, the parallelism, the failure and the number of the kill, not on
the recovery mode nor on the size of the state. Of the kills of one kind, each falls into another part of the checkpoint
interval: they are as many equal parts as kills, in an order drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.harness.statistics import spread_shares

SIGKILL, EXCEPTION = FAILURES = ("sigkill", "exception")
HOST_FAILURES = ("host", "hang", "cut")
"""On a cluster: a host is killed; it is frozen, or is cut off from all others, for some seconds."""
DRIVER = "driver"
"""SIGKILL of the driver's process, which runs under ``flinkplus supervise``."""


@dataclass(frozen=True)
class PlannedKill:
    """``run``: its number among the kills of its kind; ``kill``: the one in its job. ``seed``: of its subtask, number
    ``index`` of ``stage``. ``offset_s``: from the trigger of a checkpoint."""

    run: int
    kill: int
    seed: int
    stage: str
    index: int
    offset_s: float

    @property
    def subtask(self) -> str:
        return f"{self.stage}[{self.index}]"


@dataclass(frozen=True)
class Case:
    """One job, number ``job`` of its kind, and its kills."""

    parallelism: int
    recovery: str
    failure: str
    state_keys: int
    job: int
    kills: tuple[PlannedKill, ...]


@dataclass(frozen=True)
class Kind:
    """Kills that differ in their moment and subtask only. ``stages``: whose subtasks are killed."""

    seed: int
    parallelism: int
    failure: str
    stages: tuple[str, ...]

    def jobs(self, kills: int, per_job: int, interval: float) -> Iterator[tuple[PlannedKill, ...]]:
        """The kills of each job."""
        moments = offsets(kills, interval, self._seed_of())
        for first in range(0, kills, per_job):
            numbers = range(first, min(kills, first + per_job))
            yield tuple(self._planned(run, run - first, moments[run]) for run in numbers)

    def _planned(self, run: int, kill: int, offset_s: float) -> PlannedKill:
        seed = self._seed_of(0, run)  # 0: was the size; published runs have it
        drawn = int(np.random.default_rng(seed).integers(len(self.stages) * self.parallelism))
        stage, index = divmod(drawn, self.parallelism)
        return PlannedKill(run, kill, seed, self.stages[stage], index, offset_s)

    def _seed_of(self, *more: int) -> int:
        number = (*FAILURES, *HOST_FAILURES, DRIVER).index(self.failure)
        return int(np.random.SeedSequence((self.seed, self.parallelism, number, *more)).generate_state(1)[0])


def offsets(count: int, interval: float, seed: int) -> list[float]:
    """A moment in each of ``count`` equal parts of an interval."""
    return [interval * share for share in spread_shares(count, np.random.default_rng(seed))]
