"""Failures of hosts in the experiment on recoveries: which host is struck, which subtasks it takes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from experiments.cluster.control import Control
from experiments.harness.running import RunError
from experiments.recovery import kill
from experiments.recovery.experiment import Settings
from experiments.recovery.kill import Striker
from experiments.recovery.plan import FAILURES, HOST_FAILURES, PlannedKill
from flinkplus.api.job import JobHandle
from flinkplus.cli.main import parser
from flinkplus.errors import ConfigurationError
from tests.unit.experiments.orders import Orders

PLACEMENT = {
    "lines+tokenize[0]": "worker-1",
    "lines+tokenize[1]": "worker-2",
    "lines+tokenize[2]": "worker-1",
    "count+out[0]": "worker-1",
    "count+out[1]": "worker-2",
    "count+out[2]": "worker-1",
}


class Job:
    """A job that is placed like that."""

    def placement(self) -> dict[str, str]:
        return PLACEMENT


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "PAUSE_S", 0.01)


def strike(failure: str, index: int, control: Control | None) -> Any:
    planned = PlannedKill(0, 0, 7, "count", index, 0.0)
    return Striker(cast(JobHandle, Job()), failure, control=control).strike(planned)


@pytest.mark.parametrize(("failure", "order"), [("host", "kill"), ("hang", "pause"), ("cut", "cut")])
def test_a_host_is_struck_with_all_its_subtasks(failure: str, order: str) -> None:
    control = Orders(12.5)
    struck = strike(failure, 2, control)
    back = [] if failure == "host" else [("revive", "worker-1")]
    assert control.given == [(order, "worker-1"), *back]
    assert (struck.time_s, struck.host) == (12.5, "worker-1")
    assert struck.revived_s == (None if failure == "host" else 12.5)
    assert [name for name in PLACEMENT if name.endswith(struck.failed)] == [
        name for name, host in PLACEMENT.items() if host == "worker-1"
    ]


class Moved(Job):
    """A job with standbys, whose subtasks number 1 and 2 are on slot 2."""

    def chains(self) -> dict[str, list[int]]:
        return {name: [2 if name.endswith(("[1]", "[2]")) else 0, 1] for name in PLACEMENT}

    def kill(self, subtask: str) -> bool:
        return subtask == "count[1]"


def test_a_process_is_struck_with_all_that_is_on_it() -> None:
    struck = Striker(cast(JobHandle, Moved()), "sigkill").strike(PlannedKill(0, 0, 7, "count", 1, 0.0))
    assert sorted(struck.failed) == ["count+out[1]", "count+out[2]", "lines+tokenize[1]", "lines+tokenize[2]"]
    with pytest.raises(RunError, match="ended before the kill"):
        Striker(cast(JobHandle, Moved()), "sigkill").strike(PlannedKill(0, 0, 7, "count", 0, 0.0))


def test_a_host_that_cannot_be_struck() -> None:
    with pytest.raises(RunError, match="on no host"):
        strike("host", 3, Orders())
    with pytest.raises(RunError, match="can give orders to"):
        strike("host", 1, None)


def test_failures_of_hosts_take_a_cluster() -> None:
    for failure in HOST_FAILURES:
        with pytest.raises(ConfigurationError, match="--cluster namespaces"):
            Settings(parallelism=(2,), failure=(failure,)).check()
        Settings(parallelism=(2,), failure=(failure,), hosts=4).check()


def test_published_runs_keep_their_seeds() -> None:
    published = json.loads((Path(__file__).parents[3] / "docs/results/recovery-parallelism-8.json").read_text())
    found = {(run["failure"], run["run"]): run["seed"] for run in published["runs"]}
    cases = Settings(parallelism=(8,), failure=(*FAILURES, *HOST_FAILURES), hosts=4).cases()
    seeds = {(case.failure, kill.run): kill.seed for case in cases for kill in case.kills}
    assert all(len(case.kills) == 1 for case in cases if case.failure in HOST_FAILURES)
    assert found == {key: seeds[key] for key in found}
    assert len(set(seeds.values())) == len(seeds)


def test_a_host_cannot_fail_without_a_cluster(tmp_path: Path) -> None:
    parsed = parser().parse_args(["experiment", "recovery", "--out", str(tmp_path), "--failure", "hang"])
    with pytest.raises(ConfigurationError, match="takes a cluster"):
        parsed.run(parsed)
