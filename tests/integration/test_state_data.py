"""The state of a job as a table: while it runs and after it has stopped, in Spark SQL and in a shell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from flinkplus import JobHandle, StreamEnvironment, read_state
from flinkplus.api.streams.stream import Stream
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint
from tests.typed import Command

pytestmark = pytest.mark.integration

ROWS, KEYS, STEP_MS = 3_000, 17, 10
FORMAT = "flinkplus-state"


def row(i: int) -> tuple[int, str, int]:
    return i, f"k{i % KEYS}", i * STEP_MS


def seen(key: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int]]:
    times = ctx.state("times")
    count, total = times.get((0, 0))
    times.put((count + 1, total + row.n))
    ctx.event_timer(row.ts + 60_000)
    yield key, row.n, row.ts + 60_000


def fired(key: str, at_ms: int, ctx: Any) -> Iterator[tuple[str, int, int]]:
    yield key, -1, at_ms


def rounds(rows: Stream) -> tuple[Stream, Stream]:
    """Each number comes round as often as it has bits, counted by number."""
    halved = rows.map(lambda row: (row.n, row.m // 2), schema="n long, m long", name="halve")
    counted = halved.key_by("n").count(name="laps")
    again = counted.filter(lambda row: row.m > 0, name="again").map(lambda row: (row.n, row.m), schema="n long, m long")
    return again, counted.filter(lambda row: row.m == 0, name="done")


def run(spark: SparkSession, tmp_path: Path, rate: float) -> JobHandle:
    out = tmp_path / "out"
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": 0.2, "recovery": "rollback"}
    env = StreamEnvironment(spark, checkpoint_dir=tmp_path / "checkpoints", **options)
    rows = env.generate(row, schema="n long, k string, ts long", count=ROWS, rate=rate, name="rows")
    marked = rows.with_watermark("ts", "0 seconds", name="marked")
    marked.key_by("k").process(seen, schema="k string, n long, at long", on_timer=fired, name="seen").to_parquet(
        str(out / "seen"), name="seen-out"
    )
    marked.key_by("k").count(name="count").to_parquet(str(out / "count"), name="count-out")
    rows.total("n", name="total").to_parquet(str(out / "total"), name="total-out")
    ends = rows.filter(lambda row: row.n % 5 == 0, name="fifths").map(
        lambda row: (row.n, row.n), schema="n long, m long"
    )
    ends.iterate(rounds, name="loop").to_parquet(str(out / "laps"), name="laps-out")
    return env.execute("state-data", resume="auto")


@pytest.mark.long
def test_state_of_a_job_in_spark_sql_and_in_a_shell(spark: SparkSession, tmp_path: Path, command: Command) -> None:
    directory, out = str(tmp_path / "checkpoints"), tmp_path / "out"
    with run(spark, tmp_path, 1_000.0) as job:
        wait_for_checkpoint(job, 2)
        running = read_state(directory, "total").read_all().to_pylist()
        assert len(running) == 1 and running[0]["checkpoint"] >= 1
    check_against_output(spark, directory, out)
    check_the_command(command, directory, spark)
    check_refusals(spark, directory)
    with run(spark, tmp_path, 1e6) as job:
        job.await_finish(PATIENCE_S)
    laps = spark.read.format(FORMAT).option("operator", "laps").load(directory)
    found = {r.n: r["count"] for r in laps.select("key.n", "value.count").collect()}
    assert found == {n: max(n.bit_length(), 1) for n in range(0, ROWS, 5)}
    state = read_state(directory).read_all()
    assert "timer" not in state["kind"].to_pylist() and len(set(state["checkpoint"].to_pylist())) == 1
    (total,) = read_state(directory, "total").read_all()["value"].to_pylist()
    assert total == {"total": sum(range(ROWS))}


def check_against_output(spark: SparkSession, directory: str, out: Path) -> None:
    """What is committed is that of the newest checkpoint; so the state is what the last row of each key says."""
    spark.read.format(FORMAT).option("operator", "count").load(directory).createOrReplaceTempView("counts")
    spark.read.parquet(str(out / "count")).createOrReplaceTempView("counted")
    differ = spark.sql(
        "select * from (select key.k, value.count from counts) c full join"
        " (select k, max(count) as n from counted group by k) o using (k) where not (c.count <=> o.n)"
    )
    assert differ.count() == 0 and spark.table("counts").count() == KEYS
    assert spark.table("counts").rdd.getNumPartitions() == 2
    committed = spark.read.parquet(str(out / "seen")).collect()
    state = spark.read.format(FORMAT).option("operator", "seen").load(directory)
    timers = {
        (r.k, r.at) for r in state.where("kind = 'timer'").selectExpr("key.k", "unix_millis(timer) as at").collect()
    }
    assert timers == {(r.k, r.at) for r in committed if r.n >= 0} - {(r.k, r.at) for r in committed if r.n < 0}
    numbers: dict[str, list[int]] = {}
    for r in committed:
        if r.n >= 0:
            numbers.setdefault(r.k, []).append(r.n)
    values = state.where("state = 'times'").selectExpr("key.k", "from_json(value, 'array<bigint>') as v").collect()
    assert {r.k: r.v for r in values} == {k: [len(found), sum(found)] for k, found in numbers.items()}


def check_the_command(command: Command, directory: str, spark: SparkSession) -> None:
    counts = {r.k: r["count"] for r in spark.table("counts").select("key.k", "value.count").collect()}
    code, printed, err = command("state", directory, "--operator", "count", "--json")
    found = {line["key"]["k"]: line["value"]["count"] for line in map(json.loads, printed.splitlines())}
    assert (code, err, found) == (0, "", counts)
    code, printed, err = command("state", directory, "--key", "k3", "--operator", "count")
    assert (code, err) == (0, "") and f'{{"count": {counts["k3"]}}}' in printed and '"k4"' not in printed
    code, printed, err = command("state", directory, "--limit", "3")
    assert (code, err) == (0, "") and "there are more rows" in printed


def check_refusals(spark: SparkSession, directory: str) -> None:
    for options, message in (({"operator": "cuont"}, "did you mean 'count'"), ({"opreator": "count"}, "has no option")):
        with pytest.raises((AnalysisException, PySparkException), match=message):
            spark.read.format(FORMAT).options(**options).load(directory)
