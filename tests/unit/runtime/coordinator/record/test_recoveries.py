"""Times of recoveries: which stamps make which figure, in rollback, failover and handover."""

from __future__ import annotations

from typing import Any

import pytest

from flinkplus.protocol.vocabulary.phases import DURATIONS, PHASES, Phase
from flinkplus.runtime.coordinator.record.recovery_times import RecoveryLog

SOURCE, COUNT, OTHER = "lines[1]", "count[1]", "count[0]"


def recovery_log() -> RecoveryLog:
    return RecoveryLog(lambda subtask: subtask.startswith("count"))


def enter(log: RecoveryLog, phase: Phase, now_s: float, kind: str = "slot", number: int = 1) -> None:
    subtasks = [COUNT] if kind == "exception" else [SOURCE, COUNT]
    log.entered("standby", number, phase, kind, subtasks, "gone", now_s)


def failover(log: RecoveryLog, kind: str = "slot", begin_s: float = 10.0) -> None:
    for phase, after_s in zip(PHASES, (0.003, 0.005, 0.007, 0.007), strict=False):
        enter(log, phase, begin_s + after_s, kind)
    log.recorded(1, 2.25)
    log.restored(1.5)
    enter(log, "replay", begin_s + 0.010, kind)


def figures(log: RecoveryLog, *names: str) -> list[Any]:
    (recovery,) = log.as_dicts()
    return [recovery[f"{name}_ms"] for name in names]


def test_a_failover_is_measured_from_the_kill_to_the_first_new_output_of_what_has_results() -> None:
    log = recovery_log()
    log.kill_stamped(1, 10.0)
    log.slot_lost(1, [SOURCE, COUNT])
    failover(log)
    log.progressed(COUNT, 10.015)
    assert figures(log, "detect", "fence", "promote", "restore", "replay", "recovery") == [3, 4, 1.5, 1.5, 5, 15]
    assert figures(log, "registry", "caught_up") == [2.25, None]
    log.progressed(SOURCE, 10.040)
    assert figures(log, "recovery", "caught_up") == [15, 40]
    assert {f"{phase}_ms" for phase in PHASES} < log.as_dicts()[0].keys()
    assert len(log) == 1
    assert log.handovers() == []


def test_output_that_comes_before_all_heads_are_at_work_counts() -> None:
    log = recovery_log()
    for phase, now_s in zip(PHASES, (1.0, 1.1, 1.2, 1.2), strict=False):
        enter(log, phase, now_s)
    log.progressed(COUNT, 1.25)
    enter(log, "replay", 1.3)
    assert figures(log, "replay", "recovery") == [0, 250]


def test_an_exception_is_measured_from_when_the_subtask_says_it_was() -> None:
    log = recovery_log()
    log.subtask_failed(COUNT, 9.999)
    failover(log, "exception")
    log.progressed(COUNT, 10.009)
    assert figures(log, "detect", "recovery", "caught_up") == [4, 10, 10]


def test_without_sink_or_state_among_the_failed_all_of_them_count() -> None:
    log = recovery_log()
    for phase, now_s in zip(DURATIONS, (1.0, 1.0, 1.0, 1.0, 1.0), strict=True):
        log.entered("standby", 1, phase, "exception", [SOURCE], "gone", now_s)
    log.progressed(SOURCE, 1.5)
    assert figures(log, "recovery", "caught_up") == [500, 500]


def test_a_second_failure_on_the_way_is_part_of_the_same_recovery() -> None:
    log = recovery_log()
    enter(log, "detect", 1.0, "exception")
    enter(log, "fence", 1.1, "exception")
    enter(log, "detect", 1.2)
    enter(log, "fence", 1.3)
    enter(log, "promote", 1.4)
    enter(log, "restore", 1.4)
    enter(log, "replay", 1.5)
    log.progressed(COUNT, 1.6)
    assert figures(log, "fence", "promote", "recovery") == [400, 100, 600]
    assert log.as_dicts()[0]["subtasks"] == [COUNT, SOURCE]


def test_a_failover_that_ends_in_a_rollback_is_one_recovery() -> None:
    log = recovery_log()
    log.rows_out[COUNT] = 5
    log.kill_stamped(1, 10.0)
    log.slot_lost(1, [SOURCE, COUNT])
    enter(log, "detect", 10.001)
    enter(log, "fence", 10.002)
    log.recorded(1, 1.5)
    log.refused(1, "no standby is left")
    for phase, now_s in zip(PHASES, (12.0, 12.0, 12.1, 12.6), strict=False):
        log.entered("rollback", 1, phase, "slot", [SOURCE, COUNT], "gone", now_s)
    log.restored(50.0)
    log.entered("rollback", 1, "replay", "slot", [SOURCE, COUNT], "gone", 12.8)
    log.progressed(COUNT, 13.0)
    (recovery,) = log.as_dicts()
    assert (recovery["mode"], recovery["fallback"]) == ("rollback", "no standby is left")
    assert figures(log, "detect", "fence", "promote", "restore", "recovery") == [1, 2099, 650, 50, 3000]
    assert figures(log, "registry") == [None]
    log.entered("standby", 2, "detect", "slot", [COUNT], "gone", 20.0)
    assert log.as_dicts()[1]["fallback"] is None


def test_a_failure_that_cannot_be_tried_locally_says_so_in_its_rollback() -> None:
    log = recovery_log()
    log.refused(None, "nobody is left")
    log.entered("rollback", 1, "detect", "slot", [COUNT], "gone", 1.0)
    log.entered("rollback", 2, "detect", "slot", [COUNT], "gone", 2.0)
    assert [recovery["fallback"] for recovery in log.as_dicts()] == ["nobody is left", None]


def partial(log: RecoveryLog, phase: Phase, now_s: float, failed: list[str], moved: list[str], number: int = 1) -> None:
    log.entered("partial", number, phase, "exception", failed, "boom", now_s, moved)


def test_in_a_partial_recovery_upstreams_begin_anew_as_well() -> None:
    log = recovery_log()
    for name, rows in ((SOURCE, 9), (COUNT, 7), (OTHER, 5)):
        log.rows_out[name] = rows
    for phase, now_s in zip(DURATIONS, (1.0, 1.1, 1.2, 1.2, 1.3), strict=True):
        partial(log, phase, now_s, [COUNT], [COUNT, SOURCE])
    assert (log.marks[COUNT], log.marks[SOURCE]) == (7, 9)
    log.restored(20.0)
    log.progressed(COUNT, 1.5)
    assert figures(log, "promote", "restore", "recovery", "caught_up") == [80, 20, 500, None]
    log.progressed(SOURCE, 1.6)
    assert figures(log, "caught_up") == [600]
    (recovery,) = log.as_dicts()
    assert (recovery["subtasks"], recovery["restarted"]) == ([COUNT], [COUNT, SOURCE])


def test_what_counts_as_new_never_falls_behind_an_earlier_failure() -> None:
    log = recovery_log()
    log.rows_out[COUNT] = 7
    partial(log, "detect", 1.0, [COUNT], [COUNT])
    log.rows_out[COUNT] = 3  # it began from less
    partial(log, "detect", 2.0, [COUNT], [COUNT], number=2)
    assert log.marks[COUNT] == 7


def test_a_partial_recovery_that_ends_in_a_rollback_is_one_recovery() -> None:
    log = recovery_log()
    for name in (SOURCE, COUNT, OTHER):
        log.rows_out[name] = 7
    partial(log, "detect", 1.0, [COUNT], [COUNT, SOURCE])
    log.recorded(1, 2.0)
    log.refused(1, "no slot is left")
    log.entered("rollback", 1, "detect", "exception", [COUNT], "boom", 1.1)
    (recovery,) = log.as_dicts()
    assert (recovery["mode"], recovery["fallback"]) == ("rollback", "no slot is left")
    assert recovery["restarted"] == sorted([COUNT, OTHER, SOURCE])


def test_in_a_rollback_every_subtask_that_was_heard_of_is_waited_for() -> None:
    log = recovery_log()
    for name in (SOURCE, COUNT, OTHER):
        log.rows_out[name] = 7
    for phase, now_s in zip(DURATIONS, (1.0, 1.0, 1.1, 1.2, 1.3), strict=True):
        log.entered("rollback", 1, phase, "exception", [COUNT], "boom", now_s)
    assert log.marks == {SOURCE: 7, COUNT: 7, OTHER: 7}
    log.progressed(COUNT, 1.5)
    log.progressed(SOURCE, 1.6)
    assert figures(log, "recovery", "caught_up") == [500, None]
    log.progressed(OTHER, 1.7)
    assert figures(log, "recovery", "caught_up") == [500, 700]


def test_handovers_are_listed_apart_and_those_called_off_not_at_all() -> None:
    log = recovery_log()
    failover(log, "handover")
    log.progressed(COUNT, 10.02)
    enter(log, "detect", 11.0, "handover", number=2)
    log.called_off(2)
    assert len(log) == 0
    assert log.as_dicts() == []
    assert [handover["recovery_ms"] for handover in log.handovers()] == [17]


def test_a_kill_stamp_is_used_once() -> None:
    log = recovery_log()
    log.kill_stamped(1, 10.0)
    log.slot_lost(1, [COUNT])
    log.slot_lost(1, [COUNT])
    failover(log)
    enter(log, "detect", 20.0, number=2)
    assert [recovery["detect_ms"] for recovery in log.as_dicts()] == [3, None]


def test_a_failure_in_the_middle_of_a_handover_is_a_recovery() -> None:
    log = recovery_log()
    enter(log, "detect", 1.0, "handover")
    log.recorded(1, 99.0)
    enter(log, "fence", 1.1, "handover")
    log.kill_stamped(1, 1.2)
    log.slot_lost(1, [SOURCE, COUNT])
    for phase, now_s in zip(DURATIONS, (1.3, 1.4, 1.5, 1.5, 1.6), strict=True):
        enter(log, phase, now_s)
    assert figures(log, "detect", "registry", "fence", "promote") == [100, None, 200, 100]
    assert log.as_dicts()[0]["failure"] == "slot"
    assert log.handovers() == []


def rescale(log: RecoveryLog, after: list[str] | None) -> None:
    for phase, now_s in zip(PHASES, (1.0, 1.0, 1.1, 1.2), strict=False):
        if phase == "restore" and after is not None:
            log.rescaled(after)
        log.entered("rollback", 1, phase, "rescale", [], "parallelism 3", now_s)
    log.entered("rollback", 1, "replay", "rescale", [], "parallelism 3", 1.25)


def test_a_rescale_is_listed_apart_and_waits_until_its_vertices_put_out_more_than_before() -> None:
    """Whichever of the new subtasks does: one of them may never put out a row, another much more than any before."""
    log = recovery_log()
    log.rows_out = {"count[0]": 300, "count[1]": 1, "lines[0]": 7, "lines[1]": 7, "idle[0]": 0, "idle[1]": 0}
    after = [f"{vertex}[{index}]" for vertex in ("count", "idle", "lines") for index in range(3)]
    rescale(log, after)
    log.progressed("count[0]", 1.26)
    for now_s, rows in (
        (1.3, {"count[0]": 200, "lines[0]": 7, "lines[1]": 7, "lines[2]": 0}),
        (1.4, {"count[2]": 101, "lines[2]": 0}),
        (1.5, {"count[0]": 201}),
        (1.6, {"lines[2]": 1, "count[0]": 900}),
    ):
        log.reported(rows, now_s)
    (found,) = log.rescales()
    assert [found[f"{name}_ms"] for name in ("replay", "recovery", "caught_up")] == pytest.approx([250, 500, 600])
    assert found["reason"] == "parallelism 3" and found["detect_ms"] is None
    assert found["subtasks"] == [] and found["restarted"] == after
    assert log.as_dicts() == log.handovers() == [] and len(log) == 0


def test_reports_of_the_subtasks_before_a_rescale_do_not_count_as_new_output() -> None:
    log = recovery_log()
    log.rows_out = {"count[0]": 300, "count[1]": 300}
    log.entered("rollback", 1, "detect", "rescale", [], "parallelism 1", 1.0)
    log.reported({"count[0]": 320}, 1.1)  # the last one, which says more than was known
    log.rescaled(["count[0]"])
    log.reported({"count[0]": 320, "count[1]": 301}, 1.15)
    log.entered("rollback", 1, "restore", "rescale", [], "parallelism 1", 1.2)
    log.reported({"count[0]": 620}, 1.3)
    assert log.rescales()[0]["recovery_ms"] is None
    log.reported({"count[0]": 621}, 1.4)
    assert log.rescales()[0]["recovery_ms"] == pytest.approx(400)


def test_a_rescale_that_is_called_off_waits_for_the_subtasks_of_before() -> None:
    log = recovery_log()
    log.rows_out = {"count[0]": 5, "count[1]": 0, "lines[0]": 7}
    rescale(log, None)
    log.reported({"count[0]": 5, "count[1]": 1, "lines[0]": 7}, 1.3)
    log.reported({"lines[0]": 8}, 1.4)
    (found,) = log.rescales()
    assert (found["recovery_ms"], found["caught_up_ms"]) == pytest.approx((300, 400))
    assert found["restarted"] == ["count[0]", "count[1]", "lines[0]"]


def test_a_failure_after_a_rescale_is_measured_by_what_the_new_subtasks_have_reported() -> None:
    """The rescale stays unfinished, and so does an older recovery, whose subtasks have the same names."""
    log = recovery_log()
    log.rows_out = {"count[0]": 5, "lines[0]": 9}
    log.entered("rollback", 1, "detect", "slot", ["count[0]"], "gone", 0.5)
    log.entered("rollback", 1, "restore", "slot", ["count[0]"], "gone", 0.6)
    log.entered("rollback", 2, "detect", "rescale", [], "parallelism 2", 1.0)
    log.rescaled(["count[0]", "count[1]", "lines[0]", "lines[1]"])
    log.entered("rollback", 2, "restore", "rescale", [], "parallelism 2", 1.1)
    log.progressed("count[0]", 1.2)
    log.reported({"count[0]": 3}, 1.3)
    log.entered("rollback", 3, "detect", "slot", ["count[1]"], "gone", 2.0)
    assert log.marks == {"count[0]": 3, "count[1]": 0, "lines[0]": 0, "lines[1]": 0}
    log.entered("rollback", 3, "restore", "slot", ["count[1]"], "gone", 2.1)
    log.progressed("count[1]", 2.2)
    assert [recovery["recovery_ms"] for recovery in log.as_dicts()] == pytest.approx([None, 200])
    assert log.rescales()[0]["recovery_ms"] is None


def test_reports_alone_do_not_end_the_recovery_of_a_failure() -> None:
    """A subtask knows best which of its rows is new, and reports that by itself."""
    log = recovery_log()
    log.reported({COUNT: 5}, 0.5)
    for phase in ("detect", "restore"):
        log.entered("rollback", 1, phase, "slot", [COUNT], "gone", 1.0)
    log.reported({COUNT: 50}, 1.1)
    assert log.rows_out == {COUNT: 50} and log.as_dicts()[0]["recovery_ms"] is None
    log.progressed(COUNT, 1.2)
    assert figures(log, "recovery", "caught_up") == pytest.approx([200, 200])
