"""Whole numbers -> rows of a ``KeyTable``, vectorised: what the table says of keys that are whole numbers, remembered.

Why: a key is bytes, and to make 200 of them, hash them and compare them costs 0.2 ms. The number itself is at hand.

Rules: open addressing with linear probing; slots are chosen by a random multiplier for each process, so crafted
numbers cannot pile up in one place. An index is right as long as the table does not renumber its rows; then its owner
makes a new one.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from flinkplus.state.keytable import FREE, Rows

FIRST_BITS = 11
MAX_LOAD = 0.4
_MULTIPLIER = np.uint64(secrets.randbits(64) | 1)


class NumberIndex:
    """``numbering``: of the table whose rows are in the index."""

    def __init__(self, numbering: object) -> None:
        self.numbering = numbering
        self._bits = FIRST_BITS
        self._count = 0
        self._slots: npt.NDArray[np.int32] = np.full(1 << FIRST_BITS, FREE, np.int32)
        self._numbers: npt.NDArray[np.int64] = np.zeros(1 << FIRST_BITS, np.int64)

    def find(self, numbers: npt.NDArray[np.int64]) -> Rows:
        """The row of each number, ``FREE`` for those without one; numbers may repeat."""
        slots = self._first_slots(numbers)
        rows = self._slots[slots]
        wrong = ((self._numbers[slots] != numbers) & (rows != FREE)).nonzero()[0]
        while len(wrong):
            slots[wrong] = further = (slots[wrong] + 1) & len(self._slots) - 1
            rows[wrong] = proposed = self._slots[further]
            wrong = wrong[(self._numbers[further] != numbers[wrong]) & (proposed != FREE)]
        return rows.astype(np.int64)

    def add(self, numbers: npt.NDArray[np.int64], rows: Rows) -> None:
        """Remember the row of each of ``numbers``, which are distinct and have none here."""
        self._count += len(numbers)
        if self._count > MAX_LOAD * len(self._slots):
            old = self._slots != FREE
            numbers = np.concatenate([self._numbers[old], numbers])
            rows = np.concatenate([self._slots[old], rows])
            while self._count > MAX_LOAD / 2 * (1 << self._bits):
                self._bits += 1
            self._slots = np.full(1 << self._bits, FREE, np.int32)
            self._numbers = np.zeros(1 << self._bits, np.int64)
        self._place(numbers, rows)

    def _first_slots(self, numbers: npt.NDArray[np.int64]) -> Rows:
        return (numbers.view(np.uint64) * _MULTIPLIER >> np.uint64(64 - self._bits)).view(np.int64)

    def _place(self, numbers: npt.NDArray[np.int64], rows: Rows) -> None:
        """Put rows into the first free slots at or after their own: all at once, losers of a slot one further."""
        slots = self._first_slots(numbers)
        while len(rows):
            free = self._slots[slots] == FREE
            self._slots[slots[free]] = rows[free]
            won = free & (self._slots[slots] == rows)
            self._numbers[slots[won]] = numbers[won]
            lost = ~won
            numbers, rows, slots = numbers[lost], rows[lost], (slots[lost] + 1) & len(self._slots) - 1
