"""What a soak is: how long, how fast, which faults; and the limits that it must keep.

Rules: faults and their targets come from the seed; how long each holds, too. A fault is not followed by the next one
before redundancy is back, so the number of faults depends on the machine, their order does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

LOCAL_FAULTS = ("sigkill", "exception", "pause")
"""Of a slot: its process is killed, one of its subtasks raises, its process stands still and goes on."""
CLUSTER_FAULTS = ("sigkill", "exception", "host", "hang", "cut", "zookeeper")
"""Further: a host is killed and comes back, stands still and goes on, is cut off and connected again; a server of
ZooKeeper is killed and comes back."""
HOLD_S = (1.0, 3.0)
"""How long a slot or host stands still, is cut off or down."""
RESTORE_LIMIT_S = 90.0
"""From the end of a fault until every chain is full again."""
WARM_UP = 0.1
"""Share of the run that does not count for what is flat: processes grow into their work."""
MEMORY_GROWTH, MEMORY_SLACK_MB = 0.10, 30.0
JAVA_GROWTH, JAVA_SLACK_MB = 0.30, 150.0
"""A Java heap grows up to its limit, whatever it holds."""
DISK_GROWTH, DISK_SLACK_MB = 0.25, 20.0
"""From the median of the first quarter to that of the last: by a share, and by so much that says nothing."""


@dataclass(frozen=True)
class Settings:
    """``hosts``: workers of the cluster, ``None`` without one. ``every``: seconds from one fault to the next at
    least."""

    minutes: float = 30.0
    every: float = 10.0
    seed: int = 1
    rate: float = 5_000.0
    parallelism: int = 4
    replicas: int = 3
    interval: float = 1.0
    hosts: int | None = None
    faults: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what could not be run."""
        known = LOCAL_FAULTS if self.hosts is None else CLUSTER_FAULTS
        strange = sorted(set(self.faults) - set(known))
        if strange:
            where = "one machine" if self.hosts is None else "a cluster"
            raise ConfigurationError(f"on {where} the faults are {', '.join(known)}, not {strange[0]}")
        options = options_from({}, self.options())
        if not options.standbys:
            raise ConfigurationError("a soak waits for standbys after each fault: take 2 slots and replicas at least")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The faults there are."""
        return self.faults or (LOCAL_FAULTS if self.hosts is None else CLUSTER_FAULTS)

    def options(self) -> dict[str, Any]:
        """The options of the job."""
        return {
            "parallelism": self.parallelism,
            "replicas": self.replicas,
            "checkpoint_interval": self.interval,
            "recovery": "standby",
            "max_restarts": 1_000_000,  # a soak throws more exceptions than a job should
        }

    @property
    def words(self) -> int:
        """How many must be read until the time is over."""
        return round(self.rate * self.minutes * 60)

    def drawn(self) -> Iterator[Draw]:
        """The faults, without end. All kinds in turn, shuffled: none is missing in a short run."""
        generator = np.random.default_rng(self.seed)
        while True:
            for kind in generator.permutation(len(self.kinds)):
                target = int(generator.integers(1 << 30))
                yield Draw(self.kinds[int(kind)], target, round(float(generator.uniform(*HOLD_S)), 3))


@dataclass(frozen=True)
class Draw:
    """A fault: its ``kind``, a number that says of which subtask, host or server, and how long it holds."""

    kind: str
    target: int
    hold_s: float
