"""How the state of the keyed operators is shown: numbers, sums, expiry times, rankings, rows, and timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base import decimals
from flinkplus.operators.base.operator import Dtype
from flinkplus.operators.base.row import RowConverter
from flinkplus.operators.base.stored_state import TIMER, NamedView, ShownRows, StateView, StoredState, struct_of
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.functions.expiry import UNTIMED
from flinkplus.operators.keyed.functions.kept import LIST_FORM, VALUE_FORM, WITH_TTL
from flinkplus.operators.keyed.functions.lists import element_number
from flinkplus.operators.keyed.functions.map_keys import key_value
from flinkplus.operators.keyed.timers import states_of, timer_of

FOR_EVER = 1
"""The number kept with a key that is never forgotten; absent ones have 0."""


@dataclass(frozen=True, kw_only=True)
class SumView(StateView):
    """Running sums: ``output`` of type ``dtype``; null for a key that has had nulls alone.

    A number of 0 is null unless the key is noted in the state ``zeros``; ``None``: the summed column has no nulls.
    """

    output: str
    dtype: pa.DataType
    zeros: str | None

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct([pa.field(self.output, self.dtype)])

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (self.operator, *([] if self.zeros is None else [self.zeros]))

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        sums = self._decimals(stored) if decimals.is_decimal(self.dtype) else self._numbers(stored)
        for keys, values in sums:
            yield ShownRows(keys, struct_of([values], self.value_type))

    def _decimals(self, stored: StoredState) -> Iterator[tuple[list[bytes], pa.Array]]:
        for keys, unscaled in stored.objects(self.operator):
            yield keys, decimals.from_unscaled(unscaled, self.dtype)

    def _numbers(self, stored: StoredState) -> Iterator[tuple[list[bytes], pa.Array]]:
        dtype: Dtype = "int64" if pa.types.is_integer(self.dtype) else "float64"
        for keys, numbers in stored.numbers(self.operator, dtype):
            none = np.zeros(len(keys), np.bool_)
            if self.zeros is not None:
                asked = np.flatnonzero(numbers == 0)
                noted = stored.numbers_of(self.zeros, "int64", [keys[at] for at in asked.tolist()])
                none[asked] = noted == 0
            yield keys, pa.array(numbers, mask=none)


@dataclass(frozen=True)
class ExpiryView(StateView):
    """Keys that have been seen, and when each is forgotten. Those that have expired stay until they are removed."""

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return self.operator, f"{self.operator}/expiry"

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        for keys, expiries in stored.numbers(self.operator, "int64"):
            yield ShownRows(keys, None, pa.array(expiries, pa.int64(), mask=expiries == FOR_EVER))


@dataclass(frozen=True, kw_only=True)
class RankingView(StateView):
    """The items of each key, best first: a list of structs of rank, item and value."""

    ranked: pa.DataType

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.list_(self.ranked)

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        _, item, value = self.ranked
        for keys, kept in stored.objects(self.operator):
            sizes = [len(each) // 2 for each in kept]
            ranks = pa.array(list(chain.from_iterable(range(1, size + 1) for size in sizes)), pa.int64())
            items = as_arrow(list(chain.from_iterable(each[::2] for each in kept)), item.type)
            values = as_arrow(list(chain.from_iterable(each[1::2] for each in kept)), value.type)
            offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
            ranked = struct_of([ranks, items, values], self.ranked)
            yield ShownRows(keys, pa.ListArray.from_arrays(offsets, ranked, type=self.value_type))


def as_arrow(values: list[Any], dtype: pa.DataType) -> pa.Array:
    """Values in which dates and times are the numbers that they are."""
    if is_counted(dtype):
        return pa.array(values, numbers_of(dtype)).view(dtype)
    return pa.array(values, dtype)


@dataclass(frozen=True, kw_only=True)
class ReducedView(StateView):
    """Reduced rows of ``schema``."""

    schema: pa.Schema

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct(list(self.schema))

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        converter = RowConverter(self.operator, stored.subtask, self.schema)
        for keys, rows in stored.objects(self.operator):
            batch = converter.batch(rows, rows.__getitem__)
            yield ShownRows(keys, struct_of(batch.columns, self.value_type))


@dataclass(frozen=True, kw_only=True)
class FunctionStateView(NamedView):
    """What functions keep under the name ``name``: values, elements of lists, entries of maps, each as a row.

    An element is shown as ``{"at": its place, "value": ...}``, an entry as ``{"key": ..., "value": ...}``. Those that
    have expired stay until they are removed; the column of timers has when each does.
    """

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        form = stored.form(self.name)
        if form is None or form == VALUE_FORM:
            for keys, values in stored.objects(self.name):
                if form is None:
                    yield ShownRows(keys, values)
                else:
                    yield ShownRows(keys, [value for _, _, value in values], _expiries(values))
            return
        expires = form.endswith(WITH_TTL)
        show = _element if form.startswith(LIST_FORM) else _entry
        for keys, names, records in stored.entries(self.name):
            shown = [show(name, record[-1]) for name, record in zip(names, records, strict=True)]
            kept = [at for at, value in enumerate(shown) if value is not None]
            timers = _expiries([records[at] for at in kept]) if expires else None
            yield ShownRows([keys[at] for at in kept], [shown[at] for at in kept], timers)


def _element(name: bytes, value: Any) -> Any:
    at = element_number(name)
    return None if at is None else {"at": at, "value": value}


def _entry(name: bytes, value: Any) -> Any:
    return {"key": key_value(name), "value": value}


def _expiries(records: Sequence[Any]) -> pa.Array:
    """When each value expires; null where event time was not known when it was put."""
    return pa.array([None if record[0] == UNTIMED else record[0] for record in records], pa.int64())


@dataclass(frozen=True)
class TimerView(StateView):
    """Timers that are set. ``name``: in place of the operator's in the names of their states."""

    kind: ClassVar[str] = TIMER
    name: str | None = None

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return states_of(self.name or self.operator)

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        flags, _ = self.reads
        for names in stored.page_names(flags):
            timers = list(map(timer_of, names))
            yield ShownRows([key for _, key in timers], None, pa.array([at_ms for at_ms, _ in timers], pa.int64()))
