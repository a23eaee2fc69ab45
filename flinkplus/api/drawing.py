"""What streams need of the environment that they belong to."""

from __future__ import annotations

from typing import Protocol

from flinkplus.graph import JobGraph
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.routes import Route
from flinkplus.operators.rows.union import Union


class Drawing(Protocol):
    """A ``StreamEnvironment``, as its streams see it. ``output_id``: the mark in the files of its sinks."""

    graph: JobGraph
    output_id: str

    def name_for(self, kind: str, name: str | None) -> str:
        """``name``, or for ``None`` an unused one made from ``kind``: ``map``, ``map-2``."""

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """Limit the rows that leave these nodes; see ``Stream.throttle``."""


class Drawn(Protocol):
    """The part of a stream that is needed to draw something behind it.

    ``_origins``: the nodes that its rows come from.
    ``_union``: the node that unites several of them, once it is drawn.
    """

    _env: Drawing
    _origins: tuple[int, ...]
    _union: int | None

    @property
    def name(self) -> str: ...

    def _then(self, operator: Operator, route: Route | None = None, keys: tuple[str, ...] = ()) -> Drawn: ...


def node_of(stream: Drawn) -> int:
    """The node that gives the rows of a stream. That of a union is drawn when something is fused with it."""
    if len(stream._origins) == 1:
        return stream._origins[0]
    if stream._union is None:
        stream._union = node_of(stream._then(Union(stream.name), "forward"))
    return stream._union
