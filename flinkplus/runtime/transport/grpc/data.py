"""The data plane over gRPC (``transport="grpc"``): one bidirectional stream for each ordered pair of slots.

Rules: all gRPC objects live in the I/O thread; ``deliver`` is called in it and must only enqueue. What is waiting to be
written is bounded by the channels' credit windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from flinkplus.runtime.base.io_thread import IoThread
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Refusals, parse_slot_name, slot_name
from flinkplus.runtime.transport.auth.tls import Certificates
from flinkplus.runtime.transport.grpc.door import Door
from flinkplus.runtime.transport.grpc.sockets import HiddenConnection, place_of, place_of_peer
from flinkplus.runtime.transport.grpc.streams import FrameWriter, GrpcServer, run_stream, serve_stream
from flinkplus.runtime.transport.wire.ports import (
    Attachments,
    FrameArrived,
    PeerAttached,
    PeerBroken,
    PeerConnected,
    TransportEvent,
)

PROTOCOL = b"flinkplus-data-grpc/2"
METHOD = "/flinkplus.Data/Stream"
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0


class GrpcDataPlane(Attachments):
    """See ``DataPlane`` for the methods."""

    def __init__(
        self, slot: int, credentials: Credentials, host: str, deliver: Callable[[TransportEvent], None]
    ) -> None:
        super().__init__(slot)
        self._credentials = credentials
        self._certificates = credentials.certificates
        self.refusals = Refusals()
        self._door = Door(credentials, PROTOCOL, self.refusals)
        self._host = host
        self._deliver = deliver
        self._io = IoThread.get()
        self._server = GrpcServer(METHOD, self._serve, self._door, self._certificates)
        self._out: dict[int, _Outgoing] = {}
        self._back: dict[int, FrameWriter] = {}
        self._readers: dict[int, asyncio.Future[None]] = {}
        self._back_from: dict[int, tuple[int, HiddenConnection]] = {}
        self._port = 0

    def start(self) -> str:
        self._port = self._io.submit(self._server.bind(self._host)).result()
        address = self._door.address = f"{self._host}:{self._port}"
        self._be_found()
        return address

    def _be_found(self) -> None:
        if self.name is not None:
            self._io.post(self._be, self.name)

    def _be(self, name: str) -> None:
        self._door.name = name
        self._server.start()

    async def _serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        found = await self._door.admit(context, self.check)
        if found is None:
            return
        peer, incarnation = parse_slot_name(found.name)
        writer = self._back[peer] = FrameWriter(self._io)
        self._back_from[peer] = (incarnation, HiddenConnection(place_of_peer(context.peer()), self._port))

        def opened(reader: asyncio.Future[None]) -> None:
            self._readers[peer] = reader
            self._deliver(PeerAttached(peer))

        async def read() -> None:
            async for frame in requests:
                self._deliver(FrameArrived(peer, frame))

        try:
            await serve_stream(self._door, context, found, writer, opened, read)
        finally:  # returning normally is what closes the stream for the peer
            if self._back.get(peer) is writer:
                del self._back[peer]
                self._readers.pop(peer, None)
                del self._back_from[peer]

    def renew(self, peer: int, reason: str) -> None:
        self._io.post(self._renew, peer, reason)

    def _renew(self, peer: int, reason: str) -> None:
        reader = self._readers.get(peer)
        if reader is not None:
            reader.cancel()  # the peer sees its stream break, and opens another
        outgoing = self._out.pop(peer, None)
        if outgoing is not None:
            outgoing.close()
            self._deliver(PeerBroken(peer, outgoing.target[0], reason))

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        self._io.post(self._connect, dict(peers))

    def _connect(self, peers: dict[int, tuple[int, str]]) -> None:
        for peer, outgoing in list(self._out.items()):
            if peers.get(peer) != outgoing.target:
                outgoing.close()
                del self._out[peer]
        for peer, target in peers.items():
            known = self._out.get(peer)
            if known is not None and known.alive:
                if known.connected:
                    self._deliver(PeerConnected(peer, target[0]))
                continue
            own, theirs = slot_name(self._slot, self.incarnation), slot_name(peer, target[0])
            connecting = Connecting(self._credentials.secret, PROTOCOL, own, theirs, target[1])
            self._out[peer] = _Outgoing(peer, target, connecting, self._certificates, self._io, self._deliver)

    def send(self, peer: int, message: Sequence[Any]) -> None:
        outgoing = self._out.get(peer)
        if outgoing is not None:
            outgoing.writer.put(message)

    send_beside = send

    def send_back(self, peer: int, message: Sequence[Any]) -> None:
        writer = self._back.get(peer)
        if writer is not None:
            writer.put(message)

    def flush(self) -> None:
        """What is queued is on its way."""

    def expire(self, now_s: float) -> None:
        """gRPC has time limits of its own."""

    def silent(self, now_s: float, limit_s: float) -> dict[int, int]:
        back, out = list(self._back_from.items()), list(self._out.items())  # of the I/O thread
        found = {peer: theirs for peer, (theirs, connection) in back if connection.is_silent(now_s, limit_s)}
        found |= {peer: one.target[0] for peer, one in out if one.alive and one.connection.is_silent(now_s, limit_s)}
        return found

    def close(self) -> None:
        self._io.submit(self._close()).result(timeout=CLOSE_TIMEOUT_S + 5)

    async def _close(self) -> None:
        tasks = [outgoing.close() for outgoing in self._out.values()]
        self._out.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.stop()


@dataclass(eq=False, repr=False)
class _Outgoing:
    """The stream from this slot to one peer. Lives in the I/O thread."""

    peer: int
    target: tuple[int, str]
    _connecting: Connecting
    _certificates: Certificates | None
    io: InitVar[IoThread]
    _deliver: Callable[[TransportEvent], None]

    def __post_init__(self, io: IoThread) -> None:
        self.writer = FrameWriter(io)
        self.connection = HiddenConnection(place_of(self.target[1]))
        self.connected = False
        self.alive = True
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        incarnation, address = self.target

        def opened() -> None:
            self.connected = True
            self._deliver(PeerConnected(self.peer, incarnation))

        def take(frame: bytes) -> None:
            self._deliver(FrameArrived(self.peer, frame))

        try:
            reason = await run_stream(
                address, METHOD, self._connecting, self._certificates, CONNECT_TIMEOUT_S, self.writer, opened, take
            )
        finally:
            self.alive = self.connected = False
        self._deliver(PeerBroken(self.peer, incarnation, reason))

    def close(self) -> asyncio.Future[None]:
        self._task.cancel()
        return self._task
