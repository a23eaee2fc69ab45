"""Costs from measured times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def fitted_costs(counts: dict[str, npt.NDArray[np.float64]], times: npt.NDArray[np.float64]) -> dict[str, float]:
    """The cost of one of each, so that ``times`` are about the sums of counts times costs; in the unit of ``times``.

    ``counts``: what was done, for each time. Least squares of relative errors, in which no cost is negative: those that
    would be are left out, one after the other.
    """
    weight = 1 / np.maximum(times, 1e-6)  # relative errors: small steps count as much as large ones
    found: dict[str, float] = {}
    kept = list(counts)
    while kept:
        matrix = np.stack([counts[name] * weight for name in kept], axis=1)
        solution = np.linalg.lstsq(matrix, times * weight, rcond=None)[0]
        found = dict(zip(kept, (float(value) for value in solution), strict=True))
        worst = min(found, key=lambda name: found[name])
        if found[worst] >= 0:
            break
        kept.remove(worst)
    return found
