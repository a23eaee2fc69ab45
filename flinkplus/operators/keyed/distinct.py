"""The distinct values of keys, as keyed state: which of some values a key has for the first time.

Several filters may count the values of one column. The pairs of key and value are kept once, with a bit for each filter
that they have passed. They are in parts (``parts``), each sorted by the hash of the pair, so that all pairs of a batch
are looked up together. A pair is written once for each time that it has new bits, and merged a few times as parts grow.
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
PAIRS = pa.schema([("hash", pa.uint64()), ("key", pa.binary()), ("value", pa.binary()), ("filters", pa.uint64())])
MAX_FILTERS = 64
_ONLY_SHELF = 0
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
Bits = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.integer]


class DistinctValues:
    """The values of each key. ``name``: of the state, which is of pages."""

    def __init__(self, state: KeyedState, name: str) -> None:
        self._name = name
        self._shelves = Shelves(state, name, PAIRS, _merged, together=2, kept_rows=KEPT_ROWS)

    def add(self, keys: pa.Array, values: pa.Array, key_codes: Codes, value_codes: Codes, bits: Bits) -> Bits:
        """The bits that pairs had before; from now on they have ``bits`` too.

        ``keys``, ``values``: the bytes of each code. ``key_codes``, ``value_codes``: of each pair; pairs are distinct.
        """
        if not len(bits):
            return bits
        hashes = hash_keys(keys)[key_codes] * _MULTIPLIER + hash_keys(values)[value_codes]
        columns = [pa.array(hashes), keys.take(pa.array(key_codes)), values.take(pa.array(value_codes))]
        pairs = pa.RecordBatch.from_arrays([*columns, pa.array(bits)], schema=PAIRS)
        before = np.zeros(len(bits), np.uint64)
        for part, batch in self._shelves.parts(_ONLY_SHELF) if _ONLY_SHELF in self._shelves else ():
            known: Bits = batch.column(0).to_numpy() if part.derived is None else part.derived
            if part.batch is not None:  # kept as long as the rows are
                part.derived = known
            before |= _found(pairs, hashes, batch, known)
        fresh = bits & ~before
        new = np.flatnonzero(fresh)
        if len(new):
            order = new[np.argsort(hashes[new], kind="stable")]
            rows = pairs.take(pa.array(order)).set_column(3, PAIRS.field(3), pa.array(fresh[order]))
            self._shelves.add(_ONLY_SHELF, rows)
        return before

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


def _found(pairs: pa.RecordBatch, hashes: Bits, batch: pa.RecordBatch, known: Bits) -> Bits:
    """The bits that pairs have in ``batch``, whose hashes are ``known``. Several rows there may have one hash, and one
    pair."""
    at = np.searchsorted(known, hashes)
    found = np.zeros(len(hashes), np.uint64)
    asked = np.flatnonzero((at < len(known)) & (known[np.minimum(at, len(known) - 1)] == hashes))
    while len(asked):
        mine, theirs = pairs.take(pa.array(asked)), batch.take(pa.array(at[asked]))
        equal = np.logical_and(*(_equal(mine.column(side), theirs.column(side)) for side in (1, 2)))
        found[asked[equal]] |= theirs.column(3).to_numpy()[equal]
        at[asked] += 1
        asked = asked[at[asked] < len(known)]
        asked = asked[known[at[asked]] == hashes[asked]]
    return found


def _equal(mine: pa.Array, theirs: pa.Array) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = pc.equal(mine, theirs).to_numpy(zero_copy_only=False)
    return equal


def _merged(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.concat_batches(parts)
    return whole.take(pa.array(np.argsort(whole.column(0).to_numpy(), kind="stable")))
