"""The slot's side of a table whose rows are visible at once: a thread stores rows beside the stream.

Rules and invariants:

- The slot's loop hands over what each step has made, and does not wait. What comes while a transaction is under way is
  gathered, so a slow database makes larger transactions. Beyond a limit no further step begins.
- A transaction has whole cuts. It first moves the subtask's row in ``flinkplus_steps`` from the step that it knows to
  the new one; if that changes no row, another generation may write, and nothing is stored.
- After a lost connection the row says whether the last transaction succeeded.
- Rows of repeated steps are stored already: they only go into the digest, which must be the recorded one when the last
  of these steps is repeated.
- A fenced writer stores nothing more, and waits until its slot retires the subtask.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import (
    NondeterministicOperator,
    OutputTableError,
    OutputUnavailable,
)
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import RecipeWriter
from flinkplus.sinks.postgres.columns import CopyEncoder
from flinkplus.sinks.postgres.connecting import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    SYNCHRONOUS,
    connect,
    translated,
)
from flinkplus.sinks.postgres.recipe_tables import RecipeTables, StepsRow, StepsUpdate
from flinkplus.sinks.postgres.spare import PreparedConnection, SpareOwner, join_spare, leave_spare

MAX_PENDING_BYTES, MAX_PENDING_CUTS = 16 << 20, 512
"""Rows and steps that wait for the database; beyond that no step begins."""
MAX_TRANSACTION_BYTES = 4 << 20
MAX_CARRIED = 1_000
"""Recipe entries without rows that wait for a transaction with rows."""
PATIENCE_S = 40.0
"""How long a transaction is tried; then the subtask fails."""
SETTLE_S = 5.0
"""How long a snapshot waits for its rows; then its checkpoint is declined."""
CLOSE_S = 1.0
DIGEST_BYTES = 16

log = logging.getLogger("flinkplus.slot")


class RecipeSink(SpareOwner, Protocol):
    """What a writer asks of its sink's descriptor."""

    @property
    def bound_schema(self) -> pa.Schema: ...


class _Fenced(Exception):
    """Another generation writes."""


class _Closed(Exception):
    """The subtask is closed."""


@dataclass(frozen=True)
class _Cut:
    """The output of steps before ``step``; ``entry`` is ``None`` for rows that are stored already. ``checkpoint``: the
    cut is that of its barrier."""

    step: int
    entry: RecipeEntry | None
    batches: Sequence[pa.RecordBatch]
    size_bytes: int
    checkpoint: int | None


class AtOnceWriter(RecipeWriter):
    """Writes the rows of one subtask in one generation."""

    def __init__(self, sink: RecipeSink, context: OperatorContext, generation: int) -> None:
        self._sink = sink
        self._index = context.index
        self._generation = generation
        self._table = sink.output_table()
        self._tables = RecipeTables(self._table, sink.job_id)
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._snapshot: int | None = None
        self._lock = threading.Condition()
        self._pending: deque[_Cut] = deque()
        self._pending_bytes = 0
        self._was_full = self._closed = self._fenced = False
        self._error: Exception | None = None
        self._settled: dict[int, str] = {}
        self._complete = 0
        self._thread: threading.Thread | None = None
        # Of the thread alone:
        self._connection: Any = None
        self._recorded = StepsRow(0, 0, b"")
        self._step = 0
        self._digest = b""
        self._carried: list[tuple[int, RecipeEntry]] = []
        self._trimmed = 0

    # --- by the slot's loop

    @override
    def restore(self, state: JsonValue) -> None:
        if isinstance(state, dict):
            self._digest = bytes.fromhex(str(state["digest"]))

    @override
    def begin(self, recorded: int, woken: Callable[[Exception | None], None], has_successors: bool = False) -> None:
        def run() -> None:
            take = join_spare(self._sink) if has_successors else None
            try:
                self._run(recorded, woken, take)
            except _Closed:
                pass
            except _Fenced:
                log.info("sink %r: subtask %d is fenced by a newer generation", self._sink.name, self._index)
                self._end(None)
            except Exception as error:
                self._end(error)
                woken(error)
            finally:
                self._disconnect()
                if take is not None:
                    leave_spare(self._sink)

        self._thread = threading.Thread(target=run, name=f"flinkplus-{self._sink.name}-{self._index}", daemon=True)
        self._thread.start()

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            self._fenced, self._error = error is None, error
            self._lock.notify_all()

    @override
    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._rows.append(batch)
            self._bytes += batch.nbytes

    @property
    @override
    def accepts(self) -> bool:
        if not self._is_full:
            return True
        with self._lock:  # otherwise the thread could make room just before this asks to be woken
            self._was_full = self._is_full
            return not self._was_full

    @property
    def _is_full(self) -> bool:
        return self._pending_bytes >= MAX_PENDING_BYTES or len(self._pending) >= MAX_PENDING_CUTS or self._fenced

    @override
    def cut(self, step: int, entry: RecipeEntry) -> None:
        self._put(step, entry)

    @override
    def repeated(self, step: int) -> None:
        self._put(step, None)

    def _put(self, step: int, entry: RecipeEntry | None) -> None:
        cut = _Cut(step, entry, self._rows, self._bytes, self._snapshot)
        self._rows, self._bytes, self._snapshot = [], 0, None
        with self._lock:
            self._pending.append(cut)
            self._pending_bytes += cut.size_bytes
            self._lock.notify_all()

    @override
    def stage(self, checkpoint: int) -> list[StagedFile]:
        self._snapshot = checkpoint  # the next cut is that of its barrier
        return []

    @override
    def checkpoint_complete(self, checkpoint: int) -> None:
        with self._lock:
            self._complete = checkpoint
            self._settled = {number: text for number, text in self._settled.items() if number > checkpoint}

    @override
    def adopt(self, staged: Sequence[StagedFile]) -> None:
        return None

    @override
    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = not self._pending and self._connection is not None
            self._lock.notify_all()
        if self._thread is not None and idle:
            self._thread.join(CLOSE_S)

    # --- by the snapshot pool

    @override
    def settled(self, checkpoint: int) -> JsonValue:
        until = time.monotonic() + SETTLE_S
        with self._lock:
            while checkpoint not in self._settled:
                left_s = until - time.monotonic()
                if self._closed or self._fenced or self._error is not None or left_s <= 0:
                    raise OutputUnavailable(f"sink {self._sink.name!r}: rows before the barrier are not stored yet")
                self._lock.wait(left_s)
            return {"digest": self._settled[checkpoint]}

    # --- the thread

    def _run(
        self,
        recorded: int,
        woken: Callable[[Exception | None], None],
        take: Callable[[], PreparedConnection | None] | None,
    ) -> None:
        prepared = None if take is None else take()
        if prepared is None or not self._continue_on(prepared):
            self._patiently(self._connect)
        self._step = self._recorded.step
        if self._step != recorded:
            raise self._table.error(f"step {self._step} is recorded of subtask {self._index}, and {recorded} was read")
        while True:
            cuts = self._take()
            texts = [self._text(cut) for cut in cuts]
            self._store(cuts, texts)
            with self._lock:
                for cut in cuts:
                    self._pending.popleft()
                    self._pending_bytes -= cut.size_bytes
                self._lock.notify_all()
                wake, self._was_full = self._was_full, False
            if wake:
                woken(None)

    def _take(self) -> list[_Cut]:
        """The next cuts, as many as one transaction may have: repeated ones, or new ones."""
        with self._lock:
            while not self._pending:
                if self._closed:
                    raise _Closed
                self._lock.wait()
            if self._closed:
                raise _Closed
            taken: list[_Cut] = []
            size = 0
            for cut in self._pending:
                if taken and (size + cut.size_bytes > MAX_TRANSACTION_BYTES or _is_new(cut) != _is_new(taken[0])):
                    break
                taken.append(cut)
                size += cut.size_bytes
            return taken

    def _text(self, cut: _Cut) -> bytes:
        """The rows as CSV. Raises ``InputError`` for values that the database would refuse."""
        if not cut.batches:
            return b""
        stream, schema = io.BytesIO(), self._sink.bound_schema
        encoder = CopyEncoder(stream, schema, self._sink.keys, self._sink.name, header=False)
        for batch in cut.batches:
            encoder.write(plain(batch, schema))
        encoder.finish()
        return stream.getvalue()

    def _store(self, cuts: Sequence[_Cut], texts: Sequence[bytes]) -> None:
        barriers: dict[int, str] = {}
        for cut, text in zip(cuts, texts, strict=True):
            if text:
                self._digest = blake2b(self._digest + text, digest_size=DIGEST_BYTES).digest()
            if cut.entry is not None:
                self._carried.append((cut.step, cut.entry))
            elif cut.step == self._recorded.step and self._digest != self._recorded.digest:
                raise NondeterministicOperator(
                    f"sink {self._sink.name!r}: the rows that subtask {self._index} makes again are not those in the "
                    "table"
                )
            if cut.checkpoint is not None:
                barriers[cut.checkpoint] = self._digest.hex()
        if _is_new(cuts[0]) and (any(texts) or barriers or len(self._carried) >= MAX_CARRIED):
            rows = sum(batch.num_rows for cut in cuts for batch in cut.batches)
            self._transact(cuts[-1].step, rows, [text for text in texts if text])
        with self._lock:
            self._settled.update(barriers)

    def _transact(self, step: int, rows: int, texts: Sequence[bytes]) -> None:
        complete = self._complete
        entries = [entry for entry in self._carried if entry[1].checkpoint >= complete]
        update = StepsUpdate(self._step, step, self._digest, rows, entries, complete)

        def once() -> None:
            if self._connection is None:
                self._connect()
                if self._recorded.step == step:
                    return  # the answer to the last attempt was lost
                if self._recorded.step != self._step:
                    raise self._refused()
            with self._connection.transaction():
                if not self._tables.update(self._connection, self._index, self._generation, update):
                    raise self._refused()
                if texts:
                    self._table.add(self._connection, texts)
                if complete > self._trimmed:
                    self._tables.trim(self._connection, self._index, complete)

        self._patiently(once)
        self._step, self._carried, self._trimmed = step, [], complete

    def _refused(self) -> Exception:
        """Why another step is recorded than this writer knows."""
        row = self._tables.row(self._connection, self._index)
        if row is not None and row.generation != self._generation:
            return _Fenced()
        found = "nothing" if row is None else f"step {row.step}"
        return self._table.error(
            f"{found} is recorded of subtask {self._index} instead of step {self._step}: the database was changed or "
            "restored to an earlier time"
        )

    # --- the connection

    def _patiently(self, action: Callable[[], None]) -> None:
        """``action``, repeated with new connections while the database does not answer."""
        begun, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                with translated(self._sink.address, f"{self._table}"):
                    action()
                return
            except OutputUnavailable as error:
                self._disconnect()
                if time.monotonic() - begun > PATIENCE_S:
                    raise
                log.warning("%s; trying again", error)
            with self._lock:
                if self._closed:
                    raise _Closed
                self._lock.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _connect(self) -> None:
        """Connect, and read what is recorded. Raises ``_Fenced``."""
        connection = self._connection = connect(self._sink.address, lasting=True)
        connection.execute(SYNCHRONOUS)
        with connection.transaction():
            if not self._table.found(connection):
                raise OutputTableError(f"{self._table} has gone")
            self._table.ready(connection)
            self._read_recorded(connection)

    def _continue_on(self, prepared: PreparedConnection) -> bool:
        """Use a spare connection, and read what is recorded; false if the connection has failed. Raises ``_Fenced``."""
        self._connection, self._table = prepared.connection, prepared.table
        self._tables = RecipeTables(self._table, self._sink.job_id)
        try:
            with translated(self._sink.address, f"{self._table}"), self._connection.transaction():
                self._read_recorded(self._connection)
        except OutputUnavailable as error:
            log.info("%s; connecting again", error)
            self._disconnect()
            return False
        return True

    def _read_recorded(self, connection: Any) -> None:
        """Give the connection this subtask's name, then read the row, which stays locked until the transaction ends: a
        fence that does not see the name waits for the lock or has changed the row."""
        row = self._tables.named_row(connection, self._index)
        if row is None:
            raise self._table.error(f"the row of subtask {self._index} has gone; the database was changed or restored")
        if row.generation != self._generation:
            raise _Fenced
        self._recorded = row

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None


def _is_new(cut: _Cut) -> bool:
    return cut.entry is not None
