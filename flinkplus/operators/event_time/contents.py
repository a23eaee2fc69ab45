"""What windows are made of, and what they emit: aggregates, a ranking, or what a user's function makes of the rows.

A ``Content`` says which tables (``tables``) are kept of the rows, and makes output rows of the tables of one window, or
of several sessions. Output rows are in the order of the bytes of the keys.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.row import USER_EXCEPTIONS, Verbatim, rows_of, short_repr, user_error
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.base.values import local_time
from flinkplus.operators.event_time.tables import (
    KEY,
    TIME,
    DistinctTable,
    KeptTable,
    PartialTable,
    RowTable,
    ValueTable,
    partials_schema,
)
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.conditions import Where, described
from flinkplus.operators.keyed.rankings import Order, Ties, check_ranking, rankable, ranks_of
from flinkplus.operators.rows.rows import Collector

START, END, TIMING = "window_start", "window_end", "window_timing"
EARLY, ON_TIME, LATE = "early", "on time", "late"
MAX_SHOWN_ROWS = 8_192
"""Rows that are converted for a user's function at once; more if one window of a key has more."""
_UTC_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Emission:
    """The tables of what is emitted together, and the bounds of its windows.

    ``spans``: key, start and end of each session; ``None``: all keys have the window ``start_ms`` to ``end_ms``.
    ``timing``: ``EARLY``, ``ON_TIME`` or ``LATE``.
    """

    tables: Sequence[pa.RecordBatch]
    start_ms: int = 0
    end_ms: int = 0
    timing: str = ON_TIME
    spans: pa.RecordBatch | None = None

    def bounds(self, keys: pa.Array) -> tuple[Integers, Integers]:
        """Start and end of the window of each key."""
        if self.spans is None:
            return np.full(len(keys), self.start_ms), np.full(len(keys), self.end_ms)
        rows = pc.index_in(keys, value_set=self.spans.column(0))
        first, last = (self.spans.column(at).take(rows).to_numpy() for at in (1, 2))
        return first, last


class Lead:
    """The columns that output rows begin with: key columns, start and end of the window, and its timing."""

    def __init__(self, output: pa.Schema, with_timing: bool) -> None:
        self._types = {name: output.field(name).type for name in (START, END)}
        self._with_timing = with_timing

    def columns(self, emission: Emission, keys: pa.Array, key_columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The columns, for rows with the bytes ``keys`` and the ``key_columns``."""
        columns = list(key_columns)
        for name, bound_ms in zip((START, END), emission.bounds(keys), strict=True):
            columns.append(pa.array(bound_ms * 1000).view(self._types[name]))
        if self._with_timing:
            columns.append(pa.array([emission.timing] * len(keys), pa.string()))
        return columns


class ContentInstance(ABC):
    """One content in one subtask. ``tables``: what is kept."""

    tables: Sequence[KeptTable]

    @abstractmethod
    def emit(self, emission: Emission) -> Iterable[pa.RecordBatch]:
        """The output rows."""


class Content(ABC):
    """What is kept of rows and emitted of windows; travels in the graph."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What must be equal for tables to keep their meaning; JSON."""

    @property
    def wheres(self) -> Sequence[Where | None]:
        """Conditions that it has on rows."""
        return ()

    @property
    def shown(self) -> Content:
        """What shows the same tables without users' functions."""
        return self

    @abstractmethod
    def table_schemas(self, schema: pa.Schema, keys: Sequence[str]) -> dict[str, pa.Schema]:
        """The columns of each table, by its suffix, for an input of ``schema``."""

    @abstractmethod
    def output_schema(self, operator: str, schema: pa.Schema, keys: Sequence[str], lead: pa.Schema) -> pa.Schema:
        """The output, which may begin with the columns of ``lead``. Raises ``ConfigurationError``."""

    @abstractmethod
    def create(
        self, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema, with_timing: bool
    ) -> ContentInstance:
        """The instance for one subtask."""


@dataclass(frozen=True)
class Aggregated(Content):
    """A row for each key and window, with aggregates."""

    aggregates: tuple[Aggregate, ...]

    @property
    def partial(self) -> list[Aggregate]:
        """The aggregates that have partials."""
        return [aggregate for aggregate in self.aggregates if not aggregate.is_of_rows]

    @property
    @override
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"aggregates": [aggregate.kind for aggregate in self.aggregates]}
        if any(where is not None for where in self.wheres):
            settings["where"] = list(map(described, self.wheres))
        return settings

    @property
    @override
    def wheres(self) -> Sequence[Where | None]:
        return [aggregate.where for aggregate in self.aggregates]

    @property
    @override
    def shown(self) -> Content:
        return Aggregated(tuple(replace(aggregate, where=None) for aggregate in self.aggregates))

    def row_tables(self, schema: pa.Schema) -> dict[str, KeptTable]:
        """The tables of the other aggregates, by the names of their outputs."""
        tables: dict[str, KeptTable] = {}
        for at, aggregate in enumerate(self.aggregates):
            if aggregate.is_of_rows:
                suffix = f"#aggregate {at}"
                distinct = aggregate.kind == "count_distinct"
                tables[aggregate.output] = (
                    DistinctTable(suffix, aggregate) if distinct else ValueTable(suffix, schema, aggregate)
                )
        return tables

    @override
    def table_schemas(self, schema: pa.Schema, keys: Sequence[str]) -> dict[str, pa.Schema]:
        rows = {table.suffix: table.schema for table in self.row_tables(schema).values()}
        return {"": partials_schema(schema, keys, self.partial), **rows}

    @override
    def output_schema(self, operator: str, schema: pa.Schema, keys: Sequence[str], lead: pa.Schema) -> pa.Schema:
        if not self.aggregates:
            raise ConfigurationError(f"operator {operator!r}: name at least one aggregate")
        fields = list(lead)
        for aggregate in self.aggregates:
            aggregate.check(operator, schema)
            fields.append(pa.field(aggregate.output, aggregate.result_type(schema)))
        return pa.schema(fields)

    @override
    def create(
        self, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema, with_timing: bool
    ) -> ContentInstance:
        return _AggregatedInstance(self, ctx, keys, output, with_timing)


class _AggregatedInstance(ContentInstance):
    def __init__(
        self, content: Aggregated, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema, with_timing: bool
    ) -> None:
        self._aggregates = content.aggregates
        self._partials = PartialTable(ctx, keys, content.partial)
        rows = content.row_tables(ctx.input_schema)
        self._places = {name: 1 + at for at, name in enumerate(rows)}
        self._keys = len(keys)
        self._lead = Lead(output, with_timing)
        self._output = output
        self.tables = [self._partials, *rows.values()]

    @override
    def emit(self, emission: Emission) -> Iterator[pa.RecordBatch]:
        yield from cut(self.result(emission))

    def result(self, emission: Emission) -> pa.RecordBatch:
        """The output rows, as one batch."""
        partials = emission.tables[0]
        partials = partials.take(pc.array_sort_indices(partials.column(0)))
        keys = partials.column(0)
        columns = self._lead.columns(emission, keys, partials.columns[1 : 1 + self._keys])
        reduced = self._partials.partials(partials)
        for aggregate in self._aggregates:
            dtype = self._output.field(aggregate.output).type
            if aggregate.is_of_rows:
                rows = emission.tables[self._places[aggregate.output]]
                columns.append(_counted(keys, rows) if aggregate.kind == "count_distinct" else _listed(keys, rows))
                continue
            _, partial = next(reduced)
            try:
                columns.append(aggregate.result(partial, dtype))
            except OverflowError as error:
                raise self._partials.too_large(error) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._output)


def _places(keys: pa.Array, rows: pa.RecordBatch) -> Integers:
    """The position among ``keys`` of the key of each row."""
    places: Integers = pc.index_in(rows.column(0), value_set=keys).to_numpy().astype(np.int64)
    return places


def _counted(keys: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    return pa.array(np.bincount(_places(keys, rows), minlength=len(keys)), pa.int64())


def _listed(keys: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    """The values of each key by time, and of equal times in the order of the rows."""
    places = _places(keys, rows)
    order = np.lexsort((rows.column(1).to_numpy(), places))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=len(keys)))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows.column(2).take(pa.array(order)))


@dataclass(frozen=True)
class Ranked(Content):
    """The ``k`` best rows of each key and window by ``orders``.

    ``ties``: the ranks of rows that are equal in these columns (``rankings.ranks_of``); with ``first`` the row with the
    earlier event time ranks first.
    """

    k: int
    orders: tuple[Order, ...]
    output: str
    ties: Ties = "first"

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {"k": self.k, "by": list(map(str, self.orders)), "ties": self.ties}

    @override
    def table_schemas(self, schema: pa.Schema, keys: Sequence[str]) -> dict[str, pa.Schema]:
        return {"": RowTable(schema).schema}

    @override
    def output_schema(self, operator: str, schema: pa.Schema, keys: Sequence[str], lead: pa.Schema) -> pa.Schema:
        check_ranking(operator, schema, self.k, self.orders)
        if self.ties not in ("first", "rank", "dense"):
            raise ConfigurationError(f"operator {operator!r}: ties is 'first', 'rank' or 'dense', not {self.ties!r}")
        own = list(lead)[: len(keys)] + [field for field in list(lead)[len(keys) :] if field.name not in schema.names]
        rest = [field for field in schema if field.name not in keys]
        return pa.schema([*own, pa.field(self.output, pa.int64()), *rest])

    @override
    def create(
        self, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema, with_timing: bool
    ) -> ContentInstance:
        return _RankedInstance(self, ctx, keys, output)

    def best(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a ``RowTable`` that are ranked, by key and rank."""
        names = [f"row {order.column}" for order in self.orders]
        valid = rankable(rows.column(rows.schema.get_field_index(names[0])))
        if not pc.all(valid).as_py():
            rows = rows.filter(valid)
        by = [(name, order.direction) for name, order in zip(names, self.orders, strict=True)]
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(KEY, "ascending"), *by, (TIME, "ascending")]))
        ranks = self.ranks(rows)
        return rows.filter(pa.array(ranks <= self.k)) if (ranks > self.k).any() else rows

    def ranks(self, rows: pa.RecordBatch) -> Integers:
        """The ranks of rows that are in order."""
        values = [rows.column(rows.schema.get_field_index(f"row {order.column}")) for order in self.orders]
        return ranks_of(rows.column(0), values, self.ties)


class _RankedInstance(ContentInstance):
    def __init__(self, content: Ranked, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema) -> None:
        self._content = content
        self._own = output.names[len(keys) : output.names.index(content.output)]
        self._output = output
        bounds = [
            output.field(name) if name in self._own else pa.field(name, pa.timestamp("us")) for name in (START, END)
        ]
        self._all = Lead(pa.schema(bounds), with_timing=True)
        self.tables = [RowTable(ctx.input_schema, content.best)]

    @override
    def emit(self, emission: Emission) -> Iterator[pa.RecordBatch]:
        rows = self._content.best(emission.tables[0])
        if not rows.num_rows:
            return
        keys = rows.column(0)
        found = {name.removeprefix("row "): rows.column(at) for at, name in enumerate(rows.schema.names) if at > 1}
        bounds = dict(zip((START, END, TIMING), self._all.columns(emission, keys, []), strict=True))
        found |= {name: bounds[name] for name in self._own}
        found[self._content.output] = pa.array(self._content.ranks(rows))
        columns = [found[name] for name in self._output.names]
        yield from cut(pa.RecordBatch.from_arrays(columns, schema=self._output))


class KeptRows(Content):
    """Contents that keep every row until the window ends."""

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {}

    @override
    def table_schemas(self, schema: pa.Schema, keys: Sequence[str]) -> dict[str, pa.Schema]:
        return {"": RowTable(schema).schema}


@dataclass(frozen=True)
class Kept(KeptRows):
    """The rows themselves, by time."""

    @override
    def output_schema(self, operator: str, schema: pa.Schema, keys: Sequence[str], lead: pa.Schema) -> pa.Schema:
        return schema

    @override
    def create(
        self, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema, with_timing: bool
    ) -> ContentInstance:
        return _KeptInstance(ctx)


class _KeptInstance(ContentInstance):
    def __init__(self, ctx: OperatorContext) -> None:
        self._schema = ctx.input_schema
        self.tables = [RowTable(ctx.input_schema)]

    @override
    def emit(self, emission: Emission) -> Iterator[pa.RecordBatch]:
        rows = by_key_and_time(emission.tables[0])
        yield from cut(pa.RecordBatch.from_arrays(rows.columns[2:], schema=self._schema))


def by_key_and_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a ``RowTable`` by the bytes of their keys, then by time."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(KEY, "ascending"), (TIME, "ascending")]))


class WindowBounds:
    """What a function gets of a window: ``start_ms`` and ``end_ms`` (exclusive), in milliseconds since 1970, and
    ``timing``: ``"early"``, ``"on time"`` or ``"late"``.
    """

    __slots__ = ("end_ms", "start_ms", "timing")

    def __init__(self, start_ms: int, end_ms: int, timing: str) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.timing = timing

    def __repr__(self) -> str:
        return f"WindowBounds({self.start_ms}, {self.end_ms}, {self.timing!r})"

    @property
    def start(self) -> datetime.datetime:
        """The start, in local time with its distance from UTC, as rows have it."""
        return local_time(_UTC_EPOCH + datetime.timedelta(milliseconds=self.start_ms))

    @property
    def end(self) -> datetime.datetime:
        """The end, which is not in the window."""
        return local_time(_UTC_EPOCH + datetime.timedelta(milliseconds=self.end_ms))


@dataclass(frozen=True)
class Called(KeptRows):
    """The rows of ``schema`` that ``fn(key, window, rows)`` gives for each key and window."""

    fn: Callable[[Any, WindowBounds, list[Any]], Any]
    schema: str | pa.Schema

    @property
    @override
    def shown(self) -> Content:
        return Kept()

    @override
    def output_schema(self, operator: str, schema: pa.Schema, keys: Sequence[str], lead: pa.Schema) -> pa.Schema:
        return parse_schema(self.schema)

    @override
    def create(
        self, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema, with_timing: bool
    ) -> ContentInstance:
        return _CalledInstance(self, ctx, keys)


class _CalledInstance(ContentInstance):
    def __init__(self, content: Called, ctx: OperatorContext, keys: Sequence[str]) -> None:
        self._fn = content.fn
        self._ctx = ctx
        self._at = [ctx.input_schema.get_field_index(key) for key in keys]
        self._collector = Collector(ctx, parse_schema(content.schema))
        self.tables = [RowTable(ctx.input_schema)]

    @override
    def emit(self, emission: Emission) -> Iterator[pa.RecordBatch]:
        rows = by_key_and_time(emission.tables[0])
        firsts = np.flatnonzero(ranks_of(rows.column(0)) == 1)
        bounds = emission.bounds(rows.column(0).take(pa.array(firsts)))
        windows = [
            WindowBounds(a, b, emission.timing) for a, b in zip(*(each.tolist() for each in bounds), strict=True)
        ]
        ends = [*firsts[1:].tolist(), rows.num_rows]
        whole = pa.RecordBatch.from_arrays(rows.columns[2:], schema=self._ctx.input_schema)
        first = 0
        while first < len(ends):
            start = int(firsts[first])
            last = max(first + 1, int(np.searchsorted(ends, start + MAX_SHOWN_ROWS, side="right")))
            shown = rows_of(whole.slice(start, ends[last - 1] - start), self._ctx)
            for at in range(first, last):
                yield from self._call(windows[at], shown[int(firsts[at]) - start : ends[at] - start])
            first = last
        yield from self._collector.flush()

    def _call(self, window: WindowBounds, rows: list[Any]) -> Iterable[pa.RecordBatch]:
        key = rows[0][self._at[0]] if len(self._at) == 1 else tuple(rows[0][at] for at in self._at)
        what = Verbatim(f"the window of key {short_repr(key)} from {window.start_ms} to {window.end_ms} ms")
        if self._ctx.note_row is not None:
            self._ctx.note_row(what)
        try:
            result = self._fn(key, window, rows)
        except USER_EXCEPTIONS as error:
            raise user_error(self._ctx.operator, self._ctx.subtask, what, error) from error
        return () if result is None else self._collector.collect(what, result)
