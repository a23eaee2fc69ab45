"""A connection of a thread without a loop: ``connections.Outgoing``, with blocking calls.

Rules: everything has a deadline. Every frame has a limit, and its memory is taken as it comes in.
"""

from __future__ import annotations

import socket
import ssl
import time

from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.handshake import Connecting
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.frames import LENGTH, framed

RECEIVE_BYTES = 256 << 10


def dial(address: str, connecting: Connecting, tls: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    """A connection to ``address`` (a port, or the path of a socket) after the handshake, without a timeout. Raises
    ``OSError``, and ``PeerRefused`` when the other end does not know the secret."""
    deadline = time.monotonic() + timeout_s
    connection = _connected(address, timeout_s)
    try:
        if tls is not None:
            connection = tls.wrap_socket(connection)
        connection.sendall(framed(connecting.hello))
        challenge = receive_frame(connection, deadline, handshake.MAX_BYTES)
        connection.sendall(framed(connecting.answer(challenge)))
        connecting.check(receive_frame(connection, deadline, handshake.MAX_BYTES))
        connection.setblocking(True)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(address: str, timeout_s: float) -> socket.socket:
    if not address.startswith("/"):
        return socket.create_connection(parse_address(address), timeout_s)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def receive_frame(connection: socket.socket, deadline: float, limit: int) -> bytes:
    """A frame. Raises ``OSError``, also when it is longer than ``limit`` or not here by ``deadline`` (monotonic)."""
    (size,) = LENGTH.unpack(_receive(connection, LENGTH.size, deadline))
    if size > limit:
        raise ConnectionError(f"the driver answered with {size} bytes")
    return _receive(connection, size, deadline)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(size - len(found), RECEIVE_BYTES))
        if not part:
            raise ConnectionError("the driver has closed the connection")
        found += part
    return bytes(found)
