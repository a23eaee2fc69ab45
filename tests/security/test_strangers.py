"""A stranger in the place of a dead process, or between two that live: it learns nothing, and nobody believes it.

In all of them the stranger has a certificate where the job has TLS: the handshake does not rely on that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest

from flinkplus.errors import PeerRefused
from flinkplus.runtime.liveness import lifeline
from flinkplus.runtime.liveness.lifeline import Lifelines
from flinkplus.runtime.operations import command_server as command_door
from flinkplus.runtime.operations.command_server import CommandServer
from flinkplus.runtime.operations.commands import Commands
from flinkplus.runtime.transport.auth import handshake, tls
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Refusals, slot_name
from flinkplus.runtime.transport.grpc import control as grpc_control
from flinkplus.runtime.transport.grpc import data as grpc_data
from flinkplus.runtime.transport.tcp import control as tcp_control
from flinkplus.runtime.transport.tcp import data as tcp_data
from flinkplus.runtime.transport.tcp.dialing import dial
from flinkplus.runtime.transport.wire.ports import (
    COORDINATOR,
    ControlLost,
    FrameArrived,
    PeerAttached,
    PeerBroken,
    PeerConnected,
)
from tests.security.strangers import Forge, Impostor, ask_grpc, ask_tcp, impostor_grpc, impostor_tcp
from tests.simulation.mutations import mutated
from tests.unit.runtime.transport.test_control_planes import HOST, REGISTER, Cluster, certificates

SECRET = b"secret"
CONFIDENTIAL = b"the state of a subtask"
DEAD, LIVING = 5, 6
"""The incarnation of slot 1 whose port the stranger has, and the one of its next process."""


class Job:
    """Slots 0 to 2, of which the victim is slot 0, and a driver, in one loop."""

    def __init__(self, transport: str, tls_on: bool) -> None:
        self.certificates = certificates() if tls_on else None
        self.cluster = Cluster(transport, Credentials(SECRET, tls=self.certificates))
        self.heard: dict[int, list[Any]] = {}
        self.planes: dict[int, Any] = {}
        self.addresses: dict[int, str] = {}
        for slot, incarnation in ((0, 3), (1, LIVING), (2, 7)):
            self.planes[slot], self.addresses[slot], self.heard[slot] = self.cluster.plane(slot, self.cluster.ours)
            self.planes[slot].incarnation = incarnation
        self.grpc = transport == "grpc"

    @property
    def method(self) -> str:
        return grpc_data.METHOD if self.grpc else ""

    def ask(self, address: str, method: str, hello: bytes) -> bytes:
        """What a listener answers to the hello of a stranger."""
        ask = partial(ask_grpc, address, method) if self.grpc else partial(ask_tcp, address)
        return self._while_the_loop_turns(lambda: ask(hello, self.certificates))

    def _while_the_loop_turns(self, action: Callable[[], bytes]) -> bytes:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(action)
            self.cluster.until(future.done)
            return future.result()

    def impostor(self, oracle: str, forge: Forge | None, method: str = "") -> AbstractContextManager[Impostor]:
        made = Impostor(oracle, forge, self.certificates, method or self.method)
        return impostor_grpc(made) if self.grpc else impostor_tcp(made)

    def look_for_the_dead(self, address: str, incarnation: int = DEAD) -> None:
        """The victim does not know yet that slot 1 has died, and tries to connect, with something to send."""
        victim, heard = self.planes[0], self.heard[0]
        victim.connect({1: (incarnation, address)})
        victim.send(1, [CONFIDENTIAL])
        victim.flush()
        self.cluster.until(lambda: any(isinstance(event, PeerBroken | PeerConnected) for event in heard))
        for _ in range(3):
            victim.send(1, [CONFIDENTIAL])
            victim.flush()
            self.cluster.wait(0.02)

    @property
    def is_deceived(self) -> bool:
        return any(isinstance(event, PeerConnected) for event in self.heard[0])

    def close(self) -> None:
        self.cluster.close()


@pytest.fixture(
    params=[
        "tcp",
        "grpc",
        pytest.param("tcp+tls", marks=pytest.mark.long),
        pytest.param("grpc+tls", marks=pytest.mark.long),
    ]
)
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    transport, _, tls_on = request.param.partition("+")
    made = Job(transport, bool(tls_on))
    yield made
    made.close()


def empty(_challenge: bytes, _proof: bytes) -> bytes:
    return b""


# --- somebody else's port


@pytest.mark.parametrize("oracle", [0, 1, 2], ids=["the victim itself", "the successor", "another slot"])
def test_who_sits_on_the_port_of_a_dead_slot_gets_no_signature(job: Job, oracle: int) -> None:
    with job.impostor(job.addresses[oracle], empty) as impostor:
        job.look_for_the_dead(impostor.address)
        job.cluster.until(impostor.done.is_set)
    assert not job.is_deceived and impostor.loot.asked == [b""] * len(impostor.loot.asked) != []
    assert impostor.loot.proof == impostor.loot.stolen == b""
    asked = job.planes[oracle]
    assert set(asked.refusals.by_reason) == {handshake.IDENTITY}
    assert not [event for slot in (1, 2) for event in job.heard[slot] if isinstance(event, PeerAttached)]


def test_the_driver_does_not_sign_for_a_dead_slot(job: Job) -> None:
    with job.impostor(job.cluster.address, empty) as impostor:
        job.look_for_the_dead(impostor.address)
    assert not job.is_deceived and not any(impostor.loot.asked) and impostor.loot.stolen == b""


def test_who_forwards_everything_to_the_living_slot_from_a_port_of_its_own_is_refused(job: Job) -> None:
    with job.impostor(job.addresses[1], None) as impostor:
        job.look_for_the_dead(impostor.address, LIVING)
    assert not job.is_deceived and impostor.loot.asked == [b""] * len(impostor.loot.asked) != []
    assert set(job.planes[1].refusals.by_reason) == {handshake.IDENTITY}


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_the_attack_works_where_listeners_sign_for_anybody_and_any_welcome_is_taken(transport: str) -> None:
    """So the attack is as the one that the product once fell for."""
    job = Job(transport, False)
    with (
        contextlib.closing(job),
        mutated("listeners_sign_for_anybody"),
        mutated("any_welcome_is_taken"),
        job.impostor(job.addresses[2], lambda _challenge, _proof: b"1") as impostor,
    ):
        job.look_for_the_dead(impostor.address)
        job.cluster.until(lambda: CONFIDENTIAL in impostor.loot.stolen)
        assert job.is_deceived


# --- between a slot and its driver


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(empty, marks=pytest.mark.long),  # over gRPC it is awaited, for as long as a slot waits
        lambda _challenge, _proof: b"1",
        lambda challenge, _proof: challenge[handshake.NONCE_BYTES :],
        lambda _challenge, proof: proof,
        lambda _challenge, _proof: b"x" * handshake.CODE_BYTES,
    ],
    ids=["empty", "one", "the challenge's code", "the proof", "a guess"],
)
def test_a_slot_does_not_take_a_forged_welcome(job: Job, forge: Forge) -> None:
    method = grpc_control.METHOD if job.grpc else ""
    with job.impostor(job.cluster.address, forge, method) as impostor:
        job.cluster.address, address = impostor.address, job.cluster.address
        link, heard = job.cluster.link(1, job.cluster.ours), job.cluster.heard[-1]
        link.send(REGISTER)
        job.cluster.until(lambda: any(isinstance(event, ControlLost) for event in heard))
        job.cluster.address = address
    assert impostor.loot.asked[0] and impostor.loot.proof and impostor.loot.stolen == b""


@pytest.mark.parametrize("purpose", [lifeline.PROTOCOL, command_door.PROTOCOL], ids=["lifeline", "commands"])
@pytest.mark.parametrize("tls_on", [False, pytest.param(True, marks=pytest.mark.long)], ids=["secret", "tls"])
def test_who_dials_and_waits_does_not_take_a_forged_welcome(purpose: bytes, tls_on: bool) -> None:
    job = Job("tcp", tls_on)
    listener, _ = driver_listener(job, purpose)
    connecting = Connecting(SECRET, purpose, "shell", COORDINATOR)
    client = None if job.certificates is None else tls.context(job.certificates, False)

    def dialled() -> bytes:
        with pytest.raises(PeerRefused, match="not a welcome"):
            dial(impostor.address, connecting, client, 60.0)
        return b""

    with contextlib.closing(job), contextlib.closing(listener), job.impostor(listener.address, empty) as impostor:
        job._while_the_loop_turns(dialled)
        assert impostor.loot.asked[0] and impostor.loot.proof


# --- who signs for what


def driver_listener(job: Job, purpose: bytes) -> tuple[Any, Refusals]:
    """A listener of the driver's beside that for control streams."""
    inbox, credentials = job.cluster.inbox(), job.cluster.ours
    if purpose == lifeline.PROTOCOL:
        lifelines = Lifelines(HOST, credentials, inbox, lambda _cut: None)
        return lifelines, lifelines.refusals
    door = CommandServer(HOST, credentials, inbox, Commands(), lambda action: action())
    return door, door.refusals


PURPOSES = [
    *(tcp_data.PROTOCOL, tcp_control.PROTOCOL, lifeline.PROTOCOL, command_door.PROTOCOL),
    *(grpc_data.PROTOCOL, grpc_control.PROTOCOL),
]
NAMES = ["slot-1.6", "slot-1.5", "slot-1.0", "slot-2.7", COORDINATOR, "", "slot-1.6 "]


def test_each_listener_signs_for_its_own_name_purpose_and_address_only(job: Job) -> None:
    """Also for a hello that comes from a process of the job."""
    data, method = (grpc_data.PROTOCOL, grpc_data.METHOD) if job.grpc else (tcp_data.PROTOCOL, "")
    control, control_method = (grpc_control.PROTOCOL, grpc_control.METHOD) if job.grpc else (tcp_control.PROTOCOL, "")
    own = slot_name(1, LIVING)
    listeners = [
        (job.addresses[1], method, data, own, job.addresses[1]),
        (job.cluster.address, control_method, control, COORDINATOR, ""),
    ]
    with contextlib.ExitStack() as stack:
        for purpose in [] if job.grpc else (lifeline.PROTOCOL, command_door.PROTOCOL):
            listener, _ = driver_listener(job, purpose)
            stack.enter_context(contextlib.closing(listener))
            listeners.append((listener.address, "", purpose, COORDINATOR, ""))
        for address, called, purpose, name, bound in listeners:
            hello = partial(Connecting, SECRET, purpose, "slot-0.3")
            wrong = [Connecting(SECRET, other, "slot-0.3", name, bound) for other in PURPOSES if other != purpose]
            wrong += [hello(other, bound) for other in NAMES if other != name]
            wrong += [hello(name, other) for other in ("", "127.0.0.1:1", job.addresses[2]) if other != bound]
            for connecting in wrong:
                assert not job.ask(address, called, connecting.hello)
            right = hello(name, bound)
            assert right.answer(job.ask(address, called, right.hello))


def test_a_slot_without_an_incarnation_lets_nobody_in_and_then_those_who_waited(job: Job) -> None:
    late, address, heard = job.cluster.plane(3, job.cluster.ours)
    job.planes[0].connect({3: (9, address)})
    job.cluster.wait(0.1)
    assert not job.is_deceived and heard == [] and not job.heard[0]
    late.incarnation = 9
    job.cluster.until(lambda: PeerConnected(3, 9) in job.heard[0] and PeerAttached(0) in heard)
    job.planes[0].send(3, [b"there"])
    job.planes[0].flush()
    job.cluster.until(lambda: any(isinstance(event, FrameArrived) for event in heard))
    assert late.refusals.total == 0


# --- what was said before


def test_what_was_said_on_one_connection_is_worth_nothing_on_another(job: Job) -> None:
    """A stranger that has listened to a whole handshake repeats each part of it, to both ends."""
    with job.impostor(job.cluster.address, None, grpc_control.METHOD if job.grpc else "") as spy:
        job.cluster.address, address = spy.address, job.cluster.address
        job.cluster.link(1, job.cluster.ours)
        job.cluster.until(lambda: bool(spy.loot.proof))
        job.cluster.address = address
    recorded = spy.loot
    assert recorded.asked[0] and recorded.proof, "who can read the wire has all of it"
    again = job.ask(address, grpc_control.METHOD, recorded.hello)
    assert again[: handshake.NONCE_BYTES] != recorded.asked[0][: handshake.NONCE_BYTES]
    fresh = Connecting(SECRET, tcp_control.PROTOCOL, slot_name(1, 0), COORDINATOR)
    with pytest.raises(PeerRefused):
        fresh.answer(recorded.asked[0])
