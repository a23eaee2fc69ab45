"""Rescales among the failures: which are drawn, how they are carried out, and what a rollback then means."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from experiments.exactness import striking
from experiments.exactness.experiment import EXPERIMENT, Settings, summarize
from experiments.exactness.rescales import (
    CHECKPOINT,
    DONE,
    FAILURE,
    LONGEST_DELAY_S,
    MOMENTS,
    REQUESTED,
    RUNS,
    SWITCH,
    Rescale,
    met,
)
from experiments.exactness.strikes import EXCEPTION, RESCALE_S, SIGKILL, Case, Strike
from experiments.exactness.striking import Progress, Striking, free_index
from experiments.harness.workload import Trigger
from flinkplus.api.job import JobHandle
from flinkplus.errors import ConfigurationError, InsufficientSlots, MoveRefused, SubtaskNotRunning
from flinkplus.runtime.coordinator.membership.moves import PlannedMove

CASES = Settings(runs=300).cases()
RESCALED = Settings(runs=300, rescales=True).cases()


# --- what is drawn


def test_a_share_of_the_runs_has_rescales_and_all_of_them_if_asked() -> None:
    assert 50 < sum(bool(case.rescales) for case in CASES) < 100
    assert all(1 <= len(case.rescales) <= 2 for case in RESCALED)
    assert 60 < sum(len(case.rescales) == 2 for case in RESCALED) < 140
    assert [case.rescales for case in CASES if case.rescales] == [
        case.rescales for case, some in zip(RESCALED, CASES, strict=True) if some.rescales
    ]
    assert Settings(runs=300, rescales=True, seed=2).cases() != RESCALED


def test_rescales_change_nothing_of_the_failures() -> None:
    for case, rescaled in zip(CASES, RESCALED, strict=True):
        assert replace(rescaled, rows=case.rows, rescales=case.rescales) == case
        more_s = (rescaled.rows - case.rows) / case.rate
        assert more_s == pytest.approx(RESCALE_S * (len(rescaled.rescales) - len(case.rescales)), abs=0.01)


def test_rescales_lie_at_all_moments_of_all_failures_and_have_all_targets() -> None:
    rescales = [rescale for case in RESCALED for rescale in case.rescales]
    moments = Counter(rescale.moment for rescale in rescales)
    assert moments.keys() == set(MOMENTS) and min(moments.values()) > 30
    assert {rescale.parallelism for rescale in rescales} == set(range(1, 7))
    assert {rescale.strike for rescale in rescales} == {0, 1, 2}
    assert all(0 <= rescale.delay_s <= LONGEST_DELAY_S for rescale in rescales)
    for case in RESCALED:
        targets = [case.parallelism, *(rescale.parallelism for rescale in case.rescales)]
        assert all(after != before for before, after in pairwise(targets))
        strikes = [rescale.strike for rescale in case.rescales]
        assert strikes == sorted(strikes) and all(strike < len(case.strikes) for strike in strikes)


def test_a_job_with_one_slot_is_not_rescaled(tmp_path: Path) -> None:
    assert not any(case.rescales for case in Settings(runs=40, parallelism=1, replicas=1).cases())
    with pytest.raises(ConfigurationError, match="one slot cannot be rescaled"):
        EXPERIMENT.run(Settings(parallelism=1, rescales=True), tmp_path / "found.json", tmp_path)


# --- which failures meet one


def rescaled(begin_s: float, took_ms: float | None = 300.0) -> dict[str, Any]:
    return {"begin_s": begin_s, "fence_ms": 0.0, "promote_ms": 0.0, "restore_ms": took_ms}


def failure(at_s: float, missing: int = 0, parallelism: int = 4, state: str = "running") -> dict[str, Any]:
    return {"at_s": at_s, "missing": missing, "parallelism": parallelism, "state": state}


@pytest.mark.parametrize(
    ("struck", "rescales", "expected"),
    [
        ([failure(10.0)], [], [False]),
        ([failure(10.0), failure(10.1, missing=8)], [], [False, False]),
        ([failure(10.0)], [rescaled(11.0)], [False]),  # long before it
        ([failure(10.8)], [rescaled(11.0)], [True]),  # noticed within it
        ([failure(11.2, missing=0, state="interrupted")], [rescaled(11.0)], [True]),
        ([failure(12.0)], [rescaled(11.0)], [False]),  # all standbys are there again
        ([failure(12.0, missing=3)], [rescaled(11.0)], [True]),
        ([failure(12.0, missing=3), failure(13.0, missing=6)], [rescaled(11.0)], [True, True]),
        ([failure(12.0), failure(12.1, missing=8)], [rescaled(11.0)], [False, False]),  # missing by the first failure
        ([failure(9.0), failure(12.0, missing=3)], [rescaled(11.0)], [False, True]),
        ([failure(12.0, parallelism=1)], [rescaled(11.0)], [True]),
        ([failure(12.0, parallelism=2), failure(12.1, parallelism=2)], [rescaled(11.0)], [False, True]),  # no slot left
        ([failure(12.0, parallelism=2), failure(15.0, parallelism=2)], [rescaled(11.0)], [False, False]),
        ([failure(12.0), failure(12.0), failure(12.0), failure(12.0)], [], [False] * 4),  # no rescale is to blame
        ([failure(11.1), failure(19.0, missing=1)], [rescaled(11.0, None)], [True, True]),  # it was interrupted itself
    ],
)
def test_which_failures_meet_a_rescale(
    struck: list[dict[str, Any]], rescales: list[dict[str, Any]], expected: list[bool]
) -> None:
    assert met(struck, rescales, 4) == expected


def test_a_rescale_is_no_rollback_and_one_by_it_is_told_apart() -> None:
    known = {"apart_s": 0.0, "rows": 1, "damage": {}, "exact": True, "error": None, "failovers": 1, "fallbacks": 0}
    run = {**known, "strikes": [0], "rescales": [0], "requests": [{"status": "done"}], "rescaled": [0]}
    by_standby = {"mode": "standby", "subtasks": ["count[1]"], "recovery_ms": 20.0}
    rolled_back = {"recoveries": [by_standby | {"mode": "rollback"}]}
    local = run | {"struck": [{"met_rescale": True}], "recoveries": [by_standby]}
    content = summarize(
        [
            local,
            run | rolled_back | {"struck": [{"met_rescale": False}, {"met_rescale": True}]},
            run | rolled_back | {"struck": [{"met_rescale": False}]},
            run | {"fallbacks": 1, "recoveries": [by_standby], "struck": [{"met_rescale": False}]},
            local | {"rescales": [], "requests": [], "rescaled": []},
        ]
    )
    plain, with_rescales, whole = content["summary"]
    assert (plain["runs"], plain["local"], plain["with_rescales"], plain["requested"]) == (1, 1, False, 0)
    assert (with_rescales["runs"], with_rescales["local"], with_rescales["rescaled"]) == (4, 1, 4)
    assert (whole["exact"], whole["local"], whole["rollback"], whole["in_rescale"]) == (5, 2, 3, 1)
    assert content["requests"] == {"done": 4}


# --- how they are carried out


class Move:
    """A request as far as a test says."""

    def __init__(self, left: list[str]) -> None:
        self.status, self.left, self.reason = "under_way", left, ""


class Job:
    """A job at a parallelism, with answers to requests that a test gives: what is raised, or the move."""

    done = False

    def __init__(self, parallelism: int = 4, answers: list[Any] | None = None) -> None:
        self.parallelism, self.state, self.rows = parallelism, "running", 0
        self.answers = answers or []
        self.asked: list[int] = []
        self.killed: list[str] = []
        self.refuse: list[Exception] = []
        self.interrupted = False

    def chains(self) -> dict[str, list[int]]:
        stages = ("words+words-probe", "top")
        return {} if self.interrupted else {f"{stage}[{i}]": [i] for stage in stages for i in range(self.parallelism)}

    def missing_standbys(self) -> int:
        return 0

    def rows_out(self, operator: str) -> dict[str, int]:
        return {f"{operator}[0]": self.rows}

    def rescale(self, parallelism: int) -> Any:
        self.asked.append(parallelism)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, subtask: str, timeout: float) -> bool:
        self.killed.append(subtask)
        if self.refuse:
            raise self.refuse.pop(0)
        return True


def carried_out(
    job: Job, tmp_path: Path, strikes: list[Strike], rescales: list[Rescale], poll: Callable[[], None] = lambda: None
) -> Striking:
    """``poll``: called between two looks at a condition."""
    case = Case(0, 1, 4, 1_000.0, 1_000, 50, 100, 0.0, tuple(strikes), tuple(rescales))
    raises = {stage: Trigger(tmp_path) for stage in ("words", "count", "place", "top")}

    def until(condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            poll()
        raise AssertionError("the condition was never met")

    found = Striking(cast(JobHandle, job), case, raises, until, threading.Event())
    found.run()
    return found


def test_how_far_a_rescale_is() -> None:
    job, move = Job(), Move(["slot-4"])
    progress = Progress(cast(PlannedMove, move), cast(JobHandle, job))
    seen = [progress.look()]
    for state, left in [
        ("running", ["checkpoint"]),
        ("interrupted", ["checkpoint"]),
        ("deploying", ["checkpoint"]),
        ("running", ["slot-0"]),
        ("interrupted", ["slot-0"]),
    ]:
        job.state, move.left = state, left
        seen.append(progress.look())
    move.status = "cancelled"
    assert [*seen, progress.look()] == [REQUESTED, CHECKPOINT, SWITCH, SWITCH, RUNS, RUNS, DONE]
    assert progress.has_reached(SWITCH)


def test_the_failure_comes_at_its_moment_and_names_a_subtask_that_is_there(tmp_path: Path) -> None:
    move = Move(["checkpoint"])
    job = Job(4, [move])

    def poll() -> None:
        assert not job.killed
        job.state, job.parallelism = "deploying", 2

    found = carried_out(job, tmp_path, [Strike(SIGKILL, "count", 3)], [Rescale(2, 0, SWITCH, 0.0)], poll)
    assert job.asked == [2] and job.killed == ["count[1]"]
    assert [(one["subtask"], one["parallelism"], one["state"]) for one in found.struck] == [
        ("count[1]", 2, "deploying")
    ]
    move.status = "done"
    found.note()
    assert [(one["parallelism"], one["status"]) for one in found.requests] == [(2, "done")]


def test_a_kill_looks_again_when_subtasks_have_gone(tmp_path: Path) -> None:
    job = Job(4)
    job.refuse = [ConfigurationError("subtasks 0 to 0"), SubtaskNotRunning("away")]

    def poll() -> None:
        job.parallelism = 1

    found = carried_out(job, tmp_path, [Strike(SIGKILL, "top", 3)], [], poll)
    assert job.killed == ["top[3]", "top[0]", "top[0]"]
    assert found.struck[0]["subtask"] == "top[0]"


def test_while_the_job_is_interrupted_the_last_subtasks_count(tmp_path: Path) -> None:
    job = Job(4)
    job.interrupted = True
    carried_out(job, tmp_path, [Strike(SIGKILL, "top", 3)], [])
    assert job.killed == ["top[3]"]


def test_a_request_is_made_again_until_the_job_runs(tmp_path: Path) -> None:
    refusal = MoveRefused("the job is interrupted; try again when it runs")
    job = Job(4, [refusal, refusal, Move([])])
    strikes = [Strike(SIGKILL, "top", 3), Strike(EXCEPTION, "top", 0)]
    found = carried_out(job, tmp_path, strikes, [Rescale(5, 1, FAILURE, 0.0)])
    assert job.asked == [5, 5, 5] and job.killed == ["top[3]"]
    assert found.requests[0]["at_s"] >= found.struck[1]["at_s"], "the failure comes first"


def test_nothing_waits_beyond_the_input(tmp_path: Path) -> None:
    job = Job(4, [MoveRefused("not now")] * 50)

    def poll() -> None:
        job.rows += 100

    found = carried_out(job, tmp_path, [Strike(SIGKILL, "top", 3)], [Rescale(5, 0, DONE, 9.0)], poll)
    assert job.killed == ["top[3]"] and job.rows == striking.LAST * 1_000
    found.note()
    assert [(one["status"], one["reason"]) for one in found.requests] == [("refused", "not now")]
    job = Job(4, [Move(["slot-4"])])
    carried_out(job, tmp_path, [Strike(SIGKILL, "top", 3)], [Rescale(5, 0, RUNS, 9.0)], poll)
    assert job.killed == ["top[3]"]


def test_a_refusal_for_lack_of_room_ends_the_request(tmp_path: Path) -> None:
    job = Job(4, [InsufficientSlots("no room")])
    found = carried_out(job, tmp_path, [Strike(SIGKILL, "top", 3)], [Rescale(6, 0, DONE, 0.0)])
    assert job.asked == [6] and job.killed == ["top[3]"]
    assert (found.requests[0]["status"], found.requests[0]["reason"]) == ("refused", "no room")


def test_no_subtask_raises_twice_while_another_is_left(tmp_path: Path) -> None:
    strikes = [Strike(EXCEPTION, "top", index) for index in (0, 2, 1)]
    found = carried_out(Job(2), tmp_path, strikes, [])
    assert [one["subtask"] for one in found.struck] == ["top[0]", "top[1]", "top[1]"]
    assert free_index(strikes[1], 4, {("top", 2), ("top", 3)}) == 0
    assert found.raised() == 0
    assert Trigger(tmp_path).take(1)
    assert found.raised() == 1
