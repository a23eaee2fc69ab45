"""The handshake over gRPC: two calls, all of it in metadata, which gRPC keeps short by itself.

The first call brings the hello and is ended with the challenge, in trailing metadata; the second brings the proof, and
is the stream, whose initial metadata are the welcome. No message of a stranger is read.

Rules: lives in the I/O thread. A challenge can be answered once, within ``TIMEOUT_S``; ``MAX_STRANGERS`` are open, and
when there are more, the oldest of the address that has the most is forgotten. So are connections (``crowd``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
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
    """The entrance of a server that speaks ``protocol`` and is called ``name``. ``address``: what diallers must have
    dialled, where they know it by the same text; empty: they do not say.
    """

    def __init__(self, credentials: Credentials, protocol: bytes, refusals: Refusals, name: str = "") -> None:
        self._credentials = credentials
        self._protocol = protocol
        self._refusals = refusals
        self.name = name
        self.address = ""
        self.crowd = Crowd(lambda reason, text: refusals.count(protocol.decode(), reason, text))
        self._open: dict[bytes, tuple[float, str, Listening]] = {}  # the oldest is the first

    async def admit(self, context: Any, check: Callable[[Listening], object] | None = None) -> Listening | None:
        """The dialler of a call; ``None`` for a call that was only there for its challenge. Others are refused and
        counted. ``check`` may refuse a dialler that has proved its name: it raises ``PeerRefused``.
        """
        metadata = dict(context.invocation_metadata())
        try:
            if PROOF in metadata:
                found = self._proved(metadata)
                if check is not None:
                    check(found)
                return found
            listening = Listening(self._credentials.secret, self._protocol, self.name, self.address)
            challenge = listening.challenge(_bytes(metadata, HELLO))
        except PeerRefused as error:
            self._refusals.count(self._protocol.decode(), error.reason, f"{context.peer()}: {error}")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")  # raises
            raise
        self._forget_old()
        host = context.peer().rpartition(":")[0]  # gRPC names a peer ``ipv4:127.0.0.1:4000``
        self._open[listening.nonce] = (time.monotonic(), host, listening)
        # Not in the initial metadata: a client that sees the end of the call before them takes them for empty.
        context.set_trailing_metadata(((CHALLENGE, challenge),))
        return None

    def _proved(self, metadata: dict[str, Any]) -> Listening:
        begun, _, listening = self._open.pop(_bytes(metadata, NONCE), (0.0, "", None))
        if listening is None or time.monotonic() - begun > handshake.TIMEOUT_S:
            raise PeerRefused(handshake.TIMEOUT, "an answer to no challenge, or a late one")
        listening.check(_bytes(metadata, PROOF))
        return listening

    def _forget_old(self) -> None:
        """Forget the challenges whose answer is late, and others to make room for one more."""
        latest = time.monotonic() - handshake.TIMEOUT_S
        late = [nonce for nonce, (begun, _, _) in self._open.items() if begun < latest]
        for nonce in late:
            self._forget(nonce, handshake.TIMEOUT)
        for nonce in handshake.excess(self._open, lambda _, known: known[1], handshake.MAX_STRANGERS - 1):
            self._forget(nonce, handshake.CROWD)

    def _forget(self, nonce: bytes, reason: str) -> None:
        del self._open[nonce]
        self._refusals.count(self._protocol.decode(), reason, "a challenge without an answer")


def _bytes(metadata: dict[str, Any], name: str) -> bytes:
    value = metadata.get(name)
    if not isinstance(value, bytes) or len(value) > handshake.MAX_BYTES:
        raise PeerRefused(handshake.MALFORMED, f"no {name}")
    return value


async def open_stream(open_call: Any, connecting: Connecting, timeout_s: float) -> Any:
    """A stream to a ``Door``, let in by it. ``open_call``: of a ``grpc.aio`` channel. Raises ``AioRpcError``,
    ``asyncio.TimeoutError``, ``PeerRefused`` when the other end is a stranger."""
    call = open_call(metadata=((HELLO, connecting.hello),))
    try:
        challenge = await _said(call, call.trailing_metadata(), CHALLENGE, timeout_s)
        proof = connecting.answer(challenge)
    finally:
        call.cancel()
    stream = open_call(metadata=((NONCE, challenge[: handshake.NONCE_BYTES]), (PROOF, proof)))
    try:
        connecting.check(await _said(stream, stream.initial_metadata(), WELCOME, timeout_s))
    except BaseException:
        stream.cancel()
        raise
    return stream


async def _said(call: Any, metadata: Awaitable[Any], name: str, timeout_s: float) -> bytes:
    """What ``metadata`` of a call have under ``name``. Raises what the call was ended with when they do not have it."""
    said = next((value for key, value in await asyncio.wait_for(metadata, timeout_s) if key == name), b"")
    if not said:
        await asyncio.wait_for(call.read(), timeout_s)
    return bytes(said)
