"""The partitions of a data source that is read once, to its end.

Rules: the driver asks for the partitions, once; a resumed job reads the same ones. Reader *i* of *n* has each *n*-th
partition. A partition must give the same rows, in the same order, whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InputError
from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import LiveReader
from flinkplus.sources.files.decoding import Decoding, FileDecoder
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import FileBlock
from flinkplus.sources.files.watch import Woken
from flinkplus.sources.python.choices import END, MAX_ROWS, SourceChoice, decode, encode
from flinkplus.sources.python.position import POSITION_FORMAT
from flinkplus.sources.python.rows import SourceRows


@dataclass(frozen=True)
class PartitionsPosition:
    """``left``: numbers of the partitions to read, and how many rows of each were read. ``rows``: read in all."""

    left: tuple[tuple[int, int], ...]
    rows: int = 0

    @classmethod
    def start(cls, partitions: int, index: int, parallelism: int) -> PartitionsPosition:
        return cls(tuple((number, 0) for number in range(index, partitions, parallelism)))

    def to_json(self) -> JsonValue:
        return {"format": POSITION_FORMAT, "left": [list(part) for part in self.left], "rows": self.rows}

    @classmethod
    def from_json(cls, source: str, value: Any) -> PartitionsPosition:
        """Raises ``InputError`` for what is no position."""
        try:
            assert value["format"] == POSITION_FORMAT
            left = tuple((number, taken) for number, taken in value["left"])
            numbers = [value["rows"], *(number for part in left for number in part)]
            assert all(type(number) is int and number >= 0 for number in numbers)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"source {source!r}: not a position of this version: {value!r:.200}") from error
        return cls(left, value["rows"])


def redealt(positions: Sequence[PartitionsPosition], parallelism: int) -> list[PartitionsPosition]:
    """The positions of ``parallelism`` readers, from those of all readers so far: what is left, in turn."""
    left = sorted(part for position in positions for part in position.left)
    rows = [sum(position.rows for position in positions[index::parallelism]) for index in range(parallelism)]
    return [PartitionsPosition(tuple(left[index::parallelism]), rows[index]) for index in range(parallelism)]


class PartitionedSource(Protocol):
    """What a reader asks of its source's descriptor."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def shown(self) -> str: ...

    def hide(self, text: str) -> str: ...

    def read_partition(self, number: int) -> Any: ...


class PartitionsReader(LiveReader):
    """Reads ``source``, as subtask ``index``. ``start``: the position at the start of the job."""

    def __init__(self, source: PartitionedSource, index: int, start: PartitionsPosition) -> None:
        super().__init__()
        self._source = source
        self._nothing = pa.RecordBatch.from_pylist([], schema=source.schema)
        self._rows = SourceRows(source.name, index, source.schema, source.shown, source.hide)
        self._decoder = FileDecoder(self._blocks, 1, lambda number: f"partition {number} of {source.shown}")
        self._left = list(start.left)

    @override
    def open(self, position: JsonValue) -> None:
        if position is not None:
            at = PartitionsPosition.from_json(self._source.name, position)
            self._left, self.metrics["rows"] = list(at.left), at.rows

    @override
    def position(self) -> JsonValue:
        return PartitionsPosition(tuple(self._left), self.metrics["rows"]).to_json()

    @override
    def begin(self, woken: Woken) -> None:
        self._decoder.begin(woken)

    def _blocks(self, at: OpenFile[int]) -> Iterator[FileBlock]:
        """In the decoder's thread."""
        try:
            iterator = self._source.read_partition(at.file)
        except Exception as error:
            raise self._rows.failed("read", error) from error
        read = 0
        for batch in self._rows.batches(iterator, "read"):
            rest = batch.slice(max(0, min(at.cursor - read, batch.num_rows)))
            read += batch.num_rows
            if rest.num_rows:
                yield FileBlock(rest, np.arange(read - rest.num_rows + 1, read + 1, dtype=np.int64))

    def _opened(self) -> Decoding:
        """The first partition that is left; the one behind it is read ahead."""
        return self._decoder.want([OpenFile(number, taken) for number, taken in self._left[:2]])[0]

    @override
    def choose(self, max_rows: int) -> int | None:
        if not self._left:
            return END
        rows, ended, error = self._decoder.known(self._opened())
        if not rows and error is not None:
            raise error
        chosen = min(rows, max_rows, MAX_ROWS)
        if ended and chosen == rows:
            return encode(SourceChoice.LAST_ROWS, chosen)
        return encode(SourceChoice.ROWS, chosen) if chosen else None

    @override
    def can_read(self, choice: int) -> bool:
        kind, value = decode(choice)
        if kind is SourceChoice.END:
            return True
        return self._decoder.has(self._opened(), value, ended=kind is SourceChoice.LAST_ROWS)

    @override
    def rows_of(self, choice: int) -> int:
        return decode(choice)[1]

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        kind, value = decode(choice)
        if kind is SourceChoice.END:
            return None
        decoding = self._opened()
        found = self._decoder.take(decoding, value)
        self._left[0] = (found.at.file, found.at.cursor)
        if kind is SourceChoice.LAST_ROWS:
            if self._decoder.known(decoding)[0]:
                raise self._decoder.changed(decoding)
            self._left.pop(0)
        self.metrics["rows"] += value
        return merge(found.rows) if found.rows else self._nothing

    @override
    def gauges(self) -> Mapping[str, int]:
        return {"lag_partitions": len(self._left)}

    @override
    def close(self) -> None:
        self._decoder.close()
