"""Frames between agents: whole and unaltered, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_backup.replication.frames import NO_TOPIC, FrameKind, Topic, decode, encode
from flinkplus.errors import PeerProtocolError

TOPIC = Topic("count+out[1]", 3, 17, 5)
FIELDS: dict[FrameKind, dict[str, Any]] = {
    FrameKind.OFFER: {"base": 16, "lacks": ["1-1-1.sst"]},
    FrameKind.WANT: {"files": [["3-17-1.sst", 0]], "asked": 1},
    FrameKind.CHUNK: {"name": "3-17-1.sst", "offset": 512, "asked": 1},
    FrameKind.ACK: {"asked": 1},
    FrameKind.FAILED: {"reason": "no room"},
}
WHOLE = encode(FrameKind.CHUNK, 7, 2, TOPIC, FIELDS[FrameKind.CHUNK], b"some bytes of a file")


@pytest.mark.parametrize("kind", FrameKind)
@pytest.mark.parametrize("payload", [b"", b"x" * 1000])
def test_what_is_encoded_is_decoded(kind: FrameKind, payload: bytes) -> None:
    frame = decode(memoryview(encode(kind, 1 << 60, 9, TOPIC, FIELDS.get(kind), payload)))
    assert (frame.kind, frame.stream, frame.number, frame.topic) == (kind, 1 << 60, 9, TOPIC)
    assert frame.fields == FIELDS.get(kind, {})
    assert bytes(frame.payload) == payload


@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_no_altered_bit_passes(place: int, bit: int) -> None:
    altered = bytearray(WHOLE)
    altered[place] ^= 1 << bit
    with pytest.raises(PeerProtocolError):
        decode(bytes(altered))


@given(data=st.one_of(st.binary(max_size=200), st.integers(0, len(WHOLE) - 1).map(lambda end: WHOLE[:end])))
def test_nothing_torn_or_foreign_passes(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode(data)
    with pytest.raises(PeerProtocolError):
        decode(WHOLE + data if data else b"")


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind in FIELDS])
def test_a_frame_without_its_fields_is_refused(kind: FrameKind) -> None:
    empty: dict[str, Any] = {}
    for fields in (empty, dict.fromkeys(FIELDS[kind], None)):
        with pytest.raises(PeerProtocolError, match="is malformed"):
            decode(encode(kind, 1, 0, TOPIC, fields))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PeerProtocolError, match="kind 99"):
        decode(encode(99, 1, 0, NO_TOPIC))  # type: ignore[arg-type]
