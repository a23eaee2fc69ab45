"""A picture with one or more fields. Matplotlib is imported when one is drawn: it takes a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DPI = 120
FONT_SIZE = 12
"""Of all text in a picture of the usual width: it can be read where a page shows the picture."""
BLUE, ORANGE, GREEN, PURPLE, BLACK = PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000")
"""Colours that also differ for readers who do not tell red from green (Okabe and Ito)."""


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


def draw_medians(
    axes: Any, places: Sequence[float], rows: Sequence[dict[str, Any]], name: str, unit: str, **style: Any
) -> None:
    """A line through the medians of ``statistics.with_interval``, with their intervals; all of ``rows`` have one."""
    medians = [row[f"{name}_{unit}"] for row in rows]
    below = [row[f"{name}_{unit}"] - row[f"{name}_low_{unit}"] for row in rows]
    above = [row[f"{name}_high_{unit}"] - row[f"{name}_{unit}"] for row in rows]
    axes.errorbar(places, medians, [below, above], **{"marker": "o", "markersize": 5, "capsize": 3, **style})


def legend_above(axes: Any, columns: int) -> None:
    """What lines mean, above the field, where it hides none of them."""
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": columns, "frameon": False}
    axes.legend(fontsize=FONT_SIZE, **place)
