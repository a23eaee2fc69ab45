"""When a subtask begins a step, and how many rows a source reads: few steps where each step is expensive.

A steady rate means *arrival*: row k arrives at ``anchor + k / rate``, as if an outside system produced it. After a
rollback, a source finds all rows that have arrived since, and reads them as fast as it can.

In a busy slot, small batches move in *waves*. A paced source reads at ticks of a clock that all slots of a host share.
Every other subtask takes a small bundle as soon as each of its input channels has a message of the wave
(``InputGate.may_wait``), or at a tick of its own, one hop after that of the stage before. So the number of steps
depends on the interval between waves and not on the number of messages. The interval follows the load of the slot, up
to ``flush_interval`` (``interval_of``) for each stage of the job. In an idle slot nothing waits.

Rules: this module reads no clock; the caller passes ``now`` in seconds, on the same clock as the anchor. The rate
counts the rows that leave one chosen operator (a source, or the operator under ``throttle``): "words per second" means
words although the source reads lines. Ticks decide when a step begins, never what it takes when it is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flinkplus.graph import JobGraph, Vertex

FIRST_READ_ROWS = 1024
TICK_TOLERANCE = 1e-6
SMOOTHING = 0.3
BUSY_SHARE, IDLE_SHARE = 0.06, 0.03
"""Share of a core that a slot uses. Above the first the interval between waves grows, below the second it shrinks."""
LEVELS = 10
"""The interval grows by the square root of 2 with each level. At level 0 nothing waits."""
LOOK_S = 0.05
HURRY_S = 0.2
INTERVAL_S, AT_ONCE_INTERVAL_S = 0.015, 0.007
"""Without ``flush_interval``: where rows are visible at once, a shorter wait is worth the processor time of more
steps."""
MAX_HOP_S = 0.01
"""Maximum interval between the ticks of two stages."""


class SlotLoad:
    """How busy a slot is, and the interval between waves that follows from it.

    ``cpu_s``: returns the processor time that the slot's process has used, in seconds.
    ``scale``: share of the maximum interval, 0 (nothing waits) to 1; 0 at the beginning of a failover.
    ``read_scale``: the same for reads of sources, also at the beginning of a failover: the processors are for the
    subtasks that replay, and many small reads would take them away.
    """

    def __init__(self, cpu_s: Callable[[], float]) -> None:
        self._cpu_s = cpu_s
        self._looked_at: tuple[float, float] | None = None
        self._share = 0.0
        self._level = 0
        self._hurries_until = -math.inf
        self.scale = self.read_scale = 0.0

    def hurry(self, now: float) -> None:
        """A failover has begun: for ``HURRY_S`` seconds no bundle waits for a tick."""
        self._hurries_until = now + HURRY_S
        self.scale = 0.0

    def look(self, now: float) -> None:
        """Measure the load, at most every ``LOOK_S`` seconds; ``now`` in seconds."""
        if self._looked_at is None:
            self._looked_at = now, self._cpu_s()
            return
        then, used_s = self._looked_at
        if now - then < LOOK_S:
            return
        cpu_s = self._cpu_s()
        self._looked_at = now, cpu_s
        self._share = _smooth(self._share, (cpu_s - used_s) / (now - then))
        if self._share > BUSY_SHARE:
            self._level = min(self._level + 1, LEVELS)
        elif self._share < IDLE_SHARE:
            self._level = max(self._level - 1, 0)
        self.read_scale = 2.0 ** ((self._level - LEVELS) / 2) if self._level else 0.0
        if now >= self._hurries_until:
            self.scale = self.read_scale


class Ticks:
    """When a subtask takes a small bundle, or a paced source reads.

    ``scale``: returns the share of the maximum interval that applies now (``SlotLoad``); 0: no ticks.
    ``interval_s``: maximum interval between two waves, for each stage of the job.
    ``stage``: the stage of the subtask's vertex, and the number of stages (``stage_of``).
    """

    def __init__(self, scale: Callable[[], float], interval_s: float, stage: tuple[int, int]) -> None:
        self._scale = scale
        self._stage, stages = stage
        self._interval_s = interval_s * stages
        self._hop_s = min(MAX_HOP_S, interval_s)

    def at(self, since: float) -> float:
        """The first tick at ``since`` or later."""
        scale = self._scale()
        if not scale:
            return since
        interval_s = self._interval_s * scale
        offset = self._stage * self._hop_s * scale
        return offset + math.ceil((since - offset) / interval_s - TICK_TOLERANCE) * interval_s


def stage_of(graph: JobGraph, vertex: Vertex) -> tuple[int, int]:
    """How many exchanges lie between the sources and a vertex, on the longest path; and the number of stages of the
    job. Back edges do not count."""
    depths: dict[str, int] = {}
    for one in graph.vertices:
        before = [depths.get(graph.producer_vertex(edge).name, -1) for edge in one.inputs]
        depths[one.name] = 1 + max(before, default=-1)
    return depths[vertex.name], 1 + max(depths.values())


def interval_of(flush_interval: float | None, graph: JobGraph) -> float:
    """The maximum interval between two waves for each stage, in seconds: the option's value, or its default in this
    job."""
    if flush_interval is not None:
        return flush_interval
    return AT_ONCE_INTERVAL_S if graph.recipes() else INTERVAL_S


class Pacer:
    """Pacing of one source subtask.

    ``rate``: rows per second for this subtask, ``None`` for as fast as possible.
    ``batch_rows``: rows aimed at per read, counted where the stream is widest.
    ``tick``: gives the first time, at the one given or later, at which it may read.
    ``counted``: rows that have left the operator that the rate counts at, all in all.
    """

    def __init__(self, rate: float | None, batch_rows: int, tick: Callable[[float], float]) -> None:
        self._rate = rate
        self._batch_rows = batch_rows
        self._tick = tick
        self._anchor = 0.0
        self._expansion: float | None = None
        self._rate_expansion: float | None = None

    def begin(self, anchor: float) -> None:
        """Row 0 arrives at ``anchor``."""
        self._anchor = anchor

    def ready_at(self, now: float, counted: int) -> float:
        """When the next read may start; not after ``now`` means at once."""
        if self._rate is None:
            return now
        return self._tick(self._anchor + counted / self._rate)

    def rows(self, now: float, counted: int) -> int:
        """How many source rows to read now."""
        if self._expansion is None or self._rate_expansion is None:
            return FIRST_READ_ROWS if self._rate is None else 1
        rows = self._batch_rows / max(self._expansion, 1e-9)
        if self._rate is not None:
            arrived = (now - self._anchor) * self._rate - counted
            rows = min(rows, arrived / max(self._rate_expansion, 1e-9))
        return max(1, min(round(rows), self._batch_rows))

    def rest(self, now: float, counted: int) -> None:
        """There is nothing to read: what is there later has not waited meanwhile."""
        if self._rate is not None:
            self._anchor = max(self._anchor, now - counted / self._rate)

    def behind(self, now: float, counted: int) -> int | None:
        """Rows that have arrived by now and have not left the operator that the rate counts at; ``None``: no rate."""
        if self._rate is None or not self._anchor:
            return None
        return max(0, int((now - self._anchor) * self._rate) - counted)

    def after(self, read: int, widest: int, counted: int) -> None:
        """A read of ``read`` rows became ``widest`` rows where the stream is widest, ``counted`` where the rate
        counts.
        """
        if read > 0:
            self._expansion = _smooth(self._expansion, widest / read)
            self._rate_expansion = _smooth(self._rate_expansion, counted / read)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
