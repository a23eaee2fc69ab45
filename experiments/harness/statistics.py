"""Statistics of runs, where a figure that is ``None`` is not known.

The interval of a median is a percentile bootstrap with a seed: the same runs give the same interval. Percentiles
interpolate linearly between runs; with ten runs the 95th lies between the two slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000


def median(values: Iterable[float | None], digits: int = 3) -> float | None:
    """The median of what is known, ``None`` when nothing is."""
    return percentile(values, 50, digits)


def percentile(values: Iterable[float | None], percent: float, digits: int = 3) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.percentile(known, percent)), digits) if known else None


def median_interval(values: Iterable[float | None], seed: int) -> tuple[float | None, float | None]:
    """The 95 % interval of the median by bootstrap."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return None, None
    draws = np.random.default_rng(seed).integers(len(known), size=(RESAMPLES, len(known)))
    low, high = np.percentile(np.median(known[draws], axis=1), [2.5, 97.5])
    return round(float(low), 3), round(float(high), 3)


def with_interval(name: str, unit: str, values: Iterable[float | None], seed: int) -> dict[str, float | None]:
    """The median ``<name>_<unit>`` with its 95 % interval, ``<name>_low_<unit>`` and ``<name>_high_<unit>``."""
    known = list(values)
    low, high = median_interval(known, seed)
    return {f"{name}_{unit}": median(known), f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}


def spread_shares(count: int, generator: np.random.Generator) -> list[float]:
    """Moments in an interval, one in each of ``count`` equal parts of it, in shuffled order; shares of the interval."""
    parts = generator.permutation(count) + generator.random(count)
    return [float(share) for share in parts / count]


def grouped(runs: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The runs by these figures, in the order in which they were run."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)
    return groups


def in_turn(variants: Sequence[Any], round_number: int) -> Sequence[Any]:
    """The variants in an order that is reversed with every round: none is always the first."""
    return variants[::-1] if round_number % 2 else variants
