"""Rows sent to the driver with the commits, inside the descriptions of what is staged: for tests and small results.

After a resume the committer holds the rows committed since then.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import Sink, SinkCommitter, not_yet_committed
from flinkplus.sinks.discard import MemoryWriter


@dataclass(frozen=True)
class CollectSink(Sink):
    """Collects at most ``max_rows`` rows (over all subtasks, and in one subtask per checkpoint); more end the job."""

    max_rows: int = 1_000_000

    def writer(self, context: OperatorContext, generation: int) -> CollectWriter:
        return CollectWriter(self, context, generation)

    def committer(self) -> CollectCommitter:
        return CollectCommitter(self)

    def too_many(self) -> ConfigurationError:
        """The error for more rows than allowed."""
        return ConfigurationError(
            f"sink {self.name!r} collects more than {self.max_rows} rows; write them to files, or raise max_rows"
        )


class CollectWriter(MemoryWriter):
    """Keeps the rows of one subtask until their checkpoint is complete."""

    def __init__(self, sink: CollectSink, context: OperatorContext, generation: int) -> None:
        super().__init__(context, generation)
        self._sink = sink
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        if self._rows > self._sink.max_rows:
            raise self._sink.too_many()
        self._batches.append(plain(batch, self._sink.bound_schema))

    def _take(self) -> str:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self._sink.bound_schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        self._batches = []
        return base64.b64encode(buffer.getvalue()).decode("ascii")


class CollectCommitter(SinkCommitter):
    """Holds the committed rows."""

    def __init__(self, sink: CollectSink) -> None:
        self._sink = sink
        self._committed_through = 0
        self._tables: list[tuple[int, pa.Table]] = []

    def table(self) -> pa.Table:
        """All committed rows; those of one subtask are in the order in which it wrote them."""
        empty = self._sink.bound_schema.empty_table()
        return pa.concat_tables([empty, *(table for _, table in self._tables)])

    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        new = not_yet_committed(files, self._committed_through)
        held = sum(table.num_rows for _, table in self._tables)
        if held + sum(file.rows for file in new) > self._sink.max_rows:
            raise self._sink.too_many()
        read = [pa.ipc.open_stream(base64.b64decode(file.arrow)).read_all() for file in new]
        self._tables += [(file.checkpoint, table) for file, table in zip(new, read, strict=True)]
        self._committed_through = max([self._committed_through, *(file.checkpoint for file in new)])

    def retract_after(self, checkpoint: int | None) -> None:
        through = checkpoint or 0
        self._committed_through = min(self._committed_through, through)
        self._tables = [(staged_for, table) for staged_for, table in self._tables if staged_for <= through]
