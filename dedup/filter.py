"""Which messages a consumer has received, and what was in them: message ID -> digest of the payload.

A message ID is a channel and the message's number there. It is stable over replay, and so are the epoch and the content
of the message. The filter decides whether a message is new: an ID that it knows is a duplicate, any other ID is new.
The digest of a duplicate says whether its content is the same; if it is not, two histories would be mixed.

Rules:

- IDs are grouped by epoch. A group (Bloom filter and digests) is dropped when no recovery goes back before its end;
- a chunk holds the digests of ``CHUNK`` numbers of one channel and epoch. The newest chunk of each channel is in
  memory, and decides about its own numbers. Before another chunk is needed, the Bloom filter is asked for it: if the
  filter does not know the chunk, none of its numbers was received, and the disk is not touched. "Maybe" is never an
  answer: the store decides;
- each channel has a *floor*. IDs below it are old by their number alone, and their digests are forgotten. The floor is
  the first number that the consumer asks for (``begin``), and rises to the end of each group that is dropped. So the
  filter of a consumer that starts from a version agrees with that version: what the version holds lies below the floor;
- digests need no keys of their own: a chunk says which of its numbers are present. Numbers may have gaps and come in
  any order; only the floor relies on the order of a channel.

Invariant, on a channel that delivers in order without gaps: the filter knows just the numbers from the floor up to the
next one that is expected.

Memory: for each channel one chunk (512 bytes); for each ``CHUNK`` messages since the last complete checkpoint two to
six bytes of Bloom filters at the default error rate. All other digests are in the store.

One thread.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pybloom_live import BloomFilter

from dedup.digests import Digests
from dedup.store import DedupStoreError, DigestStore

Channel: TypeAlias = tuple[int, int, int]
"""Edge, producer, consumer."""

FORGOTTEN = -1
"""In the place of a digest (which is never negative): the ID is old by its number, and its digest is not known."""
CHUNK_BITS = 6
CHUNK = 1 << CHUNK_BITS
FIRST_CAPACITY, GROWTH = 512, 4
DEFAULT_ERROR_RATE = 0.01
HARDLY_A_FILTER = 0.5
"""A rate at which there is nothing to be kept to."""
_SEQ_BITS = 48
_KEY = struct.Struct(">IQIIIQ")
_PRESENT = struct.Struct(">Q")
_EMPTY = bytes(8 * CHUNK)
_FULL = (1 << CHUNK) - 1
_NONE = -1


class GrowingBloom:
    """Bloom filters, each larger than the one before it, so that all together keep to ``error_rate``.

    ``capacity``: how many keys the first of them takes. (``pybloom_live.ScalableBloomFilter`` was measured at twice the
    rate that it is asked for: the rates of its parts add up to more.)
    """

    __slots__ = ("_filters", "_rate")

    def __init__(self, error_rate: float, capacity: int = FIRST_CAPACITY) -> None:
        self._rate = error_rate
        self._filters: list[Any] = []
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        if self._rate < HARDLY_A_FILTER:
            self._rate /= 2  # 1/2 + 1/4 + 1/8 + ... of what was asked for
        self._filters.append(BloomFilter(capacity, self._rate))

    @property
    def count(self) -> int:
        """About how many keys were added."""
        return sum(part.count for part in self._filters)

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


@dataclass(slots=True)
class _EpochIds:
    """A channel's messages of one epoch. ``end``: behind the highest number. ``chunk``: the number of the chunk that is
    in memory (``_NONE``: no such number); ``present``: a bit for each of its numbers; ``stored``: the chunks in the
    store."""

    epoch: int
    bloom: GrowingBloom
    end: int = 0
    chunk: int = _NONE
    present: int = 0
    digests: Digests = field(default_factory=lambda: array("Q", _EMPTY))
    stored: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """What is known of a channel. ``base``: what makes its numbers different from those of other channels."""

    channel: Channel
    base: int
    floor: int = 0
    epochs: dict[int, _EpochIds] = field(default_factory=dict)


@dataclass(slots=True)
class FilterCounts:
    """Of all look-ups so far.

    ``asked``: IDs that were looked up.
    ``known``: IDs of them that were there: duplicates.
    ``chunks``: chunks that were needed and not in memory, for which the Bloom filter was asked.
    ``maybe``: chunks of them that it did not rule out, so the store was asked.
    ``held``: chunks of them that the store had.
    ``stored``: chunks that were written to the store.
    ``fetched``: reads of a chunk from the store, for any reason.
    """

    asked: int = 0
    known: int = 0
    chunks: int = 0
    maybe: int = 0
    held: int = 0
    stored: int = 0
    fetched: int = 0

    @property
    def false_positive_rate(self) -> float:
        """Share of the new chunks that the Bloom filter did not rule out."""
        new = self.chunks - self.held
        return (self.maybe - self.held) / new if new else 0.0


class MessageFilter:
    """What one consumer has received.

    ``store``: for digests that are not in memory.
    ``number``: different for each filter of a store.
    ``error_rate``: maximum for the Bloom filters, above 0 and below 1; otherwise ``ValueError``.

    All methods raise ``dedup.store.DedupStoreError`` when the store fails.
    """

    def __init__(self, store: DigestStore, number: int, error_rate: float = DEFAULT_ERROR_RATE) -> None:
        if not 0 < error_rate < 1:
            raise ValueError(f"the rate of false positives must lie between 0 and 1, not at {error_rate!r}")
        self._store = store
        self._number = number
        self._error_rate = error_rate
        self._capacity = FIRST_CAPACITY
        self._blooms: dict[int, GrowingBloom] = {}
        self._channels: dict[Channel, _Known] = {}
        self._counts = FilterCounts()

    @property
    def counts(self) -> FilterCounts:
        """Of all look-ups so far."""
        return self._counts

    def begin(self, channel: Channel, first: int) -> None:
        """The consumer asks for the messages of ``channel`` from number ``first`` on: all before it are old."""
        self._channel(channel).floor = first

    def add(self, epoch: int, channel: Channel, seq: int, digest: int) -> int | None:
        """A message came in.

        Returns ``None`` when it is new; it is noted with its ``digest``, of 64 bits. For a duplicate, returns the
        digest that it was noted with, or ``FORGOTTEN``.
        """
        known = self._channels.get(channel) or self._channel(channel)
        if seq < known.floor:
            return FORGOTTEN
        ids = known.epochs.get(epoch) or self._open_epoch(known, epoch)
        chunk, at = seq >> CHUNK_BITS, seq & CHUNK - 1
        self._counts.asked += 1
        if chunk != ids.chunk:
            self._turn_to(known, ids, chunk)
        if ids.present >> at & 1:
            self._counts.known += 1
            return ids.digests[at]
        ids.digests[at] = digest
        ids.present |= 1 << at
        if seq >= ids.end:
            ids.end = seq + 1
        return None

    def _channel(self, channel: Channel) -> _Known:
        known = self._channels.get(channel)
        if known is None:
            known = self._channels[channel] = _Known(channel, len(self._channels) << _SEQ_BITS)
        return known

    def _open_epoch(self, known: _Known, epoch: int) -> _EpochIds:
        """The first message of an epoch on a channel: the digests of those before it leave memory."""
        for other in known.epochs.values():
            self._put_away(known, other)
        bloom = self._blooms.get(epoch)
        if bloom is None:
            bloom = self._blooms[epoch] = GrowingBloom(self._error_rate, self._capacity)
        ids = known.epochs[epoch] = _EpochIds(epoch, bloom)
        return ids

    def _put_away(self, known: _Known, ids: _EpochIds) -> None:
        if ids.chunk == _NONE:
            return
        self._store.put(self._key(known, ids, ids.chunk), _PRESENT.pack(ids.present) + ids.digests.tobytes())
        self._counts.stored += 1
        ids.stored[ids.chunk] = None
        ids.chunk, ids.present, ids.digests = _NONE, 0, array("Q", _EMPTY)

    def _turn_to(self, known: _Known, ids: _EpochIds, chunk: int) -> None:
        """Have ``chunk`` in memory in place of the present one."""
        counts = self._counts
        self._put_away(known, ids)
        counts.chunks += 1
        if ids.bloom.add(known.base | chunk):
            counts.maybe += 1
            found = self._fetch(known, ids, chunk)
            if found is not None:
                counts.held += 1
                ids.present, ids.digests = found
        ids.chunk = chunk

    def _fetch(self, known: _Known, ids: _EpochIds, chunk: int) -> tuple[int, Digests] | None:
        """A chunk from the store: which numbers are present, and their digests."""
        self._counts.fetched += 1
        content = self._store.get(self._key(known, ids, chunk))
        if content is None:
            return None
        if len(content) != _PRESENT.size + len(_EMPTY):
            raise DedupStoreError(f"the digests of channel {known.channel}, chunk {chunk}, are {len(content)} bytes")
        digests = array("Q")
        digests.frombytes(content[_PRESENT.size :])
        return int(_PRESENT.unpack_from(content)[0]), digests

    def _key(self, known: _Known, ids: _EpochIds, chunk: int) -> bytes:
        return _KEY.pack(self._number, ids.epoch, *known.channel, chunk)

    def spans(self, channel: Channel) -> list[tuple[int, Digests]]:
        """Everything that is known of a channel's messages: spans of digests, each with the number of its first."""
        known = self._channels.get(channel)
        found: list[tuple[int, Digests]] = []
        for ids in [known.epochs[epoch] for epoch in sorted(known.epochs)] if known is not None else ():
            assert known is not None
            for chunk in sorted({*ids.stored, ids.chunk} - {_NONE}):
                held = (ids.present, ids.digests) if chunk == ids.chunk else self._fetch(known, ids, chunk)
                if held is not None:
                    _extend(found, chunk << CHUNK_BITS, *held)
        return found

    def drop(self, before: int) -> None:
        """No recovery goes back before the beginning of epoch ``before``: forget the digests of all earlier ones."""
        keys = []
        for known in self._channels.values():
            for epoch in [epoch for epoch in known.epochs if epoch < before]:
                ids = known.epochs.pop(epoch)
                known.floor = max(known.floor, ids.end)
                keys += [self._key(known, ids, chunk) for chunk in ids.stored]
        for epoch in [epoch for epoch in self._blooms if epoch < before]:
            self._capacity = max(FIRST_CAPACITY, self._blooms.pop(epoch).count * 5 // 4)
        self._store.delete(keys)

    def close(self) -> None:
        """Forget everything."""
        keys = [
            self._key(known, ids, chunk)
            for known in self._channels.values()
            for ids in known.epochs.values()
            for chunk in ids.stored
        ]
        self._channels.clear()
        self._blooms.clear()
        self._store.delete(keys)


def _extend(found: list[tuple[int, Digests]], first: int, present: int, digests: Digests) -> None:
    """Add a chunk, whose numbers begin at ``first``, to spans."""
    end = found[-1][0] + len(found[-1][1]) if found else _NONE
    if present == _FULL:
        if end == first:
            found[-1][1].extend(digests)
        else:
            found.append((first, array("Q", digests)))
        return
    for at in range(CHUNK):
        if not present >> at & 1:
            continue
        if end != first + at:
            found.append((first + at, array("Q")))
        found[-1][1].append(digests[at])
        end = first + at + 1
