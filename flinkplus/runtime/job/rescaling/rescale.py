"""A checkpoint made into one of another parallelism: its snapshots are divided, and stored as a new checkpoint.

The new checkpoint is complete in itself: once its manifest is stored, the job resumes from it as from any other, with
standbys, rollbacks and all. Until then the one before counts.

Rules:
- what cannot be divided is refused with ``ConfigurationError`` before anything is stored: unaligned checkpoints with
  messages in flight, operators and sources that do not say how their state is divided;
- the parallelism of a checkpoint is that of its snapshots, whatever the plan says: a driver may die after the manifest
  and before the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flinkplus.errors import ConfigurationError, CorruptCheckpoint
from flinkplus.graph import JobGraph, Node, Vertex
from flinkplus.operators.base.operator import Inherited, Operator, OperatorContext, OperatorInstance
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.subtask.rescaling import rescaled, rescaled_part, with_state
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.job.rescaling.in_flight import InFlight
from flinkplus.runtime.job.rescaling.keyed import GroupOwner, OldStates, StatePlace
from flinkplus.sources.base import Source
from flinkplus.state.backend import SubtaskState

AS_BEFORE = "resume the job at parallelism {before}"


def parallelism_of(manifest: Manifest, graph: JobGraph) -> int:
    """The parallelism at which a checkpoint was taken. Raises ``CorruptCheckpoint`` when it lacks a snapshot."""
    parallelism = len(manifest.subtasks) // len(graph.vertices)
    wanted = {str(SubtaskId(vertex.name, index)) for vertex in graph.vertices for index in range(parallelism)}
    if wanted != manifest.subtasks.keys() or not parallelism:
        raise CorruptCheckpoint(
            f"checkpoint {manifest.checkpoint} has {len(manifest.subtasks)} snapshots, which are not those of all "
            f"subtasks of the job's {len(graph.vertices)} vertices"
        )
    return parallelism


@dataclass(frozen=True)
class Rescaling:
    """One checkpoint at its parallelism ``before``, and what it becomes at ``after``."""

    graph: JobGraph
    manifest: Manifest
    before: int
    after: int
    place: StatePlace

    def handles(self) -> list[tuple[SubtaskId, SnapshotHandle]]:
        """The snapshots of all subtasks at the new parallelism, with their files in storage.

        Raises ``ConfigurationError`` for what cannot be divided, ``CorruptState`` or ``StateError`` as ``restore``.
        """
        in_flight = InFlight(self.graph, self.after, self.place.max_parallelism)
        for vertex in self.graph.vertices:
            self._check(vertex)
            in_flight.add([handle.operator_state for handle in self._of(vertex)])
        return [found for vertex in self.graph.vertices for found in self._divided(vertex, in_flight)]

    def _of(self, vertex: Vertex) -> list[SnapshotHandle]:
        return [self.manifest.subtasks[str(SubtaskId(vertex.name, index))] for index in range(self.before)]

    def _check(self, vertex: Vertex) -> None:
        as_before = AS_BEFORE.format(before=self.before)
        for handle in self._of(vertex):
            if handle.overtaken:
                raise ConfigurationError(
                    f"checkpoint {self.manifest.checkpoint} is unaligned, and holds messages in flight to "
                    f"{handle.subtask}, which belong to the subtasks of parallelism {self.before}: {as_before} and "
                    "with a higher aligned_timeout, until a checkpoint completes within it; then at the other one"
                )
        routes = {self.graph.exchanges[edge].route for edge in vertex.inputs}
        for node in self._operators(vertex):
            body = node.body
            assert isinstance(body, Operator)
            by_key = routes == {"gather"} or (routes == {"hash"} and bool(body.key_columns))
            if body.has_state and not by_key:
                raise ConfigurationError(
                    f"operator {node.name!r} has state in a subtask that does not get all rows of a key, so it cannot "
                    f"be divided among others: {as_before}"
                )

    def _operators(self, vertex: Vertex) -> list[Node]:
        nodes = [self.graph.nodes[index] for index in vertex.nodes]
        return [node for node in nodes if isinstance(node.body, Operator)]

    def _divided(self, vertex: Vertex, in_flight: InFlight) -> list[tuple[SubtaskId, SnapshotHandle]]:
        handles = self._of(vertex)
        gathered = any(self.graph.exchanges[edge].route == "gather" for edge in vertex.inputs)
        old = OldStates(handles, self.place, gathered)
        positions = self._positions(vertex, handles)
        found = []
        try:
            for index in range(self.after):
                ownership = GroupOwner(index, self.after, self.place.max_parallelism, gathered)
                subtask = _NewSubtask(self, vertex, handles, old, ownership)
                found.append((SubtaskId(vertex.name, index), subtask.handle(positions[index], in_flight)))
        finally:
            old.close()
        return found

    def _positions(self, vertex: Vertex, handles: Sequence[SnapshotHandle]) -> list[Any]:
        """Of the source at the root of a vertex, dealt again; ``None`` for any other."""
        node = self.graph.nodes[vertex.nodes[0]]
        if not isinstance(node.body, Source):
            return [None] * self.after
        positions = [handle.operator_state.operators[node.name].position for handle in handles]
        return list(node.body.redealt(positions, self.after))


@dataclass(frozen=True)
class _NewSubtask:
    """One subtask at the new parallelism. ``old``: the keyed states of those before."""

    of: Rescaling
    vertex: Vertex
    before: Sequence[SnapshotHandle]
    old: OldStates
    ownership: GroupOwner

    def handle(self, position: Any, in_flight: InFlight) -> SnapshotHandle:
        """Its snapshot. ``position``: of a source."""
        name, place = str(SubtaskId(self.vertex.name, self.ownership.index)), self.of.place
        if not self.of.graph.has_keyed_state(self.vertex):
            return SnapshotHandle(
                subtask=name,
                generation=place.generation,
                checkpoint=place.checkpoint,
                files=(),
                operator_state=self._operator_state(None, position, in_flight),
            )
        state = place.state("after", name)
        try:
            saved = self._operator_state(state, position, in_flight)
            own = state.persist(state.freeze(place.checkpoint, saved))
        finally:
            state.close()
        return self.old.share(name, self.ownership.groups).with_own(own)

    def _operator_state(self, state: SubtaskState | None, position: Any, in_flight: InFlight) -> OperatorState:
        index, vertex = self.ownership.index, self.vertex
        saved = [handle.operator_state for handle in self.before]
        mine = rescaled(saved, index, self.of.after, vertex.inputs, vertex.outputs, in_flight.counts)
        messages = in_flight.of(vertex.inputs, index)
        return replace(
            mine,
            operators=self._operators(saved, state, position),
            in_flight=messages,
            in_flight_bytes=sum(len(packed) for several in messages.values() for packed in several),
        )

    def _operators(
        self, saved: Sequence[OperatorState], state: SubtaskState | None, position: Any
    ) -> dict[str, OperatorPart]:
        found = {}
        ended = [each.ended for each in saved]
        for at, schema in self.of.graph.input_schemas(self.vertex).items():
            node = self.of.graph.nodes[at]
            parts = [each.operators[node.name] for each in saved]
            part = rescaled_part(parts, ended, self.ownership.index, self.of.after)
            own_state = None
            if isinstance(node.body, Operator):
                own_state = self._inherited(node, schema, parts, ended, state)
            found[node.name] = with_state(part, own_state, position if isinstance(node.body, Source) else None)
        return found

    def _inherited(
        self, node: Node, schema: Any, parts: Sequence[OperatorPart], ended: Sequence[bool], state: SubtaskState | None
    ) -> Any:
        """What the operator of the new subtask saves, when it has taken its share."""
        assert isinstance(node.body, Operator)
        index = self.ownership.index
        context = OperatorContext(node.name, f"{node.name}[{index}]", index, self.of.after, schema, state)
        instance = node.body.create(context)
        try:
            states = {} if state is None else self.old.of(self.ownership.groups)
            left = [
                Inherited(part.state, states.get(at), over, self.ownership.owned)
                for at, (part, over) in enumerate(zip(parts, ended, strict=True))
                if part.state is not None
            ]
            if left and type(instance).inherit is OperatorInstance.inherit:
                raise ConfigurationError(
                    f"operator {node.name!r} does not say how its state is divided among subtasks "
                    f"(OperatorInstance.inherit): {AS_BEFORE.format(before=self.of.before)}"
                )
            if left:
                instance.inherit(left)
            return instance.snapshot(self.of.place.checkpoint)
        finally:
            instance.close()
