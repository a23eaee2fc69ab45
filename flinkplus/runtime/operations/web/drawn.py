"""The graph of a job as a document, for its page: vertices and the exchanges between them."""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.documents import Document
from flinkplus.graph import JobGraph


@dataclass(frozen=True, kw_only=True)
class DrawnOperator(Document):
    """One operator of a vertex."""

    name: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class DrawnVertex(Document):
    """One vertex: operators that run fused in each of its subtasks."""

    name: str
    operators: tuple[DrawnOperator, ...]


@dataclass(frozen=True, kw_only=True)
class DrawnExchange(Document):
    """Rows that pass from the subtasks of one vertex to those of another."""

    producer: str
    consumer: str
    route: str


@dataclass(frozen=True, kw_only=True)
class DrawnGraph(Document):
    """The whole graph, producers first."""

    vertices: tuple[DrawnVertex, ...]
    exchanges: tuple[DrawnExchange, ...]


def drawn(graph: JobGraph) -> DrawnGraph:
    """The document of a fused graph."""
    return DrawnGraph(
        vertices=tuple(
            DrawnVertex(
                name=vertex.name,
                operators=tuple(
                    DrawnOperator(name=graph.nodes[at].name, kind=graph.nodes[at].kind) for at in vertex.nodes
                ),
            )
            for vertex in graph.vertices
        ),
        exchanges=tuple(
            DrawnExchange(
                producer=graph.producer_vertex(exchange.edge).name,
                consumer=graph.consumer_vertex(exchange.edge).name,
                route=exchange.route,
            )
            for exchange in graph.exchanges
        ),
    )
