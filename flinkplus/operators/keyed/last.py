"""The last row of each key by columns: ``ROW_NUMBER() OVER (PARTITION BY key ORDER BY columns, reversed) = 1``, kept up
to date.

Rules:

- A row is emitted when it is the last of its key so far: it does not stand before any earlier row of the key. So the
  last row that was emitted for a key is the key's last row, and takes the place of those before.
- Among rows with equal values the one that came last counts. A null stands before any value, ascending or descending;
  NaN is the largest number. ``-0.0`` equals ``0.0``.
- Of each key the values of its last row are kept, each as a whole number whose order is that of the values; 0 stands
  for a key that is not there. Each column has a state of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut, plain_array
from flinkplus.operators.base.keys import check_key_columns
from flinkplus.operators.base.operator import KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.operators.base.row import rows_of, user_error
from flinkplus.operators.base.schema import check_column
from flinkplus.operators.base.stored_state import ShownRows, StateView, StoredState, struct_of
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.keyed import KeyRows
from flinkplus.operators.keyed.rankings import Order
from flinkplus.protocol.program.description import StateDescription

Numbers = npt.NDArray[np.int64]
_LIMITS = np.iinfo(np.int64)
_SIGN = np.int64(_LIMITS.min)


@dataclass(frozen=True)
class KeepLast(KeyedOperator):
    """Emits each row that is the last of its key so far, by ``orders``."""

    orders: tuple[Order, ...]

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        for order in self.orders:
            check_column(self.name, schema, order.column)
            dtype = schema.field(order.column).type
            if not (pa.types.is_signed_integer(dtype) or _is_float(dtype) or is_counted(dtype)):
                raise ConfigurationError(
                    f"operator {self.name!r}: order_by {order.column!r} is {dtype}, and must be a whole number, "
                    "floating point, a date or a timestamp: cast it"
                )
        return schema

    @property
    def states(self) -> list[str]:
        """The name of the state of each column."""
        return [self.name, *(f"{self.name}#{at}" for at in range(1, len(self.orders)))]

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        known = [order for order in self.orders if order.column in schema.names]
        types = [f"{schema.field(each.column).type}{' DESC' if each.descending else ''}" for each in known]
        return StateDescription(keys=self._key_types(schema), settings={"order": ", ".join(types)})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _KeepLastInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        types = tuple(schema.field(order.column).type for order in self.orders)
        return [LargestView(self.name, orders=self.orders, types=types, states=tuple(self.states))]


def _is_float(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_float32(dtype) or pa.types.is_float64(dtype))


class Extreme(OverflowError):
    """A value has no number in the order. ``at``: its position."""

    def __init__(self, number: int, at: int) -> None:
        super().__init__(f"{number} is too large or small for order_by")
        self.at = at


def ordered_numbers(values: pa.Array, descending: bool = False) -> Numbers:
    """Numbers in the order of the values, or in the reverse one, never 0. A null has the least one in both. Raises
    ``Extreme`` for the largest and smallest whole number of 64 bits."""
    dtype, nulls = values.type, np.asarray(values.is_null())
    if _is_float(dtype):
        floats = np.asarray(values.cast(pa.float64()).fill_null(0.0)) + 0.0
        bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
        numbers = np.where(bits < 0, ~(bits ^ _SIGN), bits)
    else:
        whole = values.view(numbers_of(dtype)) if is_counted(dtype) else values
        numbers = np.asarray(whole.cast(pa.int64()).fill_null(0))
    extreme = ((numbers == _LIMITS.max) | (numbers == _LIMITS.min)) & ~nulls
    if extreme.any():
        at = int(np.flatnonzero(extreme)[0])
        raise Extreme(int(numbers[at]), at)
    numbers = numbers + (numbers >= 0)
    return np.where(nulls, _LIMITS.min, -numbers if descending else numbers)


def ordered_values(numbers: Numbers, dtype: pa.DataType, descending: bool = False) -> pa.Array:
    """The values that ``ordered_numbers`` has made the numbers from."""
    nulls = numbers == _LIMITS.min
    numbers = -numbers if descending else numbers
    found = np.where(nulls, 0, numbers - (numbers > 0))
    if _is_float(dtype):
        bits = np.where(found < 0, ~found ^ _SIGN, found)
        return pa.array(bits.view(np.float64), mask=nulls).cast(dtype)
    whole = pa.array(found, mask=nulls)
    return whole.cast(numbers_of(dtype)).view(dtype) if is_counted(dtype) else whole.cast(dtype)


class _KeepLastInstance(OperatorInstance):
    joins_steps = True

    def __init__(self, descriptor: KeepLast, ctx: OperatorContext) -> None:
        self._orders = descriptor.orders
        self._ctx = ctx
        state = ctx.keyed_state()
        self._largest = [state.number_state(name, "int64") for name in descriptor.states]
        self._rows = [KeyRows(largest, descriptor.keys) for largest in self._largest]

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        values = [self._numbers(batch, order) for order in self._orders]
        key_numbers = self._rows[0].numbers(batch)
        codes, rows = self._rows[0].find(batch, key_numbers)
        found = [rows, *(rows_of_keys.find(batch, key_numbers)[1] for rows_of_keys in self._rows[1:])]
        before = [largest.gather(idx) for largest, idx in zip(self._largest, found, strict=True)]
        before = [np.where(numbers == 0, _LIMITS.min, numbers) for numbers in before]
        kept, last = last_so_far(np.asarray(codes.codes), values, before)
        for largest, idx, numbers in zip(self._largest, found, last, strict=True):
            largest.scatter(idx, numbers)
        if len(kept) == batch.num_rows:
            yield from cut(batch)
        elif len(kept):
            yield from cut(batch.take(pa.array(kept)))

    def _numbers(self, batch: pa.RecordBatch, order: Order) -> Numbers:
        dtype = self._ctx.input_schema.field(order.column).type
        try:
            return ordered_numbers(plain_array(batch.column(order.column), dtype), order.descending)
        except Extreme as error:
            row = rows_of(batch.slice(error.at, 1), self._ctx)[0]
            raise user_error(self._ctx.operator, self._ctx.subtask, row, str(error)) from error


def last_so_far(
    codes: npt.NDArray[Any], values: Sequence[Numbers], before: Sequence[Numbers]
) -> tuple[Numbers, list[Numbers]]:
    """The rows, ascending, that do not stand before any earlier row of the same code; and the values of the last row of
    each code.

    ``codes``: of each row, each of 0 to n - 1 at least once. ``values``: of the rows, for each column of the order.
    ``before``: of the last row of each code until now.
    """
    columns = [np.concatenate([own, known]) for own, known in zip(values, before, strict=True)]
    distinct, ranks = np.unique(columns[0], return_inverse=True)
    for column in columns[1:]:
        further, further_ranks = np.unique(column, return_inverse=True)
        distinct, ranks = np.unique(ranks * len(further) + further_ranks, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order].astype(np.int64)
    places = sorted_codes * len(distinct) + ranks[order]  # by code, then by value
    begins = np.flatnonzero(np.diff(sorted_codes, prepend=-1))
    so_far = places.copy()
    so_far[begins] = np.maximum(places[begins], np.arange(len(before[0])) * len(distinct) + ranks[len(codes) :])
    so_far = np.maximum.accumulate(so_far)
    ends = np.append(begins[1:], len(codes)) - 1
    examples = np.empty(len(distinct), np.int64)  # of each rank, a place that has it
    examples[ranks] = np.arange(len(ranks))
    chosen = examples[so_far[ends] % len(distinct)]
    return np.sort(order[places == so_far]), [column[chosen] for column in columns]


@dataclass(frozen=True, kw_only=True)
class LargestView(StateView):
    """The values of the last row of each key, in the columns of the order."""

    orders: tuple[Order, ...]
    types: tuple[pa.DataType, ...]
    states: tuple[str, ...]

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return self.states

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct([pa.field(each.column, dtype) for each, dtype in zip(self.orders, self.types, strict=True)])

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        for keys, first in stored.numbers(self.operator, "int64"):
            numbers = [first, *(stored.numbers_of(name, "int64", keys) for name in self.states[1:])]
            values = [
                ordered_values(each, dtype, order.descending)
                for each, dtype, order in zip(numbers, self.types, self.orders, strict=True)
            ]
            yield ShownRows(keys, struct_of(values, self.value_type))
