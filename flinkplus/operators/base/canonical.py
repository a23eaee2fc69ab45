"""The canonical form of a record batch: equal batches have equal bytes in it, however they were built.

Batches that are sent, and those handed over within a slot, are in this form. So a batch's digest depends on its rows
only, and a subtask receives the same batch whether its neighbour is in its slot or not.

Rules:

- the rows and the schema stay, except for dictionary-encoded columns of small batches, which become plain;
- buffers end with the last row, have zeros or nothing under a null, and have no validity where no value is null (bytes
  before the first row may stay: no result contains them);
- numbers keep their bits: ``0.0`` and ``-0.0``, and NaNs of different bits, are different;
- a dictionary-encoded column of a large batch keeps its dictionary and its order: both follow from the rows, since
  operators are deterministic, and recomputing them would cost many times what a digest does;
- list views, unions and run-end-encoded columns are unchanged: an invisible difference there may cost a rollback.

A column that is already in this form is not copied; one that is only too long is sliced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.operators.base.columns import SMALL_ROWS, SchemaMemo, decoded, first_seen

Form = Callable[[pa.Array], pa.Array]
Bits = npt.NDArray[np.bool_]
Rebuild = Callable[[pa.Array, Bits | None], pa.Array]
"""Rebuilds an array, row by row. The second argument marks rows under a null of the enclosing array, which become nulls
where the field is nullable.
"""
Parts = tuple[list[pa.Buffer | None], list[pa.Array] | None]
"""An array's buffers except for its validity, and its children."""
Make = Callable[[pa.Array, Bits | None], Parts]
"""Rebuilds the values of an array, empty or zero where it has nulls."""

_TEXT = {pa.string(): 4, pa.binary(): 4, pa.large_string(): 8, pa.large_binary(): 8}
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
_OFFSET = {4: (struct.Struct("<i"), np.int32), 8: (struct.Struct("<q"), np.int64)}


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` in the canonical form."""
    if batch.num_rows <= SMALL_ROWS:
        small = decoded(batch)
        batch = _ordered(batch) if small is None else small
    columns, schema, changed = batch.columns, batch.schema, False
    for at, form in enumerate(_forms_of(schema)):
        column = columns[at]
        formed = form(column)
        if formed is not column:
            columns[at], changed = formed, True
    return pa.RecordBatch.from_arrays(columns, schema=schema) if changed else batch


def _ordered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A small batch that cannot be decoded, with dictionaries in the order of its rows."""
    columns = [first_seen(column) if isinstance(column, pa.DictionaryArray) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


_forms_of = SchemaMemo(lambda schema: [_form_of(field.type) for field in schema])


def _form_of(dtype: pa.DataType) -> Form:
    """The conversion of columns of this type."""
    if _is_fixed(dtype):
        return _fixed(dtype, dtype.byte_width)
    if dtype in _TEXT:
        return _text(dtype, _TEXT[dtype])
    if pa.types.is_dictionary(dtype):
        return _dictionary(dtype)
    rebuild = _rebuild(dtype)
    return lambda column: rebuild(column, None)


def is_cut_by_writing(dtype: pa.DataType) -> bool:
    """Whether Arrow IPC writes a column of this type, without nulls, as the same bytes before and after ``canonical``.

    It cuts off what is before the rows, and after them up to a multiple of eight bytes, of any slice that does not
    begin where its buffer begins.
    """
    return _is_fixed(dtype) and dtype.byte_width % 8 == 0


def _is_fixed(dtype: pa.DataType) -> bool:
    is_number = pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype)
    return (is_number or pa.types.is_fixed_size_binary(dtype)) and not pa.types.is_boolean(dtype)


# --- columns that mostly are in this form, or only have to be cut


def _fixed(dtype: pa.DataType, width: int) -> Form:
    rebuild = _rebuild(dtype)

    def form(column: pa.Array) -> pa.Array:
        rows, at = len(column), column.offset
        if column.null_count or not rows:
            return rebuild(column, None)
        validity, values = column.buffers()
        if validity is None and values.size == (at + rows) * width:
            return column
        return pa.Array.from_buffers(dtype, rows, [None, values.slice(at * width, rows * width)], 0)

    return form


def _text(dtype: pa.DataType, width: int) -> Form:
    rebuild, offset = _rebuild(dtype), _OFFSET[width][0].unpack_from

    def form(column: pa.Array) -> pa.Array:
        rows, at = len(column), column.offset
        if column.null_count or not rows:
            return rebuild(column, None)
        validity, offsets, text = column.buffers()
        (end,) = offset(offsets, (at + rows) * width)
        if validity is None and offsets.size == (at + rows + 1) * width and (text is None or text.size == end):
            return column
        offsets = offsets.slice(at * width, (rows + 1) * width)
        return pa.Array.from_buffers(dtype, rows, [None, offsets, None if text is None else text.slice(0, end)], 0)

    return form


def _dictionary(dtype: pa.DictionaryType) -> Form:
    form_codes, form_values = _form_of(dtype.index_type), _form_of(dtype.value_type)

    def form(column: pa.DictionaryArray) -> pa.Array:
        codes, values = column.indices, column.dictionary
        formed_codes, formed_values = form_codes(codes), form_values(values)
        if formed_codes is codes and formed_values is values:
            return column
        return pa.DictionaryArray.from_arrays(formed_codes, formed_values, ordered=dtype.ordered, safe=False)

    return form


# --- columns with nulls, and columns in columns


def _rebuild(dtype: pa.DataType, nullable: bool = True) -> Rebuild:
    """The conversion of arrays of this type. A hidden value of a field that is not nullable becomes empty or zero."""
    if isinstance(dtype, pa.BaseExtensionType):
        stored = _rebuild(dtype.storage_type, nullable)
        return lambda column, hidden: pa.ExtensionArray.from_storage(dtype, stored(column.storage, hidden))
    if dtype in _VIEWS:
        text = _VIEWS[dtype]
        as_text = _rebuild(text, nullable)
        return lambda column, hidden: as_text(column.cast(text), hidden).cast(dtype)
    if pa.types.is_null(dtype):
        return lambda column, hidden: pa.nulls(len(column))
    if pa.types.is_dictionary(dtype):
        return _inner_dictionary(dtype)
    make = _make(dtype)
    if make is None:
        return lambda column, hidden: column

    def rebuild(column: pa.Array, hidden: Bits | None) -> pa.Array:
        rows = len(column)
        nulls = None
        if column.null_count:
            nulls = ~_unpacked(column.buffers()[0], column.offset, rows)
        shown = nullable or nulls is not None
        if hidden is not None and hidden.any():
            nulls = hidden if nulls is None else nulls | hidden
        buffers, children = make(column, nulls)
        if nulls is None or not shown:
            return pa.Array.from_buffers(dtype, rows, [None, *buffers], 0, 0, children)
        return pa.Array.from_buffers(dtype, rows, [_packed(~nulls), *buffers], int(nulls.sum()), 0, children)

    return rebuild


def _inner_dictionary(dtype: pa.DictionaryType) -> Rebuild:
    form = _dictionary(dtype)

    def rebuild(column: pa.DictionaryArray, hidden: Bits | None) -> pa.Array:
        if hidden is not None and hidden.any():
            codes = pc.if_else(pa.array(hidden), pa.scalar(None, dtype.index_type), column.indices)
            column = pa.DictionaryArray.from_arrays(codes, column.dictionary, ordered=dtype.ordered, safe=False)
        return form(first_seen(column))

    return rebuild


def _make(dtype: pa.DataType) -> Make | None:
    if pa.types.is_boolean(dtype):
        return _booleans
    if _is_fixed(dtype):
        return _numbers(dtype.byte_width)
    if dtype in _TEXT:
        return _texts(_TEXT[dtype])
    if pa.types.is_list(dtype) or pa.types.is_map(dtype):
        return _lists(dtype, 4)
    if pa.types.is_large_list(dtype):
        return _lists(dtype, 8)
    if pa.types.is_fixed_size_list(dtype):
        return _lists_of_one_size(dtype)
    if pa.types.is_struct(dtype):
        return _structs(dtype)
    return None


def _unpacked(bits: pa.Buffer, at: int, count: int) -> Bits:
    first, skipped = divmod(at, 8)
    packed = np.frombuffer(bits, np.uint8, (skipped + count + 7) // 8, first)
    return np.unpackbits(packed, count=skipped + count, bitorder="little")[skipped:].view(np.bool_)


def _packed(bits: Bits) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _cut(buffer: pa.Buffer | None, at: int, size: int) -> pa.Buffer:
    return pa.py_buffer(b"") if buffer is None else buffer.slice(at, size)


def _booleans(column: pa.Array, nulls: Bits | None) -> Parts:
    if not len(column):
        return [pa.py_buffer(b"")], None
    bits = _unpacked(column.buffers()[1], column.offset, len(column))
    return [_packed(bits if nulls is None else bits & ~nulls)], None


def _numbers(width: int) -> Make:
    def make(column: pa.Array, nulls: Bits | None) -> Parts:
        rows = len(column)
        values = _cut(column.buffers()[1], column.offset * width, rows * width)
        if nulls is not None and width:
            found = np.frombuffer(values, np.uint8).reshape(rows, width).copy()
            found[nulls] = 0
            values = pa.py_buffer(found)
        return [values], None

    return make


def _spans(column: pa.Array, width: int, nulls: Bits | None) -> tuple[pa.Buffer, int, int, Bits | None]:
    """For consecutive texts or lists: offsets from 0 (nulls are empty), first and end of their content, kept part
    (``None``: all).
    """
    rows, number = len(column), _OFFSET[width][1]
    if not rows:
        return pa.py_buffer(np.zeros(1, number)), 0, 0, None
    offsets = np.frombuffer(column.buffers()[1], number, rows + 1, column.offset * width)
    first, end = int(offsets[0]), int(offsets[-1])
    kept = None
    if nulls is not None:
        lengths = np.diff(offsets)
        if lengths[nulls].any():
            kept = np.repeat(~nulls, lengths)
            lengths[nulls] = 0
            offsets = np.concatenate([np.zeros(1, number), np.cumsum(lengths, dtype=number)])
            return pa.py_buffer(offsets), first, end, kept
    return pa.py_buffer(offsets - number(first)), first, end, kept


def _texts(width: int) -> Make:
    def make(column: pa.Array, nulls: Bits | None) -> Parts:
        offsets, first, end, kept = _spans(column, width, nulls)
        text = _cut(column.buffers()[2], first, end - first)
        if kept is not None:
            text = pa.py_buffer(np.frombuffer(text, np.uint8)[kept])
        return [offsets, text], None

    return make


def _lists(dtype: pa.DataType, width: int) -> Make:
    item = dtype.field(0)
    rebuild = _rebuild(item.type, item.nullable)

    def make(column: pa.Array, nulls: Bits | None) -> Parts:
        offsets, first, end, kept = _spans(column, width, nulls)
        items = column.values.slice(first, end - first)
        if kept is not None:
            bounds = np.flatnonzero(np.diff(kept, prepend=False, append=False)).tolist()
            runs = [items.slice(at, to - at) for at, to in zip(bounds[::2], bounds[1::2], strict=True)]
            items = pa.concat_arrays(runs) if runs else items.slice(0, 0)
        return [offsets], [rebuild(items, None)]

    return make


def _lists_of_one_size(dtype: pa.DataType) -> Make:
    size, item = dtype.list_size, dtype.field(0)
    rebuild = _rebuild(item.type, item.nullable)

    def make(column: pa.Array, nulls: Bits | None) -> Parts:
        items = column.values.slice(column.offset * size, len(column) * size)
        return [], [rebuild(items, None if nulls is None else np.repeat(nulls, size))]

    return make


def _structs(dtype: pa.DataType) -> Make:
    fields = [dtype.field(at) for at in range(dtype.num_fields)]
    rebuilds = [_rebuild(field.type, field.nullable) for field in fields]

    def make(column: pa.Array, nulls: Bits | None) -> Parts:
        return [], [rebuild(column.field(at), nulls) for at, rebuild in enumerate(rebuilds)]

    return make
