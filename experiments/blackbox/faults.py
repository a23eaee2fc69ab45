"""Which faults a round has, and when: all of it from the seed and the round's number. Pure.

A fault comes when the job has recovered from the one before, after a moment; or, one in four, while it recovers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SLOT, TWO_SLOTS, ALL_SLOTS, DRIVER, STOP = EVERYWHERE = ("slot", "two-slots", "all-slots", "driver", "stop")
"""SIGKILL of one slot, of two at once, of all of them, of the driver (which is started again and resumes); a slot's
process is stopped and continued."""
SERVER, CUT, DEAF, PAUSE = OF_SERVERS = ("server", "cut", "deaf", "pause")
"""SIGKILL of the database server, which is started again; all connections to it break; its answers are lost, and then
all connections break; nothing passes for a while, and then everything does."""
RESCALE = "rescale"
"""The job is given another parallelism. Not where rows are visible at once."""
BROKER = "broker"
"""SIGKILL of the Kafka broker, which is started again."""
KINDS = (*EVERYWHERE, *OF_SERVERS, RESCALE, BROKER)
WEIGHTS = {
    SLOT: 30,
    TWO_SLOTS: 10,
    ALL_SLOTS: 10,
    DRIVER: 4,
    STOP: 12,
    SERVER: 8,
    CUT: 10,
    DEAF: 8,
    PAUSE: 8,
    RESCALE: 15,
    BROKER: 8,
}
RESCALED_ROUNDS = 1 / 3
"""The share of rounds with rescales, where the order in which readers had read cannot be checked with them."""
OVERLAPPING = 0.25
OVERLAP_S = 0.6
"""Until the next fault comes, while the job recovers, at most."""
CALM_S = (0.05, 0.8)
"""From a recovery to the next fault."""
HOLD_S = (0.05, 1.5)
"""How long something is stopped, down, deaf or held back."""
RECOVERIES = ("standby", "standby", "rollback", "partial")


@dataclass(frozen=True)
class Draw:
    """A fault. ``target``: a number that says which slot; ``overlaps``: it does not wait for the recovery from the one
    before; ``after_s``: how long it waits then."""

    kind: str
    target: int
    hold_s: float
    overlaps: bool
    after_s: float


@dataclass(frozen=True)
class Round:
    """One job with its faults."""

    number: int
    seed: int
    pipeline: str
    recovery: str
    draws: tuple[Draw, ...]

    @property
    def rescales(self) -> bool:
        """Whether the parallelism changes."""
        return any(draw.kind == RESCALE for draw in self.draws)


def drawn(
    number: int, seed: int, pipeline: str, kinds: Sequence[str], count: int, rescaled: float = RESCALED_ROUNDS
) -> Round:
    """``kinds``: that may come. ``rescaled``: the share of rounds with rescales, where they may come."""
    chance = np.random.default_rng((seed, number))
    if float(chance.random()) >= rescaled:
        kinds = [kind for kind in kinds if kind != RESCALE] or kinds
    weights = np.array([WEIGHTS[kind] for kind in kinds], np.float64)
    draws: list[Draw] = []
    for _ in range(count):
        overlaps = bool(draws) and bool(chance.random() < OVERLAPPING)
        draws.append(
            Draw(
                kind=kinds[int(chance.choice(len(kinds), p=weights / weights.sum()))],
                target=int(chance.integers(1 << 30)),
                hold_s=round(float(chance.uniform(*HOLD_S)), 3),
                overlaps=overlaps,
                after_s=round(float(chance.uniform(0.0, OVERLAP_S) if overlaps else chance.uniform(*CALM_S)), 3),
            )
        )
    recovery = RECOVERIES[int(chance.integers(len(RECOVERIES)))]
    return Round(number, int(chance.integers(1 << 20)), pipeline, recovery, tuple(draws))
