"""Windows of a keyed stream, and what they aggregate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkplus.api.callers import names_callers_line
from flinkplus.errors import ConfigurationError
from flinkplus.operators.event_time.windows import TumblingWindow
from flinkplus.operators.keyed.aggregates import Aggregate

if TYPE_CHECKING:
    from flinkplus.api.streams.keyed import KeyedStream
    from flinkplus.api.streams.stream import Stream


@names_callers_line
class WindowedStream:
    """Windows of a keyed stream. When the watermark passes the end of a window, it emits one row per key: key columns,
    ``window_start``, ``window_end``, aggregates."""

    def __init__(self, stream: KeyedStream, column: str, size_ms: int) -> None:
        self._stream = stream
        self._column = column
        self._size_ms = size_ms

    def __repr__(self) -> str:
        return f"<WindowedStream of {self._size_ms} ms of {self._column!r} over {self._stream!r}>"

    def count(self, *, output: str = "count", name: str | None = None) -> Stream:
        """The number of rows of each key and window."""
        return self._aggregated("count", name, Aggregate(output, "count"))

    def sum(self, column: str, *, output: str = "sum", name: str | None = None) -> Stream:
        """The sum of ``column``, ignoring nulls; null when all are null. Types as in ``KeyedStream.sum``."""
        return self._aggregated("sum", name, Aggregate(output, "sum", column))

    def aggregate(self, *, name: str | None = None, **outputs: str | tuple[str, str]) -> Stream:
        """``count``, ``sum``, ``min``, ``max`` and ``mean``, by output column: ``n="count", total=("sum", "x")``."""
        aggregates = []
        for output, wanted in outputs.items():
            given = (wanted,) if isinstance(wanted, str) else tuple(wanted)
            if not 1 <= len(given) <= 2 or not all(isinstance(part, str) for part in given):
                raise ConfigurationError(f"aggregate {output!r} must be a name or (name, column), not {wanted!r}")
            aggregates.append(Aggregate(output, *given))
        return self._aggregated("aggregate", name, *aggregates)

    def _aggregated(self, kind: str, name: str | None, *aggregates: Aggregate) -> Stream:
        stream = self._stream
        name = stream._env.name_for(f"window_{kind}", name)
        stream._check_event_time(name)
        return stream._then(TumblingWindow(name, stream.keys, self._column, self._size_ms, aggregates))
