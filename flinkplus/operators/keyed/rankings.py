"""Orders of rows by several columns, ranks with ties, and the best rows of each key, kept up to date.

An order is columns, each ascending or descending. It is the same for the last row of a key (``last``), for rankings of
windows (``event_time.contents``) and for running ones (``TopRows``).

Rules of running rankings:

- each row is an item of its own; of rows that are equal in all columns of the order the earlier one ranks first;
- a row whose first value is null or NaN is not ranked; in further columns these come last;
- each row emits the ranks of its key that it changes, best first: the key columns, the rank (1, 2, ...), and the other
  columns of the row that has it. So a reader that keeps the last row for each key and rank has the ranking;
- the ``k`` rows of each key that are ranked are kept. Rows never leave a ranking but by better ones, so it is exact;
- the result depends on the order of rows alone, not on how they are cut into batches.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.keys import KeyCodes, check_key_columns, encode_keys
from flinkplus.operators.base.operator import MAX_OUTPUT_ROWS, KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.operators.base.schema import check_column
from flinkplus.operators.base.stored_state import ShownRows, StateView, StoredState, struct_of
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.views import as_arrow
from flinkplus.protocol.program.description import StateDescription

Integers = npt.NDArray[np.int64]
Ties = Literal["first", "rank", "dense"]
MAX_K = 10_000
"""A row may change all ranks of its key."""


@dataclass(frozen=True)
class Order:
    """One column of an order."""

    column: str
    descending: bool

    def __str__(self) -> str:
        return f"{self.column} {'DESC' if self.descending else 'ASC'}"

    @property
    def direction(self) -> str:
        """As Arrow has it."""
        return "descending" if self.descending else "ascending"


def orders_of(what: str, given: str | Sequence[str], schema: pa.Schema, descending: bool) -> tuple[Order, ...]:
    """The order that a user has given: a column, or several, each with ``ASC`` or ``DESC`` behind it if it is not the
    default.

    ``descending``: the default. Raises ``ConfigurationError``, which begins with ``what``.
    """
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, (tuple, list)) else [given]
    found = []
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ConfigurationError(f"{what} is a column, or a tuple of columns ('price', 'at DESC'), not {given!r}")
        name, _, word = text.strip().rpartition(" ")
        if text in schema.names or word.upper() not in ("ASC", "DESC"):
            found.append(Order(text, descending))
        else:
            found.append(Order(name.strip(), word.upper() == "DESC"))
    names = [order.column for order in found]
    if not names or len(set(names)) != len(names):
        raise ConfigurationError(f"{what} names no column, or one twice: {given!r}")
    return tuple(found)


def check_ranking(operator: str, schema: pa.Schema, k: Any, orders: Sequence[Order]) -> None:
    """Raises ``ConfigurationError`` when ``k`` rows cannot be ranked by these columns."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_K:
        raise ConfigurationError(f"operator {operator!r}: k is a number from 1 to {MAX_K}, not {k!r}")
    kinds = (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, decimals.is_decimal, is_counted)
    for order in orders:
        check_column(operator, schema, order.column)
        value = schema.field(order.column).type
        if not any(is_kind(value) for is_kind in kinds):
            raise ConfigurationError(
                f"operator {operator!r}: column {order.column!r} is {value}; only numbers and times can be ranked"
            )


def rankable(values: pa.Array) -> pa.Array:
    """Which values have a rank: neither null nor NaN."""
    valid = values.is_valid()
    if pa.types.is_floating(values.type):
        valid = pc.and_(valid, pc.invert(pc.is_nan(values).fill_null(True)))
    return valid


def starts_of(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Which rows differ from the row before in any of the columns; the first one does."""
    starts = np.zeros(len(columns[0]), np.bool_)
    starts[:1] = True
    for column in columns:
        is_float = pa.types.is_floating(column.type)
        values = pc.add(column, pa.scalar(0.0, column.type)) if is_float else column  # one zero only
        codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
        starts[1:] |= codes[1:] != codes[:-1]
    return starts


def ranks_of(keys: pa.Array, values: Sequence[pa.Array] = (), ties: Ties = "first") -> Integers:
    """From 1, the rank of each row among those with its key, which stand together and are sorted by ``values``.

    ``ties``: of rows with equal values: ``first``: by their position, as ``ROW_NUMBER``; ``rank``: that of the first of
    them, as ``RANK``; ``dense``: one more than that of the values before, as ``DENSE_RANK``.
    """
    if not len(keys):
        return np.zeros(0, np.int64)
    positions, begins = np.arange(len(keys)), starts_of([keys])
    first_of_key = np.maximum.accumulate(np.where(begins, positions, 0))
    if ties == "first":
        return positions - first_of_key + 1
    differs = starts_of([keys, *values])
    if ties == "rank":
        return np.maximum.accumulate(np.where(differs, positions, 0)) - first_of_key + 1
    counted: Integers = np.cumsum(differs)
    return np.asarray(counted - counted[first_of_key] + 1)


@dataclass(frozen=True)
class TopRows(KeyedOperator):
    """The ``k`` best rows of each key by ``orders``, kept up to date; see the module. ``output``: the column of the
    rank."""

    k: int
    orders: tuple[Order, ...]
    output: str = "rank"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        check_ranking(self.name, schema, self.k, self.orders)
        if self.output in schema.names:
            raise ConfigurationError(
                f"operator {self.name!r}: the input has a column {self.output!r} already; name the output otherwise"
            )
        rest = [field for field in schema if field.name not in self.keys]
        return pa.schema([*(schema.field(key) for key in self.keys), pa.field(self.output, pa.int64()), *rest])

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        columns = [f"{field.name} {field.type}" for field in schema]
        settings = {"k": self.k, "by": list(map(str, self.orders)), "columns": columns}
        return StateDescription(keys=self._key_types(schema), settings=settings)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _TopRowsInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [RankedRowsView(self.name, schema=schema)]


class _TopRowsInstance(OperatorInstance):
    """State: for each key the values of its ranked rows, best first, row by row in one tuple."""

    def __init__(self, descriptor: TopRows, ctx: OperatorContext) -> None:
        self._descriptor = descriptor
        self._schema = ctx.input_schema
        self._output = descriptor.output_schema(ctx.input_schema)
        self._state = ctx.keyed_state().object_state(ctx.operator)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        batch = plain(batch, self._schema)
        batch = batch.filter(rankable(batch.column(self._descriptor.orders[0].column)))
        if not batch.num_rows:
            return
        key = encode_keys(batch, self._descriptor.keys).made_distinct()
        keys, width = key.keys, len(self._schema)
        kept: list[tuple[Any, ...]] = [found or () for found in self._state.get_many(keys)]
        before = sum(map(len, kept)) // width
        rows = pa.concat_batches([rows_from(list(chain.from_iterable(kept)), self._schema), batch])
        rankings = self._rankings(rows, [len(each) // width for each in kept])
        changed: set[int] = set()
        for ids, ranks in self._changes(key, rankings, before, changed):
            columns = dict(zip(rows.schema.names, rows.take(pa.array(ids)).columns, strict=True))
            columns[self._descriptor.output] = pa.array(ranks, pa.int64())
            yield pa.RecordBatch.from_arrays([columns[name] for name in self._output.names], schema=self._output)
        if changed:
            self._keep(keys, rows, rankings, sorted(changed))

    def _rankings(self, rows: pa.RecordBatch, sizes: list[int]) -> _Rankings:
        """The rankings before the batch, whose rows are behind those that are kept."""
        scored = rows.select([order.column for order in self._descriptor.orders])
        order = pc.sort_indices(scored, [(each.column, each.direction) for each in self._descriptor.orders])
        scores = np.empty(len(order), np.int64)
        scores[order.to_numpy()] = np.arange(len(order))  # the sort is stable, and rows that are kept came before
        return _Rankings(scores, sizes)

    def _changes(
        self, key: KeyCodes, rankings: _Rankings, before: int, changed: set[int]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """What the rows of the batch change: positions of rows, and the ranks that they have now."""
        k = self._descriptor.k
        rows = before + np.flatnonzero(rankings.scores[before:] < rankings.worst(k)[key.codes])
        codes, scores = key.codes[rows - before].tolist(), rankings.scores[rows].tolist()
        changed_ids: list[int] = []
        changed_ranks: list[int] = []
        for row, code, score in zip(rows.tolist(), codes, scores, strict=True):
            best, ids = rankings.best[code], rankings.ids[code]
            if len(best) == k:
                if score > best[-1]:
                    continue
                del best[-1], ids[-1]
            at = bisect(best, score)
            best.insert(at, score)
            ids.insert(at, row)
            changed.add(code)
            changed_ids += ids[at:]
            changed_ranks += range(at + 1, len(ids) + 1)
            if len(changed_ids) >= MAX_OUTPUT_ROWS:
                yield changed_ids, changed_ranks
                changed_ids, changed_ranks = [], []
        if changed_ids:
            yield changed_ids, changed_ranks

    def _keep(self, keys: list[bytes], rows: pa.RecordBatch, rankings: _Rankings, changed: list[int]) -> None:
        ids = [rankings.ids[code] for code in changed]
        values = values_of(rows.take(pa.array(list(chain.from_iterable(ids)), pa.int64())))
        at, width, kept = 0, len(self._schema), []
        for each in ids:
            kept.append(tuple(values[at : at + len(each) * width]))
            at += len(each) * width
        self._state.put_many([keys[code] for code in changed], kept)


class _Rankings:
    """The rankings of the keys of a batch. ``scores``: of all rows, lower is better; first come those of each key in
    turn, ``sizes`` of them, best first.

    ``best``, ``ids``: of each key, the scores and the positions of its ranked rows.
    """

    def __init__(self, scores: Integers, sizes: list[int]) -> None:
        self.scores = scores
        self.best: list[list[int]] = []
        self.ids: list[list[int]] = []
        at = 0
        for size in sizes:
            self.best.append(scores[at : at + size].tolist())
            self.ids.append(list(range(at, at + size)))
            at += size

    def worst(self, k: int) -> Integers:
        """Of each key, a score that a row must stay below to be ranked."""
        none = len(self.scores)
        return np.array([best[-1] if len(best) == k else none for best in self.best], np.int64)


def values_of(rows: pa.RecordBatch) -> list[Any]:
    """The values of rows, row by row: dates and times as the numbers that they are."""
    columns = [
        (column.view(numbers_of(column.type)) if is_counted(column.type) else column).to_pylist()
        for column in rows.columns
    ]
    return list(chain.from_iterable(zip(*columns, strict=True)))


def rows_from(values: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``values_of``."""
    width = len(schema)
    columns = [as_arrow(list(values[at::width]), field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, kw_only=True)
class RankedRowsView(StateView):
    """The ranked rows of each key, best first: a list of structs."""

    schema: pa.Schema

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.list_(pa.struct(list(self.schema)))

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        for keys, kept in stored.objects(self.operator):
            rows = rows_from(list(chain.from_iterable(kept)), self.schema)
            ends = np.cumsum([0, *(len(each) // len(self.schema) for each in kept)])
            structs = struct_of(rows.columns, self.value_type.value_type)
            yield ShownRows(keys, pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs, type=self.value_type))
