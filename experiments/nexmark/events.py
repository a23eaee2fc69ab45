"""The events of Nexmark: persons, auctions and bids, each made by one function of its number.

Event *n* is number ``n % 50`` of group ``e = n // 50``: 0 is person ``e``, 1 to 3 are auctions ``3e`` to ``3e + 2``,
4 to 49 are bids: 2 % persons, 6 % auctions, 92 % bids.

Every field comes from bits of ``hash(n, k) = mix(4n + k + 1)``, where ``mix`` is the output function of splitmix64.
Everything is made of whole numbers, so another language makes the same events: ``Events.java`` does, and a test
compares the two.

- *Time*: ``BASE_MS + n * 1000 // events_per_s`` milliseconds. At the default rate no two events have the same time.
- *Bid*: of every two one is for the hot auction, the last whose number is a multiple of 100; the others are for one of
  the last 100 auctions or of the next 10. Three of four are by the hot bidder, the one after the last person whose
  number is a multiple of 100; the others by one of the last 1,000 persons or of the next 10.
- *Auction*: three of four are by the hot seller, the last person whose number is a multiple of 100.
- *Prices*: ``(100 .. 999) * 10 ** (0 .. 5)``, uniform in each part: about logarithmic between 100 and 10^8.
- *Channel*: every second bid is from one of 4 hot channels, the others from one of 10,000. A channel has one URL.

These are the ratios of the public description of Nexmark. What differs: prices are whole by construction, longer texts
are taken from tables of 1,024, and times are exact.

Rules: no state and no randomness; a call with the same numbers gives the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from experiments.nexmark import texts
from experiments.nexmark.texts import COLD_CHANNELS, HOT_CHANNELS, TEXTS, U64, cut_letters, mix

I64 = npt.NDArray[np.int64]
GROUP, PERSONS, AUCTIONS = 50, 1, 3
"""Events of a group, and persons and auctions among them; the rest are bids."""
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1_000, 10, 5
"""IDs of persons and auctions are their numbers and ``FIRST_ID``."""
HOT_EVERY, ACTIVE_PERSONS, IN_FLIGHT, LEAD = 100, 1_000, 100, 10
BASE_MS = 1_436_918_400_000
"""2015-07-15T00:00:00Z."""
EVENTS_PER_S = 1_000
"""Of event time."""
PERSON, AUCTION, BID = KINDS = ("person", "auction", "bid")
TIME = pa.timestamp("us")
"""Spark's ``timestamp_ntz``; the times are whole milliseconds."""


def _schema(text: str, times: tuple[str, ...] = ("dateTime",)) -> pa.Schema:
    fields = (field.split() for field in text.split(", "))
    kinds = {"long": pa.int64(), "string": pa.string()}
    return pa.schema([pa.field(name, TIME if name in times else kinds[kind]) for name, kind in fields])


SCHEMAS = {
    PERSON: _schema(
        "id long, name string, emailAddress string, creditCard string, city string, state string, dateTime time, "
        "extra string"
    ),
    AUCTION: _schema(
        "id long, itemName string, description string, initialBid long, reserve long, dateTime time, expires time, "
        "seller long, category long, extra string",
        ("dateTime", "expires"),
    ),
    BID: _schema(
        "auction long, bidder long, price long, channel string, url string, dateTime time, extra string",
    ),
}
"""Columns of each kind."""


def of_kind(kind: str, numbers: I64) -> I64:
    """Those of the numbers whose events are of this kind."""
    offsets = numbers % GROUP
    if kind == PERSON:
        return numbers[offsets < PERSONS]
    if kind == BID:
        return numbers[offsets >= PERSONS + AUCTIONS]
    return numbers[(offsets >= PERSONS) & (offsets < PERSONS + AUCTIONS)]


def events(kind: str, numbers: I64, events_per_s: int = EVENTS_PER_S) -> pa.RecordBatch:
    """The events of a kind among those with these numbers, in their order."""
    return MAKERS[kind](of_kind(kind, numbers), events_per_s)


def hashes(numbers: I64, k: int) -> U64:
    """``hash(n, k)`` of each."""
    return mix(numbers.astype(np.uint64) * np.uint64(4) + np.uint64(k + 1))


def _bits(hashed: U64, at: int, count: int) -> I64:
    return ((hashed >> np.uint64(at)) & np.uint64((1 << count) - 1)).view(np.int64)


def _time_ms(numbers: I64, events_per_s: int) -> I64:
    return BASE_MS + numbers * 1_000 // events_per_s


def _times(ms: I64) -> pa.Array:
    return pa.array(ms * 1_000).view(TIME)


def _texts(table: pa.StringArray, rows: I64) -> pa.Array:
    return table.take(pa.array(rows))


def _prices(hashed: U64, at: int) -> I64:
    """From 32 bits of the hash."""
    return (100 + _bits(hashed, at + 16, 16) % 900) * POWERS[_bits(hashed, at, 16) % len(POWERS)]


POWERS = 10 ** np.arange(6, dtype=np.int64)


def _active_person(groups: I64, drawn: I64) -> I64:
    """One of the last persons, or of the next ones: by number."""
    active = np.minimum(groups + 1, ACTIVE_PERSONS)
    return groups + 1 - active + drawn % (active + LEAD)


def _bids(numbers: I64, events_per_s: int) -> pa.RecordBatch:
    first, second = hashes(numbers, 0), hashes(numbers, 1)
    groups = numbers // GROUP
    last = groups * AUCTIONS + AUCTIONS - 1
    low = np.maximum(last - IN_FLIGHT, 0)
    cold = low + _bits(first, 1, 16) % (last - low + 1 + LEAD)
    auction = np.where(_bits(first, 0, 1) == 0, last // HOT_EVERY * HOT_EVERY, cold)
    cold = _active_person(groups, _bits(first, 19, 20))
    bidder = np.where(_bits(first, 17, 2) > 0, groups // HOT_EVERY * HOT_EVERY + 1, cold)
    hot = COLD_CHANNELS + _bits(second, 33, 2)
    channel = np.where(_bits(second, 32, 1) == 0, hot, _bits(second, 35, 14) % COLD_CHANNELS)
    columns = [
        pa.array(auction + FIRST_ID),
        pa.array(bidder + FIRST_ID),
        pa.array(_prices(second, 0)),
        _texts(texts.channels(), channel),
        _texts(texts.urls(), channel),
        _times(_time_ms(numbers, events_per_s)),
        _texts(cut_letters(texts.BID_EXTRA, 50, 81), _bits(first, 39, 10)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[BID])


def _auctions(numbers: I64, events_per_s: int) -> pa.RecordBatch:
    first, second, third = (hashes(numbers, k) for k in range(3))
    groups = numbers // GROUP
    time_ms = _time_ms(numbers, events_per_s)
    longest_ms = max(1, 2 * IN_FLIGHT * GROUP * 1_000 // AUCTIONS // events_per_s)
    cold = _active_person(groups, _bits(first, 2, 20))
    seller = np.where(_bits(first, 0, 2) > 0, groups // HOT_EVERY * HOT_EVERY, cold)
    initial = _prices(second, 0)
    columns = [
        pa.array(groups * AUCTIONS + numbers % GROUP - PERSONS + FIRST_ID),
        _texts(cut_letters(texts.NAMES, 5, 20), _bits(first, 22, 10)),
        _texts(cut_letters(texts.DESCRIPTIONS, 50, 100), _bits(first, 32, 10)),
        pa.array(initial),
        pa.array(initial + _prices(second, 32)),
        _times(time_ms),
        _times(time_ms + 1 + _bits(third, 0, 32) % longest_ms),
        pa.array(seller + FIRST_ID),
        pa.array(FIRST_CATEGORY + _bits(third, 32, 16) % CATEGORIES),
        _texts(cut_letters(texts.AUCTION_EXTRA, 250, 350), _bits(first, 42, 10)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[AUCTION])


def _persons(numbers: I64, events_per_s: int) -> pa.RecordBatch:
    first, second = hashes(numbers, 0), hashes(numbers, 1)
    columns = [
        pa.array(numbers // GROUP + FIRST_ID),
        _texts(texts.names(), _bits(first, 0, 16) % len(texts.names())),
        _texts(texts.emails(), _bits(first, 16, 10)),
        _texts(texts.cards(), _bits(first, 26, 10)),
        _texts(texts.cities(), _bits(second, 0, 16) % len(texts.CITIES)),
        _texts(texts.states(), _bits(second, 16, 16) % len(texts.STATES)),
        _times(_time_ms(numbers, events_per_s)),
        _texts(cut_letters(texts.PERSON_EXTRA, 100, 150), _bits(first, 36, 10)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[PERSON])


MAKERS: Mapping[str, Callable[[I64, int], pa.RecordBatch]] = {PERSON: _persons, AUCTION: _auctions, BID: _bids}
assert TEXTS == 1 << 10 and len(HOT_CHANNELS) == 1 << 2  # fields take so many bits
