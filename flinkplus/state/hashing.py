"""Hashes of keys, and their key groups.

Rules:

- The hash depends on the key's bytes only. It has no seed, and is the same on every machine and in every version: all
  slots must route alike, also after a restore, and state files are sorted by it (``in_groups``).
- A key's group is its hash modulo ``max_parallelism`` (``protocol.vocabulary.key_groups`` says who owns it).
- All work is vectorised: a table gives the owner of each group.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate
from operator import mul
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.protocol.vocabulary.key_groups import owner_of

GROUP_BYTES = 2
_SIGN = np.uint64(1 << 63)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINALISER = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(33)
_ONE = np.uint64(1)
_BYTE, _HALF = np.uint64(255), np.uint64(32)
_BYTE_SHIFTS = (np.uint64(24), np.uint64(16), np.uint64(8))
_LONG_KEY = 4096
MAX_FEW_BYTES = 64
"""Maximum length of a key for which Python's integers are quicker than starting array operations."""
_MASK, _MIX = (1 << 64) - 1, int(_FINALISER)
_POWERS = np.cumprod(np.full(_LONG_KEY, _MULTIPLIER), dtype=np.uint64)

_FEW_POWERS: list[int] = _POWERS[:MAX_FEW_BYTES].tolist()
_FEW_SUMS = [0, *accumulate(_FEW_POWERS)]

Encoded: TypeAlias = "pa.BinaryArray | pa.LargeBinaryArray"


def offsets_and_data(array: Encoded) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets from 0, and exactly the bytes that they point into."""
    if not len(array):
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    _, offset_buffer, data_buffer = array.buffers()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    offsets = np.frombuffer(offset_buffer, dtype=width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def hash_keys(encoded: Encoded) -> npt.NDArray[np.uint64]:
    """A stable 64-bit hash of each key: a polynomial over its bytes, then mixed so that every bit depends on all.

    Keys longer than 4,096 bytes are first replaced by their BLAKE2b digest. It does not withstand deliberate
    collisions.
    """
    offsets, data = offsets_and_data(encoded)
    lengths = offsets[1:] - offsets[:-1]
    if len(data) > _LONG_KEY and lengths.max() > _LONG_KEY:
        keys = [key if len(key) <= _LONG_KEY else hashlib.blake2b(key).digest() for key in encoded.to_pylist()]
        return hash_keys(pa.array(keys, type=pa.binary()))
    width = int(lengths[0]) if len(lengths) else 0
    if len(data) == width * len(lengths) and (lengths == width).all():
        hashes = (data.reshape(len(lengths), width).astype(np.uint64) + _ONE) @ _POWERS[:width]  # modulo 2**64
    else:
        position = np.arange(len(data)) - offsets[:-1].repeat(lengths)
        sums = np.zeros(len(data) + 1, dtype=np.uint64)
        ((data.astype(np.uint64) + _ONE) * _POWERS[position]).cumsum(out=sums[1:])
        hashes = sums[offsets[1:]] - sums[offsets[:-1]]
    return _mixed(hashes)


def hash_numbers(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """``hash_keys(number_keys(numbers))``, without making the bytes."""
    ordered = numbers.view(np.uint64) ^ _SIGN
    high = ordered >> _HALF
    if len(high) and (high == high[0]).all():  # usual: numbers of one sign below 2**32
        high = high[:1]
    return _mixed(_polynomial(ordered, _POWERS[4:8]) + _polynomial(high, _POWERS[:4]))


def _polynomial(numbers: npt.NDArray[np.uint64], powers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The sum over the lower four bytes, the highest first, of a byte plus 1, times its power, modulo 2**64."""
    total = (numbers & _BYTE) * powers[3]
    for shift, power in zip(_BYTE_SHIFTS, powers, strict=False):
        total += (numbers >> shift & _BYTE) * power
    total += powers.sum()
    return total


def _mixed(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    hashes ^= hashes >> _SHIFT
    hashes *= _FINALISER
    hashes ^= hashes >> _SHIFT
    return hashes


def owners(parallelism: int, max_parallelism: int) -> npt.NDArray[np.unsignedinteger]:
    """The owner of each group."""
    table = [owner_of(group, parallelism, max_parallelism) for group in range(max_parallelism)]
    return np.array(table, dtype=small_unsigned(parallelism))


def group_numbers(hashes: npt.NDArray[np.uint64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The group of each hash."""
    if max_parallelism & (max_parallelism - 1) == 0:  # usual, and much cheaper than a division
        groups = hashes & np.uint64(max_parallelism - 1)
    else:
        groups = hashes % np.uint64(max_parallelism)
    return groups.view(np.int64)


def group_of(key: bytes, max_parallelism: int) -> int:
    """The group of one key: as ``group_numbers`` of ``hash_keys``, and cheaper for few."""
    if len(key) > MAX_FEW_BYTES:
        return int(group_numbers(hash_keys(pa.array([key], pa.binary())), max_parallelism)[0])
    hashed = sum(map(mul, key, _FEW_POWERS), _FEW_SUMS[len(key)]) & _MASK
    hashed = (hashed ^ hashed >> 33) * _MIX & _MASK
    return (hashed ^ hashed >> 33) % max_parallelism


def in_groups(keys: pa.LargeBinaryArray, max_parallelism: int) -> pa.LargeBinaryArray:
    """Each key behind its group (two bytes, big endian): the form in which the state of keys is sorted and stored."""
    groups = group_numbers(hash_keys(keys), max_parallelism).astype(">u2")
    offsets = np.arange(len(keys) + 1, dtype=np.int64) * GROUP_BYTES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(groups)]
    tagged = pa.Array.from_buffers(pa.large_binary(), len(keys), buffers)
    return pc.binary_join_element_wise(tagged, keys, pa.scalar(b"", pa.large_binary()))


def small_unsigned(count: int) -> type[np.unsignedinteger]:
    """The smallest type for numbers below ``count``: sorting 8 and 16 bits is linear."""
    return np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32
