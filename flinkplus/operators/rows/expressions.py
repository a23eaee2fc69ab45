"""Expressions on rows: ``Select`` makes columns, ``Where`` keeps the rows for which a condition is true.

Rules: columns that are not changed are passed on without a copy, in the form in which they came. A row for which an
expression is an error (overflow, division by zero, text that is no number) is named in the ``UserFunctionError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import cut
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance
from flinkplus.operators.base.row import Verbatim, rows_of, user_error
from flinkplus.operators.expressions.binding import bind, columns
from flinkplus.operators.expressions.bound import FAILURES, Bound, RowValues
from flinkplus.operators.expressions.functions.logic import condition
from flinkplus.operators.expressions.tree import Part
from flinkplus.operators.rows.rejects import OnError, dead_letter_outputs, rejecting
from flinkplus.printable import printable

T = TypeVar("T")
LONGEST_REASON = 500


@dataclass(frozen=True)
class _ExpressionOperator(Operator):
    """``name`` and what its rows that are errors do."""

    name: str

    def _named(self, make: Callable[[], T]) -> T:
        """``make()``, with the operator's name in a ``ConfigurationError``."""
        try:
            return make()
        except ConfigurationError as error:
            raise ConfigurationError(f"operator {self.name!r}: {error}") from error.__cause__


@dataclass(frozen=True)
class Select(_ExpressionOperator):
    """The columns ``parts`` of each row."""

    parts: tuple[Part, ...]
    on_error: OnError = "fail"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        found = self._named(lambda: columns(self.parts, schema))
        return pa.schema([_field(name, bound, schema) for name, bound in found])

    @override
    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        return dead_letter_outputs(self.name, schema, self.on_error)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_SelectInstance(self, ctx), ctx, self.on_error)


def _field(name: str, bound: Bound, schema: pa.Schema) -> pa.Field:
    """A column that is passed on keeps its type; one that is computed may be null, unless it is a constant."""
    if bound.column is not None:
        return schema.field(bound.column).with_name(name)
    return pa.field(name, bound.dtype, bound.nullable)


def _failure(
    batch: pa.RecordBatch, bounds: Sequence[tuple[str, Bound]], ctx: OperatorContext
) -> UserFunctionError | None:
    """The error of the first row for which one of the expressions is one."""
    for name, bound in bounds:
        try:
            bound.array(RowValues(batch, ctx.now_ms))
        except FAILURES as error:
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                return _failure(batch.slice(0, half), bounds, ctx) or _failure(batch.slice(half), bounds, ctx)
            cause = f"{name}: {printable(error, LONGEST_REASON)}"
            return user_error(ctx.operator, ctx.subtask, _shown(batch, ctx), cause)
    return None


def _shown(row: pa.RecordBatch, ctx: OperatorContext) -> object:
    try:
        return rows_of(row, ctx)[0]
    except UserFunctionError as error:  # a value that Python cannot show
        return Verbatim(error.row)


class _SelectInstance(OperatorInstance):
    gives_row_for_row = True

    def __init__(self, descriptor: Select, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._columns = columns(descriptor.parts, ctx.input_schema)
        self._schema = descriptor.output_schema(ctx.input_schema)
        self.joins_steps = not any(bound.tells_time for _, bound in self._columns)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        rows = RowValues(batch, self._ctx.now_ms)
        try:
            arrays = [
                batch.column(bound.column) if bound.column is not None else bound.array(rows)
                for _, bound in self._columns
            ]
        except FAILURES as error:
            raise _failure(batch, self._columns, self._ctx) or error from error
        yield from cut(pa.RecordBatch.from_arrays(arrays, schema=self._as_it_is(arrays)))

    def _as_it_is(self, arrays: Sequence[pa.Array]) -> pa.Schema:
        """The schema of the output, with dictionaries where columns that are passed on have them."""
        if all(array.type == field.type for array, field in zip(arrays, self._schema, strict=True)):
            return self._schema
        fields = [field.with_type(array.type) for array, field in zip(arrays, self._schema, strict=True)]
        return pa.schema(fields)


def bound_condition(part: Part, schema: pa.Schema) -> Bound:
    """A condition on rows of ``schema``. Raises ``ConfigurationError``."""
    return condition(bind(part, schema))


class Computed:
    """An expression in one subtask."""

    def __init__(self, part: Part, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._text = str(part)
        self._bound = self._bind(part)
        self.tells_time = self._bound.tells_time

    def _bind(self, part: Part) -> Bound:
        return bind(part, self._ctx.input_schema)

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Its value, which may be null, for each row. Raises ``UserFunctionError`` for a row that has none."""
        try:
            return self._bound.array(RowValues(batch, self._ctx.now_ms))
        except FAILURES as error:
            raise _failure(batch, [(self._text, self._bound)], self._ctx) or error from error


class Condition(Computed):
    """A condition in one subtask; its values are booleans."""

    @override
    def _bind(self, part: Part) -> Bound:
        return bound_condition(part, self._ctx.input_schema)


@dataclass(frozen=True)
class Where(_ExpressionOperator):
    """The rows for which a condition is true; neither false nor null."""

    condition: Part
    on_error: OnError = "fail"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        self._named(lambda: bound_condition(self.condition, schema))
        return schema

    @override
    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        return dead_letter_outputs(self.name, schema, self.on_error)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return rejecting(_WhereInstance(self, ctx), ctx, self.on_error)


class _WhereInstance(OperatorInstance):
    def __init__(self, descriptor: Where, ctx: OperatorContext) -> None:
        self._condition = Condition(descriptor.condition, ctx)
        self.joins_steps = not self._condition.tells_time

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        kept = self._condition.of(batch)
        if kept.true_count == batch.num_rows:
            yield from cut(batch)
        elif kept.true_count:
            yield from cut(batch.filter(kept))
