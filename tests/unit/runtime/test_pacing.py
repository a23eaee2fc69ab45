"""Pacing: batches of a useful size, arrival times, and a backlog that is worked off at once."""

from __future__ import annotations

import pytest

from flinkplus.runtime.pacing import FIRST_READ_ROWS, Pacer


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
