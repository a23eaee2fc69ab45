"""Small-scope search: two sources, two counts, two replicas, two checkpoints; every order of deliveries, with a failure
at every point, as far as the time goes.

An order is told by what is *held back*: from the order in which everything takes its usual time, any message stream,
control stream, worker or loop of a process is held back at any of its steps, so that the others overtake it; then any
two of these, and so on (delay-bounded search: Emmi, Qadeer and Rakamaric, POPL 2011). Two orders in which every process
sees the same are one history (they differ only in how steps of different processes, which do not touch, take turns) and
are followed once. For each history either slot, or the driver, fails behind each of its own steps.

Two further scopes have a second stage of counts, and small bundles wait for more messages. So steps take several
messages of one or both producers, of records in one scope and also of watermarks in the other, and successors repeat
such steps. In two more a user asks for another parallelism: each process, those that are started for it as well, and
the driver, fail at every point of it.

``python -m tests.simulation.exhaustive --minutes 5`` prints for each scope which numbers of delays are complete. The
scopes share the time equally.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.checks import Violation
from tests.simulation.driver import SimWorker
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.network import Stream
from tests.simulation.parameters import KEY_GROUPS, Fault, Parameters
from tests.simulation.slot import SimSlot
from tests.simulation.world import World

SCOPE = Parameters(
    seed=1,
    stages=2,
    parallelism=2,
    records=2,
    rows=1,
    keys=2,
    window=2,
    interval_ms=6,
    latency_ms=1,
    read_ms=12,
    work_ms=1,
)
BUNDLES = SCOPE.with_changes(
    seed=2, stages=3, edges=((0, 1), (1, 2)), records=4, keys=4, window=4, read_ms=1, patience_ms=12
)
"""Steps take one or two messages of one or both producers."""
WATERMARKS = BUNDLES.with_changes(records=3, interval_ms=12, work_ms=4, watermarks=True)
"""As ``BUNDLES``, and several watermarks are one bundle as well."""
JOINED = BUNDLES.with_changes(joins=True, window=8)
"""As ``BUNDLES``, and several steps are repeated together."""
GROWS = SCOPE.with_changes(seed=3, groups=KEY_GROUPS, faults=(Fault(12, "rescale", 2, 0),))
"""As ``SCOPE``, and two subtasks of each vertex become three."""
SHRINKS = SCOPE.with_changes(seed=4, groups=KEY_GROUPS, records=4, faults=(Fault(18, "rescale", 0, 0),))
"""And become one."""
SCOPES = {
    "single messages": SCOPE,
    "bundles": BUNDLES,
    "bundles and watermarks": WATERMARKS,
    "joined steps": JOINED,
    "two become three": GROWS,
    "two become one": SHRINKS,
}
HOLDS_MS = (4, 40)
"""How long something is held back: past its neighbours, or past whole exchanges."""
MAX_STEPS = 4_000
BUNDLED = {"bundles": "any", "joint_bundles": "of several channels", "repeated_bundles": "repeated"}
"""Counts of ``Checks``, and what the report calls them."""
Key = tuple[Any, ...]
Delay = tuple[int, int]
"""(the step of the whole history, for how many milliseconds)."""


@dataclass(frozen=True)
class Case:
    """What is done to a history. ``crash``: (slot, or -1 for the driver; behind which of its own steps)."""

    delays: tuple[Delay, ...] = ()
    crash: tuple[int, int] | None = None


class Controlled(World):
    """A world in which a case happens, and which notes what each process sees."""

    def __init__(self, case: Case, scope: Parameters = SCOPE) -> None:
        self._delays = dict(case.delays)
        self._crash = case.crash
        self._held: dict[Key, int] = {}
        self.seen: dict[int, list[Key]] = {-1: []}
        self.queues: list[Key | None] = []
        super().__init__(scope)

    def step(self) -> bool:
        """As ``World.step``, but what is held back waits, and all behind it in its queue."""
        if self._heap and self.ended is None:
            at_ms, number, action, arguments = self._heap[0]
            key = queue_of(action, arguments)
            if key is not None:
                until_ms = self._held.get(key, 0)
                hold_ms = self._delays.pop(len(self.queues), None) if until_ms <= at_ms else None
                if hold_ms is not None:
                    self._held[key] = until_ms = at_ms + hold_ms
                if until_ms > at_ms:
                    heapq.heapreplace(self._heap, (until_ms, number, action, arguments))
                    return True
            self.queues.append(key)
            found = super().step()
            self._note(key)
            return found
        return super().step()

    def _note(self, key: Key | None) -> None:
        if key is None:
            return
        process = key[1]
        seen = self.seen.setdefault(process, [])
        seen.append(key)
        if self._crash == (process, len(seen)):
            self._crash = None
            if process < 0:
                self.crash_driver()
            elif process in self.processes:
                self.processes[process].end("it is killed")

    def run_case(self) -> None:
        for fault in self.parameters.faults:
            self.at(fault.at_ms, self.faults.strike, fault)
        while self.step():
            if self.steps > MAX_STEPS:
                raise Violation("progress", f"the job has not ended after {self.steps} steps")
        if self.ended != "finished":
            raise Violation("progress", f"the job is {self.ended}")
        self.checks.finished()

    @property
    def history(self) -> tuple[tuple[int, tuple[Key, ...]], ...]:
        """What each process saw, in its order: equal for equivalent interleavings."""
        return tuple((process, tuple(keys)) for process, keys in sorted(self.seen.items()))


def queue_of(action: Callable[..., None], arguments: tuple[Any, ...]) -> Key | None:
    """The queue that an action waits in, as (kind, process that sees it, which); None for what is no delivery."""
    owner = getattr(action, "__self__", None)
    name = getattr(action, "__name__", "")
    if isinstance(owner, Stream):
        receiver, way = arguments[0], arguments[3]
        return "frame", receiver.process, owner.owner.process, owner.target.process, way
    if isinstance(owner, SimWorker):
        return "worker", -1, owner.name
    if isinstance(owner, SimSlot):
        if name == "_work":
            return "work", owner.process
        inner = getattr(arguments[0], "__name__", "") if arguments else ""
        return "event", owner.process, inner
    if name == "_heard":
        return "report", -1, arguments[0]
    return None


@dataclass
class Found:
    """What a search has gone through."""

    cases: int = 0
    histories: int = 0
    bundled: Counter[str] = field(default_factory=Counter)
    """Histories in which a step took several messages, by name of the count (``BUNDLED``)."""
    whole: list[str] = field(default_factory=list)
    failures: list[tuple[Case, Exception]] = field(default_factory=list)
    out_of_time: bool = False

    def __str__(self) -> str:
        gone = "; ".join(self.whole) or "nothing"
        rest = " (stopped by the time limit)" if self.out_of_time else ""
        wrong = len(self.failures)
        bundled = ", ".join(f"{self.bundled[count]} {text}" for count, text in BUNDLED.items())
        return (
            f"{self.cases} cases, {self.histories} different histories, {wrong} failures{rest}\n"
            f"steps that take several messages: histories with {bundled}\nwhole: {gone}"
        )


class Search:
    """Goes through the scope in order of the number of delays."""

    def __init__(self, seconds: float, max_delays: int = 3, scope: Parameters = SCOPE) -> None:
        self._scope = scope
        self._until = time.monotonic() + seconds
        self._max_delays = max_delays
        self._known: set[bytes] = set()  # never iterated
        self.found = Found()

    def run(self) -> Found:
        """All that can be done in the time."""
        level = [Case()]
        for count in range(self._max_delays + 1):
            worlds = [(case, world) for case, world in self._follow(level) if world is not None]
            if not self._in_time():
                break
            self.found.whole.append(f"{len(worlds)} orders with {count} delays, without failure")
            for case, world in worlds:
                for _ in self._follow(self._crashes(case, world)):
                    pass
            if not self._in_time():
                break
            self.found.whole.append("each of these with a failure at every point of either slot and of the driver")
            level = [delayed for case, world in worlds for delayed in self._delayed(case, world)]
        return self.found

    def _in_time(self) -> bool:
        if time.monotonic() >= self._until or self.found.failures:
            self.found.out_of_time = not self.found.failures
            return False
        return True

    def _follow(self, cases: Iterator[Case] | list[Case]) -> Iterator[tuple[Case, Controlled | None]]:
        """Run cases; gives the worlds of those whose history is a new one."""
        for case in cases:
            if not self._in_time():
                return
            self.found.cases += 1
            world = Controlled(case, self._scope)
            try:
                world.run_case()
            except Exception as error:
                self.found.failures.append((case, error))
                return
            history = hashlib.sha256(repr(world.history).encode()).digest()
            if history in self._known:
                continue
            self._known.add(history)
            self.found.histories += 1
            self.found.bundled.update(name for name in BUNDLED if world.checks.counts[name])
            yield case, world

    @staticmethod
    def _crashes(case: Case, world: Controlled) -> Iterator[Case]:
        for process, keys in sorted(world.seen.items()):
            for at in range(1, len(keys) + 1):
                yield Case(case.delays, (process, at))

    @staticmethod
    def _delayed(case: Case, world: Controlled) -> Iterator[Case]:
        last = max((step for step, _ in case.delays), default=-1)
        for step, key in enumerate(world.queues):
            if step > last and key is not None:
                for hold_ms in HOLDS_MS:
                    yield Case((*case.delays, (step, hold_ms)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--delays", type=int, default=3)
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="with a deliberate fault in the protocol")
    options = parser.parse_args(arguments)
    with mutated(options.mutation) if options.mutation else nullcontext():
        searches = [_search(name, options.minutes * 60 / len(SCOPES), options.delays) for name in SCOPES]
    return 1 if any(found.failures for found in searches) else 0


def _search(name: str, seconds: float, max_delays: int) -> Found:
    """Search one scope, and print what was found."""
    began = time.monotonic()
    found = Search(seconds, max_delays, SCOPES[name]).run()
    print(f"{name}, {time.monotonic() - began:.0f} s: {found}", flush=True)
    for case, error in found.failures:
        print(f"{case}: {type(error).__name__}: {error}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
