"""Mutual TLS in the loops: the same connections as without, and nobody without a certificate of the job's authority."""

from __future__ import annotations

import gc
import random
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.liveness.lifeline import Lifeline, LifelineCut, Lifelines
from flinkplus.runtime.transport.auth import tls
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals
from flinkplus.runtime.transport.auth.tls import Certificates, made_for
from flinkplus.runtime.transport.tcp.connections import Connection, Listener, Outgoing, parse_address
from flinkplus.runtime.transport.wire.frames import framed

PROTOCOL, SECRET, HOST = b"test/1", b"secret", "127.0.0.1"
OURS, THEIRS = made_for("ours"), made_for("theirs")


class Ends:
    """A listener with TLS, and a connection to it, in one loop."""

    def __init__(self) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.refusals = Refusals()
        self.there: list[bytes] = []
        self.here: list[bytes] = []
        self.broken: list[str] = []
        self.accepted: list[Connection] = []
        self.opened: list[Connection] = []
        self.listener = Listener(
            self.inbox, HOST, PROTOCOL, "you", Credentials(SECRET, tls=OURS), self.refusals, self._welcome
        )

    def _welcome(self, connection: Connection, found: Listening) -> None:
        self.accepted.append(connection)
        connection.welcome(found.welcome, lambda frame: self.there.append(bytes(frame)), lambda _reason: None)

    def connect(self, certificates: Certificates | None) -> Outgoing:
        connection = Outgoing(
            self.inbox,
            self.listener.address,
            Connecting(SECRET, PROTOCOL, "me", "you"),
            lambda: None,
            lambda frame: self.here.append(bytes(frame)),
            self.broken.append,
            certificates=certificates,
        )
        self.opened.append(connection)
        self.until(lambda: connection.ready or bool(self.broken))
        return connection

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "too late"
            self.inbox.sleep(0.01)

    def close(self) -> None:
        for connection in [*self.opened, *self.accepted]:
            connection.close()
        self.listener.close()
        self.inbox.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_frames_of_any_size_arrive_whole_and_in_order(ends: Ends) -> None:
    connection = ends.connect(OURS)
    rng = random.Random(1)
    sent = [rng.randbytes(rng.choice((1, 7, 300, 16_384, 16_385, 300_000, 3_000_000))) for _ in range(40)]
    for one in sent:
        connection.queue([one])
        connection.write()
        ends.inbox.poll()
    ends.until(lambda: sum(map(len, ends.there)) == sum(map(len, sent)))
    assert b"".join(ends.there) == b"".join(sent)
    ends.accepted[0].send([sent[0], b"back"])
    ends.until(lambda: bool(ends.here))
    assert ends.here == [sent[0] + b"back"]


def test_threads_write_while_the_loop_reads(ends: Ends) -> None:
    connection = ends.connect(OURS)
    piece = random.Random(2).randbytes(50_000)

    def write(to: Connection) -> None:
        for _ in range(60):
            to.send([piece])

    threads = [threading.Thread(target=write, args=(to,)) for to in (connection, ends.accepted[0])]
    for thread in threads:
        thread.start()
    ends.until(lambda: all(sum(map(len, heard)) == 60 * len(piece) for heard in (ends.here, ends.there)))
    for thread in threads:
        thread.join()
    assert b"".join(ends.here) == b"".join(ends.there) == piece * 60


def test_nothing_travels_in_clear(ends: Ends) -> None:
    """A frame is looked for in all bytes between the two, which pass a relay."""
    seen = bytearray()
    with socket.create_server((HOST, 0)) as relay:
        connection = Outgoing(
            ends.inbox,
            f"{HOST}:{relay.getsockname()[1]}",
            Connecting(SECRET, PROTOCOL, "me", "you"),
            lambda: None,
            lambda frame: ends.here.append(bytes(frame)),
            ends.broken.append,
            certificates=OURS,
        )
        one, _ = relay.accept()
        other = socket.create_connection(parse_address(ends.listener.address))

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(1 << 16):
                seen.extend(data)
                target.sendall(data)

        threads = [threading.Thread(target=pass_on, args=pair) for pair in ((one, other), (other, one))]
        for thread in threads:
            thread.start()
        ends.until(lambda: connection.ready)
        connection.send([b"what nobody else may read"])
        ends.until(lambda: bool(ends.there))
        connection.close()
        ends.accepted[0].close()
        for thread in threads:
            thread.join(60)
        for sock in (one, other):
            sock.close()
    assert ends.there == [b"what nobody else may read"]
    assert b"nobody" not in seen and PROTOCOL not in seen and len(seen) > 500


@pytest.mark.parametrize("certificates", [THEIRS, None], ids=["another authority", "in clear"])
def test_who_has_no_certificate_of_the_authority_is_refused(ends: Ends, certificates: Certificates | None) -> None:
    connection = ends.connect(certificates)
    assert not connection.open and len(ends.broken) == 1
    ends.until(lambda: ends.refusals.total == 1)
    assert ends.accepted == [] and ends.listener.strangers == 0


def test_a_client_without_a_certificate_is_refused(ends: Ends) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    done = threading.Event()

    def call() -> None:
        try:
            sock = socket.create_connection(parse_address(ends.listener.address), 10)
            with context.wrap_socket(sock) as secured:
                secured.sendall(framed(Connecting(SECRET, PROTOCOL, "me", "you").hello))
                secured.recv(100)
        except OSError:
            done.set()

    thread = threading.Thread(target=call)
    thread.start()
    ends.until(done.is_set)
    thread.join()
    ends.until(lambda: ends.refusals.total == 1)
    assert ends.accepted == []


@pytest.mark.parametrize("closed", [False, True])
def test_a_connection_that_breaks_while_tls_begins_is_refused(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """What ``wrap_socket`` does with one that was reset: it takes the file away from the socket and raises."""

    def wrap(_self: ssl.SSLContext, sock: socket.socket, **_settings: Any) -> Any:
        if closed:
            socket.socket(fileno=sock.detach()).close()
        raise ConnectionResetError(104, "reset")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap)
    with socket.create_connection(parse_address(ends.listener.address)):
        ends.until(lambda: ends.refusals.total == 1)
    assert ends.listener.strangers == 0
    monkeypatch.undo()
    assert ends.connect(OURS).ready, "the listener goes on"


def test_a_socket_without_a_peer_is_never_read_in_clear() -> None:
    with socket.socket() as sock, pytest.raises(OSError, match="not connected"):
        tls.TlsSocket(sock, OURS, True)


def test_a_socket_that_was_reset_is_not_left_open() -> None:
    with socket.create_server((HOST, 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with accepted, pytest.raises(OSError):
            tls.TlsSocket(accepted, OURS, True)
    gc.collect()  # an SSL socket that was left open says so


def test_finish_writes_everything(ends: Ends) -> None:
    connection = ends.connect(OURS)
    connection.queue([b"last words" * 100_000])
    connection.finish(5.0)
    assert ends.there == [b"last words" * 100_000] and not connection.open


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a thread's own files are Linux's")
def test_lifelines() -> None:
    inbox: Inbox[Any] = Inbox()
    cuts: list[LifelineCut] = []
    lifelines = Lifelines(HOST, Credentials(SECRET, tls=OURS), inbox, cuts.append)
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            inbox.sleep(0.01)

    thread = threading.Thread(target=loop)
    thread.start()
    lifeline, stranger = Lifeline(), Lifeline()
    try:
        assert lifeline.open(lifelines.address, Credentials(SECRET, tls=OURS), "a")
        assert not stranger.open(lifelines.address, Credentials(SECRET, tls=THEIRS), "b")
        assert not stranger.open(lifelines.address, Credentials(SECRET), "c")
        lifeline.close()
        deadline = time.monotonic() + 60
        while not cuts and time.monotonic() < deadline:
            time.sleep(0.005)
        assert [cut.name for cut in cuts] == ["a"]
    finally:
        stop.set()
        thread.join()
        lifelines.close()
        inbox.close()


def test_certificates_of_a_directory(tmp_path: Path) -> None:
    options = options_from({"spark.flinkplus.tls": str(tmp_path)}, {})
    with pytest.raises(ConfigurationError, match=r"ca\.pem"):
        Credentials.made(options, "job")
    for name, data in ((tls.AUTHORITY, OURS.authority), (tls.CERTIFICATE, OURS.certificate), (tls.KEY, OURS.key)):
        (tmp_path / name).write_bytes(data)
    made = Credentials.made(options, "job")
    assert made.tls == str(tmp_path) and made.certificates == OURS, "the key itself is not shipped"
    (tmp_path / tls.KEY).write_bytes(THEIRS.key)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Credentials.made(options, "job")


def test_certificates_made_for_a_job() -> None:
    made = Credentials.made(options_from({"spark.flinkplus.tls": "true"}, {}), "job")
    assert isinstance(made.tls, Certificates) and made.certificates is made.tls
    assert repr(made) == "Credentials()" and repr(made.tls) == "Certificates()"
    assert Credentials.made(options_from({"spark.flinkplus.tls": "false"}, {}), "job").tls is None


@pytest.mark.parametrize("value", ["", " ", 3, None])
def test_what_the_option_does_not_take(value: object) -> None:
    with pytest.raises(ConfigurationError, match="tls"):
        options_from({}, {"tls": value})
