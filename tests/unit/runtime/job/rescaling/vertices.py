"""One keyed vertex on real RocksDB, at any parallelism, without Spark: fed in order, stopped, divided, continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.base.operator import KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.operators.base.routes import partitioner
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.joins.windowed import WindowJoin
from flinkplus.protocol.program.comparison import Requests, compare
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.job.rescaling.keyed import StatePlace
from flinkplus.runtime.job.rescaling.rescale import Rescaling, parallelism_of
from flinkplus.runtime.job.upgrading.programs import NO_CHANGE
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.generator import Generator
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage

SCHEMA = pa.schema(
    [("k", pa.int64()), ("t", pa.string()), ("n", pa.int64()), ("ts", pa.int64()), ("d", pa.decimal128(10, 2))]
)
MAX_PARALLELISM = 20


def _no_access(*_: object) -> None:
    raise AssertionError("a check has no need of the files of state")


def graph_of(operator: KeyedOperator, schema: pa.Schema) -> JobGraph:
    """A source, or for a join two of them, ``operator``, and a sink."""
    graph = JobGraph()
    keys = (
        [operator.left.keys, operator.right.keys] if isinstance(operator, KeyedJoin | WindowJoin) else [operator.keys]
    )
    for at in range(len(keys)):
        graph.add(Node(f"source{at}", "source", Generator(f"source{at}", str, schema), schema))
    output = operator.output_schema(schema)
    node = graph.add(Node(operator.name, "operator", operator, output))
    for at, columns in enumerate(keys):
        graph.link(at, node, columns, "hash" if columns else "gather")
    graph.add(Node("out", "sink", DiscardSink("out"), output), node)
    return graph.fuse()


class Vertex:
    """The vertex of ``operator``. ``output``: all rows so far."""

    def __init__(self, operator: KeyedOperator, schema: pa.Schema, folder: Path, parallelism: int) -> None:
        self.graph = graph_of(operator, schema)
        self._operator, self._schema = operator, schema
        self.storage = CheckpointStorage(str(folder / "checkpoints"))
        self.storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
        self._folder = folder
        self._number = 0
        self.now_ms = 0
        self.output: Counter[str] = Counter()
        self.rows: list[dict[str, Any]] = []
        self._begin(parallelism, None)

    def _begin(self, parallelism: int, handles: dict[str, SnapshotHandle] | None) -> None:
        self._parallelism = parallelism
        self._states: list[SubtaskState] = []
        self._instances: list[OperatorInstance] = []
        self._number += 1
        for index in range(parallelism):
            name = str(SubtaskId(f"{self._operator.name}+out", index))
            work = self._folder / f"work{self._number}"
            state = SubtaskState(work, self.storage.state_files, name, self._number, max_parallelism=MAX_PARALLELISM)
            self._states.append(state)
            context = OperatorContext(self._operator.name, name, index, parallelism, self._schema, state)
            context.now_ms = lambda: self.now_ms
            if handles is not None:
                state.restore(handles[name])
            instance = self._operator.create(context)
            if handles is not None:
                instance.restore(handles[name].operator_state.operators[self._operator.name].state)
            self._instances.append(instance)

    def feed(self, batch: pa.RecordBatch, position: int = 0) -> None:
        """Rows for the subtasks that own their keys now."""
        exchange = self.graph.exchanges[position]
        split = partitioner(exchange.route, exchange.columns, 0, self._parallelism, MAX_PARALLELISM)
        for target, rows in split.split(batch):
            self._take(self._instances[target].process_input(position, rows))

    def advance(self, watermark_ms: int) -> None:
        for instance in self._instances:
            self._take(instance.on_watermark(watermark_ms))

    def tick(self) -> None:
        """The clock reaches ``now_ms``, and with it all times that the subtasks wait for."""
        for instance in self._instances:
            while (at_ms := instance.clock_at_ms) is not None and at_ms <= self.now_ms:
                self._take(instance.on_clock())

    def _take(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            rows = batch.to_pylist()
            self.rows += rows
            self.output.update(map(repr, rows))

    def manifest(self) -> Manifest:
        """A checkpoint. The vertex can be fed on after it."""
        handles = {}
        for index, (state, instance) in enumerate(zip(self._states, self._instances, strict=True)):
            part = OperatorPart(rows_in=1, rows_out=2, state=instance.snapshot(self._number))
            saved = OperatorState(operators={self._operator.name: part, "out": OperatorPart(rows_in=0, rows_out=0)})
            handles[str(SubtaskId(f"{self._operator.name}+out", index))] = state.persist(
                state.freeze(self._number, saved)
            )
        for vertex in self.graph.vertices:
            if vertex.is_source:
                for index in range(self._parallelism):
                    subtask = SubtaskId(vertex.name, index)
                    saved = OperatorState(operators={vertex.name: OperatorPart(rows_in=0, rows_out=0)})
                    handles[str(subtask)] = SnapshotHandle(
                        subtask=str(subtask), generation=1, checkpoint=self._number, files=(), operator_state=saved
                    )
        return Manifest(checkpoint=self._number, generation=self._number, subtasks=handles)

    def rescale(self, parallelism: int) -> Sequence[tuple[SubtaskId, SnapshotHandle]]:
        """Stop at a checkpoint, and continue from it with so many subtasks."""
        manifest = self.manifest()
        self.close()
        self._number += 1
        before = parallelism_of(manifest, self.graph)
        handles = self._divided(Rescaling(self.graph, manifest, before, parallelism, self._place()))
        self._begin(parallelism, {str(subtask): handle for subtask, handle in handles})
        return handles

    def _divided(self, rescaling: Rescaling) -> Sequence[tuple[SubtaskId, SnapshotHandle]]:
        """What can be divided passes the check, which finds all that is refused; it reads and stores nothing."""
        stored = self.storage.state_files.listed()
        with pytest.MonkeyPatch.context() as patch:
            for method in ("download", "upload"):
                patch.setattr(self.storage.state_files, method, _no_access)
            rescaling.check()
        assert self.storage.state_files.listed() == stored
        try:
            return rescaling.handles()
        except ConfigurationError as error:
            raise AssertionError("the check has not found what is refused") from error

    def _place(self) -> StatePlace:
        folder, files = self._folder / "rescaling", self.storage.state_files
        return StatePlace(folder, files, self._number, self._number, MAX_PARALLELISM)

    def upgrade(
        self, operator: KeyedOperator, schema: pa.Schema, parallelism: int, requests: Requests = NO_CHANGE
    ) -> Sequence[tuple[SubtaskId, SnapshotHandle]]:
        """Stop at a checkpoint, and continue with another operator, which takes the state that is its own."""
        manifest = self.manifest()
        self.close()
        self._number += 1
        graph = graph_of(operator, schema)
        change = compare(self.graph.program(MAX_PARALLELISM), graph.program(MAX_PARALLELISM), requests)
        assert not change.refused, change.refused
        before = parallelism_of(manifest, self.graph)
        handles = self._divided(Rescaling(graph, manifest, before, parallelism, self._place(), change))
        self.graph, self._operator, self._schema = graph, operator, schema
        self._begin(parallelism, {str(subtask): handle for subtask, handle in handles})
        return handles

    def close(self) -> None:
        for state in self._states:
            state.close()
