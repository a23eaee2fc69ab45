"""Connections over TCP: frames whole and in order, strangers refused, faults told once."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from flinkplus.errors import PeerRefused
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals, slot_name
from flinkplus.runtime.transport.tcp.connections import Connection, Listener, Outgoing, parse_address
from flinkplus.runtime.transport.tcp.data import TcpDataPlane
from flinkplus.runtime.transport.wire.frames import LENGTH, framed
from flinkplus.runtime.transport.wire.ports import FrameArrived, PeerAttached, PeerBroken, PeerConnected

PROTOCOL, SECRET = b"test/1", b"secret"
CREDENTIALS = Credentials(SECRET)
HOST = "127.0.0.1"
TO_NOBODY = Connecting(SECRET, PROTOCOL, "me", "you")


class End:
    """What one end of a connection has heard."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.frames: list[bytes] = []
        self.broken: list[str] = []
        self.name = ""

    def take(self, frame: bytes | bytearray | memoryview) -> None:
        self.frames.append(bytes(frame))


class Pair:
    """A listener and a connection to it, in one loop."""

    def __init__(self, joined: bool = True) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.server, self.client = End(), End()
        self.refusals = Refusals()
        self.listener = Listener(self.inbox, HOST, PROTOCOL, "you", CREDENTIALS, self.refusals, self._welcome)
        self._joined = joined

    def _welcome(self, connection: Connection, found: Listening) -> None:
        self.server.connection, self.server.name = connection, found.name
        connection.welcome(found.welcome, self.server.take, self.server.broken.append, self._joined)

    def connect(self, secret: bytes = SECRET, protocol: bytes = PROTOCOL) -> Outgoing:
        connection = Outgoing(
            self.inbox,
            self.listener.address,
            Connecting(secret, protocol, "me", "you"),
            lambda: None,
            self.client.take,
            self.client.broken.append,
            self._joined,
        )
        self.client.connection = connection
        self.until(lambda: connection.ready or bool(self.client.broken))
        return connection

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "too late"
            self.inbox.sleep(0.01)

    def close(self) -> None:
        for end in (self.server, self.client):
            if end.connection is not None:
                end.connection.close()
        self.listener.close()
        self.inbox.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_frames_of_any_size_arrive_whole_and_in_order(pair: Pair) -> None:
    connection = pair.connect()
    assert pair.server.name == "me"
    random_ = random.Random(1)
    sizes = [random_.choice((1, 7, 300, 70_000, 300_000, 3_000_000)) for _ in range(60)]
    sent = [random_.randbytes(size) for size in sizes]
    for one in sent:
        connection.queue([one])
        connection.write()
        pair.inbox.poll()
    pair.until(lambda: sum(map(len, pair.server.frames)) == sum(sizes))
    assert b"".join(pair.server.frames) == b"".join(sent)
    assert pair.server.connection is not None
    pair.server.connection.queue([b"back", b"wards"])
    pair.server.connection.write()
    pair.until(lambda: bool(pair.client.frames))
    assert pair.client.frames == [b"backwards"], "what is queued together is one frame"


def test_frames_cut_anywhere_are_put_together(pair: Pair) -> None:
    sent = [bytes([at]) * at for at in (1, 0, 3, 200, 2)]
    connecting = Connecting(SECRET, PROTOCOL, "bytes", "you")

    def send(stream: bytes) -> None:
        for at in range(len(stream)):
            sock.sendall(stream[at : at + 1])
            pair.inbox.sleep(0.005)

    with socket.create_connection(parse_address(pair.listener.address)) as sock:
        send(framed(connecting.hello))
        pair.inbox.sleep(0.05)
        send(framed(connecting.answer(sock.recv(1000)[LENGTH.size :])))
        send(b"".join(framed(one) for one in sent))
        pair.until(lambda: len(pair.server.frames) == len(sent))
    assert pair.server.frames == sent
    pair.until(lambda: len(pair.server.broken) == 1)


def test_threads_may_write_at_the_same_time() -> None:
    pair = Pair(joined=False)
    connection = pair.connect()

    def write(who: int) -> None:
        for number in range(500):
            connection.queue([f"{who} {number}".encode() * (1 + number % 50)])
            connection.write()

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    pair.until(lambda: len(pair.server.frames) == 2000)
    for thread in threads:
        thread.join()
    for who in range(4):
        mine = [frame for frame in pair.server.frames if frame.startswith(f"{who} ".encode())]
        assert mine == [f"{who} {number}".encode() * (1 + number % 50) for number in range(500)]
    pair.close()


def test_nothing_is_lost_to_a_slow_reader_and_nobody_waits_for_it(pair: Pair) -> None:
    with socket.create_server((HOST, 0)) as server:
        connecting, listening = Connecting(SECRET, PROTOCOL, "me", "you"), Listening(SECRET, PROTOCOL, "you")
        address = f"{HOST}:{server.getsockname()[1]}"
        connection = Outgoing(
            pair.inbox, address, connecting, lambda: None, pair.client.take, pair.client.broken.append
        )
        peer, _ = server.accept()
        pair.inbox.sleep(1.0)
        peer.sendall(framed(listening.challenge(peer.recv(1000)[LENGTH.size :])))
        pair.inbox.sleep(1.0)
        listening.check(peer.recv(1000)[LENGTH.size :])
        peer.sendall(framed(listening.welcome))
        pair.until(lambda: connection.ready)
        sent = random.Random(2).randbytes(20_000_000)
        connection.queue([sent])
        connection.write()
        assert connection.unwritten, "it does not wait for the peer to read"
        received = bytearray()
        peer.settimeout(60)

        def read() -> None:
            while len(received) < LENGTH.size + len(sent):
                received.extend(peer.recv(1 << 20))

        reader = threading.Thread(target=read)
        reader.start()
        pair.until(lambda: not connection.unwritten)
        reader.join()
        assert bytes(received[-len(sent) :]) == sent
        peer.close()
        pair.until(lambda: len(pair.client.broken) == 1)
        connection.close()


@pytest.mark.parametrize(
    ("secret", "protocol"), [(b"wrong", PROTOCOL), (b"", PROTOCOL), (SECRET, b"test/2"), (SECRET + b"x", PROTOCOL)]
)
def test_who_does_not_know_the_secret_or_the_protocol_is_refused(pair: Pair, secret: bytes, protocol: bytes) -> None:
    connection = pair.connect(secret, protocol)
    assert not connection.open and len(pair.client.broken) == 1
    assert pair.server.connection is None
    pair.until(lambda: pair.refusals.total == 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(1 << 30),
        LENGTH.pack(3) + b"abc",
        LENGTH.pack(0),
        b"\xff" * 600,
        b"\0" * 600,
        framed(Connecting(SECRET, PROTOCOL, "me", "you").hello) + framed(b"x" * 32),
        framed(Connecting(SECRET, PROTOCOL, "me", "you").hello) + framed(b""),
        framed(handshake.fields(PROTOCOL, b"me", b"you", b"n" * 32)),
        framed(handshake.fields(PROTOCOL, b"\xff", b"you", b"", b"n" * 32)),
        framed(handshake.fields(PROTOCOL, b"x" * 200, b"you", b"", b"n" * 32)),
        framed(handshake.fields(PROTOCOL, b"me", b"you", b"host:1", b"n" * 32)),
    ],
    ids=len,
)
def test_garbage_is_refused_at_once(pair: Pair, garbage: bytes) -> None:
    with socket.create_connection(parse_address(pair.listener.address)) as sock:
        sock.sendall(garbage)
        sock.settimeout(0.02)

        def gone() -> bool:
            try:
                if sock.recv(1000):  # the challenge
                    return False
            except TimeoutError:
                return False
            except ConnectionError:
                pass
            return True

        pair.until(gone)
        assert pair.server.connection is None
    assert pair.refusals.total == 1 and pair.listener.strangers == 0


def test_few_strangers_are_held_and_friends_still_come(pair: Pair) -> None:
    most = handshake.MAX_STRANGERS
    strangers = []
    for _ in range(most + 5):
        strangers.append(socket.create_connection(parse_address(pair.listener.address)))
        pair.inbox.poll()
    pair.until(lambda: pair.refusals.total == 5)
    assert pair.listener.strangers == most
    assert pair.connect().ready
    for stranger in strangers:
        stranger.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the files of the process are counted")
def test_without_files_the_loop_rests_and_then_goes_on(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flinkplus.tcp")
    pair.inbox.poll()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as early:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
        try:
            with contextlib.ExitStack() as files:
                for _ in range(highest):  # those that are free below
                    try:
                        files.enter_context(open(os.devnull, "rb"))
                    except OSError:
                        break
                early.connect(parse_address(pair.listener.address))
                until = time.monotonic() + 0.35
                while time.monotonic() < until:
                    pair.inbox.sleep(0.02)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert 2 <= len(caplog.records) <= 5 and pair.listener.strangers == 0
        pair.until(lambda: pair.listener.strangers == 1)
    assert pair.connect().ready


def test_a_crowd_from_one_address_keeps_nobody_out_who_comes_from_another(pair: Pair) -> None:
    early = socket.create_connection(parse_address(pair.listener.address), source_address=("127.0.0.2", 0))
    pair.until(lambda: pair.listener.strangers == 1)
    crowd = []
    for _ in range(handshake.MAX_STRANGERS + 20):
        crowd.append(socket.create_connection(parse_address(pair.listener.address)))
        pair.inbox.poll()
    pair.until(lambda: pair.refusals.total == 21)
    connecting = Connecting(SECRET, PROTOCOL, "early", "you")
    early.sendall(framed(connecting.hello))
    pair.inbox.sleep(1.0)
    early.sendall(framed(connecting.answer(early.recv(1000)[LENGTH.size :])))
    pair.until(lambda: pair.server.name == "early")
    for sock in [early, *crowd]:
        sock.close()


def test_a_stranger_that_says_nothing_is_let_go_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.2)
    with (
        socket.create_connection(parse_address(pair.listener.address)) as silent,
        socket.create_connection(parse_address(pair.listener.address)) as slow,
    ):
        slow.sendall(framed(Connecting(SECRET, PROTOCOL, "me", "you").hello))
        begun = time.monotonic()
        pair.until(lambda: pair.listener.strangers == 2)
        pair.until(lambda: pair.listener.strangers == 0)
        assert time.monotonic() - begun > 0.1
        silent.settimeout(60)
        assert silent.recv(1) == b""
    assert pair.refusals.by_reason == {handshake.TIMEOUT: 2}
    assert pair.connect().ready, "the listener goes on"
    pair.inbox.sleep(0.3)
    assert pair.server.broken == [], "who has proved to be of the job is not held to the time"


def test_what_one_connection_has_said_is_worth_nothing_on_another(pair: Pair) -> None:
    connecting = Connecting(SECRET, PROTOCOL, "me", "you")

    def shake(proof: bytes | None) -> bytes:
        with socket.create_connection(parse_address(pair.listener.address)) as sock:
            sock.settimeout(60)
            sock.sendall(framed(connecting.hello))
            pair.until(lambda: pair.listener.strangers == 1)
            pair.inbox.sleep(1.0)
            challenge = sock.recv(1000)[LENGTH.size :]
            answer = connecting.answer(challenge) if proof is None else proof
            sock.sendall(framed(answer))
            pair.until(lambda: pair.listener.strangers == 0)
        return answer

    recorded = shake(None)
    assert pair.server.name == "me" and pair.refusals.total == 0
    shake(recorded)
    assert pair.refusals.by_reason == {handshake.PROOF: 1}


def connected_to(server: socket.socket, pair: Pair) -> Outgoing:
    """The client's connection to an impostor."""
    return Outgoing(
        pair.inbox,
        f"{HOST}:{server.getsockname()[1]}",
        Connecting(SECRET, PROTOCOL, "me", "you"),
        lambda: None,
        pair.client.take,
        pair.client.broken.append,
    )


def test_who_connects_does_not_talk_to_a_stranger(pair: Pair) -> None:
    stranger = Listening(b"another", PROTOCOL, "you")
    with socket.create_server((HOST, 0)) as server:
        connection = connected_to(server, pair)
        peer, _ = server.accept()
        connection.queue([b"for the job only"])
        connection.write()
        pair.inbox.sleep(1.0)
        peer.sendall(framed(stranger.challenge(peer.recv(1000)[LENGTH.size :])))
        pair.until(lambda: bool(pair.client.broken))
        peer.settimeout(60)
        assert peer.recv(1000) == b"" and not connection.ready
        peer.close()


def test_an_impostor_cannot_have_much_memory_taken(pair: Pair) -> None:
    with socket.create_server((HOST, 0)) as server:
        connected_to(server, pair)
        peer, _ = server.accept()
        peer.sendall(LENGTH.pack(1 << 31) + b"x" * 1000)
        pair.until(lambda: bool(pair.client.broken))
        assert f"over the limit of {handshake.MAX_BYTES}" in pair.client.broken[0]
        peer.close()


def test_connecting_takes_less_than_two_milliseconds_more(pair: Pair) -> None:
    times = []
    for _ in range(40):
        begun = time.monotonic()
        connection = pair.connect()
        times.append(time.monotonic() - begun)
        connection.close()
        pair.until(lambda: bool(pair.server.broken))
        pair.server.broken.clear()
    assert min(times) < 0.002, "connecting, all of the handshake included"


def test_a_broken_connection_is_told_once_and_may_be_closed_again(pair: Pair) -> None:
    connection = pair.connect()
    assert pair.server.connection is not None
    pair.server.connection.close()
    pair.server.connection.close()
    pair.until(lambda: bool(pair.client.broken))
    connection.queue([b"late"])
    connection.write()
    connection.fail("again")
    connection.close()
    assert len(pair.client.broken) == 1 and pair.server.broken == []


def test_finish_writes_everything_and_waits_for_the_other_end(pair: Pair) -> None:
    connection = pair.connect()
    connection.queue([b"last words" * 100_000])
    connection.finish(5.0)
    assert pair.server.frames == [b"last words" * 100_000]
    assert pair.server.broken == ["stream closed"] and not connection.open


def test_finish_is_bounded_when_nobody_reads(pair: Pair) -> None:
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
        connection = Outgoing(pair.inbox, address, TO_NOBODY, lambda: None, lambda _frame: None, lambda _reason: None)
        begun = time.monotonic()
        connection.finish(0.3)
        assert time.monotonic() - begun > 0.2 and not connection.open


def test_nobody_at_the_address(pair: Pair) -> None:
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
    broken: list[str] = []
    try:
        Outgoing(pair.inbox, address, TO_NOBODY, lambda: None, lambda _frame: None, broken.append)
    except OSError as error:
        broken.append(str(error))
    pair.until(lambda: len(broken) == 1)
    assert "refused" in broken[0].lower()


def test_who_does_not_answer_in_time_is_given_up(pair: Pair) -> None:
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
        broken: list[str] = []
        connection = Outgoing(pair.inbox, address, TO_NOBODY, lambda: None, lambda _frame: None, broken.append)
        connection.expire(time.monotonic() + 9.0, 10.0)
        assert broken == []
        connection.expire(time.monotonic() + 11.0, 10.0)
        assert broken == [f"no answer from {address} within 10.0 s"]


class Planes:
    """Two data planes in one loop."""

    def __init__(self) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.heard: list[list[Any]] = [[], []]
        self.planes = [TcpDataPlane(at, CREDENTIALS, HOST, self.inbox, self.heard[at].append) for at in range(2)]
        self.addresses = [plane.start() for plane in self.planes]
        self.planes[1].incarnation = 5

    def until(self, at: int, event: Any) -> None:
        deadline = time.monotonic() + 60
        while event not in self.heard[at]:
            assert time.monotonic() < deadline, (event, self.heard)
            self.inbox.sleep(0.01)
        self.heard[at].clear()

    def close(self) -> None:
        for plane in self.planes:
            plane.close()
        self.inbox.close()


@pytest.fixture
def planes():
    made = Planes()
    yield made
    made.close()


def test_a_data_plane_connects_sends_and_answers(planes: Planes) -> None:
    one, other = planes.planes
    one.send(1, [b"to nobody"])
    one.connect({1: (5, planes.addresses[1])})
    planes.until(0, PeerConnected(1, 5))
    planes.until(1, PeerAttached(0))
    one.send(1, [b"a", b"b"])
    one.send(1, [b"c"])
    assert planes.heard[1] == [], "written at the end of the turn"
    one.flush()
    planes.until(1, FrameArrived(0, memoryview(b"abc")))
    other.send_back(0, [b"credit"])
    other.flush()
    planes.until(0, FrameArrived(1, memoryview(b"credit")))
    one.send_beside(1, [b"beside"])
    planes.until(1, FrameArrived(0, memoryview(b"beside")))
    one.connect({1: (5, planes.addresses[1])})
    assert planes.heard[0] == [PeerConnected(1, 5)], "it is there already"


def test_a_renewed_stream_is_told_at_both_ends(planes: Planes) -> None:
    one, other = planes.planes
    one.connect({1: (5, planes.addresses[1])})
    planes.until(1, PeerAttached(0))
    planes.until(0, PeerConnected(1, 5))
    other.renew(0, "malformed")
    deadline = time.monotonic() + 60
    while not planes.heard[0]:
        assert time.monotonic() < deadline
        planes.inbox.sleep(0.01)
    (broken,) = planes.heard[0]
    assert isinstance(broken, PeerBroken) and (broken.peer, broken.incarnation) == (1, 5)
    planes.heard[0].clear()
    one.connect({1: (5, planes.addresses[1])})
    planes.until(0, PeerConnected(1, 5))
    planes.until(1, PeerAttached(0))
    one.renew(1, "mine")
    assert planes.heard[0] == [PeerBroken(1, 5, "mine")]


def test_another_incarnation_gets_another_stream(planes: Planes) -> None:
    one, other = planes.planes
    one.connect({1: (5, planes.addresses[1])})
    planes.until(0, PeerConnected(1, 5))
    other.incarnation = 6
    one.connect({1: (6, planes.addresses[1])})
    planes.until(0, PeerConnected(1, 6))
    one.connect({})
    one.send(1, [b"to nobody"])
    one.flush()
    planes.inbox.sleep(0.05)
    assert planes.heard[0] == [], "nobody asked for it, so nobody is told of its end"


def test_an_older_process_of_a_slot_cannot_attach_after_a_newer_one(planes: Planes) -> None:
    one, other = planes.planes
    one.incarnation = 2
    one.connect({1: (5, planes.addresses[1])})
    planes.until(1, PeerAttached(0))
    zombie = TcpDataPlane(0, CREDENTIALS, HOST, planes.inbox, planes.heard[0].append)
    zombie.incarnation = 1
    zombie.connect({1: (5, planes.addresses[1])})
    deadline = time.monotonic() + 60
    while not any(isinstance(event, PeerBroken) for event in planes.heard[0]):
        assert time.monotonic() < deadline
        planes.inbox.sleep(0.01)
    assert PeerAttached(0) not in planes.heard[1]
    assert other.refusals.by_reason == {handshake.IDENTITY: 1}
    zombie.close()


@pytest.mark.parametrize(("slot", "incarnation"), [(2, 1), (1, 4)])
def test_what_is_for_another_process_is_refused(planes: Planes, slot: int, incarnation: int) -> None:
    one, other = planes.planes
    other.incarnation = 5
    one.connect({slot: (incarnation, planes.addresses[1])})
    deadline = time.monotonic() + 60
    while not planes.heard[0]:
        assert time.monotonic() < deadline
        planes.inbox.sleep(0.01)
    assert isinstance(planes.heard[0][0], PeerBroken)
    assert planes.heard[1] == [] and other.refusals.by_reason == {handshake.IDENTITY: 1}


def test_names_of_slots() -> None:
    assert handshake.parse_slot_name(slot_name(3, 17)) == (3, 17)
    for name in ("", "slot-", "slot-1", "slot-1.", "slot-.1", "slot--1.2", "host-1.2", "slot-1.2.3", "slot-1.x"):
        with pytest.raises(PeerRefused):
            handshake.parse_slot_name(name)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells")
def test_a_peer_that_does_not_answer_is_silent(planes: Planes) -> None:
    """Its system drops what comes, for too many wait to be accepted."""
    with socket.socket() as server, contextlib.ExitStack() as others:
        server.bind((HOST, 0))
        server.listen(0)
        for _ in range(4):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(server.getsockname())
        one = planes.planes[0]
        one.connect({1: (5, planes.addresses[1]), 2: (7, f"{HOST}:{server.getsockname()[1]}")})
        planes.until(0, PeerConnected(1, 5))
        deadline = time.monotonic() + 60
        while one.silent(time.monotonic(), 0.3) != {2: 7}:
            assert time.monotonic() < deadline
            planes.inbox.sleep(0.05)
        one.connect({1: (5, planes.addresses[1])})
        assert one.silent(time.monotonic(), 0.3) == {}
