"""A connection that may be waited for, of who has no loop: ``tcp.Outgoing``, with blocking calls.

Rules: everything has a deadline. Every frame has a limit, and its memory is taken as it comes in.
"""

from __future__ import annotations

import socket
import ssl
import time

from flinkplus.runtime import handshake
from flinkplus.runtime.frames import LENGTH, framed
from flinkplus.runtime.handshake import Connecting
from flinkplus.runtime.tcp import parse_address

RECEIVE_BYTES = 256 << 10


def dial(address: str, connecting: Connecting, tls: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    """A connection to ``address``, after the handshake; it blocks without end.

    Raises ``OSError``, and ``PeerRefused`` when it is the other end that does not know the secret.
    """
    deadline = time.monotonic() + timeout_s
    connection = socket.create_connection(parse_address(address), timeout_s)
    try:
        if tls is not None:
            connection = tls.wrap_socket(connection)
        connection.sendall(framed(connecting.hello))
        challenge = receive_frame(connection, deadline, handshake.MAX_BYTES)
        connection.sendall(framed(connecting.answer(challenge)))
        if receive_frame(connection, deadline, handshake.MAX_BYTES):
            raise ConnectionError("the driver answered with something else than a welcome")
        connection.setblocking(True)
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
