"""Which state a reader gets: the checkpoint, the operators, and a reading for each subtask.

Rules:
- signatures are checked as for a resume, here and not where the files are read; those have their checksums from here;
- nothing is written, locked or executed, so a running job does not notice a reader;
- a state that no view reads is shown as it is stored; one that cannot be shown is an error. Nothing is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs

from flinkplus.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptCheckpoint,
    UntrustedCheckpoint,
    UntrustedState,
)
from flinkplus.graph import JobGraph, Node, Vertex
from flinkplus.near import did_you_mean
from flinkplus.operators.base.key_values import key_of
from flinkplus.operators.base.operator import Dtype, Operator
from flinkplus.operators.base.stored_state import NumberView, ObjectView, ShowsState, StateView
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.handle import START, KeyedPart, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.protocol.vocabulary.key_groups import groups_of
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.reading.drawn_plan import drawn_plan
from flinkplus.runtime.job.reading.rows import ReadOperator, SubtaskReading, removed, row_schema
from flinkplus.runtime.job.rescaling.rescale import parallelism_of
from flinkplus.runtime.job.signing import find_key
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.hashing import group_of
from flinkplus.state.memtable import NumberState
from flinkplus.state.objects import OBJECTS

TEXT = pa.string()
_OWN = re.compile(r"[/#]")


@dataclass(frozen=True)
class StateQuery:
    """What is asked for. ``operator``: ``None``: all. ``key``: see ``key_of``; ``None``: all. ``checkpoint``: its
    number; ``None``: the newest. ``texts``: the columns among ``key`` and ``value`` that are JSON in any case."""

    directory: str
    operator: str | None = None
    key: Any = None
    checkpoint: int | None = None
    texts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FoundState:
    """What there is: the checkpoint, the columns of its rows, and a reading for each subtask with any."""

    job: str
    checkpoint: int
    schema: pa.Schema
    readings: tuple[SubtaskReading, ...]
    filesystem: fs.FileSystem | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, one subtask after the other. Raises as ``SubtaskReading.batches``."""
        for reading in self.readings:
            yield from reading.batches(self.filesystem)


def find_state(
    query: StateQuery, filesystem: fs.FileSystem | None = None, signing_key: str | None = None, trust: bool = False
) -> FoundState:
    """The state that ``query`` asks for.

    Raises ``CheckpointDirectoryError`` for a directory without a job or a complete checkpoint, ``UntrustedState``
    without a valid signature, ``CorruptCheckpoint`` for a damaged manifest, ``CheckpointRemoved``, and
    ``ConfigurationError`` for an operator or checkpoint that is not there, and a key of another type.
    """
    storage = CheckpointStorage(query.directory, filesystem, trust=trust)
    try:
        job = storage.ownership.job(lambda: find_key(signing_key, query.directory, make=False))
        plan = drawn_plan(storage, query.directory)
        manifest = _manifest(storage, query)
    except UntrustedCheckpoint as error:
        raise UntrustedState(*error.args) from error
    except OSError as error:
        raise CheckpointDirectoryError(
            f"checkpoint directory {query.directory!r} cannot be read: {error}; check the path"
        ) from error
    selection = _Selection(query, plan, manifest)
    return FoundState(printable(job.get("name")), manifest.checkpoint, *selection.found(), filesystem)


def _manifest(storage: CheckpointStorage, query: StateQuery) -> Manifest:
    there = storage.manifests.checkpoints()
    if not there:
        raise CheckpointDirectoryError(f"{query.directory!r} has no complete checkpoint yet: there is no state to read")
    wanted = there[-1] if query.checkpoint is None else query.checkpoint
    if wanted not in there:
        raise ConfigurationError(
            f"{query.directory!r} has no checkpoint {wanted}; those there are: {', '.join(map(str, there))}"
        )
    try:
        return storage.manifests.read(wanted)
    except CorruptCheckpoint as error:
        if wanted not in storage.manifests.listed():
            raise removed(wanted) from error
        others = ", ".join(str(number) for number in there if number != wanted) or "none"
        raise CorruptCheckpoint(f"{error.args[0]}; other checkpoints here: {others}") from error


class _Selection:
    """The operators and subtasks that a query asks for, in one checkpoint."""

    def __init__(self, query: StateQuery, plan: Plan, manifest: Manifest) -> None:
        self._query = query
        self._graph: JobGraph = plan.graph
        self._manifest = manifest
        self._groups: int = plan.options.max_parallelism
        self._parallelism = parallelism_of(manifest, plan.graph)

    def found(self) -> tuple[pa.Schema, tuple[SubtaskReading, ...]]:
        """The columns, and the readings."""
        chosen = {vertex.name: self._operators(vertex) for vertex in self._graph.vertices}
        operators = self._with_keys([operator for found in chosen.values() for operator in found])
        if self._query.operator is not None and not operators:
            raise self._no_such_operator()
        one = operators[self._query.operator] if self._query.operator is not None else None
        schema = row_schema(*(TEXT if one is None else self._type(one, name) for name in ("key", "value")))
        readings: list[SubtaskReading] = []
        for vertex in self._graph.vertices:
            mine = tuple(operators[each.name] for each in chosen[vertex.name] if each.name in operators)
            if mine:
                readings += self._readings(vertex, mine, schema)
        return schema, tuple(readings)

    def _type(self, operator: ReadOperator, column: str) -> pa.DataType:
        if column in self._query.texts:
            return TEXT
        return operator.key_type if column == "key" else operator.value_type

    def _handles(self, vertex: Vertex) -> list[SnapshotHandle]:
        names = (str(SubtaskId(vertex.name, index)) for index in range(self._parallelism))
        return [self._manifest.subtasks[name] for name in names]

    def _operators(self, vertex: Vertex) -> list[ReadOperator]:
        """The operators with state that are asked for."""
        schemas = self._graph.input_schemas(vertex)
        found = []
        for at, states in self._stateful(vertex).items():
            node = self._graph.nodes[at]
            if self._query.operator in (None, node.name):
                fields = self._key_fields(vertex, node, schemas[at])
                found.append(ReadOperator(node.name, fields, tuple(views_of(node, schemas[at], states))))
        return found

    def _stateful(self, vertex: Vertex) -> dict[int, dict[str, KeyedPart]]:
        """The nodes with keyed state, and the states of each that are stored."""
        states = {name: part for handle in self._handles(vertex) for name, part in handle.states.items()}
        found = {}
        for at in vertex.nodes:
            node = self._graph.nodes[at]
            mine = {name: part for name, part in states.items() if _OWN.split(name)[0] == node.name}
            if mine or (isinstance(node.body, Operator) and node.body.has_state):
                found[at] = mine
        return found

    def _key_fields(self, vertex: Vertex, node: Node, schema: pa.Schema) -> tuple[pa.Field, ...]:
        body: Any = node.body
        if isinstance(body, Operator):
            return tuple(schema.field(name) for name in body.key_columns)
        if not vertex.inputs or node is not self._graph.nodes[vertex.nodes[0]]:
            raise ConfigurationError(
                f"operator {node.name!r} is of a class that is not FlinkPlus's own, and the keys of its state are not "
                "known: select another operator"
            )
        return tuple(schema.field(name) for name in self._graph.exchanges[vertex.inputs[0]].columns)

    def _with_keys(self, operators: Sequence[ReadOperator]) -> dict[str, ReadOperator]:
        """Each with the bytes of the key that is asked for; without those whose keys it cannot be."""
        if self._query.key is None:
            return {operator.name: operator for operator in operators}
        found, errors = {}, []
        for operator in operators:
            try:
                key = key_of(self._query.key, operator.fields)
                found[operator.name] = replace(operator, key=key)
            except ConfigurationError as error:
                errors.append(error)
        if errors and not found:
            raise errors[0]
        return found

    def _readings(
        self, vertex: Vertex, operators: tuple[ReadOperator, ...], schema: pa.Schema
    ) -> Iterator[SubtaskReading]:
        for index, handle in enumerate(self._handles(vertex)):
            owned = {each.name: self._owned(vertex, each, index) for each in operators}
            mine = tuple(each for each in operators if each.key is None or self._group(each) in owned[each.name])
            if handle.files and mine:
                parts = handle.operator_state.operators
                saved = {each.name: parts[each.name].state for each in mine if each.name in parts}
                bounds = {each.name: (owned[each.name].start, owned[each.name].stop) for each in mine}
                light = replace(handle, operator_state=START.operator_state)
                yield SubtaskReading(self._query.directory, light, mine, saved, bounds, schema, self._groups)

    def _owned(self, vertex: Vertex, operator: ReadOperator, index: int) -> range:
        """The key groups whose entries count in subtask ``index``: all, where rows are not split by the key."""
        by_hash = {self._graph.exchanges[edge].route for edge in vertex.inputs} == {"hash"}
        if by_hash and operator.fields and operator.name == self._graph.nodes[vertex.nodes[0]].name:
            return groups_of(index, self._parallelism, self._groups)
        return range(self._groups)

    def _group(self, operator: ReadOperator) -> int:
        """The group of the key that is asked for."""
        return group_of(operator.key or b"", self._groups)

    def _no_such_operator(self) -> ConfigurationError:
        wanted, nodes = str(self._query.operator), self._graph.nodes
        known = [nodes[at].name for vertex in self._graph.vertices for at in self._stateful(vertex)]
        what = "has no keyed state" if any(node.name == wanted for node in nodes) else "is not in the job"
        return ConfigurationError(
            f"operator {printable(wanted)!r} {what}; the operators with state are: {', '.join(known) or 'none'}"
            f"{did_you_mean(wanted, known)}"
        )


def views_of(node: Node, schema: pa.Schema, states: Mapping[str, KeyedPart]) -> list[StateView]:
    """The views of an operator's ``states``. Raises ``ConfigurationError`` for one of a form of its own."""
    views: list[StateView] = []
    if isinstance(node.body, ShowsState):
        views += node.body.state_views(schema, sorted(states))
    known = {name for view in views for name in view.reads}
    for name in sorted(states.keys() - known):
        part, own = states[name], name.removeprefix(node.name)[1:] or None
        if part.kind == OBJECTS:
            views.append(ObjectView(node.name, own, name=name))
        elif part.kind == NumberState.kind:
            dtype: Dtype = "float64" if part.dtype == "float64" else "int64"
            views.append(NumberView(node.name, own, name=name, dtype=dtype, output="value"))
        elif not isinstance(node.body, ShowsState):
            raise ConfigurationError(
                f"operator {node.name!r} keeps state {name!r} in a form of its own and does not say how it is shown: "
                "select another operator"
            )
    return views
