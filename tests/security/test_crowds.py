"""Connections that say nothing, as many as a stranger gets: those of the job are let in all the same."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from flinkplus.runtime.slot.control.peers import RECONNECT_PAUSE_S
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.grpc import crowd as grpc_crowd
from flinkplus.runtime.transport.grpc import streams as grpc_streams
from flinkplus.runtime.transport.grpc.crowd import MAX_CONNECTIONS, SERVER_OPTIONS, Crowd
from flinkplus.runtime.transport.grpc.sockets import MAPPED, Accepted, Place, end_connection
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.ports import PeerConnected
from tests.security.strangers import HOST
from tests.unit.runtime.transport.test_control_planes import Cluster

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells which sockets are open")

MORE = MAX_CONNECTIONS + 88
SAID = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", id="HTTP", marks=pytest.mark.long),
    pytest.param(b"\x16\x03\x01", id="TLS", marks=pytest.mark.long),
    pytest.param(b"\x90\0\0\0\x10flinkplus-data/2", id="half a hello", marks=pytest.mark.long),
]


FOR_EVER_S = 1000.0


@contextlib.contextmanager
def crowd(cluster: Cluster, address: str, said: bytes) -> Iterator[None]:
    """Meanwhile a stranger holds as many connections to ``address`` as it gets, of ``MORE`` that it has tried."""
    held: list[socket.socket] = []

    def connect() -> None:
        for _ in range(MORE):
            held.append(socket.create_connection(parse_address(address)))
            with contextlib.suppress(OSError):
                held[-1].sendall(said)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    try:
        cluster.until(lambda: not thread.is_alive())
        yield
    finally:
        thread.join()
        for sock in held:
            sock.close()


@pytest.fixture(params=["tcp", "grpc"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Connections of strangers are not ended for the time that they take: that would let others in, by and by."""
    monkeypatch.setattr(handshake, "TIMEOUT_S", FOR_EVER_S)
    timeouts = {"grpc.max_connection_idle_ms", "grpc.server_handshake_timeout_ms"}
    options = [(name, int(FOR_EVER_S * 1000) if name in timeouts else value) for name, value in SERVER_OPTIONS]
    monkeypatch.setattr(grpc_streams, "SERVER_OPTIONS", options)
    made = Cluster(request.param)
    yield made
    made.close()


def connects(cluster: Cluster, one: Any, heard: list[Any], address: str, tries: int | None = None) -> bool:
    """Whether slot 0 gets a new stream to slot 1; it tries again and again, as a slot does."""
    one.connect({})
    heard.clear()
    while tries is None or len(heard) < tries:
        one.connect({1: (5, address)})
        cluster.until(partial(_has_more, heard, len(heard)))
        if isinstance(heard[-1], PeerConnected):
            return True
        cluster.wait(RECONNECT_PAUSE_S)
    return False


def _has_more(heard: list[Any], than: int) -> bool:
    return len(heard) > than


@pytest.mark.parametrize("said", SAID)
def test_slots_connect_while_a_stranger_holds_as_many_connections_as_it_gets(cluster: Cluster, said: bytes) -> None:
    one, _, heard = cluster.plane(0, cluster.ours)
    other, address, _ = cluster.plane(1, cluster.ours)
    one.incarnation, other.incarnation = 3, 5
    with crowd(cluster, address, said):
        assert all(connects(cluster, one, heard, address) for _ in range(3))
    if not said:  # others are refused for what they say, or by gRPC
        assert other.refusals.by_reason[handshake.CROWD] >= MORE - MAX_CONNECTIONS


def test_the_attack_works_where_grpc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crowd, "look", lambda self, port, now_s: None)
    cluster = Cluster("grpc")
    one, _, heard = cluster.plane(0, cluster.ours)
    other, address, _ = cluster.plane(1, cluster.ours)
    one.incarnation, other.incarnation = 3, 5
    with contextlib.closing(cluster), crowd(cluster, address, b""):
        assert not connects(cluster, one, heard, address, tries=5)


# --- which connections a server ends


class Sockets:
    """Stands for those of a server: what it has open, and what was ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: dict[tuple[int, Place], None] = {}
        self.ended: list[tuple[int, Place]] = []
        self.refused: list[str] = []
        monkeypatch.setattr(Accepted, "here", lambda _, port: [(at, *it) for at, it in enumerate(self.open)])
        monkeypatch.setattr(grpc_crowd, "end_connection", self._end)
        self.crowd = Crowd(lambda reason, _told: self.refused.append(reason))

    def connect(self, inode: int, host: int, port: int) -> Place:
        place = (MAPPED + bytes([10, 0, 0, host]), port)
        self.open[inode, place] = None
        return place

    def _end(self, _number: int, inode: int) -> bool:
        (found,) = [found for found in self.open if found[0] == inode]
        del self.open[found]
        self.ended.append(found)
        return True


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Sockets:
    return Sockets(monkeypatch)


def test_the_oldest_of_the_address_with_the_most_is_ended(sockets: Sockets) -> None:
    early = sockets.connect(1, host=1, port=4000)
    sockets.crowd.look(80, 0.0)
    for at in range(handshake.MAX_STRANGERS + 20):
        sockets.connect(100 + at, host=2, port=5000 + at)
    sockets.crowd.look(80, 0.1)
    assert [inode for inode, _ in sockets.ended] == list(range(100, 121))
    assert (1, early) in sockets.open and len(sockets.open) == handshake.MAX_STRANGERS
    assert sockets.refused == [handshake.CROWD] * 21


def test_a_connection_without_a_stream_is_ended_in_time_and_one_with_a_stream_is_not(sockets: Sockets) -> None:
    sockets.connect(1, host=1, port=4000)
    inside = sockets.connect(2, host=1, port=4001)
    with sockets.crowd.without("ipv4:10.0.0.1:4001"), sockets.crowd.without("ipv4:10.0.0.1:4001"):
        sockets.crowd.look(80, 0.0)
        sockets.crowd.look(80, handshake.TIMEOUT_S - 0.1)
        assert sockets.ended == []
        sockets.crowd.look(80, handshake.TIMEOUT_S)
        assert [inode for inode, _ in sockets.ended] == [1] and sockets.refused == [handshake.TIMEOUT]
    sockets.crowd.look(80, 100.0)
    assert (2, inside) in sockets.open, "its time begins with the end of its stream"
    sockets.crowd.look(80, 100.0 + handshake.TIMEOUT_S)
    assert not sockets.open


def test_another_connection_from_the_same_place_has_its_own_time(sockets: Sockets) -> None:
    sockets.connect(1, host=1, port=4000)
    sockets.crowd.look(80, 0.0)
    sockets.open.clear()
    sockets.connect(2, host=1, port=4000)
    sockets.crowd.look(80, handshake.TIMEOUT_S)
    assert sockets.ended == []


def test_connections_are_found_and_ended_and_nothing_else_is() -> None:
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as client:
        taken, _ = server.accept()
        with taken:
            accepted = Accepted()
            server_port = server.getsockname()[1]
            ((number, inode, place),) = accepted.here(server_port)
            assert list(accepted.here(server_port)) == [(number, inode, place)]
            assert number == taken.fileno() and place == (MAPPED + socket.inet_aton(HOST), client.getsockname()[1])
            assert not end_connection(number, inode + 1), "the number means another file by now"
            assert not end_connection(server.fileno(), inode)
            client.settimeout(60)
            taken.sendall(b"x")
            assert client.recv(10) == b"x"
            assert end_connection(number, inode) and client.recv(10) == b""
        assert not end_connection(number, inode), "it is closed"
        with open(__file__, "rb") as file:
            assert not end_connection(file.fileno(), inode)
    assert not list(accepted.here(server_port))
