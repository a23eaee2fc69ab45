"""How two processes of a job prove to each other that they are, before either takes anything else.

Both know the job's secret, which the driver ships with Spark's own task. Each listener has a name. Four short frames:

1. *hello*, of the dialler: the purpose of the connection (its protocol), its own name, the name of the listener that it
   means to reach, the address that it has dialled (where both know it by the same text), and a nonce;
2. *challenge*, of the listener: a nonce, and a code. A hello for another purpose, name or address gets no code;
3. *proof*, of the dialler: a code;
4. *welcome*, of the listener: a code. Without it the dialler is not connected.

A code is HMAC-SHA256, keyed with the secret, over which of the three it is, all parts of the hello, and the listener's
nonce. So the secret is never sent; a code counts in one frame, of one connection, between two processes, for one
purpose. ``docs/security.md`` has the argument, and ``tests/security/model.py`` looks for a way around it.

Rules: pure, no socket here. Each end of a connection has an object of its own, which takes each frame once. A frame
that differs from what is described here is ``PeerRefused`` with one of the reasons below; every frame is at most
``MAX_BYTES`` long.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from flinkplus.errors import PeerRefused

log = logging.getLogger("flinkplus.security")
K = TypeVar("K")
V = TypeVar("V")

SECRET_BYTES = 32
NONCE_BYTES = 32
CODE_BYTES = 32
VERSION = b"flinkplus/2"
CHALLENGE, PROOF_OF_DIALLER, WELCOME = b"challenge", b"proof", b"welcome"
"""Which code it is: none counts in the place of another."""
MAX_BYTES = 512
MAX_FIELD_BYTES = 128
TIMEOUT_S = 5.0
"""The listener ends a handshake that takes longer."""
MAX_STRANGERS = 128
"""Handshakes under way at one listener at most: beyond, the oldest of the address with the most of them is ended."""

MALFORMED, PROTOCOL, PROOF, IDENTITY, TIMEOUT, CROWD, CLOSED = (
    "malformed",
    "protocol",
    "proof",
    "identity",
    "timeout",
    "crowd",
    "closed",
)


def excess(strangers: Mapping[K, V], address: Callable[[K, V], object], limit: int = MAX_STRANGERS) -> list[K]:
    """Which of the ``strangers``, given oldest first, must be ended so that ``limit`` are left: each time the oldest of
    the ``address`` that has the most, so that a crowd from one address keeps no other address out. ``address`` is
    called only if some must."""
    surplus = len(strangers) - limit
    if surplus <= 0:
        return []
    by_address: dict[object, deque[K]] = {}
    for stranger, known in strangers.items():
        by_address.setdefault(address(stranger, known), deque()).append(stranger)
    return [max(by_address.values(), key=len).popleft() for _ in range(surplus)]


def make_secret() -> bytes:
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


class Hello(NamedTuple):
    """What a first frame says, in this order."""

    purpose: bytes
    name: bytes
    target: bytes
    address: bytes
    nonce: bytes

    def encode(self) -> bytes:
        return fields(*self)


def parse_hello(data: bytes) -> Hello:
    """The inverse of ``Hello.encode``. Raises ``PeerRefused``."""
    found = list(parse_fields(data))
    if len(found) != len(Hello._fields) or len(found[-1]) != NONCE_BYTES or max(map(len, found)) > MAX_FIELD_BYTES:
        raise PeerRefused(MALFORMED, "the first frame is not of this program")
    return Hello(*found)


def _code(secret: bytes, which: bytes, hello: Hello, nonce: bytes) -> bytes:
    """``nonce``: the listener's."""
    return hmac.digest(secret, fields(VERSION, which, *hello, nonce), "sha256")


class Connecting:
    """The dialler's end: ``name`` to ``target``. ``address``: what it dials, where the listener binds that."""

    def __init__(self, secret: bytes, protocol: bytes, name: str, target: str, address: str = "") -> None:
        self._secret = secret
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._said = Hello(protocol, name.encode(), target.encode(), address.encode(), nonce)
        self._theirs: bytes | None = None
        self.hello = self._said.encode()

    def answer(self, challenge: bytes) -> bytes:
        """The third frame, to the second one. Raises ``PeerRefused`` when the other end does not know the secret."""
        if self._theirs is not None:
            raise PeerRefused(MALFORMED, "a second challenge")
        if len(challenge) != NONCE_BYTES + CODE_BYTES:
            raise PeerRefused(MALFORMED, f"a challenge of {len(challenge)} bytes")
        self._theirs, code = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(code, self._code(CHALLENGE)):
            raise PeerRefused(PROOF, "the listener does not know the job's secret, or is another process than expected")
        return self._code(PROOF_OF_DIALLER)

    def check(self, welcome: bytes) -> None:
        """The fourth frame. Raises ``PeerRefused`` when it does not show that the listener has taken the proof."""
        if self._theirs is None:
            raise PeerRefused(MALFORMED, "a welcome before anything else")
        if not hmac.compare_digest(welcome, self._code(WELCOME)):
            raise PeerRefused(PROOF, f"{len(welcome)} bytes that are not a welcome of the expected process")

    def _code(self, which: bytes) -> bytes:
        assert self._theirs is not None
        return _code(self._secret, which, self._said, self._theirs)


class Listening:
    """The end of the listener ``own``. ``address``: what diallers must have dialled; empty: they do not say. ``name``:
    what the dialler says it is, to be believed after ``check``."""

    def __init__(self, secret: bytes, protocol: bytes, own: str, address: str = "") -> None:
        self._secret = secret
        self._protocol = protocol
        self._own = own
        self._address = address
        self._said: Hello | None = None
        self._challenged = False
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.name = ""
        self.welcome = b""
        """The fourth frame, once ``check`` has taken the third."""

    def challenge(self, hello: bytes) -> bytes:
        """The second frame, to the first one. Raises ``PeerRefused``: nothing is signed for another listener."""
        if self._challenged:
            raise PeerRefused(MALFORMED, "a second hello")
        self._challenged = True
        said = parse_hello(hello)
        if said.purpose != self._protocol:
            raise PeerRefused(PROTOCOL, f"protocol {said.purpose!r}, this program speaks {self._protocol!r}")
        try:
            self.name = said.name.decode("ascii")
        except UnicodeDecodeError:
            raise PeerRefused(MALFORMED, "a name that is not ASCII") from None
        self._check_target(said)
        self._said = said
        return self.nonce + _code(self._secret, CHALLENGE, said, self.nonce)

    def _check_target(self, said: Hello) -> None:
        """Raises ``PeerRefused`` when another listener is meant."""
        if (said.target, said.address) != (self._own.encode(), self._address.encode()):
            wanted = f"{said.target!r} at {said.address!r}"
            raise PeerRefused(IDENTITY, f"{self.name!r} expected {wanted}, this is {self._own!r} at {self._address!r}")

    def check(self, proof: bytes) -> None:
        """The third frame. Raises ``PeerRefused`` when it does not show that the other end knows the secret."""
        said, self._said = self._said, None
        if said is None:
            raise PeerRefused(MALFORMED, "a proof before anything else, or a second one")
        if not hmac.compare_digest(proof, _code(self._secret, PROOF_OF_DIALLER, said, self.nonce)):
            raise PeerRefused(PROOF, "the connecting process does not know the job's secret")
        self.welcome = _code(self._secret, WELCOME, said, self.nonce)


class Refusals:
    """How many were refused, and why. Written by one thread, read by any. The first of each reason, the second, the
    fourth and so on are logged: strangers do not fill the log."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()

    def count(self, where: str, reason: str, text: str) -> None:
        """Count one refusal. ``text``: who was refused, and why, for the log."""
        self.by_reason[reason] += 1
        count = self.by_reason[reason]
        if count & (count - 1) == 0:
            level = logging.INFO if reason == CLOSED else logging.WARNING  # a peer that ends leaves like this, too
            log.log(level, "%s refused a connection (%s, %d so far): %s", where, reason, count, text)

    @property
    def total(self) -> int:
        return sum(list(self.by_reason.values()))


def slot_name(slot: int, incarnation: int) -> str:
    """What a slot calls itself, and others call it, on the data plane. Incarnation 0: not known yet."""
    return f"slot-{slot}.{incarnation}"


def parse_slot_name(name: str) -> tuple[int, int]:
    """The inverse of ``slot_name``. Raises ``PeerRefused``."""
    head, _, rest = name.partition("-")
    slot, _, incarnation = rest.partition(".")
    if head != "slot" or not (_is_number(slot) and _is_number(incarnation)):
        raise PeerRefused(IDENTITY, f"{name!r:.100} is not a slot")
    return int(slot), int(incarnation)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
