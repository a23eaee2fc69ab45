"""Live sources: records that arrive while the job runs, in several places of each reader.

A place is a run of blocks (``flinkplus.sources.dealing``). A record of it can be read when it has arrived, and all
before it in its place have, and the reader has fetched it: a reader begins to fetch when it is made, so at a successor
a record may be there much later than at its predecessor, or earlier, and more of them.

A choice is the number of a place among those that are left, and how many records are read of it; or the end.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING

from flinkplus.sources.dealing import BlockRun

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot
    from tests.simulation.world import World

Left = tuple[BlockRun, ...]
MAX_ROWS = 1 << 8
END = 0
GAPS_MS = (0, 0, 1, 2, 4)
"""Between the arrivals of two records of a source."""
IDLE = 0.04
"""How often there is a pause instead."""
IDLE_MS = (20, 80, 200)
JITTER_MS = 6
LAGS_MS = (0, 0, 3, 20, 60)
"""How long a reader takes to fetch a record."""


def blocks_of(run: BlockRun, end: int) -> range:
    """The blocks of a run that there are: those before ``end``."""
    return range(run.first, end if run.end is None else min(end, run.end), run.step)


class Arrivals:
    """When each record of each source arrives."""

    def __init__(self, world: World) -> None:
        rng, graph = world.rng_live, world.graph
        self._ms: dict[int, list[int]] = {}
        for at, vertex in enumerate(graph.vertices):
            if vertex.is_source and world.parameters.live:
                arrived_ms, times = 0, []
                for _ in range(graph.blocks):
                    arrived_ms += rng.choice(IDLE_MS) if rng.random() < IDLE else rng.choice(GAPS_MS)
                    times.append(arrived_ms + rng.randint(0, JITTER_MS))
                self._ms[at] = times

    def ms(self, source: int, block: int) -> int:
        return self._ms[source][block]


class LivePlaces:
    """What one reader has of its places. ``source``: the vertex."""

    def __init__(self, slot: SimSlot, source: int) -> None:
        self._world, self._slot, self._source = slot.world, slot, source
        self._end = slot.graph.blocks
        self._begun_ms = slot.world.now_ms
        self._lags_ms = [slot.world.rng_live.choice(LAGS_MS) for _ in range(4)]

    def begin(self, left: Left) -> None:
        """Have the slot look again whenever a record is there."""
        world = self._world
        times_ms = {self._there_ms(block) for run in left for block in blocks_of(run, self._end)}
        for at_ms in sorted(times_ms):
            if at_ms > world.now_ms:
                world.at(at_ms, self._slot.event, self._woken)

    def _woken(self) -> None:
        return None  # the slot looks again after whatever happens to it

    def _there_ms(self, block: int) -> int:
        return max(self._begun_ms, self._world.arrivals.ms(self._source, block)) + self._lags_ms[block % 4]

    def _there(self, run: BlockRun, most: int) -> list[int]:
        """Up to ``most`` blocks of a place that can be read."""
        now_ms = self._world.now_ms
        return list(takewhile(lambda block: self._there_ms(block) <= now_ms, islice(blocks_of(run, self._end), most)))

    def _is_over(self, left: Left) -> bool:
        return not any(blocks_of(run, self._end) for run in left)

    def nothing_to_read(self, left: Left) -> bool:
        return not any(self._there(run, 1) for run in left) and not self._is_over(left)

    def choose(self, left: Left, rows: int) -> int | None:
        counts = [(at, count) for at, run in enumerate(left) if (count := len(self._there(run, rows)))]
        if not counts:
            return END if self._is_over(left) else None
        at, count = self._world.rng_live.choice(counts)
        return 1 + at * MAX_ROWS + count - 1

    def can_read(self, left: Left, choice: int) -> bool:
        at, count = place_of(choice)
        can = choice == END or (at < len(left) and len(self._there(left[at], count)) == count)
        self._world.checks.counts["awaited_rows"] += not can
        return can

    def read(self, left: Left, choice: int) -> tuple[list[int], Left]:
        """The blocks of a choice that are there, and what is left after them."""
        at, count = place_of(choice)
        if choice == END or at >= len(left):
            return [], left
        run, found = left[at], self._there(left[at], count)
        rest: BlockRun | None = run
        for _ in found:
            assert rest is not None
            rest = rest.after(1, 1)
        return found, (*left[:at], *([] if rest is None else [rest]), *left[at + 1 :])


def place_of(choice: int) -> tuple[int, int]:
    """The place of a choice among those that are left, and its number of records."""
    at, count = divmod(choice - 1, MAX_ROWS)
    return at, count + 1


def rows_of(choice: int) -> int:
    """How many records a choice reads."""
    return 0 if choice == END else place_of(choice)[1]


def places(index: int, parallelism: int, count: int) -> Left:
    """The places of a reader at the start of the job."""
    return tuple(BlockRun(index + at * parallelism, parallelism * count) for at in range(count))
