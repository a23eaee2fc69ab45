"""Every deliberate fault, each within the whole budget of seeds: ``make mutation-check``."""

from __future__ import annotations

import sys

from tests.simulation.mutations import BUDGET, MUTATIONS, mutated
from tests.simulation.runs import run_many


def main() -> int:
    """0 when each of them is found out."""
    missed = []
    for name in MUTATIONS:
        with mutated(name):
            summary = run_many(range(BUDGET))
        if summary.failures:
            failure = summary.failures[0]
            print(f"{name}: seed {failure.parameters.seed}: {failure.kind}", flush=True)
        else:
            missed.append(name)
            print(f"{name}: MISSED in {BUDGET} seeds", flush=True)
    print(f"{len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} deliberate faults are found out")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
