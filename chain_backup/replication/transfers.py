"""One version on its way over one hop: what the sender and the receiver of it know.

Rules:
- at most one transfer a subtask and hop; chunks that are not acknowledged are limited per hop (see ``Hop.pump``), so a
  transfer never holds up the messages that share the stream for long;
- a file arrives from its first byte to its last; what is there of it survives a broken stream and is not sent again;
- a file is held only when all of it matches its checksum. What does not is asked for again, ``MAX_TRIES`` times.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from chain_backup.disk import Disk, Sink, Source, base_name
from chain_backup.replication import frames
from chain_backup.replication.frames import Frame, Kind, Topic
from flinkplus.state.delta import CHECKSUM_BYTES, StateFile

MAX_TRIES = 3
MAX_RESYNCS = 16

Send = Callable[[int, bytes], None]


@dataclass(slots=True)
class Partial:
    """A file that is arriving."""

    file: StateFile
    disk: Disk
    output: Sink
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
        """The next bytes. Raises ``OSError``, and then the file is of no use any more."""
        self.output.write(data)
        self.digest.update(data)
        self.offset += len(data)

    def close(self) -> None:
        self.output.close()

    def discard(self) -> None:
        self.close()
        self.disk.discard(base_name(self.file.name))


@dataclass(slots=True)
class Inbound:
    """A version that is arriving from ``peer``. ``missing``: files that it is to send, the first one next; ``stored``:
    files that come from elsewhere: left here by a dead process of this slot, or, when the peer does not have them
    either, from durable storage. ``lacks``: names of what the peer does not have. ``serving``: what is made do with
    for the base."""

    peer: int
    topic: Topic
    handle: bytes
    files: tuple[StateFile, ...]
    lacks: frozenset[str]
    missing: deque[StateFile]
    stored: deque[StateFile]
    serving: tuple[StateFile, ...] = ()
    round: int = 0
    tries: dict[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> tuple[StateFile, ...]:
        """What the version is to be made of."""
        return (*self.serving, *self.files[1:]) if self.serving else self.files


@dataclass(slots=True)
class Outbound:
    """A version that is offered to a peer. ``names``: of files that it may ask for, which ``open`` opens.
    ``wanted``: what is to be sent of which file, the first one next."""

    topic: Topic
    names: frozenset[str]
    open: Callable[[str], Source]
    round: int = 0
    unacknowledged: int = 0
    wanted: deque[tuple[str, int]] = field(default_factory=deque)
    source: Source | None = None

    def want(self, round_: int, wanted: list[tuple[str, int]]) -> None:
        """The successor asked for these, and for nothing that it asked for before."""
        self.close()
        self.round = round_
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
        """The stream is new: nothing of the old one counts any more, in either direction."""
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

    def say(
        self, kind: Kind, topic: Topic, fields: dict[str, object] | None = None, payload: bytes | memoryview = b""
    ) -> None:
        number = self._number
        self._number += 1
        self._send(self.peer, frames.encode(kind, self._stream, number, topic, fields, payload))

    def resync(self) -> None:
        """Tell the peer that something of its was lost: a bounded number of times without progress."""
        if self.resyncs_left > 0:
            self.resyncs_left -= 1
            self.say(Kind.RESYNC, frames.NO_TOPIC)

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
        self.say(Kind.OFFER, transfer.topic, {"base": base, "lacks": lacks}, handle)

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
            self.say(Kind.CHUNK, transfer.topic, {"name": name, "offset": offset, "round": transfer.round}, data)
        return failed
