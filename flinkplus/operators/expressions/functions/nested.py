"""Structs, arrays and maps: their parts, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.operators.expressions.bound import (
    Bound,
    RowValues,
    Values,
    applied,
    constant_of,
    derived,
    on_arrays,
)
from flinkplus.operators.expressions.casts import alike, cast
from flinkplus.operators.expressions.functions.registry import attempting, check, function
from flinkplus.operators.expressions.json_text import json_column, json_writer
from flinkplus.operators.expressions.types import normal, shown

INT, LONG = pa.int32(), pa.int64()


@function(".")
def field_of(value: Bound, name: Bound) -> Bound:
    """A field of a struct; of a map the value of a key that is text."""
    wanted = constant_of(name, "the name of a field", str)
    if pa.types.is_map(value.dtype):
        return element(value, name)
    check(value, pa.types.is_struct, "a struct")
    names = [field.name for field in value.dtype]
    if names.count(wanted) != 1:
        raise ConfigurationError(f"there is no field {wanted!r} among {names}{did_you_mean(wanted, names)}")
    position = names.index(wanted)
    dtype = normal(value.dtype.field(position).type)
    return applied(dtype, lambda values: _plain(pc.struct_field(values, [position]), dtype), value)


def _plain(values: Values, dtype: pa.DataType) -> Values:
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary.take(values.indices)
    return values if values.type == dtype else values.cast(dtype)


@function("[]", "getitem")
def element(value: Bound, key: Bound) -> Bound:
    """An element of an array, from 0, which must exist; the value of a key of a map, null without; a field."""
    if pa.types.is_struct(value.dtype):
        return field_of(value, key)
    if pa.types.is_map(value.dtype):
        return _of_map(value, key)
    check(value, pa.types.is_list, "an array, map or struct")
    return _of_array(value, key, first=0, strict=True)


@function("get")
def get(value: Bound, position: Bound) -> Bound:
    """As ``[]`` of an array, and null where there is no such element."""
    check(value, pa.types.is_list, "an array")
    return _of_array(value, position, first=0, strict=False)


@function("element_at")
def element_at(value: Bound, key: Bound) -> Bound:
    """As ``[]``, from 1, or from the end: -1."""
    if pa.types.is_map(value.dtype):
        return _of_map(value, key)
    check(value, pa.types.is_list, "an array or map")
    return _of_array(value, key, first=1, strict=True)


function("try_element_at")(attempting(element_at))


def _of_array(value: Bound, position: Bound, *, first: int, strict: bool) -> Bound:
    check(position, pa.types.is_integer, "a whole number as position")
    dtype = normal(value.dtype.value_type)

    def kernel(lists: pa.Array, positions: pa.Array) -> pa.Array:
        known = np.asarray(pc.and_(lists.is_valid(), positions.is_valid()))
        at = np.asarray(positions.fill_null(0))
        starts, counts = _spans(lists)
        if first and (at[known] == 0).any():
            raise IndexError("element_at counts from 1, or from the end: -1")
        at = np.where(at < 0, at + counts, at - 1) if first else at
        there = (at >= 0) & (at < counts)
        if strict and not there[known].all():
            raise IndexError("the array has no such element; get() gives null")
        return _plain(lists.values.take(pa.array(starts + at, LONG, mask=~(known & there))), dtype)

    return on_arrays(dtype, kernel, value, cast(position, LONG), fails=strict)


def _spans(lists: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each list begins in ``lists.values``, and its length."""
    offsets = np.asarray(lists.offsets).astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def _of_map(value: Bound, key: Bound) -> Bound:
    key_type, dtype = normal(value.dtype.key_type), normal(value.dtype.item_type)
    if pa.types.is_nested(key_type):
        raise ConfigurationError(f"a map with keys of type {shown(key_type)} cannot be searched")
    if key_type != key.dtype:
        key = cast(key, key_type)

    def kernel(maps: pa.Array, keys: pa.Array) -> pa.Array:
        starts, counts = _spans(maps)
        rows = np.repeat(np.arange(len(maps)), counts)
        entries = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(len(rows))
        same = pc.equal(_plain(maps.keys, key_type).take(pa.array(entries)), keys.take(pa.array(rows)))
        hits = np.flatnonzero(np.asarray(same.fill_null(False)))
        found = np.full(len(maps), -1, np.int64)
        found[rows[hits]] = entries[hits]
        found[~np.asarray(maps.is_valid())] = -1
        return _plain(maps.items.take(pa.array(found, LONG, mask=found < 0)), dtype)

    return on_arrays(dtype, kernel, value, key)


@function("size", "cardinality", "array_size")
def size(value: Bound) -> Bound:
    """The number of elements; null for null."""
    check(value, lambda dtype: pa.types.is_list(dtype) or pa.types.is_map(dtype), "an array or map")

    def kernel(lists: pa.Array) -> pa.Array:
        return pa.array(_spans(lists)[1], INT, mask=np.asarray(lists.is_null()))

    return on_arrays(INT, kernel, value)


@function("array_contains")
def array_contains(value: Bound, wanted: Bound) -> Bound:
    from flinkplus.operators.expressions.functions.logic import equal

    check(value, pa.types.is_list, "an array")
    dtype = normal(value.dtype.value_type)
    probe, wanted = alike("'array_contains'", Bound(dtype, lambda rows: rows.column(0, dtype)), wanted)
    other = wanted.dtype
    compare = equal(probe, Bound(other, lambda rows: rows.column(1, other)))

    def kernel(lists: pa.Array, sought: pa.Array) -> pa.Array:
        starts, counts = _spans(lists)
        counts = np.where(np.asarray(lists.is_valid()), counts, 0)
        rows = np.repeat(np.arange(len(lists)), counts)
        entries = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(len(rows))
        pairs = pa.RecordBatch.from_arrays(
            [_plain(lists.values, dtype).take(pa.array(entries)), sought.take(pa.array(rows))], names=["a", "b"]
        )
        same = compare.array(RowValues(pairs, lambda: 0))
        found, unknown = np.zeros(len(lists), np.bool_), np.zeros(len(lists), np.bool_)
        found[rows[np.asarray(same.fill_null(False))]] = True
        unknown[rows[np.asarray(same.is_null())]] = True
        nulls = np.asarray(pc.or_(lists.is_null(), sought.is_null())) | (unknown & ~found)
        return pa.array(found, pa.bool_(), mask=nulls)

    return on_arrays(pa.bool_(), kernel, value, wanted)


@function("map_keys")
def map_keys(value: Bound) -> Bound:
    check(value, pa.types.is_map, "a map")
    return _entries(value, value.dtype.key_type, "keys")


@function("map_values")
def map_values(value: Bound) -> Bound:
    check(value, pa.types.is_map, "a map")
    return _entries(value, value.dtype.item_type, "items")


def _entries(value: Bound, dtype: pa.DataType, which: str) -> Bound:
    lists = pa.list_(dtype)

    def kernel(maps: pa.Array) -> pa.Array:
        starts, counts = _spans(maps)
        counts = np.where(np.asarray(maps.is_valid()), counts, 0)
        ends = np.cumsum(counts)
        entries = np.repeat(starts - (ends - counts), counts) + np.arange(int(counts.sum()))
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        return pa.ListArray.from_arrays(
            offsets, getattr(maps, which).take(pa.array(entries)), type=lists, mask=maps.is_null()
        )

    return on_arrays(lists, kernel, value)


def struct_of(names: Sequence[str], values: Sequence[Bound]) -> Bound:
    """A struct of some values."""
    if len(set(names)) < len(names):
        raise ConfigurationError(f"a struct cannot have a field twice: {list(names)}")
    if not names:
        raise ConfigurationError("a struct needs at least one field")
    fields = [pa.field(name, value.dtype, value.nullable) for name, value in zip(names, values, strict=True)]

    def run(rows: RowValues) -> Values:
        return pa.StructArray.from_arrays([value.array(rows) for value in values], fields=fields)

    return derived(pa.struct(fields), run, tuple(values))


@function("named_struct")
def named_struct(*arguments: Bound) -> Bound:
    if not arguments or len(arguments) % 2:
        raise ConfigurationError("needs a name and a value for each field")
    return struct_of([constant_of(name, "the name of a field", str) for name in arguments[::2]], arguments[1::2])


@function("array")
def array(*arguments: Bound) -> Bound:
    if not arguments:
        raise ConfigurationError("needs at least one value")
    values = alike("'array'", *arguments)
    dtype = pa.list_(values[0].dtype)

    def run(rows: RowValues) -> Values:
        return _lists_of([value.array(rows) for value in values], dtype, rows.count)

    return derived(dtype, run, values)


def _woven(columns: Sequence[pa.Array], count: int) -> pa.Array:
    """The values of the columns, row by row."""
    order = np.arange(count * len(columns)).reshape(len(columns), count).T.ravel()
    return pa.concat_arrays(columns).take(pa.array(order))


def _offsets(width: int, count: int) -> pa.Array:
    return pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(width))


def _lists_of(columns: Sequence[pa.Array], dtype: pa.DataType, count: int) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(len(columns), count), _woven(columns, count), type=dtype)


@function("map", "create_map")
def map_of(*arguments: Bound) -> Bound:
    """A map of keys, which are constants, and values."""
    if not arguments or len(arguments) % 2:
        raise ConfigurationError("needs a value for each key")
    keys, values = alike("'map'", *arguments[::2]), alike("'map'", *arguments[1::2])
    known = [key.constant for key in keys if key.is_constant and key.constant is not None]
    if len(known) < len(keys) or len(set(known)) < len(known):
        raise ConfigurationError("the keys of a map must be different constants")
    dtype = pa.map_(keys[0].dtype, values[0].dtype)

    def run(rows: RowValues) -> Values:
        columns = [[one.array(rows) for one in half] for half in (keys, values)]
        woven = [_woven(half, rows.count) for half in columns]
        return pa.MapArray.from_arrays(_offsets(len(keys), rows.count), *woven, type=dtype)

    return derived(dtype, run, (*keys, *values))


@function("to_json")
def to_json(value: Bound) -> Bound:
    """A struct, array or map as JSON text; fields that are null are left out."""
    check(value, pa.types.is_nested, "a struct, array or map")
    if json_writer(value.dtype, with_nulls=False) is None:
        raise ConfigurationError(f"{shown(value.dtype)} has no form in JSON")
    return on_arrays(pa.string(), lambda values: json_column(values, with_nulls=False), value, fails=True)
