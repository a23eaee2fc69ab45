"""From what a job says of one of several kills, and its trace, to figures, where the truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.recovery import measure
from experiments.recovery.kill import Struck
from experiments.recovery.kill_log import KillLog
from experiments.recovery.measure import Arrival
from experiments.recovery.summary import by_load, by_moment, summarize, without_pause_ms
from tests.unit.experiments.test_document import made_up_run
from tests.unit.experiments.test_measure import steady

KILLS_S = (1005.0, 1012.0)
PAUSES_S = (0.3, 0.1)
ARRIVAL = Arrival(2000, 10**9)


def paused() -> list[tuple[float, int]]:
    """20 rows each 20 ms from 1000 to 1020; pauses at the kills, and what was missed at once behind each."""
    found: list[tuple[float, int]] = []
    begin_s = 1000.0
    for kill_s, pause_s in zip(KILLS_S, PAUSES_S, strict=True):
        found += steady(begin_s, kill_s, first=found[-1][1] if found else 0)
        found.append((kill_s + pause_s, found[-1][1] + round(pause_s / 0.02 + 1) * 20))
        begin_s = kill_s + pause_s + 0.02
    return found + steady(begin_s, 1020.0, first=found[-1][1])


TRACE = {"count+out[0]": steady(1000.0, 1020.0), "count+out[1]": paused()}


def recovery(begin_s: float, **more: Any) -> dict[str, Any]:
    phases = {"detect_ms": 1.0, "fence_ms": 2.0, "promote_ms": 3.0, "restore_ms": 4.0, "replay_ms": 5.0}
    known = {"mode": "standby", "begin_s": begin_s, "fallback": None, "registry_ms": 1.0}
    return {**known, **phases, "recovery_ms": 250.0, "caught_up_ms": 260.0, **more}


def log(kill: int, **more: Any) -> KillLog:
    kill_s = KILLS_S[kill]
    ends_s = (*KILLS_S[1:], 1e9)
    known = KillLog(
        Struck(kill_s - 0.0001, ("[1]",)), False, "standby", "count", [recovery(kill_s)], [], 0.0, ends_s[kill]
    )
    return replace(known, **{"ready_s": KILLS_S[0] + 2.0 if kill else 0.0, **more})


@pytest.mark.parametrize("kill", [0, 1])
def test_each_kill_has_its_own_figures(kill: int) -> None:
    figures = log(kill).figures(TRACE, ARRIVAL)
    pause_ms = 1e3 * PAUSES_S[kill]
    assert figures["recovery_ms"] == pytest.approx(pause_ms, abs=1)
    assert figures["caught_up_ms"] == pytest.approx(pause_ms, abs=1)
    assert figures["output_gap_failed_ms"] == pytest.approx(pause_ms + 20, abs=1)
    assert figures["output_gap_others_ms"] == pytest.approx(20, abs=1)
    assert figures["output_gap_before_ms"] == pytest.approx(20, abs=1), "the kill before is not in it"
    assert figures["replay_ms"] == pytest.approx(pause_ms - 10, abs=1)
    assert (figures["fallback"], figures["output_gap_handback_ms"]) == (None, None)


def test_a_kill_without_a_recovery_is_an_error() -> None:
    silent = log(0, recoveries=[])
    assert "no recovery" in silent.figures(TRACE, ARRIVAL)["error"]
    assert silent.killed_s == silent.struck.time_s


def test_the_gap_of_a_move_back() -> None:
    slow = [sample for sample in TRACE["count+out[0]"] if not 1008.1 < sample[0] < 1008.25]
    moves = [{"begin_s": 1008.0, "caught_up_ms": 50.0, "recovery_ms": 40.0}]
    figures = log(0, handovers=moves).figures({**TRACE, "count+out[0]": slow}, ARRIVAL)
    assert figures["output_gap_handback_ms"] == pytest.approx(160, abs=1)
    before = [{"begin_s": 1007.2, "caught_up_ms": None, "recovery_ms": 40.0}]
    assert log(0, handovers=before).figures(TRACE, ARRIVAL)["output_gap_handback_ms"] == pytest.approx(20, abs=1)


def test_an_exception_in_front_of_the_last_stage_has_the_time_that_the_job_says() -> None:
    raised = log(0, raised=True, stage="by_user", struck=Struck(KILLS_S[0], ("[1]",)))
    assert raised.failed(TRACE) == []
    figures = raised.figures(TRACE, ARRIVAL)
    assert (figures["recovery_ms"], figures["output_gap_failed_ms"]) == (250.0, None)
    assert replace(raised, stage="count").failed(TRACE) == ["count+out[1]"]


def test_a_rollback_that_waited_for_the_host() -> None:
    """Detected after 100 ms, fenced after 10 more; the host is back after 200 ms; output after 300 ms."""
    hung = Struck(KILLS_S[0], ("[1]",), "worker-1", KILLS_S[0] + 0.2)
    rollback = recovery(KILLS_S[0] + 0.1, mode="rollback", detect_ms=None, fence_ms=10.0)
    figures = log(0, struck=hung, recovery="rollback", recoveries=[rollback]).figures(TRACE, ARRIVAL)
    assert figures["detect_ms"] == pytest.approx(100, abs=0.1)
    assert figures["waited_for_host_ms"] == pytest.approx(90, abs=0.1)
    assert without_pause_ms(figures) == pytest.approx(210, abs=1)
    standby = log(0, struck=hung, recoveries=[recovery(KILLS_S[0] + 0.1)]).figures(TRACE, ARRIVAL)
    assert standby["waited_for_host_ms"] is None
    assert without_pause_ms(standby) == standby["recovery_ms"]


def test_when_nothing_was_waited_for() -> None:
    assert measure.waited_for_host_ms(10.0, 10.1, 12.5, 12.4) == 0, "it recovered before the host was back"
    assert measure.waited_for_host_ms(10.0, 10.1, 9.0, 12.4) == 0, "the host was back before it was missed"
    assert measure.waited_for_host_ms(10.0, 12.6, 12.5, 12.9) == 2500, "what took so long was the fence"


def test_the_moment_of_a_kill() -> None:
    checkpoints: list[dict[str, Any]] = [
        {"triggered_s": 10.0, "duration_ms": 100.0},
        {"triggered_s": 11.0, "duration_ms": None},
        {"triggered_s": 12.0, "duration_ms": 100.0},
    ]
    assert measure.at_kill(checkpoints[:1], 10.05) == {"since_trigger_s": 0.05, "during_checkpoint": True}
    assert measure.at_kill(checkpoints[:1], 10.15) == {"since_trigger_s": 0.15, "during_checkpoint": False}
    assert measure.at_kill(checkpoints, 11.9) == {"since_trigger_s": 0.9, "during_checkpoint": True}
    assert measure.at_kill(checkpoints, 9.9) == {"since_trigger_s": None, "during_checkpoint": None}


def test_outputs_of_a_span_of_time_are_those_that_were_new_in_it() -> None:
    trace = {"a[0]": [(1.0, 10), (2.0, 20), (3.0, 5), (4.0, 25)], "a[1]": [(1.5, 3)]}
    assert measure.between(trace, 1.5, 4.0) == {"a[0]": [(2.0, 20)], "a[1]": [(1.5, 3)]}
    assert measure.between(trace, 2.5, 9.0) == {"a[0]": [(4.0, 25)], "a[1]": []}


def test_parts_of_the_interval_hold_every_kill_once() -> None:
    runs = [{**made_up_run(2, "standby", "sigkill", run, 10.0 * run), "since_trigger_s": run / 4} for run in range(6)]
    runs[5] = {**runs[5], "recovery_ms": None, "since_trigger_s": None, "during_checkpoint": None}
    quarters = [part for part in by_moment(runs, 1, 2.0) if part["moment"].startswith("quarter")]
    assert [part["runs"] for part in quarters] == [2, 2, 1, 0]
    late = by_moment([{**runs[0], "since_trigger_s": 2.5}], 1, 2.0)
    assert [part["moment"] for part in late if part["runs"]] == ["quarter 4", "checkpoint under way"]
    parts = {part["moment"]: (part["runs"], part["unmeasured"]) for part in by_moment(runs, 1, 2.0)}
    assert parts["not known"] == (1, 1) and sum(runs for runs, _ in parts.values()) == 5 + 5 + 1
    loads = by_load([{**run, "busy_share": at / 10} for at, run in enumerate(runs)], 1)
    assert [(part["runs"], part["unmeasured"], part["median_ms"]) for part in loads] == [
        (2, 0, 5.0),
        (2, 0, 25.0),
        (2, 1, 40.0),
    ]
    assert sum(part["runs"] for part in by_load(runs[:1], 1)) == 1


def test_the_wait_for_a_host_is_not_compared() -> None:
    runs = [{**made_up_run(2, "rollback", "hang", run, 2_500.0), "waited_for_host_ms": 2_000.0} for run in range(3)]
    (row,) = summarize(runs, 1, 1.0)
    assert (row["median_ms"], row["without_pause_median_ms"], row["without_pause_high_ms"]) == (2_500.0, 500.0, 500.0)
