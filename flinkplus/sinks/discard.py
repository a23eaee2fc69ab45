"""Counts rows and stores nothing: for benchmarks. The count is exactly-once like any output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter


@dataclass(frozen=True)
class DiscardSink(Sink):
    """Drops every row after counting it; the counts stand in the descriptions of what is staged."""

    def writer(self, context: OperatorContext, generation: int) -> SinkWriter:
        return MemoryWriter(context, generation)

    def committer(self) -> SinkCommitter:
        return DiscardCommitter()


class MemoryWriter(SinkWriter):
    """Stages in the description itself; here nothing but the number of rows."""

    def __init__(self, context: OperatorContext, generation: int) -> None:
        self._name = f"s{context.index}-g{generation}"
        self._staged: list[StagedFile] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def stage(self, checkpoint: int) -> list[StagedFile]:
        if self._rows:
            name = f"c{checkpoint:08d}-{self._name}"
            self._staged.append(StagedFile(name=name, rows=self._rows, checkpoint=checkpoint, arrow=self._take()))
            self._rows = 0
        return list(self._staged)

    def adopt(self, staged: Sequence[StagedFile]) -> None:
        self._staged = list(staged)

    def checkpoint_complete(self, checkpoint: int) -> None:
        self._staged = [file for file in self._staged if file.checkpoint > checkpoint]

    def _take(self) -> str:
        """The rows that go into the description beside the numbers."""
        return ""


class DiscardCommitter(SinkCommitter):
    """Has nothing to make visible."""

    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        return None

    def retract_after(self, checkpoint: int | None) -> None:
        return None
