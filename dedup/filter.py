"""Which messages a consumer has taken in, and what was in them: ID -> digest of the payload.

A message's ID is its channel and its number there; it is stable over replay, and so are its epoch and its content. A
promoted producer makes messages again that its consumers have had: the ID says which these are, and the digest whether
they are the same. If not, two histories would be mixed.

Rules:

- IDs are grouped by epoch; a group goes, Bloom filter and digests, when nobody goes back before its end any more;
- the Bloom filter is asked first: what it does not know is surely new, and nothing else is looked at. "Maybe" is never
  an answer: it is confirmed by the digests, of which the newest are in memory, and the others in the store;
- the numbers of a channel have no gaps (``ValueError``), so digests need no keys of their own: a run of them has one;
- whoever begins from a version of the consumer begins with an empty filter. The cursors of the version say that what
  lies before it is not new, and nobody asks what was in it: no producer is promoted from an older version than the one
  that a living consumer began from (``chain_backup.line``, rule 3), so none makes it again.

One thread.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pybloom_live import BloomFilter

from dedup.digests import Digests
from dedup.store import DigestStore

Channel: TypeAlias = tuple[int, int, int]
"""Edge, producer, consumer."""

CHUNK = 512
FIRST_CAPACITY, GROWTH = 512, 4
DEFAULT_ERROR_RATE = 0.01
HARDLY_A_FILTER = 0.5
"""A rate at which there is nothing to be kept to."""
_SEQ_BITS = 48
_KEY = struct.Struct(">IQIIIQ")
_PREFIX = struct.Struct(">IQ")
_NUMBER = struct.Struct(">I")


@dataclass(slots=True)
class _Run:
    """A channel's messages of one epoch: from ``first`` on, ``stored`` chunks of them in the store, and the rest."""

    first: int
    stored: int = 0
    recent: Digests = field(default_factory=lambda: array("Q"))

    @property
    def end(self) -> int:
        return self.first + self.stored * CHUNK + len(self.recent)


class GrowingBloom:
    """Bloom filters, each larger than the one before it, so that all together keep to ``error_rate``.

    (``pybloom_live.ScalableBloomFilter`` was measured at twice the rate that it is asked for: the rates of its parts
    add up to more.)
    """

    __slots__ = ("_filters", "_rate")

    def __init__(self, error_rate: float) -> None:
        self._rate = error_rate
        self._filters: list[Any] = []
        self._grow(FIRST_CAPACITY)

    def _grow(self, capacity: int) -> None:
        if self._rate < HARDLY_A_FILTER:
            self._rate /= 2  # 1/2 + 1/4 + 1/8 + ... of what was asked for
        self._filters.append(BloomFilter(capacity, self._rate))

    def add(self, key: int) -> bool:
        """Note ``key``; whether it may have been noted before."""
        newest = self._filters[-1]
        for older in self._filters[:-1]:
            if key in older:
                return True
        if newest.count >= newest.capacity:
            if key in newest:
                return True
            self._grow(GROWTH * newest.capacity)
            newest = self._filters[-1]
        return bool(newest.add(key))

    def __contains__(self, key: int) -> bool:
        return any(key in part for part in self._filters)


@dataclass(slots=True)
class _Group:
    """The messages of one epoch."""

    bloom: GrowingBloom
    runs: dict[Channel, _Run] = field(default_factory=dict)


@dataclass(slots=True)
class FilterCounts:
    """``asked``: IDs that were looked up; ``maybe``: those that the Bloom filter did not rule out; ``known``: those
    that were there indeed."""

    asked: int = 0
    maybe: int = 0
    known: int = 0

    @property
    def false_positive_rate(self) -> float:
        """Of the IDs that were new, the share that the Bloom filter did not rule out."""
        new = self.asked - self.known
        return (self.maybe - self.known) / new if new else 0.0


class MessageFilter:
    """What one consumer has taken in.

    ``number``: different for each filter of a store. ``error_rate``: of the Bloom filters, at most, above 0 and
    below 1. Raises ``dedup.store.DedupStoreError``.
    """

    def __init__(self, store: DigestStore, number: int, error_rate: float = DEFAULT_ERROR_RATE) -> None:
        if not 0 < error_rate < 1:
            raise ValueError(f"the rate of false positives must lie between 0 and 1, not at {error_rate!r}")
        self._store = store
        self._number = number
        self._error_rate = error_rate
        self._groups: dict[int, _Group] = {}
        self._channels: dict[Channel, int] = {}
        self._counts = FilterCounts()

    @property
    def counts(self) -> FilterCounts:
        """Of all look-ups so far."""
        return self._counts

    def add(self, epoch: int, channel: Channel, seq: int, digest: int) -> int | None:
        """A message came in. ``None``: it is new, and noted; else the digest that it had when it came before.

        Raises ``ValueError`` when messages are missing before it.
        """
        group = self._groups.get(epoch)
        if group is None:
            group = self._groups[epoch] = _Group(GrowingBloom(self._error_rate))
        counts = self._counts
        counts.asked += 1
        if group.bloom.add(self._id(channel, seq)):
            counts.maybe += 1
            had = self._digest(epoch, group, channel, seq)
            if had is not None:
                counts.known += 1
                return had
        run = group.runs.get(channel)
        if run is None:
            run = group.runs[channel] = _Run(seq)
        elif seq != run.end:
            raise ValueError(f"message {seq} of channel {channel} comes behind {run.end - 1}")
        run.recent.append(digest)
        while len(run.recent) >= CHUNK:
            self._store.put(self._key(epoch, channel, run.stored), run.recent[:CHUNK].tobytes())
            run.stored += 1
            run.recent = run.recent[CHUNK:]
        return None

    def find(self, epoch: int, channel: Channel, seq: int) -> int | None:
        """The digest of a message that may have come in; ``None`` when it has not, or its group is gone."""
        self._counts.asked += 1
        group = self._groups.get(epoch)
        if group is None or self._id(channel, seq) not in group.bloom:
            return None
        self._counts.maybe += 1
        had = self._digest(epoch, group, channel, seq)
        self._counts.known += had is not None
        return had

    def _id(self, channel: Channel, seq: int) -> int:
        return self._channels.setdefault(channel, len(self._channels)) << _SEQ_BITS | seq

    def _digest(self, epoch: int, group: _Group, channel: Channel, seq: int) -> int | None:
        run = group.runs.get(channel)
        if run is None or not run.first <= seq < run.end:
            return None
        at = seq - run.first - run.stored * CHUNK
        if at >= 0:
            return run.recent[at]
        chunk, at = divmod(seq - run.first, CHUNK)
        return self._chunk(epoch, channel, chunk)[at]

    def _chunk(self, epoch: int, channel: Channel, chunk: int) -> Digests:
        found = array("Q")
        found.frombytes(self._store.get(self._key(epoch, channel, chunk)) or b"")
        return found

    def _key(self, epoch: int, channel: Channel, chunk: int) -> bytes:
        return _KEY.pack(self._number, epoch, *channel, chunk)

    def runs(self, channel: Channel) -> list[tuple[int, Digests]]:
        """Everything that is known of a channel's messages: runs of digests, each with the number of its first."""
        found = []
        for epoch in sorted(self._groups):
            run = self._groups[epoch].runs.get(channel)
            if run is not None:
                found.append((run.first, self._whole(epoch, channel, run)))
        return found

    def _whole(self, epoch: int, channel: Channel, run: _Run) -> Digests:
        whole = array("Q")
        for chunk in range(run.stored):
            whole.extend(self._chunk(epoch, channel, chunk))
        whole.extend(run.recent)
        return whole

    def drop(self, before: int) -> None:
        """Nobody goes back before the beginning of epoch ``before``: forget all earlier ones."""
        for epoch in [epoch for epoch in self._groups if epoch < before]:
            group = self._groups.pop(epoch)
            if any(run.stored for run in group.runs.values()):
                self._store.delete(_PREFIX.pack(self._number, epoch), _PREFIX.pack(self._number, epoch + 1))

    def close(self) -> None:
        """Forget everything."""
        self._groups.clear()
        self._store.delete(_NUMBER.pack(self._number), _NUMBER.pack(self._number + 1))
