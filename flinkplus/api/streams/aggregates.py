"""How a program names aggregates: ``n="count"``, ``total=("sum", "x")``, ``paid=agg("sum", "x", where="is_paid")``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.expressions.column import ColumnExpression, expression
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.conditions import Where

_SYNONYMS = {"avg": "mean"}


@dataclass(frozen=True)
class NamedAggregate:
    """What ``agg`` makes."""

    kind: str
    column: str | None
    where: Where | None


WhereText: TypeAlias = "str | ColumnExpression | Callable[[pa.RecordBatch], Any]"


def agg(kind: str, column: str | None = None, *, where: WhereText | None = None) -> NamedAggregate:
    """An aggregate of the rows that pass ``where``.

    ``kind``: ``count``, ``sum``, ``min``, ``max``, ``avg`` (or ``mean``), ``count_distinct``, ``first``, ``last`` or
    ``collect_list``.
    ``where``: a condition in SQL (``"price > 100 AND paid"``) or as a column of ``flinkplus.functions``; or a function
    that takes a record batch and returns a boolean array with a value for each row. A null is false. ``None``: all
    rows.

    Raises ``ConfigurationError`` for anything else.
    """
    if not isinstance(kind, str) or not isinstance(column, str | None):
        raise ConfigurationError(f"agg takes the names of an aggregate and of a column, not {kind!r} and {column!r}")
    return NamedAggregate(kind, column, None if where is None else _condition(where))


def _condition(where: WhereText) -> Where:
    if isinstance(where, str | ColumnExpression) or not callable(where):
        return expression(where)
    return where


AggregateText: TypeAlias = "str | tuple[str, str] | NamedAggregate"


def aggregates_of(outputs: dict[str, AggregateText]) -> tuple[Aggregate, ...]:
    """The aggregates, by the names of their columns. Raises ``ConfigurationError`` for anything else."""
    aggregates = []
    for output, wanted in outputs.items():
        if isinstance(wanted, NamedAggregate):
            aggregates.append(Aggregate(output, _kind(wanted.kind), wanted.column, wanted.where))
            continue
        given = tuple(wanted) if isinstance(wanted, tuple | list) else (wanted,)
        if not 1 <= len(given) <= 2 or not all(isinstance(part, str) for part in given):
            raise ConfigurationError(f"aggregate {output!r} must be a name or (name, column), not {wanted!r}")
        aggregates.append(Aggregate(output, _kind(given[0]), given[1] if len(given) > 1 else None))
    return tuple(aggregates)


def _kind(name: str) -> str:
    return _SYNONYMS.get(name, name)
