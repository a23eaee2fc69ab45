"""The control plane over gRPC: ``GrpcControlLink`` is the slot's end, ``GrpcRendezvous`` the coordinator's.

Rules: ``deliver`` is called in the I/O thread and must only enqueue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

from flinkplus.errors import PeerProtocolError
from flinkplus.runtime.base.io_thread import IoThread
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Refusals, parse_slot_name, slot_name
from flinkplus.runtime.transport.grpc.door import Door
from flinkplus.runtime.transport.grpc.sockets import HiddenConnection, place_of
from flinkplus.runtime.transport.grpc.streams import FrameWriter, GrpcServer, run_stream, serve_stream
from flinkplus.runtime.transport.wire.ports import COORDINATOR, ControlArrived, ControlLost, LinkEvent, registered_slot

PROTOCOL = b"flinkplus-control-grpc/2"
METHOD = "/flinkplus.Control/Stream"
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
EACH_A_FRAME = 0
"""Control messages are not joined."""


@dataclass(eq=False, repr=False)
class GrpcControlLink:
    """See ``ControlLink`` for the methods."""

    slot: InitVar[int]
    _address: str
    credentials: InitVar[Credentials]
    _heartbeat_s: float
    _deliver: Callable[[LinkEvent], None]
    heartbeat: control.Heartbeat | None = field(default=None, init=False)

    def __post_init__(self, slot: int, credentials: Credentials) -> None:
        self._connection = HiddenConnection(place_of(self._address))
        self._certificates = credentials.certificates
        self._connecting = Connecting(credentials.secret, PROTOCOL, slot_name(slot, 0), COORDINATOR)
        self._io = IoThread.get()
        self._writer = FrameWriter(self._io, EACH_A_FRAME)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._io.post(self._open)

    def _open(self) -> None:
        self._task = self._io.loop.create_task(self._run())

    async def _run(self) -> None:
        beats: list[asyncio.Future[None]] = []
        try:
            reason = await run_stream(
                self._address,
                METHOD,
                self._connecting,
                self._certificates,
                CONNECT_TIMEOUT_S,
                self._writer,
                opened=lambda: beats.append(asyncio.ensure_future(self._beat())),
                take=lambda data: self._deliver(ControlArrived(0, control.decode(data), time.time())),
            )
        finally:
            for beat in beats:
                beat.cancel()
        self._deliver(ControlLost(0, reason, time.time()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if self.heartbeat is not None:
                self.send(self.heartbeat)

    def send(self, message: control.ControlMessage) -> None:
        self._writer.put([control.encode(message)])

    def is_silent(self, now_s: float, limit_s: float) -> bool:
        return self._connection.is_silent(now_s, limit_s)

    def close(self) -> None:
        self._io.submit(self._close()).result(timeout=CLOSE_TIMEOUT_S)

    async def _close(self) -> None:
        deadline = time.monotonic() + 1.0
        while self._writer.waiting and time.monotonic() < deadline and self._task is not None and not self._task.done():
            await asyncio.sleep(0.001)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class GrpcRendezvous:
    """See ``Rendezvous`` for the methods."""

    def __init__(self, host: str, credentials: Credentials, deliver: Callable[[LinkEvent], None]) -> None:
        self._host = host
        self.refusals = Refusals()
        self.malformed = 0
        self._certificates = credentials.certificates
        self._door = Door(credentials, PROTOCOL, self.refusals, COORDINATOR)
        self._deliver = deliver
        self._io = IoThread.get()
        self._server = GrpcServer(METHOD, self._serve, self._door, self._certificates)
        self._connections: dict[int, tuple[FrameWriter, asyncio.Future[None]]] = {}
        self._next = 1

    def start(self) -> str:
        return f"{self._host}:{self._io.submit(self._start()).result()}"

    async def _start(self) -> int:
        port = await self._server.bind(self._host)
        self._server.start()
        return port

    async def _serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        found = await self._door.admit(context, lambda dialler: parse_slot_name(dialler.name))
        if found is None:
            return
        slot, _ = parse_slot_name(found.name)
        connection, self._next = self._next, self._next + 1
        writer = FrameWriter(self._io, EACH_A_FRAME)

        def opened(reader: asyncio.Future[None]) -> None:
            self._connections[connection] = (writer, reader)

        async def read() -> None:
            async for data in requests:
                try:
                    message = registered_slot(control.decode(data), slot)
                except PeerProtocolError:
                    self.malformed += 1
                    raise
                self._deliver(ControlArrived(connection, message, time.time()))

        reason = "stream closed"
        try:
            reason = await serve_stream(self._door, context, found, writer, opened, read)
        finally:
            self._connections.pop(connection, None)
            self._deliver(ControlLost(connection, reason, time.time()))

    def send(self, connection: int, message: control.ControlMessage) -> None:
        known = self._connections.get(connection)
        if known is not None:
            known[0].put([control.encode(message)])

    def drop(self, connection: int) -> None:
        self._io.post(self._drop, connection)

    def _drop(self, connection: int) -> None:
        known = self._connections.get(connection)
        if known is not None:
            known[1].cancel()

    def close(self) -> None:
        self._io.submit(self._server.stop()).result(timeout=CLOSE_TIMEOUT_S)
