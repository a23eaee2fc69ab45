"""What must be true of the rows that are visible, at every moment and at the end, whatever the job has chosen.

The input: row *i* of ``rows`` comes by way of reader ``i % readers``, in order, and has the key
``a = (i * 7919 + seed) % keys``.
The job: *n* numbers the rows of a key *a* in the order in which they came, from 1 up. With ``buckets``, the row goes on
to bucket ``b = (31 * n + a) % buckets``, where *m* numbers the rows of the bucket, and ``chain`` is a hash of the one
before, *i*, *a*, *n*. Without buckets ``chain`` goes along *n*, and there is neither *b* nor *m*.
A reader is a subtask, a file, or a partition of a topic: whatever keeps its rows in order.

Which row gets which *n* and *m* is the job's choice. This holds for every choice, and a job that mixes two histories,
or takes one back, breaks it:

- *doubled*: a row of the input is there twice; or two rows have the same *n* of a key, or the same *m* of a bucket;
- *retracted*: a row that was visible is gone, or has changed;
- *reordered*: two rows of a key that came by one reader are numbered in another order than that of the input; or a row
  of a bucket (without buckets: of a key) is visible and one before it is not; or a hash does not follow from the one
  before;
- *torn*: a part of what is visible together only: with ``cuts``, the rows of a reader that are visible are its first
  ones, with no gap, since a checkpoint cuts there; files that are listed and cannot be read;
- *wrong*: rows that the input and the job's definition do not give;
- *lost*, at the end: a row of the input is not there.

Rules: pure. Each kind is counted, and has its first few examples in words.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

KINDS = LOST, DOUBLED, RETRACTED, REORDERED, TORN, WRONG = (
    "lost",
    "doubled",
    "retracted",
    "reordered",
    "torn",
    "wrong",
)
EXAMPLES = 5
FACTOR, MIX = 7919, 31
HASH_BYTES = 8


class Row(NamedTuple):
    """A row of the output. ``b``, ``m``: 0 without buckets."""

    i: int
    a: int
    n: int
    b: int
    m: int
    chain: str


@dataclass(frozen=True)
class Input:
    """All that the checker knows of the job. ``cuts``: what is visible is always a checkpoint's cut."""

    rows: int
    readers: int
    keys: int
    buckets: int
    seed: int
    cuts: bool

    def key(self, i: int) -> int:
        return (i * FACTOR + self.seed) % self.keys

    def bucket(self, a: int, n: int) -> int:
        return (MIX * n + a) % self.buckets if self.buckets else 0


def linked(before: str, i: int, a: int, n: int) -> str:
    """The next hash of a chain."""
    return hashlib.blake2b(f"{before}/{i}/{a}/{n}".encode(), digest_size=HASH_BYTES).hexdigest()


class History:
    """All rows that were ever visible. ``found``: kind -> how often; ``examples``: kind -> in words."""

    def __init__(self, given: Input) -> None:
        self.input = given
        self.found = dict.fromkeys(KINDS, 0)
        self.examples: dict[str, list[str]] = {}
        self.known: dict[int, Row] = {}
        self._gone: set[int] = set()
        self._copied: set[int] = set()
        self._numbered: dict[tuple[int, int], int] = {}
        self._of_reader: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._ends: dict[int, tuple[int, str]] = {}
        self._ahead: dict[tuple[int, int], Row] = {}
        self._reached: defaultdict[int, int] = defaultdict(int)
        self._beyond: defaultdict[int, set[int]] = defaultdict(set)

    def note(self, kind: str, example: str, times: int = 1) -> None:
        """Something is wrong."""
        self.found[kind] += times
        known = self.examples.setdefault(kind, [])
        if len(known) < EXAMPLES:
            known.append(example)

    @property
    def exact(self) -> bool:
        return not any(self.found.values())

    def take(self, rows: Iterable[Row]) -> None:
        """Rows that became visible between two looks; together with those before they are all that is visible."""
        new = sorted(rows, key=lambda row: (row.b, row.m, row.a, row.n))
        for row in new:
            self._take(row)
        self._extend()
        for place, row in sorted(self._ahead.items()):
            self.note(REORDERED, f"{row} is visible, and {self._before(place)} is not")
        self._skip()
        if self.input.cuts:
            self._check_cut()

    def compare(self, rows: Iterable[Row]) -> None:
        """All rows that are visible: those that are new are taken, and those that have gone are noted, each once."""
        copies: defaultdict[int, list[Row]] = defaultdict(list)
        for row in rows:
            copies[row.i].append(row)
        for i, row in self.known.items():
            if row not in copies.get(i, ()) and i not in self._gone:
                self._gone.add(i)
                now = f"it is {copies[i][0]}" if i in copies else "it is gone"
                self.note(RETRACTED, f"{row} was visible; now {now}")
        for i, found in copies.items():
            if len(found) > 1 and i not in self._copied:
                self._copied.add(i)
                self.note(DOUBLED, f"row {i} of the input is there {len(found)} times: {found[:2]}", len(found) - 1)
        self.take(found[0] for i, found in copies.items() if i not in self.known)

    def end(self) -> None:
        """The job has finished: everything must be there."""
        for i in range(self.input.rows):
            if i not in self.known:
                self.note(LOST, f"row {i} of the input, of key {self.input.key(i)}")

    # --- one row

    def _take(self, row: Row) -> None:
        given = self.input
        if not 0 <= row.i < given.rows or row.a != given.key(row.i) or row.n < 1:
            self.note(WRONG, f"{row}: the input has no such row")
            return
        if row.b != given.bucket(row.a, row.n) or (row.m < 1 if given.buckets else row.m != 0):
            self.note(WRONG, f"{row} is not in its bucket")
            return
        if row.i in self.known:
            self._copied.add(row.i)
            self.note(DOUBLED, f"{row} came behind {self.known[row.i]}")
            return
        self.known[row.i] = row
        self._note_reader(row.i)
        other = self._numbered.setdefault((row.a, row.n), row.i)
        if other != row.i:
            self.note(DOUBLED, f"{row} and {self.known[other]} have one number")
            return
        self._check_order(row)
        place = self._place(row)
        end = self._ends.get(place[0], (0, ""))[0]
        if place[1] <= end or place in self._ahead:
            self.note(DOUBLED, f"{row}: its place in the bucket is taken")
            return
        self._ahead[place] = row

    def _place(self, row: Row) -> tuple[int, int]:
        return (row.b, row.m) if self.input.buckets else (row.a, row.n)

    def _before(self, place: tuple[int, int]) -> str:
        return f"number {self._ends.get(place[0], (0, ''))[0] + 1} of {place[0]}"

    def _check_order(self, row: Row) -> None:
        """Rows of a key and a reader are numbered as the input has them."""
        mine = self._of_reader[row.a, row.i % self.input.readers]
        at = bisect_left(mine, (row.n, row.i))
        insort(mine, (row.n, row.i))
        if at and mine[at - 1][1] > row.i:
            self.note(REORDERED, f"{row}: row {mine[at - 1][1]} of the same reader is numbered {mine[at - 1][0]}")
        if at + 1 < len(mine) and mine[at + 1][1] < row.i:
            self.note(REORDERED, f"{row}: row {mine[at + 1][1]} of the same reader is numbered {mine[at + 1][0]}")

    # --- chains

    def _extend(self) -> None:
        """Link what follows what was there, as far as there is no gap."""
        for place in sorted(self._ahead):
            end, chain = self._ends.get(place[0], (0, ""))
            if place[1] == end + 1:
                self._link(place, chain)

    def _link(self, place: tuple[int, int], chain: str) -> None:
        row = self._ahead.pop(place)
        if row.chain != linked(chain, row.i, row.a, row.n):
            self.note(REORDERED, f"{row} does not follow from the row before it")
        self._ends[place[0]] = place[1], row.chain

    def _skip(self) -> None:
        """Each gap is noted once: what is behind it is where the chain continues."""
        for place in sorted(self._ahead):
            row = self._ahead.pop(place)
            self._ends[place[0]] = max((place[1], row.chain), self._ends.get(place[0], (0, "")))

    # --- cuts

    def _note_reader(self, i: int) -> None:
        reader, at = i % self.input.readers, i // self.input.readers
        beyond = self._beyond[reader]
        beyond.add(at)
        while self._reached[reader] in beyond:
            beyond.remove(self._reached[reader])
            self._reached[reader] += 1

    def _check_cut(self) -> None:
        for reader, beyond in sorted(self._beyond.items()):
            if beyond:
                first = min(beyond) * self.input.readers + reader
                missing = self._reached[reader] * self.input.readers + reader
                self.note(TORN, f"row {first} is visible, and row {missing} of the same reader is not")
                self._reached[reader] = max(beyond) + 1  # each gap is noted once
                beyond.clear()
