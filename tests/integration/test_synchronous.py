"""Synchronous checkpoints: killed in each phase of one, by standby and by rollback, the output is exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.errors import ConfigurationError
from tests.integration.conftest import in_pairs
from tests.integration.failover_jobs import Victim, side_by_side
from tests.integration.test_failover import assert_local

pytestmark = pytest.mark.integration


POINTS = [
    "alignment:count[1]#2",
    "snapshot:numbers[0]#2",
    "snapshot:count[2]#3",
    "upload:count[0]#2",
    "commit:count[1]#1",
]


@pytest.mark.parametrize("faults", in_pairs(POINTS), ids="+".join)
def test_a_kill_in_a_phase_of_a_synchronous_checkpoint(
    spark: SparkSession, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    variants = [{"faults": (fault,), "checkpoint_mode": "synchronous"} for fault in faults]
    with side_by_side(spark, tmp_path, variants, Victim) as victims:
        for victim in victims:
            victim.wait_for_failovers(1)
            victim.wait_for_checkpoints(2)
            victim.wait_for_strength()
        for victim in victims:
            victim.finish()
    for victim in victims:
        assert_local(victim, 1)


def test_a_rollback_during_a_synchronous_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with Victim(
        spark, tmp_path, faults=("upload:count[0]#3",), checkpoint_mode="synchronous", recovery="rollback"
    ) as victim:
        victim.wait(lambda: victim.metrics["recoveries"] == 1, "the rollback")
        victim.wait_for_checkpoints(2)
        victim.finish()


def test_synchronous_checkpoints_come_one_at_a_time(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="max_concurrent_checkpoints must be 1"):
        StreamEnvironment(spark, checkpoint_mode="synchronous", max_concurrent_checkpoints=2)
    with pytest.raises(ConfigurationError, match="checkpoint_mode must be one of aligned, synchronous, not 'none'"):
        StreamEnvironment(spark, checkpoint_mode="none")
