"""Record batches of all types, built and cut in all ways that may show in their buffers."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

TEXTS = ["", "a", "b", "bcd", "longer than what a view holds in itself", "ä"]
BLOBS = [text.encode() for text in TEXTS]
NAN, OTHER_NAN = struct.unpack("<2d", struct.pack("<2Q", 0x7FF8000000000000, 0x7FF8000000000001))

NESTED = ["list", "large", "fixed", "struct", "map", "dictionary"]
LEAVES: dict[pa.DataType, list[Any]] = {
    pa.null(): [],
    pa.bool_(): [True, False],
    pa.int8(): [0, 1, -128],
    pa.uint16(): [0, 1, 65_535],
    pa.int32(): [0, 1, -5],
    pa.int64(): [0, 1, -(2**63), 2**63 - 1],
    pa.float16(): [np.float16(0.5), np.float16(0)],
    pa.float32(): [0.0, -0.0, 2.5],
    pa.float64(): [0.0, -0.0, 1e300, NAN, OTHER_NAN],
    pa.timestamp("us"): [0, 7, -1],
    pa.timestamp("ms", tz="UTC"): [0, 1_700_000_000_000],
    pa.date32(): [0, 20_000],
    pa.time64("us"): [0, 1],
    pa.duration("s"): [0, 5],
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([0, 0, 0])],
    pa.decimal128(10, 2): [Decimal("0.00"), Decimal("-1.25")],
    pa.decimal256(50, 1): [Decimal("0.0"), Decimal("7.5")],
    pa.binary(0): [b""],
    pa.binary(3): [b"abc", b"\0\0\0"],
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.string_view(): TEXTS,
    pa.binary(): BLOBS,
    pa.large_binary(): BLOBS,
    pa.binary_view(): BLOBS,
}
COUNTED = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)


@st.composite
def dtypes(draw: st.DrawFn, depth: int = 2) -> pa.DataType:
    leaf = st.sampled_from(list(LEAVES))
    kind = draw(st.sampled_from(["leaf"] * 4 + NESTED * (depth > 0)))
    if kind == "leaf":
        return draw(leaf)
    if kind == "dictionary":
        return pa.dictionary(draw(st.sampled_from([pa.int8(), pa.int32(), pa.uint16()])), pa.string())
    if kind == "map":
        return pa.map_(pa.string(), draw(dtypes(depth - 1)))
    field = pa.field("item", draw(dtypes(depth - 1)))
    if kind == "struct":
        return pa.struct([field, pa.field("sure", pa.int32(), nullable=False), pa.field("b", pa.bool_())])
    make = {"list": pa.list_, "large": pa.large_list, "fixed": lambda item: pa.list_(item, 2)}
    return make[kind](field)


@st.composite
def value_of(draw: st.DrawFn, dtype: pa.DataType, nullable: bool = True) -> Any:
    if nullable and draw(st.integers(0, 3)) == 0:
        return None
    if pa.types.is_dictionary(dtype):
        return draw(st.sampled_from(TEXTS))
    if pa.types.is_map(dtype):
        names = draw(st.lists(st.sampled_from(TEXTS), max_size=2))
        return [(name, draw(value_of(dtype.item_type))) for name in names]
    if pa.types.is_fixed_size_list(dtype):
        return [draw(value_of(dtype.value_type)) for _ in range(dtype.list_size)]
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return draw(st.lists(value_of(dtype.value_type), max_size=3))
    if pa.types.is_struct(dtype):
        return {field.name: draw(value_of(field.type, field.nullable)) for field in dtype}
    return draw(st.sampled_from(LEAVES[dtype])) if LEAVES[dtype] else None


def array_of(values: list[Any], dtype: pa.DataType) -> pa.Array:
    return pa.array(values, dtype)


def columns_of(dtype: pa.DataType, most: int = 12) -> st.SearchStrategy[list[Any]]:
    return st.lists(value_of(dtype), max_size=most)


@st.composite
def built(draw: st.DrawFn, values: list[Any], dtype: pa.DataType) -> pa.Array:
    """An array of just these values, built and cut in some way."""
    before, behind = (draw(st.lists(value_of(dtype), max_size=9)) for _ in range(2))
    whole = [*before, *values, *behind]
    way = draw(st.sampled_from(["at once", "of parts", "under nulls", "of another table"]))
    if way == "of parts":
        at = draw(st.integers(0, len(whole)))
        array = pa.concat_arrays([array_of(whole[:at], dtype), array_of(whole[at:], dtype)])
    elif way == "under nulls":
        array = draw(with_something_under_nulls(whole, dtype))
    else:
        array = array_of(whole, dtype)
    if way == "of another table":
        table = pa.table({"v": array, "w": array}).slice(0, max(1, len(whole)))
        array = table.column(0).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.slice(len(before), len(values))


@st.composite
def with_something_under_nulls(draw: st.DrawFn, values: list[Any], dtype: pa.DataType) -> pa.Array:
    """Where there is a null, there is some value behind it all the same."""
    nulls = np.array([value is None for value in values], np.bool_)
    if pa.types.is_null(dtype):
        return array_of(values, dtype)
    filled = [draw(value_of(dtype, False)) if value is None else value for value in values]
    array = array_of(filled, dtype)
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    count = int(nulls.sum())
    if pa.types.is_dictionary(dtype):
        codes = pa.Array.from_buffers(dtype.index_type, len(values), [validity, array.indices.buffers()[1]], count)
        return pa.DictionaryArray.from_arrays(codes, array.dictionary)
    children, own = None, len(array.buffers())
    if pa.types.is_struct(dtype):
        children, own = [array.field(i) for i in range(dtype.num_fields)], 1
    elif pa.types.is_fixed_size_list(dtype):
        children, own = [array.values], 1
    elif dtype.num_fields:
        children, own = [array.values], 2
    return pa.Array.from_buffers(dtype, len(values), [validity, *array.buffers()[1:own]], count, 0, children)


def text(array: pa.Array) -> str:
    """What tells values, down to the bits of NaNs and zeros."""
    return repr(list(map(_bits, as_python(array))))


def as_python(array: pa.Array) -> list[Any]:
    if any(is_counted(array.type) for is_counted in COUNTED):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    return array.to_pylist()


def _bits(value: Any) -> Any:
    match value:
        case float():
            return struct.pack("<d", value)
        case dict():
            return {name: _bits(part) for name, part in value.items()}
        case list() | tuple():
            return [_bits(part) for part in value]
        case _:
            return value
