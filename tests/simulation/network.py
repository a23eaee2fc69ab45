"""The streams between slots: in order while they live, lossy when they break, as ``flinkplus.runtime.transport`` says.

A slot has a stream to each other slot; messages travel with it, credit against it. Whoever opened it sees it break and
opens another; the other end sees the new one. Where the network is silent nothing breaks: what was sent waits, and
arrives when the silence is over, as TCP sends again; an end that waits too long for an answer says so to the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkplus.protocol.messages import Kind, Message
from flinkplus.runtime import control
from tests.simulation.disk import flipped

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot


WRONG = ("lost", "torn", "altered", "twice", "late")
WRONG_CHANCE = 0.08
"""Of a frame between standbys. A slot answers a lost one by offering all again, so much more would be a storm."""

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
                    at_ms = world.now_ms + world.latency_ms(self.owner.index, self.target.index)
                    self._last_ms[way] = at_ms = max(at_ms, self._last_ms[way])
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
            for held in self._held:
                held.clear()
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
        self._watched: dict[int, Stream] = {}
        self._unreached: dict[int, Stream] = {}
        self._said: dict[str, int] = {}

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
                self._slot.world.checks.not_reached(stream, lambda: self._unreached.get(peer) is stream)

    def _say(self) -> None:
        found = self._unreached = {
            peer: stream for peer, stream in self._unreached.items() if stream.alive and stream.is_silent
        }
        said = {str(peer): found[peer].incarnation_of(peer) for peer in sorted(found)}
        if said != self._said:
            self._said = said
            self._slot.report(control.PeersUnreached(said))

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
            self._slot.later(delay_ms, self._slot.peer_broken, peer, incarnation, "refused")
            return
        stream = self.streams[peer] = Stream(self._slot, target, incarnation)
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
