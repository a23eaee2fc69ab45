"""Expressions whose columns are known: each has a type, and gives its values for the rows of a batch.

Rules:

- ``run`` gives an array with a value for each row, or a scalar that counts for all rows. It raises for a row whose
  value is an error: overflow, division by zero, text that is no number. The caller finds out which row that
  is, by asking for fewer rows.
- a value depends on its row alone, except for ``current_timestamp``, which is the time of the step;
- a value that is not wanted is not computed where it could be an error (``chosen``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import plain_array
from flinkplus.operators.expressions.types import normal

Values = Any
"""``pa.Array`` or ``pa.Scalar``: pyarrow has no types."""
Kernel = Callable[..., Values]
FAILURES = (pa.ArrowException, ValueError, ArithmeticError, TypeError, KeyError, IndexError)
"""What computing a value raises for a row that has none."""
NO_CONSTANT = object()


class RowValues:
    """The rows of one batch, whose columns are decoded once. ``now_ms``: the time of the step."""

    def __init__(self, batch: pa.RecordBatch, now_ms: Callable[[], int]) -> None:
        self.batch = batch
        self.count = batch.num_rows
        self.now_ms = now_ms
        self._columns: dict[int, pa.Array] = {}
        self._shared: dict[object, Values] = {}

    def column(self, position: int, dtype: pa.DataType) -> pa.Array:
        """A column, plain, in the type that is computed with."""
        found = self._columns.get(position)
        if found is None:
            found = self._columns[position] = plain_array(self.batch.column(position), dtype)
        return found

    def shared(self, token: object, run: Callable[[RowValues], Values]) -> Values:
        """``run(self)``, computed once for each ``token``."""
        if token not in self._shared:
            self._shared[token] = run(self)
        return self._shared[token]

    def only(self, mask: pa.Array) -> RowValues:
        """The rows for which ``mask`` is true."""
        return RowValues(self.batch.filter(mask), self.now_ms)

    def part(self, start: int, count: int) -> RowValues:
        """Some consecutive rows."""
        return RowValues(self.batch.slice(start, count), self.now_ms)

    def array(self, values: Values) -> pa.Array:
        """``values`` as an array with a value for each row."""
        if isinstance(values, pa.Scalar):
            return pa.repeat(values, self.count)
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


@dataclass(frozen=True)
class Bound:
    """An expression with its type.

    ``constant``: its value, where that is known; otherwise ``NO_CONSTANT``.
    ``column``: the position of the column that it is, unchanged.
    ``nullable``: whether it may be null.
    ``fails``: whether it may raise for some row.
    ``tells_time``: whether it depends on the time of the step.
    ``attempt``: as ``run``, with null for rows whose error is seen before they are computed; ``None``: as ``run``.
    """

    dtype: pa.DataType
    run: Callable[[RowValues], Values]
    constant: Any = NO_CONSTANT
    column: int | None = None
    nullable: bool = True
    fails: bool = False
    tells_time: bool = False
    attempt: Callable[[RowValues], Values] | None = None

    @property
    def is_constant(self) -> bool:
        return self.constant is not NO_CONSTANT

    def array(self, rows: RowValues) -> pa.Array:
        """A value for each row."""
        return rows.array(self.run(rows))


def constant(value: Any, dtype: pa.DataType) -> Bound:
    """A constant."""
    scalar = pa.scalar(value, dtype)
    return Bound(dtype, lambda rows: scalar, value, nullable=value is None)


def column_at(position: int, field: pa.Field) -> Bound:
    """A column of the input."""
    dtype = normal(field.type)
    return Bound(dtype, lambda rows: rows.column(position, dtype), column=position, nullable=field.nullable)


def applied(dtype: pa.DataType, kernel: Kernel, *arguments: Bound, fails: bool = False) -> Bound:
    """``kernel`` of the values of ``arguments``, which gives values of ``dtype``. ``fails``: it may raise itself."""

    def run(rows: RowValues) -> Values:
        return kernel(*[argument.run(rows) for argument in arguments])

    return derived(dtype, run, arguments, fails)


def on_arrays(
    dtype: pa.DataType, kernel: Kernel, *arguments: Bound, fails: bool = False, attempt: Kernel | None = None
) -> Bound:
    """As ``applied``, for a kernel that takes arrays only. ``attempt``: the kernel for ``Bound.attempt``."""

    def run(rows: RowValues) -> Values:
        return kernel(*[argument.array(rows) for argument in arguments])

    def run_attempt(rows: RowValues) -> Values:
        assert attempt is not None
        return attempt(*[argument.array(rows) for argument in arguments])

    found = derived(dtype, run, arguments, fails)
    return found if attempt is None else replace(found, attempt=run_attempt)


def once(value: Bound) -> Bound:
    """``value``, for a function that needs it several times: it is computed once for the rows of a batch."""
    if value.is_constant or value.column is not None:
        return value
    token = object()
    return replace(value, run=lambda rows: rows.shared(token, value.run))


def derived(
    dtype: pa.DataType, run: Callable[[RowValues], Values], arguments: tuple[Bound, ...], fails: bool = False
) -> Bound:
    """An expression that is computed from others."""
    return Bound(
        dtype,
        run,
        fails=fails or any(argument.fails for argument in arguments),
        tells_time=any(argument.tells_time for argument in arguments),
    )


def by_value(
    dtype: pa.DataType, function: Callable[..., Any], *arguments: Bound, fails: bool = False, of_null: bool = False
) -> Bound:
    """A Python function of the values of each row, for what Arrow does not have. Equal arguments are computed once.

    ``of_null``: it also gets nulls (as ``None``); otherwise a null makes the result null.
    """

    keys = [_with_signs_of_zero if pa.types.is_floating(argument.dtype) else _as_it_is for argument in arguments]

    def computed(arrays: Sequence[pa.Array], function: Callable[..., Any]) -> pa.Array:
        known: dict[tuple[Any, ...], Any] = {}
        results: list[Any] = []
        columns = [array.to_pylist() for array in arrays]
        found = [key(column) for key, column in zip(keys, columns, strict=True)]
        for key, values in zip(zip(*found, strict=True), zip(*columns, strict=True), strict=True):
            if not of_null and None in values:
                results.append(None)
                continue
            if key not in known:
                known[key] = function(*values)
            results.append(known[key])
        return pa.array(results, dtype)

    def attempted_function(*values: Any) -> Any:
        try:
            return function(*values)
        except FAILURES:
            return None

    return on_arrays(
        dtype,
        lambda *arrays: computed(arrays, function),
        *arguments,
        fails=fails,
        attempt=(lambda *arrays: computed(arrays, attempted_function)) if fails else None,
    )


def _as_it_is(values: list[Any]) -> list[Any]:
    return values


def _with_signs_of_zero(numbers: list[float | None]) -> list[str]:
    """Zero and minus zero are equal, and may have different results: as texts they are not."""
    return list(map(repr, numbers))


def chosen(rows: RowValues, mask: pa.Array, value: Bound) -> pa.Array:
    """``value`` of the rows for which ``mask`` is true, computed for them alone if it may fail; others get any value,
    or null."""
    if not value.fails:
        return value.array(rows)
    picked: npt.NDArray[np.bool_] = np.asarray(mask.fill_null(False))
    if picked.all():
        return value.array(rows)
    found = value.array(rows.only(pa.array(picked)))
    return found.take(pa.array(np.cumsum(picked) - 1, pa.int64(), mask=~picked))


def attempted(value: Bound) -> Bound:
    """``value``, and null where it is an error."""

    attempt = value.attempt or value.run

    def run(rows: RowValues) -> Values:
        try:
            return attempt(rows)
        except FAILURES:
            if rows.count <= 1:
                return pa.nulls(rows.count, value.dtype)
            half = rows.count // 2
            parts = [rows.part(0, half), rows.part(half, rows.count - half)]
            return pa.concat_arrays([part.array(run(part)) for part in parts])

    return Bound(value.dtype, run, tells_time=value.tells_time) if value.fails else value


def constant_of(argument: Bound, name: str, kind: type | tuple[type, ...]) -> Any:
    """The value of an argument that must be a constant, and not null."""
    if not argument.is_constant or not isinstance(argument.constant, kind) or isinstance(argument.constant, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        words = " or ".join("text" if one is str else "a whole number" for one in kinds)
        raise ConfigurationError(f"{name} must be a constant, {words}")
    return argument.constant
