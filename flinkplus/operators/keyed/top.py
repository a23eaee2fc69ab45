"""Keyed top-k: the k best items of each key, kept up to date; every change of the ranking is emitted.

Rules:

- Every row sets the value of an item; the last row of an item counts. A null or NaN value removes it.
- The better value ranks first; among equal values, the item that has had its value for longer.
- Each row emits the ranks of its key that it changes, best first: the key columns, ``rank`` (1, 2, ...), the item and
  its value, or nulls for a rank without an item. So a reader that keeps the last row for each key and rank has the
  ranking.
- Only ranked items are kept, k per key. So the ranking is exact as long as values never get worse: counts, sums of
  non-negative values, maxima. When a ranked item's value gets worse it keeps a rank, even if an item that is not kept
  would be better. A rank that a null has freed stays free until a row takes it.
- The result depends on the order of the rows alone, not on how they are cut into batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from operator import neg
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import plain_array
from flinkplus.operators.base.keys import check_key_columns, encode_keys
from flinkplus.operators.base.operator import MAX_OUTPUT_ROWS, KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.operators.base.schema import check_column
from flinkplus.operators.base.stored_state import StateView
from flinkplus.operators.base.values import is_counted, numbers_of
from flinkplus.operators.keyed.rankings import Order, check_ranking
from flinkplus.operators.keyed.views import RankingView, as_arrow
from flinkplus.protocol.program.description import Column, StateDescription


@dataclass(frozen=True)
class Top(KeyedOperator):
    """The ``k`` items with the largest values of column ``by`` (``ascending``: the smallest); see the module."""

    k: int
    by: str
    item: str
    ascending: bool = False
    output: str = "rank"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        self._check(schema)
        names = [*self.keys, self.output, self.item, self.by]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"operator {self.name!r}: its output would have a column twice: {names}")
        keys = [schema.field(key) for key in self.keys]
        found = [pa.field(column, schema.field(column).type) for column in (self.item, self.by)]
        return pa.schema([*keys, pa.field(self.output, pa.int64()), *found])

    def _check(self, schema: pa.Schema) -> None:
        check_ranking(self.name, schema, self.k, [Order(self.by, not self.ascending)])
        check_column(self.name, schema, self.item)
        check_key_columns(schema, (self.item,))
        if pa.types.is_floating(schema.field(self.item).type):
            raise ConfigurationError(
                f"operator {self.name!r}: the item column {self.item!r} is floating point, which cannot "
                "identify an item"
            )

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        kept = {"item": self.item, "value": self.by}
        rows = {"": tuple(Column(name=name, type=str(schema.field(column).type)) for name, column in kept.items())}
        settings = {"k": self.k, "ascending": self.ascending}
        return StateDescription(keys=self._key_types(schema), settings=settings, rows=rows)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _TopInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [RankingView(self.name, ranked=pa.struct(list(self.output_schema(schema))[len(self.keys) :]))]


class Ranking:
    """The items of one key, best first. ``scores``: ascending, the lower the better."""

    __slots__ = ("_k", "_scores_of", "items", "scores")

    def __init__(self, k: int, items: list[Any], scores: list[Any]) -> None:
        self._k = k
        self.items = items[:k]
        self.scores = scores[:k]
        self._scores_of = dict(zip(self.items, self.scores, strict=True))

    def put(self, item: Any, score: Any) -> range | None:
        """``item`` has ``score`` now; returns the positions that have changed."""
        items, scores, known = self.items, self.scores, self._scores_of
        before = known.get(item)
        if before is None:
            if len(items) == self._k:
                if score >= scores[-1]:
                    return None
                del known[items.pop()], scores[-1]
            first = bisect_right(scores, score)
            last = len(items)
        elif before == score:
            return None
        else:
            at = self._take_out(item, before)
            first, last = sorted((at, bisect_right(scores, score)))
        position = bisect_right(scores, score)
        items.insert(position, item)
        scores.insert(position, score)
        known[item] = score
        return range(first, last + 1)

    def remove(self, item: Any) -> range | None:
        """``item`` is out; returns the positions that have changed, the last of which has no item."""
        before = self._scores_of.pop(item, None)
        return None if before is None else range(self._take_out(item, before), len(self.items) + 1)

    def _take_out(self, item: Any, score: Any) -> int:
        at = self.items.index(item, bisect_left(self.scores, score))
        del self.items[at], self.scores[at]
        return at


class _TopInstance(OperatorInstance):
    """State: for each key the tuple (item, value, item, value, ...), best first."""

    def __init__(self, descriptor: Top, ctx: OperatorContext) -> None:
        self._descriptor = descriptor
        self._state = ctx.keyed_state().object_state(ctx.operator)
        self._item_type = ctx.input_schema.field(descriptor.item).type
        self._value_type = ctx.input_schema.field(descriptor.by).type
        self._schema = descriptor.output_schema(ctx.input_schema)
        self._score = _score_by(self._value_type, descriptor.ascending)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        descriptor, score = self._descriptor, self._score
        key = encode_keys(batch, descriptor.keys).made_distinct()
        keys = key.keys
        rankings = [self._ranking(kept) for kept in self._state.get_many(keys)]
        changed: dict[int, None] = {}
        output = _Changes()
        items = _as_python(plain_array(batch.column(descriptor.item), self._item_type))
        values = _as_python(plain_array(batch.column(descriptor.by), self._value_type))
        for row, (code, item, value) in enumerate(zip(key.codes.tolist(), items, values, strict=True)):
            ranking = rankings[code]
            positions = ranking.remove(item) if value is None or value != value else ranking.put(item, score(value))
            if positions is None:
                continue
            changed[code] = None
            output.add(row, ranking, positions)
            if len(output.rows) >= MAX_OUTPUT_ROWS:
                yield self._batch(batch, output)
                output = _Changes()
        if changed:
            self._state.put_many([keys[code] for code in changed], [self._kept(rankings[code]) for code in changed])
        if output.rows:
            yield self._batch(batch, output)

    def _ranking(self, kept: tuple[Any, ...] | None) -> Ranking:
        if kept is None:
            return Ranking(self._descriptor.k, [], [])
        return Ranking(self._descriptor.k, list(kept[::2]), list(map(self._score, kept[1::2])))

    def _kept(self, ranking: Ranking) -> tuple[Any, ...] | None:
        values = map(self._score, ranking.scores)
        return tuple(chain.from_iterable(zip(ranking.items, values, strict=True))) or None

    def _batch(self, batch: pa.RecordBatch, output: _Changes) -> pa.RecordBatch:
        rows = pa.array(output.rows)
        values = [None if score is None else self._score(score) for score in output.scores]
        columns = [batch.column(name).take(rows) for name in self._descriptor.keys]
        columns += [pa.array(output.ranks, pa.int64()), as_arrow(output.items, self._item_type)]
        return pa.RecordBatch.from_arrays([*columns, as_arrow(values, self._value_type)], names=self._schema.names)


def _score_by(value: pa.DataType, ascending: bool) -> Callable[[Any], Any]:
    """What makes a score, the lower the better, of a value, and a value of a score."""
    if ascending:
        return lambda value: value
    return Decimal.copy_negate if pa.types.is_decimal(value) else neg  # a minus would round to 28 digits


class _Changes:
    """Ranks that have changed: the input row that changed each, and what it holds."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.ranks: list[int] = []
        self.items: list[Any] = []
        self.scores: list[Any] = []

    def add(self, row: int, ranking: Ranking, positions: range) -> None:
        self.rows += [row] * len(positions)
        self.ranks += range(positions.start + 1, positions.stop + 1)
        self.items += ranking.items[positions.start : positions.stop]
        self.scores += ranking.scores[positions.start : positions.stop]
        if positions.stop > len(ranking.items):
            self.items.append(None)
            self.scores.append(None)


def _as_python(array: pa.Array) -> list[Any]:
    """Values that compare and pickle as they should, without loss: dates and times as the numbers that they are."""
    if is_counted(array.type):
        array = array.view(numbers_of(array.type))
    values: list[Any] = array.to_pylist()
    return values
