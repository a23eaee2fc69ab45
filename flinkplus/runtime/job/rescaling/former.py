"""The program that a checkpoint is of, and what the checkpoint has of each of its operators.

Rule: state is found by the name of its operator. The vertex that ran the operator, and the numbers of nodes and edges,
are those of the old program, and need not be those of the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flinkplus.graph import JobGraph, Vertex
from flinkplus.operators.base.operator import Operator
from flinkplus.protocol.program.comparison import Comparison
from flinkplus.protocol.program.description import FUSED, Program
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.subtask.rescaling import least, rescaled_part
from flinkplus.protocol.vocabulary.ids import SubtaskId


def belongs_to(state: str, operator: str) -> bool:
    """Whether a keyed state is one of an operator: names of operators have neither ``/`` nor ``#``."""
    return state == operator or state.startswith((f"{operator}/", f"{operator}#"))


@dataclass(frozen=True)
class Former:
    """A checkpoint of ``change.old`` at parallelism ``before``, seen from the new program ``graph``."""

    graph: JobGraph
    change: Comparison
    manifest: Manifest
    before: int

    @property
    def program(self) -> Program:
        """The program of the checkpoint."""
        return self.change.old

    def origin(self, operator: str) -> str | None:
        """The old operator that one of the new program continues."""
        return self.change.origins.get(operator)

    def handles(self, vertex: str) -> list[SnapshotHandle]:
        """The snapshots of all subtasks of an old vertex."""
        return [self.manifest.subtasks[str(SubtaskId(vertex, index))] for index in range(self.before)]

    def vertex_of(self, operator: str) -> str | None:
        """The old vertex that ran what ``operator`` of the new program continues."""
        origin = self.origin(operator)
        return None if origin is None else self.program.vertex_of(origin)

    def parts(self, operator: str) -> list[OperatorPart]:
        """What the old subtasks have of what ``operator`` continues; nothing for a new one."""
        vertex, origin = self.vertex_of(operator), self.origin(operator)
        if vertex is None or origin is None:
            return []
        return [handle.operator_state.operators[origin] for handle in self.handles(vertex)]

    def ended(self, operator: str) -> list[bool]:
        """Which of these subtasks had come to the end of their input."""
        vertex = self.vertex_of(operator)
        return [] if vertex is None else [handle.operator_state.ended for handle in self.handles(vertex)]

    def states(self, vertex: Vertex) -> list[OperatorState]:
        """Those of all old subtasks that ran an operator of a new vertex; of all there are for a vertex of new ones."""
        found = {self.vertex_of(self.graph.nodes[index].name): None for index in vertex.nodes}
        names = [name for name in found if name is not None] or self.program.vertices
        return [handle.operator_state for name in names for handle in self.handles(name)]

    def keeps_its_rows(self, vertex: Vertex) -> bool:
        """Whether subtask *i* of a new vertex gets the rows that subtask *i* of one old vertex got."""
        root = self.graph.nodes[vertex.nodes[0]].name
        was = self.vertex_of(root)
        return was is not None and was.split(FUSED)[0] == self.origin(root)

    # --- event time ---------------------------------------------------------------------------------------------------

    def promised(self, edge: int) -> int | None:
        """How far event time is on an edge of the new program, by what its producer has emitted."""
        return self.event_times[self.graph.exchanges[edge].producer]

    @cached_property
    def event_times(self) -> Mapping[int, int | None]:
        """By node: how far the event time is that it has emitted.

        Operators that keep event time know it. Others follow what is in front of them now, so that one that was moved
        promises nothing of its old place.
        """
        found: dict[int, int | None] = {}
        for index in range(len(self.graph.nodes)):
            self._event_time(index, found)
        return found

    def _event_time(self, index: int, found: dict[int, int | None]) -> int | None:
        if index in found:
            return found[index]
        found[index] = None  # for a loop that leads back here: event time ends at its head
        node = self.graph.nodes[index]
        parts = self.parts(node.name)
        body = node.body
        if isinstance(body, Operator) and (body.hears_watermarks or body.makes_watermarks):
            known = rescaled_part(parts, self.ended(node.name), 0, 1).watermark_ms if parts else None
        elif isinstance(body, Operator) and body.stops_watermarks:
            known = None
        else:
            near = [at for at, other in enumerate(self.graph.nodes) if index in other.children]
            near += [exchange.producer for exchange in self.graph.exchanges if exchange.consumer == index]
            known = least([self._event_time(at, found) for at in near])
        found[index] = known
        return known

    # --- what was in flight, and what has ended -----------------------------------------------------------------------

    @cached_property
    def edges(self) -> Mapping[int, int]:
        """The edges that are the same in both programs, with the same rows: old number -> new number."""
        new = self.change.new
        found: dict[int, int] = {}
        for number, edge in enumerate(self.program.edges):
            for other, now in enumerate(new.edges):
                ends = self.origin(now.producer), self.origin(now.consumer), now.keys, now.route
                same = ends == (edge.producer, edge.consumer, edge.keys, edge.route)
                columns = self.program.operators[edge.producer].columns
                if same and other not in found.values() and new.operators[now.producer].columns == columns:
                    found[number] = other
                    break
        return found

    def ended_before_new_input(self) -> str | None:
        """An operator with state whose input had ended, and which a new source reaches now."""
        new = self.change.new
        sources = [name for name, known in new.operators.items() if known.kind == "source" and not self.parts(name)]
        for name in sorted(new.reached(sources)):
            if new.operators[name].state is not None and any(self.ended(name)):
                return name
        return None
