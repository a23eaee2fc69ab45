"""What is fuzzed: valid examples, how they are mutated, what is done with the result, and which errors may come of it.

Rules: a target keeps nothing from one case to the next; whatever else than its own errors comes out is a finding, and
so is an error whose text is not readable (``messages``).
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import zlib
from array import array
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from chain_backup.replication import frames
from chain_backup.zookeeper.errors import BadRecord
from chain_backup.zookeeper.records import ChainRecord, SlotRecord, quote, unquote
from chain_backup.zookeeper.records import decode as decode_record
from dedup.digests import pack_digests
from flinkplus.documents import parse_document
from flinkplus.errors import (
    CheckpointDirectoryError,
    CommandRefused,
    ConfigurationError,
    CorruptCheckpoint,
    CorruptState,
    InputError,
    PeerProtocolError,
    PeerRefused,
    UntrustedCheckpoint,
)
from flinkplus.operators.base.schema import parse_schema
from flinkplus.protocol.determinants.determinants import (
    Choice,
    decode_spans,
    encode_ancestor,
    encode_span,
    pack,
    unpack,
)
from flinkplus.protocol.snapshot.handle import HANDLE_FORMAT, START, SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_channel, parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.control.spans import digests_from_json, spans_from_json
from flinkplus.runtime.coordinator.commands.operations import InjectCommand, StatusCommand
from flinkplus.runtime.liveness.pulse import MAX_DATAGRAM_BYTES, Pulses, pulse_key
from flinkplus.runtime.liveness.pulse_process import datagram
from flinkplus.runtime.operations.access_file import Whereabouts, parse_access
from flinkplus.runtime.operations.commands import Commands, decode_reply, encode_reply, encode_request
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, parse_hello, parse_slot_name, slot_name
from flinkplus.runtime.transport.tcp.connections import Connection
from flinkplus.runtime.transport.wire import message_format
from flinkplus.runtime.transport.wire.frames import framed
from flinkplus.runtime.transport.wire.message_format import Message, MessageKind
from flinkplus.sinks.spark_log import parse_logged
from flinkplus.sources.kafka.decoding import decoder
from flinkplus.state.durable.manifests import MANIFEST_MAGIC
from flinkplus.state.durable.ownership import JOB_FILE, JOB_FORMAT, JOB_MAGIC
from flinkplus.state.durable.seals import SigningKey, checked, signed
from flinkplus.state.durable.storage import CheckpointStorage
from tests.fuzz import names
from tests.fuzz.messages import assert_readable
from tests.fuzz.mutate import mutated, mutated_document
from upstream_cache import CorruptSegment
from upstream_cache.segments import Segment
from upstream_cache.volume import Volume

Mutate = Callable[[random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """``decode`` a mutated one of ``seeds``: nothing but ``errors`` may be raised."""

    name: str
    seeds: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    mutate: Mutate = mutated
    reseal: Callable[[random.Random, bytes], bytes] = lambda _rng, data: data
    """Makes checksums right again, mostly: else a decoder would not be looked into behind them."""

    def case(self, rng: random.Random) -> bytes:
        """A mutated example."""
        return self.reseal(rng, self.mutate(rng, self.seeds))


# --- the data plane


def _batches() -> list[pa.RecordBatch]:
    words = pa.array(["a", "bb", None, "d" * 50])
    return [
        pa.record_batch({"word": words, "count": pa.array([1, 2, 3, 4])}),
        pa.record_batch({"l": pa.array([[1], None, [2, 3]]), "s": pa.array([{"a": 1.5}, None, {"a": 2.0}])}),
        pa.record_batch({"word": pa.array(["x", "y", "x"] * 700).dictionary_encode()}),
        pa.record_batch({"flag": pa.array([True, None]), "t": pa.array([1, 2], pa.timestamp("us", "UTC"))}),
    ]


@cache
def _wire_seeds() -> tuple[bytes, ...]:
    channel = ChannelId(1, 2, 3)
    determinants = encode_span(7, [pack(Choice.INPUT, at) for at in range(4)])
    found: list[Any] = []
    for seq, batch in enumerate(_batches()):
        payload = message_format.encode_records(batch)
        message = Message(
            MessageKind.RECORDS, channel, Generation(4), Seq(seq), CheckpointId(2), determinants=determinants
        )
        found.append(message_format.encode(message, payload))
    for kind in MessageKind:
        if kind not in message_format.WITH_PAYLOAD:
            found.append(message_format.encode(Message(kind, channel, Generation(4), Seq(9), CheckpointId(2))))
    found.append(
        message_format.encode(
            Message(MessageKind.WATERMARK, channel, Generation(4), Seq(9), CheckpointId(2), watermark_ms=17)
        )
    )
    every = [b"".join(bytes(part) for part in parts) for parts in found]
    return (*every, b"".join(every))


def _decode_messages(data: bytes) -> object:
    for message, payload in message_format.decode_frame(data):
        if message.kind is MessageKind.RECORDS:
            try:
                message_format.decode_records(payload)
            except PeerProtocolError as error:
                assert_readable(error)
    return None


def _payload_seeds() -> tuple[bytes, ...]:
    compressed = []
    for codec in ("lz4", "zstd"):  # this program writes none, but whoever reads must stand them
        sink = pa.BufferOutputStream()
        sink.write(message_format.PAYLOAD_PREFIX.pack(message_format.PAYLOAD_VERSION, message_format.STREAM, 0, 0))
        batch = _batches()[0]
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_batch(batch)
        compressed.append(sink.getvalue().to_pybytes())
    return (*(bytes(message_format.encode_records(batch)) for batch in _batches()), *compressed)


def _determinant_seeds() -> tuple[bytes, ...]:
    small = [pack(Choice.READ, 3)] * 4
    many = [pack(Choice.CLOCK, at * 1000) for at in range(100)]
    return (
        encode_span(0, []),
        encode_span(70_000, small),
        encode_span(1 << 40, many),
        encode_span(5, small) + encode_ancestor(3 << 16 | 2, 9, many) + encode_ancestor(1, 1 << 33, small),
    )


def _decode_determinants(data: bytes) -> object:
    (_, own), others = decode_spans(data)
    return [unpack(one) for run in (own, *(run for _, _, run in others)) for one in run[:10]]


# --- connections


class _Socket:
    """Stands for a socket that gives ``data`` in pieces."""

    def __init__(self, data: bytes, rng: random.Random) -> None:
        self._data = data
        self._rng = rng

    def recv_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), len(self._data), self._rng.choice((1, 3, 64, 100_000)))
        buffer[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    def fileno(self) -> int:
        return 0

    def setblocking(self, _blocking: bool) -> None: ...

    def setsockopt(self, *_arguments: Any) -> None: ...

    def close(self) -> None: ...


_inbox: Inbox[Any] = Inbox()
STREAM_LIMIT = 4096


def _receive(data: bytes) -> object:
    """A stream of frames of at most ``STREAM_LIMIT`` bytes: it is read to its end, or ends as broken, once."""
    taken: list[int] = []
    broken: list[str] = []
    sock: Any = _Socket(data, random.Random(len(data)))
    connection = Connection(_inbox, sock, lambda frame: taken.append(len(frame)), broken.append, STREAM_LIMIT)
    while connection.open:
        connection._on_ready(1)
        room = connection._reader.long_frame
        if room is not None and len(room) > STREAM_LIMIT:
            raise AssertionError(f"{len(room)} bytes taken where {STREAM_LIMIT} are the most")
    if len(broken) != 1 or any(size > STREAM_LIMIT for size in taken):
        raise AssertionError(f"broken: {broken}, taken: {taken}")
    return taken


SECRET = b"secret"
PLACE = "127.0.0.1:4000"
_CONNECTING = Connecting(SECRET, b"fuzz/1", slot_name(1, 2), slot_name(3, 4), PLACE)


def _listening() -> Listening:
    return Listening(SECRET, b"fuzz/1", slot_name(3, 4), PLACE)


@cache
def _shaken() -> tuple[bytes, bytes, bytes, bytes]:
    """The four frames of a handshake."""
    connecting, listening = copy(_CONNECTING), _listening()
    challenge = listening.challenge(connecting.hello)
    proof = connecting.answer(challenge)
    listening.check(proof)
    return connecting.hello, challenge, proof, listening.welcome


def _handshake(data: bytes) -> object:
    """As what either end may be sent in each of the frames: neither takes what was not made for it."""
    hello, challenge, _, _ = _shaken()
    listening, challenged, dialling, answered = _listening(), _listening(), copy(_CONNECTING), copy(_CONNECTING)
    challenged.challenge(hello)
    answered.answer(challenge)
    outcomes: list[object] = []
    for act in (
        lambda: listening.challenge(data),
        lambda: parse_slot_name(listening.name),
        lambda: challenged.check(data),
        lambda: dialling.answer(data),
        lambda: answered.check(data),
        lambda: parse_slot_name(data.decode("latin-1")),
    ):
        try:
            outcomes.append(act())
        except PeerRefused as error:
            assert_readable(error)
            outcomes.append(error.reason)
    signed, _, checked, answer, welcome, _ = outcomes
    if isinstance(signed, bytes) and parse_hello(data)[2:4] != (slot_name(3, 4).encode(), PLACE.encode()):
        raise AssertionError("a listener has signed for another one")
    taken = checked is None or (isinstance(answer, bytes) and data != challenge)
    if taken or (welcome is None and data != _shaken()[3]):
        raise AssertionError("a code was taken that was made for something else")
    return outcomes


class _Clock:
    """Time stands still."""

    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 0.0


@cache
def _pulses() -> Pulses:
    return Pulses("127.0.0.1", SECRET, 1.0, _inbox, _Clock())


PULSE = datagram("3-0123456789abcdef", 7, pulse_key(SECRET))


def _pulse(data: bytes) -> object:
    """Nothing but what was signed is believed, and that only once."""
    pulses = _pulses()
    pulses.forget("3-0123456789abcdef")
    believed = pulses._accepted(data[:MAX_DATAGRAM_BYTES])
    if believed != (data == PULSE) or len(pulses.rule._last) != believed or pulses._accepted(data):
        raise AssertionError("a pulse that nobody signed was believed, or one twice")
    return believed


# --- the control plane

_EXAMPLES: dict[Any, Any] = {
    int: 3, float: 1.5, str: "count[1]", bool: True, dict[str, int]: {"0:1->2": 7}, dict[str, Any]: {"format": 1},
    dict[str, dict[str, Any]]: {"count[1]": {"rows_out": 3}}, dict[str, list[Any]]: {"count[1]": [1, "host:1"]},
    dict[str, list[list[Any]]]: {"count[1]": [[3, [8, 16]]]}, list[str]: ["count[1]"], int | None: None,
    list[int] | None: [1, -1],
}  # fmt: skip
_FILE = {
    "name": "count-1/1-2-3.sst", "kind": "base", "entries": 3, "bytes": 400, "checksum": "ab" * 20,
    "replaces": [["count-1/1-1-1.sst", 9, "cd"]],
}  # fmt: skip
_CLIP = {"groups": [[0, 3], [5, 64]], "states": ["count", "count#zero"]}
_SHARED = {
    **_FILE, "kind": "delta", "stored_as": "count-0/1-1-1.sst", "clip": _CLIP,
    "replaces": [["count-1/1-1-1.sst", 9, "cd", {"stored_as": "count-0/1-1-1.sst", "clip": _CLIP}]],
}  # fmt: skip
_STAGED = {"name": "part-c00000003-s1-g1-0.parquet", "rows": 3, "bytes": 90, "checkpoint": 3}
_SAVED = {"operators": {"out": {"rows_in": 3, "rows_out": 3, "own": {}, "staged": [_STAGED]}}}
_HANDLE = SnapshotHandle.from_json({
    "format": HANDLE_FORMAT, "subtask": "count[1]", "generation": 2, "checkpoint": 3, "files": [_FILE, _SHARED],
    "operator_state": _SAVED, "states": {"count": {"kind": "number", "keys": 3, "dtype": "int64"}}, "bytes_new": 400,
})  # fmt: skip
_NAMED: dict[str, Any] = {
    "assignment": {"count[1]": 7}, "generations": {"count[1]": 7}, "failed": {"count[1]": 7}, "marks": {"count[1]": 7},
    "handle": _HANDLE, "handles": {"count[1]": _HANDLE}, "files": _HANDLE.files,
}  # fmt: skip
_RUNS = [[3, [8, 16]]]
_ORDER = PromotionOrder(
    version=3, handle=_HANDLE, given_up=[4], overtaking=[5], received={"0:1->2": 7}, marks={"0:0->1": 2},
    digests={"0:1->2": [[4, pack_digests(array("Q", [1, 2, 3]))]]}, determinants=_RUNS, ancestors={"lines[0]": _RUNS},
    inputs={"0:0->1": 3}, pass_over=2, mark=7,
)  # fmt: skip


def _example(cls: type[Any], name: str, hint: Any) -> Any:
    if cls is control.Promote and name == "subtasks":
        return {"count[1]": _ORDER}
    return _NAMED[name] if name in _NAMED else _EXAMPLES[hint]


def _control_seeds() -> tuple[bytes, ...]:
    found = []
    for cls in control.ControlMessage.__args__:
        if cls is control.Fenced:
            continue
        hints = control._HINTS[cls.__name__]
        found.append(
            control.encode(cls(**{f.name: _example(cls, f.name, hints[f.name]) for f in dataclasses.fields(cls)}))
        )
    digests = {"0:1->2": [[4, pack_digests(array("Q", [1, 2, 3]))]]}
    found.append(control.encode(control.Fenced(1, {"0:1->2": 3}, {}, {"count[1]": [[2, [8]]]}, digests, {})))
    return tuple(found)


def _decode_control(data: bytes) -> object:
    message = control.decode(data)
    _assert_names(message)
    if isinstance(message, control.Fenced):
        for name, runs in message.determinants.items():
            parse_subtask(name)
            spans_from_json(runs)
        for name, found in message.digests.items():
            parse_channel(name)
            digests_from_json(found)
    return message


def _assert_names(message: Any) -> None:
    """Of subtasks and of files, wherever a message has them."""
    told = vars(message)
    if "subtask" in told:
        names.assert_subtask(told["subtask"])
    for field in ("subtasks", "assignment", "generations", "chains", "failed", "marks", "handles"):
        for subtask in told.get(field, ()):
            names.assert_subtask(subtask)
    names.assert_handle(told.get("handle", START))
    for handle in told.get("handles", {}).values():
        names.assert_handle(handle)
    if isinstance(message, control.Promote):
        for found in message.subtasks.values():
            names.assert_handle(found.handle)


# --- commands from outside


@cache
def _commands() -> Commands:
    known = Commands()
    known.add(InjectCommand, lambda _request: {})
    known.add(StatusCommand, lambda _request: {})
    return known


def _command_seeds() -> tuple[bytes, ...]:
    full = InjectCommand("cut", "count:1", 2.5, 1.0, 0.1, ["driver", "slot-1"])
    return tuple(encode_request(request) for request in (InjectCommand("kill", "slot-1"), full, StatusCommand()))


def _decode_reply(data: bytes) -> object:
    try:
        return decode_reply(data)
    except CommandRefused as refused:  # that is an answer, too
        if not str(refused).isprintable():
            raise AssertionError(f"a refusal that is not printable: {refused!r:.300}") from refused
        return str(refused)


def _access_seed() -> bytes:
    told = {"format": 1, "job_id": "1", "name": "job", "address": "h:1", "host": "h", "pid": 1, "created_s": 1.5}
    certificates = dict.fromkeys(("authority", "certificate", "key"), "PEM")
    return json.dumps({**told, "key": "00ff", "tls": certificates}).encode()


def _decode_access(data: bytes) -> object:
    access = parse_access(data, "x")
    names.assert_inside(access.job_id)
    return access


# --- replication


def _frame_seeds() -> tuple[bytes, ...]:
    topic = frames.Topic("count[1]", 2, 3, 4)
    return (
        frames.encode(frames.FrameKind.OFFER, 1, 0, topic, {"base": 2, "lacks": ["1-2-3.sst"]}, b'{"format": 1}'),
        frames.encode(frames.FrameKind.WANT, 1, 1, topic, {"files": [["1-2-3.sst", 0]], "asked": 1}),
        frames.encode(frames.FrameKind.CHUNK, 1, 2, topic, {"name": "1-2-3.sst", "offset": 0, "asked": 1}, b"x" * 300),
        frames.encode(frames.FrameKind.ACK, 1, 3, topic, {"asked": 1}),
        frames.encode(frames.FrameKind.FAILED, 1, 3, topic, {"reason": "no"}),
        frames.encode(frames.FrameKind.PROBE, 1, 4, frames.NO_TOPIC),
    )


def _decode_replication(data: bytes) -> object:
    frame = frames.decode(data)
    if frame.topic.subtask:
        names.assert_subtask(frame.topic.subtask)
    found: list[Any] = []
    match frame.kind:
        case frames.FrameKind.OFFER:
            found = frame.fields["lacks"]
        case frames.FrameKind.WANT:
            found = [name for name, _ in frame.fields["files"]]
        case frames.FrameKind.CHUNK:
            found = [frame.fields["name"]]
    for name in found:
        names.assert_inside(name)
    return frame


def _reseal_frame(rng: random.Random, data: bytes) -> bytes:
    if len(data) < frames.BEFORE_FIELDS or rng.random() < 0.2:
        return data
    prefix, body = bytearray(data[: frames.PREFIX.size]), data[frames.BEFORE_FIELDS :]
    if rng.random() < 0.7:
        prefix[:4] = struct.pack("<2sBB", frames.MAGIC, frames.FORMAT_VERSION, prefix[3])
        fields = max(0, min(len(body), struct.unpack_from("<I", prefix, frames.PREFIX.size - 8)[0]))
        prefix[-8:] = struct.pack("<II", fields, len(body) - fields)
    return bytes(prefix) + frames.CHECKSUM.pack(zlib.crc32(body, zlib.crc32(prefix))) + body


# --- files and ZooKeeper


def _decode_handle(data: bytes) -> object:
    handle = SnapshotHandle.from_json(json.loads(data))  # handles come within documents that were parsed already
    names.assert_handle(handle)
    return handle.files


def _decode_step(data: bytes) -> object:
    """The name of a node in ZooKeeper, which says which subtask it is of."""
    subtask = unquote(data.decode("utf-8", "replace"))
    names.assert_subtask(subtask)
    return subtask


def _decode_logged(data: bytes) -> object:
    """A line of the list of committed files."""
    entry = parse_logged(data.decode("utf-8", "replace"))
    names.assert_any_letters(entry.name)
    return entry


_LOGGED = {
    "path": "file:///out/part-c00000003-s1-g1-0.parquet", "size": 90, "isDir": False, "modificationTime": 1,
    "blockReplication": 1, "blockSize": 1, "action": "add",
}  # fmt: skip
_WHEREABOUTS = {"format": 1, "job_id": "job-1", "host": "h", "file": "/tmp/flinkplus-1/COMMANDS.json"}


def _decode_whereabouts(data: bytes) -> object:
    """Where the checkpoint directory says that a job's access file is."""
    told = Whereabouts.from_json(parse_document(data))
    job_id, file = told.job_id, told.file
    names.assert_inside(job_id)
    if not file.startswith("/") or ".." in file.split("/") or not file.endswith("/COMMANDS.json"):
        raise AssertionError(f"{file!r} was taken for an access file")
    return file


class _Files:
    """Stands for the files of a directory: each holds the bytes of the case."""

    data = b""

    def describe(self, name: str) -> str:
        return name

    def read(self, _name: str) -> bytes:
        return self.data

    def names(self, _folder: str) -> list[str]:
        return []


class _Folder:
    """A checkpoint directory whose files hold the bytes of the case."""

    def __init__(self) -> None:
        self._storage = CheckpointStorage("/nowhere")
        self._files = _Files()
        vars(self._storage.files).update(read=self._files.read, names=self._files.names)

    def decode_manifest(self, data: bytes) -> object:
        self._files.data = data
        manifest = self._storage.manifests.read(3)
        names.assert_manifest(manifest)
        return manifest.files

    def decode_job(self, data: bytes) -> object:
        self._files.data = data
        return self._storage.ownership.job()


class _Volume(Volume):
    """One file in memory."""

    def __init__(self) -> None:
        self.data = b""

    def create(self, path: Path) -> int:
        return 1

    open = create

    def close(self, handle: int) -> None: ...

    def write(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        new = b"".join(buffers)
        self.data = self.data[:offset] + new
        return len(new)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return self.data[offset : offset + size]

    def read_ahead(self, handle: int, offset: int, size: int) -> None: ...


def _decode_segment(data: bytes) -> object:
    """Reads a segment whose file was changed behind its back."""
    volume = _Volume()
    segment = _segment(volume)
    volume.data = data
    block = segment.read(segment.open_to_read(), 5)
    return [MessageCodec().decode(block.body(seq)) for seq in range(block.first, block.end)]


def _segment_seed() -> bytes:
    volume = _Volume()
    _segment(volume)
    return volume.data


def _segment(volume: Volume) -> Segment:
    segment = Segment(ChannelId(1, 2, 3), Path("segment"), 5, 0, volume)
    segment.append([(len(one), [one]) for one in _wire_seeds()[:4]])
    return segment


def _job_seed() -> bytes:
    told = {"job": {"name": "x", "fingerprint": "y"}, "place": "/checkpoints"}
    seal = signed(JOB_MAGIC, json.dumps(told, sort_keys=True).encode(), JOB_FILE, None, None).partition(b"\n")[0]
    return json.dumps({"format": JOB_FORMAT, **told, "seal": seal.decode()}).encode()


def _manifest_case(rng: random.Random, data: bytes) -> bytes:
    return data if rng.random() < 0.1 else signed(MANIFEST_MAGIC, data, "", None, None)


_KEY = SigningKey(b"key" * 10, "the key")
_SEALS = tuple(signed(MANIFEST_MAGIC, body, "the name", _KEY, "job-1") for body in (b"", b"{}", b"content" * 50))


def _decode_seal(data: bytes) -> object:
    """Only what was signed is believed, as it was signed."""
    body, job_id = checked(MANIFEST_MAGIC, data, "the name", _KEY, "where")
    if data not in _SEALS:
        raise AssertionError(f"{data!r:.300} was believed, of job {job_id}")
    return body


def _seal_case(rng: random.Random, data: bytes) -> bytes:
    """With its checksum made right again, mostly."""
    header, _, body = data.partition(b"\n")
    fields = header.split(b" ")
    if len(fields) > 3 and rng.random() < 0.7:
        right = signed(MANIFEST_MAGIC, body, "", None, None).split(b" ")
        fields[2:4] = right[2:4]
    return b" ".join(fields) + b"\n" + body


def _record(data: bytes) -> object:
    found: list[object] = []
    for decode in (
        lambda: ChainRecord.decode("count[1]", data),
        lambda: SlotRecord.decode(1, data),
        lambda: decode_record("coordinator", data, dict),
    ):
        try:
            found.append(decode())
        except BadRecord as error:
            assert_readable(error)
            found.append(error)
    return found


_KAFKA = decoder(
    "json", parse_schema("a long, b string, l array<array<double>>, s struct<x: int, d: date>, m decimal(9,2)")
)
_KAFKA_SEEDS = (
    b'{"a": 1, "b": "x\\u00e9", "l": [[1.5, 2], null, []], "s": {"x": 1, "d": "2024-01-02"}, "m": 1.25}',
    b'{"b": "\xc3\xa9", "other": [{"b": [1, "x"]}], "s": null, "m": "3"}',
)


def _decode_kafka(data: bytes) -> None:
    """The value of a record, between others. Its reason is part of an error."""
    found = _KAFKA([b'{"a": 1}', data, b'{"a": 2}'])
    found.rows.validate(full=True)
    if found.rows.num_rows + len(found.broken) != 3 or found.rows.column("a").to_pylist()[
        :: found.rows.num_rows - 1
    ] != [1, 2]:
        raise AssertionError("the value has changed others")
    for reason in found.broken.values():
        raise InputError(reason)


def targets() -> list[Target]:
    """All of them."""
    folder = _Folder()
    handle = json.dumps(_HANDLE.to_json()).encode()
    manifest = json.dumps(
        {
            "format": 1,
            "checkpoint": 3,
            "generation": 2,
            "subtasks": {"count[1]": _HANDLE.to_json()},
            "commits": {"out": {"files": [_STAGED], "rows": 3}},
        }
    ).encode()
    records = (ChainRecord("count[1]", 3, (1, 2), 4).encode(), SlotRecord("host:1", "host", 17, 2).encode(5))
    stream = b"".join(framed(b"x" * size) for size in (0, 1, 100, STREAM_LIMIT))
    return [
        Target("wire", _wire_seeds(), _decode_messages, (PeerProtocolError,)),
        Target("payload", _payload_seeds(), message_format.decode_records, (PeerProtocolError,)),
        Target("determinants", _determinant_seeds(), _decode_determinants, (PeerProtocolError,)),
        Target("stream", (stream, framed(b"y" * 3000) * 2), _receive, ()),
        Target("handshake", (*_shaken(), b"slot-1.2"), _handshake, ()),
        Target("pulse", (PULSE,), _pulse, ()),
        Target("control", _control_seeds(), _decode_control, (PeerProtocolError,), mutated_document),
        Target("command", _command_seeds(), _commands().decode, (CommandRefused,), mutated_document),
        Target(
            "reply",
            (encode_reply({"slots": [1]}), encode_reply(CommandRefused("no"))[:-1] + b', "body": {}}'),
            _decode_reply,
            (PeerProtocolError,),
            mutated_document,
        ),
        Target("access", (_access_seed(),), _decode_access, (ConfigurationError,), mutated_document),
        Target("replication", _frame_seeds(), _decode_replication, (PeerProtocolError,), reseal=_reseal_frame),
        Target("segment", (_segment_seed(),), _decode_segment, (CorruptSegment, PeerProtocolError)),
        Target("codec", _wire_seeds(), lambda data: MessageCodec().decode(memoryview(data)), (PeerProtocolError,)),
        Target("kafka", _KAFKA_SEEDS, _decode_kafka, (InputError,)),
        Target("handle", (handle,), _decode_handle, (CorruptState, ValueError, RecursionError), mutated_document),
        Target(
            "manifest",
            (manifest,),
            folder.decode_manifest,
            (CorruptCheckpoint, CorruptState),
            mutated_document,
            _manifest_case,
        ),
        Target(
            "job",
            (_job_seed(),),
            folder.decode_job,
            (CheckpointDirectoryError,),
            mutated_document,
        ),
        Target("seal", _SEALS, _decode_seal, (CorruptCheckpoint, UntrustedCheckpoint), reseal=_seal_case),
        Target("zookeeper", records, _record, (), mutated_document),
        Target("step", (quote("count+out[1]").encode(), quote("a.b c[12]").encode()), _decode_step, (BadRecord,)),
        Target(
            "output list",
            (json.dumps(_LOGGED).encode(),),
            _decode_logged,
            (ValueError, TypeError, KeyError),
            mutated_document,
        ),
        Target(
            "whereabouts",
            (json.dumps(_WHEREABOUTS).encode(),),
            _decode_whereabouts,
            (ValueError, TypeError, KeyError),
            mutated_document,
        ),
    ]
