"""An environment to draw with, and no Spark behind it."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.graph import JobGraph


class Session:
    """As much of a SparkSession as drawing needs."""

    @property
    def sparkContext(self) -> Session:  # Spark's name
        return self

    def getConf(self) -> Session:
        return self

    def getAll(self) -> list[tuple[str, str]]:
        return []


def environment(**options: Any) -> StreamEnvironment:
    return StreamEnvironment(cast(SparkSession, Session()), **options)


def numbers(env: StreamEnvironment, name: str, schema: str = "k string, v long") -> Stream:
    """A source that nobody runs."""
    return env.generate(lambda i: (str(i), i), schema=schema, name=name)


def shape(graph: JobGraph) -> list[tuple[str, list[tuple[str, str, tuple[str, ...]]]]]:
    """Every vertex, with its inputs: producer vertex, route, key columns."""
    graph.fuse()
    return [
        (
            vertex.name,
            [
                (graph.producer_vertex(edge).name, graph.exchanges[edge].route, graph.exchanges[edge].columns)
                for edge in vertex.inputs
            ],
        )
        for vertex in graph.vertices
    ]
