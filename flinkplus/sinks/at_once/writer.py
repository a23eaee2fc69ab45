"""The slot's side of rows that are visible at once: a thread stores them beside the stream.

Rules and invariants:

- The slot's loop hands over what each step has made, and does not wait. What comes while a transaction is under way is
  gathered, so a slow far end makes larger transactions. Beyond a limit no further step begins.
- A transaction has whole cuts. It moves what is recorded of the subtask from the step that the writer knows to the new
  one; where another generation may write, or another step is recorded, nothing is stored.
- After a lost connection what is recorded says whether the last transaction succeeded.
- Rows of repeated steps are stored already: they only go into the digest, which must be the recorded one when the last
  of these steps is repeated.
- Cuts behind a checkpoint that is held wait, and count toward the limit.
- A fenced writer stores nothing more, and waits until its slot retires the subtask.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import NondeterministicOperator, OutputUnavailable
from flinkplus.operators.base.operator import JsonValue
from flinkplus.protocol.determinants.recipe import RecipeEntry, is_held
from flinkplus.protocol.determinants.recorded import Recorded, outcome
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.sinks.at_once.attempts import FIRST_PAUSE_S, LONGEST_PAUSE_S
from flinkplus.sinks.at_once.store import Encoded, OutputStore, StepsUpdate
from flinkplus.sinks.base import RecipeWriter

MAX_PENDING_BYTES, MAX_PENDING_CUTS = 16 << 20, 512
"""Rows and steps that wait for the far end; beyond that no step begins."""
MAX_TRANSACTION_BYTES = 4 << 20
MAX_CARRIED = 1_000
"""Recipe entries without rows that wait for a transaction with rows."""
PATIENCE_S = 40.0
"""How long a transaction is tried; then the subtask fails."""
SETTLE_S = 5.0
"""How long a snapshot waits for its rows; then its checkpoint is declined."""
CLOSE_S = 1.0
DIGEST_BYTES = 16
NO_ROWS = Encoded(b"", None)

log = logging.getLogger("flinkplus.slot")


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
    """Writes the rows of one subtask in one generation. ``sink``: its name. ``index``: the subtask's."""

    def __init__(self, sink: str, index: int, generation: int, store: OutputStore[Any]) -> None:
        self._sink = sink
        self._index = index
        self._generation = generation
        self._far = store
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._snapshot: int | None = None
        self._lock = threading.Condition()
        self._pending: deque[_Cut] = deque()
        self._pending_bytes = 0
        self._was_full = self._closed = self._fenced = False
        self._held = CheckpointId(0)
        self._error: Exception | None = None
        self._settled: dict[int, str] = {}
        self._complete = 0
        self._thread: threading.Thread | None = None
        # Of the thread alone:
        self._recorded = Recorded(0, 0, b"")
        self._step = 0
        self._digest = b""
        self._carried: list[tuple[int, RecipeEntry]] = []

    # --- by the slot's loop

    @override
    def restore(self, state: JsonValue) -> None:
        if isinstance(state, dict):
            self._digest = bytes.fromhex(str(state["digest"]))

    @override
    def begin(self, recorded: int, woken: Callable[[Exception | None], None], has_successors: bool = False) -> None:
        def run() -> None:
            try:
                self._far.begin(has_successors)
                self._run(recorded, woken)
            except _Closed:
                pass
            except _Fenced:
                log.info("sink %r: subtask %d is fenced by a newer generation", self._sink, self._index)
                self._end(None)
            except Exception as error:
                self._end(error)
                woken(error)
            finally:
                self._far.disconnect()
                self._far.end()

        self._thread = threading.Thread(target=run, name=f"flinkplus-{self._sink}-{self._index}", daemon=True)
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
    def hold(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            self._held = checkpoint
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
            idle = not self._may_store and self._far.is_connected
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
                    raise OutputUnavailable(f"sink {self._sink!r}: rows before the barrier are not stored yet")
                self._lock.wait(left_s)
            return {"digest": self._settled[checkpoint]}

    # --- the thread

    def _run(self, recorded: int, woken: Callable[[Exception | None], None]) -> None:
        self._patiently(self._connect)
        self._step = self._recorded.step
        if self._step != recorded:
            raise self._far.error(f"step {self._step} is recorded of subtask {self._index}, and {recorded} was read")
        while True:
            cuts = self._take()
            encoded = [self._far.encoded(cut.batches) if cut.batches else NO_ROWS for cut in cuts]
            self._store(cuts, encoded)
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
            while not self._may_store:
                if self._closed:
                    raise _Closed
                self._lock.wait()
            if self._closed:
                raise _Closed
            taken: list[_Cut] = []
            size = 0
            for cut in self._pending:
                if self._is_held(cut):
                    break
                if taken and (size + cut.size_bytes > MAX_TRANSACTION_BYTES or _is_new(cut) != _is_new(taken[0])):
                    break
                taken.append(cut)
                size += cut.size_bytes
            return taken

    @property
    def _may_store(self) -> bool:
        return bool(self._pending) and not self._is_held(self._pending[0])

    def _is_held(self, cut: _Cut) -> bool:
        return cut.entry is not None and is_held(cut.entry, self._held)

    def _store(self, cuts: Sequence[_Cut], encoded: Sequence[Encoded]) -> None:
        barriers: dict[int, str] = {}
        for cut, (content, _) in zip(cuts, encoded, strict=True):
            if content:
                self._digest = blake2b(self._digest + content, digest_size=DIGEST_BYTES).digest()
            if cut.entry is not None:
                self._carried.append((cut.step, cut.entry))
            elif cut.step == self._recorded.step and self._digest != self._recorded.digest:
                raise NondeterministicOperator(
                    f"sink {self._sink!r}: the rows that subtask {self._index} makes again are not those in "
                    f"{self._far.place}"
                )
            if cut.checkpoint is not None:
                barriers[cut.checkpoint] = self._digest.hex()
        rows = [one.rows for one in encoded if one.content]
        if _is_new(cuts[0]) and (rows or barriers or len(self._carried) >= MAX_CARRIED):
            self._transact(cuts[-1].step, sum(batch.num_rows for cut in cuts for batch in cut.batches), rows)
        with self._lock:
            self._settled.update(barriers)

    def _transact(self, step: int, count: int, rows: Sequence[Any]) -> None:
        complete = self._complete
        entries = [entry for entry in self._carried if entry[1].checkpoint >= complete]
        update = StepsUpdate(self._step, step, self._digest, count, entries, complete)

        def once() -> None:
            if not self._far.is_connected:
                recorded = self._far.connect()
                if self._became(recorded, step) == "stored":
                    return  # the answer to the last attempt was lost
            if not self._far.store(update, rows):
                found = self._far.recorded()
                self._became(found, step)
                raise self._changed(found)

        self._patiently(once)
        self._step, self._carried = step, []

    def _became(self, recorded: Recorded | None, step: int) -> str:
        """What became of the transaction up to ``step``. Raises ``_Fenced``, or what ``_changed`` returns."""
        found = outcome(recorded, self._generation, self._step, step)
        if found == "fenced":
            raise _Fenced
        if found == "changed":
            raise self._changed(recorded)
        return found

    def _changed(self, recorded: Recorded | None) -> Exception:
        if recorded is None or recorded.generation == self._generation:
            found, known = "nothing" if recorded is None else f"step {recorded.step}", f"step {self._step}"
        else:
            found, known = f"generation {recorded.generation}", f"{self._generation}"
        return self._far.error(
            f"{found} is recorded of subtask {self._index} instead of {known}: what is stored was changed or restored "
            "to an earlier time"
        )

    # --- the connection

    def _patiently(self, action: Callable[[], None]) -> None:
        """``action``, repeated with new connections while the far end does not answer."""
        begun, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                action()
                return
            except OutputUnavailable as error:
                self._far.disconnect()
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
        recorded = self._far.connect()
        if recorded is None:
            raise self._far.error(f"what was recorded of subtask {self._index} has gone: it was changed or restored")
        if recorded.generation > self._generation:
            raise _Fenced
        if recorded.generation < self._generation:
            raise self._changed(recorded)
        self._recorded = recorded


def _is_new(cut: _Cut) -> bool:
    return cut.entry is not None
