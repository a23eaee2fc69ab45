"""What a reader of a data source chooses, as a number below 2**29; and how an offset becomes several of them.

The three lowest bits say what kind of choice it is, the others are its value. An offset is a JSON document, and no
number: it is logged three bytes at a time, by steps without rows. It is compressed with the offset before it as the
dictionary, so that it takes a few steps only.

Rules: pure. The last piece of an offset has fewer than three bytes, none if need be.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

from flinkplus.errors import InputError

_KIND_BITS = 3
PIECE_BYTES = 3
MAX_ROWS = (1 << 26) - 1
"""Maximum number of rows of one read."""
MAX_OFFSET_BYTES = 1 << 15
"""Maximum size of an offset, as JSON: what the dictionary of the compression can hold."""


class SourceChoice(IntEnum):
    """In brackets: the value."""

    END = 0
    """The source has ended (0)."""
    ROWS = 1
    """Rows of the batch in hand (how many)."""
    LAST_ROWS = 2
    """Rows of the batch in hand, which ends after them (how many)."""
    FIRST_PIECE = 3
    """The first bytes of an offset (how many, and which). Pieces of another one that came before do not count."""
    NEXT_PIECE = 4
    """The next bytes of an offset (as for the first)."""


END = int(SourceChoice.END)


def encode(kind: SourceChoice, value: int) -> int:
    """The number of a choice."""
    assert 0 <= value <= MAX_ROWS
    return value << _KIND_BITS | kind


def decode(choice: int) -> tuple[SourceChoice, int]:
    """The inverse of ``encode``."""
    return SourceChoice(choice & ((1 << _KIND_BITS) - 1)), choice >> _KIND_BITS


def piece_of(packed: bytes, at: int) -> int:
    """The value of the piece of ``packed`` that begins at byte ``at``."""
    piece = packed[at : at + PIECE_BYTES]
    return int.from_bytes(piece.ljust(PIECE_BYTES, b"\0"), "big") << 2 | len(piece)


def bytes_of(value: int) -> bytes:
    """The inverse: the bytes of a piece."""
    return (value >> 2).to_bytes(PIECE_BYTES, "big")[: value & 3]


def pack(offset: str, before: str) -> bytes:
    """An offset, as JSON, in few bytes. ``before``: the offset before it."""
    packer = zlib.compressobj(level=9, wbits=-15, zdict=before.encode())
    return packer.compress(offset.encode()) + packer.flush()


def unpack(packed: bytes, before: str) -> str:
    """The inverse of ``pack``. Raises ``InputError`` for what is no offset."""
    try:
        unpacker = zlib.decompressobj(wbits=-15, zdict=before.encode())
        return (unpacker.decompress(packed) + unpacker.flush()).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"an offset that was logged cannot be read: {error}") from error
