"""The reader of one subtask of staged batches.

Rules: a choice is the number of rows; 0 is the end of the source. Rows of several batches may be read together, in
ascending order of the batches. Parts of batches that have no rows for the reader are passed over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import LAG_ROWS, MAX_CHOICE, LiveReader
from flinkplus.sources.batches.area import ReadyBatch, StagingArea
from flinkplus.sources.batches.pieces import BatchPosition, Piece
from flinkplus.sources.files.decoding import ATTEMPTS, Decoding, FileDecoder
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import FileBlock
from flinkplus.sources.files.watch import RareWarning, Woken
from flinkplus.sources.parquet import blocks_of

AHEAD = 4
"""Parts of batches that are decoded ahead."""
LOCAL_POLL_S, POLL_S = 0.02, 0.5
END = 0


@dataclass(frozen=True)
class BatchShare:
    """The rows ``start`` to ``end`` - 1 of a batch."""

    batch: ReadyBatch
    start: int
    end: int


class Numbered(Protocol):
    """A batch."""

    @property
    def number(self) -> int: ...


B = TypeVar("B", bound=Numbered)
B_co = TypeVar("B_co", bound=Numbered, covariant=True)


class BatchArea(Protocol[B_co]):
    """Where batches appear, in ascending order: see ``StagingArea``."""

    location: str
    is_local: bool

    def ready(self) -> tuple[list[int], bool]: ...

    def read(self, number: int, /) -> B_co: ...


class BatchWatch(Generic[B]):
    """The thread that looks for complete batches, until it is closed.

    ``from_batch``: the first one that is needed.
    """

    def __init__(self, area: BatchArea[B], from_batch: int) -> None:
        self._area = area
        self._from = from_batch
        self._stop = threading.Event()
        self._warn = RareWarning()
        self.batches: tuple[B, ...] = ()
        """Replaced, never changed: any thread may read it."""
        self.ended = False
        """Whether there will be no more batches."""
        self._end_seen = False

    def begin(self, woken: Woken) -> None:
        """Start the thread. ``woken``: called when there is more."""
        threading.Thread(target=self._run, args=(woken,), name="flinkplus-batches", daemon=True).start()

    def forget(self, before: int) -> None:
        """Batches before this one are no longer needed; called by the reader."""
        self._from = max(self._from, before)

    def close(self) -> None:
        """Ask the thread to end; does not wait."""
        self._stop.set()

    def _run(self, woken: Woken) -> None:
        pause_s = LOCAL_POLL_S if self._area.is_local else POLL_S
        try:
            while not self._stop.is_set():
                try:
                    if self._look():
                        woken(None)
                except FileNotFoundError:  # a batch was removed after it was listed: no reader needs it
                    pass
                except OSError as error:
                    self._warn("cannot look for batches in %r, trying again: %s", self._area.location, error)
                self._stop.wait(pause_s)
        except Exception as error:  # of whatever kind: without this thread the reader would wait for ever
            woken(error)

    def _look(self) -> bool:
        numbers, ended = self._area.ready()
        known = {batch.number: batch for batch in self.batches}
        if any(number >= self._from and number not in known for number in numbers):
            # A listing may show a batch and miss one before it that was completed meanwhile; the next one shows both.
            last = numbers[-1]
            numbers = [number for number in self._area.ready()[0] if number <= last]
        needed = [number for number in numbers if number >= self._from]
        fresh = [number for number in needed if number not in known]
        kept = [batch for batch in self.batches if batch.number >= self._from]
        self.batches = (*kept, *(self._area.read(number) for number in fresh))
        # A listing that shows the end may have missed a batch that was completed just before; the next one has not.
        before, self.ended, self._end_seen = self.ended, ended and self._end_seen, ended
        return bool(fresh) or self.ended is not before


class BatchReader(LiveReader):
    """Reads from the staging area at ``location``. ``start``: the position at the start of the job."""

    def __init__(self, source: str, schema: pa.Schema, strict: bool, location: str, start: BatchPosition) -> None:
        super().__init__()
        self._source, self._schema, self._strict, self._location = source, schema, strict, location
        self._nothing = pa.RecordBatch.from_pylist([], schema=schema)
        self._watch: BatchWatch[ReadyBatch] | None = None
        self._decoder: FileDecoder | None = None
        self._take_over(start)

    def _take_over(self, at: BatchPosition) -> None:
        self._at = at
        self.metrics = dict(at.metrics)

    @override
    def open(self, position: JsonValue) -> None:
        if position is not None:
            self._take_over(BatchPosition.from_json(self._source, position))

    @override
    def begin(self, woken: Woken) -> None:
        area = StagingArea(self._location)
        self._watch = BatchWatch(area, self._at.floor)
        self._decoder = FileDecoder(self._blocks, 1 if area.is_local else ATTEMPTS, self._shown)
        self._watch.begin(woken)
        self._decoder.begin(woken)

    def _shown(self, share: BatchShare) -> str:
        return f"batch {share.batch.number} of source {self._source}"

    def _blocks(self, at: OpenFile[BatchShare]) -> Iterator[FileBlock]:
        share = at.file
        read = 0
        for rows in share.batch.ranges(self._location, share.start + at.cursor, share.end):
            for block in blocks_of(rows, rows.start, self._schema, self._strict):
                cursors = np.arange(at.cursor + read + 1, at.cursor + read + block.rows.num_rows + 1, dtype=np.int64)
                read += block.rows.num_rows
                yield FileBlock(block.rows, cursors, repaired=block.invalid)

    # --- what is to be read

    def _shares(self, at: BatchPosition) -> Iterator[tuple[OpenFile[BatchShare], BatchPosition, int]]:
        """The parts of batches to read next, in order; for each, the position behind the ones before, and the piece."""
        assert self._watch is not None
        batches = {batch.number: batch for batch in self._watch.batches}
        numbers = sorted(batches)
        while (found := at.next(numbers)) is not None:
            index, number = found
            piece = at.pieces[index]
            row = piece.row if piece.first == number else 0
            start, end = piece.rows_of(number, batches[number].rows)
            if start + row < end:
                yield OpenFile(BatchShare(batches[number], start, end), row, row), at, index
            at = at.advanced(index, piece.after(number))

    def _upcoming(self, rows: int) -> list[tuple[Decoding, int]]:
        """What is decoded of the next parts, with at least ``rows`` in all if they are there; and the rows of each."""
        assert self._decoder is not None
        opened: list[OpenFile[BatchShare]] = []
        left = rows
        for share, _, _ in self._shares(self._at):
            if len(opened) >= AHEAD and left <= 0:
                break
            opened.append(share)
            left -= share.file.end - share.file.start - share.cursor
        found = self._decoder.want(opened)
        return [(one, at.file.end - at.file.start - at.cursor) for one, at in zip(found, opened, strict=True)]

    @override
    def choose(self, max_rows: int) -> int | None:
        if self._decoder is None or self._watch is None:
            return None
        ended = self._watch.ended  # before the batches: it is set after the last one
        upcoming = self._upcoming(0)
        if not upcoming:
            return END if ended else None
        chosen = 0
        for decoding, size in upcoming:
            records, _, error = self._decoder.known(decoding)
            if error is not None and not records and not chosen:
                raise error
            chosen += min(records, size)
            if records < size or chosen >= max_rows:
                break
        return min(chosen, max_rows, MAX_CHOICE) or None

    @override
    def can_read(self, choice: int) -> bool:
        if self._decoder is None:
            return False
        left = choice
        for decoding, size in self._upcoming(choice) if choice else ():
            if not self._decoder.has(decoding, min(left, size), ended=False):
                return False
            left -= min(left, size)
        return left == 0

    @override
    def rows_of(self, choice: int) -> int:
        return choice

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        if choice == END:
            return None
        assert self._decoder is not None and self._watch is not None
        parts: list[pa.RecordBatch] = []
        left, reached = choice, self._at
        opened = [(at, index) for _, at, index in _limited(self._shares(self._at), choice)]
        for (decoding, size), (at, index) in zip(self._upcoming(choice), opened, strict=False):
            if not left:
                break
            taken = min(left, size)
            found = self._decoder.take(decoding, taken)
            self.metrics["invalid_lines"] += found.repaired
            parts += found.rows
            left -= taken
            reached = at.advanced(index, _behind(at.pieces[index], decoding.at.file, found.at.cursor))
        assert left == 0, "read without can_read"
        self._at = reached
        self._watch.forget(reached.floor)
        rows = merge(parts) if len(parts) > 1 else parts[0]
        self.metrics["rows"] += rows.num_rows
        return rows

    # --- positions

    @override
    def position(self) -> JsonValue:
        return replace(self._at, metrics=self.metrics).to_json()

    @override
    def gauges(self) -> Mapping[str, int]:
        if self._watch is None:
            return {}
        return {LAG_ROWS: sum(s.file.end - s.file.start - s.cursor for s, _, _ in self._shares(self._at))}

    @override
    def close(self) -> None:
        for thread in (self._watch, self._decoder):
            if thread is not None:
                thread.close()


def _limited(
    shares: Iterator[tuple[OpenFile[BatchShare], BatchPosition, int]], rows: int
) -> Iterator[tuple[OpenFile[BatchShare], BatchPosition, int]]:
    """As many parts as ``rows`` rows need."""
    for found in shares:
        yield found
        rows -= found[0].file.end - found[0].file.start - found[0].cursor
        if rows <= 0:
            return


def _behind(piece: Piece, share: BatchShare, row: int) -> Piece | None:
    """What is left of a piece when ``row`` rows of a part of a batch were read."""
    if share.start + row < share.end:
        return replace(piece, first=share.batch.number, row=row)
    return piece.after(share.batch.number)
