"""A record of a real run's machines, repeated by the same machines elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.failover_jobs import Victim
from tests.simulation.recorded import replay

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_a_real_run_can_be_repeated(spark: SparkSession, tmp_path: Path) -> None:
    record = tmp_path / "record"
    with Victim(spark, tmp_path, record_machines=str(record)) as victim:
        victim.wait_for_strength()
        victim.job.kill("count:1")
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        victim.finish()
    taken = replay(record)
    assert taken["job"] > 5 and taken["checkpoints"] > 10 and taken["failover"] > 10
