"""The queries of all streaming DataFrames of one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame

from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.job.streams.floors import BatchFloors
from flinkplus.runtime.job.streams.query import StreamQuery
from flinkplus.sources.batches.area import StagingArea
from flinkplus.sources.batches.source import StreamedBatches

STREAMS = "streams"
"""The folder of the staging areas, in the checkpoint directory."""


def streamed(graph: JobGraph) -> dict[str, StreamedBatches]:
    """The sources that are streaming DataFrames, by name."""
    return {node.name: node.body for node in graph.nodes if isinstance(node.body, StreamedBatches)}


def check_frames(graph: JobGraph, frames: Mapping[str, DataFrame]) -> None:
    """Raises ``ConfigurationError`` if a query must continue, and only the program could say which."""
    for name, source in streamed(graph).items():
        ended = source.location is not None and StagingArea(source.location).ready()[1]
        if name not in frames and not ended:
            raise ConfigurationError(
                f"source {name!r} is a streaming DataFrame, which is not in the checkpoint directory: resume the job "
                "with its program (execute(..., resume=True))"
            )


class StreamQueries:
    """``frames``: the DataFrames of the program, by source.

    ``check``, ``failed``: see ``StreamQuery``. ``rows_read``: rows that the subtasks of a source have read.
    """

    def __init__(
        self,
        graph: JobGraph,
        frames: Mapping[str, DataFrame],
        commits: Commits,
        restore: Restore,
        check: Callable[[], None],
        rows_read: Callable[[str], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._queries: Sequence[StreamQuery] = ()
        sources = {name: source for name, source in streamed(graph).items() if name in frames}
        if not sources:
            return
        floors = BatchFloors(sources, (*restore.available, *restore.older))
        commits.stored, commits.dropped = floors.stored, floors.dropped

        def query_of(name: str, source: StreamedBatches) -> StreamQuery:
            return StreamQuery(source, frames[name], check, lambda: rows_read(name), lambda: floors.of(name), failed)

        self._queries = [query_of(name, source) for name, source in sources.items()]

    def begin(self) -> None:
        """Start all queries; returns at once."""
        for query in self._queries:
            query.begin()

    def stop(self) -> None:
        """End all queries, and wait for that."""
        for query in self._queries:
            query.stop()
