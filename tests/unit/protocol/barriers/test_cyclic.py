"""Algorithm 2: what the barrier machine of a subtask with back edges orders, as histories."""

from __future__ import annotations

import pytest

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.barriers.cyclic import CyclicAlignment
from flinkplus.protocol.vocabulary.effects import (
    AcknowledgeCheckpoint,
    BarrierEffect,
    BlockChannel,
    DeclineCheckpoint,
    DiscardSnapshot,
    EndCapture,
    ForwardBarrier,
    LogChannel,
    PersistSnapshot,
    TakeSnapshot,
    UnblockChannel,
)
from flinkplus.protocol.vocabulary.events import BarrierEvent, BarrierTaken, CheckpointAborted, SnapshotPersisted
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
BACK, OTHER_BACK = ChannelId(7, 0, 0), ChannelId(7, 1, 0)
ONE, TWO = CheckpointId(1), CheckpointId(2)


def machine() -> CyclicAlignment:
    return CyclicAlignment(SubtaskId("head", 0), (A, B, BACK, OTHER_BACK), (BACK, OTHER_BACK))


def feed(one: CyclicAlignment, *events: BarrierEvent) -> list[BarrierEffect]:
    return [effect for event in events for effect in one.step(0, event)]


def copied(checkpoint: CheckpointId) -> list[BarrierEffect]:
    return [
        BlockChannel(A),
        BlockChannel(B),
        TakeSnapshot(checkpoint),
        LogChannel(checkpoint, BACK),
        LogChannel(checkpoint, OTHER_BACK),
        ForwardBarrier(checkpoint),
        UnblockChannel(A),
        UnblockChannel(B),
    ]


def test_the_state_is_copied_when_the_regular_inputs_are_blocked_and_back_edges_are_logged() -> None:
    one = machine()
    assert feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE)) == copied(ONE)
    assert one.waiting_for == (ONE,)


def test_the_snapshot_is_persisted_when_the_barrier_has_come_round_on_every_back_edge() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE))
    assert feed(one, BarrierTaken(OTHER_BACK, ONE)) == [EndCapture(ONE, OTHER_BACK)]
    assert feed(one, BarrierTaken(BACK, ONE)) == [EndCapture(ONE, BACK), PersistSnapshot(ONE)]
    assert feed(one, SnapshotPersisted(ONE, "handle")) == [AcknowledgeCheckpoint(ONE, "handle")]
    assert one.waiting_for == ()


def test_a_back_edge_does_not_wait_for_its_own_barrier() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE))
    assert feed(one, BarrierTaken(BACK, ONE)) == [EndCapture(ONE, BACK)]
    assert one.blocked == ()


@pytest.mark.parametrize("first", [(BACK, A), (A, BACK)])
def test_an_early_barrier_on_a_back_edge_blocks_it_until_the_copy(first: tuple[ChannelId, ChannelId]) -> None:
    """Another head was aligned first: what it sends behind its barrier must not be in the copy."""
    one = machine()
    assert feed(one, *(BarrierTaken(channel, ONE) for channel in first)) == [BlockChannel(channel) for channel in first]
    assert set(one.blocked) == {A, BACK}
    assert feed(one, BarrierTaken(B, ONE)) == [
        BlockChannel(B),
        TakeSnapshot(ONE),
        LogChannel(ONE, OTHER_BACK),
        ForwardBarrier(ONE),
        UnblockChannel(A),
        UnblockChannel(B),
        UnblockChannel(BACK),
    ]
    assert feed(one, BarrierTaken(OTHER_BACK, ONE)) == [EndCapture(ONE, OTHER_BACK), PersistSnapshot(ONE)]


def test_with_all_barriers_of_back_edges_early_the_copy_is_the_snapshot() -> None:
    one = machine()
    feed(one, BarrierTaken(BACK, ONE), BarrierTaken(OTHER_BACK, ONE), BarrierTaken(A, ONE))
    effects = feed(one, BarrierTaken(B, ONE))
    assert PersistSnapshot(ONE) in effects
    assert effects[-2:] == [UnblockChannel(BACK), UnblockChannel(OTHER_BACK)]


@pytest.mark.parametrize("event", [CheckpointAborted(ONE), BarrierTaken(A, TWO)])
def test_an_early_barrier_of_a_checkpoint_that_does_not_begin_blocks_no_longer(event: BarrierEvent) -> None:
    one = machine()
    feed(one, BarrierTaken(BACK, ONE))
    assert UnblockChannel(BACK) in feed(one, event)
    assert BACK not in one.blocked
    assert feed(one, BarrierTaken(OTHER_BACK, ONE)) == []


def test_an_early_barrier_stays_blocked_through_a_checkpoint_before_its_own() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(BACK, TWO))
    feed(one, BarrierTaken(B, ONE))
    assert one.blocked == (BACK,)
    assert UnblockChannel(BACK) in feed(one, BarrierTaken(A, TWO), BarrierTaken(B, TWO))


def test_checkpoints_overlap_and_each_has_its_own_logs() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE), BarrierTaken(BACK, ONE))
    assert feed(one, BarrierTaken(A, TWO), BarrierTaken(B, TWO)) == copied(TWO)
    assert feed(one, BarrierTaken(BACK, TWO)) == [EndCapture(TWO, BACK)]
    assert feed(one, BarrierTaken(OTHER_BACK, ONE)) == [EndCapture(ONE, OTHER_BACK), PersistSnapshot(ONE)]
    assert feed(one, BarrierTaken(OTHER_BACK, TWO)) == [EndCapture(TWO, OTHER_BACK), PersistSnapshot(TWO)]


def test_a_newer_barrier_round_declines_the_older_checkpoint() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE), BarrierTaken(A, TWO), BarrierTaken(B, TWO))
    why = "head[0]: barrier 2 came round on 7:0->0 before 1 did"
    assert feed(one, BarrierTaken(BACK, TWO)) == [
        DeclineCheckpoint(ONE, why),
        EndCapture(ONE, BACK),
        EndCapture(ONE, OTHER_BACK),
        PersistSnapshot(ONE),
        EndCapture(TWO, BACK),
    ]
    assert feed(one, SnapshotPersisted(ONE, "handle")) == [DiscardSnapshot(ONE)]


def test_an_aborted_checkpoint_is_persisted_for_those_that_follow_and_discarded() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE), BarrierTaken(BACK, ONE))
    assert feed(one, CheckpointAborted(ONE)) == [EndCapture(ONE, OTHER_BACK), PersistSnapshot(ONE)]
    assert feed(one, SnapshotPersisted(ONE, "handle")) == [DiscardSnapshot(ONE)]
    assert feed(one, BarrierTaken(OTHER_BACK, ONE)) == []


def test_copies_are_persisted_in_the_order_in_which_they_were_taken() -> None:
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE), BarrierTaken(A, TWO), BarrierTaken(B, TWO))
    assert feed(one, CheckpointAborted(TWO)) == [EndCapture(TWO, BACK), EndCapture(TWO, OTHER_BACK)]
    assert feed(one, BarrierTaken(BACK, ONE), BarrierTaken(OTHER_BACK, ONE)) == [
        EndCapture(ONE, BACK),
        EndCapture(ONE, OTHER_BACK),
        PersistSnapshot(ONE),
        PersistSnapshot(TWO),
    ]


def test_a_newer_barrier_may_give_up_several_older_checkpoints_at_once() -> None:
    three = CheckpointId(3)
    one = machine()
    for number in (ONE, TWO, three):
        feed(one, BarrierTaken(A, number), BarrierTaken(B, number))
    feed(one, CheckpointAborted(TWO))
    found = feed(one, BarrierTaken(BACK, three))
    assert [effect for effect in found if isinstance(effect, PersistSnapshot)] == [
        PersistSnapshot(ONE),
        PersistSnapshot(TWO),
    ]


def test_without_back_edges_it_is_algorithm_1() -> None:
    one = CyclicAlignment(SubtaskId("count", 0), (A, B), ())
    assert feed(one, BarrierTaken(A, ONE), BarrierTaken(B, ONE)) == [
        BlockChannel(A),
        BlockChannel(B),
        TakeSnapshot(ONE),
        ForwardBarrier(ONE),
        UnblockChannel(A),
        UnblockChannel(B),
        PersistSnapshot(ONE),
    ]


def test_a_barrier_of_the_version_ends_the_log_that_was_put_back_and_blocks_nothing() -> None:
    """What was in flight on a back edge is in front of it after a restore; the barrier is its last message."""
    one = CyclicAlignment(SubtaskId("head", 0), (A, B, BACK, OTHER_BACK), (BACK, OTHER_BACK), TWO)
    assert feed(one, BarrierTaken(BACK, ONE), BarrierTaken(BACK, TWO), BarrierTaken(OTHER_BACK, TWO)) == []
    assert one.blocked == ()


def test_a_second_barrier_on_a_back_edge_that_one_blocks_is_refused() -> None:
    one = machine()
    feed(one, BarrierTaken(BACK, ONE))
    with pytest.raises(PeerProtocolError, match=r"barrier 2 on .*, which checkpoint 1 blocks"):
        feed(one, BarrierTaken(BACK, TWO))
    assert one.blocked == (BACK,)


def test_a_newer_barrier_that_came_early_declines_the_checkpoint_that_is_begun_before_it() -> None:
    """The older barrier will not come on that back edge any more."""
    one = machine()
    feed(one, BarrierTaken(A, ONE), BarrierTaken(BACK, TWO))
    effects = feed(one, BarrierTaken(B, ONE))
    assert [effect.checkpoint for effect in effects if isinstance(effect, DeclineCheckpoint)] == [ONE]
    assert effects[-3:] == [EndCapture(ONE, BACK), EndCapture(ONE, OTHER_BACK), PersistSnapshot(ONE)]
    assert feed(one, SnapshotPersisted(ONE, "handle")) == [DiscardSnapshot(ONE)]
    assert one.blocked == (BACK,)
