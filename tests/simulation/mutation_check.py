"""Every deliberate fault, each within the whole budget of seeds, by its scenario or by what searches for it:
``make mutation-check``.

The faults are tried in as many processes as there are processors, each in a fresh one.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

from tests.simulation.mutations import BUDGET, MUTATIONS, mutated
from tests.simulation.runs import run_many
from tests.simulation.scenarios import all_scenarios, play, read


def main() -> int:
    """0 when each of them is found out."""
    missed = []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for name, found, how in pool.imap(check, MUTATIONS, chunksize=1):
            print(f"{name}: {how}", flush=True)
            missed += [] if found else [name]
    print(f"{len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} deliberate faults are found out")
    if missed:
        print(f"MISSED: {', '.join(missed)}")
    return 1 if missed else 0


def check(name: str) -> tuple[str, bool, str]:
    """The fault, whether it is found, and by what."""
    scenario, finds = MUTATIONS[name].scenario, MUTATIONS[name].finds
    if finds is not None:
        with mutated(name):
            why = finds()
        return name, bool(why), f"{finds.__module__}: {why.partition(chr(10))[0] or 'MISSED'}"
    if scenario:
        why = found_by_scenario(name)
        return name, bool(why), f"scenario {scenario}: {why[:100] or 'MISSED'}"
    with mutated(name):
        summary = run_many(range(BUDGET), drawn=MUTATIONS[name].parameters)
    if not summary.failures:
        return name, False, f"MISSED in {BUDGET} seeds"
    failure = summary.failures[0]
    return name, True, f"seed {failure.parameters.seed}: {failure.kind}"


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
