"""The loops of a job graph: back edges, and the vertices of each loop.

An edge is a *back edge* when it leads to a vertex on the current path of a depth-first search (Carbone et al., section
4.3). Without back edges the graph is acyclic. The vertex that a back edge leads to is the *head* of its loop: input
from outside and records that have gone through the loop meet there.

Rules: pure data, the same on every host. The search starts at the ``roots`` in the order given, and follows edges by
their numbers. Every loop has one head, so loops are not nested, and its input from outside enters at the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flinkplus.protocol.vocabulary.ids import invariant

Edge = tuple[int, str, str]
"""Number, producer and consumer of an edge."""


class Cycles:
    """The loops of one job.

    ``roots``: its vertices; known heads of loops come before the vertices that lead to them, inner ones first.
    Raises ``InvariantViolation`` for loops that are nested, or without input from outside at the head.
    """

    def __init__(self, edges: Iterable[Edge] = (), roots: Sequence[str] = ()) -> None:
        self._edges = sorted(edges)
        self.back_edges = frozenset(self._search(roots))
        """Numbers of all back edges."""
        consumers = {edge: consumer for edge, _, consumer in self._edges}
        self.loop_heads = tuple(sorted({consumers[edge] for edge in self.back_edges}))
        """Vertices that back edges lead to, sorted."""
        self._head_of: dict[str, str] = {}
        for head in self.loop_heads:
            for vertex in sorted(self._reach(head, forward=True) & self._reach(head, forward=False)):
                other = self._head_of.setdefault(vertex, head)
                invariant(other == head, "loops are nested", vertex=vertex, heads=(head, other))
            regular = [edge for edge, _, consumer in self._edges if consumer == head and edge not in self.back_edges]
            invariant(bool(regular), "a loop has no input from outside at its head", head=head)
        self.inner_edges = frozenset(
            edge
            for edge, start, end in self._edges
            if start in self._head_of and self.head_of(start) == self.head_of(end)
        )
        """Numbers of the edges with both ends in the same loop, back edges included."""

    def __bool__(self) -> bool:
        return bool(self.loop_heads)

    def head_of(self, vertex: str) -> str | None:
        """The head of the loop that ``vertex`` is in, or ``None``."""
        return self._head_of.get(vertex)

    def _search(self, roots: Sequence[str]) -> list[int]:
        following: dict[str, list[tuple[int, str]]] = {}
        for edge, producer, consumer in self._edges:
            following.setdefault(producer, []).append((edge, consumer))
        back: list[int] = []
        on_path: dict[str, bool] = {}  # visited -> whether it is on the current path
        for root in roots:
            if root in on_path:
                continue
            on_path[root] = True
            path = [(root, iter(following.get(root, ())))]
            while path:
                vertex, edges = path[-1]
                step = next(edges, None)
                if step is None:
                    on_path[vertex] = False
                    path.pop()
                    continue
                edge, consumer = step
                if consumer not in on_path:
                    on_path[consumer] = True
                    path.append((consumer, iter(following.get(consumer, ()))))
                elif on_path[consumer]:
                    back.append(edge)
        return back

    def _reach(self, first: str, forward: bool) -> set[str]:
        """All vertices reachable along the edges, or against them; looked up, never iterated."""
        reached = [first]
        for near in reached:  # grows during the loop
            for _, producer, consumer in self._edges:
                start, end = (producer, consumer) if forward else (consumer, producer)
                if start == near and end not in reached:
                    reached.append(end)
        return set(reached)


NO_CYCLES = Cycles()
"""The loops of an acyclic job."""
