"""Running aggregates of each key: for every row the aggregates of its key's rows up to and with it.

Rules:

- each row gives one row, in the same order: the key columns and the aggregates;
- the result does not depend on how rows are cut into batches (``running_columns``);
- the first and the last value are those of the order in which rows come;
- what is kept for a key is a tuple with a value for each aggregate, and, for the number of distinct values, an entry
  for each of these (``distinct``). So no set is written again when it grows. Numbers of one column's values, with
  different filters, share the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import cut, plain_array
from flinkplus.operators.base.keys import KeyCodes, check_key_columns, encode_keys
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    OperatorContext,
    OperatorInstance,
    described_columns,
)
from flinkplus.operators.base.schema import repeated
from flinkplus.operators.base.stored_state import ObjectView, StateView
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.conditions import Conditions, described
from flinkplus.operators.keyed.distinct import MAX_FILTERS, PAIRS, DistinctValues
from flinkplus.operators.keyed.latest import Updating
from flinkplus.operators.keyed.running_columns import Scan, running_column
from flinkplus.protocol.program.description import StateDescription

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RunningAggregates(Updating):
    """Gives the key columns and ``aggregates`` for each row."""

    aggregates: tuple[Aggregate, ...]

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        self._check_emit()
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
    def distinct(self) -> dict[str, list[int]]:
        """The positions of the aggregates with entries for values that share them, by what the names of their states
        end with."""
        columns: dict[tuple[Any, int], list[int]] = {}
        for at, aggregate in enumerate(self.aggregates):
            if aggregate.kind == "count_distinct":
                own = [
                    position
                    for (column, _), shared in columns.items()
                    if column == aggregate.column
                    for position in shared
                ]
                columns.setdefault((aggregate.column, len(own) // MAX_FILTERS), []).append(at)
        return {f"#aggregate {shared[0]}": shared for shared in columns.values()}

    @override
    def page_schemas(self, schema: pa.Schema) -> dict[str, pa.Schema]:
        return dict.fromkeys(self.distinct, PAIRS)

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        kinds = [aggregate.kind for aggregate in self.aggregates]
        types = [str(aggregate.result_type(schema)) for aggregate in self.aggregates]
        rows = {name: described_columns(kept) for name, kept in self.page_schemas(schema).items()}
        settings: dict[str, Any] = {"aggregates": kinds, "types": types}
        if rows:
            counted = [str(self.aggregates[shared[0]].column) for shared in self.distinct.values()]
            settings["distinct"] = list(self.distinct.values())
            settings["values"] = [str(schema.field(column).type) for column in counted if column in schema.names]
        if any(aggregate.where is not None for aggregate in self.aggregates):
            settings["where"] = [described(aggregate.where) for aggregate in self.aggregates]
        return StateDescription(keys=self._key_types(schema), settings=settings, rows=rows)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return self._emitting(_RunningInstance(self, ctx), ctx)

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
        self._values = {
            name: (shared, DistinctValues(state, ctx.operator + name)) for name, shared in descriptor.distinct.items()
        }
        self._conditions = Conditions([aggregate.where for aggregate in descriptor.aggregates], ctx)
        self._columns = [running_column(aggregate, ctx.input_schema) for aggregate in descriptor.aggregates]

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        key = encode_keys(batch, self._keys).made_distinct()
        keys = key.keys
        scan = Scan(key.codes, len(keys))
        nothing = (None,) * len(self._columns)
        kept = list(zip(*(found or nothing for found in self._state.get_many(keys)), strict=True))
        columns = [plain_array(batch.column(name), self._output.field(name).type) for name in self._keys]
        passing = self._conditions.on(batch)
        counted = [column.counted(batch, passing) for column in self._columns]
        for shared, values in self._values.values():
            self._only_new(batch, key, shared, values, counted)
        after = []
        for column, rows, before in zip(self._columns, counted, kept, strict=True):
            try:
                results, now = column.results(scan, batch, rows, list(before))
            except OverflowError as error:
                raise self._too_large(column.aggregate, error) from error
            columns.append(results)
            after.append(now)
        self._state.put_many(keys, list(zip(*after, strict=True)))
        yield from cut(pa.RecordBatch.from_arrays(columns, schema=self._output))

    def _only_new(
        self, batch: pa.RecordBatch, key: KeyCodes, shared: list[int], known: DistinctValues, counted: list[Flags]
    ) -> None:
        """Of the rows that count for each of the aggregates ``shared``, leave those with a value that is new."""
        values = encode_keys(batch, [str(self._columns[shared[0]].aggregate.column)]).made_distinct()
        both = key.codes.astype(np.int64) * len(values.encoded) + values.codes
        coded = pa.array(both).dictionary_encode()
        pair_of_row, pairs = coded.indices.to_numpy(), coded.dictionary.to_numpy()
        firsts = np.full((len(shared), len(pairs)), batch.num_rows)
        bits = np.zeros(len(pairs), np.uint64)
        for bit, at in enumerate(shared):
            rows = np.flatnonzero(counted[at])[::-1]
            firsts[bit, pair_of_row[rows]] = rows
            bits |= (firsts[bit] < batch.num_rows).astype(np.uint64) << np.uint64(bit)
        asked = np.flatnonzero(bits)
        key_codes, value_codes = np.divmod(pairs[asked], len(values.encoded))
        before = known.add(key.encoded, values.encoded, key_codes, value_codes, bits[asked])
        new = bits[asked] & ~before
        for bit, at in enumerate(shared):
            counted[at] = np.zeros(batch.num_rows, np.bool_)
            counted[at][firsts[bit, asked[(new >> np.uint64(bit) & np.uint64(1)) != 0]]] = True

    def _too_large(self, aggregate: Aggregate, error: Exception) -> UserFunctionError:
        cause = f"an aggregate is too large: beyond 64 bits, or beyond the digits of its decimal type ({error})"
        row = f"rows of a batch, column {aggregate.column!r}"
        return UserFunctionError(self._ctx.operator, self._ctx.subtask, row, cause)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return [values.snapshot() for _, values in self._values.values()] or None

    @override
    def restore(self, state: JsonValue) -> None:
        saved: Any = state or ()
        for (_, values), index in zip(self._values.values(), saved, strict=True):
            values.restore(index)

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        for part in parts:
            for (_, values), index in zip(self._values.values(), part.state or (), strict=True):
                values.inherit(part, index)
