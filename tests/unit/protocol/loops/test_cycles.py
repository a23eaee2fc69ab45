"""Back edges, heads and loops of job graphs; rounds of a loop."""

from __future__ import annotations

import random
from collections import deque

import pytest

from flinkplus.errors import InvariantViolation
from flinkplus.protocol.loops.cycles import NO_CYCLES, Cycles
from flinkplus.protocol.loops.rounds import LoopRounds, Round, decoded, encoded
from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.protocol.vocabulary.lineage import Lineage

LOOP = [(0, "lines", "head"), (1, "head", "body"), (2, "body", "out"), (3, "body", "head")]
ALL = ("lines", "head", "body", "out")


def test_the_edge_that_leads_back_is_found() -> None:
    cycles = Cycles(LOOP, ALL)
    assert cycles.back_edges == {3}
    assert cycles.loop_heads == ("head",)
    assert cycles.inner_edges == {1, 3}
    assert [cycles.head_of(vertex) for vertex in ALL] == [None, "head", "head", None]


def test_a_vertex_may_lead_to_itself() -> None:
    cycles = Cycles([(0, "lines", "head"), (1, "head", "out"), (2, "head", "head")], ("lines", "head", "out"))
    assert cycles.back_edges == cycles.inner_edges == {2}


def test_an_acyclic_graph_has_no_back_edge() -> None:
    diamond = Cycles([(0, "a", "b"), (1, "a", "c"), (2, "b", "d"), (3, "c", "d")], ("a", "b", "c", "d"))
    assert not diamond
    assert not NO_CYCLES


def test_where_the_search_begins_says_which_vertex_is_the_head() -> None:
    edges = [*LOOP, (4, "more", "body")]
    assert Cycles(edges, ("head", "more", *ALL)).loop_heads == ("head",)
    assert Cycles(edges, ("more", *ALL)).loop_heads == ("body",)


def test_nested_loops_are_refused() -> None:
    edges = [(0, "a", "b"), (1, "b", "c"), (2, "c", "d"), (3, "d", "c"), (4, "d", "b")]
    with pytest.raises(InvariantViolation, match="nested"):
        Cycles(edges, ("a", "b", "c", "d"))


def test_one_loop_behind_another() -> None:
    edges = [*LOOP, (4, "out", "second"), (5, "second", "second"), (6, "body", "second")]
    cycles = Cycles(edges, ("second", "head", *ALL, "second"))
    assert cycles.back_edges == {3, 5}
    assert cycles.loop_heads == ("head", "second")
    assert cycles.inner_edges == {1, 3, 5}


def test_in_a_loop_everybody_is_an_ancestor_of_its_like() -> None:
    lineage = Lineage(ALL, [(start, end) for _, start, end in LOOP])
    assert lineage.passed_on("body") == ("body", "head", "lines")
    assert lineage.distance("head", "head") == 2
    assert lineage.distance("out", "out") is None


# --- rounds

HEADS = 2


def test_a_loop_in_which_nothing_moves_ends_after_two_rounds() -> None:
    channels = [ChannelId(3, index, 0) for index in range(HEADS)]
    head = LoopRounds(channels, is_head=True)
    assert head.start() == (1, True)
    assert head.take(channels[0], encoded(1, True)) is None
    came = head.take(channels[1], encoded(1, True))
    assert came is not None
    assert head.after(came) == (2, False)
    head.take(channels[0], encoded(2, False))
    came = head.take(channels[1], encoded(2, False))
    assert came is not None
    assert head.after(came) is None


def test_a_round_says_that_a_record_came_round_anywhere() -> None:
    channels = [ChannelId(1, index, 0) for index in range(HEADS)]
    body = LoopRounds(channels, is_head=False)
    body.take(channels[0], encoded(1, False))
    came = body.take(channels[1], encoded(1, True))
    assert came == (1, True)
    assert body.after(came) == (1, True)


def test_input_from_outside_has_to_end_before_a_round_passes() -> None:
    inner, outside = ChannelId(1, 0, 0), ChannelId(2, 0, 0)
    body = LoopRounds([inner, outside], is_head=False)
    assert body.take(inner, encoded(1, True)) is None
    assert body.end(outside) == (1, True)


def test_what_is_saved_goes_on_where_it_was() -> None:
    channels = [ChannelId(1, index, 0) for index in range(HEADS)]
    before = LoopRounds(channels, is_head=False)
    before.take(channels[0], encoded(1, True))
    after = LoopRounds(channels, is_head=False, saved=before.saved())
    assert after.take(channels[1], encoded(1, False)) == (1, True)


@pytest.mark.parametrize("seed", range(60))
def test_a_loop_ends_when_no_record_is_in_flight_and_not_before(seed: int) -> None:
    """Two heads, two bodies, records that go round for a while, channels that are drained in any order."""
    rng = random.Random(seed)
    to_body = {(h, b): deque[Round | int]() for h in range(HEADS) for b in range(HEADS)}
    to_head = {(b, h): deque[Round | int]() for b in range(HEADS) for h in range(HEADS)}
    heads = [LoopRounds([ChannelId(3, b, h) for b in range(HEADS)], is_head=True) for h in range(HEADS)]
    bodies = [LoopRounds([ChannelId(1, h, b) for h in range(HEADS)], is_head=False) for b in range(HEADS)]
    outside = [[rng.randrange(5) for _ in range(rng.randrange(4))] for _ in range(HEADS)]
    started, ended = [False] * HEADS, [False] * HEADS

    def send(head: int, what: Round | None) -> None:
        if what is None:
            ended[head] = True
            left = [item for queue in (*to_body.values(), *to_head.values()) for item in queue if isinstance(item, int)]
            assert not left, f"ended with records in flight: {left}"
        else:
            for body in range(HEADS):
                to_body[head, body].append(what)

    for _ in range(5_000):
        actions = [("out", h, 0) for h in range(HEADS) if not started[h]]
        actions += [("body", *key) for key, queue in to_body.items() if queue]
        actions += [("head", *key) for key, queue in to_head.items() if queue]
        if not actions:
            break
        where, start, end = rng.choice(actions)
        if where == "out" and outside[start]:
            to_body[start, rng.randrange(HEADS)].append(outside[start].pop())
        elif where == "out":
            started[start] = True
            send(start, heads[start].start())
        elif where == "body":
            item = to_body[start, end].popleft()
            if isinstance(item, int):
                if item:
                    to_head[end, rng.randrange(HEADS)].append(item - 1)
            else:
                came = bodies[end].take(ChannelId(1, start, end), encoded(*item))
                if came is not None:
                    for head in range(HEADS):
                        to_head[end, head].append(came)
        else:
            item = to_head[start, end].popleft()
            if isinstance(item, int):
                assert not ended[end]
                heads[end].record_came_round()
                to_body[end, rng.randrange(HEADS)].append(item)
            else:
                came = heads[end].take(ChannelId(3, start, end), encoded(*item))
                if came is not None:
                    send(end, heads[end].after(came))
    assert ended == [True] * HEADS


def test_a_round_as_a_number() -> None:
    assert [decoded(encoded(number, moved)) for number in (1, 77) for moved in (False, True)] == [
        (1, False),
        (1, True),
        (77, False),
        (77, True),
    ]
