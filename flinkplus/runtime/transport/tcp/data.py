"""The data plane over TCP (``transport="tcp"``), in the slot's own loop; see ``wire.ports`` and ``connections``.

Rules: what a turn of the loop has put out is written at its end, joined into frames for each peer. How much can be
queued is bounded by the channels' credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals, parse_slot_name, slot_name
from flinkplus.runtime.transport.tcp.connections import Connection, Listener, Outgoing
from flinkplus.runtime.transport.wire.ports import (
    Attachments,
    FrameArrived,
    PeerAttached,
    PeerBroken,
    PeerConnected,
    TransportEvent,
)

PROTOCOL = b"flinkplus-data/2"
CONNECT_TIMEOUT_S = 10.0


@dataclass(eq=False, repr=False)
class TcpDataPlane(Attachments):
    """See ``DataPlane`` and ``injections.Holds`` for the methods. ``deliver`` is called in the loop."""

    slot: InitVar[int]
    _credentials: Credentials
    _host: str
    _inbox: Inbox[Any]
    _deliver: Callable[[TransportEvent], None]

    def __post_init__(self, slot: int) -> None:
        super().__init__(slot)
        self._certificates = self._credentials.certificates
        self.refusals = Refusals()
        self._listener: Listener | None = None
        self._targets: dict[int, tuple[int, str]] = {}
        self._out: dict[int, Outgoing] = {}
        self._back: dict[int, Connection] = {}
        self._back_from: dict[int, int] = {}
        self._attached: set[Connection] = set()
        self._due: deque[Connection] = deque()
        self._held: list[Connection] = []
        self._cut_off = False

    def start(self) -> str:
        self._listener = Listener(
            self._inbox, self._host, PROTOCOL, self.name, self._credentials, self.refusals, self._welcome, True
        )
        return self._listener.address

    def _be_found(self) -> None:
        if self._listener is not None and self.name is not None:
            self._listener.be(self.name)

    # --- peers that connect

    def _welcome(self, connection: Connection, found: Listening) -> None:
        peer = self.check(found)

        def gone(_reason: str) -> None:  # its side knows
            self._attached.discard(connection)
            if self._back.get(peer) is connection:
                del self._back[peer]

        self._back[peer] = connection  # an older one stays until its own end: what comes on it may be fenced
        self._back_from[peer] = parse_slot_name(found.name)[1]
        self._attached.add(connection)
        connection.welcome(found.welcome, lambda frame: self._deliver(FrameArrived(peer, frame)), gone)
        self._deliver(PeerAttached(peer))

    # --- peers that are connected to

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        for peer in [peer for peer in self._out if peers.get(peer) != self._targets[peer]]:
            self._out.pop(peer).close()
        self._targets = dict(peers)
        for peer, (incarnation, _) in peers.items():
            known = self._out.get(peer)
            if known is None or not known.open:
                self._open(peer)
            elif known.ready:
                self._deliver(PeerConnected(peer, incarnation))

    def _open(self, peer: int) -> None:
        incarnation, address = self._targets[peer]
        own, theirs = slot_name(self._slot, self.incarnation), slot_name(peer, incarnation)
        try:
            self._out[peer] = Outgoing(
                self._inbox,
                address,
                Connecting(self._credentials.secret, PROTOCOL, own, theirs, address),
                lambda: self._deliver(PeerConnected(peer, incarnation)),
                lambda frame: self._deliver(FrameArrived(peer, frame)),
                lambda reason: self._deliver(PeerBroken(peer, incarnation, reason)),
                certificates=self._certificates,
            )
            if self._cut_off:
                self._hold(self._out[peer])
        except (OSError, ValueError) as error:
            self._out.pop(peer, None)
            self._deliver(PeerBroken(peer, incarnation, f"cannot connect to {address}: {error}"))

    def expire(self, now_s: float) -> None:
        for outgoing in list(self._out.values()):
            outgoing.expire(now_s, CONNECT_TIMEOUT_S)

    def renew(self, peer: int, reason: str) -> None:
        back = self._back.pop(peer, None)
        if back is not None:
            self._attached.discard(back)
            back.close()  # the peer sees its stream break, and opens another
        outgoing = self._out.pop(peer, None)
        if outgoing is not None:
            outgoing.close()
            self._deliver(PeerBroken(peer, self._targets[peer][0], reason))

    # --- fault injection

    def hold(self, peers: frozenset[int] | None) -> None:
        if peers is None:
            self._cut_off = True
            if self._listener is not None:
                self._listener.hold()
        for connection in [*self._out.values(), *self._attached]:
            of_peers = peers is None or any(connection in (self._out.get(peer), self._back.get(peer)) for peer in peers)
            if of_peers and connection not in self._held:
                self._hold(connection)

    def _hold(self, connection: Connection) -> None:
        connection.hold()
        self._held.append(connection)

    def release(self) -> None:
        if self._cut_off and self._listener is not None:
            self._listener.release()
        self._cut_off = False
        held, self._held = self._held, []
        for connection in held:
            connection.release()

    # --- sending

    def send(self, peer: int, message: Sequence[Any]) -> None:
        self._queue(self._out.get(peer), message)

    def send_back(self, peer: int, message: Sequence[Any]) -> None:
        self._queue(self._back.get(peer), message)

    def send_beside(self, peer: int, message: Sequence[Any]) -> None:
        connection = self._out.get(peer)
        if connection is not None:
            connection.send(message)

    def _queue(self, connection: Connection | None, message: Sequence[Any]) -> None:
        if connection is not None and connection.open:
            connection.queue(message)
            if not connection.due:
                connection.due = True
                self._due.append(connection)

    def flush(self) -> None:
        while self._due:
            connection = self._due.popleft()
            connection.due = False
            connection.write()

    def silent(self, now_s: float, limit_s: float) -> dict[int, int]:
        found = {peer: self._back_from[peer] for peer, back in self._back.items() if back.is_silent(now_s, limit_s)}
        found |= {peer: self._targets[peer][0] for peer, out in self._out.items() if out.is_silent(now_s, limit_s)}
        return found

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in [*self._out.values(), *self._attached]:
            connection.close()
        self._out.clear()
        self._back.clear()
        self._attached.clear()
