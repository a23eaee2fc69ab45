"""Operators on the rows of a stream, without state: the methods of ``Stream`` that look at one row or batch at a time.

Rules: functions on rows are slower than ``map_batches`` and the built-in operators, which work on Arrow record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from flinkplus.api.callers import names_callers_line
from flinkplus.api.streams.outputs import StreamOutputs
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.rows.rows import Filter, FlatMap, Map, MapBatches
from flinkplus.operators.rows.tokenize import Tokenize

if TYPE_CHECKING:
    from flinkplus.api.streams.stream import Stream

Schema: TypeAlias = "str | pa.Schema"


@names_callers_line
class StreamRows(StreamOutputs):
    """The operators on single rows of a stream."""

    def _then(self, operator: Operator) -> Stream:
        """The output of ``operator``, fused with the operator before it."""
        raise NotImplementedError

    def map(self, function: Callable[[Any], Any], *, schema: Schema, name: str | None = None) -> Stream:
        """One output row per input row; ``function(row)`` returns a row, tuple, dict, or the only column's value."""
        return self._then(Map(self._env.name_for("map", name), function, schema))

    def filter(self, function: Callable[[Any], bool], *, name: str | None = None) -> Stream:
        """The rows for which ``function(row)`` is true."""
        return self._then(Filter(self._env.name_for("filter", name), function))

    def flat_map(self, function: Callable[[Any], Iterable[Any]], *, schema: Schema, name: str | None = None) -> Stream:
        """Any number of output rows per input row: ``function(row)`` returns an iterable of rows."""
        return self._then(FlatMap(self._env.name_for("flat_map", name), function, schema))

    def map_batches(
        self, function: Callable[[pa.RecordBatch], Any], *, schema: Schema, name: str | None = None
    ) -> Stream:
        """``function(batch)`` returns a record batch or an iterable of them, of ``schema``: the columnar path."""
        return self._then(MapBatches(self._env.name_for("map_batches", name), function, schema))

    def tokenize(self, column: str = "value", *, output: str = "word", name: str | None = None) -> Stream:
        """The words of a text column, one row each: ``line.lower().split()``, columnar."""
        return self._then(Tokenize(self._env.name_for("tokenize", name), column, output))
