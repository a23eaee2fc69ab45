"""A network that loses everything without a word, as both transports notice it: the same of each.

The kernel is told to throw away what comes in on the sockets of a connection, before it is acknowledged: to the other
end that is a cut cable, or a host that stands still.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flinkplus.runtime.control import messages as control
from flinkplus.runtime.transport.grpc.sockets import HiddenConnection, place_of, place_of_peer
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.ports import ControlArrived, FrameArrived, PeerAttached, PeerConnected
from tests.unit.runtime.transport.test_control_planes import HEARTBEAT, REGISTER, Cluster

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells")

LIMIT_S = 0.2
LOOK_S = 0.04
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
TAKE_NOTHING = struct.pack("=HBBI", 0x06, 0, 0, 0)


@pytest.fixture(params=["tcp", "grpc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(request.param)
    yield made
    made.close()


def ends_at(*ports: int) -> list[socket.socket]:
    """Both ends of the connections that lead to these ports, as far as they are in this process."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:  # no socket, or it leads nowhere
            sock = closing.enter_context(socket.socket(fileno=os.dup(number)))
            ends = [] if sock.family == socket.AF_UNIX else [sock.getpeername(), sock.getsockname()]
            if any(port in ports for _, port, *_ in ends):
                closing.pop_all()
                found.append(sock)
    return found


@contextlib.contextmanager
def cut(*addresses: str) -> Iterator[None]:
    """Nothing that is sent on the connections to these addresses arrives, either way."""
    program = ctypes.create_string_buffer(TAKE_NOTHING, len(TAKE_NOTHING))
    sockets = ends_at(*(parse_address(address)[1] for address in addresses))
    assert len(sockets) >= 2 * len(addresses)
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))
    yield
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        sock.close()


def noticed_s(cluster: Cluster, is_noticed: Callable[[float], bool]) -> float:
    """How long that takes, with a look from time to time."""
    begun_s = time.monotonic()
    while not is_noticed(time.monotonic()):
        assert time.monotonic() - begun_s < 60
        cluster.wait(LOOK_S)
    return time.monotonic() - begun_s


def frames(heard: list[Any]) -> list[bytes]:
    return [bytes(event.frame) for event in heard if isinstance(event, FrameArrived)]


def test_slots_that_are_cut_off_from_each_other_notice_it(cluster: Cluster) -> None:
    one, _, heard = cluster.plane(0, cluster.ours)
    other, address, heard_there = cluster.plane(1, cluster.ours)
    one.incarnation, other.incarnation = 3, 5
    one.connect({1: (5, address)})
    cluster.until(lambda: PeerConnected(1, 5) in heard and PeerAttached(0) in heard_there)

    def both(now_s: float) -> bool:
        found = one.silent(now_s, LIMIT_S), other.silent(now_s, LIMIT_S)
        return found == ({1: 5}, {0: 3})

    assert not both(time.monotonic())
    with cut(address):
        one.send(1, [b"there"])
        one.flush()
        other.send_back(0, [b"and back"])
        other.flush()
        assert noticed_s(cluster, both) >= LIMIT_S
        assert frames(heard) == frames(heard_there) == []
    cluster.until(lambda: frames(heard) == [b"and back"] and frames(heard_there) == [b"there"])
    for _ in range(3):
        cluster.wait(LOOK_S)
        found = one.silent(time.monotonic(), LIMIT_S), other.silent(time.monotonic(), LIMIT_S)
    assert found == ({}, {}), "what was lost has been sent again, and was answered"


def test_a_slot_that_is_cut_off_from_its_driver_notices_it(cluster: Cluster) -> None:
    link = cluster.link(1, cluster.ours)
    link.send(REGISTER)
    cluster.until(lambda: [type(event) for event in cluster.heard[0]] == [ControlArrived])
    with cut(cluster.address):
        link.send(HEARTBEAT)
        assert noticed_s(cluster, lambda now_s: bool(link.is_silent(now_s, LIMIT_S))) >= LIMIT_S / 2
    link.send(control.SessionLost("later"))
    cluster.until(lambda: len(cluster.heard[0]) == 3)
    cluster.wait(LOOK_S)
    assert not link.is_silent(time.monotonic(), LIMIT_S)


def test_a_peer_that_does_not_answer_the_first_segment_is_noticed(cluster: Cluster) -> None:
    """Linux drops it without a word when too many connections wait to be accepted."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        for _ in range(3):
            sender = waiting.enter_context(socket.socket())
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sender.connect(server.getsockname())
        one, _, _ = cluster.plane(0, cluster.ours)
        one.connect({1: (5, f"127.0.0.1:{server.getsockname()[1]}")})
        noticed_s(cluster, lambda now_s: bool(one.silent(now_s, LIMIT_S) == {1: 5}))


def test_connections_are_found_by_where_they_lead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        out = socket.create_connection(server.getsockname())
        accepted, (_, port) = server.accept()
        with out, accepted:
            assert HiddenConnection(place_of(place)).numbers() == [out.fileno()]
            came = place_of_peer(f"ipv4:127.0.0.1:{port}")
            assert HiddenConnection(came).numbers() == [accepted.fileno()]
            assert HiddenConnection(came, server.getsockname()[1]).numbers() == [accepted.fileno()]
            assert HiddenConnection(came, 1).numbers() == []
        assert HiddenConnection(place_of(place)).numbers() == []


@pytest.mark.parametrize("nowhere", ["", "unix:", "ipv4:", "ipv4:127.0.0.1", "ipv6:%5B::1%5D:port"])
def test_what_is_no_address_leads_nowhere(nowhere: str) -> None:
    assert place_of_peer(nowhere) is None
    assert not HiddenConnection(None).is_silent(1.0, LIMIT_S)


def test_addresses_of_both_kinds() -> None:
    assert place_of_peer("ipv6:%5B::1%5D:4000") == (bytes(15) + b"\1", 4000)
    mapped = place_of_peer("ipv6:%5B::ffff:127.0.0.1%5D:4000")
    assert mapped == place_of("127.0.0.1:4000") == place_of_peer("ipv4:127.0.0.1:4000")
