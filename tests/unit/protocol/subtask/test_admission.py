"""Which messages a subtask takes: the filter decides, the cursor must agree, duplicates must be the same."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.filter import MessageFilter
from flinkplus.errors import MessageIdConflict, NondeterministicOperator, PeerProtocolError
from flinkplus.protocol.channels.channel import ACCEPT, DUPLICATE, STALE, Gap, InputCursor, Window
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.subtask.admission import Admission
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from tests.memory_store import MemoryStore

CHANNEL = ChannelId(2, 0, 1)
CONSUMER, PRODUCER = SubtaskId("count", 1), SubtaskId("lines", 0)


def message(seq: int, epoch: int = 0, generation: int = 1) -> Message:
    return Message(MessageKind.RECORDS, CHANNEL, Generation(generation), Seq(seq), CheckpointId(epoch))


class Consumer:
    """One channel of a consumer that starts at message ``first``."""

    def __init__(self, first: int = 0, filtered: bool = True) -> None:
        self.store = MemoryStore()
        self.seen = MessageFilter(self.store, 1)
        self.seen.begin(CHANNEL, first)
        cursor = InputCursor(CHANNEL, Generation(1), Window(1_000), Seq(first))
        self.end = InputChannel(CHANNEL, PRODUCER, None, cursor)
        self.admission = Admission(CONSUMER, self.seen if filtered else None, lambda _, payload: payload)

    def receive(self, seq: int, epoch: int = 0, digest: int = 7, generation: int = 1) -> Any:
        return self.admission.admit(self.end, message(seq, epoch, generation), digest)


@pytest.mark.parametrize("filtered", [True, False])
def test_new_ones_are_taken_once_and_gaps_never(filtered: bool) -> None:
    consumer = Consumer(3, filtered)
    taken = [consumer.receive(seq) for seq in (3, 4, 3, 6, 5, 2, 6, 0)]
    assert taken == [ACCEPT, ACCEPT, DUPLICATE, Gap(Seq(5)), ACCEPT, DUPLICATE, ACCEPT, DUPLICATE]
    assert consumer.receive(7, generation=0) == STALE
    with pytest.raises(PeerProtocolError, match="reached generation 1"):
        consumer.receive(7, generation=2)
    assert consumer.end.cursor.expected == 7


def test_what_is_dropped_unasked_leaves_no_trace_in_the_filter() -> None:
    consumer = Consumer()
    consumer.receive(5), consumer.receive(0, generation=0)
    assert consumer.seen.counts.asked == 0


def test_a_duplicate_must_be_the_same_as_long_as_its_digest_is_known() -> None:
    consumer = Consumer()
    for epoch, seq in ((0, 0), (0, 1), (1, 2)):
        assert consumer.receive(seq, epoch) == ACCEPT
    with pytest.raises(
        NondeterministicOperator, match=r"lines\[0\] resent message 1 of channel 2:0->1 with another content"
    ):
        consumer.receive(1, 0, digest=8)
    consumer.seen.drop(1)
    assert consumer.receive(1, 0, digest=8) == DUPLICATE, "old by its number"
    with pytest.raises(NondeterministicOperator):
        consumer.receive(2, 1, digest=8)


def test_the_filter_forgets() -> None:
    """What left its memory is lost: a duplicate is new to it."""
    consumer = Consumer()
    for epoch, seq in ((0, 0), (1, 1)):
        consumer.receive(seq, epoch)
    consumer.store.delete(list(consumer.store._content))
    with pytest.raises(
        MessageIdConflict,
        match=r"count\[1\]: message 0 of channel 2:0->1, epoch 0, is new to the filter of message IDs, and the cursor "
        r"of the channel has passed it",
    ):
        consumer.receive(0, 0)


def test_the_filter_keeps_too_long() -> None:
    """It is a predecessor's, which had received more than the version holds."""
    consumer = Consumer()
    for seq in range(5):
        consumer.receive(seq)
    consumer.end.cursor = InputCursor(CHANNEL, Generation(1), Window(1_000), Seq(3))
    with pytest.raises(MessageIdConflict, match=r"message 3 .* is known to the filter, and the cursor .* expects it"):
        consumer.receive(3)


@pytest.mark.parametrize(("of_filter", "seq"), [(2, 2), (4, 3)])
def test_the_filter_is_of_another_version(of_filter: int, seq: int) -> None:
    consumer = Consumer(3)
    consumer.seen.begin(CHANNEL, of_filter)
    with pytest.raises(MessageIdConflict):
        consumer.receive(seq)


@pytest.mark.parametrize("jump", [-1, 1])
def test_the_cursor_jumps(jump: int) -> None:
    consumer = Consumer()
    for seq in range(5):
        consumer.receive(seq)
    consumer.end.cursor._received = Seq(5 + jump)
    with pytest.raises(MessageIdConflict):
        consumer.receive(4 if jump < 0 else 5)


def test_a_message_that_comes_again_in_another_epoch_is_not_the_same() -> None:
    consumer = Consumer()
    consumer.receive(0, 0), consumer.receive(1, 1)
    with pytest.raises(MessageIdConflict, match="message 1 of channel 2:0->1, epoch 0"):
        consumer.receive(1, 0)
