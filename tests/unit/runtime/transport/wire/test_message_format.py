"""The data plane's format: what is encoded comes back; what is malformed is refused whole."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import PeerProtocolError
from flinkplus.operators.base.columns import merge, plain
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.runtime.transport.wire.message_format import (
    HEADER_BYTES,
    Message,
    MessageKind,
    decode_frame,
    decode_records,
    encode,
    encode_records,
)
from tests.examples import examples

CHANNEL = ChannelId(3, 1, 2)


def message(kind: MessageKind, seq: int = 7) -> Message:
    return Message(kind, CHANNEL, Generation(5), Seq(seq), CheckpointId(4))


def frame_of(*messages: tuple[Message, bytes]) -> bytes:
    return b"".join(bytes(part) for m, payload in messages for part in encode(m, payload))


@pytest.mark.parametrize("times", [1, 1000])
def test_records_with_a_dictionary_come_back(times: int) -> None:
    words = pa.array(["a", "b", "a", None] * times).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([words, pa.array([1, 2, 3, 4] * times)], names=["word", "n"])
    frame = frame_of(
        (message(MessageKind.RECORDS), encode_records(batch).to_pybytes()), (message(MessageKind.BARRIER, 8), b"")
    )
    (first, payload), (second, nothing) = decode_frame(frame)
    assert (first.kind, first.channel, first.generation, first.seq, first.epoch) == (
        MessageKind.RECORDS,
        CHANNEL,
        5,
        7,
        4,
    )
    expected = batch if times > 1 else batch.set_column(0, "word", words.cast(pa.string()))
    assert decode_records(payload).equals(expected)
    assert second.kind is MessageKind.BARRIER and second.seq == 8 and len(nothing) == 0


SCHEMAS = [
    pa.schema([("word", pa.string())]),
    pa.schema(
        [
            pa.field("word", pa.string(), nullable=False, metadata={"a": "b"}),
            ("n", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("list", pa.list_(pa.string())),
        ],
        metadata={"made": "by"},
    ),
]


@st.composite
def batches(draw: st.DrawFn, schema: pa.Schema, encode: st.SearchStrategy[bool]) -> pa.RecordBatch:
    """A batch of ``schema``, some of its columns dictionary-encoded, and cut out of a larger one."""
    rows = draw(st.integers(1, 12)) * draw(st.sampled_from([1, 1, 100]))
    text = [draw(st.sampled_from(["a", "b", "", "longer than the others"])) for _ in range(rows)]
    values = {"word": text, "n": [None, *range(1, rows)], "at": range(rows), "list": [[t, None] for t in text]}
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    fields = list(schema)
    if draw(encode):
        arrays[0] = arrays[0].dictionary_encode()
        fields[0] = fields[0].with_type(arrays[0].type)
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, schema.metadata))
    return batch.slice(draw(st.integers(0, rows - 1)))


@given(st.data(), st.sampled_from(SCHEMAS))
@settings(max_examples=examples(100), deadline=None)
def test_records_come_back_one_by_one_and_together(data: st.DataObject, schema: pa.Schema) -> None:
    encode = st.just(False) if data.draw(st.booleans()) else st.booleans()
    sent = data.draw(st.lists(batches(schema, encode), min_size=1, max_size=6))
    payloads = [b"x" + encode_records(batch).to_pybytes() for batch in sent]  # as in a frame: not aligned
    views = [memoryview(payload)[1:] for payload in payloads]
    for batch, view in zip(sent, views, strict=True):
        got = decode_records(view)
        got.validate(full=True)
        assert got.to_pylist() == batch.to_pylist()
        assert plain(got, schema).schema.equals(schema, check_metadata=True)
        assert got.schema.metadata == schema.metadata
        assert [field.nullable for field in got.schema] == [field.nullable for field in schema]
    together = merge([decode_records(view) for view in views])
    together.validate(full=True)
    assert together.to_pylist() == [row for batch in sent for row in batch.to_pylist()]
    assert [field.nullable for field in together.schema] == [field.nullable for field in schema]


def test_a_small_message_is_small() -> None:
    large = pa.record_batch({"word": [f"word{i}" for i in range(10_000)]})
    assert encode_records(large.slice(5_000, 10)).size < 500
    long_words = pa.array(["x" * 100_000]).dictionary_encode().take([0] * 500)
    encoded = encode_records(pa.RecordBatch.from_arrays([long_words], names=["word"]))
    assert encoded.size < 200_000, "to repeat long values would cost more than to encode them"
    assert decode_records(encoded).column(0).equals(long_words)


def test_a_dictionary_inside_a_list_comes_back() -> None:
    lists = pa.ListArray.from_arrays([0, 1, 3], pa.array(["x", "y", "x"]).dictionary_encode())
    batch = pa.RecordBatch.from_arrays([lists], names=["words"])
    assert decode_records(encode_records(batch)).equals(batch)
    assert (
        merge([decode_records(payload) for payload in [encode_records(batch)] * 2]).to_pylist() == batch.to_pylist() * 2
    )


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "0 bytes"),
        (b"\x01\x02\0\0\0\0\0", "7 bytes"),
        (b"\x02\x01" + bytes(6), "payload format 2"),
        (b"\x01\x07" + bytes(6), "encoding 7"),
        (b"\x01\x01" + bytes(6), "not an Arrow"),
        (b"\x01\x02" + bytes(6), "not an Arrow"),
    ],
)
def test_a_malformed_payload_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(PeerProtocolError, match=says):
        decode_records(payload)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_cut_or_changed_payload_never_does_worse_than_an_error(at: int, byte: int) -> None:
    payload = bytearray(encode_records(pa.record_batch({"word": ["a", None, "b"], "n": [1, 2, 3]})))
    changed = payload.copy()
    changed[at % len(payload)] = byte
    for bad in (payload[: at % len(payload)], changed):
        with contextlib.suppress(PeerProtocolError, pa.ArrowInvalid):
            decode_records(bytes(bad)).validate(full=True)


def test_every_cut_of_a_frame_is_refused() -> None:
    frame = frame_of((message(MessageKind.BARRIER), b""), (message(MessageKind.RECORDS), b"payload"))
    whole = {0, HEADER_BYTES, len(frame)}
    for cut in range(len(frame)):
        if cut not in whole:
            with pytest.raises(PeerProtocolError, match="cut"):
                decode_frame(frame[:cut])


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [(0, 9, "format 9"), (1, 77, "unknown message kind"), (1, int(MessageKind.RECORDS), "RECORDS message with 0")],
)
def test_a_wrong_header_is_refused(at: int, value: int, says: str) -> None:
    frame = bytearray(frame_of((message(MessageKind.BARRIER), b"")))
    frame[at] = value
    with pytest.raises(PeerProtocolError, match=says):
        decode_frame(bytes(frame))


@given(st.binary(max_size=200))
def test_noise_never_does_worse_than_an_error(noise: bytes) -> None:
    try:
        for found, payload in decode_frame(noise):
            if found.kind is MessageKind.RECORDS:
                decode_records(payload)
    except PeerProtocolError:
        pass


@given(st.binary(max_size=200))
def test_noise_on_the_control_plane_is_refused(noise: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        control.decode(noise)


def test_control_messages_come_back() -> None:
    deploy = control.Deploy(2, 7, {"a[0]": 1}, {"1": [1, "127.0.0.1:5"]}, {"a[0]": START}, {"a[0]": 12})
    assert control.decode(control.encode(deploy)) == deploy
    with pytest.raises(PeerProtocolError, match="format 1"):
        control.decode(control.encode(deploy).replace(b'"v": 2', b'"v": 1'))
    with pytest.raises(PeerProtocolError, match="malformed"):
        control.decode(control.encode(deploy).replace(b"Deploy", b"Destroy"))


VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [1, None, 3, 4],
    pa.float32(): [None, 2.5, None, 0.0],
    pa.bool_(): [True, None, False, None],
    pa.string(): ["a", None, "", "longer"],
    pa.large_binary(): [b"a", None, b"", None],
    pa.timestamp("us"): [5, None, 0, 7],
    pa.decimal128(10, 2): [None, Decimal("1.25"), None, Decimal(0)],
    pa.binary(3): [b"abc", None, b"abc", b"xyz"],
    pa.dictionary(pa.int32(), pa.string()): ["a", None, "b", "a"],
    pa.null(): [None] * 4,
    pa.list_(pa.int64()): [[1], None, [], [2, 3]],
}


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize("rows", [4, 400])
def test_equal_batches_have_equal_payloads_and_are_read_back(dtype: pa.DataType, rows: int) -> None:
    values = (VALUES[dtype] * rows)[:rows]
    whole = pa.array([*values[:2], *values], dtype)
    once = pa.record_batch([pa.array(values, dtype)], names=["v"])
    again = pa.record_batch([whole.slice(2)], names=["v"])
    assert bytes(encode_records(once)) == bytes(encode_records(again))
    assert decode_records(encode_records(again)).column(0).to_pylist() == pa.array(values, dtype).to_pylist()


WIDTHS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.timestamp("us"), pa.decimal128(10, 0))


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
def test_a_part_of_a_batch_without_nulls_has_the_payload_of_a_batch_of_its_own(dtype: pa.DataType, rows: int) -> None:
    """Nothing shows of the rows before and behind it."""
    numbers = pa.array(range(1, 21), pa.int64())
    values = numbers.cast(dtype) if dtype.bit_width == 64 else numbers.cast(pa.int32()).cast(dtype)
    whole = pa.record_batch([values, numbers], names=["v", "w"])
    for at in (0, 1, 7, 11):
        part = whole.slice(at, rows)
        alone = pa.record_batch([pa.array(part.column(i).to_pylist(), part.column(i).type) for i in (0, 1)], ["v", "w"])
        assert bytes(encode_records(part)) == bytes(encode_records(alone))
        assert decode_records(encode_records(part)).equals(alone)


def test_what_is_under_a_null_does_not_count() -> None:
    mask = np.array([False, True, False])
    payloads = {
        bytes(encode_records(pa.record_batch([pa.array(np.array([1, hidden, 3]), mask=mask)], names=["v"])))
        for hidden in (0, 7, -1)
    }
    hidden_text = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 3, 4], np.int32)), pa.py_buffer(b"xyzb")], 1
    )
    texts = {bytes(encode_records(pa.record_batch([a], names=["v"]))) for a in (hidden_text, pa.array([None, "b"]))}
    assert len(payloads) == len(texts) == 1


@pytest.mark.parametrize("watermark_ms", [0, -1, 1_700_000_000_000, -(2**63), 2**63 - 2])
def test_a_watermark_comes_back(watermark_ms: int) -> None:
    sent = message(MessageKind.WATERMARK)._replace(watermark_ms=watermark_ms, determinants=b"abc")
    frame = frame_of((sent, b""), (message(MessageKind.BARRIER, 8), b""))
    (found, _), (second, _) = decode_frame(frame)
    assert found == sent._replace(size=8)
    assert (second.kind, second.watermark_ms) == (MessageKind.BARRIER, 0)


def test_a_watermark_is_spilled_and_read_back() -> None:
    codec = MessageCodec()
    sent = message(MessageKind.WATERMARK)._replace(watermark_ms=17)
    spilled = b"".join(map(bytes, codec.encode((sent, None))))
    found = codec.decode(memoryview(spilled))
    assert found[0].watermark_ms == 17
    assert b"".join(map(bytes, codec.encode(found))) == spilled


def test_a_watermark_of_another_size_is_refused() -> None:
    frame = bytearray(frame_of((message(MessageKind.REPLICA), b"sixteen bytes of")))
    frame[1] = MessageKind.WATERMARK
    with pytest.raises(PeerProtocolError, match="WATERMARK message with 16"):
        decode_frame(frame)
