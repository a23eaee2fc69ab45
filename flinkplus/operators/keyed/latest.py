"""Only the latest row of each key and checkpoint, of an operator that gives rows which take the place of earlier ones.

Rules:

- the rows of an operator are held back, of each key the last one, until its subtask sends a barrier, or until the end
  of input. Then they leave, by the bytes of their keys, before the snapshot. So no snapshot holds any;
- when too many rows are held (``MAX_HELD_ROWS``, ``MAX_HELD_BYTES``), all of them leave at once;
- what leaves depends on the steps alone, so a repeated step gives the same again;
- rows are behind event time, so it ends here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut, plain
from flinkplus.operators.base.keys import encode_keys
from flinkplus.operators.base.operator import Inherited, JsonValue, KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.protocol.vocabulary.ids import invariant

Emit = Literal["every", "latest"]
MAX_HELD_ROWS = 1 << 18
MAX_HELD_BYTES = 64 << 20
MERGED_PARTS = 8


@dataclass(frozen=True)
class Updating(KeyedOperator):
    """An operator whose last row for each key is the key's result. ``emit``: ``every`` row, or the ``latest`` of each
    key and checkpoint."""

    emit: Emit = field(default="every", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("holds_rows", "holds_to_barrier", "stops_watermarks"):
            object.__setattr__(self, name, self.emit == "latest")

    def _check_emit(self) -> None:
        """Raises ``ConfigurationError``."""
        if self.emit not in ("every", "latest"):
            raise ConfigurationError(f"operator {self.name!r}: emit is 'every' or 'latest', not {self.emit!r}")

    def _emitting(self, instance: OperatorInstance, ctx: OperatorContext) -> OperatorInstance:
        """``instance``, or what holds its rows back."""
        if self.emit == "every":
            return instance
        return LatestRows(instance, ctx, self.keys, self.output_schema(ctx.input_schema))


class LatestRows(OperatorInstance):
    """Holds the rows of ``inner`` back, which have the columns of ``output``."""

    def __init__(self, inner: OperatorInstance, ctx: OperatorContext, keys: Sequence[str], output: pa.Schema) -> None:
        self._inner = inner
        self._ctx = ctx
        self._keys = keys
        self._output = output
        self._held: list[pa.RecordBatch] = []  # oldest first; merged as their number grows
        self._rows = self._bytes = 0

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for rows in self._inner.process(batch):
            self._hold(plain(rows, self._output))
        if self._is_full(1):
            self._merge(0)
            if self._is_full(2):  # otherwise the same keys had many rows
                yield from self.before_barrier()

    def _is_full(self, parts: int) -> bool:
        """Whether more is held than one of so many parts of the limit."""
        return self._rows > MAX_HELD_ROWS // parts or self._bytes > MAX_HELD_BYTES // parts

    def _hold(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._add(self._latest(rows))
        while (first := self._first_small()) + MERGED_PARTS <= len(self._held):
            self._merge(first)

    def _first_small(self) -> int:
        """From where on the batches that are held are at most twice as large as the last one."""
        first, size = len(self._held) - 1, self._held[-1].num_rows
        while first and self._held[first - 1].num_rows <= 2 * size:
            first -= 1
        return first

    def _add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes

    def _merge(self, first: int) -> None:
        """Make one batch of those from ``first`` on."""
        parts, self._held = self._held[first:], self._held[:first]
        self._rows -= sum(part.num_rows for part in parts)
        self._bytes -= sum(part.nbytes for part in parts)
        if parts:
            self._add(self._latest(pa.concat_batches(parts)) if len(parts) > 1 else parts[0])

    def _latest(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The last row of each key, by the bytes of the keys."""
        key = encode_keys(rows, self._keys).made_distinct()
        last = np.empty(len(key.encoded), np.int64)
        last[key.codes] = np.arange(rows.num_rows)
        return rows.take(pa.array(last).take(pc.array_sort_indices(key.encoded)))

    @override
    def before_barrier(self) -> Iterator[pa.RecordBatch]:
        self._merge(0)
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        for rows in held:
            yield from cut(rows)

    @override
    def end(self) -> Iterator[pa.RecordBatch]:
        for rows in self._inner.end():
            self._hold(plain(rows, self._output))
        yield from self.before_barrier()

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        invariant(not self._held, "rows are held back at a snapshot", subtask=self._ctx.subtask, checkpoint=checkpoint)
        return self._inner.snapshot(checkpoint)

    @override
    def restore(self, state: JsonValue) -> None:
        self._inner.restore(state)

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._inner.inherit(parts)

    @override
    def checkpoint_complete(self, checkpoint: int) -> None:
        self._inner.checkpoint_complete(checkpoint)

    @override
    def close(self) -> None:
        self._inner.close()
