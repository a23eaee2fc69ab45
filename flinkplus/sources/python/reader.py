"""The reader of the subtask that reads a data source without partitions.

A batch is begun by logging its end offset, piece by piece, and only then are its rows read. So a successor knows both
offsets of every batch of which any other subtask can have a row, and reads it again between them.

Rules: only subtask 0 has anything to read. The others end at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InputError, InvariantViolation
from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import LAG_ROWS, LiveReader
from flinkplus.sources.files.watch import Woken
from flinkplus.sources.python.choices import (
    END,
    MAX_ROWS,
    PIECE_BYTES,
    SourceChoice,
    bytes_of,
    decode,
    encode,
    pack,
    piece_of,
    unpack,
)
from flinkplus.sources.python.fetching import BEFORE, BatchFetcher, SimpleReader
from flinkplus.sources.python.position import OffsetPosition
from flinkplus.sources.python.rows import SourceRows


class OffsetSource(Protocol):
    """What a reader asks of its source's descriptor."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def poll_s(self) -> float: ...

    @property
    def shown(self) -> str: ...

    def hide(self, text: str) -> str: ...

    def stream_reader(self) -> SimpleReader: ...


class OffsetReader(LiveReader):
    """Reads ``source``, as subtask ``index``."""

    def __init__(self, source: OffsetSource, index: int) -> None:
        super().__init__()
        self._source, self._index = source, index
        self._nothing = pa.RecordBatch.from_pylist([], schema=source.schema)
        self._fetcher: BatchFetcher | None = None
        self._at = OffsetPosition()
        self._packed: tuple[str, str | None, bytes] | None = None
        self._committed = 0

    @override
    def open(self, position: JsonValue) -> None:
        self._at = OffsetPosition.from_json(self._source.name, position)
        self.metrics["rows"] = self._at.rows

    @override
    def position(self) -> JsonValue:
        return replace(self._at, rows=self.metrics["rows"]).to_json()

    @override
    def begin(self, woken: Woken) -> None:
        if self._index == 0:
            source = self._source
            rows = SourceRows(source.name, self._index, source.schema, source.shown, source.hide)
            self._fetcher = BatchFetcher(source.name, source.stream_reader, rows, source.poll_s, woken)
            self._fetcher.start()

    # --- choosing

    @override
    def choose(self, max_rows: int) -> int | None:
        fetcher, at = self._fetcher, self._at
        if fetcher is None:
            return None if self._index == 0 else END
        if at.start is None or at.end is None:
            offset = self._next_offset(fetcher)
            return None if offset is None else self._choose_piece(self._pack(offset))
        rows, ended = fetcher.known(fetcher.between(at.start, at.end, at.taken))
        chosen = min(rows, max_rows, MAX_ROWS)
        if ended and chosen == rows:
            return encode(SourceChoice.LAST_ROWS, chosen)
        return encode(SourceChoice.ROWS, chosen) if chosen else None

    def _next_offset(self, fetcher: BatchFetcher) -> str | None:
        if self._at.start is None:
            return fetcher.initial()
        batch = fetcher.next(self._at.start)
        return None if batch is None else batch.end

    def _pack(self, offset: str) -> bytes:
        if self._packed is None or self._packed[:2] != (offset, self._at.start):
            self._packed = offset, self._at.start, pack(offset, self._at.start or "")
        return self._packed[2]

    def _choose_piece(self, packed: bytes) -> int:
        """The next piece of an offset; the first one, when another offset was begun by a predecessor."""
        logged = self._at.pieces
        if logged and packed.startswith(logged):
            return encode(SourceChoice.NEXT_PIECE, piece_of(packed, len(logged)))
        return encode(SourceChoice.FIRST_PIECE, piece_of(packed, 0))

    @override
    def can_read(self, choice: int) -> bool:
        kind, value = decode(choice)
        if kind not in (SourceChoice.ROWS, SourceChoice.LAST_ROWS):
            return True
        at, fetcher = self._at, self._fetcher
        if at.start is None or at.end is None or fetcher is None:
            raise InvariantViolation(f"source {self._source.name!r}: a repeated step reads rows, and no batch is begun")
        rows, ended = fetcher.known(fetcher.between(at.start, at.end, at.taken), wanted=value + 1)
        is_last = kind is SourceChoice.LAST_ROWS
        if (ended and rows < value) or (is_last and rows > value):
            more = "more" if rows > value else "fewer"
            raise InputError(
                f"source {self._source.name!r}: readBetweenOffsets of {self._source.shown} gave {more} rows than "
                f"{BEFORE} ({at.start} to {at.end})"
            )
        return rows >= value and (ended or not is_last)

    @override
    def rows_of(self, choice: int) -> int:
        kind, value = decode(choice)
        return value if kind in (SourceChoice.ROWS, SourceChoice.LAST_ROWS) else 0

    # --- reading

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        kind, value = decode(choice)
        if kind is SourceChoice.END:
            return None
        if kind in (SourceChoice.ROWS, SourceChoice.LAST_ROWS):
            return self._rows(value, kind is SourceChoice.LAST_ROWS)
        piece = bytes_of(value)
        logged = piece if kind is SourceChoice.FIRST_PIECE else self._at.pieces + piece
        if len(piece) == PIECE_BYTES:
            self._at = replace(self._at, pieces=logged)
        elif self._at.start is None:
            self._at = replace(self._at, start=unpack(logged, ""), pieces=b"")
        else:
            self._at = replace(self._at, end=unpack(logged, self._at.start), pieces=b"")
        return self._nothing

    def _rows(self, count: int, last: bool) -> pa.RecordBatch:
        at, fetcher = self._at, self._fetcher
        assert at.start is not None and at.end is not None and fetcher is not None, "rows of no batch"
        taken = fetcher.take(fetcher.between(at.start, at.end, at.taken), count, last)
        self.metrics["rows"] += count
        if last:
            self._at = replace(at, start=at.end, end=None, taken=0, batches=at.batches + 1)
        else:
            self._at = replace(at, taken=at.taken + count)
        return merge(taken) if taken else self._nothing

    @override
    def committed(self, position: JsonValue) -> None:
        at = OffsetPosition.from_json(self._source.name, position)
        if self._fetcher is not None and at.start is not None and at.batches > self._committed:
            self._committed = at.batches
            self._fetcher.commit(at.start)

    @override
    def gauges(self) -> Mapping[str, int]:
        """``lag_rows``: those that the data source has given, and that were not read."""
        return {} if self._fetcher is None else {LAG_ROWS: self._fetcher.held_rows}

    @override
    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
