"""Barrier alignment, told as histories: events in, the whole list of effects compared."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.barriers import machine as common
from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.machine import MAX_REMEMBERED_ABORTS
from flinkplus.protocol.vocabulary.effects import (
    AcknowledgeCheckpoint,
    BarrierEffect,
    BlockChannel,
    DeclineCheckpoint,
    DiscardSnapshot,
    ForwardBarrier,
    PersistSnapshot,
    TakeSnapshot,
    UnblockChannel,
)
from flinkplus.protocol.vocabulary.events import (
    BarrierEvent,
    BarrierTaken,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotPersisted,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId

SUBTASK = SubtaskId("count+out", 1)
A, B, C = (ChannelId(0, producer, 1) for producer in range(3))
ONE, TWO, THREE, FOUR = (CheckpointId(n) for n in range(1, 5))


def feed(machine: BarrierAlignment, *events: BarrierEvent) -> list[BarrierEffect]:
    return [effect for event in events for effect in machine.step(0, event)]


def source() -> BarrierAlignment:
    return BarrierAlignment(SubtaskId("lines", 0), ())


def two_inputs() -> BarrierAlignment:
    return BarrierAlignment(SUBTASK, (A, B))


def aligned(checkpoint: CheckpointId, channels: Sequence[ChannelId]) -> list[BarrierEffect]:
    return [
        TakeSnapshot(checkpoint),
        ForwardBarrier(checkpoint),
        *(UnblockChannel(channel) for channel in channels),
        PersistSnapshot(checkpoint),
    ]


def test_which_barrier_completes_a_checkpoint_is_known_before_it_is_taken() -> None:
    machine = two_inputs()
    for checkpoint in (ONE, TWO):
        assert not machine.completes(A, checkpoint) and not machine.completes(B, checkpoint)
        feed(machine, BarrierTaken(A, checkpoint))
        assert machine.completes(B, checkpoint) and not machine.completes(A, checkpoint)
        assert not machine.completes(B, THREE)
        assert ForwardBarrier(checkpoint) in feed(machine, BarrierTaken(B, checkpoint))
        assert not machine.completes(B, checkpoint), "it has been forwarded"
    only = BarrierAlignment(SUBTASK, (A,))
    feed(only, CheckpointAborted(TWO))
    assert only.completes(A, ONE) and not only.completes(A, TWO) and only.completes(A, THREE)


# ------------------------------------------------------------------------------------ algorithm 1, step by step


def test_abs_algorithm_1_init_nothing_is_blocked() -> None:
    machine = two_inputs()
    assert machine.blocked == ()
    assert machine.waiting_for == ()


def test_abs_algorithm_1_init_inputs_are_known_and_others_refused() -> None:
    machine = two_inputs()
    with pytest.raises(PeerProtocolError, match="not one of its inputs"):
        feed(machine, BarrierTaken(C, ONE))
    assert machine.waiting_for == ()
    assert feed(machine, BarrierTaken(A, ONE)) == [BlockChannel(A)]


def test_abs_algorithm_1_init_all_outputs_are_one_effect() -> None:
    assert feed(source(), CheckpointTriggered(ONE)).count(ForwardBarrier(ONE)) == 1


def test_abs_algorithm_1_barrier_from_nil_blocks_nothing() -> None:
    machine = source()
    effects = feed(machine, CheckpointTriggered(ONE))
    assert not [effect for effect in effects if isinstance(effect, BlockChannel | UnblockChannel)]
    assert machine.blocked == ()


def test_abs_algorithm_1_barrier_from_nil_is_heard_by_sources_only() -> None:
    machine = two_inputs()
    with pytest.raises(PeerProtocolError, match="not a source"):
        feed(machine, CheckpointTriggered(ONE))


def test_abs_algorithm_1_block_input_adds_it_to_the_blocked_ones() -> None:
    machine = BarrierAlignment(SUBTASK, (A, B, C))
    feed(machine, BarrierTaken(B, ONE))
    assert list(machine.blocked) == [B]
    feed(machine, BarrierTaken(A, ONE))
    assert list(machine.blocked) == [B, A]


def test_abs_algorithm_1_block_input_orders_the_blocking() -> None:
    assert feed(two_inputs(), BarrierTaken(A, ONE)) == [BlockChannel(A)]


def test_abs_algorithm_1_all_inputs_blocked_is_waited_for() -> None:
    machine = BarrierAlignment(SUBTASK, (A, B, C))
    assert feed(machine, BarrierTaken(C, ONE), BarrierTaken(A, ONE)) == [BlockChannel(C), BlockChannel(A)]
    assert feed(machine, BarrierTaken(B, ONE)) == [BlockChannel(B), *aligned(ONE, (C, A, B))]


def test_abs_algorithm_1_barrier_from_nil_waits_for_no_input() -> None:
    assert feed(source(), CheckpointTriggered(ONE)) == aligned(ONE, ())


def test_abs_algorithm_1_all_inputs_blocked_none_is_blocked_afterwards() -> None:
    machine = two_inputs()
    feed(machine, BarrierTaken(A, ONE), BarrierTaken(B, ONE))
    assert machine.blocked == ()
    assert machine.waiting_for == ()
    assert feed(machine, BarrierTaken(A, TWO)) == [BlockChannel(A)]


def test_abs_algorithm_1_all_inputs_blocked_broadcasts_the_barrier_then_and_not_before() -> None:
    machine = two_inputs()
    assert ForwardBarrier(ONE) not in feed(machine, BarrierTaken(A, ONE))
    assert feed(machine, BarrierTaken(B, ONE)).count(ForwardBarrier(ONE)) == 1


def test_abs_algorithm_1_all_inputs_blocked_snapshots_between_last_old_and_first_new_message() -> None:
    machine = two_inputs()
    effects = feed(machine, BarrierTaken(A, ONE), BarrierTaken(B, ONE))
    take, forward = effects.index(TakeSnapshot(ONE)), effects.index(ForwardBarrier(ONE))
    assert take < forward < effects.index(UnblockChannel(A)) < effects.index(PersistSnapshot(ONE))


def test_abs_algorithm_1_all_inputs_blocked_unblocks_every_input() -> None:
    machine = BarrierAlignment(SUBTASK, (A, B, C))
    effects = feed(machine, BarrierTaken(A, ONE), BarrierTaken(B, ONE), BarrierTaken(C, ONE))
    assert [effect.channel for effect in effects if isinstance(effect, UnblockChannel)] == [A, B, C]


def test_abs_algorithm_1_message_is_processed_but_one_from_a_blocked_input_waits() -> None:
    machine = two_inputs()
    feed(machine, BarrierTaken(A, ONE))
    assert A in machine.blocked
    assert B not in machine.blocked


# ----------------------------------------------------------------------------------------- the asynchronous part


def test_acknowledges_when_persisted() -> None:
    machine = source()
    feed(machine, CheckpointTriggered(ONE))
    assert feed(machine, SnapshotPersisted(ONE, {"files": []})) == [AcknowledgeCheckpoint(ONE, {"files": []})]


def test_a_second_completion_is_ignored() -> None:
    machine = source()
    feed(machine, CheckpointTriggered(ONE), SnapshotPersisted(ONE, "h"))
    assert feed(machine, SnapshotPersisted(ONE, "h"), SnapshotFailed(ONE, "late")) == []


def test_declines_when_persisting_failed_though_the_barrier_is_gone() -> None:
    machine = source()
    assert ForwardBarrier(ONE) in feed(machine, CheckpointTriggered(ONE))
    assert feed(machine, SnapshotFailed(ONE, "disk full")) == [DeclineCheckpoint(ONE, "disk full")]
    assert feed(machine, SnapshotPersisted(ONE, "h")) == []


def test_several_checkpoints_are_persisted_at_once_and_end_in_any_order() -> None:
    machine = source()
    feed(machine, CheckpointTriggered(ONE), CheckpointTriggered(TWO), CheckpointTriggered(THREE))
    assert feed(machine, SnapshotPersisted(THREE, 3), SnapshotFailed(ONE, "no"), SnapshotPersisted(TWO, 2)) == [
        AcknowledgeCheckpoint(THREE, 3),
        DeclineCheckpoint(ONE, "no"),
        AcknowledgeCheckpoint(TWO, 2),
    ]


def test_too_many_unpersisted_snapshots_decline_the_next_but_let_its_barrier_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(common, "MAX_UNFINISHED", 1)
    machine = BarrierAlignment(SUBTASK, (A,))
    feed(machine, BarrierTaken(A, ONE))
    effects = feed(machine, BarrierTaken(A, TWO))
    assert effects == [
        BlockChannel(A),
        ForwardBarrier(TWO),
        UnblockChannel(A),
        DeclineCheckpoint(TWO, "count+out[1]: 1 older snapshots are not finished"),
    ]
    assert feed(machine, SnapshotPersisted(ONE, 1)) == [AcknowledgeCheckpoint(ONE, 1)]
    assert feed(machine, BarrierTaken(A, THREE)) == [BlockChannel(A), *aligned(THREE, (A,))]


def test_a_snapshot_that_was_never_begun_cannot_end() -> None:
    machine = two_inputs()
    feed(machine, BarrierTaken(A, ONE))
    for event in (SnapshotPersisted(ONE, "h"), SnapshotFailed(TWO, "x")):
        with pytest.raises(InvariantViolation, match="never begun"):
            feed(machine, event)
    assert machine.blocked == (A,)


# ------------------------------------------------------------------------------------------- aborts and overtaking


def test_abort_while_aligning_unblocks_and_forwards_nothing() -> None:
    machine = BarrierAlignment(SUBTASK, (A, B, C))
    feed(machine, BarrierTaken(A, ONE), BarrierTaken(B, ONE))
    assert feed(machine, CheckpointAborted(ONE)) == [UnblockChannel(A), UnblockChannel(B)]
    assert feed(machine, BarrierTaken(C, ONE), CheckpointAborted(ONE)) == []
    assert feed(machine, BarrierTaken(C, TWO)) == [BlockChannel(C)]


def test_abort_before_the_first_barrier_ignores_all_of_them() -> None:
    machine = two_inputs()
    assert feed(machine, CheckpointAborted(ONE), BarrierTaken(A, ONE), BarrierTaken(B, ONE)) == []
    assert feed(machine, BarrierTaken(A, TWO), BarrierTaken(B, TWO))[-1] == PersistSnapshot(TWO)


def test_abort_before_the_trigger_reaches_a_source() -> None:
    machine = source()
    assert feed(machine, CheckpointAborted(ONE), CheckpointTriggered(ONE)) == []
    assert feed(machine, CheckpointTriggered(TWO)) == aligned(TWO, ())


def test_abort_in_the_asynchronous_part_discards_the_result() -> None:
    machine = source()
    feed(machine, CheckpointTriggered(ONE))
    assert feed(machine, CheckpointAborted(ONE)) == []
    assert feed(machine, SnapshotPersisted(ONE, "h")) == [DiscardSnapshot(ONE)]
    feed(machine, CheckpointTriggered(TWO), CheckpointAborted(TWO))
    assert feed(machine, SnapshotFailed(TWO, "x")) == []


def test_abort_after_the_acknowledgement_changes_nothing() -> None:
    machine = source()
    feed(machine, CheckpointTriggered(ONE), SnapshotPersisted(ONE, "h"))
    assert feed(machine, CheckpointAborted(ONE)) == []


def test_a_newer_barrier_supersedes_the_alignment() -> None:
    machine = BarrierAlignment(SUBTASK, (A, B, C))
    feed(machine, BarrierTaken(A, ONE), BarrierTaken(B, ONE))
    assert feed(machine, BarrierTaken(C, TWO)) == [
        DeclineCheckpoint(ONE, "count+out[1]: barrier 2 came while 1 was being aligned"),
        UnblockChannel(A),
        UnblockChannel(B),
        BlockChannel(C),
    ]
    assert feed(machine, BarrierTaken(A, TWO), BarrierTaken(B, TWO)) == [
        BlockChannel(A),
        BlockChannel(B),
        *aligned(TWO, (C, A, B)),
    ]


def test_barriers_of_a_superseded_checkpoint_are_ignored() -> None:
    machine = BarrierAlignment(SUBTASK, (A, B, C))
    feed(machine, BarrierTaken(A, ONE), BarrierTaken(B, TWO))
    assert feed(machine, BarrierTaken(C, ONE)) == []
    assert machine.waiting_for == (TWO,)


def test_the_barrier_of_an_aborted_newer_checkpoint_still_ends_the_older_alignment() -> None:
    """A channel carries rising barriers: once it brought 2 it will never bring 1, aborted or not."""
    machine = two_inputs()
    feed(machine, BarrierTaken(A, ONE), CheckpointAborted(TWO))
    assert feed(machine, BarrierTaken(B, TWO)) == [
        DeclineCheckpoint(ONE, "count+out[1]: barrier 2 came while 1 was being aligned"),
        UnblockChannel(A),
    ]
    assert feed(machine, BarrierTaken(A, TWO)) == []


def test_an_older_checkpoint_does_not_begin_after_the_barrier_of_an_aborted_newer_one() -> None:
    machine = two_inputs()
    assert feed(machine, CheckpointAborted(TWO), BarrierTaken(B, TWO), BarrierTaken(A, ONE)) == []
    assert machine.blocked == ()


def test_an_abort_of_a_newer_checkpoint_leaves_the_running_alignment_alone() -> None:
    machine = two_inputs()
    feed(machine, BarrierTaken(A, ONE), CheckpointAborted(TWO))
    assert feed(machine, BarrierTaken(B, ONE)) == [BlockChannel(B), *aligned(ONE, (A, B))]


def test_a_barrier_on_a_blocked_channel_is_the_peers_fault_and_changes_nothing() -> None:
    machine = two_inputs()
    feed(machine, BarrierTaken(A, ONE))
    for checkpoint in (ONE, TWO):
        with pytest.raises(PeerProtocolError, match="blocks"):
            feed(machine, BarrierTaken(A, checkpoint))
    assert feed(machine, BarrierTaken(B, ONE)) == [BlockChannel(B), *aligned(ONE, (A, B))]


def test_a_late_trigger_of_an_older_checkpoint_is_ignored() -> None:
    machine = source()
    feed(machine, CheckpointTriggered(TWO))
    assert feed(machine, CheckpointTriggered(ONE), CheckpointTriggered(TWO)) == []


def test_a_successor_passes_over_what_was_given_up_before_its_version() -> None:
    before = BarrierAlignment(SUBTASK, (A,))
    feed(before, CheckpointAborted(THREE), BarrierTaken(A, TWO))
    assert before.aborted == (THREE,)
    after = BarrierAlignment(SUBTASK, (A,), aborted=before.aborted)
    for machine in (before, after):
        assert feed(machine, BarrierTaken(A, THREE)) == []
        assert machine.aborted == ()
        assert ForwardBarrier(FOUR) in feed(machine, BarrierTaken(A, FOUR))


def test_remembered_aborts_are_bounded_and_forgetting_never_lets_one_begin() -> None:
    machine = two_inputs()
    last = MAX_REMEMBERED_ABORTS + 10
    assert feed(machine, *(CheckpointAborted(CheckpointId(n)) for n in range(1, last + 1))) == []
    for n in range(1, last + 1):
        assert feed(machine, BarrierTaken(A, CheckpointId(n))) == []
    assert feed(machine, BarrierTaken(A, CheckpointId(last + 1))) == [BlockChannel(A)]
