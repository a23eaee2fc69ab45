"""The matrix has every point, and each job can be killed where it is to be."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from flinkplus.runtime.faults.points import POINTS, STANDBY_POINTS
from tests.kills import runner
from tests.kills.matrix import (
    AT_THE_END,
    AT_THE_START,
    COLUMNS,
    KILLS_A_JOB,
    MODES,
    PARTIAL,
    RECOVERIES,
    STANDBY,
    plans,
)


def test_every_point_of_a_checkpoint_is_in_it() -> None:
    assert set(COLUMNS) == set(POINTS) - {"promotion", "promoted"}
    assert {point for mode in MODES for point in mode.points} == set(COLUMNS)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_point_of_a_mode_is_killed_at_once(mode, recovery) -> None:
    found = plans(mode, recovery)
    points = [point for plan in found for point in plan.points]
    left_out = () if recovery == STANDBY else STANDBY_POINTS
    if not (mode.loops and recovery == PARTIAL):
        assert sorted(points) == sorted(point for point in mode.points if point not in left_out)
    for plan in found:
        assert 1 <= len(plan.points) <= KILLS_A_JOB
        assert not set(plan.points[1:]) & set(AT_THE_START), "it is told before the job begins"
        assert not set(plan.points[:-1]) & set(AT_THE_END), "nothing comes after it"


def test_a_process_that_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GONE_S", 0.1)
    processes = runner.Processes()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        processes.killed(psutil.Process(process.pid))
        assert len(processes.left()) == 1
        process.kill()
        process.wait()
    assert processes.left() == []
