"""The jobs that are killed: stages in a row, the same with a slow last one, a loop, and connected components.

Each runs until it is drained, and then knows from what its sources have read what its output has to be.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.examples import components
from flinkplus.examples.graphs import SCHEMA as GRAPH_SCHEMA
from flinkplus.examples.graphs import SOURCE, RandomGraph
from flinkplus.runtime.control.names import parse_subtask
from tests.integration.failover_jobs import Victim
from tests.integration.test_failover_stages import assert_exact, assert_numbered, two

RATE = 300.0
LOOP_RATE = 60.0
"""Little work, so that the job is whole again soon on a machine that is busy with other things."""
SECONDS_A_ROW = 0.013_3
"""A third more than there is time for at ``RATE``, in three slots."""
LAPPED = "word string, i long, count long, n long, laps long"
BUCKETS = 7


class Stages(Victim):
    """Count words, number the rows of each bucket in the order in which they come."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        super().__init__(spark, path, between=two, rate=RATE, **options)

    def check(self) -> None:
        super().check()
        assert_exact(self, 2)


class Slowly:
    """Lets batches through slowly, until there is a file ``hurry``."""

    def __init__(self, hurry: Path) -> None:
        self._hurry = hurry

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._hurry.exists():
            time.sleep(SECONDS_A_ROW * batch.num_rows)
        return batch


def assert_in_flight(victim: Victim) -> None:
    """Checkpoints held messages."""
    complete = [found for found in victim.job.checkpoints() if found["status"] == "complete"]
    unaligned = [found for found in complete if found["mode"] == "unaligned"]
    assert unaligned and max(found["in_flight_bytes"] for found in unaligned) > 1_000, complete
    assert complete[-1]["final"] and complete[-1]["in_flight_bytes"] == 0, "nothing is in flight at the end"


class SlowStages(Victim):
    """The last stage is slower than the others until the job is drained, so that messages wait: checkpoints have to
    hold some.
    """

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        self._hurry = path / "hurry"

        def two_and_slow(stream: Stream) -> Stream:
            schema = "word string, i long, count long, bucket long, place long"
            return two(stream).map_batches(Slowly(self._hurry), schema=schema, name="slowly")

        super().__init__(spark, path, between=two_and_slow, rate=RATE, **options)

    def finish(self) -> dict[str, Any]:
        self._hurry.touch()
        return super().finish()

    def check(self) -> None:
        super().check()
        assert_exact(self, 2)
        assert_in_flight(self)


def halving(rows: Stream) -> tuple[Stream, Stream]:
    """Round as often as ``n`` has bits."""
    halves = rows.key_by("n").process(
        lambda n, row, ctx: [(row["word"], row["i"], row["count"], n // 2, row["laps"] + 1)],
        schema=LAPPED,
        name="halve",
    )
    return halves.filter(lambda row: row["n"] > 0, name="again"), halves.filter(lambda row: row["n"] == 0, name="done")


def looped(stream: Stream) -> Stream:
    """Count words, go round a loop, number the rows of each bucket in the order in which they leave it."""
    entering = stream.map(lambda row: (row["word"], row["i"], row["count"], row["i"] + 1, 0), schema=LAPPED, name="one")
    left = entering.iterate(halving, name="loop").map(
        lambda row: (row["word"], row["i"], row["count"], row["laps"], row["i"] % BUCKETS),
        schema="word string, i long, count long, laps long, bucket long",
        name="bucket",
    )
    return left.key_by("bucket").count(output="place", name="place")


class Loop(Victim):
    """Row ``i`` goes round as often as ``i + 1`` has bits."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        super().__init__(spark, path, between=looped, rate=LOOP_RATE, **options)

    def check(self) -> None:
        super().check()
        assert_numbered(self, "bucket", "place")
        table = pq.read_table(self.out, columns=["i", "laps"])
        for i, laps in zip(table["i"].to_pylist(), table["laps"].to_pylist(), strict=True):
            assert laps == (i + 1).bit_length(), f"row {i} went round {laps} times"


class Blocks(RandomGraph):
    """A graph without end, of small components: edges stay within a block of vertices."""

    SIZE = 40

    def __call__(self, vertex: int) -> tuple[int, list[int]]:
        first = vertex - vertex % self.SIZE
        _, others = super().__call__(vertex)
        return vertex, [first + other % self.SIZE for other in others]


class Components(Victim):
    """Connected components by label propagation (``flinkplus example components``), of what was read of a graph."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        self.out, self.work = path / "out", path / "work"
        self.work.mkdir()
        self._graph = Blocks()
        env = StreamEnvironment(spark, work_dir=str(self.work), **options)
        rows = env.generate(self._graph, schema=GRAPH_SCHEMA, rate=LOOP_RATE, name=SOURCE)
        components.labels(rows).to_parquet(str(self.out), name="out")
        self.job = env.execute("components")

    def check(self) -> None:
        parallelism = self.job._running.coordinator.options.parallelism
        read = {parse_subtask(name).index: rows for name, rows in self.job.rows_out(SOURCE).items()}
        vertices = [index + parallelism * at for index, rows in read.items() for at in range(rows)]
        assert len(vertices) > 0
        table = pq.read_table(self.out)
        rows = zip(table["vertex"].to_pylist(), table["label"].to_pylist(), strict=True)
        expected = components.sequential({vertex: tuple(others) for vertex, others in map(self._graph, vertices)})
        assert components.result(rows) == expected
