"""Conditions on rows: which rows of a batch an aggregate counts.

A condition is an expression (SQL text or a column expression, as a tree), or a function that takes a record batch and
returns a boolean array with a value for each row. A null is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import TypeIs

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.row import USER_EXCEPTIONS, Verbatim, user_error
from flinkplus.operators.expressions import tree
from flinkplus.operators.expressions.tree import Part
from flinkplus.operators.rows.expressions import Condition, bound_condition

Flags = npt.NDArray[np.bool_]
Where: TypeAlias = "Part | Callable[[pa.RecordBatch], Any]"


def is_expression(where: Any) -> TypeIs[Part]:
    """Whether it is an expression, not a function."""
    return isinstance(where, (tree.Name, tree.Literal, tree.Call, tree.Cast, tree.Case, tree.Alias, tree.Star))


def check_where(operator: str, schema: pa.Schema, where: Where) -> None:
    """Raises ``ConfigurationError`` when it cannot be a condition on rows of ``schema``."""
    if is_expression(where):
        try:
            bound_condition(where, schema)
        except ConfigurationError as error:
            raise ConfigurationError(f"operator {operator!r}: where: {error}") from error.__cause__
    elif not callable(where):
        raise ConfigurationError(
            f"operator {operator!r}: where is SQL text, a column of flinkplus.functions or a function of a batch, not "
            f"{where!r}"
        )


def described(where: Where | None) -> str | None:
    """A condition in the description of a state, where another expression is refused and another function passes."""
    return None if where is None else str(where) if is_expression(where) else "function"


class Conditions:
    """Some conditions in one subtask; equal ones are computed once for each batch."""

    def __init__(self, wheres: Sequence[Where | None], ctx: OperatorContext) -> None:
        self._wheres: list[Where] = []
        for where in wheres:
            if where is not None and where not in self._wheres:
                self._wheres.append(where)
        self._flags = [_flags_of(where, ctx) for where in self._wheres]

    def on(self, batch: pa.RecordBatch) -> Passing:
        """Which rows of a batch pass them."""
        return Passing(batch, self._wheres, self._flags)


class Passing:
    """Which rows of one batch pass some conditions, computed when it is asked first."""

    def __init__(
        self, batch: pa.RecordBatch, wheres: Sequence[Where], flags: Sequence[Callable[[pa.RecordBatch], Flags]]
    ) -> None:
        self._batch, self._wheres, self._flags = batch, wheres, flags
        self._known: dict[int, Flags] = {}

    def of(self, where: Where | None) -> Flags | None:
        """The rows that pass ``where``; ``None``: all. Raises ``UserFunctionError`` when it fails for a row."""
        if where is None:
            return None
        at = self._wheres.index(where)
        if at not in self._known:
            self._known[at] = self._flags[at](self._batch)
        return self._known[at]


def _flags_of(where: Where, ctx: OperatorContext) -> Callable[[pa.RecordBatch], Flags]:
    if not is_expression(where):
        return lambda batch: _called(where, batch, ctx)
    condition = Condition(where, ctx)
    return lambda batch: _flags(condition.of(batch))


def _called(where: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, ctx: OperatorContext) -> Flags:
    what = Verbatim(f"where, for a batch of {batch.num_rows} rows")
    try:
        result = where(plain(batch, ctx.input_schema))
    except USER_EXCEPTIONS as error:
        raise user_error(ctx.operator, ctx.subtask, what, error) from error
    if isinstance(result, np.ndarray):
        result = pa.array(result)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array) or not pa.types.is_boolean(result.type) or len(result) != batch.num_rows:
        kind = str(result.type) if isinstance(result, pa.Array) else type(result).__name__
        cause = f"returned {kind}, not a boolean array with a value for each of the rows"
        raise UserFunctionError(ctx.operator, ctx.subtask, what, cause)
    return _flags(result)


def _flags(array: pa.Array) -> Flags:
    flags: Flags = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags
