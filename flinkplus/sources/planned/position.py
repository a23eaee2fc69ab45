"""Which partitions belong to a reader, at any parallelism, and what it has read of them.

All partitions of a source are numbered, from batch to batch. Reader *i* of *n* has the partitions *i*, *i + n*, ...;
what is left is dealt again as the blocks of a generator are (``dealing``).

Rules: pure. A reader has its partitions in ascending order. Each one that is left is dealt once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.dealing import BlockRun, deal_blocks

POSITION_FORMAT = 1


@dataclass(frozen=True)
class PlannedPosition:
    """``runs``: the partitions that a reader has to read; the offset of a run is a number of rows of its first one.
    ``rows``, ``partitions``: read in all."""

    runs: tuple[BlockRun, ...]
    rows: int = 0
    partitions: int = 0

    @classmethod
    def start(cls, index: int, parallelism: int) -> PlannedPosition:
        return cls((BlockRun(index, parallelism),))

    @property
    def floor(self) -> int:
        """No partition before this one is needed."""
        return min(run.first for run in self.runs)

    @property
    def begun(self) -> int:
        """So many partitions were planned at least: one behind the last one that was begun, 0 if none was."""
        return max((run.first + 1 for run in self.runs if run.offset), default=0)

    def upcoming(self, end: int, count: int) -> list[tuple[int, int]]:
        """The next partitions before ``end``, up to ``count``: number, and rows that were read."""
        found: list[tuple[int, int]] = []
        runs = sorted(self.runs, key=lambda run: run.first)
        while len(found) < count and runs and runs[0].first < end:
            found.append((runs[0].first, runs[0].offset))
            rest = runs[0].behind()
            runs = sorted([*runs[1:], *([] if rest is None else [rest])], key=lambda run: run.first)
        return found

    def left(self, end: int) -> int:
        """The number of partitions before ``end`` that are left."""
        ends = ((run, end if run.end is None else min(run.end, end)) for run in self.runs)
        return sum(max(0, -(-(stop - run.first) // run.step)) for run, stop in ends)

    def after(self, rows: int, ended: bool) -> PlannedPosition:
        """When so many more rows of the lowest partition were read; ``ended``: they were its last ones."""
        at = min(range(len(self.runs)), key=lambda number: self.runs[number].first)
        run = self.runs[at]
        rest = run.behind() if ended else BlockRun(run.first, run.step, run.end, run.offset + rows)
        runs = (*self.runs[:at], *(() if rest is None else (rest,)), *self.runs[at + 1 :])
        return PlannedPosition(runs, self.rows + rows, self.partitions + ended)

    def to_json(self) -> JsonValue:
        runs: list[JsonValue] = [[run.first, run.step, run.end, run.offset] for run in self.runs]
        return {"format": POSITION_FORMAT, "runs": runs, "rows": self.rows, "partitions": self.partitions}

    @classmethod
    def from_json(cls, source: str, value: Any) -> PlannedPosition:
        """Raises ``InputError`` for what is no position."""
        try:
            assert value["format"] == POSITION_FORMAT
            runs = tuple(BlockRun(*run) for run in value["runs"])
            assert any(run.end is None for run in runs)
            for run in runs:
                assert run.step > 0 and (run.end is None or run.first < run.end)
            counts = [value["rows"], value["partitions"]]
            numbers = [number for run in runs for number in (run.first, run.step, run.offset)]
            numbers += [run.end for run in runs if run.end is not None]
            assert all(type(number) is int and number >= 0 for number in (*counts, *numbers))
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"source {source!r}: not a position of this version: {value!r:.200}") from error
        return cls(runs, *counts)


def positions_from(source: str, positions: Sequence[JsonValue]) -> list[PlannedPosition]:
    """Those of all readers, by index; ``None`` is the start."""
    return [
        PlannedPosition.start(index, len(positions)) if value is None else PlannedPosition.from_json(source, value)
        for index, value in enumerate(positions)
    ]


def redealt(positions: Sequence[PlannedPosition], parallelism: int) -> list[PlannedPosition]:
    """The positions of ``parallelism`` readers, from those of all readers so far, by index."""
    dealt = deal_blocks([position.runs for position in positions], parallelism)
    found = []
    for index, runs in enumerate(dealt):
        before = positions[index::parallelism]
        counts = sum(position.rows for position in before), sum(position.partitions for position in before)
        found.append(PlannedPosition(tuple(runs), *counts))
    return found
