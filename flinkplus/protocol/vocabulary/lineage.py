"""The ancestors of each subtask, and whose determinants its messages carry.

With sharing depth *n*, a message carries its sender's own determinants and those of the sender's ancestors that are
less than *n* channels away from it; without a limit, those of all ancestors. So at depth 1, a receiver gets only those
of its direct producers.

Rules: pure data. Every edge links all subtasks of its producer vertex to all of its consumer vertex, so distances are
those of vertices; the shortest path counts. A subtask has a number, the same in every slot, that messages use for it.
A vertex that keeps a recipe (``determinants.recipe``) passes the determinants of all its ancestors on, to the recipe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import SubtaskId, invariant

_INDEX_BITS = 16
MAX_VERTICES = 256


class Lineage:
    """The ancestors in one job.

    ``vertices``: in an order that is the same everywhere.
    ``edges``: (producer, consumer) vertices.
    ``depth``: the sharing depth, at least 1; ``None``: no limit.
    ``recipes``: the vertices that keep a recipe.
    """

    def __init__(
        self,
        vertices: Sequence[str],
        edges: Iterable[tuple[str, str]],
        depth: int | None = None,
        recipes: Collection[str] = (),
    ) -> None:
        invariant(depth is None or depth >= 1, "the sharing depth is at least 1", depth=depth)
        invariant(len(vertices) <= MAX_VERTICES, "too many vertices to be numbered", vertices=len(vertices))
        self._vertices = tuple(vertices)
        self._depth = depth
        self.recipes = frozenset(recipes)
        self._positions = {vertex: at for at, vertex in enumerate(self._vertices)}
        self._producers: dict[str, list[str]] = {vertex: [] for vertex in self._vertices}
        with_outputs: dict[str, None] = {}
        for producer, consumer in edges:
            self._producers[consumer].append(producer)
            with_outputs[producer] = None
        self._distances = {vertex: self._ancestors_of(vertex) for vertex in self._vertices}
        self._passed_on = {
            vertex: tuple(sorted(a for a, away in self._distances[vertex].items() if depth is None or away < depth))
            if vertex in with_outputs
            else ()
            for vertex in self._vertices
        }
        self._passed_on.update({vertex: tuple(sorted(self._distances[vertex])) for vertex in sorted(self.recipes)})

    def _ancestors_of(self, vertex: str) -> dict[str, int]:
        """Ancestor -> distance, including the vertex itself when it is on a loop; breadth first, so the nearest."""
        found: dict[str, int] = {}
        reached = [(vertex, 0)]
        for near, away in reached:  # grows during the loop
            for producer in self._producers[near]:
                if producer not in found:
                    found[producer] = away + 1
                    reached.append((producer, away + 1))
        return found

    def distance(self, ancestor: str, vertex: str) -> int | None:
        """Channels on the shortest path from one vertex to another; ``None`` without a path."""
        return self._distances[vertex].get(ancestor)

    def has_all_of(self, vertex: str) -> bool:
        """Whether a subtask of ``vertex`` learns all steps that it depends on: each ancestor passes on those of all its
        own ancestors."""
        depth = self._depth
        if depth is None:
            return True
        return all(away < depth for near in self._distances[vertex] for away in self._distances[near].values())

    def passed_on(self, vertex: str) -> tuple[str, ...]:
        """The ancestors whose determinants the messages (or the recipe) of ``vertex`` carry in addition to its own;
        sorted."""
        return self._passed_on[vertex]

    def asked_of(self, failed: Iterable[SubtaskId]) -> frozenset[str]:
        """The ancestors, as vertices, whose determinants the successors of ``failed`` need: see ``KnownSteps``."""
        return frozenset(a for vertex in {subtask.vertex for subtask in failed} for a in self._passed_on[vertex])

    def number(self, subtask: SubtaskId) -> int:
        """The number by which messages name ``subtask``."""
        return self._positions[subtask.vertex] << _INDEX_BITS | subtask.index

    def subtask(self, number: int) -> SubtaskId:
        """The inverse of ``number``. Raises ``PeerProtocolError`` for an unknown vertex."""
        at, index = number >> _INDEX_BITS, number & (1 << _INDEX_BITS) - 1
        if at >= len(self._vertices):
            raise PeerProtocolError(f"determinants of a subtask of vertex {at}; the job has {len(self._vertices)}")
        return SubtaskId(self._vertices[at], index)
