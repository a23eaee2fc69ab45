"""How two processes of a job prove to each other that they are, before either takes anything else.

Both know the job's secret, which the driver makes and ships with Spark's own task. Four short frames:

1. who connects: the protocol, its own name, the name of whom it means to reach, a nonce;
2. who listens: a nonce of its own, and the proof that it knows the secret;
3. who connects: its proof;
4. who listens: an empty frame, the welcome.

A proof is HMAC-SHA256 over the role, the protocol, both names and both nonces. So the secret is never sent, a recorded
proof is worth nothing, one end's proof is not the other's, and what was meant for one process is of no use to another,
nor on another plane.

Rules: pure, no socket here. Whatever is not exactly as said is ``PeerRefused`` with one of ``REASONS``; every frame is
at most ``MAX_BYTES`` long.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections import Counter
from collections.abc import Iterator

from flinkplus.errors import PeerRefused

log = logging.getLogger("flinkplus.security")

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
MAX_BYTES = 512
MAX_FIELD_BYTES = 128
TIMEOUT_S = 5.0
"""A handshake that takes longer is given up by whoever listens."""
MAX_STRANGERS = 128
"""Handshakes under way at one listener at most: beyond, the oldest of the address with the most of them is ended."""

MALFORMED, PROTOCOL, PROOF, IDENTITY, TIMEOUT, CROWD, CLOSED = REASONS = (
    "malformed",
    "protocol",
    "proof",
    "identity",
    "timeout",
    "crowd",
    "closed",
)


def make_secret() -> bytes:
    """A job's secret."""
    return secrets.token_bytes(SECRET_BYTES)


def derived(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose, which tells nothing of the secret."""
    return hmac.digest(secret, b"flinkplus/derived/" + purpose.encode(), "sha256")


def fields(*parts: bytes) -> bytes:
    """Fields end to end, each behind its length: different ones never give the same bytes."""
    return b"".join(bytes((len(part),)) + part for part in parts)


def parse_fields(data: bytes) -> Iterator[bytes]:
    """The inverse of ``fields``. Raises ``PeerRefused``."""
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        if end > len(data):
            raise PeerRefused(MALFORMED, "a first frame that is cut")
        yield data[at + 1 : end]
        at = end


def _proof(secret: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, fields(b"flinkplus/1", role, nonce) + hello, "sha256")


class Connecting:
    """Of whoever connects: ``name`` to ``target``."""

    def __init__(self, secret: bytes, protocol: bytes, name: str, target: str) -> None:
        self._secret = secret
        self.hello = fields(protocol, name.encode(), target.encode(), secrets.token_bytes(NONCE_BYTES))

    def answer(self, challenge: bytes) -> bytes:
        """The third frame, to the second one. Raises ``PeerRefused`` when the other end does not know the secret."""
        if len(challenge) != NONCE_BYTES + PROOF_BYTES:
            raise PeerRefused(MALFORMED, f"a challenge of {len(challenge)} bytes")
        nonce, proof = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._secret, b"listener", self.hello, nonce)):
            raise PeerRefused(PROOF, "who listens does not know the job's secret, or is not who is looked for")
        return _proof(self._secret, b"connector", self.hello, nonce)


class Listening:
    """Of whoever listens. ``name`` and ``target`` are what the other end says, to be believed after ``check``."""

    def __init__(self, secret: bytes, protocol: bytes) -> None:
        self._secret = secret
        self._protocol = protocol
        self._hello = b""
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.name = self.target = ""

    def challenge(self, hello: bytes) -> bytes:
        """The second frame, to the first one. Raises ``PeerRefused``."""
        found = list(parse_fields(hello))
        if len(found) != 4 or len(found[3]) != NONCE_BYTES or max(map(len, found)) > MAX_FIELD_BYTES:
            raise PeerRefused(MALFORMED, "no first frame of this program")
        protocol, name, target, _ = found
        if protocol != self._protocol:
            raise PeerRefused(PROTOCOL, f"protocol {protocol!r}, this program speaks {self._protocol!r}")
        try:
            self.name, self.target = name.decode("ascii"), target.decode("ascii")
        except UnicodeDecodeError:
            raise PeerRefused(MALFORMED, "a name that is not ASCII") from None
        self._hello = hello
        return self.nonce + _proof(self._secret, b"listener", hello, self.nonce)

    def check(self, proof: bytes) -> None:
        """The third frame. Raises ``PeerRefused`` when it does not show that the other end knows the secret."""
        if not self._hello:
            raise PeerRefused(MALFORMED, "a proof before anything else")
        if not hmac.compare_digest(proof, _proof(self._secret, b"connector", self._hello, self.nonce)):
            raise PeerRefused(PROOF, "who connects does not know the job's secret")


class Refusals:
    """How many were refused, and why. Written by one thread, read by any.

    Logged are the first of each reason, the second, the fourth and so on: a stranger does not fill the log.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, where: str, reason: str, told: str) -> None:
        """One more."""
        self._counts[reason] += 1
        count = self._counts[reason]
        if count & (count - 1) == 0:
            log.warning("%s refused a connection (%s, %d so far): %s", where, reason, count, told)

    @property
    def total(self) -> int:
        return sum(list(self._counts.values()))

    def by_reason(self) -> dict[str, int]:
        return dict(self._counts)


def slot_name(slot: int, incarnation: int) -> str:
    """What a slot calls itself, and others call it, on the data plane. Incarnation 0: not known yet."""
    return f"slot-{slot}.{incarnation}"


def parse_slot_name(name: str) -> tuple[int, int]:
    """The inverse of ``slot_name``. Raises ``PeerRefused``."""
    head, _, rest = name.partition("-")
    slot, _, incarnation = rest.partition(".")
    if head != "slot" or not (_is_number(slot) and _is_number(incarnation)):
        raise PeerRefused(IDENTITY, f"{name!r} is no slot")
    return int(slot), int(incarnation)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
