"""Both transports, as strangers and as those of the job meet them: the same of each."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flinkplus.config import Options, options_from
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Refusals
from flinkplus.runtime.transport.auth.tls import Certificates, made_for
from flinkplus.runtime.transport.factory import control_link, data_plane, rendezvous
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.ports import (
    ControlArrived,
    ControlLost,
    FrameArrived,
    PeerAttached,
    PeerBroken,
    PeerConnected,
)

HOST = "127.0.0.1"
OURS, THEIRS = Credentials(b"secret"), Credentials(b"another")
REGISTER = control.Register(1, 0, 17, "host", "host:1")
HEARTBEAT = control.Heartbeat(1, {})


class Cluster:
    """A coordinator, and ends of planes that are all in one loop."""

    def __init__(self, transport: str, credentials: Credentials = OURS) -> None:
        self.options: Options = options_from({}, {"transport": transport})
        self.ours = credentials
        self.inboxes: list[Inbox[Any]] = []
        self.heard: list[list[Any]] = []
        self.closing: list[Callable[[], None]] = []
        inbox = self.inbox()
        self.coordinator = rendezvous(self.options, credentials, HOST, inbox)
        self.address = self.coordinator.start()

    def inbox(self) -> Inbox[Any]:
        self.inboxes.append(Inbox())
        self.heard.append([])
        return self.inboxes[-1]

    def link(self, slot: int, credentials: Credentials) -> Any:
        link = control_link(slot, self.options, credentials, self.address, self.inbox())
        link.open()
        self.closing.append(link.close)
        return link

    def plane(self, slot: int, credentials: Credentials) -> tuple[Any, str, list[Any]]:
        plane = data_plane(slot, self.options, credentials, HOST, self.inbox())
        self.closing.append(plane.close)
        return plane, plane.start(), self.heard[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.heard
            for inbox, heard in zip(self.inboxes, self.heard, strict=True):
                inbox.sleep(0.002)
                while not inbox.empty():
                    heard.append(inbox.get_nowait())

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= until)

    def close(self) -> None:
        for close in self.closing:
            close()
        self.coordinator.close()
        for inbox in self.inboxes:
            inbox.close()


@functools.cache
def certificates() -> Certificates:
    return made_for("test")


@pytest.fixture(params=["tcp", "grpc", "tcp+tls", "grpc+tls"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    transport, _, tls = request.param.partition("+")
    made = Cluster(transport, Credentials(b"secret", tls=certificates()) if tls else OURS)
    yield made
    made.close()


def messages(heard: list[Any]) -> list[control.ControlMessage]:
    return [event.message for event in heard if isinstance(event, ControlArrived)]


def test_a_slot_is_heard_and_told(cluster: Cluster) -> None:
    link = cluster.link(1, cluster.ours)
    link.send(REGISTER)
    cluster.until(lambda: messages(cluster.heard[0]) == [REGISTER])
    cluster.coordinator.send(cluster.heard[0][0].connection, control.Welcome(4))
    cluster.until(lambda: messages(cluster.heard[1]) == [control.Welcome(4)])
    assert not link.is_silent(time.monotonic(), 0.1)
    assert cluster.coordinator.refusals.total == cluster.coordinator.malformed == 0


def test_the_coordinator_hears_nothing_of_a_stranger(cluster: Cluster) -> None:
    link = cluster.link(1, THEIRS)
    link.send(REGISTER)
    cluster.until(lambda: any(isinstance(event, ControlLost) for event in cluster.heard[1]))
    cluster.wait(0.1)
    assert cluster.heard[0] == []


def test_a_slot_cannot_register_as_another(cluster: Cluster) -> None:
    link = cluster.link(2, cluster.ours)
    link.send(REGISTER)
    cluster.until(lambda: any(isinstance(event, ControlLost) for event in cluster.heard[0]))
    assert messages(cluster.heard[0]) == [] and cluster.coordinator.malformed == 1


def test_a_malformed_message_ends_its_connection_and_is_counted(cluster: Cluster, monkeypatch: Any) -> None:
    link = cluster.link(1, cluster.ours)
    link.send(REGISTER)
    cluster.until(lambda: messages(cluster.heard[0]) == [REGISTER])
    monkeypatch.setattr(control, "encode", lambda _message: b'{"v": 1, "type": "Nothing", "body": {}}')
    link.send(HEARTBEAT)
    cluster.until(lambda: any(isinstance(event, ControlLost) for event in cluster.heard[0]))
    assert messages(cluster.heard[0]) == [REGISTER] and cluster.coordinator.malformed == 1


def test_slots_exchange_frames(cluster: Cluster) -> None:
    one, _, heard = cluster.plane(0, cluster.ours)
    other, address, heard_there = cluster.plane(1, cluster.ours)
    one.incarnation, other.incarnation = 3, 5
    one.connect({1: (5, address)})
    cluster.until(lambda: PeerConnected(1, 5) in heard and PeerAttached(0) in heard_there)
    one.send(1, [b"there"])
    one.flush()
    cluster.until(lambda: any(isinstance(e, FrameArrived) and bytes(e.frame) == b"there" for e in heard_there))
    other.send_back(0, [b"and back"])
    other.flush()
    cluster.until(lambda: any(isinstance(e, FrameArrived) and bytes(e.frame) == b"and back" for e in heard))
    for _ in range(4):
        assert one.silent(time.monotonic(), 0.1) == other.silent(time.monotonic(), 0.1) == {}
        cluster.wait(0.03)


@pytest.mark.parametrize(
    ("slot", "incarnation", "credentials", "reason"),
    [(1, 5, THEIRS, handshake.PROOF), (1, 4, OURS, handshake.IDENTITY), (2, 5, OURS, handshake.IDENTITY)],
)
def test_a_slot_hears_nothing_of_whom_it_refuses(
    cluster: Cluster, slot: int, incarnation: int, credentials: Credentials, reason: str
) -> None:
    ours = credentials is OURS
    if cluster.ours is not OURS:
        credentials = Credentials(credentials.secret, tls=cluster.ours.tls)
    one, _, heard = cluster.plane(0, credentials)
    other, address, heard_there = cluster.plane(1, cluster.ours)
    one.incarnation, other.incarnation = 3, 5
    one.connect({slot: (incarnation, address)})
    one.send(slot, [b"injected"])
    one.flush()
    cluster.until(lambda: any(isinstance(event, PeerBroken) for event in heard))
    cluster.wait(0.1)
    assert not any(isinstance(event, PeerConnected) for event in heard) and heard_there == []
    if ours:
        assert other.refusals.by_reason == {reason: 1}


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b"\xff" * 5000])
def test_bytes_of_a_stranger_have_no_effect(cluster: Cluster, garbage: bytes) -> None:
    _, address, heard = cluster.plane(1, cluster.ours)
    for place in (address, cluster.address):
        with socket.create_connection(parse_address(place)) as sock:
            sock.sendall(garbage)
            cluster.wait(0.02)
    link = cluster.link(1, cluster.ours)
    link.send(REGISTER)
    cluster.until(lambda: messages(cluster.heard[0]) == [REGISTER])
    assert heard == [] and len(cluster.heard[0]) == 1


async def _call(address: str, metadata: tuple[tuple[str, Any], ...]) -> str:
    from flinkplus.runtime.base.io_thread import aio
    from flinkplus.runtime.transport.grpc.control import METHOD

    async with aio.insecure_channel(address) as channel:
        call = channel.stream_stream(METHOD)(metadata=metadata)
        try:
            await asyncio.wait_for(call.read(), 10)
        except aio.AioRpcError as error:
            return str(error.code().name)
        return "taken"


def test_grpc_calls_of_strangers_are_refused_and_counted() -> None:
    from flinkplus.runtime.base.io_thread import IoThread
    from flinkplus.runtime.transport.grpc.door import HELLO, NONCE, PROOF

    cluster = Cluster("grpc")
    calls: list[tuple[tuple[str, Any], ...]] = [
        (),
        ((HELLO, b""),),
        ((HELLO, b"\x05abc"),),
        ((PROOF, b"x" * 32),),
        ((PROOF, b"x" * 32), (NONCE, b"y" * 32)),
        (("flinkplus-token", "secret"),),
    ]
    for metadata in calls:
        assert IoThread.get().submit(_call(cluster.address, metadata)).result(60) == "UNAUTHENTICATED"
    cluster.wait(0.05)
    assert cluster.heard[0] == [] and cluster.coordinator.refusals.total == len(calls)
    cluster.close()


def test_grpc_connections_of_strangers_take_no_more_than_so_many_files() -> None:
    from flinkplus.runtime.transport.grpc.crowd import MAX_CONNECTIONS

    cluster = Cluster("grpc")
    link = cluster.link(1, cluster.ours)
    link.send(REGISTER)
    cluster.until(lambda: messages(cluster.heard[0]) == [REGISTER])
    files = len(os.listdir("/proc/self/fd"))
    held = []
    for _ in range(MAX_CONNECTIONS + 200):
        held.append(socket.create_connection(parse_address(cluster.address)))
        accepted = len(os.listdir("/proc/self/fd")) - files - len(held)
        assert accepted <= MAX_CONNECTIONS
    most = handshake.MAX_STRANGERS
    cluster.until(lambda: len(os.listdir("/proc/self/fd")) - files - len(held) <= most)
    link.send(HEARTBEAT)
    cluster.until(lambda: messages(cluster.heard[0]) == [REGISTER, HEARTBEAT])
    for sock in held:
        sock.close()
    late = cluster.link(2, cluster.ours)
    late.send(dataclasses.replace(REGISTER, slot=2))
    cluster.until(lambda: len(messages(cluster.heard[0])) == 3)
    cluster.close()


class _Call:
    """A call from ``place`` as a door sees it."""

    def __init__(self, place: str, metadata: dict[str, bytes]) -> None:
        self._place = place
        self._metadata = metadata
        self.challenge = b""

    def invocation_metadata(self) -> dict[str, bytes]:
        return self._metadata

    def peer(self) -> str:
        return self._place

    def set_trailing_metadata(self, metadata: Any) -> None:
        ((_, self.challenge),) = metadata

    async def abort(self, _code: Any, details: str) -> None:
        raise RuntimeError(details)


def test_a_crowd_of_grpc_calls_keeps_nobody_out_who_comes_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from flinkplus.runtime.transport.grpc.door import HELLO, NONCE, PROOF, Door

    refusals = Refusals()
    door = Door(OURS, b"test/1", refusals, "you")

    def say_hello(place: str) -> tuple[Connecting, _Call]:
        connecting = Connecting(OURS.secret, b"test/1", "me", "you")
        call = _Call(place, {HELLO: connecting.hello})
        assert asyncio.run(door.admit(call)) is None
        return connecting, call

    def prove(connecting: Connecting, call: _Call) -> dict[str, bytes]:
        proof = connecting.answer(call.challenge)
        return {NONCE: call.challenge[: handshake.NONCE_BYTES], PROOF: proof}

    early = say_hello("ipv4:10.0.0.1:4000")
    for port in range(handshake.MAX_STRANGERS + 50):
        crowded = say_hello(f"ipv4:10.0.0.2:{port}")
    assert refusals.by_reason == {handshake.CROWD: 51}
    proved = prove(*early)
    found = asyncio.run(door.admit(_Call("ipv4:10.0.0.1:4000", proved)))
    assert found is not None and found.name == "me"
    with pytest.raises(RuntimeError):
        asyncio.run(door.admit(_Call("ipv4:10.0.0.1:4000", proved)))
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.0)
    with pytest.raises(RuntimeError):
        asyncio.run(door.admit(_Call("ipv4:10.0.0.2:4000", prove(*crowded))))
    assert refusals.by_reason == {handshake.CROWD: 51, handshake.TIMEOUT: 2}, "an answer counts once, and in time"
