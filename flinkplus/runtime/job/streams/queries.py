"""What runs in the driver beside a job for its sources: queries of streaming DataFrames, planners of data sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.job.streams.floors import BatchFloors
from flinkplus.runtime.job.streams.planner import BatchPlanner
from flinkplus.runtime.job.streams.query import StreamQuery
from flinkplus.sources.batches.area import StagingArea
from flinkplus.sources.batches.source import StreamedBatches
from flinkplus.sources.planned.source import DataSourceBatches

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


def planned_sources(graph: JobGraph) -> dict[str, DataSourceBatches]:
    """The sources whose batches the driver plans, by name."""
    return {node.name: node.body for node in graph.nodes if isinstance(node.body, DataSourceBatches)}


class StreamQueries:
    """The queries of streaming DataFrames, and the planners of data sources.

    ``frames``: the DataFrames of the program, by source.
    ``check``, ``failed``: see ``StreamQuery``.
    ``read``: how much the subtasks of a source have read, by its name and that of a counter.
    """

    def __init__(
        self,
        graph: JobGraph,
        frames: Mapping[str, DataFrame],
        commits: Commits,
        restore: Restore,
        check: Callable[[], None],
        read: Callable[[str, str], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._running: Sequence[StreamQuery | BatchPlanner] = ()
        queries = {name: source for name, source in streamed(graph).items() if name in frames}
        planners = planned_sources(graph)
        if not queries and not planners:
            return
        floors = BatchFloors({**queries, **planners}, (*restore.available, *restore.older))
        commits.stored, commits.dropped = floors.stored, floors.dropped
        positions = _positions(commits, restore) if planners else {}

        def query_of(name: str, source: StreamedBatches) -> StreamQuery:
            return StreamQuery(source, frames[name], check, lambda: read(name, "rows"), lambda: floors.of(name), failed)

        def planner_of(name: str, source: DataSourceBatches) -> BatchPlanner:
            known = positions.get(name)
            begun = source.begun(known) if known else 0
            return BatchPlanner(source, begun, check, lambda: read(name, "partitions"), lambda: floors.of(name), failed)

        self._running = [
            *(query_of(name, source) for name, source in queries.items()),
            *(planner_of(name, source) for name, source in planners.items()),
        ]

    def begin(self) -> None:
        """Start all; returns at once."""
        for one in self._running:
            one.begin()

    def stop(self) -> None:
        """End all, and wait for that."""
        for one in self._running:
            one.stop()


def _positions(commits: Commits, restore: Restore) -> dict[str, list[Any]]:
    """The positions of the readers of each source in the checkpoint that the job resumes from."""
    found: dict[str, list[Any]] = {}
    if restore.checkpoint is not None:
        for handle in commits.manifest(restore.checkpoint).subtasks.values():
            for name, part in handle.operator_state.operators.items():
                found.setdefault(name, []).append(part.position)
    return found
