"""The thread that calls a data source for one reader: it fetches batches, and fetches them again.

Rules:

- All methods of the data source are called in this thread, and only when the reader asks for something. So a reader
  that repeats steps calls ``readBetweenOffsets`` alone.
- *Following*: the thread fetches batch after batch with ``read``, ``AHEAD`` of them at most. When there is nothing new
  it asks again after ``poll_s``.
- *Repeating*: it fetches one batch with ``readBetweenOffsets``, without its first rows, and then waits.
- The rows that are here take ``BUFFER_BYTES`` at most, or one chunk; or, when a repeated step wants more rows, as many.
- Offsets are JSON texts here. The data source always gets them as JSON gives them back.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from flinkplus.errors import InputError
from flinkplus.operators.base.row import USER_EXCEPTIONS
from flinkplus.sources.files.watch import Woken
from flinkplus.sources.python.position import offset_text
from flinkplus.sources.python.rows import SourceRows

BUFFER_BYTES = 8 << 20
AHEAD = 2
BEFORE = "when this batch was read before: between the same offsets there must be the same rows"


class SimpleReader(Protocol):
    """``SimpleDataSourceStreamReader``."""

    def initialOffset(self) -> dict[str, Any]: ...

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]: ...

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]: ...

    def commit(self, end: dict[str, Any]) -> None: ...


@dataclass
class OffsetBatch:
    """The rows between two offsets, as far as they are here. ``ended``: all are. ``wanted``: by a repeated step."""

    start: str
    end: str
    chunks: deque[pa.RecordBatch] = field(default_factory=deque)
    rows: int = 0
    size: int = 0
    ended: bool = False
    wanted: int = 0

    def put(self, chunk: pa.RecordBatch) -> None:
        self.chunks.append(chunk)
        self.rows += chunk.num_rows
        self.size += chunk.nbytes

    def take(self, rows: int) -> list[pa.RecordBatch]:
        """The next ``rows``, which are here."""
        taken: list[pa.RecordBatch] = []
        left = rows
        while left:
            chunk = self.chunks.popleft()
            self.size -= chunk.nbytes
            if chunk.num_rows > left:
                self.chunks.appendleft(chunk.slice(left))
                self.size += self.chunks[0].nbytes
                chunk = chunk.slice(0, left)
            taken.append(chunk)
            left -= chunk.num_rows
        self.rows -= rows
        self.wanted = 0
        return taken


@dataclass(frozen=True)
class _Order:
    """``start``: ``None``: ask for the first offset. ``end``: ``None``: follow from ``start`` on."""

    start: str | None
    end: str | None = None
    skip: int = 0


class BatchFetcher:
    """Calls the reader that ``make`` gives. Its methods are called by the thread of the steps, and never wait.

    ``shown``, ``rows``: for errors, and for the rows. ``woken``: called when there is more, or with an error.
    """

    def __init__(
        self, source: str, make: Callable[[], SimpleReader], rows: SourceRows, poll_s: float, woken: Woken
    ) -> None:
        self._source, self._make, self._rows, self._poll_s, self._woken = source, make, rows, poll_s, woken
        self._changed = threading.Condition()
        self._order: _Order | None = None
        self._asked = 0
        self._batches: deque[OffsetBatch] = deque()
        self._initial: str | None = None
        self._to_commit: str | None = None
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"flinkplus-{self._source}", daemon=True).start()

    # --- for the reader

    def initial(self) -> str | None:
        """The first offset, when it is here."""
        with self._changed:
            if self._initial is None and self._order != _Order(None):
                self._ask(_Order(None))
            return self._initial

    def next(self, start: str) -> OffsetBatch | None:
        """The batch that begins at ``start``, when its end is known."""
        with self._changed:
            if self._batches and self._batches[0].start == start:
                return self._batches[0]
            if self._batches or self._order is None or self._order.start != start or self._order.end is not None:
                self._ask(_Order(start))
            return None

    def between(self, start: str, end: str, skip: int) -> OffsetBatch:
        """The batch from ``start`` to ``end``, of which ``skip`` rows were read."""
        with self._changed:
            if not self._batches or (self._batches[0].start, self._batches[0].end) != (start, end):
                self._ask(_Order(start, end, skip))
                self._batches.append(OffsetBatch(start, end))
            return self._batches[0]

    def known(self, batch: OffsetBatch, wanted: int = 0) -> tuple[int, bool]:
        """How many rows of the first batch are here, and whether these are all. ``wanted``: rows that are needed."""
        with self._changed:
            if wanted > batch.wanted:
                batch.wanted = wanted
                self._changed.notify()
            return batch.rows, batch.ended

    def take(self, batch: OffsetBatch, rows: int, last: bool) -> list[pa.RecordBatch]:
        """The next rows of the first batch; ``last``: it is not needed any more."""
        with self._changed:
            taken = batch.take(rows)
            if last:
                assert self._batches.popleft() is batch
            self._changed.notify()
            return taken

    def commit(self, offset: str) -> None:
        """What is before ``offset`` is not needed any more."""
        with self._changed:
            self._to_commit = offset
            self._changed.notify()

    @property
    def held_rows(self) -> int:
        """How many rows are here."""
        with self._changed:
            return sum(batch.rows for batch in self._batches)

    def close(self) -> None:
        """Ask the thread to end; does not wait."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _ask(self, order: _Order) -> None:
        self._batches.clear()
        self._order = order
        self._asked += 1
        self._changed.notify()

    # --- the thread

    def _run(self) -> None:
        try:
            try:
                reader = self._make()
            except USER_EXCEPTIONS as error:
                raise self._rows.failed("its constructor", error) from error
            while self._until(reader, lambda: self._order is not None and len(self._batches) < AHEAD + 1):
                with self._changed:
                    order, asked = self._order, self._asked
                if order is not None:
                    self._work(reader, order, asked)
        except Exception as error:  # of whatever kind: without this thread the reader would wait for ever
            if not self._closed:
                self._woken(error)

    def _work(self, reader: SimpleReader, order: _Order, asked: int) -> None:
        if order.start is None:
            initial = offset_text(self._source, self._call("initialOffset", reader.initialOffset))
            with self._changed:
                self._initial = initial
            self._then(None, asked)
            self._woken(None)
        elif order.end is not None:
            start, end = json.loads(order.start), json.loads(order.end)
            rows = self._call("readBetweenOffsets", lambda: reader.readBetweenOffsets(start, end))
            if self._fill(reader, rows, "readBetweenOffsets", order.skip, asked):
                self._then(None, asked)
        else:
            self._follow(reader, order.start, asked)

    def _follow(self, reader: SimpleReader, start: str, asked: int) -> None:
        found = self._call("read", lambda: reader.read(json.loads(start)))
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(f"source {self._source!r}: read must return an iterator and an offset, not {found!r:.200}")
        rows, end = found[0], offset_text(self._source, found[1])
        if end == start:
            if next(self._rows.batches(rows, "read"), None) is not None:
                raise InputError(
                    f"source {self._source!r}: read gave rows, and the offset {start} again, after which it would give "
                    "them again"
                )
            self._until(reader, lambda: self._asked != asked, self._poll_s)
            return
        with self._changed:
            if self._asked != asked:
                return
            self._batches.append(OffsetBatch(start, end))
        self._woken(None)
        if self._fill(reader, rows, "read", 0, asked):
            self._then(_Order(end), asked)

    def _fill(self, reader: SimpleReader, rows: Any, method: str, skip: int, asked: int) -> bool:
        """Fetch the rows of the newest batch. ``False``: something else was asked for meanwhile."""
        chunks = self._rows.batches(rows, method)
        try:
            for chunk in chunks:
                rest = chunk.slice(min(skip, chunk.num_rows))
                skip -= chunk.num_rows - rest.num_rows
                if not self._until(reader, lambda: self._asked != asked or self._has_room()) or not self._put(
                    rest, asked
                ):
                    return False
        finally:
            chunks.close()  # it closes the user's
        if skip:
            raise InputError(f"source {self._source!r}: {method} gave fewer rows than {BEFORE}")
        with self._changed:
            if self._asked != asked:
                return False
            self._batches[-1].ended = True
        self._woken(None)
        return True

    def _put(self, chunk: pa.RecordBatch, asked: int) -> bool:
        with self._changed:
            if self._asked != asked or self._closed:
                return False
            if chunk.num_rows:
                self._batches[-1].put(chunk)
        self._woken(None)
        return True

    def _has_room(self) -> bool:
        first = self._batches[0]
        is_needed = first is self._batches[-1] and first.rows < max(1, first.wanted)
        return is_needed or sum(batch.size for batch in self._batches) < BUFFER_BYTES

    def _then(self, order: _Order | None, asked: int) -> None:
        with self._changed:
            if self._asked == asked:
                self._order = order

    def _until(self, reader: SimpleReader, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait, and commit meanwhile. ``False``: the reader was closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._to_commit is not None or holds(), timeout_s)
                if self._closed:
                    return False
                offset, self._to_commit = self._to_commit, None
            if offset is None:
                return True
            self._call("commit", partial(reader.commit, json.loads(offset)))

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except USER_EXCEPTIONS as error:
            raise self._rows.failed(method, error) from error
