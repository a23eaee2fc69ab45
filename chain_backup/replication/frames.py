"""The messages between agents of replication: frames, each sealed with a checksum.

Rules:
- a frame carries a format version, the sender's stream and the frame's number on it, counted from 0 without gaps: so
  the receiver notices what was lost, repeated or reordered;
- fields are JSON, bulk data (a handle, a piece of a file) is the payload; the checksum is over everything;
- what cannot be read in full is ``PeerProtocolError``; nothing of it is believed, not even its kind;
- names of files are those within a subtask's folder, checked here; those in a handle are checked where it is read.
"""

from __future__ import annotations

import json
import struct
import zlib
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from flinkplus.documents import parse_document, whole
from flinkplus.errors import PeerProtocolError
from flinkplus.path_names import checked_name, checked_subtask

FORMAT_VERSION = 1
MAGIC = b"FR"
# magic, format version, kind, stream, number on the stream, field bytes, payload bytes; then the checksum of all
PREFIX = struct.Struct("<2sBBQQII")
CHECKSUM = struct.Struct("<I")
BEFORE_FIELDS = PREFIX.size + CHECKSUM.size
CHUNK_BYTES = 256 << 10
_to_json = json.JSONEncoder(separators=(",", ":")).encode
MAX_CHUNKS_UNDER_WAY = 4


class FrameKind(IntEnum):
    """OFFER, CHUNK go down the chain; WANT, ACK, STAGED, FAILED answer; RESYNC, PROBE, ECHO go either way."""

    OFFER = 1
    """There is a version; ``base``: the newest that the successor is known to have; ``lacks``: those of its files that
    the sender does not have; payload: its handle."""
    WANT = 2
    """``files``: name and first byte wanted of each; ``asked`` counts how often this transfer has asked."""
    CHUNK = 3
    """A piece of ``name`` from byte ``offset`` on, for WANT number ``asked``; payload: the bytes."""
    ACK = 4
    """One chunk for WANT number ``asked`` was taken."""
    STAGED = 5
    """All of the version is held and verified."""
    FAILED = 6
    """This version cannot be taken, for ``reason``; a later one may be."""
    RESYNC = 7
    """Something of yours was lost or unreadable: offer again what is under way."""
    PROBE = 8
    """Is anything before this missing? Answered by ECHO, which shows the same of the other direction."""
    ECHO = 9


_INTEGER = (int,)
_EXTRA: dict[FrameKind, dict[str, tuple[type, ...]]] = {
    FrameKind.OFFER: {"base": _INTEGER, "lacks": (list,)},
    FrameKind.WANT: {"files": (list,), "asked": _INTEGER},
    FrameKind.CHUNK: {"name": (str,), "offset": _INTEGER, "asked": _INTEGER},
    FrameKind.ACK: {"asked": _INTEGER},
    FrameKind.STAGED: {},
    FrameKind.FAILED: {"reason": (str,)},
    FrameKind.RESYNC: {},
    FrameKind.PROBE: {},
    FrameKind.ECHO: {},
}


class Topic(NamedTuple):
    """What a frame is about: one transfer of one version, to one successor. ``transfer`` is the sender's own number."""

    subtask: str
    generation: int
    version: int
    transfer: int


NO_TOPIC = Topic("", 0, 0, 0)


class Frame(NamedTuple):
    """One statement. ``fields`` are those its kind names."""

    kind: FrameKind
    stream: int
    number: int
    topic: Topic
    fields: dict[str, Any]
    payload: memoryview


_KINDS = {kind.value: kind for kind in FrameKind}


@lru_cache(maxsize=1024)
def _topic_json(topic: Topic) -> str:
    """What the frames of a transfer have in common."""
    return _to_json(list(topic))[1:-1]


def encode(
    kind: FrameKind,
    stream: int,
    number: int,
    topic: Topic,
    fields: dict[str, Any] | None = None,
    payload: bytes | memoryview = b"",
) -> bytes:
    encoded = f"[{_topic_json(topic)},{_to_json(fields) if fields else '{}'}]".encode()
    prefix = PREFIX.pack(MAGIC, FORMAT_VERSION, kind, stream, number, len(encoded), len(payload))
    checksum = zlib.crc32(payload, zlib.crc32(encoded, zlib.crc32(prefix)))
    return b"".join((prefix, CHECKSUM.pack(checksum), encoded, payload))


def decode(data: bytes | memoryview) -> Frame:
    """The inverse; ``PeerProtocolError`` for anything that is not exactly one whole frame of this format."""
    view = data if isinstance(data, memoryview) else memoryview(data)
    if len(view) < BEFORE_FIELDS:
        raise PeerProtocolError(f"a replication frame of {len(view)} bytes is cut inside its header")
    magic, version, kind, stream, number, field_bytes, payload_bytes = PREFIX.unpack_from(view)
    if magic != MAGIC or version != FORMAT_VERSION:
        raise PeerProtocolError(f"a replication frame begins with {magic!r}, format {version}, not {FORMAT_VERSION}")
    body = view[BEFORE_FIELDS:]
    if len(body) != field_bytes + payload_bytes:
        raise PeerProtocolError(
            f"a replication frame has {len(body)} bytes after its header instead of {field_bytes + payload_bytes}"
        )
    (expected,) = CHECKSUM.unpack_from(view, PREFIX.size)
    if zlib.crc32(body, zlib.crc32(view[: PREFIX.size])) != expected:
        raise PeerProtocolError("a replication frame does not match its checksum")
    try:
        subtask, generation, state_version, transfer, fields = parse_document(body[:field_bytes])
        name = subtask if subtask == NO_TOPIC.subtask else checked_subtask(subtask)
        topic = Topic(name, whole(generation), whole(state_version), whole(transfer))
        found = _KINDS[kind]
        if not isinstance(fields, dict):
            raise TypeError("the fields have no names")
        for name, types in _EXTRA[found].items():
            if not isinstance(fields[name], types):
                raise TypeError(f"{name} is {fields[name]!r:.100}")
        _check_names(found, fields)
    except (ValueError, TypeError, KeyError) as error:
        raise PeerProtocolError(f"a replication frame of kind {kind} is malformed: {error!r:.300}") from error
    return Frame(found, stream, number, topic, fields, body[field_bytes:])


def _check_names(kind: FrameKind, fields: dict[str, Any]) -> None:
    """Raises ``UnsafeName``, ``ValueError`` or ``TypeError``."""
    if kind is FrameKind.OFFER:
        for name in fields["lacks"]:
            checked_name(name)
    elif kind is FrameKind.WANT:
        for name, offset in fields["files"]:
            checked_name(name)
            whole(offset)
    elif kind is FrameKind.CHUNK:
        checked_name(fields["name"])
