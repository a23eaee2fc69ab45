"""Changes of parallelism among the failures of a run, from the seed; and which failures meet one.

A rescale is a planned interruption: it is no failover and no rollback. A failure that meets one may roll the job back,
because there may be no standby at that moment. It meets one (``met``) when

- it falls into the interruption, or so shortly before that it is noticed within it;
- or not all standbys have been there since the rescale began: the new subtasks start without any;
- or the job has fewer slots than at its start, and as many failures as slots have come since all standbys were there.

Rules: pure. What is drawn depends on the number of the run, the seed and the parallelism alone, and changes nothing of
the run's failures. A job with one slot at its start cannot be rescaled, so nothing is drawn for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHARE = 0.25
"""Of the runs, unless all are to have rescales."""
SECOND = 1 / 3
"""The share of these runs that have two."""
MOST_MORE = 2
"""Above the parallelism at the start."""
FAILURE, REQUESTED, CHECKPOINT, SWITCH, RUNS, DONE = "failure", "requested", "checkpoint", "switch", "runs", "done"
MOMENTS = (FAILURE, REQUESTED, CHECKPOINT, SWITCH, RUNS, DONE)
"""When the failure comes: first, the request right after it; when the rescale is requested; when it waits for a
checkpoint; when the job is interrupted; when the new subtasks run; when it has ended."""
LONGEST_DELAY_S = 0.8
NOTICED_S = 0.5
"""A failure is known to the coordinator after this time at the latest."""
UNDISTURBED_MS = ("fence_ms", "promote_ms", "restore_ms")
_STREAM = 20
"""Tells the numbers drawn here from those of the failures."""


@dataclass(frozen=True)
class Rescale:
    """One request for ``parallelism``, beside failure number ``strike``.

    ``moment``: of the failure, one of ``MOMENTS``; ``delay_s``: between the two.
    """

    parallelism: int
    strike: int
    moment: str
    delay_s: float


def drawn(run: int, seed: int, parallelism: int, failures: int, share: float) -> tuple[Rescale, ...]:
    """The rescales of one run with so many ``failures``, in the order of the requests. ``share``: of runs with any."""
    chance = np.random.default_rng(np.random.SeedSequence((seed, parallelism, run, _STREAM)))
    if chance.random() >= share or parallelism < 2:
        return ()
    count = 2 if chance.random() < SECOND else 1
    strikes = sorted(int(strike) for strike in chance.integers(failures, size=count))
    found: list[Rescale] = []
    for strike in strikes:
        last = found[-1].parallelism if found else parallelism
        targets = [target for target in range(1, parallelism + MOST_MORE + 1) if target != last]
        moment = MOMENTS[chance.integers(len(MOMENTS))]
        delay_s = float(chance.uniform(0, LONGEST_DELAY_S)) if chance.random() < 0.5 else 0.0
        found.append(Rescale(targets[chance.integers(len(targets))], strike, moment, round(delay_s, 3)))
    return tuple(found)


def met(struck: Sequence[Mapping[str, Any]], rescaled: Sequence[Mapping[str, Any]], at_first: int) -> list[bool]:
    """Whether each failure met a rescale.

    ``struck``: the failures, with ``at_s`` (Unix epoch), and ``state``, ``parallelism`` and ``missing`` standbys of the
    job at that time.
    ``rescaled``: as of ``JobHandle.rescales``. ``at_first``: the parallelism at the start.
    """
    begun = [rescale for rescale in rescaled if rescale["begin_s"] is not None]
    interruptions = [(rescale["begin_s"], _running_again_s(rescale)) for rescale in begun]
    found, failures, last_s, whole_s = [], 0, -math.inf, -math.inf
    for strike in struck:
        at_s, intact = strike["at_s"], strike["state"] == "running" and not strike["missing"]
        within = any(begin_s - NOTICED_S <= at_s <= end_s for begin_s, end_s in interruptions)
        begun_s = max((begin_s for begin_s, _ in interruptions if begin_s <= at_s), default=-math.inf)
        whole_s = at_s if intact else whole_s
        bare = begun_s > whole_s
        failures = 1 if intact and at_s - last_s > NOTICED_S else failures + 1
        last_s = at_s
        outnumbered = at_first > strike["parallelism"] <= failures
        found.append(within or bare or outnumbered)
    return found


def _running_again_s(rescale: Mapping[str, Any]) -> float:
    """When all subtasks ran; infinity, when a failure came first."""
    parts = [rescale[name] for name in UNDISTURBED_MS]
    return math.inf if None in parts else float(rescale["begin_s"] + sum(parts) / 1e3)
