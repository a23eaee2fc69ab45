"""The streams between slots: in order while they live, lossy when they break, as ``flinkplus.runtime.transport`` says.

A slot has a stream to each other slot; messages travel with it, credit against it. Whoever opened it sees it break and
opens another; the other end sees the new one. Where the network is silent nothing breaks: what was sent waits, and
arrives when the silence is over, as TCP sends again; an end that waits too long for an answer says so to the driver.

On some seeds messages travel as the product's own frames: encoded, joined, and cut into pieces (``FramedStream``).
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING

from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.transport.wire.frames import LENGTH, FrameQueue, FrameReader
from flinkplus.runtime.transport.wire.message_format import encode
from tests.simulation.disk import flipped

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot


WRONG = ("lost", "torn", "altered", "twice", "late")
WRONG_CHANCE = 0.08
"""Of a frame between standbys. A slot answers a lost one by offering all again, so much more would be a storm."""

GARBLED = 255
"""How a garbled frame begins: with a format version that is none."""
SILENT_MS = 60
"""After so long without an answer a slot says so."""


class Stream:
    """From slot ``owner`` to ``target``. What is under way when it breaks is lost from some point on."""

    def __init__(self, owner: SimSlot, target: SimSlot, incarnation: int) -> None:
        self.owner = owner
        self.target = target
        self.incarnation = incarnation
        self.alive = True
        self.connected = False
        self._count = [0, 0]
        self._lost_from = [1 << 60, 1 << 60]
        self._last_ms = [0, 0]
        self._held: tuple[list[tuple[Message, int]], list[tuple[Message, int]]] = ([], [])
        self.fragile_until_ms = -1
        """Until then it breaks behind the next message of records."""

    def put(self, message: Message, back: bool) -> None:
        """Send with the stream, or against it."""
        if not self.alive:
            return
        owner, target = self.owner, self.target
        world = owner.world
        way = int(back)
        number = self._count[way]
        self._count[way] = number + 1
        receiver, sender = (owner, target) if back else (target, owner)
        if self.is_silent:
            sender.data.watch(receiver.index, self)
            if world.is_silent(sender.index, receiver.index) or self._held[way]:
                self._held[way].append((message, number))
                return
        at_ms = self._arrives_ms(way)
        if world.frames_wrong and message.kind is MessageKind.REPLICA:
            self._put_wrong(at_ms, receiver, sender.index, message, number)
            return
        self._pass(at_ms, receiver, sender.index, message, way, number)
        if world.now_ms <= self.fragile_until_ms and message.kind is MessageKind.RECORDS:
            world.note("the stream from slot %s to slot %s breaks", owner.index, target.index)
            owner.data.broke(target.index, self)
        if world.duplicates and world.rng_network.random() < 0.3:
            self._pass(at_ms, receiver, sender.index, message, way, number)

    def _arrives_ms(self, way: int) -> int:
        """When what is sent now arrives: behind all that was sent before."""
        world = self.owner.world
        at_ms = world.now_ms + world.latency_ms(self.owner.index, self.target.index)
        if at_ms < self._last_ms[way]:
            at_ms = self._last_ms[way]
        self._last_ms[way] = at_ms
        return at_ms

    def _pass(self, at_ms: int, receiver: SimSlot, sender: int, message: Message, way: int, number: int) -> None:
        self.owner.world.at(at_ms, self._arrive, receiver, sender, message, way, number)

    @property
    def is_silent(self) -> bool:
        """Whether what is sent is not answered, in either direction: what goes there is lost, or the answer."""
        world, ends = self.owner.world, (self.owner.index, self.target.index)
        return world.is_silent(*ends) or world.is_silent(*ends[::-1])

    def incarnation_of(self, peer: int) -> int:
        """Of the process at the end that is slot ``peer``."""
        return self.incarnation if peer == self.target.index else self.owner.incarnation

    def hear_again(self) -> None:
        """What waited arrives, where nothing is lost any more."""
        world = self.owner.world
        for way, (sender, receiver) in enumerate(((self.owner, self.target), (self.target, self.owner))):
            if not world.is_silent(sender.index, receiver.index):
                held = list(self._held[way])
                self._held[way].clear()
                for message, number in held:
                    self._pass(self._arrives_ms(way), receiver, sender.index, message, way, number)

    def _put_wrong(self, at_ms: int, receiver: SimSlot, sender: int, message: Message, number: int) -> None:
        """A frame between standbys may be lost, torn, altered, repeated, or come behind later ones."""
        world = self.owner.world
        rng = world.rng_copies
        how = rng.choice(WRONG) if rng.random() < WRONG_CHANCE else "right"
        world.counts[f"frames_{how}"] += 1
        if how != "right":
            world.note("a frame from slot %s to slot %s is %s", sender, receiver.index, how)
        if how == "torn":
            message = message._replace(records=torn(message.records, rng.randrange(len(message.records))))
        elif how == "altered":
            message = message._replace(records=flipped(message.records, rng.randrange(len(message.records) * 8)))
        elif how == "late":
            at_ms += rng.randint(1, 12)
        for _ in range({"lost": 0, "twice": 2}.get(how, 1)):
            self._pass(at_ms, receiver, sender, message, 0, number)

    def _arrive(self, receiver: SimSlot, sender: int, message: Message, way: int, number: int) -> None:
        if number < self._lost_from[way]:
            happens = receiver.quietly if message.kind is MessageKind.REPLICA else receiver.event
            happens(receiver.take_one, sender, message)

    def lose(self) -> None:
        """Nothing more arrives, and some of what is under way does not either."""
        if self.alive:
            self.alive = self.connected = False
            for held in self._held:
                held.clear()
            rng = self.owner.world.rng_network
            for way in (0, 1):
                self._lost_from[way] = rng.randint(max(0, self._count[way] - 4), self._count[way])


class FramedStream(Stream):
    """What is sent within a millisecond is queued, and written as frames; these arrive in pieces of any size. When the
    stream breaks, it may have been in the middle of a frame.
    """

    def __init__(self, owner: SimSlot, target: SimSlot, incarnation: int) -> None:
        super().__init__(owner, target, incarnation)
        assert owner.world.parameters.frame_bytes is not None
        joined_bytes = owner.world.parameters.frame_bytes
        self._queues = FrameQueue(joined_bytes), FrameQueue(joined_bytes)
        self._readers = FrameReader(), FrameReader()
        self._pieces = [0, 0]
        self._pieces_lost_from = [1 << 60, 1 << 60]

    def _pass(self, at_ms: int, receiver: SimSlot, sender: int, message: Message, way: int, number: int) -> None:
        late_ms = at_ms - self._last_ms[way]
        if late_ms > 0:  # it waits before it is queued, and comes behind what is sent meanwhile
            self.owner.world.at(self.owner.world.now_ms + late_ms, self._enqueue, receiver, sender, message, way)
        else:
            self._enqueue(receiver, sender, message, way)

    def _enqueue(self, receiver: SimSlot, sender: int, message: Message, way: int) -> None:
        queue, world = self._queues[way], self.owner.world
        if not queue:
            world.at(world.now_ms, self._write, receiver, sender, way)
        queue.put(encode(message, packed(message)))

    def _write(self, receiver: SimSlot, sender: int, way: int) -> None:
        queue, world, rng = self._queues[way], self.owner.world, self.owner.world.rng_frames
        while queue and self.alive:
            frame = queue.next_frame(with_length=True)
            if world.is_garbled(sender, receiver.index):
                world.counts["frames_garbled"] += 1
                frame = frame[: LENGTH.size] + bytes([GARBLED]) + frame[LENGTH.size + 1 :]
            world.counts["frames"] += 1
            while frame:
                size = len(frame) if rng.random() < 0.5 else rng.randint(1, len(frame))
                number, self._pieces[way] = self._pieces[way], self._pieces[way] + 1
                world.at(self._arrives_ms(way), self._piece_arrives, receiver, sender, frame[:size], way, number)
                frame = frame[size:]

    def _piece_arrives(self, receiver: SimSlot, sender: int, piece: bytes, way: int, number: int) -> None:
        if number >= self._pieces_lost_from[way]:
            return
        reader = self._readers[way]
        room = reader.long_frame
        if room is not None:
            rest, piece = piece[: len(room)], piece[len(room) :]
            room[: len(rest)] = rest
            whole = reader.received(len(rest))
            if whole is None:
                return
            receiver.event(receiver.take_frame, sender, bytes(whole))
        for frame in reader.frames(piece):
            receiver.event(receiver.take_frame, sender, bytes(frame))

    def lose(self) -> None:
        """Of what is under way, the rest of a frame may be lost."""
        if self.alive:
            super().lose()
            for way in (0, 1):
                self._queues[way].clear()
                sent = self._pieces[way]
                self._pieces_lost_from[way] = self.owner.world.rng_frames.randint(max(0, sent - 4), sent)


def torn(payload: bytes, size: int) -> bytes:
    """The first ``size`` bytes of the payload of a message between standbys, and one at least: the wire format has no
    such message without a payload."""
    return payload[: max(1, size)]


def packed(message: Message) -> bytes:
    """The payload of a message on the wire; empty for kinds that have none."""
    if message.kind is MessageKind.REPLICA:
        return bytes(message.records)
    return marshal.dumps((message.size, message.records)) if message.kind is MessageKind.RECORDS else b""


def unpacked(message: Message, payload: memoryview) -> Message:
    """A message that came in a frame, as it was sent."""
    if message.kind is MessageKind.REPLICA:
        return message._replace(records=bytes(payload))
    if message.kind is MessageKind.RECORDS:
        size, records = marshal.loads(payload)
        return message._replace(size=size, records=records)
    return message._replace(size=0)


class SimStreams:
    """Stands for ``DataPlane``: one slot's end of all streams from and to it."""

    def __init__(self, slot: SimSlot) -> None:
        self._slot = slot
        self.streams: dict[int, Stream] = {}
        self._targets: dict[int, tuple[int, str]] = {}
        self.back: dict[int, Stream] = {}
        self._watched: dict[int, Stream] = {}
        self._unreached: dict[int, Stream] = {}
        self._refused: dict[int, SimSlot] = {}

    # --- who is not reached

    def watch(self, peer: int, stream: Stream) -> None:
        """Something was sent to ``peer`` while there is a silence."""
        if self._watched.get(peer) is not stream:
            self._watched[peer] = stream
            self._slot.later(SILENT_MS, self._look, peer, stream)

    def _look(self, peer: int, stream: Stream) -> None:
        if self._watched.get(peer) is stream:
            del self._watched[peer]
            if stream.alive and stream.is_silent:
                self._unreached[peer] = stream
                self._say()
                ends = stream.owner, stream.target
                lasts = lambda: self._unreached.get(peer) is stream and stream.is_silent  # noqa: E731
                self._slot.world.checks.not_reached(ends, lasts)

    def _say(self) -> None:
        found = self._unreached = {
            peer: stream for peer, stream in self._unreached.items() if stream.alive and stream.is_silent
        }
        self._slot.peers_silent({peer: found[peer].incarnation_of(peer) for peer in sorted(found)})

    def hear_again(self) -> None:
        """Somewhere, less is lost than before."""
        for peer, stream in list(self.streams.items()):
            stream.hear_again()
            if not stream.target.alive and not stream.is_silent:
                self._slot.later(1, self.broke, peer, stream)
            elif stream.alive and not stream.connected and not stream.is_silent:
                delay_ms = self._slot.world.latency_ms(self._slot.index, peer)
                self._slot.world.at(self._slot.world.now_ms + delay_ms, self._opened, peer, stream)
        self._slot.quietly(self._say)

    # --- streams

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        self._targets = peers
        for peer, stream in list(self.streams.items()):
            if peer not in peers or peers[peer][0] != stream.incarnation:
                stream.lose()
                del self.streams[peer]
        for peer, (incarnation, address) in peers.items():
            known = self.streams.get(peer)
            if known is not None and known.alive:
                if known.connected:
                    self._slot.later(0, self._slot.peer_connected, peer, incarnation)
                continue
            self._open(peer, incarnation, address)
        self._say()

    def _open(self, peer: int, incarnation: int, address: str) -> None:
        world = self._slot.world
        target = world.process_at(address)
        delay_ms = world.latency_ms(self._slot.index, peer)
        if target is None or world.is_cut(self._slot.index, peer):
            if target is not None and self._refused.get(peer) is not target:
                self._refused[peer] = target
                world.checks.not_reached((self._slot, target), lambda: self._refused.get(peer) is target)
            self._slot.later(delay_ms, self._slot.peer_broken, peer, incarnation, "refused")
            return
        kind = Stream if world.parameters.frame_bytes is None else FramedStream
        stream = self.streams[peer] = kind(self._slot, target, incarnation)
        if stream.is_silent:
            self.watch(peer, stream)
            return
        world.at(world.now_ms + delay_ms, self._opened, peer, stream)

    def _opened(self, peer: int, stream: Stream) -> None:
        if not stream.alive or stream.connected or not self._slot.alive:
            return
        if stream.is_silent:
            self.watch(peer, stream)
            return
        if not stream.target.alive:
            self.broke(peer, stream)
            return
        stream.connected = True
        self._refused.pop(peer, None)
        target = stream.target
        target.data.back[self._slot.index] = stream
        target.event(target.peer_attached, self._slot.index)
        self._slot.event(self._slot.peer_connected, peer, stream.incarnation)

    def broke(self, peer: int, stream: Stream | None = None) -> None:
        """The stream to ``peer`` (that one only, if given) breaks, and this end sees it."""
        found = self.streams.get(peer)
        if found is not None and stream in (None, found):
            del self.streams[peer]
            found.lose()
            self._slot.later(1, self._slot.peer_broken, peer, found.incarnation, "broken")

    def renew(self, peer: int) -> None:
        """Break the streams from and to ``peer``."""
        back = self.back.pop(peer, None)
        if back is not None:
            back.owner.data.broke(self._slot.index, back)
        self.broke(peer)

    def targets(self, process: SimSlot) -> bool:
        """Whether there is a stream to ``process``."""
        found = self.streams.get(process.index)
        return found is not None and found.target is process

    def send(self, peer: int, message: Message) -> None:
        """Dropped when there is no stream: the logs hold it."""
        stream = self.streams.get(peer)
        if stream is not None:
            stream.put(message, back=False)

    def send_back(self, peer: int, message: Message) -> None:
        stream = self.back.get(peer)
        if stream is not None:
            stream.put(message, back=True)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.lose()
        self.streams.clear()
