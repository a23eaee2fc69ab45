"""Who is an ancestor of whom, and whose determinants messages carry at which sharing depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage

CHAIN = ("a", "b", "c", "d")
STEPS = (("a", "b"), ("b", "c"), ("c", "d"))


@pytest.mark.parametrize(("depth", "of_c"), [(1, ()), (2, ("b",)), (3, ("a", "b")), (None, ("a", "b"))])
def test_messages_tell_of_ancestors_as_far_up_as_the_depth_says(depth, of_c):
    lineage = Lineage(CHAIN, STEPS, depth)
    assert lineage.passed_on("c") == of_c
    assert lineage.passed_on("a") == ()
    assert lineage.passed_on("d") == (), "it sends to nobody"
    assert lineage.asked_of([SubtaskId("c", 1), SubtaskId("d", 0)]) == frozenset(of_c)


def test_the_shortest_path_counts():
    lineage = Lineage(CHAIN, (*STEPS, ("a", "c")), 2)
    assert lineage.distance("a", "c") == 1
    assert lineage.distance("a", "d") == 2
    assert lineage.distance("d", "a") is None
    assert lineage.passed_on("c") == ("a", "b")


def test_a_job_of_two_stages_passes_nothing_on():
    lineage = Lineage(("lines", "count"), [("lines", "count")])
    assert lineage.passed_on("lines") == lineage.passed_on("count") == ()


def test_a_vertex_with_a_recipe_passes_on_all_ancestors_and_may_not_know_all_of_them():
    lineage = Lineage(CHAIN, STEPS, 1, recipes=["d"])
    assert lineage.passed_on("d") == ("a", "b", "c") and lineage.recipes == {"d"}
    assert lineage.asked_of([SubtaskId("d", 0)]) == {"a", "b", "c"}
    assert lineage.passed_on("c") == ()


@pytest.mark.parametrize(("depth", "reached"), [(1, "ab"), (2, "abc"), (3, "abcd"), (None, "abcd")])
def test_a_sharing_depth_reaches_sinks_that_are_not_too_far(depth, reached):
    lineage = Lineage(CHAIN, STEPS, depth)
    assert [vertex for vertex in CHAIN if lineage.has_all_of(vertex)] == list(reached)


def test_each_way_to_a_sink_must_be_reached_not_the_shortest_alone():
    assert not Lineage(CHAIN, (*STEPS, ("a", "d")), 2).has_all_of("d"), "c does not pass on the steps of a"


@given(st.sampled_from(CHAIN), st.integers(0, 2**16 - 1))
def test_a_subtask_has_a_number(vertex, index):
    lineage = Lineage(CHAIN, STEPS)
    subtask = SubtaskId(vertex, index)
    assert lineage.subtask(lineage.number(subtask)) == subtask
    assert lineage.number(subtask) < 2**32


def test_a_number_of_nobody_and_a_depth_of_nothing_are_refused():
    with pytest.raises(PeerProtocolError, match="the job has 4"):
        Lineage(CHAIN, STEPS).subtask(4 << 16)
    with pytest.raises(InvariantViolation):
        Lineage(CHAIN, STEPS, 0)
