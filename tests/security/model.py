"""All that a stranger can do to a few handshakes at once, by the product's own ``Connecting`` and ``Listening``.

The stranger is the network: it gets every frame of every honest end, and decides what comes to whom, and when. It may
forward, hold back, repeat and reflect whole frames, put any parts that it has seen together anew, in all fields of a
hello and both parts of a challenge, and use parts of its own. It does not know the secret, so it makes no codes. A
frame that is refused ends its connection and says nothing, so the search leaves such moves out.

Checked at every move:

- a listener signs for itself only: for its own purpose, name and address;
- a dialler that a listener lets in is who it says: an honest one that meant this listener, for this purpose, at this
  address, and that has proved so for just this connection;
- a dialler that is connected is connected to whom it meant: the listener of that name, for that purpose, at that
  address, has let in just this dialler, by just this connection.

``search`` goes through all orders of all moves, in each of a list of small worlds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

from flinkplus.errors import PeerRefused
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.handshake import NONCE_BYTES, Connecting, Hello, Listening, parse_hello

SECRET = b"the job's"
DATA, CONTROL, LIFELINE = b"data", b"control", b"lifeline"
DRIVER, STRANGER = "coordinator", "stranger"
GUESSES = (b"", b"1", b"x" * handshake.CODE_BYTES)
"""What a stranger may give for a code."""


class Dial(NamedTuple):
    """What an honest dialler wants: ``name`` to ``target``, which it dials at ``address``."""

    purpose: bytes
    name: str
    target: str
    address: str = ""


class Place(NamedTuple):
    """An honest listener."""

    purpose: bytes
    own: str
    address: str = ""


DIALS = (
    Dial(DATA, "slot-0.1", "slot-1.2", "h:12"),  # which is dead, and the stranger has its port
    Dial(DATA, "slot-0.1", "slot-1.3", "h:12"),  # or its successor has
    Dial(DATA, "slot-0.1", "slot-2.1", "h:66"),  # an address of the stranger's
    Dial(DATA, "slot-2.1", "slot-0.1", "h:01"),
    Dial(CONTROL, "slot-0.0", DRIVER),
    Dial(LIFELINE, "0-ab", DRIVER),
)
PLACES = (
    Place(DATA, "slot-0.1", "h:01"),
    Place(DATA, "slot-1.3", "h:12"),
    Place(DATA, "slot-2.1", "h:21"),
    Place(CONTROL, DRIVER),
    Place(LIFELINE, DRIVER),
)


@dataclass(frozen=True)
class World:
    """Handshakes that go on beside each other: of diallers, and of connections that listeners take."""

    dials: tuple[Dial, ...]
    places: tuple[Place, ...]


def worlds(dials: int = 2, places: int = 2) -> list[World]:
    """All with so many of each."""
    return [
        World(some, others)
        for some in itertools.combinations_with_replacement(DIALS, dials)
        for others in itertools.combinations_with_replacement(PLACES, places)
    ]


class Violation(Exception):
    """What must not be; the text tells the story."""


@dataclass(frozen=True)
class State:
    """How far all are. ``story``: the moves so far; two states that differ in their order alone are the same.

    ``dialled``, ``taken``: the ends; ``given``: the frames that each has had, by which states are compared.
    ``codes``, ``nonces``: what the stranger has seen.
    """

    dialled: tuple[Connecting, ...]
    taken: tuple[Listening, ...]
    given: tuple[tuple[bytes, ...], ...]
    codes: frozenset[bytes]
    nonces: frozenset[bytes]
    story: tuple[str, ...] = ()


class Search:
    """All states of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.states = 0
        values = [*world.dials, *(Dial(place.purpose, "", place.own, place.address) for place in world.places)]
        self._purposes = sorted({value.purpose for value in values})
        self._names = sorted({value.name.encode() for value in world.dials} | {STRANGER.encode()})
        self._targets = sorted({value.target.encode() for value in values})
        self._addresses = sorted({value.address.encode() for value in values})

    def run(self) -> int:
        """How many states there are. Raises ``Violation``."""
        waiting = [self._first()]
        seen = {waiting[0].given}
        while waiting:
            state = waiting.pop()
            for following in self._moves(state):
                if following.given not in seen:
                    seen.add(following.given)
                    waiting.append(following)
        self.states = len(seen)
        return self.states

    def _first(self) -> State:
        ends = (len(self.world.dials), len(self.world.places))
        nonces = iter([bytes([65 + at]) * NONCE_BYTES for at in range(sum(ends))])
        with mock.patch("secrets.token_bytes", lambda _size: next(nonces)):
            dialled = tuple(
                Connecting(SECRET, dial.purpose, dial.name, dial.target, dial.address) for dial in self.world.dials
            )
            taken = tuple(Listening(SECRET, place.purpose, place.own, place.address) for place in self.world.places)
        known = frozenset({parse_hello(end.hello).nonce for end in dialled} | {b"x" * NONCE_BYTES})
        return State(dialled, taken, ((),) * sum(ends), frozenset(GUESSES), known)

    # --- moves

    def _moves(self, state: State) -> Iterator[State]:
        for at in range(len(self.world.dials)):
            if not state.given[at]:
                yield from self._challenge(state, at)
            elif len(state.given[at]) == 1:
                yield from self._welcome(state, at)
        for at in range(len(self.world.places)):
            given = state.given[len(self.world.dials) + at]
            if not given:
                yield from self._say_hello(state, at)
            elif len(given) == 1:
                yield from self._prove(state, at)

    def _challenge(self, state: State, at: int) -> Iterator[State]:
        for nonce, code in itertools.product(sorted(state.nonces), sorted(state.codes)):
            end = copy(state.dialled[at])
            try:
                proof = end.answer(nonce + code)
            except PeerRefused:
                continue
            yield self._after(state, at, nonce + code, "answers", [proof], dialled=end)

    def _welcome(self, state: State, at: int) -> Iterator[State]:
        for code in sorted(state.codes):
            end = copy(state.dialled[at])
            try:
                end.check(code)
            except PeerRefused:
                continue
            following = self._after(state, at, code, "is connected", [], dialled=end)
            self._check_connected(following, at)
            yield following

    def _say_hello(self, state: State, at: int) -> Iterator[State]:
        place = self.world.places[at]
        for said in itertools.product(
            self._purposes, self._names, self._targets, self._addresses, sorted(state.nonces)
        ):
            hello, end = Hello(*said), copy(state.taken[at])
            try:
                challenge = end.challenge(hello.encode())
            except PeerRefused:
                continue
            told = f"signs for {hello.name!r} to {hello.target!r}"
            following = self._after(
                state, len(self.world.dials) + at, hello.encode(), told, [challenge[NONCE_BYTES:]], end
            )
            if (hello.purpose, hello.target, hello.address) != (
                place.purpose,
                place.own.encode(),
                place.address.encode(),
            ):
                raise Violation(_told(following, f"{place} has signed for another listener"))
            yield following

    def _prove(self, state: State, at: int) -> Iterator[State]:
        for code in sorted(state.codes):
            end = copy(state.taken[at])
            try:
                end.check(code)
            except PeerRefused:
                continue
            following = self._after(state, len(self.world.dials) + at, code, "lets in", [end.welcome], end)
            self._check_let_in(following, at)
            yield following

    def _after(
        self,
        state: State,
        at: int,
        frame: bytes,
        told: str,
        codes: Iterable[bytes],
        taken: Listening | None = None,
        dialled: Connecting | None = None,
    ) -> State:
        dials = len(self.world.dials)
        who = self.world.dials[at] if at < dials else self.world.places[at - dials]
        new = frozenset() if taken is None else frozenset({taken.nonce})
        return State(
            state.dialled if dialled is None else _with(state.dialled, at, dialled),
            state.taken if taken is None else _with(state.taken, at - dials, taken),
            _with(state.given, at, (*state.given[at], frame)),
            state.codes | frozenset(codes),
            state.nonces | new,
            (*state.story, f"{at}: {tuple(who)} {told}"),
        )

    # --- what must hold

    def _check_let_in(self, state: State, at: int) -> None:
        """Listener ``at`` has let in a dialler: one that meant it, and has answered just this challenge."""
        dials = len(self.world.dials)
        place, listening = self.world.places[at], state.taken[at]
        hello = state.given[dials + at][0]
        meant = [
            dialler
            for dialler, (end, dial) in enumerate(zip(state.dialled, self.world.dials, strict=True))
            if end.hello == hello
            and (dial.purpose, dial.name, dial.target, dial.address)
            == (place.purpose, listening.name, place.own, place.address)
            and [frame[:NONCE_BYTES] for frame in state.given[dialler][:1]] == [listening.nonce]
        ]
        if len(meant) != 1:
            raise Violation(_told(state, f"{place} has let in {listening.name!r}, which has not connected to it"))

    def _check_connected(self, state: State, at: int) -> None:
        """Dialler ``at`` is connected: the listener that it meant has let it in, and nobody else by that."""
        dials = len(self.world.dials)
        dial, nonce = self.world.dials[at], state.given[at][0][:NONCE_BYTES]
        found = [
            listener
            for listener, (end, place) in enumerate(zip(state.taken, self.world.places, strict=True))
            if (place.purpose, place.own, place.address) == (dial.purpose, dial.target, dial.address)
            and end.nonce == nonce
            and len(state.given[dials + listener]) == 2
            and state.given[dials + listener][0] == state.dialled[at].hello
        ]
        if len(found) != 1:
            raise Violation(_told(state, f"{dial} is connected, and that listener has not let it in"))


def _with(items: tuple, at: int, item: object) -> tuple:
    return (*items[:at], item, *items[at + 1 :])


def _told(state: State, what: str) -> str:
    return "\n  ".join([what, *state.story])


def sample(seed: int, count: int) -> list[World]:
    """Some worlds of two and two, the same for the same seed."""
    return random.Random(seed).sample(worlds(), count)


def search(some: Sequence[World]) -> tuple[int, str]:
    """How many states there are in these worlds, and what is wrong in the first that is."""
    states = 0
    for world in some:
        try:
            states += Search(world).run()
        except Violation as error:
            return states, str(error)
    return states, ""


def found() -> str:
    """What the small worlds find wrong; for deliberate faults."""
    return search([*worlds(1, 1), *worlds(1, 2), *worlds(2, 1), *worlds()])[1]
