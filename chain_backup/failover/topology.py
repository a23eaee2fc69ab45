"""The subtasks of a job, and the channels that link them.

Rules: pure data. Every edge links each subtask of its producer vertex to each subtask of its consumer vertex. All
results are sorted, so that they are the same on every host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId, invariant
from flinkplus.protocol.vocabulary.lineage import Lineage


@dataclass(frozen=True)
class Topology:
    """``edges``: (edge, producer vertex, consumer vertex). ``recipes``: the vertices whose sink keeps a recipe. Raises
    ``InvariantViolation`` for an impossible graph."""

    vertices: tuple[str, ...]
    parallelism: int
    edges: tuple[tuple[int, str, str], ...]
    recipes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = [edge for edge, _, _ in self.edges]
        known = set(self.vertices)  # never iterated
        invariant(self.parallelism >= 1, "a job has subtasks", parallelism=self.parallelism)
        invariant(bool(known) and len(known) == len(self.vertices), "a job has vertices, each once")
        invariant(len(set(numbers)) == len(numbers), "an edge is given twice", edges=numbers)
        for edge in self.edges:
            invariant(known.issuperset(edge[1:]), "an edge links two vertices of the job", edge=edge)

    @property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        """All of them, sorted."""
        return tuple(sorted(SubtaskId(vertex, i) for vertex in self.vertices for i in range(self.parallelism)))

    def outputs(self, subtask: SubtaskId) -> tuple[ChannelId, ...]:
        """The channels that ``subtask`` sends on, sorted."""
        return tuple(
            ChannelId(edge, subtask.index, consumer)
            for edge, producer, _ in sorted(self.edges)
            if producer == subtask.vertex
            for consumer in range(self.parallelism)
        )

    def inputs(self, subtask: SubtaskId) -> tuple[ChannelId, ...]:
        """The channels that ``subtask`` receives on, sorted."""
        return tuple(
            ChannelId(edge, producer, subtask.index)
            for edge, _, consumer in sorted(self.edges)
            if consumer == subtask.vertex
            for producer in range(self.parallelism)
        )

    def producer(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self._ends(channel)[0], channel.producer)

    def consumer(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self._ends(channel)[1], channel.consumer)

    def is_last(self, subtask: SubtaskId) -> bool:
        """Whether ``subtask`` has no consumers."""
        return all(producer != subtask.vertex for _, producer, _ in self.edges)

    def feeds(self, producer: SubtaskId, consumer: SubtaskId) -> bool:
        """Whether a channel leads from ``producer`` to ``consumer``."""
        return any((p, c) == (producer.vertex, consumer.vertex) for _, p, c in self.edges)

    def with_upstreams(self, subtasks: Sequence[SubtaskId]) -> tuple[SubtaskId, ...]:
        """``subtasks`` and all their upstreams, up to the sources; sorted."""
        reached = [vertex for vertex in self.vertices if any(subtask.vertex == vertex for subtask in subtasks)]
        upstream: list[str] = []
        for near in reached:  # grows during the loop
            found = [producer for _, producer, consumer in sorted(self.edges) if consumer == near]
            upstream += [vertex for vertex in found if vertex not in upstream]
            reached += [vertex for vertex in found if vertex not in reached]
        every = [SubtaskId(vertex, index) for vertex in upstream for index in range(self.parallelism)]
        return tuple(sorted({*subtasks, *every}))

    def lineage(self, depth: int | None) -> Lineage:
        """The ancestors of each subtask, with sharing depth ``depth`` (``None``: no limit)."""
        edges = [(producer, consumer) for _, producer, consumer in sorted(self.edges)]
        return Lineage(self.vertices, edges, depth, self.recipes)

    @property
    def has_loops(self) -> bool:
        """Whether a vertex feeds itself, directly or through others."""
        lineage = self.lineage(None)
        return any(lineage.distance(vertex, vertex) is not None for vertex in self.vertices)

    def _ends(self, channel: ChannelId) -> tuple[str, str]:
        for edge, producer, consumer in self.edges:
            if edge == channel.edge:
                return producer, consumer
        raise KeyError(f"the job has no edge {channel.edge}")
