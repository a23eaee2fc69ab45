"""Arithmetic of ranges: of key groups (whole numbers) and of keys (bytes).

A range is its first element and the one behind its last. Several are ascending, with gaps between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Bound = TypeVar("Bound", int, bytes)


def joined(ranges: Iterable[tuple[Bound, Bound]]) -> tuple[tuple[Bound, Bound], ...]:
    """What is in any of ``ranges``, which are in any order and may overlap."""
    found: list[tuple[Bound, Bound]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return tuple(found)


def without(
    ranges: Iterable[tuple[Bound, Bound]], others: Iterable[tuple[Bound, Bound]]
) -> tuple[tuple[Bound, Bound], ...]:
    """What is in ``ranges`` and not in ``others``."""
    others = tuple(others)
    return tuple(left for bounds in ranges for left in _left(bounds, others))


def _left(bounds: tuple[Bound, Bound], others: tuple[tuple[Bound, Bound], ...]) -> Iterator[tuple[Bound, Bound]]:
    first, end = bounds
    for other_first, other_end in others:
        if other_end <= first or other_first >= end:
            continue
        if first < other_first:
            yield first, other_first
        first = other_end
    if first < end:
        yield first, end
