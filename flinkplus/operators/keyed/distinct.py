"""The distinct values of keys, as keyed state: which of some values a key has for the first time.

The pairs of key and value are kept in parts (``parts``), each sorted by the hash of the pair, so that all pairs of a
batch are looked up together. A pair is written once, and merged a few times as parts grow.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.operators.base.operator import Inherited, KeyedState
from flinkplus.operators.base.parts import Shelves
from flinkplus.state.hashing import hash_keys

KEPT_ROWS = 1 << 20
"""Pairs that stay in memory besides being in the state."""
PAIRS = pa.schema([("hash", pa.uint64()), ("key", pa.binary()), ("value", pa.binary())])
_ONLY_SHELF = 0
_LENGTH_BYTES = 4


class DistinctValues:
    """The values of each key. ``name``: of the state, which is of pages."""

    def __init__(self, state: KeyedState, name: str) -> None:
        self._name = name
        self._shelves = Shelves(state, name, PAIRS, _merged, together=2, kept_rows=KEPT_ROWS)

    def add(self, keys: pa.Array, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Which of the pairs, which are distinct, are new; they are known from now on. Both arrays are binary."""
        if not len(keys):
            return np.zeros(0, np.bool_)
        pairs = _pairs(keys, values)
        hashes = pairs.column(0).to_numpy()
        new = np.ones(len(keys), np.bool_)
        for part, batch in self._shelves.parts(_ONLY_SHELF) if _ONLY_SHELF in self._shelves else ():
            known: npt.NDArray[np.uint64] = batch.column(0).to_numpy() if part.derived is None else part.derived
            if part.batch is not None:  # kept as long as the rows are
                part.derived = known
            new &= ~_found(pairs, hashes, batch, known)
        if new.any():
            fresh = pairs if new.all() else pairs.filter(pa.array(new))
            self._shelves.add(_ONLY_SHELF, fresh.take(pa.array(np.argsort(fresh.column(0).to_numpy(), kind="stable"))))
        return new

    def snapshot(self) -> Any:
        """The index, as JSON; all pairs are then in the state."""
        return self._shelves.snapshot()

    def restore(self, saved: Any) -> None:
        """Restore the result of ``snapshot``."""
        self._shelves.restore(saved)

    def inherit(self, part: Inherited, saved: Any) -> None:
        """Add the pairs of another subtask's keys that belong here."""
        if part.keyed is not None:
            other = DistinctValues(part.keyed, self._name)
            other.restore(saved)
            self._shelves.inherit(other._shelves, partial(_owned, part))


def _owned(part: Inherited, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return part.owned(rows.column(1).to_pylist())


def _pairs(keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    both = zip(keys.to_pylist(), values.to_pylist(), strict=True)
    whole = [len(key).to_bytes(_LENGTH_BYTES, "big") + key + value for key, value in both]
    return pa.RecordBatch.from_arrays([pa.array(hash_keys(pa.array(whole, pa.binary()))), keys, values], schema=PAIRS)


def _found(
    pairs: pa.RecordBatch, hashes: npt.NDArray[np.uint64], batch: pa.RecordBatch, known: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Which pairs are in ``batch``, whose hashes are ``known``; several pairs there may have one hash."""
    at = np.searchsorted(known, hashes)
    found = np.zeros(len(hashes), np.bool_)
    asked = np.flatnonzero((at < len(known)) & (known[np.minimum(at, len(known) - 1)] == hashes))
    while len(asked):
        mine, theirs = pairs.take(pa.array(asked)), batch.take(pa.array(at[asked]))
        equal = np.logical_and(*(_equal(mine.column(side), theirs.column(side)) for side in (1, 2)))
        found[asked[equal]] = True
        at[asked] += 1
        asked = asked[~equal & (at[asked] < len(known))]
        asked = asked[known[at[asked]] == hashes[asked]]
    return found


def _equal(mine: pa.Array, theirs: pa.Array) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = pc.equal(mine, theirs).to_numpy(zero_copy_only=False)
    return equal


def _merged(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.concat_batches(parts)
    return whole.take(pa.array(np.argsort(whole.column(0).to_numpy(), kind="stable")))
