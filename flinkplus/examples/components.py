"""Connected components, by label propagation over a stream of edges.

Every vertex has a label, at first itself, and takes the lowest that it receives. When its label falls, it sends the
label to all its neighbours, round the loop; a new neighbour gets it at once. When no message is left in the loop, all
labels of a component are equal to its lowest vertex, in any order of events, because labels only fall. Every fall is
one row of the output, so a row that was doubled or lost shows there, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from flinkplus.api.streams.stream import Stream
from flinkplus.examples.graphs import Adjacency, last_values

LOOP, LOWEST, SENT = "spread", "lowest", "sent"
HEARD = "vertex long, neighbours array<long>, label long"
STEP = "vertex long, label long, fell boolean, targets array<long>"


class Heard(NamedTuple):
    """A message to a vertex: further neighbours, or a label."""

    vertex: int
    neighbours: list[int] | None
    label: int | None


class Labelled(NamedTuple):
    """The reaction of a vertex: its label, whether that ``fell``, and the vertices to send it to."""

    vertex: int
    label: int
    fell: bool
    targets: list[int]


def both_ways(row: Any) -> Iterable[Heard]:
    """An edge is known at both of its ends."""
    yield Heard(row.vertex, row.neighbours, None)
    for other in row.neighbours:
        yield Heard(other, [row.vertex], None)


def lowest(vertex: int, row: Any, ctx: Any) -> list[Labelled]:
    """The label of ``vertex``, after what it has heard."""
    neighbours, label = ctx.state("neighbours"), ctx.state("label")
    known: tuple[int, ...] = neighbours.get(())
    before: int | None = label.get()
    added = tuple(other for other in dict.fromkeys(row.neighbours or ()) if other not in known)
    if added:
        neighbours.put(known + added)
    now = min(value for value in (vertex, before, row.label) if value is not None)
    fell = now != before
    if fell:
        label.put(now)
    targets = known + added if fell else added
    return [Labelled(vertex, now, fell, list(targets))] if fell or targets else []


def labels(rows: Stream) -> Stream:
    """Rows ``vertex long, label long``, one whenever the label of a vertex falls, of a stream of ``graphs.SCHEMA``."""

    def spread(heard: Stream) -> tuple[Stream, Stream]:
        steps = heard.key_by("vertex").process(lowest, schema=STEP, name=LOWEST)
        sent = steps.flat_map(
            lambda row: [Heard(other, None, row.label) for other in row.targets], schema=HEARD, name=SENT
        )
        fallen = steps.filter(lambda row: row.fell, name="fell")
        return sent, fallen.map(lambda row: (row.vertex, row.label), schema="vertex long, label long", name="label")

    return rows.flat_map(both_ways, schema=HEARD, name="edges").iterate(spread, name=LOOP)


def sequential(graph: Adjacency) -> dict[int, int]:
    """The component of every vertex, by its lowest vertex; computed plainly, by union and find."""
    parent: dict[int, int] = {}

    def find(vertex: int) -> int:
        parent.setdefault(vertex, vertex)
        while parent[vertex] != vertex:
            parent[vertex] = vertex = parent[parent[vertex]]
        return vertex

    for vertex, neighbours in graph.items():
        find(vertex)
        for other in neighbours:
            low, high = sorted((find(vertex), find(other)))
            parent[high] = low
    return {vertex: find(vertex) for vertex in parent}


def result(rows: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The last label of every vertex. Raises ``ValueError`` for a row that is there twice."""
    return last_values(rows, min, "the label of vertex {} falls to {}")
