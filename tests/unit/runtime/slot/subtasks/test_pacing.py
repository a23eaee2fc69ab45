"""Pacing: batches of a useful size, arrival times, and a backlog that is worked off at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flinkplus.runtime.slot.subtasks.pacing import FIRST_READ_ROWS, Pacer


def test_without_a_rate_the_batch_is_aimed_at_where_the_stream_is_widest() -> None:
    pacer = Pacer(None, batch_rows=10_000, flush_s=0.01)
    assert pacer.ready_at(5.0, 123) == 5.0
    assert pacer.rows(5.0, 0) == FIRST_READ_ROWS
    pacer.after(read=1_000, widest=10_000, counted=10_000)
    assert pacer.rows(5.0, 10_000) == 1_000


def test_rows_are_read_when_they_have_arrived() -> None:
    pacer = Pacer(100.0, batch_rows=10_000, flush_s=0.5)
    pacer.begin(50.0)
    assert pacer.ready_at(50.0, 0) == 50.0
    assert pacer.rows(50.0, 0) == 1
    pacer.after(read=1, widest=10, counted=10)
    assert pacer.ready_at(50.0, 10) == pytest.approx(50.5)  # the next tick after it has arrived
    assert pacer.rows(50.5, 10) == 4  # 40 have arrived by then: ten each from four rows read
    assert pacer.rows(60.0, 10) == 99  # all that has arrived: 990


def test_the_subtasks_of_a_source_read_in_turn() -> None:
    pacers = [Pacer(1_000.0, batch_rows=500, flush_s=0.4, turn=index / 4) for index in range(4)]
    for pacer in pacers:
        pacer.begin(10.0)
    assert [pacer.ready_at(10.0, 1) for pacer in pacers] == pytest.approx([10.4, 10.1, 10.2, 10.3])
    assert [pacer.ready_at(10.0, 350) for pacer in pacers] == pytest.approx([10.4, 10.5, 10.6, 10.7])


def test_a_backlog_is_cut_into_batches_of_the_usual_size() -> None:
    pacer = Pacer(1_000.0, batch_rows=500, flush_s=0.01)
    pacer.begin(0.0)
    pacer.after(read=1, widest=1, counted=1)
    assert pacer.rows(1_000.0, 1) == 500


def test_a_reader_that_gives_nothing_teaches_nothing() -> None:
    pacer = Pacer(10.0, batch_rows=500, flush_s=0.01)
    pacer.after(read=0, widest=0, counted=0)
    assert pacer.rows(100.0, 0) == 1


def test_a_filter_that_drops_everything_does_not_stop_the_source() -> None:
    pacer = Pacer(None, batch_rows=500, flush_s=0.01)
    for _ in range(50):
        pacer.after(read=100, widest=0, counted=0)
    assert pacer.rows(1.0, 0) == 500


def test_it_is_told_how_far_a_source_is_behind() -> None:
    pacer = Pacer(100.0, batch_rows=500, flush_s=0.01)
    assert pacer.behind(10.0, 0) is None, "nothing arrives before it begins"
    pacer.begin(10.0)
    assert (pacer.behind(12.0, 150), pacer.behind(12.0, 250)) == (50, 0)
    unpaced = Pacer(None, batch_rows=500, flush_s=0.01)
    unpaced.begin(10.0)
    assert unpaced.behind(12.0, 0) is None


FLUSH_S = 0.08


def reads(pacers: dict[int, Pacer], counted: dict[int, int], begin: float, end: float) -> list[float]:
    """When these subtasks read between ``begin`` and ``end``, each as soon as it may, all that has arrived."""
    found: list[float] = []
    while True:
        due, index = min((pacer.ready_at(begin, counted[index]), index) for index, pacer in pacers.items())
        begin = max(begin, due)
        if begin > end:
            return found
        counted[index] += pacers[index].rows(begin, counted[index]) + 1
        found.append(begin)


@pytest.mark.parametrize("killed_s", [100.001, 100.019, 100.0201, 100.0271, 100.035, 100.079])
def test_no_turn_is_missed_when_another_subtask_stands_in(killed_s: float) -> None:
    """Eight subtasks read every 10 ms in turn; the others hear 3 ms after its death of one that will not read."""
    told_s, turn_s = killed_s + 0.003, FLUSH_S / 8
    pacers = {index: Pacer(3_000.0, 500, FLUSH_S, index / 8) for index in range(8)}
    for pacer in pacers.values():
        pacer.begin(99.0)
        pacer.after(read=1, widest=1, counted=1)
    counted = {index: int(3_000 * 0.9) for index in range(8)}
    before = reads(pacers, counted, 99.9, killed_s)
    del pacers[2]
    between = reads(pacers, counted, killed_s, told_s)
    pacers[1].stand_in(told_s, 2 / 8, turn_s)
    after = reads(pacers, counted, told_s, told_s + FLUSH_S)
    gaps = [b - a for a, b in pairwise([*before, *between, *after])]
    assert max(gaps) <= turn_s + (told_s - killed_s) + 1e-6
    again = reads(pacers, counted, told_s + FLUSH_S, told_s + 3 * FLUSH_S)
    assert max(b - a for a, b in pairwise([*after, *again])) == pytest.approx(2 * turn_s)  # it was for one round


def test_who_reads_as_fast_as_it_can_stands_in_for_nobody() -> None:
    pacer = Pacer(None, batch_rows=500, flush_s=FLUSH_S)
    pacer.stand_in(5.0, 0.5, 0.01)
    assert pacer.ready_at(5.0, 0) == 5.0
