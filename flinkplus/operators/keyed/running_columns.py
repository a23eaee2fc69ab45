"""The columns of running aggregates, each made of a batch at once.

A ``RunningColumn`` takes the rows of a batch and what is kept for each of its keys, and gives the results of all rows
and what is kept then. What is kept is plain Python: a number, a pair, or ``None`` before the first value that counts.

Rules: results do not depend on how rows are cut into batches. Sums of floating-point numbers are made one by one, and
so are means where the sum of whole numbers has more than 53 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import plain_array
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.conditions import Passing
from flinkplus.operators.keyed.views import as_arrow
from flinkplus.state.hashing import small_unsigned

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
_SAFE_SUM = float(1 << 62)
_EXACT_SUM = float(1 << 53)
_LIMIT = 1 << 63


class Scan:
    """The rows of a batch sorted by key, stably, and what runs along the rows of each key up to each row. All arrays
    are of sorted rows.

    ``codes``: of each row, in the batch's order; each of 0 to ``keys`` - 1 at least once.
    ``order``: the rows of the batch, sorted. ``group``: the code of each. ``starts``, ``ends``: the first and the last
    position of each code.
    """

    def __init__(self, codes: npt.NDArray[np.integer], keys: int) -> None:
        self.order: Integers = np.argsort(codes.astype(small_unsigned(keys)), kind="stable")
        self.group: npt.NDArray[np.integer] = codes[self.order]
        self._sizes = np.bincount(codes, minlength=keys)
        self.starts: Integers = self._sizes.cumsum() - self._sizes
        self.ends: Integers = self.starts + self._sizes - 1

    @cached_property
    def _places(self) -> Integers:
        """Of each row, how many rows of its key are before it."""
        return np.arange(len(self.order)) - self.starts[self.group]

    def in_batch_order(self, values: np.ndarray) -> np.ndarray:
        """Values of sorted rows, in the order of the batch."""
        found = np.empty_like(values)
        found[self.order] = values
        return found

    def sums(self, values: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The running sum of whole numbers, counting on from ``before`` of each key. The sum over all rows must fit."""
        totals = np.cumsum(values)
        bases = before - (totals[self.starts] - values[self.starts])
        return totals + bases[self.group]

    def extremes(self, better: Callable[[Any, Any], Any], values: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The running ``better`` of two, such as ``np.maximum``; ``before``: of each key, what it had."""
        found = values.copy()
        found[self.starts] = better(before, found[self.starts])
        step, longest = 1, int(self._sizes.max())
        while step < longest:  # each row has that of the rows up to it, and twice as many each time
            at = np.flatnonzero(self._places >= step)
            found[at] = better(found[at - step], found[at])
            step *= 2
        return found

    def latest(self, flags: Flags) -> Integers:
        """The position of the last flagged row of its key up to each row; -1 where there is none."""
        at = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
        return np.where(at >= self.starts[self.group], at, -1)

    def first(self, flags: Flags) -> Integers:
        """The same for the first flagged row."""
        positions = np.arange(len(flags))
        firsts = np.minimum.reduceat(np.where(flags, positions, len(flags)), self.starts)[self.group]
        return np.where(firsts <= positions, firsts, -1)


class RunningColumn(ABC):
    """One aggregate of rows of ``schema``."""

    def __init__(self, aggregate: Aggregate, schema: pa.Schema) -> None:
        self.aggregate = aggregate
        self._result = aggregate.result_type(schema)
        self._type = None if aggregate.column is None else schema.field(aggregate.column).type

    def counted(self, batch: pa.RecordBatch, passing: Passing) -> Flags:
        """Which rows count."""
        counted = passing.of(self.aggregate.where)
        if self._type is not None:
            values = self._values(batch)
            if values.null_count:
                valid: Flags = values.is_valid().to_numpy(zero_copy_only=False)
                counted = valid if counted is None else counted & valid
        return np.ones(batch.num_rows, np.bool_) if counted is None else counted

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        return plain_array(batch.column(self.aggregate.column), self._type)

    @abstractmethod
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        """The results of all rows, in their order, and what is kept of each key. ``before``: what was kept.

        ``counted``: the rows that count. Raises ``OverflowError`` for what the type of the results does not hold.
        """


def _numbers(array: pa.Array) -> np.ndarray:
    """Whole numbers: int64, or Python's where these are too large; the unscaled ones of decimals; 0 for a null."""
    if decimals.is_decimal(array.type):
        return decimals.unscaled(array)
    if is_counted(array.type):
        array = array.view(numbers_of(array.type))
    numbers: np.ndarray = array.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers.astype(object if numbers.dtype == np.uint64 else np.int64)


def _floats(array: pa.Array) -> npt.NDArray[np.float64]:
    floats: npt.NDArray[np.float64] = array.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
    return floats


def _is_small(numbers: np.ndarray, before: np.ndarray, limit: float) -> bool:
    """Whether no sum of these, on top of ``before``, comes to ``limit``."""
    both = (numbers, before)
    if any(part.dtype == object and max(map(abs, part.tolist())) >= limit for part in both):
        return False  # asked first: Python's numbers may be too large for a floating-point one
    return bool(np.abs(numbers.astype(np.float64)).sum() + np.abs(before.astype(np.float64)).max() < limit)


def _known_before(before: list[Any]) -> Flags:
    return np.array([kept is not None for kept in before])


def _listed(values: np.ndarray, known: Flags) -> list[Any]:
    """What is kept: ``None`` for a key without a value."""
    if known.all():
        return list(values.tolist())
    return [value if some else None for value, some in zip(values.tolist(), known.tolist(), strict=True)]


class Counts(RunningColumn):
    """``count``, and ``count_distinct`` of rows that bring a new value."""

    @override
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        running = scan.sums(counted[scan.order].astype(np.int64), np.array([kept or 0 for kept in before], np.int64))
        return pa.array(scan.in_batch_order(running)), running[scan.ends].tolist()


class Sums(RunningColumn):
    """The sum of whole numbers or decimals."""

    @override
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        running, known = _whole_sums(scan, _numbers(self._values(batch)), counted, before)
        kept = _listed(running[scan.ends], known[scan.ends])
        none = ~known
        if decimals.is_decimal(self._result):
            shown = decimals.from_unscaled(scan.in_batch_order(running), self._result, scan.in_batch_order(none))
            return shown, kept
        if running.dtype == object:
            if any(not -_LIMIT <= number < _LIMIT for number in running.tolist()):
                raise OverflowError("beyond 64 bits")
            running = running.astype(np.int64)
        return pa.array(scan.in_batch_order(running), mask=scan.in_batch_order(none)), kept


def _whole_sums(scan: Scan, numbers: np.ndarray, counted: Flags, before: list[Any]) -> tuple[np.ndarray, Flags]:
    """The running sums of sorted rows, and whether the key of each has had a value by then."""
    flags = counted[scan.order]
    values = np.where(flags, numbers[scan.order], 0)
    bases = _array([kept or 0 for kept in before])
    if not _is_small(values, bases, _SAFE_SUM):
        values, bases = values.astype(object), bases.astype(object)
    known = (scan.latest(flags) >= 0) | _known_before(before)[scan.group]
    return scan.sums(values, bases), known


def _array(numbers: list[int]) -> np.ndarray:
    """int64 where all of them fit."""
    fit = all(-_LIMIT <= number < _LIMIT for number in numbers)
    return np.array(numbers, np.int64 if fit else object)


class FloatSums(RunningColumn):
    """The sum of floating-point numbers."""

    @override
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        running, kept = _one_by_one(scan, _floats(self._values(batch)), counted, before)
        known = (scan.latest(counted[scan.order]) >= 0) | _known_before(before)[scan.group]
        return pa.array(scan.in_batch_order(running), mask=scan.in_batch_order(~known)), kept


def _one_by_one(
    scan: Scan, numbers: npt.NDArray[np.float64], counted: Flags, before: list[Any]
) -> tuple[npt.NDArray[np.float64], list[Any]]:
    """The running sums of sorted rows, and of each key the last one."""
    so_far, running = list(before), []
    rows = zip(scan.group.tolist(), numbers[scan.order].tolist(), counted[scan.order].tolist(), strict=True)
    for code, number, counts in rows:
        if counts:
            so_far[code] = number if so_far[code] is None else so_far[code] + number
        running.append(0.0 if so_far[code] is None else so_far[code])
    return np.array(running, np.float64), so_far


class Means(RunningColumn):
    """The mean. Kept: the sum, a whole number for decimals and otherwise floating point, and the count."""

    @override
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        counts = scan.sums(
            counted[scan.order].astype(np.int64), np.array([0 if kept is None else kept[1] for kept in before])
        )
        sums_before = [None if kept is None else kept[0] for kept in before]
        if decimals.is_decimal(self._result):
            sums, _ = _whole_sums(scan, _numbers(self._values(batch)), counted, sums_before)
            total = decimals.from_unscaled(sums, decimals.sum_type(self._type))
            order = pa.array(scan.in_batch_order(np.arange(len(sums))))
            shown = decimals.means(total, counts, self._result).take(order)
        else:
            sums = self._float_sums(scan, self._values(batch), counted, sums_before)
            means = sums / np.maximum(counts, 1)
            shown = pa.array(scan.in_batch_order(means), mask=scan.in_batch_order(counts == 0))
        pairs = zip(sums[scan.ends].tolist(), counts[scan.ends].tolist(), strict=True)
        return shown, [pair if pair[1] else None for pair in pairs]

    def _float_sums(self, scan: Scan, values: pa.Array, counted: Flags, before: list[Any]) -> npt.NDArray[np.float64]:
        """Of whole numbers below 2**53 each partial sum is exact, in any order. A sum may have a fraction where the
        column had fractions in an earlier program."""
        floats = _floats(values)
        bases = np.array([kept or 0.0 for kept in before])
        is_whole = pa.types.is_integer(values.type) and bool((bases == np.floor(bases)).all())
        if is_whole and _is_small(np.where(counted, floats, 0.0), bases, _EXACT_SUM):
            numbers = np.where(counted, floats, 0.0).astype(np.int64)[scan.order]
            return scan.sums(numbers, bases.astype(np.int64)).astype(np.float64)
        return _one_by_one(scan, floats, counted, before)[0]


class Extremes(RunningColumn):
    """``min`` and ``max``."""

    @override
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        values, flags, known_before = self._values(batch), counted[scan.order], _known_before(before)
        least, is_float = self.aggregate.kind == "min", pa.types.is_floating(values.type)
        numbers = _floats(values) + 0.0 if is_float else _numbers(values)
        bases = np.array([kept or 0.0 for kept in before]) if is_float else _array([kept or 0 for kept in before])
        if bases.dtype != numbers.dtype:
            numbers, bases = numbers.astype(object), bases.astype(object)
        worst = _worst(numbers, least)
        better = (np.fmin if is_float else np.minimum) if least else np.maximum
        running = scan.extremes(
            better, np.where(flags, numbers[scan.order], worst), np.where(known_before, bases, worst)
        )
        known = (scan.latest(flags) >= 0) | known_before[scan.group]
        kept = _listed(running[scan.ends], known[scan.ends])
        running, none = scan.in_batch_order(np.where(known, running, 0)), scan.in_batch_order(~known)
        return _of_numbers(running, none, self._result), kept


def _worst(numbers: np.ndarray, least: bool) -> Any:
    """What stands for a value that does not count: no value is worse."""
    if numbers.dtype == np.float64:
        return np.nan if least else -np.inf
    if numbers.dtype == object:
        return 10**decimals.MAX_DIGITS * (1 if least else -1)
    return np.iinfo(np.int64).max if least else np.iinfo(np.int64).min


def _of_numbers(numbers: np.ndarray, none: Flags, dtype: pa.DataType) -> pa.Array:
    """The values whose numbers these are."""
    if decimals.is_decimal(dtype):
        return decimals.from_unscaled(numbers, dtype, none)
    if is_counted(dtype):
        return pa.array(numbers.astype(np.int64), mask=none).cast(numbers_of(dtype)).view(dtype)
    if numbers.dtype == object:
        return pa.array(numbers.tolist(), dtype, mask=none)
    return pa.array(numbers, mask=none).cast(dtype)


class Picked(RunningColumn):
    """``first`` and ``last``, by the order of the rows. Kept: the value in a tuple, since it may be anything."""

    @override
    def results(
        self, scan: Scan, batch: pa.RecordBatch, counted: Flags, before: list[Any]
    ) -> tuple[pa.Array, list[Any]]:
        values, flags, last = self._values(batch), counted[scan.order], self.aggregate.kind == "last"
        at = scan.latest(flags) if last else scan.first(flags)
        known = _known_before(before)
        if not last:
            at = np.where(known[scan.group], -1, at)
        rows = scan.order[np.maximum(at, 0)] + len(before)
        rows = np.where(at >= 0, rows, np.where(known[scan.group], scan.group, -1))
        both = pa.concat_arrays([self._kept_values(before), values])
        shown = both.take(pa.array(scan.in_batch_order(rows), mask=scan.in_batch_order(rows) < 0))
        fresh = np.flatnonzero(at[scan.ends] >= 0)
        found = self._plain(values.take(pa.array(scan.order[at[scan.ends][fresh]])))
        kept = list(before)
        for code, value in zip(fresh.tolist(), found, strict=True):
            kept[code] = (value,)
        return shown, kept

    def _kept_values(self, before: list[Any]) -> pa.Array:
        values = [None if kept is None else kept[0] for kept in before]
        if decimals.is_decimal(self._type):
            none = np.array([value is None for value in values])
            return decimals.from_unscaled([value or 0 for value in values], self._type, none)
        return as_arrow(values, self._type)

    def _plain(self, values: pa.Array) -> list[Any]:
        if decimals.is_decimal(self._type):
            return list(decimals.unscaled(values).tolist())
        if is_counted(self._type):
            values = values.view(numbers_of(self._type))
        return list(values.to_pylist())


def running_column(aggregate: Aggregate, schema: pa.Schema) -> RunningColumn:
    """The column of an aggregate, of a kind that ``RunningAggregates`` takes."""
    kinds: dict[str, type[RunningColumn]] = {
        "count": Counts,
        "count_distinct": Counts,
        "sum": FloatSums if aggregate.kind == "sum" and aggregate.result_type(schema) == pa.float64() else Sums,
        "mean": Means,
        "min": Extremes,
        "max": Extremes,
        "first": Picked,
        "last": Picked,
    }
    return kinds[aggregate.kind](aggregate, schema)
