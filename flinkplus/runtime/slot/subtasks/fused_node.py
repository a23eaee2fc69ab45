"""One node of the fused operators of a subtask: an operator, a source or a sink, with its counters and positions.

Thread: that of the slot's loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkplus.errors import ConfigurationError
from flinkplus.graph import Node
from flinkplus.operators.base.operator import JsonValue, Operator, OperatorContext, OperatorInstance
from flinkplus.sinks.base import SinkWriter
from flinkplus.sources.base import LiveReader, Source, SourceReader

MAX_POSITIONS = 16
"""Of a source, how many snapshots may have a position that it is given back when their checkpoint is complete. Those of
checkpoints that were aborted stay until a later one is."""


@dataclass
class FusedNode:
    """One node of the vertex, as it runs in this subtask. ``positions``: of a source, by the checkpoint whose snapshot
    has it."""

    node: Node
    context: OperatorContext
    instance: OperatorInstance | None = None
    reader: SourceReader | None = None
    writer: SinkWriter | None = None
    rows_in: int = 0
    rows_out: int = 0
    watermark_ms: int | None = None
    positions: dict[int, JsonValue] = field(default_factory=dict)

    @property
    def own(self) -> dict[str, int]:
        """The counters that the source or operator keeps itself."""
        return self.reader.metrics if self.reader is not None else self.context.metrics

    def position_at(self, checkpoint: int) -> JsonValue:
        """Where a source reads next, for the snapshot of ``checkpoint``."""
        if self.reader is None:
            return None
        self.positions[checkpoint] = self.reader.position()
        if len(self.positions) > MAX_POSITIONS:
            del self.positions[min(self.positions)]
        return self.positions[checkpoint]

    def commit_position(self, checkpoint: int) -> None:
        """``checkpoint`` is complete."""
        if self.reader is not None and checkpoint in self.positions:
            self.reader.committed(self.positions[checkpoint])
        self.positions = {later: position for later, position in self.positions.items() if later > checkpoint}

    @property
    def closable(self) -> OperatorInstance | SourceReader | SinkWriter | None:
        return self.instance or self.reader or self.writer


def reader_of(source: Source, index: int, parallelism: int) -> SourceReader:
    """The reader of a source. Raises ``ConfigurationError`` for one that is live where the source is not, or the
    reverse."""
    reader = source.reader(index, parallelism)
    if isinstance(reader, LiveReader) is not source.is_live:
        raise ConfigurationError(
            f"source {source.name!r}: is_live is {source.is_live}, and its reader is a {type(reader).__name__}: a "
            "source is live if, and only if, its readers are LiveReaders"
        )
    return reader


def has_clock(node: Node) -> bool:
    """Whether a node has steps by the time of day."""
    return isinstance(node.body, Operator) and node.body.has_clock
