"""PageRank by pushing residuals, in whole numbers, so that the result is the same in any order.

Every vertex begins with ``MASS`` units of residual. One with *d* neighbours and at least ``FULL`` * *d* units *fires*,
as often as it can: it turns ``KEPT`` * *d* of them into rank, and pushes ``PUSHED`` to each neighbour, round the
loop. So 15 % of the moved units become rank, PageRank's probability of a restart (0.15), and 85 % are pushed. A
vertex without neighbours keeps all units. When no vertex can fire any more, the ranks are those of PageRank, in units
of ``MASS``, except for the residuals: less than ``FULL`` * *d* at every vertex.

This is chip firing, which is *abelian*: in any order, each vertex fires equally often (Björner and Lovász, "Chip-firing
games on directed graphs", 1992). So ranks and residuals are exact, and a lost or doubled unit would show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from flinkplus.api.streams.stream import Stream
from flinkplus.examples.graphs import Adjacency, last_values

LOOP, RANK, PUSH = "pushing", "rank", "push"
MASS = 10_000
KEPT, PUSHED = 3, 17
FULL = KEPT + PUSHED
"""Units that a vertex fires with, for each of its neighbours."""
PAGE = "vertex long, neighbours array<long>, mass long"
STEP = "vertex long, rank long, targets array<long>, share long"


class Page(NamedTuple):
    """A message to a vertex: its neighbours, once, or ``None``; and units of residual."""

    vertex: int
    neighbours: list[int] | None
    mass: int


class Firing(NamedTuple):
    """A firing of a vertex: its rank so far, and the ``share`` of each of its ``targets``."""

    vertex: int
    rank: int
    targets: list[int]
    share: int


def fired(degree: int, residual: int) -> tuple[int, int, int]:
    """The parts of a residual: new rank, the share of each neighbour, the rest."""
    if not degree:
        return residual, 0, 0
    times, left = divmod(residual, FULL * degree)
    return KEPT * degree * times, PUSHED * times, left


def fire(vertex: int, row: Any, ctx: Any) -> list[Firing]:
    """A vertex fires as often as it can, once its neighbours are known."""
    neighbours, units = ctx.state("neighbours"), ctx.state("units")
    to: tuple[int, ...] | None = neighbours.get()
    rank, residual = units.get((0, 0))
    if row.neighbours is not None:
        if to is not None:
            raise ValueError(f"vertex {vertex} has two lines")
        to = tuple(row.neighbours)
        neighbours.put(to)
    residual += row.mass
    gained, share = 0, 0
    if to is not None:
        gained, share, residual = fired(len(to), residual)
    units.put((rank + gained, residual))
    return [Firing(vertex, rank + gained, list(to or ()), share)] if gained else []


def ranks(rows: Stream) -> Stream:
    """Rows ``vertex long, rank long``, one whenever the rank of a vertex rises, of a stream of ``graphs.SCHEMA``."""

    def pushing(pages: Stream) -> tuple[Stream, Stream]:
        steps = pages.key_by("vertex").process(fire, schema=STEP, name=RANK)
        pushed = steps.flat_map(
            lambda row: [Page(other, None, row.share) for other in row.targets], schema=PAGE, name=PUSH
        )
        return pushed, steps.map(lambda row: (row.vertex, row.rank), schema="vertex long, rank long", name="ranks")

    pages = rows.map(lambda row: Page(row.vertex, row.neighbours, MASS), schema=PAGE, name="pages")
    return pages.iterate(pushing, name=LOOP)


def sequential(graph: Adjacency) -> dict[int, int]:
    """The ranks, computed plainly; vertices without a line have none."""
    residuals = dict.fromkeys(graph, MASS)
    found = dict.fromkeys(graph, 0)
    pending = deque(graph)
    while pending:
        vertex = pending.popleft()
        neighbours = graph[vertex]
        gained, share, residuals[vertex] = fired(len(neighbours), residuals[vertex])
        found[vertex] += gained
        for other in neighbours:
            if share and other in graph:
                residuals[other] += share
                pending.append(other)
    return {vertex: rank for vertex, rank in found.items() if rank}


def result(rows: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The last rank of every vertex. Raises ``ValueError`` for a row that is there twice."""
    return last_values(rows, max, "the rank of vertex {} rises to {}")
