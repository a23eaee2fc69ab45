"""The ends of one bidirectional stream of bytes over gRPC: a server of such streams, and a channel to one.

Rules: lives in the I/O thread. Between ``bind`` and ``start`` connections wait in the system's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkplus.errors import described
from flinkplus.printable import printable
from flinkplus.runtime.base.io_thread import IoThread, aio, grpc
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening
from flinkplus.runtime.transport.auth.tls import NAME, Certificates
from flinkplus.runtime.transport.grpc.crowd import SERVER_OPTIONS
from flinkplus.runtime.transport.grpc.door import WELCOME, Door, open_stream
from flinkplus.runtime.transport.wire.frames import JOINED_BYTES, MAX_FRAME_BYTES, FrameQueue

GRPC_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),  # a peer that is cut off without a word is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]


def identity(data: bytes) -> bytes:
    """Serializer and deserializer of frames, which are bytes already."""
    return data


def open_channel(address: str, certificates: Certificates | None) -> aio.Channel:
    """A channel to a server; with certificates, by mutual TLS."""
    if certificates is None:
        return aio.insecure_channel(address, options=GRPC_OPTIONS)
    found = grpc.ssl_channel_credentials(certificates.authority, certificates.key, certificates.certificate)
    return aio.secure_channel(address, found, options=[*GRPC_OPTIONS, ("grpc.ssl_target_name_override", NAME)])


class FrameWriter:
    """Writes messages to one stream, as frames: they are joined up to ``joined_bytes``; 0: each is a frame."""

    def __init__(self, io: IoThread, joined_bytes: int = JOINED_BYTES) -> None:
        self._io = io
        self._pending = FrameQueue(joined_bytes)
        self._wake = asyncio.Event()
        self._posted = False

    def put(self, message: Sequence[Any]) -> None:
        """Queue one whole message, given as buffers; in any thread."""
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


async def run_stream(
    address: str,
    method: str,
    connecting: Connecting,
    certificates: Certificates | None,
    timeout_s: float,
    writer: FrameWriter,
    opened: Callable[[], None],
    take: Callable[[bytes], None],
) -> str:
    """A stream to a server, from its opening (within ``timeout_s``) to its end. Returns why it has ended. ``opened``:
    called once each end has proved to be of the job; ``take``: with each frame."""
    channel = open_channel(address, certificates)
    pump: asyncio.Future[None] | None = None
    try:
        call = await open_stream(channel.stream_stream(method, identity, identity), connecting, timeout_s)
        opened()
        pump = asyncio.ensure_future(writer.pump(call.write))
        while (frame := await call.read()) is not aio.EOF:
            take(frame)
        return "closed by the other end"
    except aio.AioRpcError as error:
        return f"{error.code().name}: {printable(error.details())}"
    except asyncio.TimeoutError:
        return f"no answer from {address} within {timeout_s} s"
    except Exception as error:  # any error: the stream is gone, and the slot must know
        return described(error)
    finally:
        if pump is not None:
            pump.cancel()
        await channel.close()


async def serve_stream(
    door: Door,
    context: Any,
    found: Listening,
    writer: FrameWriter,
    opened: Callable[[asyncio.Future[None]], None],
    read: Callable[[], Coroutine[Any, Any, None]],
) -> str:
    """The stream of ``found``, from when it is let in to its end. Returns why it has ended. ``opened``: called with the
    task that reads; the stream ends when that is cancelled."""
    tasks: list[asyncio.Future[None]] = []
    try:
        with door.crowd.without(context.peer()):
            await context.send_initial_metadata(((WELCOME, found.welcome),))
            reader = asyncio.ensure_future(read())
            tasks += [reader, asyncio.ensure_future(writer.pump(context.write))]
            opened(reader)
            await asyncio.wait({reader})
            error = None if reader.cancelled() else reader.exception()
            return "stream closed" if error is None else str(error)
    finally:
        for task in tasks:
            task.cancel()


@dataclass(eq=False, repr=False)
class GrpcServer:
    """A server of the one ``method``. ``serve`` gets the requests and the context of each call; it asks ``door``."""

    _method: str
    _serve: Callable[..., Any]
    _door: Door
    _certificates: Certificates | None
    _server: aio.Server | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)
    _started: asyncio.Future[None] | None = field(default=None, init=False)
    _watching: asyncio.Future[None] | None = field(default=None, init=False)

    async def bind(self, host: str) -> int:
        """Take a port of ``host`` that the system picks."""
        server = self._server = aio.server(options=[*GRPC_OPTIONS, *SERVER_OPTIONS])
        handler = grpc.stream_stream_rpc_method_handler(self._serve, identity, identity)
        _, service, name = self._method.split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        if self._certificates is None:
            self._port = server.add_insecure_port(f"{host}:0")
        else:
            pair = [(self._certificates.key, self._certificates.certificate)]
            found = grpc.ssl_server_credentials(pair, self._certificates.authority, require_client_auth=True)
            self._port = server.add_secure_port(f"{host}:0", found)
        return self._port

    def start(self) -> None:
        """Take the calls that come, from now on; nothing happens when it does already, or is not bound yet."""
        if self._server is not None and self._started is None:
            self._started = asyncio.ensure_future(self._server.start())
            self._watching = asyncio.ensure_future(self._door.crowd.watch(self._port))

    async def stop(self) -> None:
        """End all calls, and give the port back."""
        server, self._server = self._server, None
        if self._watching is not None:
            self._watching.cancel()
        if self._started is not None:
            await asyncio.wait({self._started})
        if server is not None:
            await server.stop(grace=None)
