"""``python -m tests.simulation``: run seeds, look at one, make a failing one smaller, try a deliberate fault."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

from experiments.harness.arguments import choices
from flinkplus.runtime.faults.points import BUNDLES, CURSOR, DIGESTS, FILTER
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.parameters import Parameters, draw, lacking
from tests.simulation.phases import table
from tests.simulation.runs import Failure, run_many, run_one, shrink

LEFT_OUT = (BUNDLES, DIGESTS, FILTER, CURSOR)


def main(arguments: list[str] | None = None) -> int:
    """0 when all seeds are clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--trace", action="store_true", help="print the whole story of --seed")
    parser.add_argument("--shrink", action="store_true", help="make the first failing seed smaller")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="with a deliberate fault in the protocol")
    parser.add_argument("--loops", action="store_true", help="only jobs with loops")
    parser.add_argument("--unaligned", action="store_true", help="only jobs with unaligned checkpoints")
    parser.add_argument("--scaling", action="store_true", help="spare slots come and go in all that can have some")
    parser.add_argument("--joined", action="store_true", help="steps may be repeated together in all jobs")
    parser.add_argument("--rescales", action="store_true", help="the parallelism changes in all jobs that can do it")
    parser.add_argument("--savepoints", action="store_true", help="savepoints are taken of all jobs that can have some")
    parser.add_argument("--at-once", action="store_true", help="rows are visible at once in all jobs that can have it")
    parser.add_argument(
        "--live", action="store_true", help="records arrive while the job runs, in all that can have it"
    )
    parser.add_argument("--ticks", action="store_true", help="subtasks have steps by the time of day, where they can")
    parser.add_argument("--asking", action="store_true", help="rows wait for answers from outside, where that can be")
    parser.add_argument(
        "--to-barrier", action="store_true", help="rows are held back until a barrier is sent, in all that can have it"
    )
    parser.add_argument("--without", type=choices(LEFT_OUT), default=(), help=f"jobs that lack {', '.join(LEFT_OUT)}")
    parser.add_argument("--phases", action="store_true", help="say in which phases of checkpoints processes died")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    options = parser.parse_args(arguments)

    def drawing(seed: int) -> Parameters:
        only = options.loops, options.unaligned, options.scaling, options.joined, options.rescales, options.savepoints
        also = {"ticked": options.ticks, "asking": options.asking, "to_barrier": options.to_barrier}
        found = draw(seed, *only, at_once=options.at_once, live=options.live, **also)
        return lacking(found, options.without) if options.without else found

    with mutated(options.mutation) if options.mutation else nullcontext():
        if options.seed is not None:
            return _show(drawing(options.seed), options.trace, options.shrink)
        seeds = range(options.first, options.first + options.seeds)
        summary = run_many(seeds, options.failures, drawing)
        print(summary)
        if options.phases:
            print(table(summary.died))
        for failure in summary.failures:
            _tell(failure)
        if summary.failures and options.shrink:
            _tell(shrink(summary.failures[0]), "a smaller one:")
        return 1 if summary.failures else 0


def _show(parameters: Parameters, traced: bool, shrunk: bool) -> int:
    trace: list[str] = []
    world, failure = run_one(parameters, trace)
    if failure is not None and shrunk:
        failure = shrink(failure)
        trace = []
        world, failure = run_one(failure.parameters, trace)
    print((world.parameters if world is not None else parameters).story())
    if traced or failure is not None:
        print("\n".join(trace if traced else trace[-60:]))
    if failure is not None:
        print(failure)
        return 1
    print(f"the job is {world.ended if world is not None else ''}")
    return 0


def _tell(failure: Failure, what: str = "") -> None:
    if what:
        print(what)
    print(failure.parameters.story())
    trace: list[str] = []
    run_one(failure.parameters, trace)
    print("\n".join(trace[-40:]))
    print(failure)


if __name__ == "__main__":
    sys.exit(main())
