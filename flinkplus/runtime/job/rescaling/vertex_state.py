"""The keyed state of one vertex to come: which operators take what of which vertices before, and in which way.

Three ways, the first that fits:
- *carried*: the parallelism stays, and the vertex takes all that one vertex had. Files stay, and so do pages;
- *divided*: the parallelism is another, and the vertex takes all that one vertex had (``keyed.begun``);
- *rewritten*: state is taken by operator, under another name, or as other rows (``rewriting``).
"""

from __future__ import annotations

from collections.abc import Mapping

from flinkplus.graph import Node, Vertex
from flinkplus.operators.base.operator import KeyedState, Operator
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.runtime.job.rescaling.former import Former
from flinkplus.runtime.job.rescaling.keyed import GroupOwner, OldStates, StatePlace
from flinkplus.runtime.job.rescaling.rewriting import TakenState, is_taken_whole, recodes_of, rewritten
from flinkplus.state.backend import SubtaskState


class VertexState:
    """What the keyed operators of ``vertex`` take over. Call ``close`` at the end."""

    def __init__(self, former: Former, vertex: Vertex, after: int, place: StatePlace) -> None:
        self._former, self._vertex, self._place = former, vertex, place
        self._same_parallelism = former.before == after
        self._olds: dict[str, OldStates] = {}
        self._taken: dict[str, TakenState] = {}
        graph = former.graph
        bodies = [graph.nodes[at].body for at in vertex.nodes]
        keyed = sum(isinstance(body, Operator) and body.has_state for body in bodies)
        for at, schema in graph.input_schemas(vertex).items():
            node = graph.nodes[at]
            if isinstance(node.body, Operator) and node.body.has_state and former.origin(node.name) is not None:
                self._taken[node.name] = self._taken_by(node, node.body.page_schemas(schema))
        handles = [handle for name in self._olds for handle in former.handles(name)]
        all_continue = bool(keyed) and len(self._taken) == keyed
        self._whole = all_continue and len(self._olds) == 1 and is_taken_whole(handles, list(self._taken.values()))

    def _taken_by(self, node: Node, schemas: Mapping[str, object]) -> TakenState:
        former = self._former
        was, vertex = former.origin(node.name), former.vertex_of(node.name)
        assert was is not None and vertex is not None
        if vertex not in self._olds:
            gathered = former.program.is_gathered(vertex)
            self._olds[vertex] = OldStates(former.handles(vertex), self._place, gathered)
        before, now = former.program.operators[was].state, former.change.new.operators[node.name].state
        recodes = recodes_of(before, now, schemas) if before and now else {}
        return TakenState(self._olds[vertex], was, node.name, recodes)

    @property
    def _carried(self) -> bool:
        return self._whole and self._same_parallelism

    def is_carried(self, node: Node) -> bool:
        """Whether the operator of subtask *i* goes on with the snapshot of subtask *i* as it is."""
        if not self._same_parallelism:
            return False
        if node.name in self._taken:
            return self._carried
        return self._former.keeps_its_rows(self._vertex) and self._former.origin(node.name) == node.name

    def begun(self, subtask: str, owner: GroupOwner) -> SubtaskState:
        """What is made anew of the state of one new subtask, without pages: empty unless state is rewritten. The caller
        closes it."""
        if self._whole:
            return self._place.state("after", subtask)
        return rewritten(subtask, list(self._taken.values()), owner.groups, self._place)

    def shared_files(self, subtask: str, owner: GroupOwner) -> tuple[StateFile, ...]:
        """The files in storage that one new subtask takes from those before, without pages."""
        if not self._whole:
            return ()
        (old,) = self._olds.values()
        return old.share(subtask, owner.groups).files

    def completed(self, own: SnapshotHandle, owner: GroupOwner) -> SnapshotHandle:
        """The snapshot of a new subtask. ``own``: of what was made anew, and of its pages."""
        if not self._whole:
            return own
        (old,) = self._olds.values()
        if self._carried:
            return old.carried(own, owner.index)
        return old.share(own.subtask, owner.groups).with_own(own)

    def views(self, node: Node, owner: GroupOwner) -> dict[int, KeyedState]:
        """The old states from which an operator inherits, by index; those without any of the owner's keys are left
        out."""
        taken = self._taken.get(node.name)
        if taken is None:
            return {}
        return {at: taken.view(state) for at, state in taken.old.of(owner.groups).items()}

    def close(self) -> None:
        """Close all old states."""
        for old in self._olds.values():
            old.close()
