"""Pacing: batches of a useful size, arrival times, and a backlog that is worked off at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flinkplus.runtime.slot.subtasks.pacing import (
    BUSY_SHARE,
    FIRST_READ_ROWS,
    HURRY_S,
    IDLE_SHARE,
    LEVELS,
    LOOK_S,
    Pacer,
    SlotLoad,
    Ticks,
    stage_of,
)
from tests.unit.api.drawing import environment


def at_once(since: float) -> float:
    return since


def every(interval_s: float) -> Callable[[float], float]:
    return Ticks(busy(), interval_s, (0, 2)).at


class Slot:
    """A slot that uses a share of a core."""

    def __init__(self) -> None:
        self.now = self.cpu_s = 0.0
        self.load = SlotLoad(lambda: self.cpu_s)

    def works(self, share: float, seconds: float = 3.0) -> SlotLoad:
        for _ in range(round(seconds / LOOK_S)):
            self.load.look(self.now)
            self.now += LOOK_S + 1e-9
            self.cpu_s += share * LOOK_S
        self.load.look(self.now)
        return self.load


def busy() -> SlotLoad:
    return Slot().works(1.0)


def test_without_a_rate_the_batch_is_aimed_at_where_the_stream_is_widest() -> None:
    pacer = Pacer(None, batch_rows=10_000, tick=at_once)
    assert pacer.ready_at(5.0, 123) == 5.0
    assert pacer.rows(5.0, 0) == FIRST_READ_ROWS
    pacer.after(read=1_000, widest=10_000, counted=10_000)
    assert pacer.rows(5.0, 10_000) == 1_000


def test_rows_are_read_when_they_have_arrived() -> None:
    pacer = Pacer(100.0, batch_rows=10_000, tick=every(0.5))
    pacer.begin(50.0)
    assert pacer.ready_at(50.0, 0) == 50.0
    assert pacer.rows(50.0, 0) == 1
    pacer.after(read=1, widest=10, counted=10)
    assert pacer.ready_at(50.0, 10) == pytest.approx(50.5)  # the next tick after it has arrived
    assert pacer.rows(50.5, 10) == 4  # 40 have arrived by then: ten each from four rows read
    assert pacer.rows(60.0, 10) == 99  # all that has arrived: 990


def test_a_backlog_is_cut_into_batches_of_the_usual_size() -> None:
    pacer = Pacer(1_000.0, batch_rows=500, tick=at_once)
    pacer.begin(0.0)
    pacer.after(read=1, widest=1, counted=1)
    assert pacer.rows(1_000.0, 1) == 500


def test_a_reader_that_gives_nothing_teaches_nothing() -> None:
    pacer = Pacer(10.0, batch_rows=500, tick=at_once)
    pacer.after(read=0, widest=0, counted=0)
    assert pacer.rows(100.0, 0) == 1


def test_a_filter_that_drops_everything_does_not_stop_the_source() -> None:
    pacer = Pacer(None, batch_rows=500, tick=at_once)
    for _ in range(50):
        pacer.after(read=100, widest=0, counted=0)
    assert pacer.rows(1.0, 0) == 500


def test_it_is_told_how_far_a_source_is_behind() -> None:
    pacer = Pacer(100.0, batch_rows=500, tick=at_once)
    assert pacer.behind(10.0, 0) is None, "nothing arrives before it begins"
    pacer.begin(10.0)
    assert (pacer.behind(12.0, 150), pacer.behind(12.0, 250)) == (50, 0)
    unpaced = Pacer(None, batch_rows=500, tick=at_once)
    unpaced.begin(10.0)
    assert unpaced.behind(12.0, 0) is None


# --- ticks


def test_a_busy_slot_waits_for_all_of_the_interval_and_an_idle_one_for_nothing() -> None:
    slot = Slot()
    assert slot.load.scale == 0.0
    assert slot.works(2 * BUSY_SHARE).scale == 1.0
    assert slot.works(IDLE_SHARE / 2).scale == 0.0


def test_intervals_are_halved_and_doubled_so_that_the_ticks_of_slots_stay_together() -> None:
    slot = Slot()
    seen = {slot.works(1.0, LOOK_S).scale for _ in range(20)}
    assert seen == {0.0, *(2.0**-halved for halved in range(LEVELS + 1))}


def test_in_between_the_interval_stays_as_it_is() -> None:
    slot = Slot()
    slot.works(1.0, 3 * LOOK_S)
    slot.works((BUSY_SHARE + IDLE_SHARE) / 2, 0.5)
    settled = slot.load.scale
    assert slot.works((BUSY_SHARE + IDLE_SHARE) / 2).scale == settled


def test_during_a_failover_nothing_waits() -> None:
    slot = Slot()
    slot.works(1.0)
    slot.load.hurry(slot.now)
    assert slot.works(1.0, HURRY_S / 2).scale == 0.0
    assert slot.works(1.0, HURRY_S).scale == 1.0


def test_the_ticks_of_a_stage_follow_those_of_the_stage_before_by_half_of_the_interval() -> None:
    stages = [Ticks(busy(), 0.02, (stage, 3)) for stage in range(3)]
    assert [ticks.at(90.0001) for ticks in stages] == pytest.approx([90.03, 90.01, 90.02])
    assert stages[1].at(90.01) == pytest.approx(90.01)
    assert stages[1].at(90.0101) == pytest.approx(90.04)


def test_an_interval_is_not_shortened_beyond_what_is_asked_for() -> None:
    idle = Slot().load
    assert Ticks(idle, 0.02, (0, 2)).at(5.001) == 5.001
    assert Ticks(idle, 0.02, (0, 2), least=0.25).at(5.001) == pytest.approx(5.005)


def test_a_stage_is_as_far_from_the_sources_as_its_longest_path() -> None:
    env = environment()
    rows = env.generate(lambda i: (i, i), schema="a long, b long", name="numbers")
    counted = rows.key_by("a").count(name="first")
    both = counted.map(lambda row: (row[0], row[1]), schema="a long, b long", name="pairs").union(rows, name="both")
    both.key_by("b").count(name="second").discard(name="out")
    graph = env.graph.fuse()
    stages = {vertex.name: stage_of(graph, vertex) for vertex in graph.vertices}
    assert {count for _, count in stages.values()} == {1 + max(at for at, _ in stages.values())}
    assert stages[graph.vertices[0].name][0] == 0
    for exchange in graph.exchanges:
        before, behind = graph.producer_vertex(exchange.edge), graph.consumer_vertex(exchange.edge)
        assert stages[before.name][0] < stages[behind.name][0]
