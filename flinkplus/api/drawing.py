"""What streams need of the environment that they belong to."""

from __future__ import annotations

from typing import Protocol

from flinkplus.graph import JobGraph


class Drawing(Protocol):
    """A ``StreamEnvironment``, as its streams see it. ``output_id``: the mark in the files of its sinks."""

    graph: JobGraph
    output_id: str

    def name_for(self, kind: str, name: str | None) -> str:
        """``name``, or for ``None`` an unused one made from ``kind``: ``map``, ``map-2``."""

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """Limit the rows that leave these nodes; see ``Stream.throttle``."""
