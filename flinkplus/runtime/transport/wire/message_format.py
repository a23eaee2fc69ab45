"""The data plane's format: messages on channels, and frames of several messages.

A message is a fixed header and a payload. The header carries a format version, the kind, the channel, the sender's
generation, the sequence number on the channel, the epoch and the number of rows. A frame is any number of messages end
to end.

The payload of RECORDS is one record batch that tells its own schema: eight bytes (format version, encoding, two zeros,
size of the schema), and, by the encoding,

- PLAIN: the schema and the batch, each an Arrow IPC message: for batches without dictionaries. To write and to read a
  schema costs more than all the rest of a small message: both ends keep those they know, by their bytes;
- STREAM: an Arrow IPC stream (schema, dictionaries, one batch): for batches with dictionaries.

That of a WATERMARK is its time, eight bytes; of a ROUND, its number, too.

Rules: nothing of a malformed frame is delivered (``PeerProtocolError``); decoding copies no payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from flinkplus.errors import PeerProtocolError
from flinkplus.operators.base.canonical import canonical, is_cut_by_writing
from flinkplus.operators.base.columns import SchemaMemo, holds_dictionary
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.transport.wire.frames import MAX_FRAME_BYTES

FORMAT_VERSION = 5
# version, kind, edge, producer, consumer, generation, epoch, seq, payload bytes, determinant bytes (which come before
# the payload), rows
HEADER = struct.Struct("<BBHIIIIQQII")
HEADER_BYTES = HEADER.size
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES - (16 << 20)
"""Header and determinants need some room beside it."""
WATERMARK = struct.Struct("<q")
WITH_NUMBER = (MessageKind.WATERMARK, MessageKind.ROUND)
WITH_PAYLOAD = (MessageKind.RECORDS, MessageKind.REPLICA, *WITH_NUMBER)

PAYLOAD_VERSION = 1
PAYLOAD_PREFIX = struct.Struct("<BBHI")
PLAIN, STREAM = 1, 2
KNOWN_SCHEMAS, KNOWN_SCHEMA_BYTES = 256, 64 << 10
"""How many schemas are remembered, and how long ones."""

__all__ = ["Message", "MessageKind", "decode_frame", "decode_records", "encode", "encode_canonical", "encode_records"]


def _plain_prefix(schema: pa.Schema) -> bytes | None:
    """What stands before the batch in every PLAIN payload of this schema; ``None`` when there are dictionaries."""
    if any(holds_dictionary(field.type) for field in schema):
        return None
    text = schema.serialize()
    return PAYLOAD_PREFIX.pack(PAYLOAD_VERSION, PLAIN, 0, text.size) + text.to_pybytes()


_plain_prefix_of = SchemaMemo(_plain_prefix)
_cut_by_writing = SchemaMemo(lambda schema: all(is_cut_by_writing(field.type) for field in schema))
_stream_prefix = PAYLOAD_PREFIX.pack(PAYLOAD_VERSION, STREAM, 0, 0)
_known_schemas: dict[bytes, pa.Schema] = {}


def encode_records(batch: pa.RecordBatch) -> pa.Buffer:
    """One record batch as a payload, the same for equal ones (see ``flinkplus.operators.base.canonical``). Of a
    small one, dictionary-encoded columns come back plain."""
    if _cut_by_writing(batch.schema) and all(map(_is_cut, batch.columns)):
        return encode_canonical(batch)
    return encode_canonical(canonical(batch))


def _is_cut(column: pa.Array) -> bool:
    """Whether Arrow writes just the rows of a column of fixed width. It writes a validity bitmap without a null, too;
    and of a slice from the beginning it may write some bytes behind the rows."""
    validity, values = column.buffers()
    if validity is not None or values is None:
        return False
    return column.offset > 0 or values.size == len(column) * column.type.byte_width


def encode_canonical(batch: pa.RecordBatch) -> pa.Buffer:
    """The same for a batch that is in canonical form already, as those are that a ``Message`` holds."""
    prefix = _plain_prefix_of(batch.schema)
    if prefix is not None:
        buffer = pa.py_buffer(b"".join((prefix, batch.serialize())))
    else:
        sink = pa.BufferOutputStream()
        sink.write(_stream_prefix)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        buffer = sink.getvalue()
    if buffer.size > MAX_PAYLOAD_BYTES:
        raise PeerProtocolError(f"a record batch of {buffer.size} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
    return buffer


def digest_of(message: Message, payload: Any) -> int:
    """Of a message of records: 64 bits of its payload, as it is or would be sent."""
    return int(xxh3_64_intdigest(payload if payload is not None else encode_canonical(message.records)))


def encode(message: Message, payload: Any = b"") -> list[Any]:
    """The buffers of one message on the wire: header with determinants, then payload (when it has one). Raises
    ``PeerProtocolError`` for one that fits into no frame.
    """
    channel = message.channel
    if message.kind in WITH_NUMBER:
        payload = WATERMARK.pack(message.watermark_ms)
    length, known = len(payload), len(message.determinants)
    if HEADER_BYTES + known + length > MAX_FRAME_BYTES:
        raise PeerProtocolError(
            f"a message of {HEADER_BYTES + known + length} bytes on {channel} is over the limit of {MAX_FRAME_BYTES}"
        )
    header = HEADER.pack(
        FORMAT_VERSION,
        message.kind,
        channel.edge,
        channel.producer,
        channel.consumer,
        message.generation,
        message.epoch,
        message.seq,
        length,
        known,
        message.rows,
    )
    if known:
        header += message.determinants
    return [header, payload] if length else [header]


def decode_frame(frame: bytes | bytearray | memoryview) -> Iterator[tuple[Message, memoryview]]:
    """The messages of a frame, payloads as views. Raises ``PeerProtocolError`` before anything is yielded."""
    view = memoryview(frame)
    found: list[tuple[Message, memoryview]] = []
    at = 0
    while at < len(view):
        if len(view) - at < HEADER_BYTES:
            raise PeerProtocolError(f"frame cut inside a header: {len(view) - at} bytes left")
        if view[at] != FORMAT_VERSION:
            raise PeerProtocolError(f"message format {view[at]}, this program speaks {FORMAT_VERSION}")
        _, kind, edge, producer, consumer, generation, epoch, seq, length, known, rows = HEADER.unpack_from(view, at)
        at += HEADER_BYTES
        if known + length > len(view) - at:
            raise PeerProtocolError(
                f"frame cut inside a payload: {known + length} bytes announced, {len(view) - at} left"
            )
        try:
            message_kind = MessageKind(kind)
        except ValueError:
            raise PeerProtocolError(f"unknown message kind {kind}") from None
        has_number = message_kind in WITH_NUMBER
        if (message_kind in WITH_PAYLOAD) != (length > 0) or (has_number and length != WATERMARK.size):
            raise PeerProtocolError(f"a {message_kind.name} message with {length} payload bytes")
        message = Message(
            message_kind,
            ChannelId(edge, producer, consumer),
            Generation(generation),
            Seq(seq),
            CheckpointId(epoch),
            size=length,
            determinants=bytes(view[at : at + known]),
            watermark_ms=WATERMARK.unpack_from(view, at + known)[0] if has_number else 0,
            rows=rows,
        )
        at += known
        found.append((message, view[at : at + length]))
        at += length
    return iter(found)


def decode_records(payload: Any) -> pa.RecordBatch:
    """The record batch of a RECORDS payload, which is any contiguous buffer and is not copied. Raises
    ``PeerProtocolError`` when it is not one.
    """
    view = memoryview(payload)
    if len(view) < PAYLOAD_PREFIX.size:
        raise PeerProtocolError(f"payload of {len(view)} bytes is not a record batch")
    version, encoding, _, schema_bytes = PAYLOAD_PREFIX.unpack_from(view)
    if version != PAYLOAD_VERSION:
        raise PeerProtocolError(f"payload format {version}, this program speaks {PAYLOAD_VERSION}")
    body = pa.py_buffer(view[PAYLOAD_PREFIX.size + schema_bytes :])
    try:
        if encoding == PLAIN:
            schema = _schema_of(bytes(view[PAYLOAD_PREFIX.size : PAYLOAD_PREFIX.size + schema_bytes]))
            return pa.ipc.read_record_batch(body, schema)
        if encoding == STREAM:
            with pa.ipc.open_stream(body) as reader:
                return reader.read_next_batch()
    except (pa.ArrowException, EOFError, StopIteration, OSError) as error:
        raise PeerProtocolError(f"payload is not an Arrow record batch: {error}") from error
    raise PeerProtocolError(f"unknown payload encoding {encoding}")


def _schema_of(serialized: bytes) -> pa.Schema:
    schema = _known_schemas.get(serialized)
    if schema is None:
        schema = pa.ipc.read_schema(pa.py_buffer(serialized))
        if len(serialized) <= KNOWN_SCHEMA_BYTES:
            if len(_known_schemas) >= KNOWN_SCHEMAS:
                _known_schemas.clear()
            _known_schemas[serialized] = schema
    return schema
