"""The handshake's frames: what each code is bound to, and in which order frames count."""

from __future__ import annotations

from copy import copy

import pytest

from flinkplus.errors import PeerRefused
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.handshake import (
    CODE_BYTES,
    NONCE_BYTES,
    Connecting,
    Hello,
    Listening,
    fields,
    parse_hello,
)

SECRET, PURPOSE, ADDRESS = b"secret", b"data", "127.0.0.1:4000"


def connecting() -> Connecting:
    return Connecting(SECRET, PURPOSE, "slot-0.1", "slot-1.2", ADDRESS)


def listening(own: str = "slot-1.2", purpose: bytes = PURPOSE, address: str = ADDRESS) -> Listening:
    return Listening(SECRET, purpose, own, address)


def test_both_ends_get_to_know_each_other() -> None:
    dialler, listener = connecting(), listening()
    proof = dialler.answer(listener.challenge(dialler.hello))
    assert listener.welcome == b"", "nothing that could be sent by mistake"
    listener.check(proof)
    dialler.check(listener.welcome)
    assert listener.name == "slot-0.1" and len(listener.welcome) == CODE_BYTES


@pytest.mark.parametrize(
    ("listener", "reason"),
    [
        (listening("slot-1.3"), handshake.IDENTITY),
        (listening("slot-1.0"), handshake.IDENTITY),
        (listening("slot-2.2"), handshake.IDENTITY),
        (listening(""), handshake.IDENTITY),
        (listening(address="127.0.0.1:4001"), handshake.IDENTITY),
        (listening(address=""), handshake.IDENTITY),
        (listening(purpose=b"control"), handshake.PROTOCOL),
    ],
)
def test_a_listener_refuses_what_is_for_another_one(listener: Listening, reason: str) -> None:
    with pytest.raises(PeerRefused) as refused:
        listener.challenge(connecting().hello)
    assert refused.value.reason == reason
    with pytest.raises(PeerRefused):
        listener.check(b"x" * CODE_BYTES)


def test_each_code_is_bound_to_everything() -> None:
    hello = Hello(PURPOSE, b"slot-0.1", b"slot-1.2", ADDRESS.encode(), b"n" * NONCE_BYTES)
    others = [hello._replace(**{part: getattr(hello, part)[:-1] + b"?"}) for part in Hello._fields]
    others.append(hello._replace(name=b"slot-0.1s", target=b"lot-1.2"))
    kinds = (handshake.CHALLENGE, handshake.PROOF_OF_DIALLER, handshake.WELCOME)
    codes = {
        handshake._code(secret, kind, said, nonce)
        for secret in (SECRET, b"another")
        for kind in kinds
        for said in (hello, *others)
        for nonce in (b"l" * NONCE_BYTES, b"m" * NONCE_BYTES)
    }
    assert len(codes) == 2 * 3 * (1 + len(others)) * 2


def test_each_end_takes_each_frame_once_and_in_order() -> None:
    dialler, listener = connecting(), listening()
    with pytest.raises(PeerRefused):
        dialler.check(b"x" * CODE_BYTES)
    with pytest.raises(PeerRefused):
        copy(listener).check(b"x" * CODE_BYTES)
    challenge = listener.challenge(dialler.hello)
    with pytest.raises(PeerRefused, match="a second hello"):
        listener.challenge(connecting().hello)
    proof = dialler.answer(challenge)
    with pytest.raises(PeerRefused, match="a second challenge"):
        dialler.answer(challenge)
    listener.check(proof)
    with pytest.raises(PeerRefused, match="a second one"):
        listener.check(proof)


def test_a_wrong_proof_ends_it() -> None:
    dialler, listener = connecting(), listening()
    proof = dialler.answer(listener.challenge(dialler.hello))
    with pytest.raises(PeerRefused):
        listener.check(proof[:-1] + bytes([proof[-1] ^ 1]))
    with pytest.raises(PeerRefused):
        listener.check(proof)
    assert listener.welcome == b""


@pytest.mark.parametrize("size", [0, 1, NONCE_BYTES, NONCE_BYTES + CODE_BYTES - 1, NONCE_BYTES + CODE_BYTES + 1])
def test_a_challenge_of_another_size_is_none(size: int) -> None:
    with pytest.raises(PeerRefused):
        connecting().answer(b"x" * size)


def test_a_hello_has_five_parts() -> None:
    said = parse_hello(connecting().hello)
    assert said.encode() == connecting().hello[:-NONCE_BYTES] + said.nonce
    for parts in (said[:4], (*said, b""), (*said[:4], said.nonce + b"x"), (*said[:3], b"x" * 129, said.nonce)):
        with pytest.raises(PeerRefused):
            parse_hello(fields(*parts))


def test_the_oldest_of_the_address_with_the_most_are_in_excess() -> None:
    addresses = {1: "a", 2: "b", 3: "b", 4: "b", 5: "c", 6: "c"}
    asked: list[int] = []

    def address(stranger: int, known: str) -> str:
        asked.append(stranger)
        return known

    assert handshake.excess(addresses, address, 6) == [] == asked, "while there is room, none is looked at"
    assert handshake.excess(addresses, address, 5) == [2]
    ended = handshake.excess(addresses, address, 3)
    assert set(addresses) - set(ended) == {1, 4, 6}, "one of each address"
    assert handshake.excess({}, address, 0) == []
