"""Frames hold whole messages, whatever waits, however the stream cuts them, over either transport."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.transport.wire import message_format
from flinkplus.runtime.transport.wire.frames import JOINED_BYTES, LENGTH, FrameQueue, FrameReader
from flinkplus.runtime.transport.wire.message_format import HEADER_BYTES, Message, MessageKind, decode_frame, encode
from flinkplus.runtime.transport.wire.ports import FrameArrived, PeerAttached, PeerConnected
from tests.unit.runtime.transport.test_control_planes import Cluster

CHANNEL = ChannelId(1, 0, 1)


def message(
    seq: int, payload: int, determinants: int, kind: MessageKind = MessageKind.RECORDS
) -> tuple[Message, list[Any]]:
    """A message as it is queued and as it is to come out; ``payload`` and ``determinants``: bytes."""
    sent = Message(kind, CHANNEL, Generation(1), Seq(seq), CheckpointId(3), determinants=b"d" * determinants)
    body = bytes([seq % 251]) * payload if kind is MessageKind.RECORDS else b""
    return sent._replace(size=len(body)), encode(sent, body)


kinds = st.sampled_from(
    [MessageKind.RECORDS, MessageKind.RECORDS, MessageKind.BARRIER, MessageKind.CREDIT, MessageKind.END_OF_INPUT]
)
drawn = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 120), kinds), max_size=60)


@example([(58, 0, MessageKind.RECORDS)] * 3, 100, [1], [])
@given(drawn, st.integers(0, 1_000), st.lists(st.integers(1, 300), min_size=1), st.lists(st.integers(0, 60)))
def test_any_queue_comes_out_as_frames_of_whole_messages(
    sizes: list[tuple[int, int, MessageKind]], joined_bytes: int, pieces: list[int], taken_after: list[int]
) -> None:
    """Some frames are taken while messages are still put in; the stream is cut into ``pieces``."""
    queue, stream = FrameQueue(joined_bytes), bytearray()
    sent = [message(seq, *size) for seq, size in enumerate(sizes)]
    for seq, (_, buffers) in enumerate(sent):
        queue.put(buffers)
        if seq in taken_after:
            stream += queue.next_frame(with_length=True)
    while queue:
        stream += queue.next_frame(with_length=True)
    reader, found, cut = FrameReader(), [], deque(pieces)
    at = 0
    while at < len(stream):
        cut.rotate(-1)
        room = reader.long_frame
        piece = stream[at : at + (cut[0] if room is None else min(cut[0], len(room)))]
        at += len(piece)
        if room is None:
            frames = [bytes(frame) for frame in reader.frames(piece)]
        else:
            room[: len(piece)] = piece
            whole = reader.received(len(piece))
            frames = [] if whole is None else [bytes(whole)]
        for frame in frames:
            messages = [(decoded, bytes(payload)) for decoded, payload in decode_frame(frame)]
            assert len(messages) == 1 or len(frame) <= joined_bytes, "only one message may be over the soft limit"
            found += messages
    assert [decoded for decoded, _ in found] == [expected for expected, _ in sent]
    assert all(payload == bytes([decoded.seq % 251]) * decoded.size for decoded, payload in found)


def test_frames_are_filled_up_to_the_soft_limit() -> None:
    """Rows of a constant size, as many as fit; the fault was found with these."""
    queue = FrameQueue()
    whole = HEADER_BYTES + 10 + 1_000
    for seq in range(2 * (JOINED_BYTES // whole)):
        queue.put(message(seq, 1_000, 10)[1])
    sizes = []
    while queue:
        sizes.append(LENGTH.unpack_from(queue.next_frame(with_length=True))[0])
    assert JOINED_BYTES - whole < sizes[0] <= JOINED_BYTES and len(sizes) == 2


def test_a_frame_over_the_limit_is_refused_before_memory_is_taken_for_it() -> None:
    reader = FrameReader(limit=100)
    assert [bytes(frame) for frame in reader.frames(LENGTH.pack(2) + b"ok" + LENGTH.pack(101)[:3])] == [b"ok"]
    with pytest.raises(PeerProtocolError, match="a frame of 101 bytes is over the limit of 100"):
        list(reader.frames(LENGTH.pack(101)[3:]))
    assert reader.long_frame is None


def test_a_message_that_fits_into_no_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_format, "MAX_FRAME_BYTES", HEADER_BYTES + 110)
    encode(message(0, 100, 10)[0], b"p" * 100)
    with pytest.raises(PeerProtocolError, match=rf"a message of {HEADER_BYTES + 111} bytes on 1:0->1 is over"):
        encode(message(0, 100, 11)[0], b"p" * 100)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_frames_of_a_burst_are_whole_on_the_way(transport: str) -> None:
    """More than a frame may hold waits at once, as when a consumer's successor has asked for all."""
    cluster = Cluster(transport)
    try:
        one, _, heard = cluster.plane(0, cluster.ours)
        other, address, heard_there = cluster.plane(1, cluster.ours)
        one.incarnation, other.incarnation = 3, 5
        one.connect({1: (5, address)})
        cluster.until(lambda: PeerConnected(1, 5) in heard and PeerAttached(0) in heard_there)
        together, header = 59, HEADER_BYTES + 200  # behind so many messages a header would still fit, and no payload
        size = (JOINED_BYTES - header // 2) // together - header
        sent = [message(seq, size, 200) for seq in range(200)] + [message(200, JOINED_BYTES + 1, 6)]
        for _, buffers in sent:
            one.send(1, buffers)
        one.flush()
        found: list[Message] = []

        def all_came() -> bool:
            for event in heard_there:
                if isinstance(event, FrameArrived):
                    found.extend(decoded for decoded, _ in decode_frame(event.frame))
            heard_there.clear()
            return len(found) >= len(sent)

        cluster.until(all_came)
        assert found == [expected for expected, _ in sent]
    finally:
        cluster.close()
