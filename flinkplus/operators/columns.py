"""Small things done to record batches: decode, compact, cut.

A column may travel dictionary-encoded (see ``flinkplus.operators.base``); these functions are where that is undone or
tidied. All of them keep the rows and their order, and copy nothing that can be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.operators.base import MAX_OUTPUT_ROWS

SMALL_ROWS = 512
"""Batches of up to so many rows are better plain: to share repeated values costs more there than it saves."""
MAX_DECODED_BYTES = 1 << 20
"""A column is decoded for being in a small batch only when it is not larger than this then."""
REMEMBERED_SCHEMAS = 16

Value = TypeVar("Value")


class SchemaMemo(Generic[Value]):
    """``make(schema)``, kept for the last few schemas: to compare schemas costs less than to ask one anything."""

    def __init__(self, make: Callable[[pa.Schema], Value]) -> None:
        self._make = make
        self._known: list[tuple[pa.Schema, Value]] = []

    def __call__(self, schema: pa.Schema) -> Value:
        for known, value in self._known:
            if known.equals(schema, check_metadata=True):
                return value
        value = self._make(schema)
        self._known = [(schema, value), *self._known[: REMEMBERED_SCHEMAS - 1]]  # replaced, never changed: any thread
        return value


def _holds_dictionary(dtype: pa.DataType) -> bool:
    inner = [dtype.field(i).type for i in range(dtype.num_fields)]
    return pa.types.is_dictionary(dtype) or any(_holds_dictionary(part) for part in inner)


def _decoded_schema(schema: pa.Schema) -> pa.Schema | None:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    if any(_holds_dictionary(field.type) for field in fields):
        return None
    return pa.schema(fields, schema.metadata)


_decoded_schema_of = SchemaMemo(_decoded_schema)


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """``batch`` with plain columns only; ``None`` when one of them would be larger than ``MAX_DECODED_BYTES`` for
    that, or holds a dictionary deeper inside.
    """
    schema = _decoded_schema_of(batch.schema)
    if schema is None:
        return None
    if schema.equals(batch.schema):
        return batch
    columns = batch.columns
    for position, column in enumerate(columns):
        if isinstance(column, pa.DictionaryArray):
            if len(column) * column.dictionary.nbytes > MAX_DECODED_BYTES and not _decodes_small(column):
                return None
            columns[position] = column.dictionary.take(column.indices)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _decodes_small(column: pa.DictionaryArray) -> bool:
    used = compact(column)  # of a part of a large batch there may be a large dictionary and few rows
    if pa.types.is_fixed_size_binary(used.dictionary.type) or pa.types.is_primitive(used.dictionary.type):
        return True
    return bool(len(used) * used.dictionary.nbytes <= MAX_DECODED_BYTES)


def merge(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of ``batches`` (at least one), in order, as one batch.

    The batches have the same logical schema. A column that is dictionary-encoded in any of them is so in the result;
    its dictionaries are united. The rows are copied, so keep it to batches that are small together.
    """
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    same = all(batch.schema.equals(schema) for batch in batches[1:])
    columns = []
    for position, field in enumerate(schema):
        arrays = [batch.column(position) for batch in batches]
        if not same or pa.types.is_dictionary(field.type):
            arrays = _alike(arrays)
        columns.append(pa.concat_arrays(arrays))
    if [column.type for column in columns] != schema.types:
        fields = [field.with_type(column.type) for field, column in zip(schema, columns, strict=True)]
        schema = pa.schema(fields, schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _alike(arrays: list[pa.Array]) -> list[pa.Array]:
    """Arrays of one logical type in a form that can be concatenated: all dictionary-encoded when one is."""
    if not any(isinstance(array, pa.DictionaryArray) for array in arrays):
        return arrays
    alike: list[pa.Array] = []
    for is_encoded, group in groupby(arrays, lambda array: isinstance(array, pa.DictionaryArray)):
        run = list(group)
        alike += map(_unitable, run) if is_encoded else [pa.concat_arrays(run).dictionary_encode()]
    return alike


def _unitable(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values with int32 codes, and nulls among the codes: a dictionary with a null cannot be united."""
    codes, dictionary = array.indices, array.dictionary
    if dictionary.null_count:
        is_null = dictionary.is_null().to_numpy(zero_copy_only=False)
        codes = pa.array(np.cumsum(~is_null, dtype=np.int32) - 1, pa.int32(), mask=is_null).take(codes)
        dictionary = dictionary.drop_null()
    elif codes.type == pa.int32():
        return array
    return pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), dictionary)


def plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``batch`` with exactly the plain types of ``schema``, for user functions and files.

    Columns are taken by position; names and types become those of ``schema``. Raises ``pa.ArrowInvalid`` when a
    column cannot be cast without loss, ``ValueError`` when there are more or fewer columns.
    """
    if batch.num_columns != len(schema):
        raise ValueError(f"a batch of columns {batch.schema.names} does not fit the schema {schema.names}")
    if batch.schema.equals(schema):
        return batch
    columns = [plain_array(batch.column(i), field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """``array`` as ``dtype``, decoded when it is dictionary-encoded."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary.take(array.indices)
    return array if array.type == dtype else array.cast(dtype)


def cut(batch: pa.RecordBatch, max_rows: int = MAX_OUTPUT_ROWS) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of at most ``max_rows`` rows; nothing when it is empty."""
    for start in range(0, batch.num_rows, max_rows):
        yield batch.slice(start, max_rows)


def dictionary_array(codes: npt.NDArray[np.int32], dictionary: pa.Array) -> pa.DictionaryArray:
    """``dictionary[code]`` for each code; that the codes are positions in it is not checked."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), dictionary, safe=False)


def compact(array: pa.Array) -> pa.Array:
    """A dictionary-encoded array with int32 codes, one of them for null where there are nulls, and no entry in its
    dictionary that no row uses; any other array as it is.

    The dictionary may hold equal values twice when the array's did; then the codes tell them apart.
    """
    if not isinstance(array, pa.DictionaryArray):
        return array
    dictionary, indices = array.dictionary, array.indices
    tidy = not indices.null_count and indices.type == pa.int32()
    if indices.null_count:
        indices = indices.fill_null(len(dictionary))
        dictionary = pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)])
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    used = np.zeros(len(dictionary), dtype=np.bool_)
    used[codes] = True
    if used.all():
        return array if tidy else dictionary_array(codes, dictionary)
    members = np.flatnonzero(used)
    new_code = np.zeros(len(dictionary), dtype=np.int32)
    new_code[members] = np.arange(len(members), dtype=np.int32)
    return dictionary_array(new_code[codes], dictionary.take(pa.array(members)))


def settled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch, and what is under its nulls is nothing: so equal batches have equal bytes.

    Columns within columns are left as they are.
    """
    if not any(column.null_count for column in batch.columns):
        return batch
    columns = [_settled(column) if column.null_count else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _settled(column: pa.Array) -> pa.Array:
    dtype = column.type
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(_settled(column.indices), column.dictionary, safe=False)
    if pa.types.is_nested(dtype) or pa.types.is_null(dtype):
        return column
    valid = column.is_valid()
    if pa.types.is_boolean(dtype):
        buffers = column.fill_null(False).buffers()
    elif pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype) or pa.types.is_fixed_size_binary(dtype):
        width = dtype.bit_width // 8
        found = np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
        values = found.reshape(len(column), width).copy()
        values[~valid.to_numpy(zero_copy_only=False)] = 0
        buffers = [None, pa.py_buffer(values)]
    elif dtype in (pa.string(), pa.large_string()):
        buffers = column.fill_null("").buffers()
    elif dtype in (pa.binary(), pa.large_binary()):
        buffers = column.fill_null(b"").buffers()
    else:
        return column
    return pa.Array.from_buffers(dtype, len(column), [valid.buffers()[1], *buffers[1:]], column.null_count)
