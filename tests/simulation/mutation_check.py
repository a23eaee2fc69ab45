"""Every deliberate fault, each within the whole budget of seeds or by its scenario: ``make mutation-check``."""

from __future__ import annotations

import sys

from tests.simulation.mutations import BUDGET, MUTATIONS, mutated
from tests.simulation.runs import run_many
from tests.simulation.scenarios import all_scenarios, play, read


def main() -> int:
    """0 when each of them is found out."""
    missed = []
    for name, fault in MUTATIONS.items():
        if fault.scenario:
            why = found_by_scenario(name)
            print(f"{name}: scenario {fault.scenario}: {why[:100] or 'MISSED'}", flush=True)
            missed += [] if why else [name]
            continue
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


def found_by_scenario(name: str) -> str:
    """What goes wrong in the scenario of a deliberate fault; empty when nothing does."""
    (path,) = [path for path in all_scenarios() if path.stem.partition("-")[0] == MUTATIONS[name].scenario]
    try:
        with mutated(name):
            play(read(path))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
