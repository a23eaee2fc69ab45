"""One version on its way over one hop: what its sender and its receiver know.

Rules:
- at most one transfer per subtask and hop; unacknowledged chunks are limited per hop, so that a transfer never delays
  the messages that share the stream for long;
- a file arrives from its first byte to its last; the part that is here survives a broken stream and is not sent again;
- a file is held only when all of it matches its checksum. Otherwise it is requested again, up to ``MAX_TRIES`` times.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from chain_backup.disk import ArrivingFile, Disk, HeldFile, Origin, base_name
from chain_backup.replication import frames
from chain_backup.replication.frames import Frame, FrameKind, Topic
from flinkplus.protocol.snapshot.files import CHECKSUM_BYTES, StateFile

MAX_TRIES = 3
MAX_RESYNCS = 16

Send = Callable[[int, bytes], None]


@dataclass(slots=True)
class Partial:
    """A file that is arriving."""

    file: StateFile
    disk: Disk
    output: ArrivingFile
    offset: int = 0
    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=CHECKSUM_BYTES))

    @classmethod
    def begin(cls, file: StateFile, disk: Disk) -> Partial:
        return cls(file, disk, disk.create(base_name(file.name)))

    @property
    def complete(self) -> bool:
        return self.offset == self.file.bytes

    @property
    def matches(self) -> bool:
        return self.complete and self.digest.hexdigest() == self.file.checksum

    def append(self, data: memoryview) -> None:
        """The next bytes. After an ``OSError`` the file must be discarded."""
        self.output.write(data)
        self.digest.update(data)
        self.offset += len(data)

    def close(self) -> None:
        self.output.close()

    def discard(self) -> None:
        self.close()
        self.disk.discard(base_name(self.file.name), Origin.ARRIVED)


@dataclass(slots=True)
class Inbound:
    """A version that is arriving from ``peer``.

    ``missing``: files that the peer is to send, the first one next.
    ``stored``: files that were left here by a dead process of this slot, or that come from durable storage.
    ``lacks``: names of files that the peer does not have.
    ``not_stored``: names of files that durable storage was asked for in vain.
    ``serving``: files used instead of the base.
    """

    peer: int
    topic: Topic
    handle: bytes
    files: tuple[StateFile, ...]
    lacks: frozenset[str]
    missing: deque[StateFile]
    stored: deque[StateFile]
    serving: tuple[StateFile, ...] = ()
    asked: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    not_stored: set[str] = field(default_factory=set)

    @property
    def needed(self) -> tuple[StateFile, ...]:
        """The files that the version is made of."""
        return (*self.serving, *self.files[1:]) if self.serving else self.files


@dataclass(slots=True)
class Outbound:
    """A version that is offered to a peer.

    ``names``: of files that the peer may request, which ``open`` opens.
    ``wanted``: name and offset of each file to be sent, the first one next.
    """

    topic: Topic
    names: frozenset[str]
    open: Callable[[str], HeldFile]
    asked: int = 0
    unacknowledged: int = 0
    wanted: deque[tuple[str, int]] = field(default_factory=deque)
    source: HeldFile | None = None

    def want(self, asked: int, wanted: list[tuple[str, int]]) -> None:
        """The successor requested these files, and no longer those before."""
        self.close()
        self.asked = asked
        self.unacknowledged = 0
        self.wanted = deque(wanted)

    def next_chunk(self) -> tuple[str, int, bytes] | None:
        """Name, offset and bytes of the next chunk. Raises ``OSError`` when the file cannot be read."""
        while self.wanted:
            name, offset = self.wanted[0]
            if self.source is None:
                self.source = self.open(name)
            data = self.source.read(frames.CHUNK_BYTES, offset)
            if data:
                self.wanted[0] = (name, offset + len(data))
                return name, offset, data
            self.close()
            self.wanted.popleft()
        return None

    def close(self) -> None:
        if self.source is not None:
            self.source.close()
            self.source = None


class Hop:
    """Both directions of the stream to one other slot: numbering of frames, and transfers to it."""

    def __init__(self, peer: int, stream: int, send: Send) -> None:
        self.peer = peer
        self.outbound: dict[str, Outbound] = {}
        self.resyncs_left = MAX_RESYNCS
        self._send = send
        self._turn: deque[str] = deque()
        self.renew(stream)

    def renew(self, stream: int) -> None:
        """The stream is new: frames of the old one are ignored, in both directions."""
        self.clear()
        self._stream = stream
        self._number = 0
        self._their_stream = 0
        self._expected = 0
        self.resyncs_left = MAX_RESYNCS

    def clear(self) -> None:
        """Give up all transfers to this peer."""
        for transfer in self.outbound.values():
            transfer.close()
        self.outbound.clear()
        self._turn.clear()

    # -- frames ---------------------------------------------------------------------------------------------------

    def send(
        self, kind: FrameKind, topic: Topic, fields: dict[str, object] | None = None, payload: bytes | memoryview = b""
    ) -> None:
        number = self._number
        self._number += 1
        self._send(self.peer, frames.encode(kind, self._stream, number, topic, fields, payload))

    def resync(self) -> bool:
        """Report to the peer that a frame of its own was lost: False after a maximum of times without progress."""
        if self.resyncs_left == 0:
            return False
        self.resyncs_left -= 1
        self.send(FrameKind.RESYNC, frames.NO_TOPIC)
        return True

    def accept(self, frame: Frame) -> bool | None:
        """Whether the frame is the next one: ``False`` when it was there before, ``None`` when others are missing."""
        if frame.stream != self._their_stream:
            if frame.stream < self._their_stream:
                return False
            self._their_stream = frame.stream
            self._expected = 0
        if frame.number < self._expected:
            return False
        in_order = frame.number == self._expected
        self._expected = frame.number + 1
        return True if in_order else None

    # -- transfers to the peer ------------------------------------------------------------------------------------

    def begin(self, transfer: Outbound, base: int, lacks: list[str], handle: bytes) -> None:
        self.end(transfer.topic.subtask)
        self.outbound[transfer.topic.subtask] = transfer
        self.send(FrameKind.OFFER, transfer.topic, {"base": base, "lacks": lacks}, handle)

    def end(self, subtask: str) -> None:
        transfer = self.outbound.pop(subtask, None)
        if transfer is not None:
            transfer.close()
        if subtask in self._turn:
            self._turn.remove(subtask)

    def current(self, topic: Topic) -> Outbound | None:
        """The transfer that ``topic`` is about, if it is still under way."""
        transfer = self.outbound.get(topic.subtask)
        return transfer if transfer is not None and transfer.topic == topic else None

    def start(self, subtask: str) -> None:
        if subtask not in self._turn:
            self._turn.append(subtask)

    def pump(self) -> list[tuple[str, OSError]]:
        """Send chunks, of each transfer in turn, as the limit allows; returns the transfers whose files failed."""
        failed: list[tuple[str, OSError]] = []
        under_way = sum(transfer.unacknowledged for transfer in self.outbound.values())
        while self._turn and under_way < frames.MAX_CHUNKS_UNDER_WAY:
            subtask = self._turn.popleft()
            transfer = self.outbound[subtask]
            try:
                chunk = transfer.next_chunk()
            except OSError as error:
                failed.append((subtask, error))
                continue
            if chunk is None:
                continue
            name, offset, data = chunk
            transfer.unacknowledged += 1
            under_way += 1
            self._turn.append(subtask)
            self.send(FrameKind.CHUNK, transfer.topic, {"name": name, "offset": offset, "asked": transfer.asked}, data)
        return failed


class Hops(dict[int, Hop]):
    """The hops to other slots, made when they are first used. ``clock_ns``: see ``ReplicationAgent``."""

    def __init__(self, send: Send, clock_ns: Callable[[], int]) -> None:
        super().__init__()
        self._send = send
        self._clock_ns = clock_ns
        self._newest_stream = 0

    def __missing__(self, peer: int) -> Hop:
        hop = self[peer] = Hop(peer, self._new_stream(), self._send)
        return hop

    def renew(self, peer: int) -> None:
        """The stream to and from ``peer`` is new."""
        self[peer].renew(self._new_stream())

    def _new_stream(self) -> int:
        """Numbers that rise, also from one process of a slot to the next."""
        self._newest_stream = max(self._newest_stream + 1, self._clock_ns())
        return self._newest_stream
