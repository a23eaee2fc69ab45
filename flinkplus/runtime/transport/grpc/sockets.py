"""The sockets that gRPC does not show: found among the open files of the process, by the address of their other end.

So silence on a stream over gRPC has the same definition as over TCP (``silence``).

Rules: gRPC writes, reads and closes a socket that is found here, at any time. So each use checks it, and searches again
when it is gone. A socket is only inspected, except that a connection may be shut down, as the other end could do. That
is done over a duplicated descriptor, since the number may mean another file by then. Only Linux reports this: on other
systems no socket is found, and no peer is ever silent.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Iterator
from urllib.parse import unquote

from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.tcp.silence import TCP_INFO, Silence

SO_PEERNAME = 28
"""The socket module does not name it. It tells, as ``getpeername`` does not, where a connection is about to lead."""
OPEN_FILES = "/proc/self/fd"
FAMILY_AND_PORT = struct.Struct("=H2s")
V6_BYTES, V4_BYTES = 28, 16  # of ``struct sockaddr_in6``, ``struct sockaddr_in``
MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address, makes it an IPv6 one: gRPC connects to all addresses by sockets of IPv6 where it can."""

Place = tuple[bytes, int]
"""An address as 16 bytes, and a port."""


def place_of(address: str) -> Place | None:
    """``host:port`` as the system names it; ``None`` for what stands for no address."""
    try:
        host, port = parse_address(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        packed = ipaddress.ip_address(str(found).partition("%")[0]).packed
    except (OSError, ValueError, IndexError):
        return None
    return (packed if len(packed) == len(MAPPED) + 4 else MAPPED + packed), port


def place_of_peer(peer: str) -> Place | None:
    """What gRPC calls the other end of a call, as in ``ipv4:127.0.0.1:4000`` and ``ipv6:%5B::1%5D:4000``."""
    return place_of(unquote(peer).partition(":")[2].replace("[", "").replace("]", ""))


def _leads_to(sock: socket.socket) -> Place | None:
    for size in (V6_BYTES, V4_BYTES):
        with contextlib.suppress(OSError):  # its address is shorter, or it has none
            name = sock.getsockopt(socket.SOL_SOCKET, SO_PEERNAME, size)
            family, port = FAMILY_AND_PORT.unpack_from(name)
            if family == socket.AF_INET6 and size == V6_BYTES:
                return name[8:24], int.from_bytes(port, "big")
            if family == socket.AF_INET:
                return MAPPED + name[4:8], int.from_bytes(port, "big")
    return None


@contextlib.contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """An open file as a socket, which stays open. Raises ``OSError`` when it is none."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=number)
    try:
        yield sock
    finally:
        sock.detach()


def _open_sockets() -> Iterator[tuple[int, int]]:
    """Number and inode of each open socket."""
    for number in map(int, os.listdir(OPEN_FILES)):
        with contextlib.suppress(OSError):  # closed meanwhile
            found = os.fstat(number)
            if stat.S_ISSOCK(found.st_mode):
                yield number, found.st_ino


class Accepted:
    """The connections that came in at one port. An open socket does not change, so each is inspected once."""

    def __init__(self) -> None:
        self._known: dict[int, Place | None] = {}

    def here(self, port: int) -> Iterator[tuple[int, int, Place]]:
        """The open file, the inode (unique while the socket is open) and the other end of each."""
        if TCP_INFO is None:
            return
        known, self._known = self._known, {}
        for number, inode in _open_sockets():
            with contextlib.suppress(OSError):  # closed meanwhile
                place = self._known[inode] = known[inode] if inode in known else _accepted_from(number, port)
                if place is not None:
                    yield number, inode, place


def _accepted_from(number: int, port: int) -> Place | None:
    """Where a socket leads that was accepted at ``port``; ``None`` for every other. Raises ``OSError``."""
    with _borrowed(number) as sock:
        place = _leads_to(sock)
        return place if place is not None and sock.getsockname()[1] == port else None


def end_connection(number: int, inode: int) -> bool:
    """End a connection that ``Accepted`` has found; false when it is gone, or has ended."""
    with contextlib.suppress(OSError):
        own = os.dup(number)
        try:
            found = os.fstat(own)
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode:
                with _borrowed(own) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
                return True
        finally:
            os.close(own)
    return False


def shown(place: Place) -> str:
    """An address as text."""
    address = ipaddress.IPv6Address(place[0])
    return f"{address.ipv4_mapped or address}"


class HiddenConnection:
    """The connection to ``remote``; with ``local_port``, the one that came in there. There may be two for a moment."""

    def __init__(self, remote: Place | None, local_port: int | None = None) -> None:
        self._remote = remote
        self._local_port = local_port
        self._silences: dict[int, Silence] = {}

    def is_silent(self, now_s: float, limit_s: float) -> bool:
        """Whether sent data was not acknowledged for ``limit_s``. One thread calls it several times in that span."""
        if TCP_INFO is None or self._remote is None:
            return False
        if not any(self._is_it(number) for number in self._silences):
            self._silences = {number: Silence() for number in self.numbers()}
        return any([self._lasts_s(number, now_s, limit_s) >= limit_s for number in self._silences])

    def numbers(self) -> list[int]:
        """The open files that are this connection."""
        return [number for number, _ in _open_sockets() if self._is_it(number)]

    def _is_it(self, number: int) -> bool:
        with contextlib.suppress(OSError), _borrowed(number) as sock:
            return _leads_to(sock) == self._remote and self._local_port in (None, sock.getsockname()[1])
        return False

    def _lasts_s(self, number: int, now_s: float, limit_s: float) -> float:
        with contextlib.suppress(OSError):
            if self._is_it(number):
                with _borrowed(number) as sock:
                    return self._silences[number].lasts_s(sock, now_s, limit_s)
        return 0.0
