"""Pacing: batches of a useful size, arrival times, a backlog that is worked off at once, and ticks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flinkplus.runtime.slot.subtasks.pacing import (
    AT_ONCE_INTERVAL_S,
    FIRST_READ_ROWS,
    HURRY_S,
    IDLE_SHARE,
    INTERVAL_S,
    LEVELS,
    LOOK_S,
    MAX_HOP_S,
    Pacer,
    SlotLoad,
    Ticks,
    interval_of,
    stage_of,
)


def at_once(since: float) -> float:
    return since


def half_seconds(since: float) -> float:
    """Ticks each half second."""
    return -(-since // 0.5) * 0.5


# --- how much is read


def test_without_a_rate_the_batch_is_aimed_at_where_the_stream_is_widest() -> None:
    pacer = Pacer(None, 10_000, half_seconds)
    assert pacer.ready_at(5.1, 123) == 5.1, "it waits for no tick"
    assert pacer.rows(5.0, 0) == FIRST_READ_ROWS
    pacer.after(read=1_000, widest=10_000, counted=10_000)
    assert pacer.rows(5.0, 10_000) == 1_000


def test_rows_are_read_when_they_have_arrived() -> None:
    pacer = Pacer(100.0, 10_000, half_seconds)
    pacer.begin(50.0)
    assert pacer.ready_at(50.0, 0) == 50.0
    assert pacer.rows(50.0, 0) == 1
    pacer.after(read=1, widest=10, counted=10)
    assert pacer.ready_at(50.0, 10) == pytest.approx(50.5)  # the next tick after it has arrived
    assert pacer.rows(50.5, 10) == 4  # 40 have arrived by then: ten each from four rows read
    assert pacer.rows(60.0, 10) == 99  # all that has arrived: 990


def test_a_backlog_is_cut_into_batches_of_the_usual_size() -> None:
    pacer = Pacer(1_000.0, 500, at_once)
    pacer.begin(0.0)
    pacer.after(read=1, widest=1, counted=1)
    assert pacer.rows(1_000.0, 1) == 500


def test_a_reader_that_gives_nothing_teaches_nothing() -> None:
    pacer = Pacer(10.0, 500, at_once)
    pacer.after(read=0, widest=0, counted=0)
    assert pacer.rows(100.0, 0) == 1


def test_a_filter_that_drops_everything_does_not_stop_the_source() -> None:
    pacer = Pacer(None, 500, at_once)
    for _ in range(50):
        pacer.after(read=100, widest=0, counted=0)
    assert pacer.rows(1.0, 0) == 500


def test_how_far_a_source_is_behind() -> None:
    pacer = Pacer(100.0, 500, at_once)
    assert pacer.behind(10.0, 0) is None, "nothing arrives before it begins"
    pacer.begin(10.0)
    assert (pacer.behind(12.0, 150), pacer.behind(12.0, 250)) == (50, 0)
    unpaced = Pacer(None, 500, at_once)
    unpaced.begin(10.0)
    assert unpaced.behind(12.0, 0) is None


# --- how busy a slot is


class Busy:
    """A slot's load, and how much of a core the slot uses."""

    def __init__(self) -> None:
        self.now = self.used_s = 0.0
        self.load = SlotLoad(lambda: self.used_s)
        self.load.look(self.now)

    def works(self, share: float, looks: int) -> float:
        """``scale`` after so many looks, one in ``LOOK_S``."""
        for _ in range(looks):
            self.now += LOOK_S
            self.used_s += share * LOOK_S
            self.load.look(self.now)
        return self.load.scale


def test_an_idle_slot_has_no_ticks_and_a_busy_one_comes_to_whole_intervals_in_steps() -> None:
    slot = Busy()
    assert slot.load.scale == 0.0 and slot.works(0.0, 20) == 0.0
    scales = [slot.works(1.0, 1) for _ in range(LEVELS + 3)]
    assert scales == [2.0 ** ((level - LEVELS) / 2) for level in range(1, LEVELS + 1)] + [1.0, 1.0, 1.0]


def test_between_the_two_shares_nothing_changes() -> None:
    slot = Busy()
    before = slot.works(1.0, 3)
    settled = slot.works(1.5 * IDLE_SHARE, 100)
    assert settled >= before and slot.works(1.5 * IDLE_SHARE, 100) == settled


def test_a_slot_that_becomes_idle_waits_for_nothing_again() -> None:
    slot = Busy()
    assert slot.works(1.0, 50) == 1.0
    assert slot.works(0.0, 50) == 0.0


def test_looks_that_follow_closely_count_once() -> None:
    slot = Busy()
    for _ in range(100):
        slot.now += LOOK_S / 1000
        slot.used_s += LOOK_S
        slot.load.look(slot.now)
    assert slot.load.scale == 0.0


def test_during_a_failover_no_bundle_waits_and_then_it_is_as_before() -> None:
    slot = Busy()
    slot.works(1.0, 50)
    slot.load.hurry(slot.now)
    hurried = round(HURRY_S / LOOK_S)
    assert slot.load.scale == 0.0 and slot.works(1.0, hurried - 1) == 0.0
    assert slot.load.read_scale == 1.0, "sources leave the processors to those who replay"
    assert slot.works(1.0, 2) == 1.0


# --- ticks


def ticks_of(scale: float, stage: tuple[int, int]) -> Ticks:
    return Ticks(lambda: scale, 0.2, stage)


def test_the_ticks_of_a_stage_lie_one_hop_behind_those_of_the_stage_before() -> None:
    stages = [ticks_of(1.0, (at, 3)) for at in range(3)]
    assert [ticks.at(9.0) for ticks in stages] == pytest.approx([9.0, 9.0 + MAX_HOP_S, 9.0 + 2 * MAX_HOP_S])
    assert [ticks.at(9.005) for ticks in stages] == pytest.approx([9.6, 9.01, 9.02]), "a wave is over, the next begins"
    assert ticks_of(0.5, (2, 3)).at(9.0) == pytest.approx(9.0 + MAX_HOP_S), "hops are shorter in shorter waves"


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.125])
@pytest.mark.parametrize("stage", [(0, 1), (0, 2), (1, 2), (3, 4)])
def test_a_tick_is_the_first_at_the_time_or_later(scale: float, stage: tuple[int, int]) -> None:
    ticks = ticks_of(scale, stage)
    interval_s = 0.2 * stage[1] * scale
    since = 1_234.0
    found = set()
    for _ in range(200):
        tick = ticks.at(since)
        assert since - 1e-6 <= tick < since + interval_s
        assert ticks.at(tick) == pytest.approx(tick), "a tick waits for itself only"
        found.add(round(tick, 6))
        since += 0.007
    distances = {round(b - a, 5) for a, b in zip(sorted(found), sorted(found)[1:], strict=False)}
    assert all(distance / interval_s == pytest.approx(round(distance / interval_s), abs=1e-3) for distance in distances)


def test_where_the_slot_is_idle_nothing_waits() -> None:
    assert ticks_of(0.0, (1, 2)).at(5.0123) == 5.0123


def graph_of(names: list[str], edges: dict[int, tuple[str, str]]) -> Any:
    """``edges``: producer and consumer."""
    inputs = {name: [edge for edge, (_, consumer) in edges.items() if consumer == name] for name in names}
    vertices = [SimpleNamespace(name=name, inputs=inputs[name]) for name in names]
    return SimpleNamespace(vertices=vertices, producer_vertex=lambda edge: SimpleNamespace(name=edges[edge][0]))


def test_stages_are_counted_along_the_longest_path() -> None:
    """``end`` takes from ``begin`` itself, and from ``b``, which is two exchanges behind it."""
    edges = {0: ("begin", "a"), 1: ("a", "b"), 2: ("b", "end"), 3: ("begin", "end")}
    graph = graph_of(["begin", "a", "b", "end"], edges)
    found = {vertex.name: stage_of(graph, vertex) for vertex in graph.vertices}
    assert found == {"begin": (0, 4), "a": (1, 4), "b": (2, 4), "end": (3, 4)}


def test_rows_that_are_visible_at_once_wait_less_unless_the_option_says_how_long() -> None:
    graphs: list[Any] = [SimpleNamespace(recipes=lambda: ()), SimpleNamespace(recipes=lambda: ("count+out",))]
    assert [interval_of(None, graph) for graph in graphs] == [INTERVAL_S, AT_ONCE_INTERVAL_S]
    assert AT_ONCE_INTERVAL_S < INTERVAL_S
    assert [interval_of(0.02, graph) for graph in graphs] == [0.02, 0.02]


def test_a_back_edge_makes_no_stage() -> None:
    """``again`` sends back to ``head``, which comes before it."""
    edges = {0: ("begin", "head"), 1: ("head", "again"), 2: ("again", "head")}
    graph = graph_of(["begin", "head", "again"], edges)
    assert [stage_of(graph, vertex) for vertex in graph.vertices] == [(0, 3), (1, 3), (2, 3)]
