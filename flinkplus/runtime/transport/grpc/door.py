"""The handshake over gRPC: two calls, all of it in metadata, which gRPC keeps short by itself.

The first call brings the hello and is ended with the challenge, in trailing metadata (a client that hears of the end of
a call before its initial metadata takes these for empty); the second brings the proof, and is the stream, whose initial
metadata are the welcome. No message of a call is read before it has proved to be of the job.

Rules: lives in the I/O thread. A challenge can be answered once, within ``TIMEOUT_S``; ``MAX_STRANGERS`` are open, and
when there are more, the oldest of the address that has the most is forgotten. The same holds for connections without a
stream (``crowd``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flinkplus.errors import PeerRefused
from flinkplus.runtime.base.io_thread import grpc
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals
from flinkplus.runtime.transport.grpc.crowd import Crowd

HELLO, CHALLENGE, NONCE, PROOF, WELCOME = (
    f"flinkplus-{name}-bin" for name in ("hello", "challenge", "nonce", "proof", "welcome")
)


class Door:
    """Of a server that speaks ``protocol`` and is called ``name``. ``address``: what diallers have to say that they
    dialled, where they know it just as it is here.
    """

    def __init__(self, credentials: Credentials, protocol: bytes, refusals: Refusals, name: str = "") -> None:
        self._credentials = credentials
        self._protocol = protocol
        self._refusals = refusals
        self.name = name
        self.address = ""
        self.crowd = Crowd(lambda reason, text: refusals.count(protocol.decode(), reason, text))
        self._open: dict[bytes, tuple[float, str, Listening]] = {}  # the oldest is the first

    async def admit(self, context: Any) -> Listening | None:
        """Who calls; ``None`` for a call that was only there for its challenge. Others are refused and counted."""
        metadata = dict(context.invocation_metadata())
        try:
            if PROOF in metadata:
                return self._check(metadata)
            listening = Listening(self._credentials.secret, self._protocol, self.name, self.address)
            challenge = listening.challenge(_bytes(metadata, HELLO))
        except PeerRefused as error:
            await self.refuse(context, error)
            raise
        self._forget_old()
        self._open[listening.nonce] = (time.monotonic(), _host(context.peer()), listening)
        context.set_trailing_metadata(((CHALLENGE, challenge),))
        return None

    @asynccontextmanager
    async def open(self, context: Any, found: Listening) -> AsyncIterator[None]:
        """The stream of ``found`` is let in, and lasts as long as this does."""
        with self.crowd.without(context.peer()):
            await context.send_initial_metadata(((WELCOME, found.welcome),))
            yield

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
        for nonce in handshake.excess(self._open, lambda _, known: known[1], handshake.MAX_STRANGERS - 1):
            self._forget(nonce, handshake.CROWD)

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
    """A stream to a ``Door``, let in by it. ``open_call``: of a ``grpc.aio`` channel.

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
        welcome = next((value for name, value in metadata if name == WELCOME), b"")
        if not welcome:
            await asyncio.wait_for(stream.read(), timeout_s)  # raises what the stream was ended with, if it was
        connecting.check(bytes(welcome))
    except BaseException:
        stream.cancel()
        raise
    return stream
