"""What a reader of a directory chooses, as a number below 2**29.

The two lowest bits say what kind of choice it is, the others are its value. A file is begun by two choices in a row,
each with half of its fingerprint: so a replay finds it among files of which more may be there than the first time, and
two files are taken for each other with a probability of 2**-54 alone.

Rules: pure. ``records``: lines, objects or rows of the open file, also those that are no good and are passed over.
"""

from __future__ import annotations

from enum import IntEnum

_KIND_BITS = 2
_VALUE_BITS = 27
FINGERPRINT_BITS = 2 * _VALUE_BITS
MAX_RECORDS = (1 << _VALUE_BITS) - 1
"""Maximum number of records of one read."""


class FileChoice(IntEnum):
    """In brackets: the value."""

    RECORDS = 0
    """Records of the open file (how many)."""
    LAST_RECORDS = 1
    """Records of the open file, which ends after them (how many)."""
    BEGIN = 2
    """A file is begun (the upper half of its fingerprint)."""
    FILE = 3
    """Which one (the lower half)."""


NOTHING = int(FileChoice.RECORDS)
"""No record: gives up a file of which only the upper half was chosen; otherwise, the source has ended."""


def encode(kind: FileChoice, value: int) -> int:
    """The number of a choice."""
    assert 0 <= value <= MAX_RECORDS
    return value << _KIND_BITS | kind


def decode(choice: int) -> tuple[FileChoice, int]:
    """The inverse of ``encode``."""
    return FileChoice(choice & ((1 << _KIND_BITS) - 1)), choice >> _KIND_BITS


def upper_half(fingerprint: int) -> int:
    return fingerprint >> _VALUE_BITS


def lower_half(fingerprint: int) -> int:
    return fingerprint & MAX_RECORDS


def fingerprint_of(upper: int, lower: int) -> int:
    """The inverse of the two halves."""
    return upper << _VALUE_BITS | lower
