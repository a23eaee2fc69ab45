"""What a step takes: bundles of records, bundles of watermarks, one message of any other kind."""

from __future__ import annotations

from itertools import product

from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.channels.inputs import MAX_BUNDLE_BYTES, InputGate
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

ONE, TWO = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
RECORDS, MARK, BARRIER = MessageKind.RECORDS, MessageKind.WATERMARK, MessageKind.BARRIER


def gate_of(*, window: int = 1_000, bundle_rows: int = 1_000, **kinds: list[MessageKind]) -> InputGate:
    """Two channels, ``one`` and ``two``, with messages of these kinds waiting, ten rows in each of records."""
    gate = InputGate(Window(window), lambda end, consumed: None, bundle_rows=bundle_rows)
    for channel, name in ((ONE, "one"), (TWO, "two")):
        gate.add(channel, SubtaskId("source", channel.producer), None, Generation(1), 0, ended=False)
        for seq, kind in enumerate(kinds.get(name, ())):
            put(gate, channel, kind, seq=seq)
    return gate


def put(gate: InputGate, channel: ChannelId, kind: MessageKind, *, seq: int = 0, size: int = 0) -> None:
    rows = 10 if kind is RECORDS else 0
    message = Message(kind, channel, Generation(1), Seq(seq), CheckpointId(0), size=size, rows=rows)
    gate.put(gate.channels[channel], message, None)


def may_wait(gate: InputGate) -> bool:
    return gate.may_wait


def taken(gate: InputGate) -> list[tuple[int, MessageKind]]:
    """One step: producer and kind of each message that it takes."""
    return [(message.channel.producer, message.kind) for _, message, _ in gate.take(gate.next())]


def test_a_bundle_has_the_records_of_all_channels_up_to_the_next_message_of_another_kind() -> None:
    gate = gate_of(one=[RECORDS, RECORDS, BARRIER, RECORDS], two=[RECORDS, MARK, RECORDS])
    assert sorted(taken(gate)) == [(0, RECORDS), (0, RECORDS), (1, RECORDS)]
    assert [taken(gate) for _ in range(5)] == [[(1, MARK)], [(1, RECORDS)], [(0, BARRIER)], [(0, RECORDS)], []]


def test_the_watermarks_of_all_channels_are_one_bundle_and_barriers_are_not() -> None:
    gate = gate_of(one=[MARK, MARK, BARRIER], two=[MARK, BARRIER])
    assert sorted(taken(gate)) == [(0, MARK), (0, MARK), (1, MARK)]
    assert len(taken(gate)) == len(taken(gate)) == 1
    assert taken(gate) == []


def test_a_bundle_has_so_many_rows_at_most_and_one_message_at_least() -> None:
    assert len(taken(gate_of(one=[RECORDS] * 5, bundle_rows=30))) == 3
    assert len(taken(gate_of(one=[RECORDS] * 5, bundle_rows=29))) == 2
    assert len(taken(gate_of(one=[RECORDS] * 2, two=[RECORDS] * 2, bundle_rows=31))) == 3
    assert len(taken(gate_of(one=[RECORDS] * 2, two=[RECORDS] * 2, bundle_rows=1))) == 1


def test_a_bundle_has_so_many_bytes_at_most_and_one_message_at_least() -> None:
    gate = gate_of()
    for size in (MAX_BUNDLE_BYTES + 1, 100, MAX_BUNDLE_BYTES - 100, 1):
        put(gate, ONE, RECORDS, size=size)
    assert [len(taken(gate)) for _ in range(3)] == [1, 2, 1]


def test_of_one_channel_a_bundle_has_a_window_at_most() -> None:
    gate = gate_of(one=[RECORDS] * 5, two=[RECORDS] * 2, window=3)
    assert len(taken(gate)) == 5
    assert len(taken(gate)) == 2


def test_a_bundle_of_one_channel_can_always_be_sent_again() -> None:
    """The producer has no report of the messages before it, as far as the consumer need not report them, and none of
    the bundle."""
    for messages, size_bytes, size in product((1, 2, 3, 4, 9), (1, 2, 3, 150, 151), (1, 40, 75, 76, 200)):
        gate = InputGate(Window(messages, size_bytes), lambda end, consumed: None, bundle_rows=1_000)
        gate.add(ONE, SubtaskId("source", 0), None, Generation(1), 0, ended=False, in_flight=())
        for seq in range(20):
            put(gate, ONE, RECORDS, seq=seq, size=size)
        count = len(taken(gate))
        unreported, unreported_bytes = max(1, messages // 2) - 1, max(1, size_bytes // 2) - 1
        assert count >= 1 and count + unreported <= messages
        assert count == 1 or (count - 1) * size + unreported_bytes < size_bytes


def test_a_full_bundle_does_not_always_begin_with_the_same_channel() -> None:
    gate = gate_of(one=[RECORDS] * 3, two=[RECORDS] * 3, bundle_rows=10)
    assert [taken(gate)[0][0] for _ in range(4)] == [0, 1, 0, 1]


def test_neither_watermarks_nor_records_wait_for_the_others_to_run_dry() -> None:
    for endless, other in ((RECORDS, MARK), (MARK, RECORDS)):
        gate = gate_of(one=[other, endless, other, endless, other])
        turns = []
        for _ in range(10):
            put(gate, TWO, endless)
            turns += taken(gate)
        assert turns.count((0, other)) == 3


def test_a_barrier_does_not_wait_for_a_channel_that_always_has_watermarks() -> None:
    gate = gate_of(one=[MARK], two=[BARRIER])
    turns = []
    for _ in range(4):
        turns += taken(gate)
        put(gate, ONE, MARK)
    assert (1, BARRIER) in turns[:3]


def test_a_blocked_channel_keeps_what_it_has() -> None:
    gate = gate_of(one=[MARK], two=[RECORDS, MARK])
    gate.channels[ONE].blocked = True
    assert taken(gate) == [(1, RECORDS)]
    assert taken(gate) == [(1, MARK)]
    assert taken(gate) == []
    gate.channels[ONE].blocked = False
    assert taken(gate) == [(0, MARK)]


def test_what_is_put_back_comes_first_and_moves_no_cursor() -> None:
    granted: list[int] = []
    gate = InputGate(Window(2), lambda end, consumed: granted.append(consumed))
    logged = [Message(MessageKind.RECORDS, ONE, Generation(1), Seq(seq), CheckpointId(0)) for seq in (3, 4, 5)]
    gate.add(ONE, SubtaskId("source", 0), None, Generation(2), 6, False, in_flight=[(one, None) for one in logged])
    end = gate.channels[ONE]
    end.cursor.accept(Generation(2), Seq(6))
    gate.put(end, logged[0]._replace(seq=Seq(6), generation=Generation(2)), None)
    assert [message.seq for message, _ in end.queue] == [3, 4, 5, 6]
    gate.consumed(end, 2)
    assert gate.cursors() == {str(ONE): 6}
    gate.consumed(end, 2)
    assert gate.cursors() == {str(ONE): 7}
    assert end.put_back == 0
    assert granted == [7]


def test_a_small_bundle_may_wait_unless_something_urgent_waits_with_it_or_a_producer_soon_has_to() -> None:
    assert gate_of(one=[RECORDS, MARK], two=[], bundle_rows=100).may_wait
    assert not gate_of(one=[RECORDS] * 5, two=[], bundle_rows=100).may_wait
    assert not gate_of(one=[RECORDS, BARRIER], two=[], bundle_rows=100).may_wait
    assert gate_of(one=[RECORDS], two=[], window=4).may_wait
    assert not gate_of(one=[RECORDS] * 2, two=[], window=4).may_wait
    gate = gate_of(one=[RECORDS] * 2, two=[RECORDS], window=4)
    taken(gate)
    assert gate.may_wait


def test_a_bundle_waits_for_a_channel_that_is_empty_and_for_none_that_has_ended() -> None:
    gate = gate_of(one=[], two=[], bundle_rows=100)
    put(gate, ONE, RECORDS)
    assert may_wait(gate)
    put(gate, TWO, RECORDS)
    assert not may_wait(gate), "each channel has something"
    assert taken(gate) == [(0, RECORDS), (1, RECORDS)]
    put(gate, TWO, MARK)
    put(gate, TWO, RECORDS)
    assert may_wait(gate)
    gate.mark_ended(gate.channels[ONE])
    assert not may_wait(gate)
    while gate.next():
        taken(gate)
    put(gate, ONE, RECORDS)
    assert may_wait(gate), "what is sent again on a channel that has ended does not count"
    gate.mark_ended(gate.channels[TWO])
    assert not may_wait(gate)


def test_half_a_window_of_bytes_does_not_wait() -> None:
    gate = InputGate(Window(1_000, 100), lambda end, consumed: None, bundle_rows=1_000)
    for channel in (ONE, TWO):
        gate.add(channel, SubtaskId("source", channel.producer), None, Generation(1), 0, ended=False)
    put(gate, ONE, RECORDS, size=49)
    assert gate.may_wait
    put(gate, ONE, RECORDS, size=1)
    assert not gate.may_wait
