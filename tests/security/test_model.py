"""The handshake against a stranger who is the network, and the search itself: it finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.security.model import DIALS, PLACES, World, found, sample, search, worlds
from tests.simulation.mutations import MUTATIONS, mutated

FAULTS = [name for name, fault in MUTATIONS.items() if fault.finds is found]


def test_no_attack_is_found_in_small_worlds() -> None:
    states, wrong = search([*worlds(1, 1), *worlds(2, 1), *sample(1, 12)])
    assert not wrong and states > 2_000


PARTS = 7


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_no_attack_is_found_in_any_world_of_two_and_two(part: int) -> None:
    states, wrong = search([*worlds(1, 2)[part::PARTS], *worlds()[part::PARTS]])
    assert not wrong and states > 3_000


@pytest.mark.long
def test_no_attack_is_found_where_one_dialler_meets_three_connections() -> None:
    states, wrong = search([World((dial,), (place,) * 3) for dial in DIALS for place in PLACES])
    assert not wrong and states > 10_000


def test_honest_ends_get_through() -> None:
    """Else nothing would be shown: the stranger forwards everything, and both are connected."""
    (driver,) = [dial for dial in DIALS if dial.purpose == b"control"]
    (place,) = [place for place in PLACES if place.purpose == b"control"]
    states, _ = search([World((driver,), (place,))])
    assert states > len(("", "hello", "challenge", "proof", "welcome"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_deliberate_fault_is_found_out(name: str) -> None:
    with mutated(name):
        assert found()
