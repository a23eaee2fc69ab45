"""The control plane over TCP (``transport="tcp"``), in the loops of slot and coordinator; see ``wire.ports`` and
``connections``.

Rules: a frame is one control message. A thread of its own writes heartbeats.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

from flinkplus.errors import PeerProtocolError
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.faults.injections import DRIVER
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals, parse_slot_name, slot_name
from flinkplus.runtime.transport.tcp.connections import Connection, Listener, Outgoing
from flinkplus.runtime.transport.wire.frames import Frame
from flinkplus.runtime.transport.wire.ports import COORDINATOR, ControlArrived, ControlLost, LinkEvent, registered_slot

PROTOCOL = b"flinkplus-control/2"
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0


@dataclass(eq=False, repr=False)
class TcpControlLink:
    """See ``ControlLink`` and ``injections.Holds`` for the methods."""

    slot: InitVar[int]
    _address: str
    credentials: InitVar[Credentials]
    _heartbeat_s: float
    _inbox: Inbox[Any]
    _deliver: Callable[[LinkEvent], None]
    heartbeat: control.Heartbeat | None = field(default=None, init=False)

    def __post_init__(self, slot: int, credentials: Credentials) -> None:
        self._certificates = credentials.certificates
        self._connecting = Connecting(credentials.secret, PROTOCOL, slot_name(slot, 0), COORDINATOR)
        self._connection: Outgoing | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="flinkplus-heartbeat", daemon=True)

    def open(self) -> None:
        try:
            self._connection = Outgoing(
                self._inbox,
                self._address,
                self._connecting,
                lambda: None,
                lambda frame: self._deliver(ControlArrived(0, control.decode(bytes(frame)), time.time())),
                self._lost,
                joined=False,
                limit=control.MAX_BYTES,
                certificates=self._certificates,
            )
        except (OSError, ValueError) as error:
            self._lost(f"cannot connect to the coordinator at {self._address}: {error}")
            return
        self._thread.start()

    def _lost(self, reason: str) -> None:
        self._deliver(ControlLost(0, reason, time.time()))

    def _beat(self) -> None:
        connection = self._connection
        assert connection is not None
        while not self._closing.wait(self._heartbeat_s):
            if self.heartbeat is not None and not connection.unwritten:
                self.send(self.heartbeat)
            if not connection.ready:
                self._inbox.call_soon(lambda: connection.expire(time.monotonic(), CONNECT_TIMEOUT_S))

    def send(self, message: control.ControlMessage) -> None:
        if self._connection is not None:
            self._connection.send([control.encode(message)])

    def is_silent(self, now_s: float, limit_s: float) -> bool:
        return self._connection is not None and self._connection.is_silent(now_s, limit_s)

    def hold(self, peers: frozenset[int] | None) -> None:
        if self._connection is not None and (peers is None or DRIVER in peers):
            self._connection.hold()

    def release(self) -> None:
        if self._connection is not None:
            self._connection.release()

    def close(self) -> None:
        self._closing.set()
        if self._connection is not None:
            self._connection.finish(CLOSE_TIMEOUT_S)
            self._thread.join()


@dataclass(eq=False, repr=False)
class TcpRendezvous:
    """See ``Rendezvous`` for the methods. The coordinator's thread calls all of them except ``start``."""

    _host: str
    _credentials: Credentials
    _inbox: Inbox[Any]
    _deliver: Callable[[LinkEvent], None]

    def __post_init__(self) -> None:
        self._listener: Listener | None = None
        self._connections: dict[int, Connection] = {}
        self._next = 1
        self.refusals = Refusals()
        self.malformed = 0

    def start(self) -> str:
        self._listener = Listener(
            self._inbox, self._host, PROTOCOL, COORDINATOR, self._credentials, self.refusals, self._welcome
        )
        return self._listener.address

    def _welcome(self, connection: Connection, found: Listening) -> None:
        slot, _ = parse_slot_name(found.name)
        number, self._next = self._next, self._next + 1

        def take(frame: Frame) -> None:
            try:
                message = registered_slot(control.decode(bytes(frame)), slot)
            except PeerProtocolError:
                self.malformed += 1
                raise
            self._deliver(ControlArrived(number, message, time.time()))

        def lost(reason: str) -> None:
            self._connections.pop(number, None)
            self._deliver(ControlLost(number, reason, time.time()))

        self._connections[number] = connection
        connection.welcome(found.welcome, take, lost, joined=False, limit=control.MAX_BYTES)

    def send(self, connection: int, message: control.ControlMessage) -> None:
        known = self._connections.get(connection)
        if known is not None:
            known.send([control.encode(message)])

    def drop(self, connection: int) -> None:
        known = self._connections.pop(connection, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
