"""The texts of events: tables that are made once, from which an event takes rows by number.

Rules: letters come from ``mix`` alone, so that another language makes the same tables (``Events.java``). A table has a
number of its own, which keeps its letters apart from those of the others.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U64 = npt.NDArray[np.uint64]
GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
LETTERS = 26
URLS, BID_EXTRA, NAMES, DESCRIPTIONS, AUCTION_EXTRA, EMAILS, CARDS, PERSON_EXTRA = range(1, 9)
"""Numbers of tables."""
TEXTS = 1024
"""Rows of each table but that of channels: a power of two."""
COLD_CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
URL = "https://www.nexmark.com/{}/{}/{}/item.htm?query=1"
WITHOUT_ID = 10
"""One URL in so many has no ``channel_id``."""
ID_FACTOR, IDS = 2_654_435_761, 2_147_483_647
"""The ``channel_id`` of channel *c* is ``c * ID_FACTOR % IDS``."""


def mix(numbers: U64) -> U64:
    """The output function of splitmix64 at ``numbers``, which are overwritten."""
    numbers *= GOLDEN
    numbers ^= numbers >> np.uint64(30)
    numbers *= FIRST
    numbers ^= numbers >> np.uint64(27)
    numbers *= SECOND
    numbers ^= numbers >> np.uint64(31)
    return numbers


def letters(table: int, rows: int, length: int) -> list[str]:
    """``rows`` texts of ``length`` lower-case letters: letter *j* of row *i* is byte *j % 8* of
    ``mix(table * 2**40 + i * 1024 + j // 8 + 1)``, modulo 26."""
    words = -(-length // 8)
    at = np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(1024) + np.arange(words, dtype=np.uint64)[None, :]
    mixed = mix(at + np.uint64((table << 40) + 1))
    shifts = np.arange(8, dtype=np.uint64) * np.uint64(8)
    found = ((mixed[:, :, None] >> shifts) & np.uint64(255)) % np.uint64(LETTERS) + np.uint64(ord("a"))
    flat = found.reshape(rows, words * 8)[:, :length].astype(np.uint8)
    return [row.tobytes().decode("ascii") for row in flat]


@cache
def cut_letters(table: int, least: int, most: int) -> pa.StringArray:
    """``TEXTS`` texts of letters; row *i* has ``least + i % (most - least + 1)`` of them."""
    rows = letters(table, TEXTS, most)
    return pa.array([text[: least + i % (most - least + 1)] for i, text in enumerate(rows)])


@cache
def channels() -> pa.StringArray:
    """Channel *c*: the cold ones, then the hot ones."""
    return pa.array([*(f"channel-{c}" for c in range(COLD_CHANNELS)), *HOT_CHANNELS])


@cache
def urls() -> pa.StringArray:
    """The URL of each channel."""
    found = []
    for c, path in enumerate(letters(URLS, COLD_CHANNELS + len(HOT_CHANNELS), 15)):
        url = URL.format(path[:5], path[5:10], path[10:])
        found.append(url if c % WITHOUT_ID == 0 else f"{url}&channel_id={c * ID_FACTOR % IDS}")
    return pa.array(found)


@cache
def names() -> pa.StringArray:
    """Name *i* has the last name ``i // 11`` and the first name ``i % 11``."""
    return pa.array([f"{first} {last}" for last in LAST_NAMES for first in FIRST_NAMES])


@cache
def emails() -> pa.StringArray:
    return pa.array([f"{text[:7]}@{text[7:]}.com" for text in letters(EMAILS, TEXTS, 12)])


@cache
def cards() -> pa.StringArray:
    """Sixteen digits in four groups: letters, each as its place in the alphabet modulo 10."""
    found = []
    for text in letters(CARDS, TEXTS, 16):
        digits = "".join(str((ord(letter) - ord("a")) % 10) for letter in text)
        found.append(" ".join(digits[at : at + 4] for at in range(0, 16, 4)))
    return pa.array(found)


@cache
def cities() -> pa.StringArray:
    return pa.array(CITIES)


@cache
def states() -> pa.StringArray:
    return pa.array(STATES)
