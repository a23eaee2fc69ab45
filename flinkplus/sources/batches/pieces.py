"""Which rows of which batches belong to a reader, at any parallelism.

A batch is a number of rows, known when it is complete. Reader *i* of *n* has one *n*-th of each; which one depends on
the number of the batch, so that small batches go to all readers in turn. When batches are dealt again for another
parallelism, batches from the furthest open one on are dealt again; what is left of those before is cut once more.

A *piece* is a range of batches, of each of which a range of rows belongs to a reader: a list of *cuts*, each of which
takes a part of what the one before has left.

Rules: pure. A reader has its batches in ascending order. Each row that is left is dealt once; what was read is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flinkplus.errors import InputError
from flinkplus.operators.base.operator import JsonValue

POSITION_FORMAT = 1
METRICS = ("rows", "invalid_lines")


@dataclass(frozen=True, slots=True)
class RowCut:
    """Of a range of rows, part ``index`` of ``count`` equal ones, counted from the number of the batch on; without its
    first ``offset`` rows."""

    index: int
    count: int
    offset: int = 0

    def of(self, batch: int, start: int, end: int) -> tuple[int, int]:
        """The part of the rows ``start`` to ``end`` - 1 of a batch."""
        at, size = (self.index + batch) % self.count, end - start
        low, high = start + size * at // self.count, start + size * (at + 1) // self.count
        return min(low + self.offset, high), high


@dataclass(frozen=True, slots=True)
class Piece:
    """The batches ``first`` to ``end`` - 1 (``None``: without end), of each the rows that ``cuts`` leave; without the
    first ``row`` rows of batch ``first``."""

    first: int
    end: int | None
    cuts: tuple[RowCut, ...]
    row: int = 0

    def rows_of(self, batch: int, rows: int) -> tuple[int, int]:
        """The rows of a batch that has ``rows``, as a range; the rows that were read count."""
        start, end = 0, rows
        for cut in self.cuts:
            start, end = cut.of(batch, start, end)
        return start, end

    def has(self, batch: int) -> bool:
        return self.first <= batch and (self.end is None or batch < self.end)

    def after(self, batch: int) -> Piece | None:
        """What is left behind a batch; ``None``: nothing."""
        if self.end is not None and batch + 1 >= self.end:
            return None
        return replace(self, first=batch + 1, row=0)

    def before(self, end: int) -> list[Piece]:
        """The part of an open piece before batch ``end``, with what was read as a cut."""
        closed = []
        first = self.first
        if self.row and first < end:
            *others, last = self.cuts
            partly = (*others, replace(last, offset=last.offset + self.row))
            closed.append(Piece(first, first + 1, partly))
            first += 1
        return [*closed, Piece(first, end, self.cuts)] if first < end else closed

    def divided(self, parts: int) -> list[Piece]:
        """A closed piece as ``parts`` pieces."""
        return [replace(self, cuts=(*self.cuts, RowCut(index, parts))) for index in range(parts)]

    def to_json(self) -> JsonValue:
        return [self.first, self.end, self.row, [[cut.index, cut.count, cut.offset] for cut in self.cuts]]


@dataclass(frozen=True)
class BatchPosition:
    """The pieces that a reader has to read."""

    pieces: tuple[Piece, ...]
    metrics: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(METRICS, 0))

    @classmethod
    def start(cls, index: int, parallelism: int) -> BatchPosition:
        return cls((Piece(0, None, (RowCut(index, parallelism),)),))

    @property
    def floor(self) -> int:
        """No batch before this one is needed."""
        return min(piece.first for piece in self.pieces)

    def next(self, batches: Sequence[int]) -> tuple[int, int] | None:
        """The piece to read next, and the batch: the lowest of those that are there; ``None``: there is none.

        ``batches``: the complete ones, in ascending order. A batch that is missing among them has no rows.
        """
        found = [
            (batch, at)
            for at, piece in enumerate(self.pieces)
            if (batch := next((batch for batch in batches if piece.has(batch)), None)) is not None
        ]
        return None if not found else (min(found)[1], min(found)[0])

    def advanced(self, at: int, piece: Piece | None) -> BatchPosition:
        """With another piece in the place of piece ``at``; ``None``: without it."""
        pieces = (*self.pieces[:at], *([] if piece is None else [piece]), *self.pieces[at + 1 :])
        return replace(self, pieces=pieces)

    def to_json(self) -> JsonValue:
        return {"format": POSITION_FORMAT, "pieces": [piece.to_json() for piece in self.pieces], **self.metrics}

    @classmethod
    def from_json(cls, source: str, value: Any) -> BatchPosition:
        """Raises ``InputError`` for what is no position."""
        try:
            assert value["format"] == POSITION_FORMAT and value["pieces"]
            metrics = {name: value[name] for name in METRICS}
            pieces = []
            for first, end, row, cuts in value["pieces"]:
                made = tuple(RowCut(*cut) for cut in cuts)
                assert made and all(0 <= cut.index < cut.count and cut.offset >= 0 for cut in made)
                assert first >= 0 and row >= 0 and (end is None or first < end)
                pieces.append(Piece(first, end, made, row))
            assert all(type(number) is int and number >= 0 for number in metrics.values())
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"source {source!r}: not a position of this version: {value!r:.200}") from error
        return cls(tuple(pieces), metrics)


def redealt(positions: Sequence[BatchPosition], parallelism: int) -> list[BatchPosition]:
    """The positions of ``parallelism`` readers, from those of all readers so far, by index."""
    pieces = [piece for position in positions for piece in position.pieces]
    opened = [piece for piece in pieces if piece.end is None]
    frontier = max((piece.first + (piece.row > 0) for piece in opened), default=0)
    closed = [part for piece in pieces for part in piece.before(frontier if piece.end is None else piece.end)]
    closed.sort(key=lambda piece: piece.first)
    dealt = []
    for index in range(parallelism):
        mine = [piece.divided(parallelism)[index] for piece in closed]
        totals = [position.metrics for position in positions[index::parallelism]]
        metrics = {name: sum(total[name] for total in totals) for name in METRICS}
        dealt.append(BatchPosition((*mine, Piece(frontier, None, (RowCut(index, parallelism),))), metrics))
    return dealt
