"""A data source in the memory of a test's process, and a reader that is driven by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import SimpleDataSourceStreamReader

from flinkplus.sources.python.choices import SourceChoice, decode
from flinkplus.sources.python.reader import OffsetReader

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
PATIENCE_S = 10.0


@dataclass
class Stock:
    """What there is to read: ``size`` rows so far, of which a batch has ``limit`` at most.

    ``calls``: of all readers, in order. ``fault``: called with each of them; may raise. ``rows``: other rows than
    usual, from ``start`` to ``end``. ``ends``: other ends of batches, by their start.
    """

    size: int = 0
    limit: int = 1_000_000
    first: int = 0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    fault: Callable[[tuple[Any, ...]], None] = lambda call: None
    rows: Callable[[int, int], Iterator[Any]] | None = None
    ends: dict[int, int] = field(default_factory=dict)
    name: str = "stock"
    schema: pa.Schema = SCHEMA
    poll_s: float = 0.01
    shown: str = "Stock"

    def stream_reader(self) -> SimpleDataSourceStreamReader:
        return StockReader(self)

    def hide(self, text: str) -> str:
        return text.replace("hunter2", "***")

    def noted(self, *call: Any) -> None:
        self.calls.append(call)
        self.fault(call)

    def between(self, start: int, end: int) -> Iterator[Any]:
        return rows_between(start, end) if self.rows is None else self.rows(start, end)

    def called(self, method: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == method]


def rows_between(start: int, end: int) -> Iterator[tuple[int, str]]:
    return ((n, f"row {n}") for n in range(start, end))


class StockReader(SimpleDataSourceStreamReader):
    def __init__(self, stock: Stock) -> None:
        self.stock = stock

    def initialOffset(self) -> dict[str, Any]:
        self.stock.noted("initialOffset")
        return {"at": self.stock.first}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        self.stock.noted("read", start["at"])
        end = self.stock.ends.get(start["at"], min(self.stock.size, start["at"] + self.stock.limit))
        return self.stock.between(start["at"], end), {"at": end}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        self.stock.noted("readBetweenOffsets", start["at"], end["at"])
        return self.stock.between(start["at"], end["at"])

    def commit(self, end: dict[str, Any]) -> None:
        self.stock.noted("commit", end["at"])


class Woken:
    """Receives the wake-ups of a reader. ``errors``: those that the reader has reported."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self._woken = threading.Event()

    def wake(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)
        self._woken.set()

    def wait(self, holds: Callable[[], Any]) -> Any:
        """Wait until something holds. Raises the error that the reader reported."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := holds()):
            if self.errors:
                raise self.errors[0]
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s"
            self._woken.wait(0.01)
            self._woken.clear()
        return found


class Driven(Woken):
    """A reader as the steps drive it. ``steps``: what it has chosen and read."""

    def __init__(self, stock: Stock, position: Any = None, index: int = 0) -> None:
        super().__init__()
        self.reader = OffsetReader(stock, index)
        self.reader.open(position)
        self.reader.begin(self.wake)
        self.steps: list[tuple[int, list[Any] | None]] = []
        self.rows: list[Any] = []

    def step(self, max_rows: int = 1_000_000) -> SourceChoice:
        """A new step, once there is something to read."""
        choice = self.wait(lambda: self.reader.choose(max_rows) is not None) and self.reader.choose(max_rows)
        assert choice is not None
        self.take(choice)
        return decode(choice)[0]

    def take(self, choice: int) -> None:
        batch = self.reader.read(choice)
        found = None if batch is None else batch.to_pylist()
        self.steps.append((choice, found))
        self.rows += found or []
        assert len(found or []) <= self.reader.rows_of(choice)

    def repeat(self, steps: list[tuple[int, list[Any] | None]]) -> None:
        """Repeat what another reader did, and see that it gives the same."""
        for choice, found in steps:
            self.wait(lambda: self.reader.can_read(choice))  # noqa: B023 - called at once
            self.take(choice)
            assert self.steps[-1] == (choice, found)

    def read_until(self, rows: int, max_rows: int = 1_000_000) -> None:
        """Steps until so many rows were read in all."""
        while self.reader.metrics["rows"] < rows:
            self.step(max_rows)

    def end_batch(self, rows: int) -> None:
        """As ``read_until``, and until the batch has ended. That may be known only after its last rows."""
        kind = None
        while self.reader.metrics["rows"] < rows or kind is not SourceChoice.LAST_ROWS:
            kind = self.step()
