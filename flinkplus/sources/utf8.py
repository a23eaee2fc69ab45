"""Text columns that came from elsewhere: are they UTF-8, and what to do when they are not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def invalid_rows(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which rows of a column hold text that is not UTF-8; ``None`` when none does. Looks into lists."""
    try:
        array.validate(full=True)
        return None
    except pa.ArrowInvalid:
        pass
    bad = np.zeros(len(array), dtype=np.bool_)
    if _is_text(array.type):
        for row, text in enumerate(_as_bytes(array).to_pylist()):
            bad[row] = text is not None and first_invalid_byte(text) is not None
    elif pa.types.is_list(array.type):
        inner = invalid_rows(array.flatten())
        if inner is not None:
            bad[array.value_parent_indices().to_numpy()[inner]] = True
    return bad if bad.any() else None


def repaired(array: pa.Array) -> pa.Array:
    """The column with bytes that are not UTF-8 replaced, value by value, as ``bytes.decode("utf-8", "replace")``
    does.
    """
    if _is_text(array.type):
        texts = [None if text is None else text.decode(errors="replace") for text in _as_bytes(array).to_pylist()]
        return pa.array(texts, array.type)
    if pa.types.is_list(array.type):
        lengths = [0 if length is None else length for length in array.value_lengths().to_pylist()]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, repaired(array.flatten()), array.type, mask=array.is_null())
    return array


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _as_bytes(array: pa.Array) -> pa.Array:
    return array.cast(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary(), safe=False)


def first_invalid_byte(text: bytes) -> int | None:
    """Position of the first byte at which ``text`` is not UTF-8; ``None`` when it is."""
    try:
        text.decode()
        return None
    except UnicodeDecodeError as error:
        return error.start
