"""What a trace says of a recovery, on traces whose truth is known."""

from __future__ import annotations

import random

import pytest

from experiments.recovery import measure
from experiments.recovery.measure import Arrival

KILL_S = 1000.0


def steady(
    begin_s: float, end_s: float, step_s: float = 0.02, rows: int = 20, first: int = 0
) -> list[tuple[float, int]]:
    """``rows`` rows each ``step_s`` seconds."""
    steps = round((end_s - begin_s) / step_s)
    return [(begin_s + step * step_s, first + rows * (step + 1)) for step in range(steps)]


def with_a_pause(pause_s: float) -> list[tuple[float, int]]:
    """Steady from 5 s before the kill; the pause; what was missed at once; steady for 5 s."""
    before = steady(KILL_S - 5, KILL_S)
    rows, missed = before[-1][1], round(pause_s / 0.02) * 20
    return [*before, *steady(KILL_S + pause_s, KILL_S + pause_s + 5, first=rows + missed)]


def test_new_is_what_lies_beyond_the_most_there_ever_was() -> None:
    samples = [(1.0, 10), (2.0, 30), (3.0, 5), (4.0, 30), (5.0, 31), (6.0, 31), (7.0, 40)]
    assert measure.new_outputs(samples) == [(1.0, 10), (2.0, 20), (5.0, 1), (7.0, 9)]
    assert measure.first_new_output(samples, 2.0) == 5.0
    assert measure.first_new_output(samples, 7.0) is None


def test_recovered_when_the_last_failed_partition_is() -> None:
    trace = {"a[0]": [(1.0, 10), (3.0, 20)], "a[1]": [(1.0, 10), (4.0, 10), (5.0, 20)], "a[2]": [(1.0, 10)]}
    assert measure.recovered_at(trace, ["a[0]", "a[1]"], 2.0) == 5.0
    assert measure.recovered_at(trace, ["a[0]", "a[2]"], 2.0) is None
    assert measure.recovered_at(trace, ["elsewhere"], 2.0) is None
    assert measure.recovered_at(trace, [], 2.0) is None


def test_gaps_reach_over_the_edges_of_the_span() -> None:
    samples = [(time_s, at) for at, time_s in enumerate([0.0, 1.0, 5.0, 5.5, 6.0, 9.0, 9.5], 1)]
    assert measure.longest_gap_s(samples, 5.2, 5.8) == 0.5
    assert measure.longest_gap_s(samples, 2.0, 5.8) == 4.0
    assert measure.longest_gap_s(samples, 5.2, 8.0) == 3.0
    assert measure.longest_gap_s([(1.0, 1)], 0.0, 2.0) is None


def test_the_figures_of_a_pause_in_one_partition() -> None:
    trace = {"count[0]": steady(KILL_S - 5, KILL_S + 5.3), "count[1]": with_a_pause(0.3)}
    figures = measure.figures(trace, ["count[1]"], Arrival(2000, 10**9), KILL_S, KILL_S + 0.01)
    assert figures["recovery_ms"] == pytest.approx(300, abs=1)
    assert figures["caught_up_ms"] == pytest.approx(300, abs=1)
    assert figures["output_gap_failed_ms"] == pytest.approx(320, abs=1)
    assert figures["output_gap_others_ms"] == pytest.approx(20, abs=1)
    assert figures["output_gap_before_ms"] == pytest.approx(20, abs=1)


def test_output_of_the_dying_process_is_not_the_recovery() -> None:
    last = with_a_pause(0.3)
    at = next(place for place, (time_s, _) in enumerate(last) if time_s > KILL_S)
    dying = [*last[:at], (KILL_S + 0.001, last[at - 1][1] + 1), *last[at:]]
    trace = {"count[1]": dying}
    figures = measure.figures(trace, ["count[1]"], Arrival(1000, 10**9), KILL_S, KILL_S + 0.01)
    assert figures["recovery_ms"] == pytest.approx(300, abs=1)


def test_caught_up_when_the_backlog_is_worked_off() -> None:
    before = steady(KILL_S - 5, KILL_S)
    rows = before[-1][1]
    slow = steady(KILL_S + 0.5, KILL_S + 1.5, rows=30, first=rows)  # 500 missed, 500 more than usual in a second
    after = steady(KILL_S + 1.5, KILL_S + 4, first=slow[-1][1])
    trace = {"count[0]": [*before, *slow, *after]}
    figures = measure.figures(trace, ["count[0]"], Arrival(1000, 10**9), KILL_S, KILL_S)
    assert figures["recovery_ms"] == pytest.approx(500, abs=1)
    assert figures["caught_up_ms"] == pytest.approx(1480, abs=25)
    never = {"count[0]": [*before, *slow[:20]]}
    assert measure.figures(never, ["count[0]"], Arrival(1000, 10**9), KILL_S, KILL_S)["caught_up_ms"] is None


def test_what_has_ended_is_caught_up() -> None:
    before = steady(KILL_S - 5, KILL_S)
    rest = [(KILL_S + 1.0, before[-1][1] + 500)]
    total = before[-1][1] + 500
    figures = measure.figures({"count[0]": [*before, *rest]}, ["count[0]"], Arrival(1000, total), KILL_S, KILL_S)
    assert figures["caught_up_ms"] == pytest.approx(1000, abs=1)


def test_nothing_traced_tells_nothing() -> None:
    traces: list[measure.Trace] = [{}, {"count[0]": []}]
    for trace in traces:
        figures = measure.figures(trace, ["count[0]"], Arrival(1000, 100), KILL_S, KILL_S)
        assert set(figures.values()) == {None}


def test_buckets_hold_every_new_row_once() -> None:
    generator = random.Random(3)
    samples = [(generator.uniform(0, 10), generator.randrange(100)) for _ in range(500)]
    trace = {"count[0]": sorted(samples)}
    (rates,) = measure.buckets(trace, 0.0, 10.0, 0.05).values()
    assert len(rates) == 200
    assert sum(rates) * 0.05 == pytest.approx(max(rows for _, rows in samples))
