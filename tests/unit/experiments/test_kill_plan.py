"""Which subtasks are killed when: the same kills in each mode, and moments in all parts of the interval."""

from __future__ import annotations

import pytest

from experiments.recovery.experiment import Settings
from experiments.recovery.jobs import STAGES
from experiments.recovery.plan import Case, PlannedKill, offsets

SETTINGS = Settings(parallelism=(4,), runs=20, kills=6)


def kills_of(cases: list[Case]) -> list[PlannedKill]:
    return [kill for case in cases for kill in case.kills]


def test_the_same_kills_in_both_modes_which_take_turns() -> None:
    cases = SETTINGS.cases()
    assert [case.recovery for case in cases] == ["standby", "rollback"] * 8
    for first, second in zip(cases[::2], cases[1::2], strict=True):
        assert (first.kills, first.failure, first.job) == (second.kills, second.failure, second.job)
    assert cases == Settings(parallelism=(4,), runs=20, kills=6).cases()
    assert cases != Settings(parallelism=(4,), runs=20, kills=6, seed=2).cases()


def test_the_last_job_has_the_rest_of_the_kills() -> None:
    cases = [case for case in SETTINGS.cases() if case.failure == "sigkill" and case.recovery == "standby"]
    assert [len(case.kills) for case in cases] == [6, 6, 6, 2]
    assert [case.job for case in cases] == [0, 1, 2, 3]
    assert [kill.run for kill in kills_of(cases)] == list(range(20))
    assert [kill.kill for kill in cases[1].kills] == list(range(6))
    rows = [SETTINGS.rows(case) for case in cases]
    assert rows[0] == rows[1] > rows[3] >= 2 * SETTINGS.span_s * SETTINGS.rate


def test_kills_of_one_kind_differ() -> None:
    kills = kills_of([case for case in SETTINGS.cases() if case.recovery == "standby"])
    assert len({kill.seed for kill in kills}) == 40
    assert {kill.index for kill in kills} == {0, 1, 2, 3}
    assert {kill.stage for kill in kills} == {"count"}
    assert kills[0].subtask == f"count[{kills[0].index}]"


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_a_moment_in_each_part_of_the_interval(count: int) -> None:
    for seed in range(50):
        moments = offsets(count, 0.5, seed)
        assert sorted(int(moment / 0.5 * count) for moment in moments) == list(range(count))
        assert moments == offsets(count, 0.5, seed)
    assert len({tuple(offsets(count, 0.5, seed)) for seed in range(50)}) == 50


def test_the_order_of_the_parts_is_drawn() -> None:
    first = {int(offsets(10, 1.0, seed)[0] * 10) for seed in range(200)}
    assert first == set(range(10))


def test_all_stages_and_the_source_are_struck() -> None:
    settings = Settings(parallelism=(3,), failure=("sigkill",), recovery=("standby",), runs=300, job="three-sums")
    kills = kills_of(settings.cases())
    assert {kill.stage for kill in kills} == set(STAGES["three-sums"]) == {"rows", "by_user", "by_page", "by_country"}
    for stage in STAGES["three-sums"]:
        indices = [kill.index for kill in kills if kill.stage == stage]
        assert set(indices) == {0, 1, 2} and 40 < len(indices) < 110


def test_exceptions_do_not_use_up_the_restarts() -> None:
    settings = Settings(parallelism=(2,), kills=8)
    restarts = {case.failure: settings.options(case).get("max_restarts", 3) for case in settings.cases()}
    assert restarts["exception"] >= 8
