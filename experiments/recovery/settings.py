"""What to run: every combination of parallelism, size of state, failure, run and recovery mode, in a fixed order.

Rules: a run's text, moment and subtask depend on the seed, the parallelism, the failure and the number of the run, not
on the recovery mode nor on the size of the state, and these take turns: what else happens on the machine happens to
all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

RECOVERIES = ("standby", "partial", "rollback")
USUAL = ("standby", "rollback")
FAILURES = ("sigkill", "exception")
HOST_FAILURES = ("host", "hang", "cut")
"""On a cluster: a host is killed; it stands still, or is cut off from all others, for ``PAUSE_S``."""
PAUSE_S = 2.5
BALLAST_KEYS_PER_S = 40_000
CHECKPOINTS_BEFORE = 2
CHECKPOINTS_AFTER_FILL = 8
"""Complete checkpoints between the last of the ballast and the kill: what counts is its size, not its being written."""
INTERVALS = 3.5
"""Checkpoint intervals before the latest possible kill."""
AFTER_S = 5.0
FILL_TIMES = 2.5
"""As long as at the rate of the ballast alone is there for it: its checkpoints hold it up."""
HELD_ENTRIES = 60_000
"""Keys of each state in memory when there is ballast: all words fit, all of the ballast does not."""


@dataclass(frozen=True)
class Settings:
    """What to run. ``state_keys``: objects of 1 KB in the keyed state of the job, beside the words. ``hosts``: workers
    of the cluster, ``None`` without one.
    """

    parallelism: tuple[int, ...]
    recovery: tuple[str, ...] = USUAL
    failure: tuple[str, ...] = ("exception", "sigkill")
    runs: int = 10
    rate: float = 30_000.0
    interval: float = 1.0
    seed: int = 1
    replicas: int = 3
    state_keys: tuple[int, ...] = (0,)
    warm_up: bool = True
    hosts: int | None = None

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        alone = sorted(set(self.failure) & set(HOST_FAILURES))
        if self.hosts is None and alone:
            raise ConfigurationError(f"the failure {alone[0]} takes a cluster of hosts: --cluster namespaces")
        for recovery in self.recovery:
            options_from({}, {"recovery": recovery})
        for case in self.cases():
            options_from({}, self.options(case))

    def cases(self) -> list[Case]:
        """All runs, in their order."""
        return [
            Case(parallelism, recovery, failure, state_keys, run, self._seed(parallelism, failure, run))
            for parallelism in self.parallelism
            for failure in self.failure
            for run in range(self.runs)
            for state_keys in self.state_keys
            for recovery in self.recovery
        ]

    def _seed(self, parallelism: int, failure: str, run: int) -> int:
        parts = (
            self.seed,
            parallelism,
            (*FAILURES, *HOST_FAILURES).index(failure),
            0,
            run,
        )  # 0: was the size; published runs have it
        import numpy as np

        return int(np.random.SeedSequence(parts).generate_state(1)[0])

    def options(self, case: Case) -> dict[str, Any]:
        """The options of a run's job."""
        options: dict[str, Any] = {
            "parallelism": case.parallelism,
            "checkpoint_interval": self.interval,
            "recovery": case.recovery,
        }
        if case.recovery == "standby":
            options["replicas"] = self.replicas
        if case.state_keys:
            options["memtable_entries"] = HELD_ENTRIES
        return options

    def words(self, state_keys: int) -> int:
        """How long the text must be."""
        fill_s = FILL_TIMES * state_keys / BALLAST_KEYS_PER_S + CHECKPOINTS_AFTER_FILL * self.interval * bool(
            state_keys
        )
        return round(self.rate * (INTERVALS * self.interval + AFTER_S + fill_s))


@dataclass(frozen=True)
class Case:
    """One run."""

    parallelism: int
    recovery: str
    failure: str
    state_keys: int
    run: int
    seed: int

    @property
    def group(self) -> tuple[int, str, str, int]:
        return self.parallelism, self.recovery, self.failure, self.state_keys
