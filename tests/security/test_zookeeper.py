"""Strangers at the job's own ZooKeeper server: another user of the machine, who can compute the passwords of sessions.

ZooKeeper derives the password of a session from its number, by a rule that is public (``java.util.Random`` seeded with
the number and a constant). Who has both can take the session over, and end it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from chain_backup.zookeeper import embedded, supervisor
from chain_backup.zookeeper.client import Client, KazooState, _Handler
from chain_backup.zookeeper.embedded import EmbeddedZooKeeper, Tls
from flinkplus.runtime.transport.auth.tls import Certificates, context, made_for

pytestmark = [pytest.mark.security, pytest.mark.integration]

SUPER_SECRET = 0xB3415C00
CLOSE_SESSION = struct.pack(">iii", 8, 1, -11)
STRANGERS = 400


def password_of(session: int) -> bytes:
    """What ZooKeeper makes of a session's number."""
    mask = (1 << 48) - 1
    state, made = ((session ^ SUPER_SECRET) ^ 0x5DEECE66D) & mask, b""
    while len(made) < 16:
        state = (state * 0x5DEECE66D + 0xB) & mask
        made += struct.pack("<I", state >> 16 & 0xFFFFFFFF)
    return made


def ends_session(connection: socket.socket, session: int) -> bool:
    """Take ``session`` over, and end it; whether the server let that happen."""
    connection.settimeout(10.0)
    request = struct.pack(">iqiqi", 0, 0, 10_000, session, 16) + password_of(session) + b"\0"
    try:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.recv(1000)
        if len(answer) < 20 or struct.unpack_from(">q", answer, 12) != (session,):
            return False
        connection.sendall(CLOSE_SESSION)
        connection.recv(1000)
    except OSError:
        return False
    return True


def tls_of(certificates: Certificates) -> Tls:
    client = context(certificates, server=False)
    return Tls(certificates.authority, certificates.certificate, certificates.key, client)


OURS = made_for("ours")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tls=tls_of(OURS), clients=8) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """Who has the job's certificates."""
    found = KazooClient(server.hosts, handler=_Handler(tls_of(OURS).client))
    found.start(20)
    try:
        yield found
    finally:
        found.stop()
        found.close()


def connected(server: EmbeddedZooKeeper) -> socket.socket:
    host, _, port = server.hosts.rpartition(":")
    return socket.create_connection((host, int(port)), 10.0)


def no_certificate() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def anybody(certificates: Certificates) -> ssl.SSLContext:
    """Shows these, and asks for none."""
    made = tls_of(certificates).client
    made.verify_mode = ssl.CERT_NONE
    return made


def test_the_attack_works_where_there_is_no_tls() -> None:
    """Else the other tests would show nothing."""
    with EmbeddedZooKeeper(clients=8) as plain, connected(plain) as connection:
        victim = KazooClient(plain.hosts)
        victim.start(20)
        try:
            assert ends_session(connection, victim.client_id[0])
        finally:
            victim.stop()
            victim.close()


@pytest.mark.parametrize("how", ["in clear", "without a certificate", "with a certificate of another job"])
def test_no_stranger_ends_a_session(server: EmbeddedZooKeeper, client: KazooClient, how: str) -> None:
    session = client.client_id[0]
    assert client.client_id[1] == password_of(session), "the stranger knows it"
    shown = {
        "in clear": None,
        "without a certificate": no_certificate(),
        "with a certificate of another job": anybody(made_for("theirs")),
    }[how]
    with contextlib.ExitStack() as held:
        connection = held.enter_context(connected(server))
        with contextlib.suppress(OSError):  # then it is refused already
            if shown is not None:
                connection = held.enter_context(shown.wrap_socket(connection))
            assert not ends_session(connection, session)
    client.create("/still-there", ephemeral=True)
    assert client.client_id[0] == session
    client.delete("/still-there")


def test_strangers_take_no_connection_from_the_job(server: EmbeddedZooKeeper, client: KazooClient) -> None:
    """Many more than the server has connections for: some say nothing, some announce a request of a megabyte."""
    with contextlib.ExitStack() as held:
        for number in range(STRANGERS):
            connection = held.enter_context(connected(server))
            if number % 2:
                with contextlib.suppress(OSError):
                    connection.sendall((server.request_bytes - 1).to_bytes(4, "big") + b"x")
        another = KazooClient(server.hosts, handler=_Handler(tls_of(OURS).client))
        another.start(20)
        assert another.exists("/zookeeper") and client.exists("/zookeeper")
        another.stop()
        another.close()
        assert server.alive


def test_who_says_nothing_is_let_go(server: EmbeddedZooKeeper) -> None:
    with connected(server) as connection:
        assert select.select([connection], [], [], 60.0)[0], "the server ends it"


def test_a_server_without_its_native_library_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    unusable = "-Dio.netty.handler.ssl.noOpenSsl=true"  # as if it did not load
    monkeypatch.setattr(embedded, "JVM_OPTIONS_OF_TLS", (*embedded.JVM_OPTIONS_OF_TLS, unusable))
    with EmbeddedZooKeeper(tls=tls_of(OURS), clients=8) as running:
        assert running.alive and not running._native_tls
        assert running.restart() == running.hosts


RATE = 700
SECONDS = 10
HELD = 500


@pytest.mark.long
def test_a_flood_of_handshakes_ends_no_session(server: EmbeddedZooKeeper) -> None:
    """First messages of TLS, ``RATE`` each second. No session ends, and the supervisor restarts nothing."""
    states: list[str] = []
    clients = [Client(server.hosts, 4.0, states.append, tls=tls_of(OURS).client) for _ in range(3)]
    watch = supervisor.Supervisor(server, lambda reason: None, lambda: None)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        no_certificate().wrap_bio(incoming, outgoing).do_handshake()
    hello = outgoing.read()
    try:
        for client in clients:
            client.start()
        for client in clients:
            client.await_connected(time.monotonic() + 60.0, "the test")
        watch.start()
        states.clear()
        began_s, sent = time.monotonic(), 0
        with contextlib.ExitStack() as held:
            while (passed_s := time.monotonic() - began_s) < SECONDS:
                if sent >= passed_s * RATE:
                    time.sleep(0.001)
                    continue
                connection = connected(server)
                held.callback(connection.close)
                with contextlib.suppress(OSError):
                    connection.sendall(hello)
                sent += 1
                if sent % HELD == 0:
                    held.close()
        for client in clients:
            assert client.kazoo.exists("/zookeeper")
        assert KazooState.LOST not in states and watch.restarts == 0 and server.alive
    finally:
        for client in clients:
            client.close()
        watch.close()
