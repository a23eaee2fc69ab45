"""Helpers for record batches: decode, compact, cut, merge.

A column may travel dictionary-encoded (see ``flinkplus.operators.base.operator``); these functions decode or tidy it.
All of them keep the rows and their order, and share memory where they can.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.operators.base.operator import MAX_OUTPUT_ROWS

SMALL_ROWS = 512
"""Maximum rows of a small batch, which is plain: sharing repeated values costs more there than it saves."""
MAX_DECODED_BYTES = 1 << 20
"""Maximum size of a decoded column of a small batch; a larger one stays encoded."""
REMEMBERED_SCHEMAS = 16

Value = TypeVar("Value")


class SchemaMemo(Generic[Value]):
    """Caches ``make(schema)`` for the last few schemas: comparing schemas is cheaper than inspecting one."""

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


def holds_dictionary(dtype: pa.DataType) -> bool:
    """Whether a type, or a type within it, is dictionary-encoded."""
    inner = [dtype.field(i).type for i in range(dtype.num_fields)]
    return pa.types.is_dictionary(dtype) or any(holds_dictionary(part) for part in inner)


def _decoded_schema(schema: pa.Schema) -> pa.Schema | None:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    if any(holds_dictionary(field.type) for field in fields):
        return None
    return pa.schema(fields, schema.metadata)


decoded_schema_of = SchemaMemo(_decoded_schema)
"""The schema with plain columns only; ``None`` when a column has a nested dictionary."""
_has_dictionaries = SchemaMemo(lambda schema: any(pa.types.is_dictionary(field.type) for field in schema))


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """``batch`` with plain columns only; ``None`` when a column would exceed ``MAX_DECODED_BYTES``, or has a nested
    dictionary.
    """
    schema = decoded_schema_of(batch.schema)
    if schema is None:
        return None
    if schema.equals(batch.schema):
        return batch
    columns = batch.columns
    for position, column in enumerate(columns):
        if isinstance(column, pa.DictionaryArray):
            if not _decodes_small(column):
                return None
            columns[position] = column.dictionary.take(column.indices)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _decodes_small(column: pa.DictionaryArray) -> bool:
    """Whether it stays within the limit for sure, judged by the values alone: the size of its dictionary does not
    count.
    """
    dtype = column.type.value_type
    if pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype) or pa.types.is_fixed_size_binary(dtype):
        return True
    most = MAX_DECODED_BYTES // max(1, len(column))
    return _content_bytes(column.dictionary) <= most or _content_bytes(first_seen(column).dictionary) <= most


def _content_bytes(values: pa.Array) -> int:
    """Bytes of the texts; for other values the approximate size."""
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        if not len(values):
            return 0
        offsets = memoryview(values.buffers()[1]).cast("i")
        return offsets[values.offset + len(values)] - offsets[values.offset]
    return int(values.nbytes)


def merge(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of ``batches`` (at least one), in order, as one batch.

    The batches have the same logical schema. A column that is dictionary-encoded in any of them is so in the result;
    its dictionaries are united. The rows are copied, so use it for batches that are small together.
    """
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    same = all(batch.schema.equals(schema) for batch in batches[1:])
    if same and not _has_dictionaries(schema):
        return pa.concat_batches(batches)
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
    """``batch`` with exactly the types of ``schema``, for user functions and files.

    Columns are taken by position; names and types become those of ``schema``. A column that ``schema`` declares
    dictionary-encoded gets the dictionary of ``first_seen``. Raises ``pa.ArrowInvalid`` when a column cannot be cast
    without loss, ``ValueError`` when there are more or fewer columns.
    """
    if batch.num_columns != len(schema):
        raise ValueError(f"a batch of columns {batch.schema.names} does not fit the schema {schema.names}")
    if batch.schema.equals(schema) and not _has_dictionaries(schema):
        return batch
    columns = [plain_array(batch.column(i), field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """``array`` as ``dtype``, decoded when only ``array`` is dictionary-encoded."""
    if isinstance(array, pa.DictionaryArray):
        if array.type == dtype:
            return first_seen(array)
        array = array.dictionary.take(array.indices)
    return array if array.type == dtype else array.cast(dtype)


def cut(batch: pa.RecordBatch, max_rows: int = MAX_OUTPUT_ROWS) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of at most ``max_rows`` rows; no piece when it is empty."""
    for start in range(0, batch.num_rows, max_rows):
        yield batch.slice(start, max_rows)


def cut_at(batch: pa.RecordBatch, ends: Sequence[int]) -> list[pa.RecordBatch]:
    """``batch`` in pieces, perhaps empty ones; ``ends``: the row after each."""
    return [batch.slice(start, end - start) for start, end in pairwise([0, *ends])]


def dictionary_array(codes: npt.NDArray[np.int32], dictionary: pa.Array) -> pa.DictionaryArray:
    """``dictionary[code]`` for each code; codes are not checked."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), dictionary, safe=False)


def compact(array: pa.Array) -> pa.Array:
    """A dictionary-encoded array without unused entries, with int32 codes (nulls have a code of their own); others
    unchanged.

    The dictionary may hold equal values twice when the array's did; then they have different codes.
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


def first_seen(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values, with a dictionary of the distinct values in use, in order of first use; nulls are among the
    codes.
    """
    dtype, codes, dictionary = array.type, array.indices, array.dictionary
    with contextlib.suppress(
        pa.ArrowNotImplementedError
    ):  # of types that cannot be compared, equal values stay separate
        distinct = dictionary.dictionary_encode()
        codes, dictionary = distinct.indices.take(codes), distinct.dictionary
    used = codes.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        used.indices.cast(dtype.index_type), dictionary.take(used.dictionary), ordered=dtype.ordered
    )
