"""Aggregates of groups of rows, in parts that can be made separately and merged: columnar.

A *partial* of an aggregate is one or two columns with a value for each group: of rows (``first``), or of several
partials (``merge``); ``result`` makes the output column of it.

Rules:

- the result depends on the order of the values in each group alone, on every machine. Sums and means of floating-point
  numbers, which are rounded, depend also on which partials were merged;
- a null counts for nothing; all aggregates of nothing but the counts are null, as in SQL;
- NaN is the largest number, as in Spark SQL: the least of numbers is NaN only if all are;
- a row that does not pass the filter ``where`` counts for nothing;
- the first and the last value are those by time; of equal times by the order of the rows;
- decimals are exact; the types of their sums and means are those of Spark SQL (``decimals``);
- an integer sum beyond 64 bits, or a decimal one beyond the digits of its type, is an ``OverflowError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import plain_array
from flinkplus.operators.base.keys import check_key_columns
from flinkplus.operators.base.schema import check_column
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.conditions import Where, check_where

PICKED = ("first", "last")
OF_ROWS = ("count_distinct", "collect_list")
"""Aggregates that are made of rows, not of a partial: what is kept of them grows with their values."""
KINDS = ("count", "sum", "min", "max", "mean", *PICKED, *OF_ROWS)
_SAFE_SUM = float(1 << 62)
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Which rows belong together: ``order`` sorts them by group, stably; ``starts``: where each group begins there."""

    order: Integers
    starts: Integers

    @staticmethod
    def of(codes: npt.NDArray[np.integer]) -> Groups:
        """Rows with equal codes, by rising code; there is at least one."""
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        return Groups(order, starts)

    @property
    def firsts(self) -> Integers:
        """The first row of each group."""
        return self.order[self.starts]

    @property
    def sizes(self) -> Integers:
        return np.diff(np.append(self.starts, len(self.order)))

    @cached_property
    def numbers(self) -> Integers:
        """The number of the group of each row."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        return numbers

    def picked(self, times: Integers, valid: npt.NDArray[np.bool_], last: bool) -> pa.Array:
        """The valid row of each group with the first time, or the last; null where no row is valid."""
        rows = np.flatnonzero(valid)
        rows = rows[np.lexsort((times[rows], self.numbers[rows]))]  # stable: of equal times the order of the rows
        group = self.numbers[rows]
        differs = group[1:] != group[:-1]
        at = np.flatnonzero(np.concatenate([differs, [True]] if last else [[True], differs])) if len(rows) else rows
        found = np.full(len(self.starts), -1)
        found[group[at]] = rows[at]
        return pa.array(found, mask=found < 0)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Raises ``OverflowError`` for integers beyond 64 bits."""
        ordered = values[self.order]
        groups = np.repeat(np.arange(len(self.starts)), self.sizes)
        if ordered.dtype == np.float64:
            return np.bincount(groups, ordered, len(self.starts))  # one by one, unlike a reduction
        if (np.bincount(groups, np.abs(ordered.astype(np.float64)), len(self.starts)) > _SAFE_SUM).any():
            return self._exact_sums(ordered)
        return np.add.reduceat(ordered, self.starts)

    def whole_sums(self, values: np.ndarray) -> np.ndarray:
        """As ``sums``, of integers of any size: int64 where that is large enough for sure."""
        if values.dtype == np.int64 and len(values):
            if np.abs(values.astype(np.float64)).sum() <= _SAFE_SUM:
                return np.add.reduceat(values[self.order], self.starts)
            values = values.astype(object)
        return np.add.reduceat(values[self.order], self.starts)

    def some(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether a flag is set for any row of each group."""
        return np.logical_or.reduceat(flags[self.order], self.starts)

    def _exact_sums(self, ordered: np.ndarray) -> np.ndarray:
        values, ends = ordered.tolist(), (self.starts + self.sizes).tolist()
        return np.array([sum(values[a:b]) for a, b in zip(self.starts.tolist(), ends, strict=True)], np.int64)


@dataclass(frozen=True)
class Aggregate:
    """``kind`` (one of ``KINDS``) of ``column``, as the column ``output``; a count without a column is of rows.

    ``where``: counts only the rows that pass (``conditions``).
    """

    output: str
    kind: str
    column: str | None = None
    where: Where | None = None

    @property
    def is_of_rows(self) -> bool:
        """Whether there is no partial of it (``OF_ROWS``)."""
        return self.kind in OF_ROWS

    def check(self, operator: str, schema: pa.Schema) -> None:
        """Raises ``ConfigurationError`` when it cannot be made of such rows."""
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"operator {operator!r}: {self.kind!r} is not an aggregate; the aggregates are {', '.join(KINDS)}"
            )
        if self.where is not None:
            check_where(operator, schema, self.where)
        if self.column is None:
            if self.kind != "count":
                raise ConfigurationError(f"operator {operator!r}: {self.kind} needs a column: ({self.kind!r}, column)")
            return
        check_column(operator, schema, self.column)
        dtype = schema.field(self.column).type
        if self.kind == "count_distinct":
            check_key_columns(schema, [self.column])
        numeric = pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or decimals.is_decimal(dtype)
        if self.kind in ("min", "max") and is_counted(dtype):
            return
        if self.kind in ("sum", "min", "max", "mean") and not numeric:
            raise ConfigurationError(
                f"operator {operator!r}: column {self.column!r} is {dtype}; {self.kind} is of numbers"
            )

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        if self.kind in ("count", "count_distinct"):
            return pa.int64()
        dtype = schema.field(self.column).type
        if self.kind == "mean":
            return decimals.mean_type(dtype) if decimals.is_decimal(dtype) else pa.float64()
        if self.kind == "collect_list":
            return pa.list_(dtype)
        return sum_type(dtype) if self.kind == "sum" else dtype

    def partial_types(self, schema: pa.Schema) -> list[pa.DataType]:
        """The columns of a partial."""
        if self.kind == "count":
            return [pa.int64()]
        dtype = schema.field(self.column).type
        if self.kind in PICKED:
            return [dtype, pa.int64()]
        if self.kind in ("min", "max") and is_counted(dtype):
            return [dtype]
        if self.kind == "mean":
            return [sum_type(dtype) if decimals.is_decimal(dtype) else pa.float64(), pa.int64()]
        return [dtype if decimals.is_decimal(dtype) and self.kind != "sum" else sum_type(dtype)]

    def first(
        self,
        batch: pa.RecordBatch,
        groups: Groups,
        types: Sequence[pa.DataType],
        times: Integers | None = None,
        passed: npt.NDArray[np.bool_] | None = None,
    ) -> list[pa.Array]:
        """The partial of the rows of a batch. Raises ``OverflowError`` and ``pa.ArrowInvalid`` for too large values.

        ``times``: of the rows, for the first and the last value. ``passed``: the rows that pass ``where``; default all.
        """
        if self.column is None:
            return [pa.array(groups.sizes if passed is None else groups.sums(passed.astype(np.int64)))]
        column = batch.column(self.column)
        valid = _valid(column)
        if passed is not None:
            valid = valid & passed
        if self.kind == "count":
            return [pa.array(groups.sums(valid.astype(np.int64)))]
        values = _rounded(column) if types[0] == pa.float64() else plain_array(column, types[0])
        if self.kind in PICKED:
            assert times is not None
            return self._picked(values, times, valid, groups)
        if passed is not None:
            values = pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))
        if self.kind == "mean":
            return [_summed(values, groups), pa.array(groups.sums(valid.astype(np.int64)))]
        return [_summed(values, groups) if self.kind == "sum" else self._extreme(values, valid, groups)]

    def merge(self, partials: list[pa.Array], groups: Groups) -> list[pa.Array]:
        """One partial of several, which stand one behind the other."""
        if self.kind in ("min", "max"):
            return [self._extreme(partials[0], _valid(partials[0]), groups)]
        if self.kind in PICKED:
            times = partials[1].fill_null(0).to_numpy(zero_copy_only=False)
            return self._picked(partials[0], times, _valid(partials[1]), groups)
        return [_summed(column, groups) for column in partials]

    def _picked(
        self, values: pa.Array, times: Integers, valid: npt.NDArray[np.bool_], groups: Groups
    ) -> list[pa.Array]:
        rows = groups.picked(times, valid, self.kind == "last")
        return [values.take(rows), pa.array(times).take(rows)]

    def _extreme(self, values: pa.Array, valid: npt.NDArray[np.bool_], groups: Groups) -> pa.Array:
        if is_counted(values.type):
            return self._extreme(values.view(numbers_of(values.type)), valid, groups).view(values.type)
        least, is_decimal = self.kind == "min", decimals.is_decimal(values.type)
        if is_decimal:
            nothing: float = 10**decimals.MAX_DIGITS * (1 if least else -1)
            numbers = decimals.unscaled(values)
            numbers = numbers if valid.all() else np.where(valid, numbers.astype(object), nothing)
        else:
            nothing = _beyond_all(values.type, least)
            numbers = values.fill_null(pa.scalar(nothing, values.type)).to_numpy(zero_copy_only=False)
            if pa.types.is_floating(values.type):
                numbers = numbers + 0.0  # one zero only: which of two is the less is not the same everywhere
        reduced = (np.fmin if least else np.maximum).reduceat(numbers[groups.order], groups.starts)
        none = ~groups.some(valid)
        if is_decimal:
            return decimals.from_unscaled(np.where(none, 0, reduced) if none.any() else reduced, values.type, none)
        return pa.array(reduced, values.type, mask=none)

    def result(self, partial: list[pa.Array], dtype: pa.DataType) -> pa.Array:
        """The output column. Raises ``OverflowError`` for a mean with more digits than its type has."""
        if self.kind != "mean":
            return plain_array(partial[0], dtype)
        if decimals.is_decimal(dtype):
            return decimals.means(partial[0], partial[1].to_numpy(zero_copy_only=False), dtype)
        sums, counts = (column.to_numpy(zero_copy_only=False) for column in partial)
        return pa.array(sums / np.maximum(counts, 1), pa.float64(), mask=counts == 0)


def sum_type(dtype: pa.DataType) -> pa.DataType:
    """The type of a sum of numbers: int64 of integers, float64 of floating point, of decimals Spark SQL's."""
    if decimals.is_decimal(dtype):
        return decimals.sum_type(dtype)
    return pa.int64() if pa.types.is_integer(dtype) else pa.float64()


def _beyond_all(dtype: pa.DataType, least: bool) -> float:
    """What stands for a null where the least, or the greatest, is looked for."""
    if pa.types.is_floating(dtype):
        return np.nan if least else -np.inf
    limits = np.iinfo(np.int32 if dtype == pa.int32() else np.int64)
    return limits.max if least else limits.min


def _rounded(column: pa.Array) -> pa.Array:
    """Numbers as float64, rounded where they have more digits."""
    return plain_array(column, value_type(column.type)).cast(pa.float64(), safe=False)


def value_type(dtype: pa.DataType) -> pa.DataType:
    """The type of the values of a column, which may be dictionary-encoded."""
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = (
        plain_array(column, value_type(column.type)).is_valid().to_numpy(zero_copy_only=False)
    )
    return valid


def _summed(values: pa.Array, groups: Groups) -> pa.Array:
    """The sums of what is not null; null where all is."""
    none = ~groups.some(_valid(values))
    if decimals.is_decimal(values.type):
        return decimals.from_unscaled(groups.whole_sums(decimals.unscaled(values)), values.type, none)
    return pa.array(groups.sums(values.fill_null(0).to_numpy(zero_copy_only=False)), values.type, mask=none)
