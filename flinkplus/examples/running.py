"""Runs an example on Spark, with kills on request, and compares its result with the sequential computation."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import ConfigurationError
from flinkplus.examples import components, pagerank
from flinkplus.examples.graphs import Graph, RandomGraph, rows_of

SINK = "results"
POLL_S = 0.01
FIRST_KILL, LAST_KILL = 0.3, 0.9
"""Kills come in this part of the time that the input takes."""


@dataclass(frozen=True)
class Example:
    """How to draw a job, its expected result, the result of its output rows, and the name of its loop."""

    draw: Callable[[Stream], Stream]
    sequential: Callable[[Any], dict[int, int]]
    result: Callable[[Iterable[tuple[int, int]]], dict[int, int]]
    loop: str


EXAMPLES = {
    "components": Example(components.labels, components.sequential, components.result, components.LOOP),
    "pagerank": Example(pagerank.ranks, pagerank.sequential, pagerank.result, pagerank.LOOP),
}


@dataclass(frozen=True)
class Run:
    """Settings of one run. ``rate``: vertices per second. ``output``: a Parquet directory; ``None``: the driver keeps
    the rows. ``kills``: number of slots to kill, chosen by ``seed``."""

    name: str
    graph: Graph = field(default_factory=RandomGraph)
    rate: float = 1_000.0
    output: str | None = None
    kills: int = 0
    seed: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def schedule(self, vertices: int, parallelism: int) -> list[tuple[float, int]]:
        """The kills: seconds from the beginning, and the slot."""
        rng = random.Random(self.seed)
        takes_s = vertices / self.rate
        times = [rng.uniform(FIRST_KILL, LAST_KILL) * takes_s for _ in range(self.kills)]
        return sorted((at_s, rng.randrange(parallelism)) for at_s in times)


def run_example(spark: SparkSession, run: Run) -> dict[str, Any]:
    """Run it to its end; returns every figure. Raises what ``execute`` and ``await_finish`` raise."""
    example = EXAMPLES[run.name]
    graph = run.graph.adjacency()
    if not graph:
        raise ConfigurationError("the graph has no vertices")
    env = StreamEnvironment(spark, **run.options)
    results = example.draw(rows_of(env, run.graph, run.rate))
    if run.output is None:
        results.collect(name=SINK)
    else:
        results.to_parquet(run.output, name=SINK)
    schedule = run.schedule(len(graph), env.options.parallelism)
    with env.execute(run.name) as job:
        killed = _kill(job, example.loop, schedule)
        job.await_finish()
    table = job.collected(SINK) if run.output is None else spark.read.parquet(run.output).toArrow()
    expected = example.sequential(graph)
    metrics = job.metrics()
    return {
        "example": run.name,
        "vertices": len(graph),
        "results": len(expected),
        "rows": table.num_rows,
        "went_round": sum(job.rows_out(example.loop).values()),
        "equal": example.result(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected,
        "running_s": metrics["running_s"],
        "killed": killed,
        "failovers": metrics["failovers"],
        "fallbacks": metrics["fallbacks"],
        "fallback_reasons": metrics["fallback_reasons"],
        "checkpoints": job.checkpoints(),
        "recoveries": job.recoveries(),
    }


def _kill(job: JobHandle, operator: str, schedule: list[tuple[float, int]]) -> int:
    """Kill slots by ``schedule`` while the job runs; returns the number of kills."""
    left = list(schedule)
    while left and not job.wait(POLL_S):
        if job.running_s is not None and job.running_s >= left[0][0]:
            if not job.kill(f"{operator}:{left[0][1]}"):
                break
            left.pop(0)
    for at_s, slot in left:
        print(f"the kill of slot {slot} at {at_s:.2f} s did not happen: the job was over before", file=sys.stderr)
    return len(schedule) - len(left)
