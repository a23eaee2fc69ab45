"""The last row of each key by a column: ``ROW_NUMBER() OVER (PARTITION BY key ORDER BY column DESC) = 1``, kept up to
date.

Rules:

- A row is emitted when it is the last of its key so far: its value is at least as large as that of every row of the key
  before it. So the last row that was emitted for a key is the key's last row, and takes the place of those before.
- Among equal values the row that came last counts. A null is less than any value, NaN larger. ``-0.0`` equals ``0.0``.
- Only the largest value of each key is kept, as a whole number whose order is that of the values; 0 stands for a key
  that is not there.
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
from flinkplus.protocol.program.description import StateDescription

Numbers = npt.NDArray[np.int64]
_LIMITS = np.iinfo(np.int64)
_SIGN = np.int64(_LIMITS.min)


@dataclass(frozen=True)
class KeepLast(KeyedOperator):
    """Emits each row that is the last of its key so far, by the column ``order_by``."""

    order_by: str

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        check_column(self.name, schema, self.order_by)
        dtype = schema.field(self.order_by).type
        if not (pa.types.is_signed_integer(dtype) or _is_float(dtype) or is_counted(dtype)):
            raise ConfigurationError(
                f"operator {self.name!r}: order_by {self.order_by!r} is {dtype}, and must be a whole number, floating "
                "point, a date or a timestamp: cast it"
            )
        return schema

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        order = str(schema.field(self.order_by).type) if self.order_by in schema.names else ""
        return StateDescription(keys=self._key_types(schema), settings={"order": order})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _KeepLastInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [LargestView(self.name, output=self.order_by, dtype=schema.field(self.order_by).type)]


def _is_float(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_float32(dtype) or pa.types.is_float64(dtype))


class Extreme(OverflowError):
    """A value has no number in the order. ``at``: its position."""

    def __init__(self, number: int, at: int) -> None:
        super().__init__(f"{number} is too large or small for order_by")
        self.at = at


def ordered_numbers(values: pa.Array) -> Numbers:
    """Numbers in the order of the values, never 0. Raises ``Extreme`` for the largest and smallest whole number of
    64 bits."""
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
    return np.where(nulls, _LIMITS.min, numbers + (numbers >= 0))


def ordered_values(numbers: Numbers, dtype: pa.DataType) -> pa.Array:
    """The values that ``ordered_numbers`` has made the numbers from."""
    nulls = numbers == _LIMITS.min
    found = np.where(nulls, 0, numbers - (numbers > 0))
    if _is_float(dtype):
        bits = np.where(found < 0, ~found ^ _SIGN, found)
        return pa.array(bits.view(np.float64), mask=nulls).cast(dtype)
    whole = pa.array(found, mask=nulls)
    return whole.cast(numbers_of(dtype)).view(dtype) if is_counted(dtype) else whole.cast(dtype)


class _KeepLastInstance(OperatorInstance):
    joins_steps = True

    def __init__(self, descriptor: KeepLast, ctx: OperatorContext) -> None:
        self._order_by = ctx.input_schema.get_field_index(descriptor.order_by)
        self._ctx = ctx
        self._largest = ctx.keyed_state().number_state(ctx.operator, "int64")
        self._rows = KeyRows(self._largest, descriptor.keys)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        values = self._numbers(batch)
        found, idx = self._rows.find(batch, self._rows.numbers(batch))
        before = self._largest.gather(idx)
        kept, largest = last_so_far(np.asarray(found.codes), values, np.where(before == 0, _LIMITS.min, before))
        self._largest.scatter(idx, largest)
        if len(kept) == batch.num_rows:
            yield from cut(batch)
        elif len(kept):
            yield from cut(batch.take(pa.array(kept)))

    def _numbers(self, batch: pa.RecordBatch) -> Numbers:
        dtype = self._ctx.input_schema.field(self._order_by).type
        try:
            return ordered_numbers(plain_array(batch.column(self._order_by), dtype))
        except Extreme as error:
            row = rows_of(batch.slice(error.at, 1), self._ctx)[0]
            raise user_error(self._ctx.operator, self._ctx.subtask, row, str(error)) from error


def last_so_far(codes: npt.NDArray[Any], values: Numbers, before: Numbers) -> tuple[Numbers, Numbers]:
    """The rows, ascending, whose value is at least as large as all of the same code before it; and the largest of each
    code.

    ``codes``: of each row, each of 0 to n - 1 at least once. ``before``: the largest value of each code until now.
    """
    distinct, ranks = np.unique(np.concatenate([values, before]), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order].astype(np.int64)
    places = sorted_codes * len(distinct) + ranks[order]  # by code, then by value
    begins = np.flatnonzero(np.diff(sorted_codes, prepend=-1))
    so_far = places.copy()
    so_far[begins] = np.maximum(places[begins], np.arange(len(before)) * len(distinct) + ranks[len(values) :])
    so_far = np.maximum.accumulate(so_far)
    ends = np.append(begins[1:], len(codes)) - 1
    return np.sort(order[places == so_far]), distinct[so_far[ends] % len(distinct)]


@dataclass(frozen=True, kw_only=True)
class LargestView(StateView):
    """The largest value of each key."""

    output: str
    dtype: pa.DataType

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct([pa.field(self.output, self.dtype)])

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        for keys, numbers in stored.numbers(self.operator, "int64"):
            yield ShownRows(keys, struct_of([ordered_values(numbers, self.dtype)], self.value_type))
