"""Small things done to record batches: decode, compact, cut.

A column may travel dictionary-encoded (see ``flinkplus.operators.base``); these functions are where that is undone or
tidied. All of them keep the rows and their order, and copy nothing that can be shared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.operators.base import MAX_OUTPUT_ROWS


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
