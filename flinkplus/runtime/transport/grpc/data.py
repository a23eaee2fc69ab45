"""The data plane over gRPC (``transport="grpc"``): one bidirectional stream for each ordered pair of slots.

Rules: all gRPC objects live in the I/O thread; ``deliver`` is called in it and must only enqueue. What is waiting to be
written is bounded by the channels' credit windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from flinkplus.errors import PeerRefused, described
from flinkplus.printable import printable
from flinkplus.runtime.base.io_thread import IoThread, aio
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Refusals, parse_slot_name, slot_name
from flinkplus.runtime.transport.auth.tls import Certificates
from flinkplus.runtime.transport.grpc.door import Door, open_stream
from flinkplus.runtime.transport.grpc.sockets import HiddenConnection, place_of, place_of_peer
from flinkplus.runtime.transport.grpc.streams import GrpcServer, identity, open_channel
from flinkplus.runtime.transport.wire.frames import JOINED_BYTES, FrameQueue
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
SERVICE, METHOD_NAME = "flinkplus.Data", "Stream"
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0


class FrameWriter:
    """Writes messages to one stream, as frames; ``put`` may be called in any thread. ``joined_bytes``: messages that
    wait are joined up to this size; 0: each is a frame.
    """

    def __init__(self, io: IoThread, joined_bytes: int = JOINED_BYTES) -> None:
        self._io = io
        self._pending = FrameQueue(joined_bytes)
        self._wake = asyncio.Event()
        self._posted = False

    def put(self, message: Sequence[Any]) -> None:
        """Queue one whole message, given as buffers."""
        self._pending.put(message)
        if not self._posted:
            self._posted = True
            self._io.post(self._awaken)

    @property
    def waiting(self) -> int:
        """Messages not yet handed to gRPC."""
        return len(self._pending)

    def _awaken(self) -> None:
        self._posted = False
        self._wake.set()

    async def pump(self, write: Callable[[bytes], Any]) -> None:
        """Write until cancelled or the stream breaks."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                await write(self._pending.next_frame())


class GrpcDataPlane(Attachments):
    """See ``DataPlane``."""

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
        self._server = GrpcServer(SERVICE, METHOD_NAME, self._serve, self._door, self._certificates)
        self._out: dict[int, _Outgoing] = {}
        self._back: dict[int, FrameWriter] = {}
        self._readers: dict[int, asyncio.Future[None]] = {}
        self._back_from: dict[int, tuple[int, HiddenConnection]] = {}
        self._port = 0

    def start(self) -> str:
        """Start the data server on a port the system picks; returns ``host:port``."""
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
        found = await self._door.admit(context)
        if found is None:
            return
        try:
            peer = self.check(found)
        except PeerRefused as error:
            await self._door.refuse(context, error)
            raise
        writer = FrameWriter(self._io)
        self._back[peer] = writer
        connection = HiddenConnection(place_of_peer(context.peer()), self._port)
        self._back_from[peer] = (parse_slot_name(found.name)[1], connection)
        pump: asyncio.Future[None] | None = None
        reader: asyncio.Future[None] | None = None
        try:
            async with self._door.open(context, found):
                self._deliver(PeerAttached(peer))
                pump = asyncio.ensure_future(writer.pump(context.write))
                reader = self._readers[peer] = asyncio.ensure_future(self._read(peer, requests))
                await asyncio.wait({reader})  # returning normally is what closes the stream for the peer
                if not reader.cancelled():
                    reader.exception()  # the peer is gone, and its side knows
        finally:
            for task in (pump, reader):
                if task is not None:
                    task.cancel()
            if self._back.get(peer) is writer:
                del self._back[peer]
                self._readers.pop(peer, None)
                del self._back_from[peer]

    async def _read(self, peer: int, requests: AsyncIterator[bytes]) -> None:
        async for frame in requests:
            self._deliver(FrameArrived(peer, frame))

    def renew(self, peer: int, reason: str) -> None:
        """Break the streams from and to ``peer``: something that came on one is lost, and is to be sent again."""
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
        """Have a stream to each peer (slot -> (incarnation, address)) and to no other; ``PeerConnected`` tells when."""
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
            connecting = Connecting(
                self._credentials.secret,
                PROTOCOL,
                slot_name(self._slot, self.incarnation),
                slot_name(peer, target[0]),
                target[1],
            )
            self._out[peer] = _Outgoing(peer, target, connecting, self._certificates, self._io, self._deliver)

    def send(self, peer: int, message: Sequence[Any]) -> None:
        """See ``DataPlane``."""
        outgoing = self._out.get(peer)
        if outgoing is not None:
            outgoing.writer.put(message)

    send_beside = send

    def send_back(self, peer: int, message: Sequence[Any]) -> None:
        """See ``DataPlane``."""
        writer = self._back.get(peer)
        if writer is not None:
            writer.put(message)

    def flush(self) -> None:
        """What is queued is on its way."""

    def expire(self, now_s: float) -> None:
        """gRPC has time limits of its own."""

    def silent(self, now_s: float, limit_s: float) -> dict[int, int]:
        """See ``DataPlane``."""
        back, out = list(self._back_from.items()), list(self._out.items())  # of the I/O thread
        found = {peer: theirs for peer, (theirs, connection) in back if connection.is_silent(now_s, limit_s)}
        found |= {peer: one.target[0] for peer, one in out if one.alive and one.connection.is_silent(now_s, limit_s)}
        return found

    def close(self) -> None:
        """Close all streams and the server, bounded."""
        self._io.submit(self._close()).result(timeout=CLOSE_TIMEOUT_S + 5)

    async def _close(self) -> None:
        tasks = [outgoing.close() for outgoing in self._out.values()]
        self._out.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.stop()


class _Outgoing:
    """The stream from this slot to one peer. Lives in the I/O thread."""

    def __init__(
        self,
        peer: int,
        target: tuple[int, str],
        connecting: Connecting,
        certificates: Certificates | None,
        io: IoThread,
        deliver: Callable[[TransportEvent], None],
    ) -> None:
        self.peer = peer
        self.target = target
        self.writer = FrameWriter(io)
        self.connection = HiddenConnection(place_of(target[1]))
        self.connected = False
        self.alive = True
        self._deliver = deliver
        self._connecting = connecting
        self._certificates = certificates
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        incarnation, address = self.target
        reason = "closed by the peer"
        pump: asyncio.Future[None] | None = None
        channel = open_channel(address, self._certificates)
        try:
            open_call = channel.stream_stream(METHOD, identity, identity)
            call = await open_stream(open_call, self._connecting, CONNECT_TIMEOUT_S)
            self.connected = True
            self._deliver(PeerConnected(self.peer, incarnation))
            pump = asyncio.ensure_future(self.writer.pump(call.write))
            while (frame := await call.read()) is not aio.EOF:
                self._deliver(FrameArrived(self.peer, frame))
        except aio.AioRpcError as error:
            reason = f"{error.code().name}: {printable(error.details())}"
        except Exception as error:  # any error: the stream is gone, and the slot must know
            reason = described(error)
        finally:
            self.alive = self.connected = False
            if pump is not None:
                pump.cancel()
            await channel.close()
        self._deliver(PeerBroken(self.peer, incarnation, reason))

    def close(self) -> asyncio.Future[None]:
        self._task.cancel()
        return self._task
