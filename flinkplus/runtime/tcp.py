"""The data plane over plain TCP, served by the slot's own loop: no thread lies between a message and its subtask.

On a connection there are frames: four bytes of length, then that many bytes. The first frame of the slot that connects
says who it is and that it knows the job's token; the other answers with an empty frame. From then on a frame is any
number of whole messages.

Rules: the slot's loop owns all connections; another thread may only ``send``, and then wakes the loop. Nothing waits:
what a socket does not take stays queued until it does. How much can be queued is bounded by the channels' credit. A
stranger is not listened to beyond a short first frame, and few of them are held at a time.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from flinkplus.runtime.data_plane import FrameArrived, PeerAttached, PeerBroken, PeerConnected, TransportEvent
from flinkplus.runtime.inbox import READ, WRITE, Inbox

log = logging.getLogger("flinkplus.slot")

PROTOCOL = b"flinkplus-data/1"
LENGTH = struct.Struct("<I")
MAX_HELLO_BYTES = 512
MAX_FRAME_BYTES = 4 << 20
"""Messages are joined up to this size; a single one may be larger."""
MAX_RECEIVED_BYTES = (1 << 31) + MAX_FRAME_BYTES
RECEIVE_BYTES = 256 << 10
STRANGERS = 64
CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 10
PROBES = 3


Frame = bytes | bytearray | memoryview
FrameTaker = Callable[[Frame], None]


def hello_frame(protocol: bytes, token: str, name: str) -> bytes:
    """The first frame of whoever connects: what it speaks, the job's token, who it is."""
    hello = b"\0".join((protocol, token.encode(), name.encode()))
    return LENGTH.pack(len(hello)) + hello


class Broken(Exception):
    """A connection is of no more use; the text says why."""


_received = memoryview(bytearray(RECEIVE_BYTES))
"""Where every socket is read to first: the loop is one thread."""


class Connection:
    """One connection. ``frame`` is called with each frame that has come in, ``broken`` once, with a reason.

    ``limit``: the longest frame that is taken, in bytes.
    """

    def __init__(
        self,
        inbox: Inbox[Any],
        sock: socket.socket,
        frame: FrameTaker,
        broken: Callable[[str], None],
        limit: int,
    ) -> None:
        self._inbox = inbox
        self._sock = sock
        self._frame = frame
        self._broken = broken
        self._limit = limit
        self.open = True
        self.ready = False  # to be written to: connected, and known to each other
        self.queued = False
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

    def welcome(self, frame: FrameTaker, broken: Callable[[str], None]) -> None:
        """Whoever has connected is known now: answer, and take whole frames."""
        self._frame, self._broken, self._limit = frame, broken, MAX_RECEIVED_BYTES
        self._writing = memoryview(LENGTH.pack(0))
        self.ready = True

    def watch(self, events: int) -> None:
        """Be told when the socket can be read or written."""
        if events != self._watched:
            self._watched = events
            self._inbox.watch(self._sock, events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        try:
            if events & READ:
                self._receive()
            if events & WRITE and self.open:
                self._on_writable()
        except Broken as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(f"{type(error).__name__}: {error.strerror or error}")

    def _on_writable(self) -> None:
        self.write()

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
        count = self._sock.recv_into(_received)
        self._ended(count)
        self._take(self._head + _received[:count])

    @staticmethod
    def _ended(count: int) -> None:
        if not count:
            raise Broken("closed by the peer")

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

    # --- out

    def queue(self, buffers: Sequence[Any]) -> None:
        """Queue buffers of a frame; any thread."""
        self._pending.extend(buffers)

    def write(self) -> None:
        """Write what is queued, as far as the socket takes it. Raises ``OSError``."""
        while self.open:
            if not self._writing:
                if not self._pending:
                    self.watch(READ)
                    return
                self._writing = memoryview(self._next_frame())
            try:
                sent = self._sock.send(self._writing)
            except BlockingIOError:
                self.watch(READ | WRITE)
                return
            self._writing = self._writing[sent:]

    def _next_frame(self) -> bytes:
        parts, size, pending = [b""], 0, self._pending
        while pending and size < MAX_FRAME_BYTES:
            part = pending.popleft()
            parts.append(part)
            size += len(part)
        parts[0] = LENGTH.pack(size)
        return b"".join(parts)

    def flush(self) -> None:
        """Write, if it is time; a fault breaks the connection."""
        if not (self.open and self.ready):
            return
        try:
            self.write()
        except OSError as error:
            self.fail(f"{type(error).__name__}: {error.strerror or error}")

    # --- the end

    def fail(self, reason: str) -> None:
        """It broke: close it and say so, once."""
        if self.open:
            self.close()
            self._broken(reason)

    def close(self) -> None:
        """Close it without a word; nothing happens when it is closed."""
        if not self.open:
            return
        self.open = self.ready = False
        self._inbox.forget(self._sock)
        self._sock.close()
        self._pending.clear()


class Outgoing(Connection):
    """The stream from this slot to a peer. ``connected`` is called once the peer has answered."""

    def __init__(
        self,
        inbox: Inbox[Any],
        target: tuple[int, str],
        hello: bytes,
        connected: Callable[[], None],
        frame: FrameTaker,
        broken: Callable[[str], None],
    ) -> None:
        self.target = target
        self._connected = connected
        self._deliver_frame = frame
        self._hello = hello
        self.begun_s = time.monotonic()
        host, _, port = target[1].rpartition(":")
        # A host name is looked up, which may take its time; slots give numbers.
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        super().__init__(inbox, socket.socket(family, kind), self._first, broken, MAX_RECEIVED_BYTES)
        try:
            self._sock.connect(address)
        except BlockingIOError:
            pass  # it is on its way
        except OSError:
            self._sock.close()
            raise
        self.watch(WRITE)

    def _on_writable(self) -> None:
        if self._hello:
            error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, f"cannot connect to {self.target[1]}")
            hello, self._hello = self._hello, b""
            self._sock.send(hello)  # some fifty bytes into an empty buffer
            self.watch(READ)
        else:
            self.write()

    def _first(self, frame: Frame) -> None:
        if len(frame):
            raise Broken(f"{self.target[1]} answered with {len(frame)} bytes instead of a welcome")
        self._frame = self._deliver_frame
        self.ready = True
        self._connected()
        self.flush()


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
        connection = Connection(
            self._inbox,
            sock,
            lambda hello: self._check(connection, bytes(hello)),
            lambda _reason: None,
            MAX_HELLO_BYTES,
        )
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


class TcpDataPlane:
    """See ``DataPlane``. ``deliver`` is called in the loop and must only enqueue."""

    def __init__(
        self, slot: int, token: str, host: str, inbox: Inbox[Any], deliver: Callable[[TransportEvent], None]
    ) -> None:
        self._token = token
        self._host = host
        self._inbox = inbox
        self._deliver = deliver
        self._hello = hello_frame(PROTOCOL, token, str(slot))
        self._listener: Listener | None = None
        self._out: dict[int, Outgoing] = {}
        self._back: dict[int, Connection] = {}
        self._dirty: deque[Connection] = deque()

    def start(self) -> str:
        """See ``DataPlane``."""
        self._listener = Listener(self._inbox, self._host, PROTOCOL, self._token, self._welcome)
        return self._listener.address

    # --- peers that connect

    def _welcome(self, connection: Connection, name: str) -> None:
        if not name.isdecimal():
            raise Broken(f"{name!r} is no slot")
        peer = int(name)

        def gone(_reason: str) -> None:  # its side knows
            if self._back.get(peer) is connection:
                del self._back[peer]

        connection.welcome(lambda frame: self._deliver(FrameArrived(peer, frame)), gone)
        old = self._back.get(peer)
        self._back[peer] = connection
        if old is not None:
            old.close()
        self._deliver(PeerAttached(peer))
        connection.flush()

    # --- peers that are connected to

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        """See ``DataPlane``."""
        for peer, outgoing in list(self._out.items()):
            if peers.get(peer) != outgoing.target:
                outgoing.close()
                del self._out[peer]
        for peer, target in peers.items():
            known = self._out.get(peer)
            if known is None or not known.open:
                self._open(peer, target)
            elif known.ready:
                self._deliver(PeerConnected(peer, target[0]))

    def _open(self, peer: int, target: tuple[int, str]) -> None:
        try:
            self._out[peer] = Outgoing(
                self._inbox,
                target,
                self._hello,
                lambda: self._deliver(PeerConnected(peer, target[0])),
                lambda frame: self._deliver(FrameArrived(peer, frame)),
                lambda reason: self._deliver(PeerBroken(peer, target[0], reason)),
            )
        except (OSError, ValueError) as error:
            self._out.pop(peer, None)
            self._deliver(PeerBroken(peer, target[0], f"cannot connect to {target[1]}: {error}"))

    def expire(self, now_s: float) -> None:
        """See ``DataPlane``."""
        for outgoing in list(self._out.values()):
            if outgoing.open and not outgoing.ready and now_s - outgoing.begun_s > CONNECT_TIMEOUT_S:
                outgoing.fail(f"no answer from {outgoing.target[1]} within {CONNECT_TIMEOUT_S} s")

    def renew(self, peer: int, reason: str) -> None:
        """See ``DataPlane``."""
        back = self._back.pop(peer, None)
        if back is not None:
            back.close()  # the peer sees its stream break, and opens another
        outgoing = self._out.pop(peer, None)
        if outgoing is not None:
            outgoing.close()
            self._deliver(PeerBroken(peer, outgoing.target[0], reason))

    # --- sending

    def send(self, peer: int, buffers: Sequence[Any]) -> None:
        """See ``DataPlane``."""
        self._queue(self._out.get(peer), buffers)

    def send_back(self, peer: int, buffers: Sequence[Any]) -> None:
        """See ``DataPlane``."""
        self._queue(self._back.get(peer), buffers)

    def _queue(self, connection: Connection | None, buffers: Sequence[Any]) -> None:
        if connection is None or not connection.open:
            return
        connection.queue(buffers)
        if not connection.queued:
            connection.queued = True
            self._dirty.append(connection)

    def flush(self) -> None:
        """See ``DataPlane``."""
        while self._dirty:
            connection = self._dirty.popleft()
            connection.queued = False  # before it is written: what another thread queues from now on comes round again
            connection.flush()

    def close(self) -> None:
        """See ``DataPlane``."""
        if self._listener is not None:
            self._listener.close()
        for connection in [*self._out.values(), *self._back.values()]:
            connection.close()
        self._out.clear()
        self._back.clear()
