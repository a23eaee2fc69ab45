"""What file sources share: passes over a fixed list of splits, positions within a split, and bad text.

Rules:

- A reader's splits are a pure function of the planned source, the subtask's index and the parallelism; or, once they
  were dealt again for another parallelism (``dealing``), they are in its position, as *stages*.
- A split is read block by block; a block is a batch of rows, each with the *cursor* (a number within the split) at
  which reading continues after it. So a position can stand after any row: pass, split, cursor.
- A source with ``repeat`` begins its splits again after the last one; a pass without a row ends it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import SourceReader
from flinkplus.sources.dealing import Extent, Stage, deal_stages

POSITION_FORMAT = 2


class Split(Protocol):
    """A part of the input that one reader reads in order."""

    @property
    def identity(self) -> tuple[str | int, ...]:
        """What must be the same when a position in this split is used again."""

    @property
    def start(self) -> int:
        """The first byte or row."""

    @property
    def end(self) -> int:
        """The end of its bytes or rows."""


S = TypeVar("S", bound=Split)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows, the cursor after each of them, and which of them held text that was not UTF-8 (``None``: none did)."""

    rows: pa.RecordBatch
    cursors: npt.NDArray[np.int64]
    invalid: npt.NDArray[np.bool_] | None = None


def check_options(source: str, repeat: int, errors: str) -> None:
    """Raises ``ConfigurationError`` for options that make no sense."""
    if repeat < 1:
        raise ConfigurationError(f"source {source!r}: repeat must be at least 1, not {repeat}")
    if errors not in ("replace", "strict"):
        raise ConfigurationError(f"source {source!r}: errors must be 'replace' or 'strict', not {errors!r}")


class SplitReader(SourceReader, Generic[S]):
    """Reads ``splits`` in order, ``repeat`` times over; or the stages of its position, one after the other."""

    def __init__(self, source: str, schema: pa.Schema, splits: Sequence[S], repeat: int) -> None:
        super().__init__()
        self.metrics["invalid_lines"] = 0
        self._source = source
        self._nothing = pa.RecordBatch.from_pylist([], schema=schema)
        self._stages: list[Stage] | None = None
        self._begin(splits, 0, repeat)
        self._split = 0
        self._cursor: int | None = None
        self._began: int | None = None
        self._pass_has_rows = False
        self._blocks: Iterator[Block] | None = None
        self._block: Block | None = None
        self._next_row = 0

    def _begin(self, splits: Sequence[S], first: int, end: int) -> None:
        """Read ``splits`` in passes ``first`` to ``end`` - 1."""
        self._splits = list(splits)
        self._pass, self._end = first, end
        identities = repr([split.identity for split in self._splits])
        self._input = hashlib.blake2b(identities.encode(), digest_size=8).hexdigest()

    @abstractmethod
    def split_of(self, extent: Extent) -> S:
        """The split that an extent means. Raises ``IndexError`` or ``ValueError`` when the source has no
        such place."""

    @abstractmethod
    def extent_of(self, split: S) -> Extent:
        """The inverse of ``split_of``."""

    @abstractmethod
    def blocks(self, split: S, cursor: int | None) -> Iterator[Block]:
        """The blocks of a split from ``cursor`` on; ``None`` is its beginning. Raises ``InputError``."""

    @override
    def open(self, position: JsonValue) -> None:
        if position is None:
            return
        if not isinstance(position, Mapping) or position.get("format") != POSITION_FORMAT:
            raise InputError(f"source {self._source!r}: not a position of this version: {position!r:.200}")
        if position.get("stages") is not None:
            self._stages = self._stages_of(position)
            self._enter_stage()
        numbers = self._numbers_of(position)
        self._pass, self._split = numbers["round"] or 0, numbers["split"] or 0
        self._cursor, self._began = numbers["cursor"], numbers["block"]
        self._pass_has_rows = self._split > 0 or self._cursor is not None
        for metric in self.metrics:
            self.metrics[metric] = numbers[metric] or 0

    def _stages_of(self, position: Mapping[str, Any]) -> list[Stage]:
        try:
            stages = []
            for first, end, extents in position["stages"]:
                found = tuple(Extent(tuple(place), start, stop) for place, start, stop in extents)
                assert all(type(n) is int and n >= 0 for e in found for n in (*e.place, e.start, e.end))
                assert type(first) is int and type(end) is int and 0 <= first < end and found
                stages.append(Stage(first, end, found))
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"source {self._source!r}: not a position: {position!r:.200}") from error
        return stages

    def _enter_stage(self) -> None:
        """Continue with the first of the stages; with none left, the source has ended."""
        if not self._stages:
            self._begin((), 0, 0)
            return
        stage = self._stages[0]
        try:
            splits = [self.split_of(extent) for extent in stage.extents]
        except (IndexError, ValueError) as error:
            raise InputError(f"source {self._source!r}: the recorded position belongs to other files") from error
        self._begin(splits, stage.first, stage.end)

    def _numbers_of(self, position: Mapping[str, Any]) -> dict[str, int | None]:
        numbers: dict[str, int | None] = {}
        for name in ("round", "split", "cursor", "block", *self.metrics):
            value = position.get(name)
            if not (isinstance(value, int) and value >= 0) and not (name in ("cursor", "block") and value is None):
                raise InputError(f"source {self._source!r}: not a position: {position!r:.200}")
            numbers[name] = value
        at = (numbers["round"] or 0, numbers["split"] or 0)
        if position.get("input") != self._input or at > (self._end, 0):
            raise InputError(
                f"source {self._source!r}: the recorded position {position!r:.200} belongs to other files, "
                "other file sizes, another parallelism or fewer passes; resume with the same input, or start "
                "a new job"
            )
        return numbers

    def begin_stages(self, stages: Sequence[Stage], metrics: Mapping[str, int]) -> None:
        """Begin with ``stages``, and totals of readers before, at another parallelism."""
        self._stages = list(stages)
        self._enter_stage()
        self.metrics.update(metrics)

    def left(self) -> list[Stage]:
        """What is left to read. Call it before the first ``read``."""
        extents = [self.extent_of(split) for split in self._splits]
        rest = extents[self._split :]
        if rest and self._cursor is not None:
            rest[0] = rest[0]._replace(start=max(rest[0].start, self._cursor))
        rest = [extent for extent in rest if extent.start < extent.end]
        later = [] if self._stages is None else self._stages[1:]
        return [
            Stage(self._pass, min(self._pass + 1, self._end), tuple(rest)),
            Stage(self._pass + 1, self._end, tuple(extents)),
            *later,
        ]

    @override
    def read(self, max_rows: int) -> pa.RecordBatch | None:
        while self._block is None:
            if not self._splits or self._pass >= self._end:
                if not self._stages:
                    return None
                del self._stages[0]
                self._enter_stage()
                continue
            if self._blocks is None:
                self._blocks = self.blocks(self._splits[self._split], self._began)
            self._block = next(self._blocks, None)
            if self._block is None:
                self._end_split()
                continue
            self._next_row = self._rows_before(self._block)
            if self._next_row == self._block.rows.num_rows:
                self._block, self._began = None, self._cursor
        block = self._block
        start, end = self._next_row, min(self._next_row + max_rows, block.rows.num_rows)
        if end <= start:
            return self._nothing
        self._cursor = int(block.cursors[end - 1])
        self._pass_has_rows = True
        self.metrics["rows"] += end - start
        if block.invalid is not None:
            self.metrics["invalid_lines"] += int(block.invalid[start:end].sum())
        self._next_row = end
        if end == block.rows.num_rows:
            self._block, self._began = None, self._cursor
        return block.rows.slice(start, end - start)

    def _rows_before(self, block: Block) -> int:
        """How many rows of a block were read before the position that reading continues from."""
        if self._cursor in (None, self._began) or not block.rows.num_rows:
            return 0
        rows = int(np.searchsorted(block.cursors, self._cursor, side="right"))
        if not rows or block.cursors[rows - 1] != self._cursor:
            raise InputError(
                f"source {self._source!r}: position {self._cursor} does not lie in rows that are read together from "
                f"{self._began} on"
            )
        return rows

    def _end_split(self) -> None:
        self._blocks = None
        self._cursor = self._began = None
        self._split += 1
        if self._split == len(self._splits):
            self._split = 0
            self._pass = self._pass + 1 if self._pass_has_rows else self._end
            self._pass_has_rows = False

    @override
    def position(self) -> JsonValue:
        return {
            "format": POSITION_FORMAT,
            "input": self._input,
            "round": self._pass,
            "split": self._split,
            "cursor": self._cursor,
            "block": self._began,
            "stages": None if self._stages is None else stages_to_json(self._stages),
            **self.metrics,
        }

    @override
    def close(self) -> None:
        blocks, self._blocks, self._block = self._blocks, None, None
        if blocks is not None:
            blocks.close()  # type: ignore[attr-defined]  # a generator: it closes its file


def stages_to_json(stages: Sequence[Stage]) -> list[Any]:
    """The stages of a position."""
    return [[stage.first, stage.end, [[list(e.place), e.start, e.end] for e in stage.extents]] for stage in stages]


def redealt(
    reader: Callable[[int, int], SplitReader[S]],
    positions: Sequence[JsonValue],
    parallelism: int,
    part_units: int | None,
) -> list[JsonValue]:
    """``Source.redealt`` of a source of splits. ``reader``: makes its readers; ``part_units``: see ``deal_stages``."""
    left = []
    totals: list[Counter[str]] = [Counter() for _ in range(parallelism)]
    for index, position in enumerate(positions):
        opened = reader(index, len(positions))
        opened.open(position)
        left.append(opened.left())
        totals[index % parallelism].update(opened.metrics)
    dealt: list[JsonValue] = []
    for stages, total in zip(deal_stages(left, parallelism, part_units), totals, strict=True):
        fresh = reader(0, 1)
        fresh.begin_stages(stages, total)
        dealt.append(fresh.position())
    return dealt
