from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain_backup.failover.placement import STRATEGIES, PlacementError, Strategy, members, near, spread
from chain_backup.failover.topology import Topology
from flinkplus.errors import InvariantViolation
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from tests.unit.chain_backup.failover.failover_history import channels_of

# ------------------------------------------------------------------------------------------------------- topology

DIAMOND = Topology(
    ("source", "left", "right", "sink"),
    2,
    ((0, "source", "left"), (1, "source", "right"), (2, "left", "sink"), (3, "right", "sink")),
)


def test_channels_of_a_subtask() -> None:
    source, sink = SubtaskId("source", 1), SubtaskId("sink", 0)
    assert DIAMOND.outputs(source) == (
        ChannelId(0, 1, 0),
        ChannelId(0, 1, 1),
        ChannelId(1, 1, 0),
        ChannelId(1, 1, 1),
    )
    assert DIAMOND.inputs(sink) == (ChannelId(2, 0, 0), ChannelId(2, 1, 0), ChannelId(3, 0, 0), ChannelId(3, 1, 0))
    assert DIAMOND.inputs(source) == DIAMOND.outputs(sink) == ()
    assert (DIAMOND.is_last(source), DIAMOND.is_last(sink)) == (False, True)
    assert DIAMOND.feeds(source, SubtaskId("left", 0)) and not DIAMOND.feeds(source, sink)


def test_ends_of_a_channel() -> None:
    channel = ChannelId(2, 0, 1)
    assert (DIAMOND.producer(channel), DIAMOND.consumer(channel)) == (SubtaskId("left", 0), SubtaskId("sink", 1))
    for known in channels_of(DIAMOND):
        assert known in DIAMOND.outputs(DIAMOND.producer(known))
        assert known in DIAMOND.inputs(DIAMOND.consumer(known))
    with pytest.raises(KeyError, match="no edge 9"):
        DIAMOND.producer(ChannelId(9, 0, 0))


def test_upstreams_up_to_the_sources() -> None:
    def named(*names: str) -> tuple[SubtaskId, ...]:
        return tuple(SubtaskId(name, index) for name in names for index in (0, 1))

    source, left, sink = SubtaskId("source", 1), SubtaskId("left", 1), SubtaskId("sink", 0)
    assert DIAMOND.with_upstreams([source]) == (source,)
    assert DIAMOND.with_upstreams([left]) == (left, *named("source"))
    assert DIAMOND.with_upstreams([left, sink]) == (*named("left", "right"), sink, *named("source"))
    assert DIAMOND.with_upstreams([]) == ()


def test_in_a_loop_everyone_is_upstream_of_everyone() -> None:
    loop = Topology(("in", "body", "tail", "out"), 2, ((0, "in", "body"), (1, "body", "tail"), (2, "tail", "body")))
    others = [SubtaskId(name, index) for name in ("body", "in", "tail") for index in (0, 1)]
    assert list(loop.with_upstreams([SubtaskId("tail", 1)])) == others
    assert loop.with_upstreams([SubtaskId("in", 1)]) == (SubtaskId("in", 1),)


def test_subtasks_are_sorted() -> None:
    assert list(DIAMOND.subtasks) == sorted(DIAMOND.subtasks)
    assert len(DIAMOND.subtasks) == 8


@pytest.mark.parametrize(
    ("vertices", "parallelism", "edges"),
    [
        ((), 1, ()),
        (("a", "a"), 1, ()),
        (("a",), 0, ()),
        (("a", "b"), 1, ((0, "a", "c"),)),
        (("a", "b"), 1, ((0, "a", "b"), (0, "a", "b"))),
    ],
)
def test_a_graph_that_cannot_be(
    vertices: tuple[str, ...], parallelism: int, edges: tuple[tuple[int, str, str], ...]
) -> None:
    with pytest.raises(InvariantViolation):
        Topology(vertices, parallelism, edges)


# ------------------------------------------------------------------------------------------------------ placement

ALL = STRATEGIES.values()


def hosts_of(*sizes: int) -> dict[int, str]:
    """Slots 0, 1, ... on hosts of these sizes."""
    return dict(enumerate(f"host{host}" for host, size in enumerate(sizes) for _ in range(size)))


def place(strategy: Strategy, hosts: dict[int, str], replicas: int) -> dict[int, tuple[int, ...]]:
    return {slot: members(strategy, slot, tuple(hosts), hosts, replicas) for slot in hosts}


def test_spread_on_one_host_is_a_ring() -> None:
    assert place(spread, hosts_of(4), 3) == {0: (0, 1, 2), 1: (1, 2, 3), 2: (2, 3, 0), 3: (3, 0, 1)}


def test_spread_leaves_the_host_first() -> None:
    for head, chain in place(spread, hosts_of(2, 2), 3).items():
        assert chain[0] == head
        assert (chain[1] < 2) != (head < 2)


def test_near_uses_the_next_hosts_only() -> None:
    hosts = hosts_of(2, 2, 2, 2)
    assert place(near, hosts, 3) == {
        0: (0, 2, 4),
        1: (1, 3, 5),
        2: (2, 4, 6),
        3: (3, 5, 7),
        4: (4, 6, 0),
        5: (5, 7, 1),
        6: (6, 0, 2),
        7: (7, 1, 3),
    }


@example(name="spread", sizes=[3, 3, 3], replicas=5)
@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    replicas=st.integers(1, 5),
)
def test_any_cluster(name: str, sizes: list[int], replicas: int) -> None:
    hosts = hosts_of(*sizes)
    chains = place(STRATEGIES[name], hosts, replicas)
    for head, chain in chains.items():
        assert chain[0] == head
        assert len(set(chain)) == len(chain) == min(replicas, len(hosts))
        used = Counter(hosts[slot] for slot in chain)
        assert len(used) == min(len(chain), len(sizes)), "a host was used again before all were used"
    if len(set(sizes)) == 1:
        standbys = Counter(slot for chain in chains.values() for slot in chain[1:])
        loads = [standbys[slot] for slot in hosts]
        slack = 0 if name == "near" or len(sizes) in (1, len(hosts)) else 1
        assert max(loads) - min(loads) <= slack


@given(alive=st.sets(st.integers(0, 5), min_size=1), data=st.data())
def test_the_home_is_the_head(alive: set[int], data: st.DataObject) -> None:
    living = tuple(sorted(alive))
    home = data.draw(st.sampled_from(living))
    for strategy in ALL:
        chain = members(strategy, home, living, dict.fromkeys(living, "h"), 3)
        assert set(chain) <= alive and chain[0] == home


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([0, 1], "not a tuple"),
        ((0, True), "not a tuple"),
        ((0, 1, 1), "twice"),
        ((0, 7), "does not exist"),
        ((), "0 members"),
        ((0, 1, 2, 3), "4 members"),
        ((1, 0), "not the home"),
    ],
)
def test_a_strategy_of_the_users_own_is_checked(answer: tuple[int, ...], why: str) -> None:
    def mine(home: int, slots_alive: tuple[int, ...], hosts: object, replicas: int) -> tuple[int, ...]:
        return answer

    with pytest.raises(PlacementError, match=why) as caught:
        members(mine, 0, (0, 1, 2, 3), hosts_of(4), 3)
    assert "'mine'" in str(caught.value)
