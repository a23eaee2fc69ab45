"""Processing time as event time: a column with the time of day at which each row was processed, and its watermarks.

Rules:

- the time is that of the step (``OperatorContext.now_ms``), which a repeated step has again;
- it never goes back, also if the clock does: a row has at least the time of the row before it;
- the watermark is the time of the latest row. While the source has nothing to read it follows the clock, in steps of
  their own, one for each ``every_ms``; so windows end without rows. Only live sources have nothing to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    Operator,
    OperatorContext,
    OperatorInstance,
    WatermarkMaker,
)
from flinkplus.protocol.program.description import StateDescription

PROCESSED = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class WithProcessingTime(Operator):
    """Adds the column ``output``, and makes watermarks of it. ``every_ms``: see the rules of the module."""

    name: str
    output: str
    every_ms: int
    makes_watermarks = True

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.output in schema.names:
            raise ConfigurationError(
                f"operator {self.name!r}: the input has a column {self.output!r} already; name the output otherwise"
            )
        return schema.append(pa.field(self.output, PROCESSED))

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        return StateDescription(progress=True)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _WithProcessingTimeInstance(self, ctx)


class _WithProcessingTimeInstance(WatermarkMaker):
    def __init__(self, descriptor: WithProcessingTime, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._output = descriptor.output
        self.idle_after_ms = descriptor.every_ms
        self._latest_ms: int | None = None

    def _advance(self) -> int:
        now_ms = self._ctx.now_ms()
        self._latest_ms = now_ms if self._latest_ms is None else max(self._latest_ms, now_ms)
        return self._latest_ms

    @property
    @override
    def watermark_ms(self) -> int | None:
        return self._latest_ms

    @override
    def becomes_idle(self) -> bool:
        self._advance()
        return False

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if not batch.num_rows:
            return ()
        times = np.full(batch.num_rows, self._advance() * 1000)
        field = pa.field(self._output, PROCESSED)
        columns = [*batch.columns, pa.array(times).view(PROCESSED)]
        return (pa.RecordBatch.from_arrays(columns, schema=batch.schema.append(field)),)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return {"latest_ms": self._latest_ms}

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._latest_ms = state["latest_ms"]

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        """The latest of all: rows to come are not late by it."""
        known = [part.state["latest_ms"] for part in parts if part.state["latest_ms"] is not None]
        self._latest_ms = max(known, default=None)
