"""The handshake over gRPC: two calls, all of it in metadata, which gRPC keeps short by itself.

The first call brings the hello and is ended with the challenge, in trailing metadata (a client that hears of the end of
a call before its initial metadata takes these for empty); the second brings the proof, and is the stream. No message of
a call is read before it has proved to be of the job.

Rules: lives in the I/O thread. A challenge can be answered once, within ``TIMEOUT_S``; ``MAX_STRANGERS`` are open, and
when there are more, the oldest of the address that has the most is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from flinkplus.errors import PeerRefused
from flinkplus.runtime import handshake
from flinkplus.runtime.credentials import Credentials
from flinkplus.runtime.handshake import Connecting, Listening, Refusals
from flinkplus.runtime.io_thread import grpc

HELLO, CHALLENGE, NONCE, PROOF = (f"flinkplus-{name}-bin" for name in ("hello", "challenge", "nonce", "proof"))
WELCOME = (("flinkplus-welcome", "1"),)
"""The initial metadata of a stream that was taken in: one that was refused has none."""
UNUSED_CONNECTION_MS = 10_000
MAX_CONNECTIONS = 512
"""At one server: strangers must not take the files that the slot needs for its state."""
SERVER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_connection_idle_ms", UNUSED_CONNECTION_MS),  # idle is a connection without a stream
    ("grpc.server_handshake_timeout_ms", int(handshake.TIMEOUT_S * 1000)),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_metadata_size", 4 << 10),
    ("grpc.absolute_max_metadata_size", 8 << 10),
]


class Door:
    """Of a server that speaks ``protocol``."""

    def __init__(self, credentials: Credentials, protocol: bytes, refusals: Refusals) -> None:
        self._credentials = credentials
        self._protocol = protocol
        self._refusals = refusals
        self._open: dict[bytes, tuple[float, str, Listening]] = {}  # the oldest is the first

    async def admit(self, context: Any) -> Listening | None:
        """Who calls; ``None`` for a call that was only there for its challenge. Others are refused and counted."""
        metadata = dict(context.invocation_metadata())
        try:
            if PROOF in metadata:
                return self._check(metadata)
            listening = Listening(self._credentials.secret, self._protocol)
            challenge = listening.challenge(_bytes(metadata, HELLO))
        except PeerRefused as error:
            await self.refuse(context, error)
            raise
        self._forget_old()
        self._open[listening.nonce] = (time.monotonic(), _host(context.peer()), listening)
        context.set_trailing_metadata(((CHALLENGE, challenge),))
        return None

    async def refuse(self, context: Any, error: PeerRefused) -> None:
        """Count it and end the call; raises what gRPC ends calls with."""
        self._refusals.count(self._protocol.decode(), error.reason, f"{context.peer()}: {error}")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")

    def _check(self, metadata: dict[str, Any]) -> Listening:
        begun, _, listening = self._open.pop(_bytes(metadata, NONCE), (0.0, "", None))
        if listening is None or time.monotonic() - begun > handshake.TIMEOUT_S:
            raise PeerRefused(handshake.TIMEOUT, "an answer to no challenge, or a late one")
        listening.check(_bytes(metadata, PROOF))
        return listening

    def _forget_old(self) -> None:
        """Of challenges without an answer: those that are late, and one to make room for the next."""
        latest = time.monotonic() - handshake.TIMEOUT_S
        late = [nonce for nonce, (begun, _, _) in self._open.items() if begun < latest]
        for nonce in late:
            self._forget(nonce, handshake.TIMEOUT)
        if len(self._open) >= handshake.MAX_STRANGERS:
            ((most, _),) = Counter(place for _, place, _ in self._open.values()).most_common(1)
            self._forget(next(nonce for nonce, (_, place, _) in self._open.items() if place == most), handshake.CROWD)

    def _forget(self, nonce: bytes, reason: str) -> None:
        del self._open[nonce]
        self._refusals.count(self._protocol.decode(), reason, "a challenge without an answer")


def _host(peer: str) -> str:
    """Without the port: ``ipv4:127.0.0.1:4000`` is how gRPC names a peer."""
    return peer.rpartition(":")[0]


def _bytes(metadata: dict[str, Any], name: str) -> bytes:
    value = metadata.get(name)
    if not isinstance(value, bytes) or len(value) > handshake.MAX_BYTES:
        raise PeerRefused(handshake.MALFORMED, f"no {name}")
    return value


async def open_stream(open_call: Any, connecting: Connecting, timeout_s: float) -> Any:
    """A stream to a ``Door``, taken in by it. ``open_call``: of a ``grpc.aio`` channel.

    Raises ``AioRpcError``, ``asyncio.TimeoutError``, ``PeerRefused`` when it is the other end that is a stranger.
    """
    call = open_call(metadata=((HELLO, connecting.hello),))
    try:
        metadata = await asyncio.wait_for(call.trailing_metadata(), timeout_s)
        challenge = next((value for name, value in metadata if name == CHALLENGE), b"")
        if not challenge:
            await asyncio.wait_for(call.read(), timeout_s)  # raises what the call was ended with, if it was
        proof = connecting.answer(bytes(challenge))
    finally:
        call.cancel()
    nonce = bytes(challenge[: handshake.NONCE_BYTES])
    stream = open_call(metadata=((NONCE, nonce), (PROOF, proof)))
    try:
        metadata = await asyncio.wait_for(stream.initial_metadata(), timeout_s)
        if not any(name == WELCOME[0][0] for name, _ in metadata):
            await asyncio.wait_for(stream.read(), timeout_s)
            raise PeerRefused(handshake.MALFORMED, "a stream without a welcome")
    except BaseException:
        stream.cancel()
        raise
    return stream
