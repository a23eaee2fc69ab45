"""Barriers that overtake: what the machine of a subtask orders, as histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.protocol.barriers import machine as common
from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.unaligned import UnalignedBarriers
from flinkplus.protocol.vocabulary.effects import (
    AcknowledgeCheckpoint,
    BarrierEffect,
    BlockChannel,
    DeclineCheckpoint,
    DiscardSnapshot,
    EndCapture,
    ForwardBarrier,
    PersistSnapshot,
    RecordChannel,
    TakeSnapshot,
    UnblockChannel,
)
from flinkplus.protocol.vocabulary.events import (
    BarrierArrived,
    BarrierEvent,
    BarrierOvertook,
    BarrierTaken,
    CheckpointAborted,
    CheckpointTriggered,
    OvertakingEvent,
    OvertakingOrdered,
    SnapshotPersisted,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
NONE, ONE, TWO, THREE = (CheckpointId(n) for n in range(4))
COUNT = SubtaskId("count", 0)


def machine(version: CheckpointId = NONE) -> UnalignedBarriers:
    return UnalignedBarriers(COUNT, (A, B), version)


def feed(one: UnalignedBarriers, *events: BarrierEvent | OvertakingEvent) -> list[BarrierEffect]:
    return [effect for event in events for effect in one.step(0, event)]


def copied(checkpoint: CheckpointId, *recorded: ChannelId) -> list[BarrierEffect]:
    records = [RecordChannel(checkpoint, channel) for channel in recorded]
    return [TakeSnapshot(checkpoint), *records, ForwardBarrier(checkpoint, overtakes=True)]


def test_the_first_barrier_that_comes_in_is_due_when_it_may_overtake() -> None:
    one = machine()
    assert feed(one, BarrierArrived(B, ONE)) == []
    assert (one.due,) == (None,), "nobody has said so"
    assert feed(one, OvertakingOrdered(ONE)) == []
    assert (one.due,) == (ONE,)
    other = machine()
    feed(other, OvertakingOrdered(ONE))
    assert (other.due,) == (None,), "no barrier is here"
    feed(other, BarrierArrived(A, ONE))
    assert (other.due,) == (ONE,)


def test_what_is_in_flight_is_recorded_until_the_last_barrier_comes_in() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), BarrierArrived(B, ONE))
    assert feed(one, BarrierOvertook(ONE)) == copied(ONE, A, B)
    assert one.due is None and one.waiting_for == (ONE,)
    assert feed(one, BarrierArrived(A, ONE)) == [EndCapture(ONE, A), PersistSnapshot(ONE)]
    assert feed(one, SnapshotPersisted(ONE, "handle")) == [AcknowledgeCheckpoint(ONE, "handle")]
    assert not one.waiting_for


def test_all_barriers_may_be_here_when_it_begins() -> None:
    one = machine()
    feed(one, BarrierArrived(A, ONE), BarrierArrived(B, ONE), OvertakingOrdered(ONE))
    assert feed(one, BarrierOvertook(ONE)) == [*copied(ONE, A, B), PersistSnapshot(ONE)]


def test_a_barrier_whose_turn_comes_when_it_has_overtaken_means_nothing() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), BarrierArrived(B, ONE), BarrierOvertook(ONE))
    assert feed(one, BarrierTaken(B, ONE)) == [] and one.blocked == ()
    assert feed(one, BarrierArrived(A, ONE)) == [EndCapture(ONE, A), PersistSnapshot(ONE)]
    assert feed(one, BarrierTaken(A, ONE)) == [] and one.blocked == ()


def test_a_barrier_that_was_in_flight_at_the_version_means_nothing() -> None:
    one = machine(version=ONE)
    assert feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE)) == []


def test_an_alignment_that_takes_too_long_is_overtaken() -> None:
    """Nothing is in flight where the barrier was taken: the cursor stands behind it."""
    one = machine()
    assert feed(one, BarrierArrived(A, ONE), BarrierTaken(A, ONE)) == [BlockChannel(A)]
    feed(one, OvertakingOrdered(ONE))
    assert one.due == ONE, "one barrier was taken: no other need be here"
    assert feed(one, BarrierOvertook(ONE)) == [*copied(ONE, B), UnblockChannel(A)]
    assert one.waiting_for == (ONE,)
    assert feed(one, BarrierArrived(B, ONE)) == [EndCapture(ONE, B), PersistSnapshot(ONE)]


def test_the_barrier_of_an_aligned_snapshot_overtakes_too_when_it_may() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), BarrierTaken(A, ONE))
    assert ForwardBarrier(ONE, overtakes=True) in feed(one, BarrierTaken(B, ONE))
    source = UnalignedBarriers(COUNT, (), NONE)
    feed(source, OvertakingOrdered(ONE))
    assert source.may_overtake(ONE)
    assert feed(source, CheckpointTriggered(ONE)) == [*copied(ONE), PersistSnapshot(ONE)]
    assert not source.may_overtake(ONE), "it has"
    assert ForwardBarrier(TWO) in feed(source, CheckpointTriggered(TWO))


def test_who_repeats_does_not_wait_for_a_barrier() -> None:
    one = machine()
    assert feed(one, BarrierOvertook(ONE)) == copied(ONE, A, B)
    assert feed(one, BarrierArrived(A, ONE)) == [EndCapture(ONE, A)]
    assert feed(one, BarrierArrived(B, ONE)) == [EndCapture(ONE, B), PersistSnapshot(ONE)]


def test_a_checkpoint_that_is_given_up_is_not_due() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), CheckpointAborted(ONE), BarrierArrived(A, ONE))
    assert one.due is None
    other = machine()
    feed(other, OvertakingOrdered(ONE), BarrierArrived(A, ONE), CheckpointAborted(ONE))
    assert other.due is None
    assert feed(other, BarrierTaken(A, ONE)) == []


def test_a_checkpoint_that_is_given_up_while_it_is_recorded_is_persisted_and_discarded() -> None:
    """Later snapshots build on its copy."""
    one = machine()
    feed(one, OvertakingOrdered(ONE), BarrierArrived(B, ONE), BarrierOvertook(ONE))
    assert feed(one, CheckpointAborted(ONE)) == [EndCapture(ONE, A), PersistSnapshot(ONE)]
    assert feed(one, SnapshotPersisted(ONE, "handle")) == [DiscardSnapshot(ONE)]
    assert feed(one, BarrierArrived(A, ONE)) == [] and one.due is None


def test_checkpoints_that_overlap_are_persisted_in_order() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), OvertakingOrdered(TWO), BarrierArrived(A, ONE), BarrierArrived(A, TWO))
    assert one.due == ONE
    assert feed(one, BarrierOvertook(ONE)) == copied(ONE, A, B)
    assert one.due == TWO
    assert feed(one, BarrierOvertook(TWO)) == copied(TWO, A, B)
    assert feed(one, BarrierArrived(B, ONE)) == [EndCapture(ONE, B), PersistSnapshot(ONE)]
    assert feed(one, BarrierArrived(B, TWO)) == [EndCapture(TWO, B), PersistSnapshot(TWO)]


def test_a_newer_barrier_proves_that_the_older_one_will_not_come() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), BarrierArrived(A, ONE), BarrierOvertook(ONE))
    effects = feed(one, BarrierArrived(B, TWO))
    assert isinstance(effects[0], DeclineCheckpoint) and effects[0].checkpoint == ONE
    assert effects[1:] == [EndCapture(ONE, B), PersistSnapshot(ONE)]


def test_a_newer_barrier_may_have_come_before_the_older_one_overtakes() -> None:
    one = machine()
    feed(one, OvertakingOrdered(ONE), BarrierArrived(B, TWO), BarrierArrived(A, ONE))
    effects = feed(one, BarrierOvertook(ONE))
    assert effects[: len(copied(ONE, A, B))] == copied(ONE, A, B)
    assert [type(effect) for effect in effects[-3:]] == [DeclineCheckpoint, EndCapture, PersistSnapshot]
    assert one.waiting_for == ()


def test_with_too_many_snapshots_under_way_the_barrier_goes_on_and_the_checkpoint_is_declined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(common, "MAX_UNFINISHED", 1)
    one = machine()
    feed(one, OvertakingOrdered(ONE), OvertakingOrdered(TWO), BarrierArrived(A, ONE), BarrierOvertook(ONE))
    effects = feed(one, BarrierArrived(A, TWO), BarrierOvertook(TWO))
    assert effects[0] == ForwardBarrier(TWO, overtakes=True)
    assert isinstance(effects[1], DeclineCheckpoint)
    assert one.due is None


events = st.lists(
    st.one_of(
        st.builds(BarrierTaken, st.sampled_from((A, B)), st.sampled_from((ONE, TWO, THREE))),
        st.builds(CheckpointAborted, st.sampled_from((ONE, TWO, THREE))),
    ),
    max_size=12,
)


@given(events)
def test_without_orders_it_is_algorithm_1(history: list[BarrierEvent]) -> None:
    one, plain = machine(), BarrierAlignment(COUNT, (A, B))
    for event in history:
        if isinstance(event, BarrierTaken) and event.channel in plain.blocked:
            continue  # nothing is taken off it
        if isinstance(event, BarrierTaken):
            assert feed(one, BarrierArrived(event.channel, event.checkpoint)) == []
        assert feed(one, event) == plain.step(0, event)
        assert one.due is None and one.waiting_for == plain.waiting_for
