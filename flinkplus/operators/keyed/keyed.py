"""Built-in keyed operators, columnar from end to end: running counts and sums.

Rules:

- Every input row gives one output row, in the same order: its columns, and the running value of its key up to and
  with it.
- The state holds one number for each key. It is read and written once for each distinct key of a batch; within the
  batch the running values come from a stable sort by key.
- The result does not depend on how the rows are cut into batches. For floating-point sums this means adding one by
  one, since the difference of two running totals over the batch would round differently.
- The sum of nulls alone is null, as in SQL. A number in the state that is 0 says that the key has no sum yet, unless
  the key is noted in ``ZeroSums``.
- Sums of decimals are exact; their type is that of Spark SQL (``decimals``). The state holds the unscaled sum.
- Of more than a few rows, a single string or binary key column leaves dictionary-encoded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import SchemaMemo, cut, plain_array
from flinkplus.operators.base.keys import (
    KeyCodes,
    NumberCodes,
    check_key_columns,
    encode_keys,
    keys_of,
    plain_numbers,
    row_keys,
)
from flinkplus.operators.base.operator import Dtype, NumberStateLike, OperatorContext, OperatorInstance
from flinkplus.operators.base.schema import check_column
from flinkplus.operators.base.stored_state import NumberView, StateView
from flinkplus.operators.keyed.aggregates import sum_type
from flinkplus.operators.keyed.latest import Updating
from flinkplus.operators.keyed.views import SumView
from flinkplus.protocol.program.description import Column, StateDescription
from flinkplus.state.hashing import small_unsigned

FEW_ROWS = 96
FEW_NUMBERS = 64
"""Maximum number of rows for which a loop costs less than the array operations; the second when the keys are whole
numbers."""
_INT64_LIMIT = float(1 << 62)


Codes: TypeAlias = KeyCodes | NumberCodes


class KeyRows:
    """Finds the state rows of a batch's keys, one for each distinct key."""

    def __init__(self, state: NumberStateLike, keys: tuple[str, ...]) -> None:
        self._state = state
        self._keys = keys
        self._seen_as = np.zeros(0, dtype=np.int64)

    def numbers(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        """The keys of the rows, when they are plain numbers (``base.keys.plain_numbers``)."""
        return plain_numbers(batch.column(self._keys[0])) if len(self._keys) == 1 else None

    def find(self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64] | None) -> tuple[Codes, npt.NDArray[np.int64]]:
        """The distinct keys of a batch, and the state row of each of their codes. ``numbers``: see there."""
        return self._find_bytes(encode_keys(batch, self._keys)) if numbers is None else self._find_numbers(numbers)

    def _find_numbers(self, numbers: npt.NDArray[np.int64]) -> tuple[Codes, npt.NDArray[np.int64]]:
        rows = self._state.indices_of(numbers, keys_of)
        seen_as = self._marks_for(rows)
        positions = np.arange(len(rows))
        seen_as[rows[::-1]] = positions[::-1]
        first_of_row = seen_as[rows]
        is_first = first_of_row == positions
        first = is_first.nonzero()[0]
        codes = (is_first.cumsum() - 1)[first_of_row]
        return NumberCodes(codes, numbers[first], first), rows[first]

    def _find_bytes(self, key: KeyCodes) -> tuple[Codes, npt.NDArray[np.int64]]:
        idx = self._state.indices(key.keys)
        if not key.distinct and not self._all_differ(idx):
            key = key.made_distinct()
            idx = self._state.indices(key.keys)
        return key, idx

    def _all_differ(self, idx: npt.NDArray[np.int64]) -> bool:
        """Whether no row stands twice in ``idx``: each leaves its mark, and finds it again unless another overwrote
        it.
        """
        seen_as, marks = self._marks_for(idx), np.arange(len(idx))
        seen_as[idx] = marks
        return bool((seen_as[idx] == marks).all())

    def _marks_for(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """An array with a place for each of ``rows``."""
        top = int(rows.max()) + 1 if len(rows) else 0
        if top > len(self._seen_as):
            self._seen_as = np.zeros(2 * top, dtype=np.int64)
        return self._seen_as


def is_large(batch: pa.RecordBatch, numbers: npt.NDArray[np.int64] | None) -> bool:
    """Whether array operations cost less than a loop over the rows. ``numbers``: see ``KeyRows.numbers``."""
    return batch.num_rows > (FEW_ROWS if numbers is None else FEW_NUMBERS)


class ZeroSums:
    """The keys whose sum is 0 although they have had a value: the others whose number is 0 have had nulls alone.

    A key stays here when its sum becomes another: only where the number is 0 does it matter. Looking a key up makes an
    entry for it, so only those are looked up that a null comes to before any value.
    """

    def __init__(self, state: NumberStateLike) -> None:
        self._state = state

    def add(self, keys: list[bytes]) -> None:
        """The sums of distinct ``keys`` are 0."""
        if keys:
            idx = self._state.indices(keys)
            new = idx[self._state.gather(idx) == 0]
            if len(new):
                self._state.scatter(new, np.ones(len(new), np.int64))

    def among(self, keys: list[bytes]) -> npt.NDArray[np.bool_]:
        """Which of ``keys`` are here."""
        if not keys:
            return np.zeros(0, np.bool_)
        known: npt.NDArray[np.bool_] = self._state.gather(self._state.indices(keys)) != 0
        return known


class FewRows:
    """What a running operator does with a batch of few rows, one after the other: the same results for less.

    ``zeros``: of an operator whose values may be null.
    """

    def __init__(
        self,
        state: NumberStateLike,
        keys: tuple[str, ...],
        output: str,
        dtype: pa.DataType,
        zeros: ZeroSums | None = None,
    ) -> None:
        self._state = state
        self._keys = keys
        self._dtype = dtype
        self._zeros = zeros
        self._numbers = np.dtype(str(dtype)).type  # some versions of pyarrow want pandas for its ``to_pandas_dtype``
        self._schema_of = SchemaMemo(lambda schema: schema.append(pa.field(output, dtype)))

    def process(self, batch: pa.RecordBatch, values: Sequence[Any]) -> pa.RecordBatch:
        """``batch`` and for each row the sum of ``values`` up to it. Raises ``OverflowError`` beyond 64 bits, and then
        nothing has changed.
        """
        keys = row_keys(batch, self._keys).to_pylist()
        distinct = list(dict.fromkeys(keys))
        idx = self._state.indices(distinct)
        totals = dict(zip(distinct, self._state.gather(idx).tolist(), strict=True))
        without = self._without_sum(keys, values, totals) if self._zeros is not None and None in values else set()
        running = []
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                totals[key] += value
                without.discard(key)
            running.append(None if key in without else totals[key])
        column = pa.array(running, self._dtype)
        self._state.scatter(idx, np.array(list(totals.values()), self._numbers))
        if self._zeros is not None:
            self._zeros.add([key for key, total in totals.items() if total == 0 and key not in without])
        return pa.RecordBatch.from_arrays([*batch.columns, column], schema=self._schema_of(batch.schema))

    def _without_sum(self, keys: list[bytes], values: Sequence[Any], totals: dict[bytes, Any]) -> set[bytes]:
        """The keys whose first value here is null and that have had no value so far."""
        assert self._zeros is not None
        first: dict[bytes, Any] = {}
        for key, value in zip(keys, values, strict=True):
            first.setdefault(key, value)
        asked = [key for key, value in first.items() if value is None and totals[key] == 0]
        return {key for key, known in zip(asked, self._zeros.among(asked), strict=True) if not known}


@dataclass(frozen=True, slots=True)
class _Groups:
    """The rows of a batch sorted by key, stably: ``order`` of the rows, code of each, and first position and size per
    code.
    """

    order: npt.NDArray[np.int64]
    codes: npt.NDArray[np.unsignedinteger]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def _group(codes: npt.NDArray[np.int32], keys: int) -> _Groups:
    small = codes.astype(small_unsigned(keys))
    order = np.argsort(small, kind="stable")
    counts = np.bincount(codes, minlength=keys)
    return _Groups(order, small[order], counts.cumsum() - counts, counts)


def running_counts(codes: npt.NDArray[np.int32], bases: npt.NDArray[np.int64]) -> tuple[np.ndarray, np.ndarray]:
    """The running count of each row's code, counting on from ``bases[code]``, and the counts of all codes after."""
    groups = _group(codes, len(bases))
    running = np.empty(len(codes), dtype=np.int64)
    running[groups.order] = np.arange(1, len(codes) + 1) + (bases - groups.starts)[groups.codes]
    return running, bases + groups.counts


def running_integer_sums(
    codes: npt.NDArray[np.int32], values: npt.NDArray[np.int64], bases: npt.NDArray[np.int64]
) -> tuple[np.ndarray, np.ndarray]:
    """As ``running_counts``, adding ``values``. Raises ``OverflowError`` beyond 64 bits."""
    if not len(codes):
        return values, bases
    if np.abs(values.astype(np.float64)).sum() + np.abs(bases.astype(np.float64)).max() > _INT64_LIMIT:
        return _running_sums_one_by_one(codes, values, bases, np.int64)
    groups = _group(codes, len(bases))
    sorted_values = values[groups.order]
    totals = np.cumsum(sorted_values)
    before = totals[groups.starts] - sorted_values[groups.starts]
    running = np.empty(len(codes), dtype=np.int64)
    running[groups.order] = totals + (bases - before)[groups.codes]
    ends = groups.starts + groups.counts - 1
    return running, totals[ends] + bases - before


def running_float_sums(
    codes: npt.NDArray[np.int32], values: npt.NDArray[np.float64], bases: npt.NDArray[np.float64]
) -> tuple[np.ndarray, np.ndarray]:
    """As ``running_counts``, adding ``values`` one after the other, so that rounding is that of the row order alone."""
    return _running_sums_one_by_one(codes, values, bases, np.float64)


def _running_sums_one_by_one(
    codes: npt.NDArray[np.int32], values: np.ndarray, bases: np.ndarray, dtype: type[np.generic]
) -> tuple[np.ndarray, np.ndarray]:
    totals = bases.tolist()
    running = []
    for code, value in zip(codes.tolist(), values.tolist(), strict=True):
        totals[code] = total = totals[code] + value
        running.append(total)
    return np.array(running, dtype=dtype), np.array(totals, dtype=dtype)


def with_running(
    batch: pa.RecordBatch, columns: tuple[str, ...], key: Codes, output: str, running: pa.Array
) -> pa.RecordBatch:
    """``batch`` with the column ``output``, and a single string or binary key column dictionary-encoded by ``key``."""
    if isinstance(key, KeyCodes) and key.is_text and key.column is not None:
        at = batch.schema.get_field_index(columns[0])
        batch = batch.set_column(at, batch.schema.field(at).with_type(key.column.type), key.column)
    return batch.append_column(output, running)


def _with_column(operator: str, schema: pa.Schema, output: str, dtype: pa.DataType) -> pa.Schema:
    if output in schema.names:
        raise ConfigurationError(
            f"operator {operator!r}: the input has a column {output!r} already; name the output otherwise"
        )
    return schema.append(pa.field(output, dtype))


@dataclass(frozen=True)
class Count(Updating):
    """Adds ``output`` (int64): how many rows with this row's key have been seen, this one included."""

    output: str = "count"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        self._check_emit()
        return _with_column(self.name, schema, self.output, pa.int64())

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return self._emitting(_CountInstance(self, ctx), ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [NumberView(self.name, name=self.name, output=self.output)]


class _CountInstance(OperatorInstance):
    joins_steps = gives_row_for_row = True

    def __init__(self, descriptor: Count, ctx: OperatorContext) -> None:
        self._keys = descriptor.keys
        self._output = descriptor.output
        self._state = ctx.keyed_state().number_state(ctx.operator, "int64")
        self._rows = KeyRows(self._state, self._keys)
        self._few = FewRows(self._state, self._keys, self._output, pa.int64())

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        numbers = self._rows.numbers(batch)
        if is_large(batch, numbers):
            return self._process_many(batch, numbers)
        return (self._few.process(batch, [1] * batch.num_rows),) if batch.num_rows else ()

    def _process_many(self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64] | None) -> Iterator[pa.RecordBatch]:
        key, idx = self._rows.find(batch, numbers)
        running, totals = running_counts(key.codes, self._state.gather(idx))
        self._state.scatter(idx, totals)
        yield from cut(with_running(batch, self._keys, key, self._output, pa.array(running)))


@dataclass(frozen=True)
class Sum(Updating):
    """Adds ``output``: the running sum of ``column`` for this row's key; int64 for integers, float64 for floating
    point, ``decimal(p + 10, s)`` for ``decimal(p, s)``.

    A null adds nothing; the sum of nulls alone is null. An integer sum beyond 64 bits is an error, and so is a decimal
    sum with more digits than its type has.
    """

    column: str
    output: str = "sum"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        self._check_emit()
        return _with_column(self.name, schema, self.output, self._sum_type(schema))

    def _sum_type(self, schema: pa.Schema) -> pa.DataType:
        check_column(self.name, schema, self.column)
        dtype = schema.field(self.column).type
        if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or decimals.is_decimal(dtype):
            return sum_type(dtype)
        raise ConfigurationError(
            f"operator {self.name!r}: column {self.column!r} is {dtype}; only numbers can be summed"
        )

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        kept: tuple[Column, ...] = (Column(name="sum", type=str(self._sum_type(schema))),)
        nulls = {"nulls": schema.field(self.column).nullable}  # with them, a sum of 0 is noted beside the sum
        return StateDescription(keys=self._key_types(schema), settings=nulls, rows={"": kept})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        dtype = self._sum_type(ctx.input_schema)
        kind = _DecimalSumInstance if decimals.is_decimal(dtype) else _NumberSumInstance
        return self._emitting(kind(self, ctx, dtype), ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        zeros = zeros_of(self.name)
        noted = zeros if zeros in states else None
        return [SumView(self.name, output=self.output, dtype=self._sum_type(schema), zeros=noted)]


class _SumInstance(OperatorInstance):
    """``_summed`` makes the output of a batch. It raises ``OverflowError`` or ``pa.ArrowInvalid`` for a sum that is too
    large, and then nothing has changed."""

    joins_steps = gives_row_for_row = True

    def __init__(self, descriptor: Sum, ctx: OperatorContext, dtype: pa.DataType) -> None:
        self._descriptor = descriptor
        self._ctx = ctx
        self._dtype = dtype

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        column = self._descriptor.column
        try:
            output = self._summed(batch, plain_array(batch.column(column), self._dtype))
        except (OverflowError, pa.ArrowInvalid) as error:
            row = f"one of {batch.num_rows} rows, column {column!r}"
            what = f"{self._dtype.precision} digits" if decimals.is_decimal(self._dtype) else "64 bits"
            raise UserFunctionError(
                self._descriptor.name, self._ctx.subtask, row, f"the sum goes beyond {what} ({error})"
            ) from error
        yield from cut(output)

    @abstractmethod
    def _summed(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch: ...


class _NumberSumInstance(_SumInstance):
    def __init__(self, descriptor: Sum, ctx: OperatorContext, dtype: pa.DataType) -> None:
        super().__init__(descriptor, ctx, dtype)
        is_whole = pa.types.is_integer(dtype)
        numbers: Dtype = "int64" if is_whole else "float64"
        state = ctx.keyed_state()
        self._state = state.number_state(ctx.operator, numbers)
        nullable = ctx.input_schema.field(descriptor.column).nullable
        self._zeros = ZeroSums(state.number_state(zeros_of(ctx.operator), "int64")) if nullable else None
        self._rows = KeyRows(self._state, descriptor.keys)
        self._few = FewRows(self._state, descriptor.keys, descriptor.output, dtype, self._zeros)
        self._running_sums = running_integer_sums if is_whole else running_float_sums

    @override
    def _summed(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        key_numbers = self._rows.numbers(batch)
        if not is_large(batch, key_numbers):
            return self._few.process(batch, values.to_pylist())
        key, idx = self._rows.find(batch, key_numbers)
        bases = self._state.gather(idx)
        if values.null_count:
            return self._summed_with_nulls(batch, values, key, idx, bases)
        running, totals = self._running_sums(key.codes, values.to_numpy(), bases)
        self._state.scatter(idx, totals)
        if self._zeros is not None and not totals.all():
            self._zeros.add(key.encoded.take(pa.array(np.flatnonzero(totals == 0))).to_pylist())
        return with_running(batch, self._descriptor.keys, key, self._descriptor.output, pa.array(running))

    def _summed_with_nulls(
        self,
        batch: pa.RecordBatch,
        values: pa.Array,
        key: Codes,
        idx: npt.NDArray[np.int64],
        bases: npt.NDArray[Any],
    ) -> pa.RecordBatch:
        descriptor = self._descriptor
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        running, totals = self._running_sums(key.codes, numbers, bases)
        first = self._first_values(key, values)
        without = self._without_sum(key, (bases == 0) & (first > key.first_rows()))
        nulls = without[key.codes] & (np.arange(len(numbers)) < first[key.codes])
        self._state.scatter(idx, totals)
        if self._zeros is not None:
            zero = np.flatnonzero((totals == 0) & ~(without & (first == len(numbers))))
            self._zeros.add(key.encoded.take(pa.array(zero)).to_pylist())
        return with_running(batch, descriptor.keys, key, descriptor.output, pa.array(running, mask=nulls))

    def _first_values(self, key: Codes, values: pa.Array) -> npt.NDArray[np.int64]:
        """The first row with a value of each key, the number of rows for a key without one."""
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))[::-1]
        first = np.full(len(key.encoded), len(values), np.int64)
        first[key.codes[rows]] = rows
        return first

    def _without_sum(self, key: Codes, asked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of the keys ``asked`` for have had no value before this batch."""
        without = asked.copy()
        if self._zeros is not None and asked.any():
            codes = np.flatnonzero(asked)
            without[codes] = ~self._zeros.among(key.encoded.take(pa.array(codes)).to_pylist())
        return without


def zeros_of(operator: str) -> str:
    """The name of the state of a sum that has its ``ZeroSums``."""
    return f"{operator}#zero"


class _DecimalSumInstance(_SumInstance):
    """State: for each key that has had a value, the unscaled sum."""

    def __init__(self, descriptor: Sum, ctx: OperatorContext, dtype: pa.DataType) -> None:
        super().__init__(descriptor, ctx, dtype)
        self._state = ctx.keyed_state().object_state(ctx.operator)

    @override
    def _summed(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        descriptor = self._descriptor
        key = encode_keys(batch, descriptor.keys).made_distinct()
        keys = key.keys
        totals: list[int | None] = self._state.get_many(keys)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        running = []
        for code, number, some in zip(
            key.codes.tolist(), decimals.unscaled(values).tolist(), valid.tolist(), strict=True
        ):
            if some:
                totals[code] = (totals[code] or 0) + number
            running.append(totals[code])
        nulls = np.array([total is None for total in running])
        column = decimals.from_unscaled([total or 0 for total in running], self._dtype, nulls)
        self._state.put_many(keys, totals)
        return with_running(batch, descriptor.keys, key, descriptor.output, column)
