"""A process that does not know a job's secret, at the ports of the job and at ports of its own.

It sits where a slot or the driver was, takes the connections of others, and asks the job's listeners to sign for it. It
may hold a certificate of the authority that the job trusts, as in a company with one authority for all.

Rules: sockets and gRPC alone; of the product's handshake only the form of the messages is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flinkplus.runtime.base.io_thread import IoThread, aio, grpc
from flinkplus.runtime.transport.auth.tls import Certificates, context
from flinkplus.runtime.transport.grpc.door import CHALLENGE, HELLO, NONCE, PROOF, WELCOME
from flinkplus.runtime.transport.grpc.streams import identity, open_channel
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.frames import LENGTH, framed

HOST = "127.0.0.1"
PATIENCE_S = 60.0
Forge = Callable[[bytes, bytes], bytes]
"""Makes a welcome of a challenge and the proof that answered it."""


@dataclass
class Loot:
    """What the stranger has got. ``asked``: the answer of each listener that it asked to sign; empty: refused."""

    hello: bytes = b""
    asked: list[bytes] = field(default_factory=list)
    proof: bytes = b""
    stolen: bytes = b""


@dataclass
class Impostor:
    """Takes one connection at ``address`` in the place of another process.

    ``oracle``: the listener that is asked to sign for the hello. ``forge``: makes the welcome; ``None``: whatever the
    oracle says to the proof is forwarded, and all that follows.
    """

    oracle: str
    forge: Forge | None
    certificates: Certificates | None
    method: str
    address: str = ""
    loot: Loot = field(default_factory=Loot)
    done: threading.Event = field(default_factory=threading.Event)


def _read(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = sock.recv(min(1 << 16, size - len(found)))
        if not part:
            raise ConnectionError("closed")
        found += part
    return found


def _frame(sock: socket.socket) -> bytes:
    return _read(sock, LENGTH.unpack(_read(sock, LENGTH.size))[0])


def _dialled(address: str, certificates: Certificates | None) -> socket.socket:
    sock = socket.create_connection(parse_address(address), PATIENCE_S)
    return sock if certificates is None else context(certificates, False).wrap_socket(sock)


# --- over TCP


def ask_tcp(address: str, hello: bytes, certificates: Certificates | None) -> bytes:
    """What the listener at ``address`` answers to a hello; empty when it closes the connection."""
    with contextlib.suppress(OSError), _dialled(address, certificates) as sock:
        sock.sendall(framed(hello))
        return _frame(sock)
    return b""


@contextlib.contextmanager
def impostor_tcp(impostor: Impostor) -> Iterator[Impostor]:
    """``impostor`` waits for its victim meanwhile."""
    with socket.create_server((HOST, 0)) as server:
        impostor.address = f"{HOST}:{server.getsockname()[1]}"

        open_here = [server]

        def work() -> None:
            try:
                sock, _ = server.accept()
                sock.settimeout(PATIENCE_S)
                with sock if impostor.certificates is None else _served(sock, impostor.certificates) as victim:
                    open_here.append(victim)
                    _deceive(impostor, victim, open_here)
            except OSError:
                pass  # the victim, or the test, has had enough
            finally:
                impostor.done.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield impostor
        for sock in open_here:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread, if it still waits there
    thread.join(PATIENCE_S)


def _served(sock: socket.socket, certificates: Certificates) -> socket.socket:
    return context(certificates, True).wrap_socket(sock, server_side=True)


def _deceive(impostor: Impostor, victim: socket.socket, open_here: list[socket.socket]) -> None:
    loot = impostor.loot
    loot.hello = _frame(victim)
    with contextlib.ExitStack() as stack:
        try:
            oracle = stack.enter_context(_dialled(impostor.oracle, impostor.certificates))
            open_here.append(oracle)
            oracle.sendall(framed(loot.hello))
            loot.asked.append(_frame(oracle))
        except OSError:
            loot.asked.append(b"")
            return
        victim.sendall(framed(loot.asked[0]))
        loot.proof = _frame(victim)
        if impostor.forge is None:
            oracle.sendall(framed(loot.proof))
            victim.sendall(framed(_frame(oracle)))
        else:
            victim.sendall(framed(impostor.forge(loot.asked[0], loot.proof)))
        loot.stolen = victim.recv(1 << 16)


# --- over gRPC


async def _ask_grpc(address: str, method: str, metadata: Any, certificates: Certificates | None) -> dict[str, bytes]:
    channel = open_channel(address, certificates)
    try:
        call = channel.stream_stream(method, identity, identity)(metadata=metadata)
        with contextlib.suppress(aio.AioRpcError):
            found = await asyncio.wait_for(call.trailing_metadata(), PATIENCE_S)
            return {name: bytes(value) for name, value in found or () if name.endswith("-bin")}
        return {}
    finally:
        await channel.close()


async def _forwarded_grpc(impostor: Impostor, metadata: Any) -> bytes:
    """The welcome that the oracle gives for a proof; its stream ends then."""
    channel = open_channel(impostor.oracle, impostor.certificates)
    try:
        call = channel.stream_stream(impostor.method, identity, identity)(metadata=metadata)
        found = dict(await asyncio.wait_for(call.initial_metadata(), PATIENCE_S))
        return bytes(found.get(WELCOME, b""))
    finally:
        await channel.close()


def ask_grpc(address: str, method: str, hello: bytes, certificates: Certificates | None) -> bytes:
    """As ``ask_tcp``."""
    asked = _ask_grpc(address, method, ((HELLO, hello),), certificates)
    return IoThread.get().submit(asked).result(PATIENCE_S).get(CHALLENGE, b"")


@contextlib.contextmanager
def impostor_grpc(impostor: Impostor) -> Iterator[Impostor]:
    """As ``impostor_tcp``."""
    io = IoThread.get()
    service, _, name = impostor.method[1:].partition("/")
    certificates, loot = impostor.certificates, impostor.loot

    async def serve(requests: Any, call: Any) -> None:
        metadata = dict(call.invocation_metadata())
        if HELLO in metadata:
            loot.hello = bytes(metadata[HELLO])
            found = await _ask_grpc(impostor.oracle, impostor.method, ((HELLO, loot.hello),), certificates)
            loot.asked.append(found.get(CHALLENGE, b""))
            if not loot.asked[-1]:
                impostor.done.set()
                await call.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
            call.set_trailing_metadata(((CHALLENGE, loot.asked[-1]),))
            return
        loot.proof = bytes(metadata[PROOF])
        try:
            if impostor.forge is not None:
                welcome = impostor.forge(loot.asked[-1], loot.proof)
            else:
                welcome = await _forwarded_grpc(impostor, ((NONCE, metadata[NONCE]), (PROOF, loot.proof)))
            await call.send_initial_metadata(((WELCOME, welcome),))
            async for frame in requests:
                loot.stolen += frame
        finally:
            impostor.done.set()

    async def start() -> tuple[Any, int]:
        server = aio.server()
        handler = grpc.stream_stream_rpc_method_handler(serve, identity, identity)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        if certificates is None:
            port = server.add_insecure_port(f"{HOST}:0")
        else:
            pair = [(certificates.key, certificates.certificate)]
            found = grpc.ssl_server_credentials(pair, certificates.authority, require_client_auth=True)
            port = server.add_secure_port(f"{HOST}:0", found)
        await server.start()
        return server, port

    server, port = io.submit(start()).result(PATIENCE_S)
    impostor.address = f"{HOST}:{port}"
    yield impostor
    io.submit(server.stop(grace=None)).result(PATIENCE_S)
