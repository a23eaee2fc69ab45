"""Unaligned checkpoints under back-pressure: killed in each phase of one, by standby and by rollback, the output is
exact.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.stream import Stream
from tests.integration.failover_jobs import Victim
from tests.integration.test_failover import assert_local
from tests.integration.test_failover_stages import assert_exact, two

pytestmark = pytest.mark.integration

SECONDS_A_ROW = 0.001
"""A third more than there is time for."""


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(SECONDS_A_ROW * batch.num_rows)
    return batch


def slow_stage(stream: Stream) -> Stream:
    """Number the rows of each bucket, and be slow: what comes in waits, and so does what is counted before."""
    stream = two(stream)
    return stream.map_batches(slowly, schema="word string, i long, count long, bucket long, place long", name="slowly")


def assert_in_flight(victim: Victim) -> None:
    """Checkpoints held messages."""
    complete = [found for found in victim.job.checkpoints() if found["status"] == "complete"]
    unaligned = [found for found in complete if found["mode"] == "unaligned"]
    assert unaligned and max(found["in_flight_bytes"] for found in unaligned) > 1_000, complete
    assert complete[-1]["final"] and complete[-1]["in_flight_bytes"] == 0, "nothing is in flight at the end"


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("snapshot:count[1]#3", {}),
        ("uploaded:place[0]#3", {"transport": "grpc", "aligned_timeout": 0.1}),
    ],
)
def test_a_kill_in_a_phase_of_an_unaligned_checkpoint(
    spark: SparkSession, tmp_path: Path, fault: str, options: dict[str, Any]
) -> None:
    with Victim(spark, tmp_path, between=slow_stage, faults=(fault,), checkpoint_mode="unaligned", **options) as victim:
        victim.wait_for_failovers(1)
        victim.wait_for_checkpoints(2)
        victim.finish()
    assert_local(victim, 1)
    assert_exact(victim, 2)
    assert_in_flight(victim)


def test_a_rollback_puts_back_what_was_in_flight(spark: SparkSession, tmp_path: Path) -> None:
    with Victim(
        spark,
        tmp_path,
        between=slow_stage,
        faults=("upload:place[0]#4",),
        checkpoint_mode="unaligned",
        recovery="rollback",
    ) as victim:
        victim.wait(lambda: victim.metrics["recoveries"] == 1, "the rollback")
        victim.wait_for_checkpoints(2)
        victim.finish()
    assert_exact(victim, 2)
    assert_in_flight(victim)
