"""What windows keep of rows: tables of record batches, which are cut by slice, stored apart and merged.

A ``Bundle`` is the rows of one input batch with their keys and slices. A ``KeptTable`` reduces a bundle to rows of
its own, and merges such rows. ``PartialTable`` has one row for each key, with the partials of aggregates; the tables of
rows have many.

Rules:

- the first column, ``key``, has the bytes of the key;
- merging keeps the order of rows where it matters, or the rows have times that do;
- the result of merging does not depend on which rows were merged before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import UserFunctionError
from flinkplus.operators.base.columns import plain, plain_array
from flinkplus.operators.base.keys import KeyCodes, encode_keys
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.keyed.aggregates import Aggregate, Groups
from flinkplus.operators.keyed.conditions import Conditions, Where
from flinkplus.state.hashing import small_unsigned

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

KEY, TIME = "key", "time"
_KEY = pa.field(KEY, pa.binary())


class Bundle:
    """Rows with their event times, distinct keys and slices; there is at least one.

    ``slices``: the starts of their slices, ascending. ``slice_codes``: of each row, its position there.
    """

    def __init__(
        self, batch: pa.RecordBatch, times: Integers, starts: Integers, keys: Sequence[str], conditions: Conditions
    ) -> None:
        self.batch = batch
        self.times = times
        self._keys, self._conditions = keys, conditions
        self.key: KeyCodes = encode_keys(batch, keys).made_distinct()
        if starts[0] == starts[-1] and (starts == starts[0]).all():
            self.slices = starts[:1]
            self.slice_codes: Integers = np.zeros(len(starts), np.int64)
        else:
            self.slices, self.slice_codes = np.unique(starts, return_inverse=True)
        self._passing = conditions.on(batch)

    def only(self, rows: Flags) -> Bundle:
        """Some of the rows, at least one."""
        starts = self.slices[self.slice_codes[rows]]
        return Bundle(self.batch.filter(pa.array(rows)), self.times[rows], starts, self._keys, self._conditions)

    @cached_property
    def groups(self) -> Groups:
        """The rows by slice and key."""
        keys = len(self.key.encoded)
        codes = self.key.codes if len(self.slices) == 1 else self.slice_codes * keys + self.key.codes
        most = keys * len(self.slices)
        return Groups.of(codes.astype(small_unsigned(most)) if most <= 1 << 32 else codes)  # few bits are sorted faster

    def passed(self, where: Where | None) -> Flags | None:
        """Which rows pass ``where``; ``None``: all."""
        return self._passing.of(where)

    def keys_of(self, rows: Integers) -> pa.Array:
        """The bytes of the keys of rows."""
        return self.key.encoded.take(pa.array(self.key.codes[rows]))

    def bounds(self, rows: Integers) -> list[int]:
        """Where each slice begins in ``rows``, which are in the order of slices, and where the last one ends."""
        bounds: list[int] = np.searchsorted(self.slice_codes[rows], np.arange(len(self.slices) + 1)).tolist()
        return bounds


class KeptTable(ABC):
    """``suffix``: what follows the operator's name in the name of its state."""

    schema: pa.Schema

    def __init__(self, suffix: str, schema: pa.Schema) -> None:
        self.suffix = suffix
        self.schema = schema

    @abstractmethod
    def reduced(self, bundle: Bundle) -> tuple[pa.RecordBatch, list[int]]:
        """The table's rows of a bundle, by slice, and where each slice begins and the last one ends."""

    @abstractmethod
    def merge(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        """The rows of several parts, oldest first, as one."""

    def _batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), schema=self.schema)


def concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all parts, which have one schema."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class _OneRowTable(KeptTable):
    """A table with one row for each key."""

    def _groups(self, whole: pa.RecordBatch) -> Groups:
        return Groups.of(whole.column(0).dictionary_encode().indices.to_numpy().astype(np.int64))


class PartialTable(_OneRowTable):
    """The key columns and the partials of aggregates, for each key."""

    def __init__(self, ctx: OperatorContext, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> None:
        self._ctx = ctx
        self._keys = keys
        self._aggregates = aggregates
        self._types = [aggregate.partial_types(ctx.input_schema) for aggregate in aggregates]
        super().__init__("", partials_schema(ctx.input_schema, keys, aggregates))

    @override
    def reduced(self, bundle: Bundle) -> tuple[pa.RecordBatch, list[int]]:
        batch, groups = bundle.batch, bundle.groups
        firsts = groups.firsts
        rows = pa.array(firsts)
        columns = [bundle.keys_of(firsts)]
        for at, name in enumerate(self._keys):
            columns.append(plain_array(batch.column(name).take(rows), self.schema.field(1 + at).type))
        try:
            for aggregate, types in zip(self._aggregates, self._types, strict=True):
                columns += aggregate.first(batch, groups, types, bundle.times, bundle.passed(aggregate.where))
        except (OverflowError, pa.ArrowInvalid) as error:
            raise self.too_large(error) from error
        return self._batch(columns), bundle.bounds(firsts)

    @override
    def merge(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        whole = concatenated(parts)
        groups = self._groups(whole)
        rows = pa.array(groups.firsts)
        columns = [whole.column(at).take(rows) for at in range(1 + len(self._keys))]
        try:
            for aggregate, partial in self.partials(whole):
                columns += aggregate.merge(partial, groups)
        except OverflowError as error:
            raise self.too_large(error) from error
        return self._batch(columns)

    def partials(self, rows: pa.RecordBatch) -> Iterator[tuple[Aggregate, list[pa.Array]]]:
        """The aggregates, each with the columns of its partial."""
        at = 1 + len(self._keys)
        for aggregate, types in zip(self._aggregates, self._types, strict=True):
            yield aggregate, rows.columns[at : at + len(types)]
            at += len(types)

    def too_large(self, error: Exception) -> UserFunctionError:
        """The error for a sum or a mean that is too large for its type."""
        sums = ", ".join(repr(a.column) for a in self._aggregates if a.column is not None)
        cause = f"an aggregate is too large: beyond 64 bits, or beyond the digits of its decimal type ({error})"
        return UserFunctionError(self._ctx.operator, self._ctx.subtask, f"rows of a window, column {sums}", cause)


def partials_schema(schema: pa.Schema, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Schema:
    """The columns of a ``PartialTable`` for an input of ``schema``."""
    fields = [_KEY, *(pa.field(f"key {at}", schema.field(key).type) for at, key in enumerate(keys))]
    for at, aggregate in enumerate(aggregates):
        types = aggregate.partial_types(schema)
        fields += [pa.field(f"aggregate {at} {part}", dtype) for part, dtype in enumerate(types)]
    return pa.schema(fields)


class SpanTable(_OneRowTable):
    """The times of the first and the last row of each key."""

    def __init__(self) -> None:
        times = [pa.field(name, pa.int64()) for name in ("first", "last")]
        super().__init__("#spans", pa.schema([_KEY, *times]))

    @override
    def reduced(self, bundle: Bundle) -> tuple[pa.RecordBatch, list[int]]:
        groups = bundle.groups
        rows = groups.firsts
        spans = self._spans(groups, bundle.times, bundle.times)
        return self._batch([bundle.keys_of(rows), *spans]), bundle.bounds(rows)

    @override
    def merge(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        whole = concatenated(parts)
        groups = self._groups(whole)
        spans = self._spans(groups, *(whole.column(at).to_numpy() for at in (1, 2)))
        return self._batch([whole.column(0).take(pa.array(groups.firsts)), *spans])

    def _spans(self, groups: Groups, first: Integers, last: Integers) -> list[pa.Array]:
        least = np.minimum.reduceat(first[groups.order], groups.starts)
        return [pa.array(least), pa.array(np.maximum.reduceat(last[groups.order], groups.starts))]


class _ManyRowsTable(KeptTable):
    """A table of those rows of the input that pass a condition and have a value in ``column``, by slice."""

    def __init__(self, suffix: str, schema: pa.Schema, column: str | None = None, where: Where | None = None) -> None:
        super().__init__(suffix, schema)
        self._column = column
        self._where = where

    def _rows(self, bundle: Bundle) -> Integers:
        counted = bundle.passed(self._where)
        if self._column is not None:
            column = bundle.batch.column(self._column)
            if isinstance(column, pa.DictionaryArray):
                column = column.dictionary.take(column.indices)
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            counted = valid if counted is None else counted & valid
        rows = np.arange(len(bundle.slice_codes)) if counted is None else np.flatnonzero(counted)
        if len(bundle.slices) == 1:
            return rows
        return rows[np.argsort(bundle.slice_codes[rows], kind="stable")]


class ValueTable(_ManyRowsTable):
    """The times and values of ``column``: a row for each value."""

    def __init__(self, suffix: str, schema: pa.Schema, aggregate: Aggregate) -> None:
        self._type = schema.field(aggregate.column).type
        kept = pa.schema([_KEY, pa.field(TIME, pa.int64()), pa.field("value", self._type)])
        super().__init__(suffix, kept, aggregate.column, aggregate.where)

    @override
    def reduced(self, bundle: Bundle) -> tuple[pa.RecordBatch, list[int]]:
        rows = self._rows(bundle)
        values = plain_array(bundle.batch.column(self._column).take(pa.array(rows)), self._type)
        return self._batch([bundle.keys_of(rows), pa.array(bundle.times[rows]), values]), bundle.bounds(rows)

    @override
    def merge(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        return concatenated(parts)


class DistinctTable(_ManyRowsTable):
    """The distinct values of ``column``, as the bytes that they have in keys: a row for each key and value."""

    def __init__(self, suffix: str, aggregate: Aggregate) -> None:
        kept = pa.schema([_KEY, pa.field("value", pa.binary())])
        super().__init__(suffix, kept, aggregate.column, aggregate.where)

    @override
    def reduced(self, bundle: Bundle) -> tuple[pa.RecordBatch, list[int]]:
        rows = self._rows(bundle)
        if not len(rows):
            return self._empty(), [0] * (len(bundle.slices) + 1)
        values = encode_keys(bundle.batch, [str(self._column)]).made_distinct()
        places = bundle.slice_codes[rows] * len(bundle.key.encoded) + bundle.key.codes[rows]
        kept = rows[_distinct(places, values.codes[rows])]
        kept = kept[np.argsort(bundle.slice_codes[kept], kind="stable")]
        columns = [bundle.keys_of(kept), values.encoded.take(pa.array(values.codes[kept]))]
        return self._batch(columns), bundle.bounds(kept)

    def _empty(self) -> pa.RecordBatch:
        return self._batch([pa.array([], pa.binary()), pa.array([], pa.binary())])

    @override
    def merge(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        whole = concatenated(parts)
        keys, values = (whole.column(at).dictionary_encode().indices.to_numpy() for at in (0, 1))
        return whole.take(pa.array(np.sort(_distinct(keys.astype(np.int64), values))))


def _distinct(places: Integers, values: npt.NDArray[np.signedinteger]) -> Integers:
    """The first position of each distinct pair of numbers from 0; there is at least one pair."""
    return np.unique(places * (int(values.max()) + 1) + values, return_index=True)[1]


class RowTable(_ManyRowsTable):
    """Whole rows with their times.

    ``best``: which of some rows are kept when parts are merged, and when rows are taken in; default all.
    """

    def __init__(self, schema: pa.Schema, best: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None) -> None:
        self._input = schema
        self._best = best
        columns = [field.with_name(f"row {field.name}") for field in schema]
        super().__init__("", pa.schema([_KEY, pa.field(TIME, pa.int64()), *columns]))

    @override
    def reduced(self, bundle: Bundle) -> tuple[pa.RecordBatch, list[int]]:
        rows = self._rows(bundle)
        taken = plain(bundle.batch, self._input).take(pa.array(rows))
        whole = self._batch([bundle.keys_of(rows), pa.array(bundle.times[rows]), *taken.columns])
        bounds = bundle.bounds(rows)
        if self._best is None:
            return whole, bounds
        parts = [self._best(whole.slice(a, b - a)) for a, b in pairwise(bounds)]
        return concatenated(parts), np.cumsum([0, *(part.num_rows for part in parts)]).tolist()

    @override
    def merge(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        whole = concatenated(parts)
        return whole if self._best is None else self._best(whole)
