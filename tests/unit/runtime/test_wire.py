"""The data plane's format: what is encoded comes back; what is malformed is refused whole."""

from __future__ import annotations

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime import control
from flinkplus.runtime.wire import (
    HEADER_BYTES,
    Kind,
    Message,
    decode_frame,
    decode_records,
    encode,
    encode_records,
)

CHANNEL = ChannelId(3, 1, 2)


def message(kind: Kind, seq: int = 7) -> Message:
    return Message(kind, CHANNEL, Generation(5), Seq(seq), CheckpointId(4))


def frame_of(*messages: tuple[Message, bytes]) -> bytes:
    return b"".join(bytes(part) for m, payload in messages for part in encode(m, payload))


def test_records_with_a_dictionary_come_back() -> None:
    words = pa.array(["a", "b", "a", None]).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([words, pa.array([1, 2, 3, 4])], names=["word", "n"])
    frame = frame_of((message(Kind.RECORDS), encode_records(batch).to_pybytes()), (message(Kind.BARRIER, 8), b""))
    (first, payload), (second, nothing) = decode_frame(frame)
    assert (first.kind, first.channel, first.generation, first.seq, first.epoch) == (Kind.RECORDS, CHANNEL, 5, 7, 4)
    assert decode_records(payload).equals(batch)
    assert second.kind is Kind.BARRIER and second.seq == 8 and len(nothing) == 0


def test_every_cut_of_a_frame_is_refused() -> None:
    frame = frame_of((message(Kind.BARRIER), b""), (message(Kind.RECORDS), b"payload"))
    whole = {0, HEADER_BYTES, len(frame)}
    for cut in range(len(frame)):
        if cut not in whole:
            with pytest.raises(PeerProtocolError, match="cut"):
                decode_frame(frame[:cut])


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [(0, 9, "format 9"), (1, 77, "unknown message kind"), (1, int(Kind.RECORDS), "RECORDS message with 0")],
)
def test_a_wrong_header_is_refused(at: int, value: int, says: str) -> None:
    frame = bytearray(frame_of((message(Kind.BARRIER), b"")))
    frame[at] = value
    with pytest.raises(PeerProtocolError, match=says):
        decode_frame(bytes(frame))


@given(st.binary(max_size=200))
def test_noise_never_does_worse_than_an_error(noise: bytes) -> None:
    try:
        for found, payload in decode_frame(noise):
            if found.kind is Kind.RECORDS:
                decode_records(payload)
    except PeerProtocolError:
        pass


@given(st.binary(max_size=200))
def test_noise_on_the_control_plane_is_refused(noise: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        control.decode(noise)


def test_control_messages_come_back() -> None:
    deploy = control.Deploy(2, 7, {"a[0]": 1}, {"1": [1, "127.0.0.1:5"]}, {"a[0]": {"format": 1}}, {"a[0]": 12})
    assert control.decode(control.encode(deploy)) == deploy
    with pytest.raises(PeerProtocolError, match="format 2"):
        control.decode(control.encode(deploy).replace(b'"v": 1', b'"v": 2'))
    with pytest.raises(PeerProtocolError, match="malformed"):
        control.decode(control.encode(deploy).replace(b"Deploy", b"Destroy"))
