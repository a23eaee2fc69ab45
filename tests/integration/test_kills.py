"""Slots that are killed in the phases of every kind of checkpoint: samples of ``make kill-check``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kills.matrix import (
    ALIGNED,
    IN_COMPONENTS,
    PARTIAL,
    ROLLBACK,
    STANDBY,
    SYNCHRONOUS,
    UNALIGNED,
    WITH_TIME_OUT,
    Plan,
)
from tests.kills.runner import run_beside

pytestmark = pytest.mark.integration

SAMPLES = {
    "aligned": (
        Plan(ALIGNED, STANDBY, ("alignment", "uploaded", "manifest")),
        Plan(ALIGNED, ROLLBACK, ("snapshot", "commit"), 1),
    ),
    "aligned, at other points": (
        Plan(ALIGNED, STANDBY, ("start", "snapshot:numbers", "staged", "end")),
        Plan(ALIGNED, ROLLBACK, ("start:numbers", "upload", "manifest", "committed"), 1),
    ),
    "unaligned": (
        Plan(UNALIGNED, STANDBY, ("recording", "recorded", "manifest")),
        Plan(WITH_TIME_OUT, ROLLBACK, ("upload", "recorded", "commit"), 1),
    ),
    "synchronous, and partial": (
        Plan(SYNCHRONOUS, STANDBY, ("alignment", "upload", "commit")),
        Plan(WITH_TIME_OUT, PARTIAL, ("recording", "commit"), options={"transport": "grpc"}),
    ),
    "in a loop": (Plan(IN_COMPONENTS, ROLLBACK, ("returned", "manifest"), 1),),
}


@pytest.mark.long  # `make kill-check` has all of them
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plans", [pytest.param(plans, id=name) for name, plans in SAMPLES.items()])
def test_a_kill_in_each_phase_of_a_checkpoint(spark: SparkSession, tmp_path: Path, plans: tuple[Plan, ...]) -> None:
    cells = run_beside(spark, tmp_path, plans)
    assert [(cell.point, cell.subtask, cell.result) for cell in cells if not cell.good] == []
    assert len(cells) == sum(len(plan.points) for plan in plans)
