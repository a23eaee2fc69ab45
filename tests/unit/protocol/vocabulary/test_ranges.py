"""Ranges against sets of whole numbers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from flinkplus.protocol.vocabulary.ranges import joined, without

Ranges = list[tuple[int, int]]


def drawn(rng: random.Random) -> Ranges:
    """Up to four ranges, in any order."""
    bounds = [sorted(rng.sample(range(20), 2)) for _ in range(rng.randrange(5))]
    return [(first, end) for first, end in bounds]


def members(ranges: tuple[tuple[int, int], ...] | Ranges) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


@pytest.mark.parametrize("seed", range(200))
def test_ranges_are_sets(seed: int) -> None:
    rng = random.Random(seed)
    some, others = drawn(rng), drawn(rng)
    one, other = joined(some), joined(others)
    assert members(one) == members(some)
    assert members(without(one, other)) == members(some) - members(others)
    for ranges in (one, without(one, other)):
        assert all(first < end for first, end in ranges)
        assert list(ranges) == sorted(ranges)
    assert all(before[1] < after[0] for before, after in pairwise(one))


def test_keys_are_ranged_as_well() -> None:
    assert without(((b"a", b"d"),), ((b"b", b"c"),)) == ((b"a", b"b"), (b"c", b"d"))
    assert joined([(b"b", b"c"), (b"a", b"b")]) == ((b"a", b"c"),)
