"""The streams between slots: in order while they live, lossy when they break, as ``flinkplus.runtime.transport`` says.

A slot has a stream to each other slot; messages travel with it, credit against it. Whoever opened it sees it break and
opens another; the other end sees the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkplus.protocol.messages import Kind, Message
from tests.simulation.disk import flipped

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot


WRONG = ("lost", "torn", "altered", "twice", "late")
WRONG_CHANCE = 0.08
"""Of a frame between standbys. A slot answers a lost one by offering all again, so much more would be a storm."""


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
        at_ms = world.now_ms + world.latency_ms(owner.index, target.index)
        if at_ms < self._last_ms[way]:
            at_ms = self._last_ms[way]
        self._last_ms[way] = at_ms
        if world.frames_wrong and message.kind is Kind.REPLICA:
            self._put_wrong(at_ms, receiver, sender.index, message, number)
            return
        world.at(at_ms, self._arrive, receiver, sender.index, message, way, number)
        if world.now_ms <= self.fragile_until_ms and message.kind is Kind.RECORDS:
            world.note("the stream from slot %s to slot %s breaks", owner.index, target.index)
            owner.data.broke(target.index, self)
        if world.duplicates and world.rng_network.random() < 0.3:
            world.at(at_ms, self._arrive, receiver, sender.index, message, way, number)

    def _put_wrong(self, at_ms: int, receiver: SimSlot, sender: int, message: Message, number: int) -> None:
        """A frame between standbys may be lost, torn, altered, repeated, or come behind later ones."""
        world = self.owner.world
        rng = world.rng_copies
        how = rng.choice(WRONG) if rng.random() < WRONG_CHANCE else "right"
        world.counts[f"frames_{how}"] += 1
        if how != "right":
            world.note("a frame from slot %s to slot %s is %s", sender, receiver.index, how)
        if how == "torn":
            message = message._replace(records=message.records[: rng.randrange(len(message.records))])
        elif how == "altered":
            message = message._replace(records=flipped(message.records, rng.randrange(len(message.records) * 8)))
        elif how == "late":
            at_ms += rng.randint(1, 12)
        for _ in range({"lost": 0, "twice": 2}.get(how, 1)):
            world.at(at_ms, self._arrive, receiver, sender, message, 0, number)

    def _arrive(self, receiver: SimSlot, sender: int, message: Message, way: int, number: int) -> None:
        if number < self._lost_from[way]:
            happens = receiver.quietly if message.kind is Kind.REPLICA else receiver.event
            happens(receiver.take, sender, message, message.records)

    def lose(self) -> None:
        """Nothing more arrives, and some of what is under way does not either."""
        if self.alive:
            self.alive = self.connected = False
            rng = self.owner.world.rng_network
            for way in (0, 1):
                self._lost_from[way] = rng.randint(max(0, self._count[way] - 4), self._count[way])


class SimStreams:
    """Stands for ``DataPlane``: one slot's end of all streams from and to it."""

    def __init__(self, slot: SimSlot) -> None:
        self._slot = slot
        self.streams: dict[int, Stream] = {}
        self._targets: dict[int, tuple[int, str]] = {}
        self.back: dict[int, Stream] = {}

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

    def _open(self, peer: int, incarnation: int, address: str) -> None:
        world = self._slot.world
        target = world.process_at(address)
        delay_ms = world.latency_ms(self._slot.index, peer)
        if target is None or world.is_cut(self._slot.index, peer):
            self._slot.later(delay_ms, self._slot.peer_broken, peer, incarnation, "refused")
            return
        stream = self.streams[peer] = Stream(self._slot, target, incarnation)
        world.at(world.now_ms + delay_ms, self._opened, peer, stream)

    def _opened(self, peer: int, stream: Stream) -> None:
        if not stream.alive or not self._slot.alive:
            return
        if not stream.target.alive:
            self.broke(peer, stream)
            return
        stream.connected = True
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
