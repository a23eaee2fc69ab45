"""Which version a failed set goes on from. The numbers in the names are rules 1 to 3 of ``recovery_line.py``."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from chain_backup.failover.recovery_line import NoLine, VersionCursors, components, recovery_line, unprovable
from chain_backup.failover.topology import Topology
from flinkplus.protocol.determinants.determinants import AncestorLog, decode_spans, encode_span
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from tests.unit.chain_backup.failover.failover_history import channels_of

TOPOLOGY = Topology(("lines", "count"), 2, ((0, "lines", "count"),))
L0, L1, C0, C1 = SubtaskId("lines", 0), SubtaskId("lines", 1), SubtaskId("count", 0), SubtaskId("count", 1)
TO_C0, TO_C1 = ChannelId(0, 0, 0), ChannelId(0, 0, 1)

CHAIN = Topology(("a", "b", "c"), 2, ((0, "a", "b"), (1, "b", "c")))
A0, A1, B0, B1, K0, K1 = (SubtaskId(vertex, index) for vertex in "abc" for index in (0, 1))


def produced(**versions: tuple[int, int]) -> Mapping[int, VersionCursors]:
    """``v5=(40, 41)``: at version 5, 40 messages to count[0] and 41 to count[1] had been sent by lines[0]."""
    return {int(name[1:]): VersionCursors(outputs={TO_C0: a, TO_C1: b}) for name, (a, b) in versions.items()}


def consumed(**versions: int) -> Mapping[int, VersionCursors]:
    """``v5=41``: at version 5, count[0] expected message 41 of lines[0]."""
    return {int(name[1:]): VersionCursors(inputs={TO_C0: seq}) for name, seq in versions.items()}


# ------------------------------------------------------------------- a message produced and not delivered (rule 2)


def test_2_a_message_that_the_dead_head_had_not_delivered_is_produced_again() -> None:
    """lines[0] died with messages 50 to 59 to count[1] in its memory. Version 6 comes after them: its successor would
    never send them. Version 5 comes before."""
    versions = {L0: produced(v5=(40, 40), v6=(60, 60))}
    assert recovery_line([L0], versions, {TO_C0: 60, TO_C1: 50}, 5, TOPOLOGY) == {L0: 5}


def test_2_what_was_delivered_to_all_need_not_be_produced_again() -> None:
    versions = {L0: produced(v5=(40, 40), v6=(60, 60))}
    assert recovery_line([L0], versions, {TO_C0: 60, TO_C1: 60}, 5, TOPOLOGY) == {L0: 6}


def test_2_one_message_short_is_short() -> None:
    versions = {L0: produced(v5=(40, 40), v6=(60, 60))}
    assert recovery_line([L0], versions, {TO_C0: 59, TO_C1: 60}, 5, TOPOLOGY) == {L0: 5}


def test_2_a_consumer_that_says_nothing_has_received_nothing() -> None:
    versions = {L0: produced(v0=(0, 0), v1=(0, 1))}
    assert recovery_line([L0], versions, {}, 0, TOPOLOGY) == {L0: 0}


def test_2_the_newest_that_is_usable_is_taken_not_the_first_that_is_not() -> None:
    versions = {L0: produced(v5=(10, 10), v6=(20, 20), v7=(30, 30), v8=(40, 40))}
    assert recovery_line([L0], versions, {TO_C0: 40, TO_C1: 35}, 5, TOPOLOGY) == {L0: 7}


def test_2_only_living_consumers_are_asked() -> None:
    """count[0] dies with lines[0]: what it had received does not matter, it receives again from its own version."""
    versions = {L0: produced(v5=(40, 40), v6=(60, 60)), C0: consumed(v5=41, v6=61)}
    assert recovery_line([L0, C0], versions, {TO_C1: 60}, 5, TOPOLOGY) == {C0: 6, L0: 6}
    assert recovery_line([L0, C0], versions, {TO_C1: 59}, 5, TOPOLOGY) == {C0: 5, L0: 5}


# --------------------------------------------------------------------------------------------- one line for all


def test_linked_subtasks_go_back_to_the_same_version() -> None:
    versions = {L0: produced(v5=(40, 40), v6=(60, 60)), C0: consumed(v5=41)}
    assert recovery_line([L0, C0], versions, {TO_C1: 99}, 5, TOPOLOGY) == {C0: 5, L0: 5}


def test_a_producer_is_never_ahead_of_its_consumer() -> None:
    versions = {L0: produced(v5=(40, 40), v6=(60, 60)), C0: consumed(v5=41, v6=59)}
    assert recovery_line([L0, C0], versions, {TO_C1: 99}, 5, TOPOLOGY) == {C0: 5, L0: 5}


def test_subtasks_that_are_not_linked_choose_for_themselves() -> None:
    versions = {C0: consumed(v5=41), C1: {5: VersionCursors(), 6: VersionCursors()}}
    assert recovery_line([C0, C1], versions, {}, 5, TOPOLOGY) == {C0: 5, C1: 6}


def test_components() -> None:
    assert components([K0, A0], CHAIN) == [(A0,), (K0,)]
    assert components([K1, A0, B1], CHAIN) == [(A0, B1, K1)]
    assert components([A0, A1], CHAIN) == [(A0,), (A1,)]
    assert components([A0, A1, B0], CHAIN) == [(A0, A1, B0)]
    assert components([], CHAIN) == []


# --------------------------------------------------------------------------------------------------- rules 1 and 3


def test_1_nothing_older_than_the_last_complete_checkpoint_is_used() -> None:
    versions = {L0: produced(v4=(1, 1), v5=(40, 40))}
    line = recovery_line([L0], versions, {TO_C0: 39, TO_C1: 39}, 5, TOPOLOGY)
    assert line == NoLine(
        "version 5 of lines[0] cannot be used: count[0] has received 0:0->0 up to 39, and lines[0] had sent up to 40 "
        "before"
    )


def test_1_a_version_that_is_gone_is_no_line() -> None:
    assert recovery_line([L0], {L0: {}}, {}, 5, TOPOLOGY) == NoLine("version 5 of lines[0] is missing")


def test_3_a_producer_restored_from_a_newer_version_has_no_older_messages() -> None:
    versions = {C0: consumed(v5=41, v6=61)}
    assert recovery_line([C0], versions, {}, 5, TOPOLOGY, {L0: 6}) == {C0: 6}
    assert recovery_line([C0], {C0: consumed(v5=41)}, {}, 5, TOPOLOGY, {L0: 6}) == NoLine(
        "version 5 of count[0] cannot be used: lines[0] began from version 6"
    )


def test_3_a_consumer_restored_from_a_newer_version_has_forgotten_the_determinants() -> None:
    received = {TO_C0: 99, TO_C1: 99}
    assert recovery_line([L0], {L0: produced(v5=(1, 1), v6=(2, 2))}, received, 5, TOPOLOGY, {C1: 6}) == {L0: 6}
    line = recovery_line([L0], {L0: produced(v5=(1, 1))}, received, 5, TOPOLOGY, {C1: 6})
    assert isinstance(line, NoLine)


def test_3_who_is_not_a_neighbour_does_not_matter() -> None:
    assert recovery_line([C0], {C0: consumed(v5=41)}, {}, 5, TOPOLOGY, {C1: 9}) == {C0: 5}


# -------------------------------------------------------------------------------------------------------- property


@given(data=st.data())
def test_no_usable_version_is_newer_and_the_chosen_one_is_usable(data: st.DataObject) -> None:
    """Against the obvious way: try every version of every component."""
    topology = data.draw(st.sampled_from([TOPOLOGY, CHAIN]))
    failed = data.draw(st.lists(st.sampled_from(topology.subtasks), unique=True, min_size=1))
    complete = data.draw(st.integers(0, 2))
    seqs = st.integers(0, 3)
    versions = {
        subtask: {
            version: VersionCursors(
                inputs={channel: data.draw(seqs) for channel in topology.inputs(subtask)},
                outputs={channel: data.draw(seqs) for channel in topology.outputs(subtask)},
            )
            for version in data.draw(st.sets(st.integers(0, 4)))
        }
        for subtask in failed
    }
    received = {channel: data.draw(seqs) for channel in channels_of(topology)}
    restored = {s: data.draw(st.integers(0, 3)) for s in topology.subtasks if s not in failed}

    def usable(component: tuple[SubtaskId, ...], version: int) -> bool:
        if version < complete or any(version not in versions[subtask] for subtask in component):
            return False
        for channel in channels_of(topology):
            producer, consumer = topology.producer(channel), topology.consumer(channel)
            if producer in component:
                sent = versions[producer][version].outputs[channel]
                inside = consumer in component
                expected = versions[consumer][version].inputs[channel] if inside else received[channel]
                if sent > expected or (not inside and restored[consumer] > version):
                    return False
            elif consumer in component and restored[producer] > version:
                return False
        return True

    expected: dict[SubtaskId, int] | None = {}
    for component in components(failed, topology):
        good = [version for version in range(5) if usable(component, version)]
        if not good:
            expected = None
            break
        assert expected is not None
        expected.update(dict.fromkeys(component, max(good)))
    line = recovery_line(failed, versions, received, complete, topology, restored)
    assert isinstance(line, NoLine) if expected is None else line == expected


# ------------------------------------------------------------------------------------------------------ unprovable


def test_at_depth_1_a_slot_of_two_stages_is_provable_and_one_of_three_is_not() -> None:
    assert unprovable([L0, C0], TOPOLOGY, 1) is None
    assert unprovable([L0, L1, C0, C1], TOPOLOGY, 1) is None
    assert unprovable([A0, B0, K0], CHAIN, 1) == (
        "only b[0] knew the order of the steps of a[0] (sharing_depth is 1), and it failed with it; local failover "
        "cannot repeat what it had sent on"
    )
    assert unprovable([A0, B0, K0], CHAIN, 2) is None


def test_what_is_not_linked_is_provable() -> None:
    for subtask in CHAIN.subtasks:
        assert unprovable([subtask], CHAIN, 1) is None
    assert unprovable([A0, A1], CHAIN, 1) is None
    assert unprovable([A0, K0, K1], CHAIN, 1) is None
    assert unprovable([B0, K1], CHAIN, 1) is None
    assert unprovable([A1, B0], CHAIN, 1) is not None


def test_what_nobody_who_lives_has_seen_need_not_be_known() -> None:
    assert unprovable([A0, B0, K0], CHAIN, 1) is not None
    assert unprovable([A0, B0, K0, K1], CHAIN, 1) is None


def test_at_depth_1_a_consumer_that_forgot_what_its_predecessor_knew_counts_as_lost() -> None:
    why = unprovable([A0], CHAIN, 1, [B1])
    assert why is not None and "still repeating" in why
    assert unprovable([A0, K0, K1], CHAIN, 1, [B1]) is not None, "what it is to repeat binds it"
    assert unprovable([A0], CHAIN, 2, [B1]) is None, "it was told at its promotion"
    assert unprovable([B0], CHAIN, 1, [A0, B1, K0]) is None, "the last stage has sent on nothing"
    assert unprovable([L0], TOPOLOGY, 1, [C0, C1]) is None


def test_a_shorter_path_does_not_help_where_a_longer_one_was_not_told() -> None:
    """a feeds b, c and d; b feeds c; c feeds d. At depth 1, c tells d nothing of a, though d hears of a as well."""
    skips = Topology(
        ("a", "b", "c", "d"), 1, ((0, "a", "b"), (1, "b", "c"), (2, "c", "d"), (3, "a", "d"), (4, "a", "c"))
    )
    a, b, c = (SubtaskId(vertex, 0) for vertex in "abc")
    assert unprovable([a, c], skips, 1) is not None
    assert unprovable([a, b, c], skips, 2) is None, "b and c are both next to a, and pass on what they know of it"


graphs = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda e: e[0] < e[1]), unique=True, min_size=1
)


@given(edges=graphs, parallelism=st.integers(1, 2), depth=st.integers(1, 4), data=st.data())
def test_provable_means_that_somebody_alive_knows_along_every_path(
    edges: list[tuple[int, int]], parallelism: int, depth: int, data: st.DataObject
) -> None:
    """Against the obvious way: a step of each failed subtask goes down every path over failed ones, hop by hop through
    the logs that real messages are told from; whoever lives at the end of one must know it."""
    names = "abcde"
    used = sorted({end for edge in edges for end in edge})
    topology = Topology(
        tuple(names[at] for at in used),
        parallelism,
        tuple((number, names[start], names[end]) for number, (start, end) in enumerate(edges)),
    )
    failed = data.draw(st.lists(st.sampled_from(topology.subtasks), unique=True, min_size=1))
    lineage = topology.lineage(depth)

    def covered(origin: SubtaskId, at: SubtaskId, log: AncestorLog) -> bool:
        """``at`` has worked on what depends on the step of ``origin``; all those that it feeds have the message."""
        own = encode_span(0, [7])
        told = own if at == origin else own + log.since(0)
        for consumer in [other for other in topology.subtasks if topology.feeds(at, other)]:
            (_, others) = decode_spans(told)
            known = [(lineage.number(at), 0, (7,)), *others]
            if consumer not in failed:
                if not any(number == lineage.number(origin) and run for number, _, run in known):
                    return False
                continue
            passed = AncestorLog()
            for number, first, run in known:
                if lineage.subtask(number).vertex in lineage.passed_on(consumer.vertex):
                    passed.take(number, first, run)
            if not covered(origin, consumer, passed):
                return False
        return True

    assert (unprovable(failed, topology, depth) is None) == all(covered(s, s, AncestorLog()) for s in failed)
    assert unprovable(failed, topology, None) is None
