"""Text columns that came from elsewhere: are they UTF-8, and what to do when they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.operators.base.values import is_counted, numbers_of

# Values are taken apart with binaries for texts, and numbers for times: Python's own types have no year 10000.


def invalid_rows(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which rows of a column hold text that is not UTF-8, also in lists, structs and maps; ``None``: none does."""
    try:
        array.validate(full=True)
        return None
    except pa.ArrowInvalid:
        pass
    values = _as_bytes(array).to_pylist()
    bad = np.array([_is_bad(value, array.type) for value in values], dtype=np.bool_)
    return bad if bad.any() else None


def repaired(array: pa.Array) -> pa.Array:
    """The column with bytes that are not UTF-8 replaced, text by text, as ``bytes.decode("utf-8", "replace")`` does."""
    return pa.array([_decoded(value, array.type) for value in _as_bytes(array).to_pylist()], array.type)


def _is_bad(value: Any, dtype: pa.DataType) -> bool:
    """Whether a value, with bytes for its texts, holds a text that is not UTF-8."""
    try:
        _decoded(value, dtype, "strict")
        return False
    except UnicodeDecodeError:
        return True


def _decoded(value: Any, dtype: pa.DataType, errors: str = "replace") -> Any:
    """A value, with bytes for its texts, as it is with texts; ``errors`` as in ``bytes.decode``."""
    if value is None:
        return None
    if _is_text(dtype):
        return value.decode(errors=errors)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return [_decoded(element, dtype.value_type, errors) for element in value]
    if pa.types.is_map(dtype):
        return [(_decoded(key, dtype.key_type, errors), _decoded(item, dtype.item_type, errors)) for key, item in value]
    if pa.types.is_struct(dtype):
        return {field.name: _decoded(value[field.name], field.type, errors) for field in dtype}
    return value


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _as_bytes(array: pa.Array) -> pa.Array:
    return array.cast(_bytes_type(array.type), safe=False)


def _bytes_type(dtype: pa.DataType) -> pa.DataType:
    """``dtype`` with binaries for its texts, and integers for its dates and times."""
    if _is_text(dtype):
        return pa.large_binary() if pa.types.is_large_string(dtype) else pa.binary()
    if is_counted(dtype):
        return numbers_of(dtype)
    if pa.types.is_list(dtype):
        return pa.list_(_bytes_field(dtype.value_field))
    if pa.types.is_large_list(dtype):
        return pa.large_list(_bytes_field(dtype.value_field))
    if pa.types.is_map(dtype):
        return pa.map_(_bytes_field(dtype.key_field), _bytes_field(dtype.item_field))
    if pa.types.is_struct(dtype):
        return pa.struct([_bytes_field(field) for field in dtype])
    return dtype


def _bytes_field(field: pa.Field) -> pa.Field:
    return field.with_type(_bytes_type(field.type))


def first_invalid_byte(text: bytes) -> int | None:
    """Position of the first byte at which ``text`` is not UTF-8; ``None`` when it is."""
    try:
        text.decode()
        return None
    except UnicodeDecodeError as error:
        return error.start
