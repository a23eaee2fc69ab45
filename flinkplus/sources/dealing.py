"""How numbered blocks, and splits of files, are dealt to the subtasks of a source, and dealt again.

Blocks are numbered without end. A subtask has *runs* of them: ``first``, ``first + step``, ... below ``end``. At the
start subtask *i* of *n* has one open run, ``i, i + n, ...``. When they are dealt again, all blocks from the furthest
open run on are dealt as at the start; the blocks before it that are left are closed runs, which are divided.

Splits of files are dealt in *stages*: ranges to be read in a number of passes. When they are dealt again, passes in
which the same ranges are left are one stage, whose ranges are divided evenly, in their order.

Rules: pure. Each block, and each part of a range, that was left is dealt once; what was read is not. A subtask has its
blocks, and the ranges of a pass, in ascending order, so that rows in the order of their event time stay in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

MAX_PARTS = 64
"""Maximum number of parts of one stage for each subtask: they are in each snapshot."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """The blocks ``first``, ``first + step``, ... below ``end`` (``None``: without end), the first one from row
    ``offset`` on."""

    first: int
    step: int
    end: int | None = None
    offset: int = 0

    def after(self, rows: int, block_rows: int) -> BlockRun | None:
        """What is left when ``rows`` rows of the first block have been read; ``None``: nothing."""
        if self.offset + rows < block_rows:
            return replace(self, offset=self.offset + rows)
        return self.behind()

    def behind(self) -> BlockRun | None:
        """What is left without the first block; ``None``: nothing."""
        first = self.first + self.step
        return None if self.end is not None and first >= self.end else replace(self, first=first, offset=0)

    def before(self, end: int) -> BlockRun | None:
        """The part of an open run before block ``end``; ``None``: nothing."""
        return replace(self, end=end) if self.first < end else None

    def divided(self, parts: int) -> list[BlockRun]:
        """A closed run as up to ``parts`` runs, none of them empty."""
        assert self.end is not None
        parts = min(parts, -(-(self.end - self.first) // self.step))
        return [
            BlockRun(self.first + at * self.step, self.step * parts, self.end, 0 if at else self.offset)
            for at in range(parts)
        ]


def deal_blocks(left: Sequence[Sequence[BlockRun]], parallelism: int) -> list[list[BlockRun]]:
    """The runs of ``parallelism`` subtasks, from what the subtasks so far have ``left``."""
    runs = [run for runs in left for run in runs]
    opened = [run for run in runs if run.end is None]
    frontier = max((run.first + (run.offset > 0) for run in opened), default=0)
    closed = [run if run.end is not None else run.before(frontier) for run in runs]
    dealt: list[list[BlockRun]] = [[] for _ in range(parallelism)]
    at = 0
    for run in sorted((run for run in closed if run is not None), key=lambda run: run.first):
        for part in run.divided(parallelism):
            dealt[at % parallelism].append(part)
            at += 1
    if opened:
        for index, mine in enumerate(dealt):
            mine.append(BlockRun(frontier + index, parallelism))
    return dealt


class Extent(NamedTuple):
    """The units (bytes, rows) ``[start, end)`` of one source of them, a file or a row group; ``place`` orders these."""

    place: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Extents, in order, that a subtask reads in passes ``first`` to ``end`` - 1."""

    first: int
    end: int
    extents: tuple[Extent, ...]


def deal_stages(left: Sequence[Sequence[Stage]], parallelism: int, part_units: int | None) -> list[list[Stage]]:
    """The stages of ``parallelism`` subtasks, from what the subtasks so far have ``left``.

    ``part_units``: size of the parts, which subtasks get in turn; ``None``: each gets one part of each stage.
    """
    stages = [stage for stages in left for stage in stages if stage.extents and stage.first < stage.end]
    bounds = sorted({bound for stage in stages for bound in (stage.first, stage.end)})
    dealt: list[list[Stage]] = [[] for _ in range(parallelism)]
    for first, end in pairwise(bounds):
        extents = sorted(e for stage in stages if stage.first <= first and end <= stage.end for e in stage.extents)
        for index, mine in enumerate(_parts(_joined(extents), parallelism, part_units)):
            if mine:
                dealt[index].append(Stage(first, end, tuple(mine)))
    return dealt


def _joined(extents: Sequence[Extent]) -> list[Extent]:
    """The same units, with extents that follow each other as one."""
    joined: list[Extent] = []
    for extent in extents:
        if joined and joined[-1].place == extent.place and joined[-1].end == extent.start:
            joined[-1] = joined[-1]._replace(end=extent.end)
        elif extent.start < extent.end:
            joined.append(extent)
    return joined


def _parts(extents: Sequence[Extent], parallelism: int, part_units: int | None) -> list[list[Extent]]:
    total = sum(extent.end - extent.start for extent in extents)
    rounds = 1 if part_units is None else min(MAX_PARTS, max(1, -(-total // (part_units * parallelism))))
    count = rounds * parallelism
    cuts = [total * at // count for at in range(count + 1)]
    dealt: list[list[Extent]] = [[] for _ in range(parallelism)]
    for number, (low, high) in enumerate(pairwise(cuts)):
        first = 0
        for extent in extents:
            size = extent.end - extent.start
            start, end = extent.start + max(low - first, 0), extent.start + min(high - first, size)
            if start < end:
                dealt[number % parallelism].append(extent._replace(start=start, end=end))
            first += size
    return [_joined(mine) for mine in dealt]
