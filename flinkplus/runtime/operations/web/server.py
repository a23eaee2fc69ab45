"""The web server of one job: a thread with an event loop of its own, which a job starts and ends.

Rules: neither a client nor an error here harms the job. At most ``MAX_CLIENTS`` connections are open, those in a TLS
handshake among them. One that has not done its handshake or sent a whole request within ``REQUEST_TIMEOUT_S``, or is
idle for ``IDLE_S``, is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import weakref
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CLIENTS = 64
REQUEST_TIMEOUT_S = 15.0
RESPONSE_LOOKS = 6
"""A response may take so many times ``REQUEST_TIMEOUT_S``: a command waits up to 60 s for its reply."""
IDLE_S = 5
HEADER_BYTES = 16 << 10
STOP_S = 3.0
GRACEFUL_S = 1
log = logging.getLogger("flinkplus.ui")
clients = logging.getLogger("flinkplus.ui.clients")
clients.setLevel(logging.ERROR)  # what clients do wrong is theirs to know


class _TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection without a whole request or response in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.logger = clients
        self._watch(RESPONSE_LOOKS)

    def _watch(self, looks: int) -> None:
        """Look again later whether the request that is under way, or that has not come, is still the same."""
        before = self.cycle

        def look() -> None:
            waits = before is None or before.response_complete
            if self.transport.is_closing():
                return
            if self.cycle is before and (waits or looks == 0):
                self.transport.abort()
            else:
                self._watch(looks - 1 if self.cycle is before else RESPONSE_LOOKS)

        self._timer = self.loop.call_later(REQUEST_TIMEOUT_S, look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)


class _Door(socket.socket):
    """A socket that listens, and closes at once the connections that are too many."""

    def __init__(self, listening: socket.socket) -> None:
        family, kind, protocol = listening.family, listening.type, listening.proto
        super().__init__(family, kind, protocol, fileno=listening.detach())
        self._inside: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises ``OSError``, and ``BlockingIOError`` if there is none, as other sockets do."""
        for _ in range(MAX_CLIENTS):
            connection, address = super().accept()
            if sum(one.fileno() >= 0 for one in self._inside) < MAX_CLIENTS:
                self._inside.add(connection)
                return connection, address
            connection.close()
        raise BlockingIOError  # there may be more, after the turn of those inside


class WebServer:
    """Serves ``app`` at a socket that listens, from ``start`` to ``stop``."""

    def __init__(self, app: Starlette, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=cast(Any, _TimedProtocol),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACEFUL_S,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        config.load()
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._listening = _Door(listening)
        self._thread = threading.Thread(target=self._run, name="flinkplus-ui", daemon=True)

    def start(self) -> None:
        """Returns at once: connections wait at the socket until the loop runs."""
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            log.warning("the page of the job is not served any more: %s", error, exc_info=True)
        finally:
            self._listening.close()

    async def _serve(self) -> None:
        if self._server.config.ssl is not None:  # uvicorn has no option for it
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=REQUEST_TIMEOUT_S)
        await self._server.serve(sockets=[self._listening])

    def stop(self) -> None:
        """Close the port and all connections; waits up to ``STOP_S``."""
        self._server.should_exit = True
        if self._thread.ident is None:
            self._listening.close()
        else:
            self._thread.join(STOP_S)
