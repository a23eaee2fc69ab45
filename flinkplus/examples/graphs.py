"""The graphs of the examples: a row is a vertex and the ``neighbours`` that it has edges to.

A text file has one line for each vertex, ``vertex neighbour neighbour ...``, in whole numbers from 0 up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import InputError

SCHEMA = "vertex long, neighbours array<long>"
SOURCE = "graph"
Adjacency: TypeAlias = Mapping[int, tuple[int, ...]]
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class RandomGraph:
    """``vertices`` with up to ``degree`` neighbours each, by ``seed``; a pure function of the vertex."""

    vertices: int = 2_000
    degree: int = 2
    seed: int = 1

    def __call__(self, vertex: int) -> tuple[int, list[int]]:
        count = _mixed(self.seed, vertex) % (self.degree + 1)
        return vertex, [_mixed(self.seed, (at << 40) + vertex) % self.vertices for at in range(1, count + 1)]

    def adjacency(self) -> Adjacency:
        return {vertex: tuple(neighbours) for vertex, neighbours in map(self, range(self.vertices))}


@dataclass(frozen=True)
class GraphFile:
    """A text file."""

    path: str

    def adjacency(self) -> Adjacency:
        """Raises ``InputError`` for a line that is not understood, and for a vertex with two lines."""
        found: dict[int, tuple[int, ...]] = {}
        try:
            lines = Path(self.path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path} cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                vertex, neighbours = parsed(line)
            except ValueError:
                raise InputError(f"{self.path}, line {number}: {line[:80]!r} is not 'vertex neighbour ...'") from None
            if vertex in found:
                raise InputError(f"{self.path}, line {number}: vertex {vertex} has two lines")
            found[vertex] = tuple(neighbours)
        return found


Graph: TypeAlias = RandomGraph | GraphFile


def parsed(line: str) -> tuple[int, list[int]]:
    """A line as a row. Raises ``ValueError``."""
    vertex, *neighbours = map(int, line.split())
    if min(vertex, *neighbours, 0) < 0:
        raise ValueError(line)
    return vertex, neighbours


def _rows(row: Any) -> Iterable[tuple[int, list[int]]]:
    return [parsed(row.value)] if row.value.strip() else []


def rows_of(env: StreamEnvironment, graph: Graph, rate: float | None = None) -> Stream:
    """The rows of a graph as a stream; ``rate``: in a second."""
    if isinstance(graph, RandomGraph):
        rows = env.generate(graph, schema=SCHEMA, count=graph.vertices, name=SOURCE)
    else:
        rows = env.read_text(graph.path, name="lines").flat_map(_rows, schema=SCHEMA, name=SOURCE)
    return rows if rate is None else rows.throttle(rate)


def _mixed(seed: int, i: int) -> int:
    """64 bits that look random (the finish of splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + i * 0xD1B54A32D192ED03) & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def last_values(rows: Iterable[tuple[int, int]], last: Callable[[int, int], int], said: str) -> dict[int, int]:
    """The ``last`` value (``min`` or ``max``) of every vertex. Raises ``ValueError``, ``said`` of a repeated row."""
    found: dict[int, int] = {}
    seen: set[tuple[int, int]] = set()
    for vertex, value in rows:
        if (vertex, value) in seen:
            raise ValueError(f"{said.format(vertex, value)} twice")
        seen.add((vertex, value))
        found[vertex] = last(value, found.get(vertex, value))
    return found
