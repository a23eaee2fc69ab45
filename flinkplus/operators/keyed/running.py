"""Running aggregates of each key: for every row the aggregates of its key's rows up to and with it.

Rules:

- each row gives one row, in the same order: the key columns and the aggregates;
- the result does not depend on how rows are cut into batches: floating-point numbers are added one by one;
- the first and the last value are those of the order in which rows come;
- what is kept for a key is a tuple with a value for each aggregate, and, for the number of distinct values, an entry
  for each of these (``distinct``). So no set is written again when it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import cut, plain_array
from flinkplus.operators.base.keys import KeyCodes, check_key_columns, encode_keys
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    KeyedOperator,
    OperatorContext,
    OperatorInstance,
    described_columns,
)
from flinkplus.operators.base.schema import repeated
from flinkplus.operators.base.stored_state import ObjectView, StateView
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.conditions import Conditions, Passing, described
from flinkplus.operators.keyed.distinct import PAIRS, DistinctValues
from flinkplus.operators.keyed.views import as_arrow
from flinkplus.protocol.program.description import StateDescription

Flags = npt.NDArray[np.bool_]
Step = Callable[[Any, Any], Any]
"""What an aggregate of a value that counts makes of what is kept (``None``: nothing so far)."""
_LIMIT = 1 << 63


@dataclass(frozen=True)
class RunningAggregates(KeyedOperator):
    """Gives the key columns and ``aggregates`` for each row."""

    aggregates: tuple[Aggregate, ...]

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        if not self.aggregates:
            raise ConfigurationError(f"operator {self.name!r}: name at least one aggregate")
        fields = [schema.field(key).with_nullable(True) for key in self.keys]
        for aggregate in self.aggregates:
            aggregate.check(self.name, schema)
            if aggregate.kind == "collect_list":
                raise ConfigurationError(
                    f"operator {self.name!r}: collect_list is for windows: a running list would be emitted whole with "
                    "each row; use process, with a state of your own"
                )
            fields.append(pa.field(aggregate.output, aggregate.result_type(schema)))
        twice = repeated([field.name for field in fields])
        if twice is not None:
            raise ConfigurationError(f"operator {self.name!r}: its output would have the column {twice!r} twice")
        return pa.schema(fields)

    @property
    def distinct(self) -> dict[int, str]:
        """The positions of aggregates with entries for values, and what the names of their states end with."""
        kinds = enumerate(self.aggregates)
        return {at: f"#aggregate {at}" for at, aggregate in kinds if aggregate.kind == "count_distinct"}

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        return dict.fromkeys(self.distinct.values(), PAIRS)

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        kinds = [aggregate.kind for aggregate in self.aggregates]
        types = [str(aggregate.result_type(schema)) for aggregate in self.aggregates]
        rows = {name: described_columns(kept) for name, kept in self.page_schemas(schema).items()}
        settings: dict[str, Any] = {"aggregates": kinds, "types": types}
        if any(aggregate.where is not None for aggregate in self.aggregates):
            settings["where"] = [described(aggregate.where) for aggregate in self.aggregates]
        return StateDescription(keys=self._key_types(schema), settings=settings, rows=rows)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _RunningInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [ObjectView(self.name, name=self.name)]


class _RunningInstance(OperatorInstance):
    """State: for each key a tuple with what is kept for each aggregate."""

    def __init__(self, descriptor: RunningAggregates, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._keys = descriptor.keys
        self._output = descriptor.output_schema(ctx.input_schema)
        state = ctx.keyed_state()
        self._state = state.object_state(ctx.operator)
        self._values = {at: DistinctValues(state, ctx.operator + name) for at, name in descriptor.distinct.items()}
        self._conditions = Conditions([aggregate.where for aggregate in descriptor.aggregates], ctx)
        self._runs = [_Run(aggregate, ctx) for aggregate in descriptor.aggregates]

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        key = encode_keys(batch, self._keys).made_distinct()
        keys, codes = key.keys, key.codes.tolist()
        nothing = (None,) * len(self._runs)
        kept = list(zip(*(found or nothing for found in self._state.get_many(keys)), strict=True))
        columns = [plain_array(batch.column(name), self._output.field(name).type) for name in self._keys]
        passing = self._conditions.on(batch)
        after = []
        for at, (run, before) in enumerate(zip(self._runs, kept, strict=True)):
            counted = run.counted(batch, passing)
            values = self._new(at, batch, key, counted) if at in self._values else run.values(batch)
            so_far = list(before)
            try:
                columns.append(run.column(codes, values, counted.tolist(), so_far))
            except OverflowError as error:
                raise self._too_large(run.aggregate, error) from error
            after.append(so_far)
        self._state.put_many(keys, list(zip(*after, strict=True)))
        yield from cut(pa.RecordBatch.from_arrays(columns, schema=self._output))

    def _new(self, at: int, batch: pa.RecordBatch, key: KeyCodes, counted: Flags) -> list[int]:
        """1 for each row with a value that its key has for the first time, otherwise 0."""
        new = np.zeros(batch.num_rows, np.int64)
        rows = np.flatnonzero(counted)
        if len(rows):
            values = encode_keys(batch, [str(self._runs[at].aggregate.column)]).made_distinct()
            pairs = key.codes[rows].astype(np.int64) * len(values.encoded) + values.codes[rows]
            firsts = np.sort(rows[np.unique(pairs, return_index=True)[1]])
            found = self._values[at].add(
                key.encoded.take(pa.array(key.codes[firsts])), values.encoded.take(pa.array(values.codes[firsts]))
            )
            new[firsts[found]] = 1
        flags: list[int] = new.tolist()
        return flags

    def _too_large(self, aggregate: Aggregate, error: Exception) -> UserFunctionError:
        cause = f"an aggregate is too large: beyond 64 bits, or beyond the digits of its decimal type ({error})"
        row = f"rows of a batch, column {aggregate.column!r}"
        return UserFunctionError(self._ctx.operator, self._ctx.subtask, row, cause)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return [values.snapshot() for values in self._values.values()] or None

    @override
    def restore(self, state: JsonValue) -> None:
        saved: Any = state or ()
        for values, index in zip(self._values.values(), saved, strict=True):
            values.restore(index)

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        for part in parts:
            for values, index in zip(self._values.values(), part.state or (), strict=True):
                values.inherit(part, index)


class _Run:
    """One aggregate: its values as Python has them, what it makes of them, and the column of the results."""

    def __init__(self, aggregate: Aggregate, ctx: OperatorContext) -> None:
        self.aggregate = aggregate
        self._result = aggregate.result_type(ctx.input_schema)
        column = aggregate.column
        self._column_type = None if column is None else ctx.input_schema.field(column).type
        self._step = _STEPS[aggregate.kind]
        self._is_mean = aggregate.kind == "mean"
        self._is_count = aggregate.kind in ("count", "count_distinct")

    def counted(self, batch: pa.RecordBatch, passing: Passing) -> Flags:
        """Which rows count."""
        column = self.aggregate.column
        counted = passing.of(self.aggregate.where)
        if counted is None:
            counted = np.ones(batch.num_rows, np.bool_)
        if column is None:
            return counted
        valid: Flags = plain_array(batch.column(column), self._column_type).is_valid().to_numpy(zero_copy_only=False)
        return counted & valid

    def values(self, batch: pa.RecordBatch) -> list[Any]:
        """A number for each row: 1 for a count; the unscaled one of a decimal; that underneath a date or time."""
        if self._is_count:
            return [1] * batch.num_rows
        array = plain_array(batch.column(self.aggregate.column), self._column_type)
        if decimals.is_decimal(array.type):
            unscaled: list[Any] = decimals.unscaled(array).tolist()
            return unscaled
        if is_counted(array.type):
            array = array.view(numbers_of(array.type))
        if pa.types.is_floating(array.type):
            array = array.cast(pa.float64())
        values: list[Any] = array.to_pylist()
        return [float(v or 0) for v in values] if self._is_mean else values

    def column(self, codes: list[int], values: list[Any], counted: list[bool], so_far: list[Any]) -> pa.Array:
        """The results for each row. ``so_far``: what is kept for each key, which is changed.

        Raises ``OverflowError`` for what the type of results does not hold.
        """
        step, results = self._step, []
        for code, value, counts in zip(codes, values, counted, strict=True):
            if counts:
                so_far[code] = step(so_far[code], value)
            results.append(so_far[code])
        if self._is_count:
            return pa.array([result or 0 for result in results], pa.int64())
        if self._is_mean:
            return self._means(results)
        return self._shown(results)

    def _shown(self, results: list[Any]) -> pa.Array:
        dtype = self._result
        if self.aggregate.kind in ("first", "last"):
            results = [None if result is None else result[0] for result in results]
        if decimals.is_decimal(dtype):
            none = np.array([result is None for result in results])
            return decimals.from_unscaled([result or 0 for result in results], dtype, none)
        if is_counted(dtype):
            return as_arrow(results, dtype)
        if (
            self.aggregate.kind == "sum"
            and dtype == pa.int64()
            and any(not -_LIMIT <= (result or 0) < _LIMIT for result in results)
        ):
            raise OverflowError("beyond 64 bits")
        return pa.array(results, pa.float64()).cast(dtype) if pa.types.is_floating(dtype) else pa.array(results, dtype)

    def _means(self, results: list[Any]) -> pa.Array:
        counts = np.array([0 if result is None else result[1] for result in results])
        sums = [0 if result is None else result[0] for result in results]
        if not decimals.is_decimal(self._result):
            return pa.array(np.array(sums, np.float64) / np.maximum(counts, 1), pa.float64(), mask=counts == 0)
        total = decimals.sum_type(self._column_type)
        return decimals.means(decimals.from_unscaled(sums, total), counts, self._result)


def _least(kept: Any, value: Any) -> Any:
    if kept is None or kept != kept:  # NaN, the largest number
        return value
    return value if value < kept else kept


def _greatest(kept: Any, value: Any) -> Any:
    if kept is None or value != value:
        return value
    return value if value > kept else kept


_STEPS: dict[str, Step] = {
    "count": lambda kept, value: (kept or 0) + value,
    "count_distinct": lambda kept, value: (kept or 0) + value,
    "sum": lambda kept, value: value if kept is None else kept + value,
    "mean": lambda kept, value: (value, 1) if kept is None else (kept[0] + value, kept[1] + 1),
    "min": _least,
    "max": _greatest,
    "first": lambda kept, value: (value,) if kept is None else kept,
    "last": lambda kept, value: (value,),
}
