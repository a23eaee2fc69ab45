"""Drops rows whose key was seen already: repeated events of producers that try again.

Rules:

- The first row of each key is kept, unchanged and in its place.
- With a time to live, a key is forgotten that long after the row that was kept: a row exactly then is new. Rows that
  are dropped prolong nothing. Time is the processing time of the step, so that a repeated step drops the same rows.
- Nulls are equal to each other, as for ``key_by``.
- The expiry kept with each key decides, not whether the key is still there. Keys are queued by expiry, in chunks; each
  batch removes chunks that are due, about twice as many keys as it has rows, so that the state stays small.
- A Bloom filter in front of the state would not help: memory knows all keys, or RocksDB's own filters answer
  (``docs/decisions``, 0016).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.keys import check_key_columns, row_keys
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    KeyedOperator,
    NumberStateLike,
    ObjectStateLike,
    OperatorContext,
    OperatorInstance,
)
from flinkplus.operators.base.stored_state import StateView
from flinkplus.operators.keyed.keyed import KeyRows, is_large
from flinkplus.operators.keyed.views import FOR_EVER, ExpiryView
from flinkplus.protocol.program.description import StateDescription

CHUNK_KEYS = 512


@dataclass(frozen=True)
class Deduplicate(KeyedOperator):
    """Keeps the first row for each key; ``ttl_ms``: how long a key is remembered, ``None``: for ever."""

    ttl_ms: int | None = None

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        return schema

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        """Another time to live holds for the keys to come."""
        return StateDescription(keys=self._key_types(schema), settings={"expires": self.ttl_ms is not None})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _DeduplicateInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [ExpiryView(self.name)]


class _DeduplicateInstance(OperatorInstance):
    """State: for each key when it expires, in ms since 1970."""

    def __init__(self, descriptor: Deduplicate, ctx: OperatorContext) -> None:
        self._keys = descriptor.keys
        self._ttl_ms = descriptor.ttl_ms
        self._ctx = ctx
        self._expiries = ctx.keyed_state().number_state(ctx.operator, "int64")
        self._rows = KeyRows(self._expiries, self._keys)
        self._queue: ExpiryQueue | None = None
        if descriptor.ttl_ms is not None:
            chunks = ctx.keyed_state().page_state(f"{ctx.operator}/expiry")
            self._queue = ExpiryQueue(self._expiries, chunks)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        now = 0 if self._ttl_ms is None else self._ctx.now_ms()
        keys, idx, first_rows = self._look_up(batch)
        new = np.flatnonzero(self._expiries.gather(idx) <= now)
        expiry = FOR_EVER if self._ttl_ms is None else now + self._ttl_ms
        self._expiries.scatter(idx[new], np.full(len(new), expiry, np.int64))
        if self._queue is not None:
            self._queue.expire(now, 2 * batch.num_rows)
            self._queue.add(keys if len(new) == len(keys) else [keys[code] for code in new.tolist()], expiry)
        if len(new) == batch.num_rows:
            yield batch
        elif len(new):
            yield batch.take(pa.array(np.sort(first_rows[new])))

    def _look_up(self, batch: pa.RecordBatch) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The distinct keys of the batch; the state row and the first row of the batch of each."""
        numbers = self._rows.numbers(batch)
        if not is_large(batch, numbers):
            first: dict[bytes, int] = {}
            for row, key in enumerate(row_keys(batch, self._keys).to_pylist()):
                first.setdefault(key, row)
            keys = list(first)
            return keys, self._expiries.indices(keys), np.fromiter(first.values(), np.int64, len(keys))
        found, idx = self._rows.find(batch, numbers)
        return found.keys, idx, found.first_rows()

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return None if self._queue is None else self._queue.saved()

    @override
    def restore(self, state: JsonValue) -> None:
        if self._queue is not None and state is not None:
            self._queue.restore(cast("dict[str, int]", state))

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        if self._queue is None:
            return
        entries: list[tuple[int, list[bytes]]] = []
        for part in parts:
            if part.keyed is None:
                continue
            chunks = part.keyed.page_state(f"{self._ctx.operator}/expiry")
            for expiry, keys in ExpiryQueue(self._expiries, chunks).entries(part.state):
                entries.append((expiry, [key for key, own in zip(keys, part.owned(keys), strict=True) if own]))
        for expiry, keys in sorted(entries, key=lambda entry: entry[0]):
            self._queue.add(keys, expiry)


class ExpiryQueue:
    """Keys in the order in which they expire, in chunks ``first`` to ``end`` - 1; the last one is in memory until it is
    full or saved. ``expiries``: the state from which keys are removed once they have expired.

    A key that expired and came again stands in the queue twice; the time kept with it shows which entry counts.
    """

    def __init__(self, expiries: NumberStateLike, chunks: ObjectStateLike) -> None:
        self._expiries = expiries
        self._chunks = chunks
        self._first = self._end = 0
        self._head: tuple[Any, ...] = ()  # the first chunk, once read: the expiry of its last key, and its keys
        self._open: list[bytes] = []
        self._open_expiry = 0

    def add(self, keys: list[bytes], expiry: int) -> None:
        """``keys`` expire at ``expiry``, which never goes back."""
        if keys:
            self._open += keys
            self._open_expiry = expiry
            while len(self._open) >= CHUNK_KEYS:
                self._close(CHUNK_KEYS)

    def _close(self, keys: int) -> None:
        self._chunks.put_many([_number(self._end)], [(self._open_expiry, *self._open[:keys])])
        self._open = self._open[keys:]
        self._end += 1

    def expire(self, now: int, budget: int) -> None:
        """Remove what has expired by ``now``: some ``budget`` keys, in whole chunks."""
        if self._open and self._open_expiry <= now:
            self._close(len(self._open))
        while budget > 0 and self._first < self._end:
            if not self._head:
                (self._head,) = self._chunks.get_many([_number(self._first)])
            if self._head[0] > now:
                return
            keys = list(dict.fromkeys(self._head[1:]))
            idx = self._expiries.indices(keys)
            self._expiries.remove(idx[self._expiries.gather(idx) <= now])
            self._chunks.delete_many([_number(self._first)])
            self._first += 1
            self._head = ()
            budget -= len(keys)

    def entries(self, saved: dict[str, int]) -> Iterator[tuple[int, list[bytes]]]:
        """All chunks of a snapshot: when their last key expires, and their keys."""
        for number in range(saved["first"], saved["end"]):
            ((expiry, *keys),) = self._chunks.get_many([_number(number)])
            yield expiry, keys

    def saved(self) -> dict[str, int]:
        """The bounds of the chunks, for a snapshot; everything else is in the state then."""
        if self._open:
            self._close(len(self._open))
        return {"first": self._first, "end": self._end}

    def restore(self, saved: dict[str, int]) -> None:
        """Restore the result of ``saved``."""
        self._first, self._end = saved["first"], saved["end"]


def _number(chunk: int) -> bytes:
    return struct.pack(">Q", chunk)
