"""What a subtask without outputs takes at a time: small messages of records, and nobody's watermark waits for ever."""

from __future__ import annotations

from flinkplus.protocol.channels.inputs import MERGED_MESSAGE_BYTES, InputGate
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

ONE, TWO = ChannelId(0, 0, 0), ChannelId(0, 1, 0)


def gate_of(**kinds: list[MessageKind]) -> InputGate:
    """Two channels, ``one`` and ``two``, with messages of these kinds waiting."""
    gate = InputGate(1_000, lambda end, consumed: None)
    for channel, name in ((ONE, "one"), (TWO, "two")):
        gate.add(channel, SubtaskId("source", channel.producer), None, Generation(1), 0, ended=False)
        for seq, kind in enumerate(kinds[name]):
            message = Message(kind, channel, Generation(1), Seq(seq), CheckpointId(0))
            gate.channels[channel].queue.append((message, None))
    return gate


def taken(gate: InputGate) -> list[tuple[int, MessageKind]]:
    """One turn: many messages of records, or the next message of another kind."""
    many = gate.take_records(256)
    if many:
        return [(message.channel.producer, message.kind) for _, message, _ in many]
    end = gate.next()
    if end is None:
        return []
    message, _ = end.queue.popleft()
    return [(message.channel.producer, message.kind)]


def test_a_watermark_stops_its_channel_only() -> None:
    records, mark = MessageKind.RECORDS, MessageKind.WATERMARK
    gate = gate_of(one=[records, mark, records], two=[records, records])
    assert taken(gate) == [(0, records), (1, records), (1, records)]
    assert taken(gate) == [(0, mark)]
    assert taken(gate) == [(0, records)]
    assert taken(gate) == []


def test_a_watermark_has_its_turn_while_the_other_channel_never_runs_dry() -> None:
    records, mark = MessageKind.RECORDS, MessageKind.WATERMARK
    gate = gate_of(one=[mark, mark, mark], two=[])
    turns = []
    for _ in range(6):
        message = Message(records, TWO, Generation(1), Seq(0), CheckpointId(0))
        gate.channels[TWO].queue.append((message, None))
        turns += taken(gate)
    assert turns.count((0, mark)) == 3


def test_a_blocked_channel_keeps_its_watermark() -> None:
    gate = gate_of(one=[MessageKind.WATERMARK], two=[MessageKind.RECORDS, MessageKind.WATERMARK])
    gate.channels[ONE].blocked = True
    assert taken(gate) == [(1, MessageKind.RECORDS)]
    assert taken(gate) == [(1, MessageKind.WATERMARK)]
    assert taken(gate) == []
    gate.channels[ONE].blocked = False
    assert taken(gate) == [(0, MessageKind.WATERMARK)]


def test_of_one_channel_small_messages_of_records_are_taken_together_up_to_a_window() -> None:
    gate = InputGate(3, lambda end, consumed: None)
    gate.add(ONE, SubtaskId("source", 0), None, Generation(1), 0, ended=False)
    end = gate.channels[ONE]

    def ahead(*waiting: Message) -> int:
        end.queue.clear()
        end.queue.extend((message, None) for message in waiting)
        return gate.records_ahead(end)

    small = Message(MessageKind.RECORDS, ONE, Generation(1), Seq(0), CheckpointId(0), size=100)
    barrier, large = small._replace(kind=MessageKind.BARRIER), small._replace(size=MERGED_MESSAGE_BYTES + 1)
    assert ahead() == ahead(barrier, small) == ahead(large, small) == 0
    assert ahead(small) == ahead(small, barrier, small) == ahead(small, large) == 1
    assert ahead(small, small, small, small) == 3


def test_what_is_put_back_comes_first_and_moves_no_cursor() -> None:
    granted: list[int] = []
    gate = InputGate(2, lambda end, consumed: granted.append(consumed))
    logged = [Message(MessageKind.RECORDS, ONE, Generation(1), Seq(seq), CheckpointId(0)) for seq in (3, 4, 5)]
    gate.add(ONE, SubtaskId("source", 0), None, Generation(2), 6, False, in_flight=[(one, None) for one in logged])
    end = gate.channels[ONE]
    end.cursor.accept(Generation(2), Seq(6))
    end.queue.append((logged[0]._replace(seq=Seq(6), generation=Generation(2)), None))
    assert [message.seq for message, _ in end.queue] == [3, 4, 5, 6]
    gate.consumed(end, 2)
    assert gate.cursors() == {str(ONE): 6}
    gate.consumed(end, 2)
    assert gate.cursors() == {str(ONE): 7}
    assert end.put_back == 0
    assert granted == [7]
