"""What an engine puts out, and when: a file of lines for each partition, the same for every engine.

A line is ``TIME BORN ROWS LATE:COUNT ...``: milliseconds since the Unix epoch; the same of the first row that this
incarnation of the partition put out; rows that it has put out so far; and of the rows since its line before, how many
were how late, in whole milliseconds: output less due time, which is counted from the origin of the run (``LATE`` of
FlinkPlus begins at the epoch, as its slots do not know the origin). No ``LATE`` at unlimited rate. The Java programs
write the same (``java/common/Notes.java``).

Rules: a line is one small write to the end of the file. Rows of a line were put out at ``TIME``, give or take
``PERIOD_MS`` at a steady rate and ``IDLE_PERIOD_MS`` at unlimited rate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from typing_extensions import override

from experiments.harness.workload import InjectedFailure, Trigger
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance

NOTED = "noted"
PERIOD_MS = 5.0
IDLE_PERIOD_MS = 50.0
SUFFIX = ".out"
_MS = pa.timestamp("ms")
ORDERS = "orders"
"""The folder, in that of the notes, with the orders to raise."""


class DueTimes(Protocol):
    """Says when rows are due, in milliseconds since the origin of the run."""

    def due_ms(self, numbers: np.ndarray, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Line:
    """One line of a file."""

    time_ms: float
    born_ms: float
    rows: int
    late: tuple[tuple[int, int], ...] = ()

    def text(self) -> str:
        late = "".join(f" {late}:{count}" for late, count in self.late)
        return f"{self.time_ms:.3f} {self.born_ms:.3f} {self.rows}{late}\n"

    @staticmethod
    def parsed(text: str) -> Line:
        """Raises ``ValueError`` for what is no line."""
        time_ms, born_ms, rows, *late = text.split()
        pairs = tuple((int(at), int(count)) for at, _, count in (pair.partition(":") for pair in late))
        return Line(float(time_ms), float(born_ms), int(rows), pairs)


def read_notes(directory: Path, name: str = NOTED, origin_ms: float = 0.0) -> dict[int, list[Line]]:
    """The lines of each partition, in the order in which they were written; a line that is half written is left out.

    ``origin_ms``: is taken from how late rows were.
    """
    found: dict[int, list[Line]] = {}
    for path in sorted(directory.glob(f"{name}-*{SUFFIX}")):
        index = int(path.name[len(name) + 1 : -len(SUFFIX)])
        whole = path.read_text().rpartition("\n")[0]
        found[index] = [_since(Line.parsed(text), origin_ms) for text in whole.splitlines()]
    return found


def _since(line: Line, origin_ms: float) -> Line:
    if not origin_ms:
        return line
    late = tuple((round(at - origin_ms), count) for at, count in line.late)
    return Line(line.time_ms, line.born_ms, line.rows, late)


def have_raised(directory: Path, index: int, check: Callable[[], None]) -> float:
    """As ``Trigger.fire``, in milliseconds, for what notes in ``directory``."""
    return Trigger(directory / ORDERS).fire(index, check) * 1e3


@dataclass(frozen=True)
class Note(Operator):
    """Passes its rows on and notes them. ``column``: with the number of the row, or, without ``layout``, with the
    time at which it is due; ``None``: rows are counted alone. With a column it raises when ordered to (``Trigger``)."""

    name: str
    directory: str
    column: str | None
    layout: DueTimes | None

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _NoteInstance(self, ctx.index)


class _NoteInstance(OperatorInstance):
    def __init__(self, descriptor: Note, index: int) -> None:
        self._descriptor = descriptor
        self._index = index
        self._trigger = Trigger(Path(descriptor.directory) / ORDERS)
        self._period_ms = PERIOD_MS if descriptor.column else IDLE_PERIOD_MS
        self._file = -1
        self._born_ms = self._written_ms = 0.0
        self._rows = 0
        self._late: list[np.ndarray] = []

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        now_ms = time.time() * 1e3
        if self._file < 0:
            self._open(now_ms)
        self._rows += batch.num_rows
        descriptor = self._descriptor
        if descriptor.column is not None:
            values = batch.column(descriptor.column)
            if descriptor.layout is None:
                due = values.cast(_MS).cast(pa.int64()).to_numpy()
            else:
                due = descriptor.layout.due_ms(values.to_numpy())
            self._late.append(np.rint(now_ms - due).astype(np.int64))
        if now_ms >= self._written_ms + self._period_ms:
            self._write(now_ms)
            if descriptor.column is not None and self._trigger.take(self._index):
                raise InjectedFailure(f"partition {self._index} was ordered to fail")
        yield batch

    def _open(self, now_ms: float) -> None:
        path = Path(self._descriptor.directory) / f"{self._descriptor.name}-{self._index}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._born_ms = now_ms

    def _write(self, now_ms: float) -> None:
        pairs: Any = ()
        if self._late:
            late, counts = np.unique(np.concatenate(self._late), return_counts=True)
            pairs = zip(late.tolist(), counts.tolist(), strict=True)
            self._late.clear()
        os.write(self._file, Line(now_ms, self._born_ms, self._rows, tuple(pairs)).text().encode())
        self._written_ms = now_ms

    @override
    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
