"""Unaligned checkpoints under back-pressure: killed in each phase of one, by standby and by rollback, the output is
exact.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.stream import Stream
from flinkplus.runtime.faults import parse_fault
from flinkplus.runtime.names import parse_subtask
from tests.integration.conftest import in_pairs
from tests.integration.failover_jobs import Victim, side_by_side
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


STANDBY: list[dict[str, Any]] = [
    {"faults": ("recorded:place[0]#5", "uploaded:place[1]#9")},
    {"faults": ("snapshot:count[1]#3",)},
    {"faults": ("uploaded:place[0]#3",), "transport": "grpc", "aligned_timeout": 0.1},
]
"""Slots die at these points: of two in one job, the second a little later."""
ROLLBACK: list[dict[str, Any]] = [
    {"faults": ("recording:place[0]#5",)},
    {"faults": ("upload:place[0]#4",)},
    {"faults": ("manifest:place[2]#3",), "aligned_timeout": 0.1},
    {"faults": ("commit:count[1]#2",)},
    {"faults": ("recorded:count[2]#3",), "aligned_timeout": 0.1},
    {"faults": ("end:place[1]#1",)},
]


def at_once(
    spark: SparkSession, path: Path, variants: Sequence[dict[str, Any]], **options: Any
) -> AbstractContextManager[list[Victim]]:
    given = {"between": slow_stage, "checkpoint_mode": "unaligned", **options}
    return side_by_side(spark, path, [{**given, **variant} for variant in variants], Victim)


def wait_for_restarts(victim: Victim, variant: dict[str, Any]) -> None:
    """But of those that die at the end."""
    kills = sum(not fault.startswith("end") for fault in variant["faults"])
    victim.wait(lambda: victim.metrics["slot_restarts"] >= kills, f"{kills} slots started again; {victim.metrics}")
    victim.wait_for_checkpoints(2)


def lost_slots(victim: Victim) -> set[int]:
    subtasks = [subtask for recovery in victim.job.recoveries() for subtask in recovery["subtasks"]]
    return {parse_subtask(subtask).index for subtask in subtasks}


def points(variants: tuple[dict[str, Any], ...]) -> str:
    return "+".join(fault for variant in variants for fault in variant["faults"])


@pytest.mark.parametrize("variants", [(variant,) for variant in STANDBY], ids=points)
def test_kills_in_the_phases_of_unaligned_checkpoints(
    spark: SparkSession, tmp_path: Path, variants: tuple[dict[str, Any], ...]
) -> None:
    with at_once(spark, tmp_path, variants) as victims:
        for victim, variant in zip(victims, variants, strict=True):
            wait_for_restarts(victim, variant)
            victim.wait_for_strength()
        for victim in victims:
            victim.finish()
    for victim, variant in zip(victims, variants, strict=True):
        assert_local(victim, victim.metrics["failovers"])
        struck = [parse_fault(fault).subtask for fault in variant["faults"]]
        assert lost_slots(victim) == {parse_subtask(subtask).index for subtask in struck}
        assert_exact(victim, 2)
        assert_in_flight(victim)


@pytest.mark.parametrize("variants", in_pairs(ROLLBACK), ids=points)
def test_a_rollback_puts_back_what_was_in_flight(
    spark: SparkSession, tmp_path: Path, variants: tuple[dict[str, Any], ...]
) -> None:
    with at_once(spark, tmp_path, variants, recovery="rollback") as victims:
        for victim, variant in zip(victims, variants, strict=True):
            wait_for_restarts(victim, variant)
        for victim in victims:
            victim.finish()
    for victim in victims:
        assert [recovery["mode"] for recovery in victim.job.recoveries()] == ["rollback"]
        assert_exact(victim, 2)
        assert_in_flight(victim)
