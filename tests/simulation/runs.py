"""Running seeds: one, with its story; many, with what came of them; and finding a smaller failing one."""

from __future__ import annotations

import gc
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.parameters import Fault, Parameters, draw
from tests.simulation.world import World

COLLECT_EVERY = 100
MAX_SHRINKS = 400


@dataclass
class Failure:
    """A history in which something was wrong. ``kind``: of the error, and the invariant if it is one of ours."""

    parameters: Parameters
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"seed {self.parameters.seed}: {self.kind}: {self.reason}"


@dataclass
class Summary:
    """What came of many seeds. ``died``: processes, by phase of a checkpoint (``phases``)."""

    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.seeds / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.seeds} seeds, {self.steps} steps, {len(self.failures)} failures, {self.seconds:.1f} s of CPU time, "
            f"{rate:.0f} seeds a second",
            "ends: " + ", ".join(f"{how} {count}" for how, count in sorted(self.ends.items())),
            "happened: " + ", ".join(f"{what} {count}" for what, count in sorted(self.counts.items())),
        ]
        return "\n".join(lines)


def run_one(parameters: Parameters, trace: list[str] | None = None) -> tuple[World | None, Failure | None]:
    """One history, and what is wrong with it, if anything."""
    world: World | None = None
    try:
        world = World(parameters, trace)
        world.run()
    except Exception as error:
        kind = type(error).__name__
        invariant = getattr(error, "invariant", None)
        return world, Failure(parameters, f"{kind} {invariant}" if invariant else kind, str(error))
    return world, None


def run_many(seeds: Iterable[int], enough: int = 1, drawn: Callable[[int], Parameters] = draw) -> Summary:
    """The histories of ``seeds``, until ``enough`` of them have failed."""
    summary = Summary()
    begun = time.process_time()
    collected = gc.isenabled()
    gc.collect()
    gc.freeze()  # what is loaded need not be looked at again
    gc.disable()  # what a world leaves behind is cyclic, and it is quicker to collect that now and then
    try:
        for seed in seeds:
            world, failure = run_one(drawn(seed))
            summary.seeds += 1
            if world is not None:
                summary.steps += world.steps
                summary.counts.update(world.counts)
                summary.died.update(world.died)
                summary.counts.update(world.checks.counts)
            if failure is not None:
                summary.failures.append(failure)
                if len(summary.failures) >= enough:
                    break
            elif world is not None:
                summary.ends[(world.ended or "").partition(":")[0]] += 1
                world.dismantle()
            if summary.seeds % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        if collected:
            gc.enable()
    summary.seconds = time.process_time() - begun
    return summary


def digest(parameters: Parameters) -> str:
    """The whole trace of a history, as a few digits."""
    trace: list[str] = []
    _, failure = run_one(parameters, trace)
    if failure is not None:
        trace.append(str(failure))
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()[:16]


# --- shrinking


def shrink(failure: Failure, tries: int = MAX_SHRINKS) -> Failure:
    """A failure of the same kind with fewer faults, in a smaller job; not the smallest, but one that cannot be made
    smaller in any single way tried here."""
    best = failure
    again = True
    while again and tries > 0:
        again = False
        for candidate in smaller(best.parameters):
            tries -= 1
            _, found = run_one(candidate)
            if found is not None and found.kind == best.kind:
                best, again = found, True
                break
            if tries <= 0:
                break
    return best


def smaller(parameters: Parameters) -> Iterator[Parameters]:
    """The same history with something less in it."""
    faults = parameters.faults
    for at in range(len(faults)):
        yield parameters.with_changes(faults=faults[:at] + faults[at + 1 :])
    if parameters.loops:
        yield parameters.with_changes(loops=())
    if parameters.stages > 2:
        edges = tuple((start, end) for start, end in parameters.edges if end < parameters.stages - 1)
        yield parameters.with_changes(stages=parameters.stages - 1, edges=edges)
    if len(parameters.edges) >= parameters.stages:
        yield parameters.with_changes(edges=tuple((at, at + 1) for at in range(parameters.stages - 1)))
    if parameters.parallelism > 2:
        yield parameters.with_changes(parallelism=parameters.parallelism - 1)
    for name, least in (("records", 1), ("rows", 1), ("keys", 1), ("replicas", 2), ("max_concurrent", 1)):
        value = getattr(parameters, name)
        if value > least:
            yield parameters.with_changes(**{name: max(least, value // 2)})
    plain = Parameters()
    for name in ("placement", "failback", "hosts", "window", "budget_bytes", "latency_ms", "read_ms", "interval_ms"):
        if getattr(parameters, name) != getattr(plain, name):
            yield parameters.with_changes(**{name: getattr(plain, name)})
    for at, fault in enumerate(faults):
        if fault.duration_ms > 5:
            shorter = Fault(fault.at_ms, fault.kind, fault.target, fault.duration_ms // 3)
            yield parameters.with_changes(faults=(*faults[:at], shorter, *faults[at + 1 :]))
        if fault.target >= parameters.parallelism:
            plainer = Fault(fault.at_ms, fault.kind, fault.target % parameters.parallelism, fault.duration_ms)
            yield parameters.with_changes(faults=(*faults[:at], plainer, *faults[at + 1 :]))
