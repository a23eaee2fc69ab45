"""A live source in the memory of a test's process, which says what there is and when each reader has fetched it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.connectors import InputError, JsonValue, LiveReader, Source, SourceReader

ROWS = 1 << 16
END = 0
COLUMNS = pa.schema([("place", pa.int64()), ("number", pa.int64()), ("word", pa.string())])


@dataclass(frozen=True)
class Shelves(Source):
    """``shelves``: the words of each place, to which a test adds. Reader *i* of *n* has the places *i*, *i + n*, ...

    ``readers``: all that were made, the newest last. ``over``: has an element when the source ends after what is there.
    """

    is_live: ClassVar[bool] = True

    name: str
    shelves: Sequence[list[str]]
    readers: list[ShelfReader] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)
    schema: pa.Schema = COLUMNS

    @override
    def reader(self, index: int, parallelism: int) -> SourceReader:
        self.readers.append(ShelfReader(self, [at for at in range(len(self.shelves)) if at % parallelism == index]))
        return self.readers[-1]

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        read = {at: count for position in positions if isinstance(position, Mapping) for at, count in position.items()}
        return [{at: n for at, n in read.items() if int(at) % parallelism == index} for index in range(parallelism)]


class ShelfReader(LiveReader):
    """Has fetched what ``fetch`` says. It chooses a place at random: a choice that is not logged shows.

    ``commits``: the positions that it was told of.
    """

    def __init__(self, source: Shelves, places: Sequence[int]) -> None:
        super().__init__()
        self._source = source
        self.read_rows = dict.fromkeys(places, 0)
        self.fetched = dict.fromkeys(places, 0)
        self.commits: list[JsonValue] = []
        self.closed = False
        self._woken: Callable[[Exception | None], None] | None = None
        self._rng = random.Random(len(source.readers))

    @override
    def open(self, position: JsonValue) -> None:
        if position is not None:
            if not isinstance(position, Mapping) or not {*position} <= {*map(str, self.read_rows)}:
                raise InputError(f"{position!r} is not a position of places {[*self.read_rows]}")
            self.read_rows.update({int(at): int(str(count)) for at, count in position.items()})
        self.fetched.update(self.read_rows)
        self.metrics["rows"] = sum(self.read_rows.values())

    @override
    def begin(self, woken: Callable[[Exception | None], None]) -> None:
        self._woken = woken

    def fetch(self, place: int | None = None, error: Exception | None = None) -> None:
        """All is fetched that is there, in ``place`` or everywhere; or it fails."""
        for at in self.fetched if place is None else [place]:
            self.fetched[at] = len(self._source.shelves[at])
        assert self._woken is not None
        self._woken(error)

    def _waiting(self, place: int) -> int:
        return self.fetched[place] - self.read_rows[place]

    @override
    def choose(self, max_rows: int) -> int | None:
        ready = [at for at in self.fetched if self._waiting(at)]
        if ready:
            place = self._rng.choice(ready)
            return place * ROWS + min(self._waiting(place), max_rows)
        return END if self._is_over else None

    @property
    def _is_over(self) -> bool:
        return bool(self._source.over) and all(
            self.read_rows[at] == len(self._source.shelves[at]) for at in self.read_rows
        )

    @override
    def can_read(self, choice: int) -> bool:
        return self._is_over if choice == END else self._waiting(choice // ROWS) >= choice % ROWS

    @override
    def rows_of(self, choice: int) -> int:
        return choice % ROWS

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        if choice == END:
            return None
        place, rows = divmod(choice, ROWS)
        first = self.read_rows[place]
        assert self._waiting(place) >= rows, "read before it was there"
        self.read_rows[place] = first + rows
        self.metrics["rows"] += rows
        words = self._source.shelves[place][first : first + rows]
        return pa.RecordBatch.from_pydict(
            {"place": [place] * rows, "number": list(range(first, first + rows)), "word": words}, schema=COLUMNS
        )

    @override
    def position(self) -> JsonValue:
        return {str(at): count for at, count in self.read_rows.items()}

    @override
    def committed(self, position: JsonValue) -> None:
        self.commits.append(position)

    @override
    def gauges(self) -> Mapping[str, int]:
        return {"lag_rows": sum(map(self._waiting, self.fetched))}

    @override
    def close(self) -> None:
        self.closed = True
