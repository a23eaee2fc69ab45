"""The same faults, side by side: jobs that recover beside the stream survive what a job survives that rolls back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.parameters import OUTAGES, Fault, Parameters, child, draw
from tests.simulation.runs import run_one

SEEDS = 26
MAX_RESTARTS = 3
TOO_MANY = f"max_restarts is {MAX_RESTARTS}"
DURATIONS_MS = (1, 30, 150, 400, 700, 1_200, 1_600, 2_500)
TIMES_MS = (10, 15, 20, 30, 50, 70)


def outages(seed: int) -> Parameters:
    """A job that may restart three times, and a service that its subtasks call, which is away for a while. There is one
    such while: at a second one the jobs would not be in the same place any more."""
    rng, job = child(seed, "side by side"), draw(seed, looped=False)
    at_ms = rng.choice(TIMES_MS)
    kinds = rng.choice((("outage",), ("throw_together",), OUTAGES))
    faults = [Fault(at_ms, kind, 1, rng.choice(DURATIONS_MS)) for kind in kinds]
    return replace(
        job,
        guarantee="exactly-once",
        synchronous=False,
        loops=(),
        whims=False,
        parallelism=max(2, job.parallelism),
        records=max(16, job.records),
        rows=1,
        max_restarts=MAX_RESTARTS,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def survives(parameters: Parameters) -> bool:
    """Whether the job finishes, and not by too many restarts; an invariant that does not hold fails the test."""
    world, failure = run_one(parameters)
    if failure is not None and TOO_MANY in failure.reason:
        return False
    assert failure is None and world is not None, f"{failure}\n{parameters.story()}"
    return world.ended == "finished"


def survivals(recovery: str, seeds: range) -> dict[str, int]:
    """How many of ``seeds`` each kind of job survives. Fails when the one that rolls back survives one more."""
    survived = {"rollback": 0, recovery: 0}
    for seed in seeds:
        job = outages(seed)
        found = {kind: survives(replace(job, recovery=kind)) for kind in survived}
        for kind, finished in found.items():
            survived[kind] += finished
        assert found[recovery] or not found["rollback"], (
            f"rollback survives it\n{replace(job, recovery=recovery).story()}"
        )
    return survived


@pytest.mark.parametrize("recovery", ["standby", pytest.param("partial", marks=pytest.mark.long)])
def test_what_a_job_survives_that_rolls_back_one_survives_that_does_not(recovery: str) -> None:
    survived = survivals(recovery, range(SEEDS))
    assert 0 < survived["rollback"] < SEEDS, "the faults are strong enough to end some jobs, and not all"
