"""Connections at a gRPC server on which no stream was let in: few of them, and none for long.

gRPC has one limit for all connections, ``MAX_CONNECTIONS``, so strangers that connect often enough, and send nothing,
would keep every process of the job out. Here the sockets of the server are found among the open files of the process
(``sockets``), every ``LOOK_S`` seconds. Strangers' sockets are ended by the rule of the other transport: after
``TIMEOUT_S``, and the oldest of the address that has the most when there are more than ``MAX_STRANGERS``.

Rules: lives in the I/O thread. A connection with a stream is never ended here. On systems other than Linux, which do
not show the sockets, only gRPC's own limits apply.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.grpc.sockets import Accepted, Place, end_connection, place_of_peer, shown

LOOK_S, CROWDED_LOOK_S = 0.5, 0.1
"""Between two looks; and when there are more than half of ``MAX_STRANGERS``."""
MAX_CONNECTIONS = 512
"""At one server: strangers must not take the files that the slot needs for its state."""
_timeout_ms = int(handshake.TIMEOUT_S * 1000)
SERVER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_connection_idle_ms", _timeout_ms),  # idle is a connection without a stream
    ("grpc.server_handshake_timeout_ms", _timeout_ms),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_metadata_size", 4 << 10),
    ("grpc.absolute_max_metadata_size", 8 << 10),
]


class Crowd:
    """The connections of one server. ``refused`` is called with a reason and a text for each that is ended."""

    def __init__(self, refused: Callable[[str, str], None]) -> None:
        self._refused = refused
        self._accepted = Accepted()
        self._inside: Counter[Place | None] = Counter()
        self._since: dict[tuple[int, Place], float] = {}  # the oldest is the first

    @contextmanager
    def without(self, peer: str) -> Iterator[None]:
        """Meanwhile the connection of ``peer``, as gRPC names it, has a stream."""
        place = place_of_peer(peer)
        self._inside[place] += 1
        try:
            yield
        finally:
            self._inside[place] -= 1
            if not self._inside[place]:
                del self._inside[place]

    async def watch(self, port: int) -> None:
        """Look time and again, until cancelled; ``port``: the server's."""
        while True:
            self.look(port, time.monotonic())
            crowded = len(self._since) > handshake.MAX_STRANGERS // 2
            await asyncio.sleep(CROWDED_LOOK_S if crowded else LOOK_S)

    def look(self, port: int, now_s: float) -> None:
        """End what has been there for too long, and the oldest where there are too many."""
        here = {
            (inode, place): number for number, inode, place in self._accepted.here(port) if place not in self._inside
        }
        known = {found: since for found, since in self._since.items() if found in here}
        # Sockets get their numbers about in the order in which they come.
        self._since = known | {found: now_s for found in sorted(here) if found not in known}
        latest = now_s - handshake.TIMEOUT_S
        for found in [found for found, since in self._since.items() if since <= latest]:
            self._end(here[found], found, handshake.TIMEOUT, f"no stream within {handshake.TIMEOUT_S} s")
        for found in handshake.excess(self._since, lambda found, _: found[1][0]):
            text = f"more than {handshake.MAX_STRANGERS} connections without a stream"
            self._end(here[found], found, handshake.CROWD, text)

    def _end(self, number: int, found: tuple[int, Place], reason: str, text: str) -> None:
        del self._since[found]
        if end_connection(number, found[0]):
            self._refused(reason, f"{shown(found[1])}: {text}")
