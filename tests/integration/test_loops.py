"""Loops on real Spark: the examples and a job without end, killed in mid-loop, by standbys and by rollback."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.examples.graphs import RandomGraph
from flinkplus.examples.running import Run, run_example
from tests.integration.conftest import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration
PRICED = "kind decimal(3, 1), price decimal(12, 2)"


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("components", ("logging:spread[1]#2", "manifest:spread[0]#2")),
        pytest.param("components", ("returned:spread[0]#7", "upload:lowest[1]#2"), marks=pytest.mark.long),
        pytest.param("pagerank", ("round:rank[2]#1",), marks=pytest.mark.long),
        pytest.param("pagerank", ("returned:pushing[2]#2", "commit:pushing[0]#2"), marks=pytest.mark.long),
    ],
)
def test_slots_are_killed_in_mid_loop(spark: SparkSession, tmp_path: Path, name: str, faults: tuple[str, ...]) -> None:
    """At the points, or one of them when the seed says; standbys take over."""
    options = {"parallelism": 3, "checkpoint_interval": 0.15, "work_dir": str(tmp_path), "faults": faults}
    kills = 2 - len(faults)
    run = Run(name, RandomGraph(vertices=500, degree=3), rate=500.0, kills=kills, seed=len(faults[0]), options=options)
    figures = run_example(spark, run)
    assert figures["equal"]
    assert (figures["killed"], figures["fallback_reasons"]) == (kills, [])
    assert figures["failovers"] >= 1  # on a busy machine a slot may count as hung as well
    lost = [subtask for recovery in figures["recoveries"] for subtask in recovery["subtasks"]]
    assert len({subtask.partition("[")[2] for subtask in lost}) == 2, lost
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_rollback_in_mid_loop(spark: SparkSession, tmp_path: Path) -> None:
    options = {"parallelism": 2, "checkpoint_interval": 0.15, "recovery": "rollback"}
    options |= {"work_dir": str(tmp_path), "faults": ("returned:pushing[1]#4",)}
    figures = run_example(spark, Run("pagerank", RandomGraph(vertices=300, degree=3), rate=500.0, options=options))
    assert figures["equal"]
    assert [recovery["mode"] for recovery in figures["recoveries"]] == ["rollback"]


def halving(rows: Stream) -> tuple[Stream, Stream]:
    """Rows ``i``, ``n``, ``laps``: round as often as ``n`` has bits."""
    halves = rows.key_by("n").process(
        lambda n, row, ctx: [(row.i, n // 2, row.laps + 1)], schema="i long, n long, laps long", name="halve"
    )
    return halves.filter(lambda row: row.n > 0, name="again"), halves.filter(lambda row: row.n == 0, name="done")


def test_a_job_without_end_is_resumed_and_drained(spark: SparkSession, tmp_path: Path) -> None:
    """Rows in the loop and sums of decimals resume from the last checkpoint; the end of the input ends the loop."""
    out, sums, checkpoints = tmp_path / "out", tmp_path / "sums", tmp_path / "checkpoints"

    def draw() -> StreamEnvironment:
        options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": 0.15, "replicas": 1}
        env = StreamEnvironment(spark, checkpoint_dir=checkpoints, **options)
        rows = env.generate(lambda i: (i, i + 1, 0), schema="i long, n long, laps long", rate=400.0, name="numbers")
        done = rows.iterate(halving, name="loop")
        done.to_parquet(out, name="rows")
        priced = done.map(lambda row: (Decimal(row.i % 4) / 2, Decimal(row.i) / 4), schema=PRICED)
        priced.key_by("kind").sum("price").to_parquet(sums, name="sums")
        return env

    with draw().execute("halving") as job:
        wait_until(lambda: job.metrics()["checkpoints_completed"] >= 3, "three checkpoints")
    with draw().execute("halving", resume=True) as job:
        assert job.restored_from is not None
        wait_until(lambda: job.metrics()["checkpoints_completed"] >= 2, "two checkpoints more")
        job.drain()
        job.await_finish(PATIENCE_S)
        read = sum(job.rows_out("numbers").values())
    table = pq.read_table(out)
    rows = {i: laps for i, laps in zip(table["i"].to_pylist(), table["laps"].to_pylist(), strict=True)}
    assert len(rows) == table.num_rows == read > 0
    assert all(laps == (i + 1).bit_length() for i, laps in rows.items())
    running = pq.read_table(sums).to_pylist()
    assert len(running) == read
    for kind in {row["kind"] for row in running}:
        mine = [row for row in running if row["kind"] == kind]
        prices = sum(Decimal(i) / 4 for i in rows if Decimal(i % 4) / 2 == kind)
        assert max(row["sum"] for row in mine) == prices == sum(row["price"] for row in mine)
