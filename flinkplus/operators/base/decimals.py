"""Decimals as integers: sums, comparisons and hashes use the *unscaled* value, which is exact.

The decimal 12.30 of scale 2 has the unscaled value 1230. Arrow keeps it in 16 bytes; a ``decimal32`` or ``decimal64``
is widened to that, and narrowed again for the result.

Rules, which are Spark SQL's:

- the sum of ``decimal(p, s)`` is a ``decimal(p + 10, s)``, and the mean a ``decimal(p + 4, s + 4)``, of at most 38
  digits;
- a result with more digits than its type has is an ``OverflowError``; means are rounded half up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAX_DIGITS = 38
WIDTH = 16
"""Bytes of an unscaled value."""
_WORDS = 2
_WORD_BITS = 64


def is_decimal(dtype: pa.DataType) -> bool:
    """Whether a type is a decimal of at most 38 digits."""
    return bool(pa.types.is_decimal(dtype)) and not pa.types.is_decimal256(dtype)


def sum_type(dtype: pa.DataType) -> pa.DataType:
    """The type of the sum of values of ``dtype``, a decimal type."""
    return pa.decimal128(min(dtype.precision + 10, MAX_DIGITS), dtype.scale)


def mean_type(dtype: pa.DataType) -> pa.DataType:
    """The type of the mean of values of ``dtype``, a decimal type."""
    return pa.decimal128(min(dtype.precision + 4, MAX_DIGITS), min(dtype.scale + 4, MAX_DIGITS))


def _words(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The low and the high 64 bits of each value; those of a null are undefined."""
    if not pa.types.is_decimal128(array.type):
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if not len(array):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    words = np.frombuffer(array.buffers()[1], "<i8", _WORDS * len(array), array.offset * WIDTH)
    return words[0::_WORDS], words[1::_WORDS]


def unscaled(array: pa.Array) -> np.ndarray:
    """The unscaled value of each decimal: int64 where all of them fit, otherwise Python's integers. A null is 0."""
    low, high = _words(array)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        low, high = np.where(valid, low, 0), np.where(valid, high, 0)
    if (high == low >> (_WORD_BITS - 1)).all():
        return low
    return high.astype(object) * (1 << _WORD_BITS) + np.ascontiguousarray(low).view(np.uint64).astype(object)


def from_unscaled(values: Sequence[Any] | np.ndarray, dtype: pa.DataType, null: np.ndarray | None = None) -> pa.Array:
    """Decimals of ``dtype`` with these unscaled values, or null. Raises ``OverflowError`` for too many digits."""
    numbers = values if isinstance(values, np.ndarray) else np.array(values, dtype=object)
    limit = 10**dtype.precision
    for number in (numbers.min(), numbers.max()) if len(numbers) else ():
        if abs(int(number)) >= limit:
            raise OverflowError(f"a {dtype} has {dtype.precision} digits")
    if numbers.dtype == np.int64:
        words = np.empty((len(numbers), _WORDS), "<i8")
        words[:, 0], words[:, 1] = numbers, numbers >> (_WORD_BITS - 1)
        data = pa.py_buffer(words)
    else:
        data = pa.py_buffer(b"".join(int(number).to_bytes(WIDTH, "little", signed=True) for number in numbers))
    validity = None if null is None or not null.any() else pa.array(~null).buffers()[1]
    wide = pa.decimal128(dtype.precision, dtype.scale)
    decimals = pa.Array.from_buffers(wide, len(numbers), [validity, data])
    return decimals if dtype == wide else decimals.cast(dtype)


def ordered_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """16 bytes for each decimal, in the order of the values; arbitrary for a null."""
    low, high = _words(array)
    words = np.empty((len(array), _WORDS), ">u8")
    words[:, 0] = high.astype(np.int64).view(np.uint64) ^ np.uint64(1 << (_WORD_BITS - 1))
    words[:, 1] = np.ascontiguousarray(low, np.int64).view(np.uint64)
    return words.view(np.uint8).reshape(len(array), WIDTH)


def means(sums: pa.Array, counts: npt.NDArray[np.int64], dtype: pa.DataType) -> pa.Array:
    """Each sum by its count, rounded half up to the scale of ``dtype``; null for count 0. Raises ``OverflowError``."""
    shift = 10 ** (dtype.scale - sums.type.scale)
    quotients = []
    for total, count in zip(unscaled(sums).tolist(), counts.tolist(), strict=True):
        quotient, rest = divmod(abs(total) * shift, max(count, 1))
        quotient += 2 * rest >= max(count, 1)
        quotients.append(-quotient if total < 0 else quotient)
    return from_unscaled(quotients, dtype, counts == 0)
