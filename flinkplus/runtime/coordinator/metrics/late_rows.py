"""Warnings of late rows: which operator, how late, and what to do.

Rules: the driver logs them, from the metrics of the slots. It warns at the first late row of an operator, then whenever
the count is ``FACTOR`` times that of the last warning, at most ``MAX_WARNINGS`` times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flinkplus.graph import JobGraph
from flinkplus.operators.event_time.event_time import LATE_ROWS, MAX_LATE_MS, WithWatermark
from flinkplus.runtime.base.logs import about

MAX_WARNINGS = 4
FACTOR = 100

log = logging.getLogger("flinkplus")


class LateRowWarnings:
    """The warnings of one job."""

    def __init__(self, graph: JobGraph) -> None:
        self._marks = {node.name: node.body for node in graph.nodes if isinstance(node.body, WithWatermark)}
        self._next = {node.name: 1 for node in graph.nodes} if self._marks else {}
        self._warned = dict.fromkeys(self._next, 0)

    def check(self, operators: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        """Warn of new late rows. ``operators`` returns the metrics by operator; it is called for event time only."""
        if not self._next:
            return
        for name, metrics in operators().items():
            late = metrics.get(LATE_ROWS, 0)
            if late >= self._next.get(name, late + 1):
                log.warning(self._text(name, late, metrics.get(MAX_LATE_MS, 0)), extra=about(phase="event-time"))
                self._next[name] = late * FACTOR
                self._warned[name] += 1
                if self._warned[name] == MAX_WARNINGS:
                    del self._next[name]

    def _text(self, name: str, late: int, late_ms: int) -> str:
        rows = f"{late:,} row{'s' if late > 1 else ''}"
        marks = self._marks.get(name)
        if marks is None:
            return (
                f"operator {name!r} has dropped {rows} that came too late, up to {late_ms:,} ms before the watermark; "
                "raise the delay of with_watermark by at least that, or provide the rows in order "
                "(docs/event-time.md, Late rows)"
            )
        return (
            f"operator {name!r}: {rows} came later than its delay of {marks.delay_ms:,} ms allows; windows and joins "
            f"downstream may drop such rows. Use a delay of {marks.delay_ms + late_ms:,} ms, or provide the rows in "
            "order (docs/event-time.md, Late rows)"
        )
