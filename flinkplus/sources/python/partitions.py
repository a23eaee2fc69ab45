"""Partitions of a data source, read one after the other; and those of one that is read once, to its end.

Rules: a partition must give the same rows, in the same order, whenever it is read. Those that are read once the driver
asks for once; a resumed job reads the same ones. Reader *i* of *n* has each *n*-th of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class NumberedPartitions(PartitionedSource, Protocol):
    """A source whose partitions have numbers."""

    def read_partition(self, number: int) -> Any: ...


class PartitionByPartition(LiveReader):
    """Reads partitions one after the other, as subtask ``index``. A choice is a number of rows of the open one, and
    whether it ends after them. ``named``: a partition, for errors.
    """

    def __init__(self, source: PartitionedSource, index: int, named: Callable[[Any], str]) -> None:
        super().__init__()
        self._source = source
        self._nothing = pa.RecordBatch.from_pylist([], schema=source.schema)
        self._rows = SourceRows(source.name, index, source.schema, source.shown, source.hide)
        self._named = named
        self._decoder = FileDecoder(self._blocks, 1, named)

    @abstractmethod
    def _upcoming(self) -> list[OpenFile[Any]]:
        """The partition to read, and the one behind it, as far as they are known."""

    @abstractmethod
    def _is_over(self) -> bool:
        """Whether no more partitions become known."""

    @abstractmethod
    def _iterator(self, partition: Any) -> Any:
        """What the data source returns for a partition; called in the decoder's thread."""

    @abstractmethod
    def _advance(self, rows: int, ended: bool) -> None:
        """So many rows of the open partition were read; ``ended``: they were the last ones."""

    @override
    def begin(self, woken: Woken) -> None:
        self._decoder.begin(woken)

    def _blocks(self, at: OpenFile[Any]) -> Iterator[FileBlock]:
        """In the decoder's thread."""
        try:
            iterator = self._iterator(at.file)
        except Exception as error:
            raise self._rows.failed("read", error) from error
        read = 0
        for batch in self._rows.batches(iterator, "read"):
            rest = batch.slice(max(0, min(at.cursor - read, batch.num_rows)))
            read += batch.num_rows
            if rest.num_rows:
                yield FileBlock(rest, np.arange(read - rest.num_rows + 1, read + 1, dtype=np.int64))
        if read < at.cursor:
            raise InputError(
                f"source {self._source.name!r}: read of {self._source.shown} gave {read} rows for "
                f"{self._named(at.file)}, of which {at.cursor} were read before: a partition must always give the same"
            )

    def _opened(self) -> Decoding | None:
        """The partition to read; the one behind it is read ahead."""
        upcoming = self._upcoming()
        return self._decoder.want(upcoming)[0] if upcoming else None

    @override
    def choose(self, max_rows: int) -> int | None:
        over = self._is_over()  # before the partitions: it is known after the last one
        opened = self._opened()
        if opened is None:
            return END if over else None
        rows, ended, error = self._decoder.known(opened)
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
        opened = self._opened()
        return opened is not None and self._decoder.has(opened, value, ended=kind is SourceChoice.LAST_ROWS)

    @override
    def rows_of(self, choice: int) -> int:
        return decode(choice)[1]

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        kind, value = decode(choice)
        if kind is SourceChoice.END:
            return None
        opened = self._opened()
        assert opened is not None, "read without can_read"
        found = self._decoder.take(opened, value)
        ended = kind is SourceChoice.LAST_ROWS
        if ended and self._decoder.known(opened)[0]:
            raise self._decoder.changed(opened)
        self._advance(value, ended)
        self.metrics["rows"] += value
        return merge(found.rows) if found.rows else self._nothing

    @override
    def close(self) -> None:
        self._decoder.close()


class PartitionsReader(PartitionByPartition):
    """Reads ``source``. ``start``: the position at the start of the job."""

    def __init__(self, source: NumberedPartitions, index: int, start: PartitionsPosition) -> None:
        super().__init__(source, index, lambda number: f"partition {number} of {source.shown}")
        self._read_partition = source.read_partition
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
    def _upcoming(self) -> list[OpenFile[int]]:
        return [OpenFile(number, taken) for number, taken in self._left[:2]]

    @override
    def _is_over(self) -> bool:
        return not self._left

    @override
    def _iterator(self, partition: int) -> Any:
        return self._read_partition(partition)

    @override
    def _advance(self, rows: int, ended: bool) -> None:
        number, taken = self._left.pop(0)
        if not ended:
            self._left.insert(0, (number, taken + rows))

    @override
    def gauges(self) -> Mapping[str, int]:
        return {"lag_partitions": len(self._left)}
