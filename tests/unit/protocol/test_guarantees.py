"""What the weaker guarantees change in the core: barriers that block nothing, and how far sources have read."""

from __future__ import annotations

import pytest

from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.determinants.determinants import Choice, decode_spans, encode_span
from flinkplus.protocol.determinants.progress import AncestorProgress, KnownProgress, ProgressLog
from flinkplus.protocol.vocabulary.effects import ForwardBarrier, PersistSnapshot, TakeSnapshot
from flinkplus.protocol.vocabulary.events import BarrierTaken, CheckpointAborted
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
ONE, TWO = CheckpointId(1), CheckpointId(2)
SOURCE = SubtaskId("source", 1)


def aligning() -> BarrierAlignment:
    return BarrierAlignment(SubtaskId("count", 0), (A, B), blocking=False)


def test_barriers_are_counted_and_block_nothing() -> None:
    machine = aligning()
    assert machine.step(0, BarrierTaken(A, ONE)) == []
    assert machine.blocked == () and machine.waiting_for == (ONE,)
    assert machine.step(0, BarrierTaken(A, ONE)) == [], "a second one of the same channel, of a successor"
    assert machine.step(0, BarrierTaken(B, ONE)) == [TakeSnapshot(ONE), ForwardBarrier(ONE), PersistSnapshot(ONE)]
    assert machine.step(0, BarrierTaken(A, ONE)) == [], "and one that comes late"


def test_a_newer_barrier_on_a_channel_that_had_its_own_already() -> None:
    machine = aligning()
    machine.step(0, BarrierTaken(A, ONE))
    (declined,) = machine.step(0, BarrierTaken(A, TWO))
    assert type(declined).__name__ == "DeclineCheckpoint" and machine.waiting_for == (TWO,)


def test_an_aborted_checkpoint_unblocks_nothing() -> None:
    machine = aligning()
    machine.step(0, BarrierTaken(A, ONE))
    assert machine.step(0, CheckpointAborted(ONE)) == []
    assert machine.waiting_for == ()


def test_a_source_tells_how_far_it_has_read() -> None:
    log = ProgressLog(100)
    log.begin(Choice.READ, 7)
    assert log.since(100) == b"", "nothing is read yet"
    log.rows += 5
    assert decode_spans(log.since(100)) == ((105, ()), ())
    log.clear()
    assert log.next_step == 105


def test_what_is_passed_on_is_the_highest_number_of_each_source() -> None:
    log = AncestorProgress()
    log.take(1, 5, ())
    log.take(2, 3, ())
    log.take(1, 4, ())
    told = log.end
    log.take(1, 9, ())
    assert decode_spans(encode_span(0, ()) + log.since(0))[1] == ((1, 9, ()), (2, 3, ()))
    assert decode_spans(encode_span(0, ()) + log.since(told))[1] == ((1, 9, ()),)
    assert decode_spans(encode_span(0, ()) + log.since(log.end, name_all=True))[1] == ((1, 9, ()), (2, 3, ()))


def test_what_is_known_is_the_highest_number_whatever_was_lost_in_between() -> None:
    known = KnownProgress()
    assert known.of(SOURCE) is None
    known.learn(SOURCE, 40, ())
    known.learn(SOURCE, 12, ())
    known.barrier(ONE, SOURCE, 40)
    known.complete(ONE)
    assert known.of(SOURCE) == (40, ()) and known.subtasks() == (SOURCE,)


@pytest.mark.parametrize(
    ("guarantee", "repeats", "replays", "aligns"),
    [("exactly-once", True, True, True), ("at-least-once", False, True, False), ("at-most-once", False, False, True)],
)
def test_what_they_need(guarantee: str, repeats: bool, replays: bool, aligns: bool) -> None:
    found = Guarantee(guarantee)
    assert (found.repeats, found.replays, found.aligns) == (repeats, replays, aligns)
