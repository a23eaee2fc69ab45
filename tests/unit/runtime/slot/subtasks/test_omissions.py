"""What is left out on purpose is left out, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.filter import MessageFilter
from flinkplus.errors import InvariantViolation, MessageIdConflict, NondeterministicOperator
from flinkplus.protocol.channels.channel import ACCEPT, DUPLICATE, STALE, Gap, InputCursor, Window
from flinkplus.protocol.channels.inputs import InputChannel, InputGate
from flinkplus.protocol.determinants.determinants import Choice, InputPart, pack
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.faults.points import CURSOR, DETERMINANTS, DIGESTS, FILTER, SUPPRESSION
from flinkplus.runtime.slot.subtasks.ablation import PartialAdmission, UnboundReplay, UncheckedCursor, without
from tests.memory_store import MemoryStore

CHANNEL, NOW = ChannelId(0, 0, 0), Generation(2)


class Consumer:
    """One channel that starts at message 10, of a job that lacks parts."""

    def __init__(self, *omitted: str) -> None:
        make = UncheckedCursor if CURSOR in omitted else InputCursor
        self.end = InputChannel(CHANNEL, SubtaskId("a", 0), None, make(CHANNEL, NOW, Window(100), Seq(10)))
        self.seen: MessageFilter | None = None
        if not {FILTER, DIGESTS} <= set(omitted):
            self.seen = MessageFilter(MemoryStore(), 1)
            self.seen.begin(CHANNEL, 10)
        self.admission = PartialAdmission(SubtaskId("b", 0), self.seen, lambda _, payload: payload, omitted)

    def receive(self, seq: int, digest: int = 1, generation: int = NOW) -> Any:
        message = Message(MessageKind.RECORDS, CHANNEL, Generation(generation), Seq(seq), CheckpointId(0))
        return self.admission.admit(self.end, message, digest)

    def receive_all(self, *seqs: int) -> list[Any]:
        return [self.receive(seq) for seq in seqs]


@pytest.mark.parametrize("omitted", [(DETERMINANTS,), (DIGESTS,), (FILTER,), (CURSOR,), (FILTER, DIGESTS)])
def test_the_filter_or_the_cursor_alone_drops_duplicates(omitted: tuple[str, ...]) -> None:
    consumer = Consumer(*omitted)
    assert consumer.receive_all(10, 11, 9, 10, 12) == [ACCEPT, ACCEPT, DUPLICATE, DUPLICATE, ACCEPT]
    assert consumer.receive(13, generation=1) == STALE
    assert consumer.end.cursor.expected == 13
    consumer.end.cursor.consume(3)
    assert consumer.end.cursor.consumed == 13


def test_without_both_duplicates_are_taken() -> None:
    consumer = Consumer(FILTER, CURSOR)
    assert consumer.receive_all(10, 11, 9, 10, 12) == [ACCEPT] * 5
    assert consumer.receive(13, generation=1) == STALE
    cursor, consumed = consumer.end.cursor, []
    assert cursor.expected == 13
    for _ in range(5):
        cursor.consume()
        consumed.append(cursor.consumed)
    assert consumed == [11, 12, 12, 12, 13], "credit and snapshots name messages of the channel"
    with pytest.raises((InvariantViolation, IndexError)):
        cursor.consume()


def test_without_the_cursor_gaps_are_taken() -> None:
    assert Consumer(FILTER).receive(12) == Gap(Seq(10))
    consumer = Consumer(CURSOR)
    assert consumer.receive_all(12, 10, 12) == [ACCEPT, ACCEPT, DUPLICATE]
    assert consumer.end.cursor.expected == 13
    consumer.end.cursor.consume(2)
    assert consumer.end.cursor.consumed == 13


def test_without_either_they_cannot_disagree() -> None:
    for omitted, found in (((), None), ((FILTER,), ACCEPT), ((CURSOR,), DUPLICATE)):
        consumer = Consumer(*omitted)
        assert consumer.seen is not None
        consumer.seen.begin(CHANNEL, 12)
        if found is None:
            with pytest.raises(MessageIdConflict):
                consumer.receive(10)
        else:
            assert consumer.receive(10) == found


def test_without_digests_a_duplicate_may_be_another_message() -> None:
    for omitted in ((), (FILTER,), (CURSOR,), (FILTER, CURSOR), (DIGESTS,)):
        consumer = Consumer(*omitted)
        consumer.receive(10, digest=1)
        if DIGESTS in omitted:
            assert consumer.receive(10, digest=2) == DUPLICATE
        else:
            with pytest.raises(NondeterministicOperator):
                consumer.receive(10, digest=2)


def test_a_promotion_without_a_part_knows_all_the_rest() -> None:
    had = {"0:0>1": {8: 123}}
    promotion = Promotion({"0:0>1": 7}, (3, 11), {}, {"0:0>1": 9}, frozenset(), None, had)
    assert without([DIGESTS], promotion) == Promotion({"0:0>1": 7}, (3, 11), {}, {"0:0>1": 9}, frozenset(), None, None)
    assert without([SUPPRESSION], promotion) == Promotion({}, (3, 11), {}, {"0:0>1": 9}, frozenset(), None, had)
    assert without([DETERMINANTS, FILTER, CURSOR], promotion) == promotion
    assert without([SUPPRESSION], None) is None


def test_without_bundles_a_step_is_repeated_with_what_waits_and_all_else_as_it_was() -> None:
    gate = InputGate(Window(100), lambda end, consumed: None, bundle_rows=100)
    channels = [ChannelId(0, producer, 0) for producer in range(3)]
    for channel in channels:
        gate.add(channel, SubtaskId("a", channel.producer), 1, NOW, 0, False)
    one, two, last = (InputPart(0, 1, more=True), InputPart(2, 1, more=False), InputPart(1, 1, more=False))
    taken = [pack(Choice.INPUT, part.value(3)) for part in (one, two, last)]
    told = Promotion({}, (*taken[:2], pack(Choice.ABORT, 7), taken[2]), {}, {}, frozenset(), None, {})
    replay = UnboundReplay(told, True, gate)
    assert replay.next_bundle(3) == [one, two], "nothing waits"
    for position, seq in ((1, 0), (2, 0), (2, 1)):
        message = Message(MessageKind.RECORDS, channels[position], NOW, Seq(seq), CheckpointId(0), rows=1)
        gate.put(gate.channels[channels[position]], message, None)
    chosen = replay.next_bundle(3)
    assert sorted((part.position, part.messages) for part in chosen) == [(1, 1), (2, 2)]
    assert replay.take_bundle() == chosen
    assert not replay.next_bundle(3), "an abort is not chosen"
    replay.determinants.popleft()
    assert replay.active and len(replay.next_bundle(3)) == 2
    replay.take_bundle()
    assert not replay.active
