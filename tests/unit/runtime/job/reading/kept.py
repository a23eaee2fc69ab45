"""A vertex whose output is kept in order, and whose checkpoints are stored with a plan, to be read as data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from flinkplus.config import Options
from flinkplus.operators.base.operator import KeyedOperator
from flinkplus.runtime.job.plan import Plan, plan_bytes
from flinkplus.state.durable.blobs import PLAN_BLOB
from tests.unit.runtime.job.rescaling.vertices import MAX_PARALLELISM, Vertex

Row = dict[str, Any]


class KeptVertex(Vertex):
    """``rows``: all output rows, in order. ``directory``: where ``store`` writes."""

    def __init__(self, operator: KeyedOperator, schema: pa.Schema, folder: Path, parallelism: int) -> None:
        self.rows: list[Row] = []
        super().__init__(operator, schema, folder, parallelism)
        self.directory = folder / "checkpoints"
        plan = Plan("job", "job-1", self.graph, Options(max_parallelism=MAX_PARALLELISM))
        self.storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))

    def _take(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self.rows += batch.to_pylist()

    def store(self) -> int:
        """A complete checkpoint; its number."""
        self._number += 1
        manifest = self.manifest()
        self.storage.manifests.write(manifest)
        return manifest.checkpoint

    def take_rows(self) -> list[Row]:
        """The output since the last call."""
        rows, self.rows = self.rows, []
        return rows
