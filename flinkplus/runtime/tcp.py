"""Connections over plain TCP, served by the loop that owns them: no thread lies between a message and its receiver.

On a connection there are frames: four bytes of length, then that many bytes. The first frame of whoever connects says
what it speaks, the job's token and a name; the other answers with an empty frame. Then each sends what it likes.

Rules: the loop owns its connections, reads them and ends them; any thread may write, for a socket is written under a
lock. Nothing waits: what a socket does not take stays queued until it does. A stranger is not listened to beyond a
short first frame, and few of them are held at a time.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from flinkplus.runtime.inbox import READ, WRITE, Inbox

log = logging.getLogger("flinkplus.tcp")

LENGTH = struct.Struct("<I")
MAX_HELLO_BYTES = 512
MAX_FRAME_BYTES = 4 << 20
"""What is queued is joined up to this size; a single message may be larger."""
MAX_RECEIVED_BYTES = (1 << 31) + MAX_FRAME_BYTES
STRANGERS = 64
SILENCE_S = 10
PROBES = 3

Frame = bytes | bytearray | memoryview
FrameTaker = Callable[[Frame], None]


class Broken(Exception):
    """A connection is of no more use; the text says why."""


def hello_frame(protocol: bytes, token: str, name: str) -> bytes:
    """The first frame of whoever connects: what it speaks, the job's token, who it is."""
    hello = b"\0".join((protocol, token.encode(), name.encode()))
    return LENGTH.pack(len(hello)) + hello


def parse_address(address: str) -> tuple[str, int]:
    """``host:port``. Raises ``ValueError``."""
    host, _, port = address.rpartition(":")
    return host, int(port)


class Connection:
    """One connection. ``frame`` is called with each frame that has come in, ``broken`` once, with a reason.

    ``limit``: the longest frame that is taken, in bytes. ``joined``: what is queued together goes as one frame; else
    each buffer is one. ``frame`` may raise ``Broken``.
    """

    def __init__(
        self,
        inbox: Inbox[Any],
        sock: socket.socket,
        frame: FrameTaker,
        broken: Callable[[str], None],
        limit: int,
        joined: bool = True,
    ) -> None:
        self._inbox = inbox
        self._sock = sock
        self._frame = frame
        self._broken = broken
        self._limit = limit
        self._joined = joined
        self.open = True
        self.ready = False  # to be written to: connected, and known to each other
        self.due = False  # for its owner: to be written at the end of a turn
        self._lock = threading.Lock()
        self._pending: deque[Any] = deque()
        self._writing = memoryview(b"")
        self._watched = 0
        self._head = b""
        self._body: bytearray | None = None
        self._filled = 0
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", SILENCE_S), ("TCP_KEEPINTVL", SILENCE_S), ("TCP_KEEPCNT", PROBES)):
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def welcome(self, frame: FrameTaker, broken: Callable[[str], None], joined: bool = True) -> None:
        """Whoever has connected is known now: answer, and take whole frames."""
        self._frame, self._broken, self._limit, self._joined = frame, broken, MAX_RECEIVED_BYTES, joined
        self._writing = memoryview(LENGTH.pack(0))
        self.ready = True
        self.write()

    def watch(self, events: int) -> None:
        """Be told when the socket can be read or written."""
        if events != self._watched and self.open:
            self._watched = events
            self._inbox.watch(self._sock, events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        try:
            if events & READ:
                self._receive()
            if events & WRITE and self.open:
                self._on_writable()
        except BlockingIOError:
            pass  # it was ready, and is not any more
        except Broken as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(_told(error))

    def _on_writable(self) -> None:
        self.write()
        if not self.unwritten:
            self.watch(READ)

    # --- in

    def _receive(self) -> None:
        if self._body is not None:
            with memoryview(self._body) as body:
                count = self._sock.recv_into(body[self._filled :])
            self._ended(count)
            self._filled += count
            if self._filled == len(self._body):
                frame, self._body = self._body, None
                self._frame(frame)
            return
        count = self._sock.recv_into(self._inbox.received)
        self._ended(count)
        self._take(self._head + self._inbox.received[:count])

    @staticmethod
    def _ended(count: int) -> None:
        if not count:
            raise Broken("stream closed")

    def _take(self, chunk: bytes) -> None:
        """Frames, as views of what has come in together; the rest begins the next one."""
        view, at, have = memoryview(chunk), 0, len(chunk)
        while have - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(chunk, at)
            if size > self._limit:
                raise Broken(f"a frame of {size} bytes where {self._limit} are the most")
            start = at + LENGTH.size
            if have - start < size:
                self._head = b""
                self._body, self._filled = bytearray(size), have - start
                self._body[: self._filled] = view[start:]
                return
            at = start + size
            self._frame(view[start:at])
            if not self.open:
                return
        self._head = chunk[at:]

    # --- out, in any thread

    def queue(self, buffers: Sequence[Any]) -> None:
        """Queue buffers, to be written by ``write``."""
        self._pending.extend(buffers)

    def send(self, buffers: Sequence[Any]) -> None:
        """Queue buffers and write them at once, as far as it goes."""
        self.queue(buffers)
        self.write()

    def write(self) -> None:
        """Write what is queued, as far as the socket takes it; the loop does the rest."""
        with self._lock:
            if not (self.open and self.ready):
                return
            try:
                while self._writing or self._pending:
                    if not self._writing:
                        self._writing = memoryview(self._next_frame())
                    self._writing = self._writing[self._sock.send(self._writing) :]
            except BlockingIOError:
                self._inbox.call_soon(lambda: self.watch(READ | WRITE))
            except OSError as error:
                reason = _told(error)
                self._inbox.call_soon(lambda: self.fail(reason))

    def _next_frame(self) -> bytes:
        parts, size, pending = [b""], 0, self._pending
        while pending and size < MAX_FRAME_BYTES and (self._joined or not size):
            part = pending.popleft()
            parts.append(part)
            size += len(part)
        parts[0] = LENGTH.pack(size)
        return b"".join(parts)

    @property
    def unwritten(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._writing or self._pending)

    # --- the end

    def fail(self, reason: str) -> None:
        """It broke: close it and say so, once."""
        if self.open:
            self.close()
            self._broken(reason)

    def finish(self, timeout_s: float) -> None:
        """Write what is queued, and close once the other end has; ``timeout_s`` seconds at most. Only in the loop, and
        not in one of its callbacks.
        """
        deadline = time.monotonic() + timeout_s
        self.write()
        finished = False
        while self.open and time.monotonic() < deadline:
            if self.ready and not self.unwritten and not finished:
                finished = True
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
            self._inbox.sleep(min(0.05, timeout_s))
        self.close()

    def close(self) -> None:
        """Close it without a word; nothing happens when it is closed."""
        with self._lock:
            if not self.open:
                return
            self.open = self.ready = False
            self._inbox.forget(self._sock)
            self._sock.close()
            self._pending.clear()


class Outgoing(Connection):
    """A connection to ``address``. ``connected`` is called once the other end has answered. Raises ``OSError``."""

    def __init__(
        self,
        inbox: Inbox[Any],
        address: str,
        hello: bytes,
        connected: Callable[[], None],
        frame: FrameTaker,
        broken: Callable[[str], None],
        joined: bool = True,
    ) -> None:
        self.address = address
        self._connected = connected
        self._deliver_frame = frame
        self._hello = hello
        self.begun_s = time.monotonic()
        host, port = parse_address(address)
        # A host name is looked up, which may take its time; slots and drivers give numbers.
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(inbox, socket.socket(family, kind), self._first, broken, MAX_RECEIVED_BYTES, joined)
        try:
            self._sock.connect(place)
        except BlockingIOError:
            pass  # it is on its way
        except OSError:
            self._sock.close()
            raise
        self.watch(WRITE)

    def _on_writable(self) -> None:
        if not self._hello:
            super()._on_writable()
            return
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"cannot connect to {self.address}")
        hello, self._hello = self._hello, b""
        self._sock.send(hello)  # some hundred bytes into an empty buffer
        self.watch(READ)

    def _first(self, frame: Frame) -> None:
        if len(frame):
            raise Broken(f"{self.address} answered with {len(frame)} bytes instead of a welcome")
        self._frame = self._deliver_frame
        self.ready = True
        self._connected()
        self.write()

    def expire(self, now_s: float, timeout_s: float) -> None:
        """Give up when the other end has not answered in time (``now_s``: monotonic clock)."""
        if self.open and not self.ready and now_s - self.begun_s > timeout_s:
            self.fail(f"no answer from {self.address} within {timeout_s} s")


class Listener:
    """Takes connections of those who know the job's token and speak ``protocol``; ``welcome`` is called with each and
    the name it gives.

    ``welcome`` says what to do with its frames (``Connection.welcome``), or raises ``Broken``.
    """

    def __init__(
        self, inbox: Inbox[Any], host: str, protocol: bytes, token: str, welcome: Callable[[Connection, str], None]
    ) -> None:
        self._inbox = inbox
        self._protocol = protocol
        self._token = token.encode()
        self._welcome = welcome
        self._strangers: deque[Connection] = deque()
        self._socket = socket.create_server((host, 0), backlog=128)
        self._socket.setblocking(False)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        inbox.watch(self._socket, READ, self._accept)

    def _accept(self, _ready: int) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError as error:  # it went away again, or there are no more files: the listener stays
            log.info("cannot accept a connection: %s", error)
            return

        def hello(frame: Frame) -> None:
            self._check(connection, bytes(frame))

        connection = Connection(self._inbox, sock, hello, lambda _reason: None, MAX_HELLO_BYTES)
        connection.watch(READ)
        self._strangers = deque(other for other in self._strangers if other.open and not other.ready)
        self._strangers.append(connection)
        if len(self._strangers) > STRANGERS:
            self._strangers.popleft().close()

    def _check(self, connection: Connection, hello: bytes) -> None:
        protocol, token, name = [*hello.split(b"\0", 2), b"", b""][:3]
        if protocol != self._protocol:
            raise Broken(f"protocol {protocol!r}, this program speaks {self._protocol!r}")
        if not hmac.compare_digest(token, self._token):
            raise Broken("wrong job token")
        self._welcome(connection, name.decode("ascii", "replace"))

    def close(self) -> None:
        """Take no more connections, and close those of strangers."""
        self._inbox.forget(self._socket)
        self._socket.close()
        for connection in self._strangers:
            if not connection.ready:
                connection.close()


def _told(error: OSError) -> str:
    return f"{type(error).__name__}: {error.strerror or error}"
