"""The ends of one bidirectional stream of bytes over gRPC: a server of such streams, and a channel to one.

Rules: lives in the I/O thread. Between ``bind`` and ``start`` connections wait in the system's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flinkplus.runtime.base.io_thread import aio, grpc
from flinkplus.runtime.transport.auth.tls import NAME, Certificates
from flinkplus.runtime.transport.grpc.crowd import SERVER_OPTIONS
from flinkplus.runtime.transport.grpc.door import Door
from flinkplus.runtime.transport.wire.frames import MAX_FRAME_BYTES

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


class GrpcServer:
    """A server of one method. ``serve`` is called with the requests and the context of each call; it asks ``door``
    whether to let it in.
    """

    def __init__(
        self, service: str, method: str, serve: Callable[..., Any], door: Door, certificates: Certificates | None
    ) -> None:
        self._service = service
        self._method = method
        self._serve = serve
        self._door = door
        self._certificates = certificates
        self._server: aio.Server | None = None
        self._port = 0
        self._started: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None] | None = None

    async def bind(self, host: str) -> int:
        """Take a port of ``host`` that the system picks."""
        server = self._server = aio.server(options=[*GRPC_OPTIONS, *SERVER_OPTIONS])
        handler = grpc.stream_stream_rpc_method_handler(self._serve, identity, identity)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service, {self._method: handler}),))
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
