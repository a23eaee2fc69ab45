"""Under which conditions runs happen: the rule about priority against the system itself, and the line for people."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from experiments.harness.conditions import conditions, conditions_line, may_raise_priority
from flinkplus.runtime.host.priority import PREFERRED

NICE_CAPABILITY = 1 << 23
TRY = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {PREFERRED}); print('granted')"


def test_what_a_program_finds() -> None:
    found = conditions()
    assert found["uid"] >= 0 and found["nice"] in range(-20, 20)
    assert len(found["load"]) == 3 and min(found["load"]) >= 0


@pytest.mark.skipif(sys.platform != "linux", reason="the rule is Linux's")
def test_the_rule_is_that_of_the_system() -> None:
    before = conditions()
    tried = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, check=False)
    assert before["may_raise_priority"] is (tried.stdout == "granted\n")
    assert conditions()["nice"] == before["nice"], "nothing has changed here"


@pytest.mark.parametrize(
    ("nice", "limit", "capabilities", "may"),
    [
        (0, 0, 0, False),
        (0, 29, 0, False),
        (0, 30, 0, True),
        (0, -1, 0, True),
        (0, 0, NICE_CAPABILITY, True),
        (0, 0, ~NICE_CAPABILITY & 0xFFFFFFFF, False),
        (PREFERRED, 0, 0, True),
    ],
)
def test_who_may_raise_priority(nice: int, limit: int, capabilities: int, may: bool) -> None:
    assert may_raise_priority(nice, limit, capabilities) is may


def content(**more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"machine": {"cores": 2}, "commit": "0123456789abcdef-dirty", "uid": 1000, "nice": 5}
    return {**known, "may_raise_priority": False, "load": [1.5, 1.0, 0.5], "runs": [], **more}


def test_the_line_for_people() -> None:
    assert conditions_line(content()) == (
        "conditions: 2 cores; commit 0123456789ab-dirty; uid 1000, nice 5; priority of the failover path not raised "
        "(raising it needs root or RLIMIT_NICE); load at the beginning of a run 1.5"
    )
    runs = [{"load_1min": 2.0}, {"load_1min": 0.25}, {}]
    line = conditions_line(content(runs=runs, may_raise_priority=True, commit=None))
    assert "path raised" in line and "commit unknown;" in line and line.endswith("0.25 to 2")
