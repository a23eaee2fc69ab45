"""A checkpoint made into one of another parallelism, of another program, or of both, stored as a new checkpoint.

One mechanism: the state of each operator is found by its name among the snapshots there are, divided by the subtasks to
come, and put into their snapshots (``former``, ``vertex_state``). The new checkpoint is complete in itself: once its
manifest is stored, the job resumes from it as from any other, with standbys, rollbacks and all. Until then the one
before counts.

Rules:
- what cannot be divided is refused with ``ConfigurationError`` before anything is stored: unaligned checkpoints with
  messages in flight, operators and sources that do not say how their state is divided, more rows in loops than fewer
  subtasks may hold. ``Rescaling.check`` finds that without reading any state, so a running job is not interrupted;
- state is copied only where it must be: where subtask *i* owns what subtask *i* owned, and a vertex takes all that one
  vertex had, files stay, with pages and all;
- the parallelism of a checkpoint is that of its snapshots, whatever the plan says: a driver may die after the manifest
  and before the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from flinkplus.errors import ConfigurationError, CorruptCheckpoint
from flinkplus.graph import JobGraph, Node, Vertex
from flinkplus.operators.base.operator import Inherited, Operator, OperatorContext, OperatorInstance
from flinkplus.protocol.program.comparison import Comparison, compare
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.subtask.rescaling import rescaled, rescaled_part, with_state
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.protocol.vocabulary.in_flight import InFlightBudget
from flinkplus.runtime.job.rescaling.former import Former
from flinkplus.runtime.job.rescaling.in_flight import InFlight
from flinkplus.runtime.job.rescaling.keyed import GroupOwner, StatePlace
from flinkplus.runtime.job.rescaling.vertex_state import VertexState
from flinkplus.sources.base import Source
from flinkplus.state.backend import SubtaskState

AS_BEFORE = "resume the job at parallelism {before}"
AS_IT_WAS = "resume the program as it was"


def parallelism_of(manifest: Manifest, graph: JobGraph) -> int:
    """The parallelism at which a checkpoint was taken. Raises ``CorruptCheckpoint`` when it lacks a snapshot."""
    return parallelism_at(manifest, [vertex.name for vertex in graph.vertices])


def parallelism_at(manifest: Manifest, vertices: Sequence[str]) -> int:
    """As ``parallelism_of``, of a program with ``vertices``."""
    parallelism = len(manifest.subtasks) // len(vertices)
    wanted = {str(SubtaskId(vertex, index)) for vertex in vertices for index in range(parallelism)}
    if wanted != manifest.subtasks.keys() or not parallelism:
        raise CorruptCheckpoint(
            f"checkpoint {manifest.checkpoint} has {len(manifest.subtasks)} snapshots, which are not those of all "
            f"subtasks of the job's {len(vertices)} vertices"
        )
    return parallelism


@dataclass(frozen=True)
class Rescaling:
    """One checkpoint at its parallelism ``before``, and what it becomes at ``after``.

    ``graph``: the program to come. ``change``: the program of the checkpoint, compared with it; ``None``: it is this.
    ``in_flight_bytes``: maximum of rows in flight to one slot, in handles.
    """

    graph: JobGraph
    manifest: Manifest
    before: int
    after: int
    place: StatePlace
    change: Comparison | None = None
    in_flight_bytes: int = InFlightBudget().slot_bytes

    @cached_property
    def former(self) -> Former:
        """The program of the checkpoint."""
        change = self.change
        if change is None:
            program = self.graph.program(self.place.max_parallelism)
            change = compare(program, program)
        return Former(self.graph, change, self.manifest, self.before)

    @property
    def way_out(self) -> str:
        """What the user can do instead."""
        return AS_IT_WAS if self.before == self.after else AS_BEFORE.format(before=self.before)

    def handles(self) -> list[tuple[SubtaskId, SnapshotHandle]]:
        """The snapshots of all new subtasks, with their files in storage.

        Raises ``ConfigurationError`` for what cannot be divided, ``CorruptState`` or ``StateError`` as ``restore``.
        """
        self._check_snapshots()
        in_flight = self._in_flight()
        return [found for vertex in self.graph.vertices for found in self._divided(vertex, in_flight)]

    def check(self) -> None:
        """Raise ``ConfigurationError`` for what ``handles`` would refuse, as far as the snapshots show it: no file of
        state is read or written. Messages in flight are."""
        self._check_snapshots()
        self._in_flight()
        for vertex in self.graph.vertices:
            self._positions(vertex)
            self._check_inheritance(vertex)

    def shared_files(self) -> dict[SubtaskId, tuple[StateFile, ...]]:
        """The files in storage that each new subtask takes from those before; no file is read or written. Raises
        ``ConfigurationError`` for what cannot be divided, as far as that shows."""
        found = {}
        for vertex in self.graph.vertices:
            keyed = VertexState(self.former, vertex, self.after, self.place)
            for owner in self._owners(vertex):
                name = SubtaskId(vertex.name, owner.index)
                found[name] = keyed.shared_files(str(name), owner)
        return found

    def _owners(self, vertex: Vertex) -> list[GroupOwner]:
        """What each new subtask owns."""
        gathered = any(self.graph.exchanges[edge].route == "gather" for edge in vertex.inputs)
        most = self.place.max_parallelism
        return [GroupOwner(index, self.after, most, gathered) for index in range(self.after)]

    def _in_flight(self) -> InFlight:
        """The messages in flight, sent on to the new subtasks."""
        found = InFlight(self.graph, self.after, self.place.max_parallelism, self.former.edges)
        for name in self.former.program.vertices:
            found.add([handle.operator_state for handle in self.former.handles(name)])
        excess = "" if self.before == self.after else found.excess(self.in_flight_bytes)
        if excess:
            raise ConfigurationError(
                f"checkpoint {self.manifest.checkpoint} holds rows in flight in loops, and at parallelism {self.after} "
                f"{excess}: choose a higher parallelism, set a higher in_flight_mb, or {self.way_out} until fewer rows "
                "are in its loops"
            )
        return found

    def _check_inheritance(self, vertex: Vertex) -> None:
        """Create each operator as for a new subtask, with empty state, and see whether it can take over state."""
        keyed = VertexState(self.former, vertex, self.after, self.place)
        for at, schema in self.graph.input_schemas(vertex).items():
            node = self.graph.nodes[at]
            saved = any(part.state is not None for part in self.former.parts(node.name))
            if not isinstance(node.body, Operator) or not saved or keyed.is_carried(node):
                continue
            state = self.place.state("check", str(SubtaskId(vertex.name, 0)))
            instance = node.body.create(OperatorContext(node.name, f"{node.name}[0]", 0, self.after, schema, state))
            try:
                self.check_inherits(node, instance)
            finally:
                instance.close()
                state.close()

    def check_inherits(self, node: Node, instance: OperatorInstance) -> None:
        """Raise ``ConfigurationError`` unless the operator says how its state is divided."""
        if type(instance).inherit is OperatorInstance.inherit:
            raise ConfigurationError(
                f"operator {node.name!r} does not say how its state is divided among subtasks "
                f"(OperatorInstance.inherit): {self.way_out}"
            )

    def _check_snapshots(self) -> None:
        for handle in self.manifest.subtasks.values():
            if handle.overtaken:
                raise ConfigurationError(
                    f"checkpoint {self.manifest.checkpoint} is unaligned, and holds messages in flight to "
                    f"{handle.subtask}, which belong to the subtasks and the program that it is of: {self.way_out} and "
                    "with a higher aligned_timeout, until a checkpoint completes within it, or stop it with a "
                    "savepoint, which is aligned; then as you want it"
                )
        for vertex in self.graph.vertices:
            self._check_routes(vertex)
        ended = self.former.ended_before_new_input()
        if ended is not None:
            raise ConfigurationError(
                f"the input of operator {ended!r} had ended, so it has given its last rows, and a new source would "
                "send it more: give the new source an operator of its own"
            )

    def _check_routes(self, vertex: Vertex) -> None:
        routes = {self.graph.exchanges[edge].route for edge in vertex.inputs}
        for node in (self.graph.nodes[index] for index in vertex.nodes):
            body = node.body
            if not isinstance(body, Operator):
                continue
            by_key = routes == {"gather"} or (routes == {"hash"} and bool(body.key_columns))
            if body.has_state and not by_key and not body.shares_state:
                raise ConfigurationError(
                    f"operator {node.name!r} has state in a subtask that does not get all rows of a key, so it cannot "
                    f"be divided among others: {self.way_out}"
                )

    def _divided(self, vertex: Vertex, in_flight: InFlight) -> list[tuple[SubtaskId, SnapshotHandle]]:
        keyed = VertexState(self.former, vertex, self.after, self.place)
        positions = self._positions(vertex)
        found = []
        try:
            for owner in self._owners(vertex):
                subtask = _NewSubtask(self, vertex, keyed, owner)
                found.append((SubtaskId(vertex.name, owner.index), subtask.handle(positions[owner.index], in_flight)))
        finally:
            keyed.close()
        return found

    def _positions(self, vertex: Vertex) -> list[Any]:
        """Of the source at the root of a vertex, dealt again if the parallelism is another; ``None`` for any other."""
        node = self.graph.nodes[vertex.nodes[0]]
        parts = self.former.parts(node.name)
        if not isinstance(node.body, Source) or not parts:
            return [None] * self.after
        positions = [part.position for part in parts]
        return positions if self.before == self.after else list(node.body.redealt(positions, self.after))


@dataclass(frozen=True)
class _NewSubtask:
    """One subtask to come. ``keyed``: the keyed state of its vertex."""

    of: Rescaling
    vertex: Vertex
    keyed: VertexState
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
        state = self.keyed.begun(name, self.ownership)
        try:
            saved = self._operator_state(state, position, in_flight)
            own = state.persist(state.freeze(place.checkpoint, saved))
        finally:
            state.close()
        return self.keyed.completed(own, self.ownership)

    def _operator_state(self, state: SubtaskState | None, position: Any, in_flight: InFlight) -> OperatorState:
        index, vertex, former = self.ownership.index, self.vertex, self.of.former
        promised = {edge: former.promised(edge) for edge in vertex.inputs}
        mine = rescaled(former.states(vertex), index, self.of.after, promised, vertex.outputs, in_flight.counts)
        messages = in_flight.of(vertex.inputs, index)
        drained = any(handle.operator_state.drained for handle in self.of.manifest.subtasks.values())
        return replace(
            mine,
            drained=drained,
            operators=self._operators(state, position),
            in_flight=messages,
            in_flight_bytes=sum(len(packed) for several in messages.values() for packed in several),
        )

    def _operators(self, state: SubtaskState | None, position: Any) -> dict[str, OperatorPart]:
        found = {}
        former, index = self.of.former, self.ownership.index
        for at, schema in self.of.graph.input_schemas(self.vertex).items():
            node = self.of.graph.nodes[at]
            parts, ended = former.parts(node.name), former.ended(node.name)
            part = OperatorPart(rows_in=0, rows_out=0)
            if parts:
                part = replace(rescaled_part(parts, ended, index, self.of.after), watermark_ms=former.event_times[at])
            own_state = None
            if isinstance(node.body, Operator):
                own_state = self._inherited(node, schema, parts, ended, state)
            found[node.name] = with_state(part, own_state, position if isinstance(node.body, Source) else None)
        return found

    def _inherited(
        self,
        node: Node,
        schema: pa.Schema,
        parts: Sequence[OperatorPart],
        ended: Sequence[bool],
        state: SubtaskState | None,
    ) -> Any:
        """What the operator of the new subtask saves, when it has taken its share."""
        assert isinstance(node.body, Operator)
        index = self.ownership.index
        if parts and self.keyed.is_carried(node):
            return parts[index].state
        context = OperatorContext(node.name, f"{node.name}[{index}]", index, self.of.after, schema, state)
        instance = node.body.create(context)
        try:
            views = self.keyed.views(node, self.ownership)
            left = [
                Inherited(part.state, views.get(at), over, self.ownership.owned)
                for at, (part, over) in enumerate(zip(parts, ended, strict=True))
                if part.state is not None
            ]
            if left:
                self.of.check_inherits(node, instance)
                instance.inherit(left)
            return instance.snapshot(self.of.place.checkpoint)
        finally:
            instance.close()
