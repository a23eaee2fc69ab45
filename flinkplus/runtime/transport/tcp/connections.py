"""Connections over plain TCP, served by the loop that owns them, without a thread between a message and its receiver.

A connection carries frames (``frames``): four bytes of length, then that many bytes. The first four frames are the
handshake (``handshake``).

Rules: the loop owns its connections, reads them and ends them; any thread may write, under a lock. Writing never waits:
data that a socket does not take stays queued. Until the handshake is done, only its short frames are accepted, and the
connection is not reported. Few such connections are held at a time, and none for long. Refusals are counted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from flinkplus.errors import PeerProtocolError, PeerRefused
from flinkplus.runtime.base.inbox import READ, WRITE, Inbox
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals
from flinkplus.runtime.transport.auth.tls import Certificates, TlsSocket
from flinkplus.runtime.transport.tcp.silence import Silence
from flinkplus.runtime.transport.wire.frames import (
    JOINED_BYTES,
    MAX_FRAME_BYTES,
    Frame,
    FrameQueue,
    FrameReader,
    framed,
)

log = logging.getLogger("flinkplus.tcp")

SILENCE_S = 10
PROBES = 3
REST_S = 0.1
"""A listener waits for so long when the process can open no more files."""

FrameTaker = Callable[[Frame], None]


class Broken(Exception):
    """A connection is of no more use; the text says why."""


def parse_address(address: str) -> tuple[str, int]:
    """``host:port``. Raises ``ValueError``."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def server_at(host: str) -> tuple[socket.socket, str]:
    """A socket that listens at ``host``, and its address. A path means a Unix socket. Raises ``OSError``."""
    if host.startswith("/"):
        listening = socket.create_server(host, family=socket.AF_UNIX, backlog=128)
        address = host
    else:
        listening = socket.create_server((host, 0), backlog=128)
        address = f"{host}:{listening.getsockname()[1]}"
    listening.setblocking(False)
    return listening, address


@dataclass(eq=False, repr=False)
class Connection:
    """One connection. ``frame`` is called with each received frame, ``broken`` once, with a reason.

    ``limit``: maximum length of a received frame in bytes. ``joined``: waiting messages are sent together in one frame;
    otherwise each message is a frame. ``frame`` may raise ``Broken`` and ``PeerProtocolError``.
    """

    _inbox: Inbox[Any]
    sock: InitVar[socket.socket]
    _frame: FrameTaker
    _broken: Callable[[str], None]
    limit: InitVar[int]
    joined: InitVar[bool] = True

    def __post_init__(self, sock: socket.socket, limit: int, joined: bool) -> None:
        self._sock: socket.socket | TlsSocket = sock
        self.open = True
        self.ready = False  # to be written to: connected, and known to each other
        self.due = False  # for its owner: to be written at the end of a turn
        self._lock = threading.Lock()
        self._pending = FrameQueue(JOINED_BYTES if joined else 0)
        self._writing = memoryview(b"")
        self._watched = 0
        self._held = False
        self._reader = FrameReader(limit)
        self._silence = Silence()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", SILENCE_S), ("TCP_KEEPINTVL", SILENCE_S), ("TCP_KEEPCNT", PROBES)):
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def welcome(
        self,
        said: bytes,
        frame: FrameTaker,
        broken: Callable[[str], None],
        joined: bool = True,
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        """The dialler is known now: answer with ``said``, the last frame of the handshake, and take whole frames."""
        self._frame, self._broken, self._reader.limit = frame, broken, limit
        self._pending.joined_bytes = JOINED_BYTES if joined else 0
        self._writing = memoryview(framed(said))
        self.ready = True
        self.write()

    def say(self, data: bytes) -> None:
        """A frame of the handshake: some hundred bytes into an empty buffer. Raises ``Broken``, ``OSError``."""
        frame = framed(data)
        if self._sock.send(frame) != len(frame):
            raise Broken("does not take the handshake")

    def watch(self, events: int) -> None:
        """Watch for the socket to become readable or writable."""
        if events != self._watched and self.open:
            self._watched = events
            if not self._held:
                self._inbox.watch(self._sock, events, self._on_ready)

    def hold(self) -> None:
        """Fault injection: neither read nor write until ``release``. The connection remains."""
        with self._lock:
            self._held = True
        if self.open:
            self._inbox.forget(self._sock)

    def release(self) -> None:
        with self._lock:
            self._held = False
        if self.open and self._watched:
            self._inbox.watch(self._sock, self._watched, self._on_ready)
        self.write()

    def secure(self, certificates: Certificates, server: bool) -> None:
        """TLS from now on; before anything was sent or received. Raises ``OSError``."""
        sock = self._sock
        assert isinstance(sock, socket.socket)
        self._inbox.forget(sock)
        self._watched = 0
        self._sock = TlsSocket(sock, certificates, server)
        self._receive = self._receive_decrypted  # type: ignore[method-assign]

    def _receive_decrypted(self) -> None:
        sock = self._sock
        assert isinstance(sock, TlsSocket)
        Connection._receive(self)
        while self.open and sock.pending():
            Connection._receive(self)

    def _on_ready(self, events: int) -> None:
        try:
            self._serve(events)
        except BlockingIOError:
            pass  # it was ready, and is not any more
        except (Broken, PeerProtocolError) as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(_text_of(error))

    def _serve(self, events: int) -> None:
        if events & READ:
            self._receive()
        if events & WRITE and self.open:
            self.write()
            if not self.unwritten:
                self.watch(READ)

    # --- in

    def _receive(self) -> None:
        reader, room = self._reader, self._reader.long_frame
        if room is not None:
            with room:
                count = self._sock.recv_into(room)
            self._ended(count)
            whole = reader.received(count)
            if whole is not None:
                self._frame(whole)
            return
        count = self._sock.recv_into(self._inbox.received)
        self._ended(count)
        for frame in reader.frames(self._inbox.received[:count]):
            self._frame(frame)
            if not self.open:
                return

    @staticmethod
    def _ended(count: int) -> None:
        if not count:
            raise Broken("stream closed")

    # --- out, in any thread

    def queue(self, message: Sequence[Any]) -> None:
        """Queue one whole message, given as buffers; ``write`` writes it."""
        self._pending.put(message)

    def send(self, message: Sequence[Any]) -> None:
        """Queue one whole message, given as buffers, and write what is queued, as far as it goes."""
        self.queue(message)
        self.write()

    def write(self) -> None:
        """Write what is queued, as far as the socket takes it; the loop does the rest."""
        with self._lock:
            if self._held or not (self.open and self.ready):
                return
            try:
                while self._writing or self._pending:
                    if not self._writing:
                        self._writing = memoryview(self._pending.next_frame(with_length=True))
                    self._writing = self._writing[self._sock.send(self._writing) :]
            except BlockingIOError:
                self._inbox.call_soon(lambda: self.watch(READ | WRITE))
            except OSError as error:
                reason = _text_of(error)
                self._inbox.call_soon(lambda: self.fail(reason))

    @property
    def unwritten(self) -> bool:
        return bool(self._writing or self._pending)

    def is_silent(self, now_s: float, limit_s: float) -> bool:
        """Whether sent data was not acknowledged for ``limit_s``. Must be called several times within that span."""
        if not self.open:
            return False
        try:
            return self._silence.lasts_s(self._sock, now_s, limit_s) >= limit_s
        except OSError:
            return False  # it has broken: its callback is about to say so

    # --- the end

    def fail(self, reason: str) -> None:
        """It broke: close it and say so, once."""
        if self.open:
            self.close()
            self._broken(reason)

    def finish(self, timeout_s: float) -> None:
        """Write what is queued, and close once the other end has, after ``timeout_s`` at most. Not in a callback."""
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
    """A connection to ``address``. ``connected`` is called once each end has proved to be of the job. Raises
    ``OSError``."""

    def __init__(
        self,
        inbox: Inbox[Any],
        address: str,
        connecting: Connecting,
        connected: Callable[[], None],
        frame: FrameTaker,
        broken: Callable[[str], None],
        joined: bool = True,
        limit: int = MAX_FRAME_BYTES,
        certificates: Certificates | None = None,
    ) -> None:
        self.address = address
        self._certificates = certificates
        self._connected = connected
        self._deliver_frame = frame
        self._connecting = connecting
        self._begun = self._answered = False
        self._later_limit = limit
        self.begun_s = time.monotonic()
        host, port = parse_address(address)
        # A host name is looked up, which may take its time; slots and drivers give numbers.
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        super().__init__(inbox, sock, self._shake, broken, handshake.MAX_BYTES, joined)
        try:
            sock.connect(place)
        except BlockingIOError:
            pass  # it is on its way
        except OSError:
            self._sock.close()
            raise
        self.watch(WRITE)

    def _serve(self, events: int) -> None:
        if self._begun:
            super()._serve(events)
        else:
            self._begin()

    def _begin(self) -> None:
        """The connection is established, or has failed; or TLS continues."""
        if isinstance(self._sock, socket.socket):
            error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, f"cannot connect to {self.address}")
            if self._certificates is not None:
                self.secure(self._certificates, server=False)
                self.watch(READ)
        if isinstance(self._sock, TlsSocket):
            self._sock.do_handshake()
        self._begun = True
        self.say(self._connecting.hello)
        self.watch(READ)

    def _shake(self, frame: Frame) -> None:
        try:
            if not self._answered:
                self._answered = True
                self.say(self._connecting.answer(bytes(frame)))
                return
            self._connecting.check(bytes(frame))
        except PeerRefused as error:
            raise Broken(f"{self.address}: {error}") from error
        self._frame, self._reader.limit = self._deliver_frame, self._later_limit
        self.ready = True
        self._connected()
        self.write()

    def expire(self, now_s: float, timeout_s: float) -> None:
        """Give up when the other end has not answered in time (``now_s``: monotonic clock)."""
        if self.open and not self.ready and now_s - self.begun_s > timeout_s:
            self.fail(f"no answer from {self.address} within {timeout_s} s")


@dataclass(eq=False, repr=False)
class Listener:
    """Takes connections of those who prove to be of the job, speak ``protocol`` and look for ``name``.

    ``name``: ``None`` when it is not known yet. Then connections wait in the system's queue until ``be``.
    ``welcome``: called with each connection and its handshake, which says who it is. It says what to do with the frames
    (``Connection.welcome``), or raises ``PeerRefused``.
    ``binds_address``: diallers know the address by the same text, and have to say that they dialled it.
    """

    _inbox: Inbox[Any]
    host: InitVar[str]
    _protocol: bytes
    _name: str | None
    _credentials: Credentials
    _refusals: Refusals
    _welcome: Callable[[Connection, Listening], None]
    binds_address: InitVar[bool] = False

    def __post_init__(self, host: str, binds_address: bool) -> None:
        self._certificates = self._credentials.certificates
        self._strangers: dict[Connection, tuple[str, float]] = {}  # where from, since when: the oldest is the first
        self._sweeping = self._held = False
        self._socket, self.address = server_at(host)
        self._bound = self.address if binds_address else ""
        self._watch()

    def be(self, name: str) -> None:
        """Be ``name`` from now on, for those who connect from now on."""
        self._name = name
        self._watch()

    def _watch(self) -> None:
        if self._name is not None and not self._held and self._socket.fileno() >= 0:
            self._inbox.watch(self._socket, READ, self._accept)

    @property
    def strangers(self) -> int:
        """Connections that have not proved anything yet."""
        return len(self._strangers)

    def _accept(self, _ready: int) -> None:
        try:
            sock, place = self._socket.accept()
        except OSError as error:  # closed again by the peer, or no descriptors left: the listener stays
            log.info("cannot accept a connection: %s", error)
            if error.errno in (errno.EMFILE, errno.ENFILE):  # otherwise the waiting connection would make the loop spin
                self._inbox.forget(self._socket)
                self._inbox.call_later(REST_S, self._watch)
            return
        assert self._name is not None
        listening = Listening(self._credentials.secret, self._protocol, self._name, self._bound)
        challenged = False

        def take(frame: Frame) -> None:
            nonlocal challenged
            try:
                if challenged:
                    listening.check(bytes(frame))
                    self._welcome(connection, listening)
                    del self._strangers[connection]
                else:
                    connection.say(listening.challenge(bytes(frame)))
                    challenged = True
            except PeerRefused as error:
                self._refuse(connection, error.reason, str(error))

        def gone(reason: str) -> None:
            self._refuse(connection, handshake.CLOSED, reason)

        connection = Connection(self._inbox, sock, take, gone, handshake.MAX_BYTES)
        self._strangers[connection] = (str(place[0]) if place else self.address, time.monotonic())
        if self._certificates is not None:
            try:
                connection.secure(self._certificates, server=True)
            except OSError as error:
                connection.fail(_text_of(error))
                return
        connection.watch(READ)
        self._sweep_later()
        for crowded in handshake.excess(self._strangers, lambda _, known: known[0]):
            self._refuse(crowded, handshake.CROWD, f"more than {handshake.MAX_STRANGERS} handshakes at a time")

    def hold(self) -> None:
        """Fault injection: take no connections until ``release``; those who connect meanwhile wait."""
        self._held = True
        self._inbox.forget(self._socket)

    def release(self) -> None:
        self._held = False
        self._watch()

    def _sweep_later(self) -> None:
        if not self._sweeping and self._strangers:
            self._sweeping = True
            _, since = next(iter(self._strangers.values()))
            self._inbox.call_later(since + handshake.TIMEOUT_S - time.monotonic(), self._sweep)

    def _sweep(self) -> None:
        """End the handshakes that take too long."""
        self._sweeping = False
        latest = time.monotonic() - handshake.TIMEOUT_S
        for connection, (_, since) in list(self._strangers.items()):
            if since <= latest:
                self._refuse(connection, handshake.TIMEOUT, f"no handshake within {handshake.TIMEOUT_S} s")
        self._sweep_later()

    def _refuse(self, connection: Connection, reason: str, text: str) -> None:
        """End an unauthenticated connection; no effect if it is none any more."""
        place, _ = self._strangers.pop(connection, (None, 0.0))
        if place is not None:
            connection.close()
            self._refusals.count(f"{self.address} ({self._protocol.decode()})", reason, f"{place}: {text}")

    def close(self) -> None:
        """Take no more connections, and close those of strangers."""
        self._inbox.forget(self._socket)
        self._socket.close()
        for connection in self._strangers:
            connection.close()
        self._strangers.clear()


def _text_of(error: OSError) -> str:
    return f"{type(error).__name__}: {error.strerror or error}"
