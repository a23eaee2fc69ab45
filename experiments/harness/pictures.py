"""A picture with one or more fields. Matplotlib is imported when one is drawn: it takes a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DPI = 120


@contextlib.contextmanager
def picture(
    target: Path,
    size: tuple[float, float] = (7, 4),
    rect: tuple[float, float, float, float] = (0, 0, 1, 1),
    **fields: Any,
) -> Iterator[tuple[Any, Any]]:
    """The figure and its axes, to be drawn in the block, after which the picture is written. ``rect``: the part of it
    for the axes; ``fields``: for ``subplots``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=size, dpi=DPI, **fields)
    try:
        yield figure, axes
        figure.tight_layout(rect=rect)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    finally:
        pyplot.close(figure)
