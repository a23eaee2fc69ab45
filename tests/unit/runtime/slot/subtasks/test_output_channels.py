"""The producer's end of a channel: what is trimmed, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flinkplus.errors import InvariantViolation, NondeterministicOperator
from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.runtime.slot.subtasks.output_gate import OutputChannel, OutputGate, Peer
from flinkplus.runtime.transport.wire.message_format import Message
from upstream_cache.log import OutputLog
from upstream_cache.retention import Retention

CHANNEL = ChannelId(0, 0, 1)


def channel(sent: int) -> OutputChannel:
    """With standbys, to slot 1; ``sent`` messages were sent of ten."""
    log: OutputLog[Any] = OutputLog(CHANNEL, 16, 1 << 20)
    for seq in range(10):
        log.append((seq, None), 100)
    end = OutputChannel(CHANNEL, 1, Window(16), log, sent, Generation(1), retain=True)
    while log.next_to_send(end.limit) is not None:
        pass
    return end


def test_what_is_consumed_is_kept_until_it_is_trimmed() -> None:
    end = channel(sent=8)
    end.credit(1, 6, 1)
    assert (end.log.acknowledged, end.log.trimmed) == (6, 0)
    end.trim(4)
    assert (end.log.acknowledged, end.log.trimmed) == (6, 4)


def test_trimming_does_not_wait_for_credit() -> None:
    """A few large messages may fill the memory, and be fewer than what credit is granted for at once."""
    end = channel(sent=8)
    end.trim(7)
    assert (end.log.acknowledged, end.log.trimmed) == (7, 7)
    end.credit(1, 6, 1)
    assert (end.log.acknowledged, end.log.trimmed) == (7, 7)


def test_what_a_consumer_is_sent_again_is_trimmed_when_it_was_sent() -> None:
    end = channel(sent=8)
    end.fence(Generation(2))
    end.credit(2, 2, 0)
    end.trim(7)
    assert (end.log.sent, end.log.trimmed) == (2, 2)
    while end.log.next_to_send(end.limit) is not None:
        pass
    end.credit(2, 8, 0)
    assert end.log.trimmed == 7


def test_what_the_version_of_a_new_consumer_contains_is_made_again_and_not_sent() -> None:
    """The producer was promoted, and repeats; its consumer had eight messages, and fails before they are made again."""
    log: OutputLog[Any] = OutputLog(CHANNEL, 16, 1 << 20, received=8)
    end = OutputChannel(CHANNEL, 1, Window(16), log, 8, Generation(1), retain=True)
    for seq in range(3):
        log.append((seq, None), 100)
    end.fence(Generation(2))
    end.credit(2, 6, 0)
    for seq in range(3, 8):
        log.append((seq, None), 100)
    assert [message for _, (message, _) in log.take_to_send(end.limit, 10, 1 << 20)] == [6, 7]
    assert log.trimmed == 0


def test_a_new_stream_changes_nothing_of_what_a_consumer_had_of_a_predecessor() -> None:
    """The producer was promoted, and repeats; the stream breaks, and its consumer fails before all is made again."""
    log: OutputLog[Any] = OutputLog(CHANNEL, 16, 1 << 20, received=8)
    end = OutputChannel(CHANNEL, 1, Window(16), log, 8, Generation(1), retain=True)
    for seq in range(3):
        log.append((seq, None), 100)
    end.reconnect()
    end.fence(Generation(2))
    for seq in range(3, 9):
        log.append((seq, None), 100)
    assert log.sent == 8
    end.credit(2, 6, 0)
    assert [message for _, (message, _) in log.take_to_send(end.limit, 10, 1 << 20)] == [6, 7, 8]


def test_what_was_sent_over_a_stream_that_broke_is_sent_again() -> None:
    end = channel(sent=8)
    end.credit(1, 6, 1)
    end.reconnect()
    assert (end.log.sent, end.log.acknowledged) == (6, 6)


def test_nobody_begins_beyond_what_was_ever_sent_to_its_predecessor() -> None:
    end = channel(sent=8)
    end.fence(Generation(2))
    with pytest.raises(ValueError, match="cannot rewind to 9"):
        end.credit(2, 9, 0)


def promoted(had_ms: int) -> OutputGate:
    """Of a producer that makes again what a consumer in the same slot has had: one watermark."""

    def digest(message: Message, payload: Any) -> int:
        return message.watermark_ms

    def send(slot: int, buffers: list[Any]) -> None:
        raise AssertionError("nothing goes to another slot")

    gate = OutputGate(Generation(2), Window(16), 100, send, lambda message, payload: None, digest=digest)
    gate.add_channels(0, 0, [Peer(None, Generation(1), received=1, had={0: had_ms})], {})
    return gate


def test_a_watermark_that_is_made_again_is_compared() -> None:
    gate = promoted(had_ms=700)
    gate.append_watermark(0, 700)
    gate.check_remade()
    gate.append_watermark(0, 800)  # beyond what anybody has had
    with pytest.raises(NondeterministicOperator, match=r"message 0 of channel 0:0->0 differs when it is regenerated"):
        promoted(had_ms=700).append_watermark(0, 600)
    with pytest.raises(NondeterministicOperator, match=r"0 messages were regenerated, but its consumer had received 1"):
        promoted(had_ms=700).check_remade()


def test_what_nobody_can_tell_the_content_of_is_not_made_again() -> None:
    """A digest is missing: a difference would not be found, so the producer cannot be promoted."""
    end = channel(sent=8)
    end.expect(3, 5, {2: 7, 3: 8, 4: 9, 5: 10})
    assert (end.had, end.had_to) == ({3: 8, 4: 9}, 5)
    end.expect(5, 5, {})
    assert end.had == {}
    with pytest.raises(InvariantViolation, match="a digest is missing for a message"):
        end.expect(3, 6, {3: 8, 5: 10})


def test_without_standbys_only_what_waits_on_a_back_edge_goes_to_disk(tmp_path: Path) -> None:
    retention: Retention[Any] = Retention(tmp_path / "spill", MessageCodec(), 0)
    gate = OutputGate(Generation(1), Window(2), 100, lambda slot, frame: None, lambda message, payload: None, retention)
    gate.add_channels(0, 0, [Peer(1, Generation(1))], {})
    gate.add_channels(1, 0, [Peer(1, Generation(1))], {}, is_back=True)
    for round_number in range(40):
        gate.append_round(1, round_number)
    end = gate.channels[ChannelId(1, 0, 0)]
    assert gate.accepts
    assert (end.log.sent, end.log.appended) == (2, 40)
    gate.append_watermark(0, 5)
    assert retention.memory_bytes == 0
    end.credit(1, 2, 1)
    assert end.log.trimmed == 2  # what is consumed is not kept
    gate.release()
    retention.close()
