"""What streams need of the environment that they are drawn in."""

from __future__ import annotations

from typing import Protocol

from flinkplus.graph import JobGraph


class Drawing(Protocol):
    """A ``StreamEnvironment``, as its streams see it. ``output_id``: what its sinks mark their files with."""

    graph: JobGraph
    output_id: str

    def name_for(self, kind: str, name: str | None) -> str:
        """The name of a new operator: ``name``, or one made from ``kind`` that is not in use."""

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """Let no more rows leave these nodes."""
