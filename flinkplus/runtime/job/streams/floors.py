"""What the job still needs of what was staged or planned for a source: all that any kept checkpoint has not passed.

What is counted, batches or their partitions, is the source's.

Rules: any thread may call anything. Of checkpoints of earlier runs nothing is known, so they need everything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from flinkplus.protocol.snapshot.handle import SnapshotHandle


class FlooredSource(Protocol):
    """A source whose positions say what they need."""

    def floor(self, position: Any, /) -> int:
        """The number of the first batch or partition that a reader with this position needs."""


class BatchFloors:
    """``sources``: by name. ``kept``: the checkpoints that there are at the begin of the run."""

    def __init__(self, sources: Mapping[str, FlooredSource], kept: Iterable[int]) -> None:
        self._sources = dict(sources)
        self._lock = threading.Lock()
        self._floors: dict[int, dict[str, int]] = {checkpoint: dict.fromkeys(sources, 0) for checkpoint in kept}

    def stored(self, checkpoint: int, handles: Sequence[tuple[Any, SnapshotHandle]]) -> None:
        """A checkpoint is complete."""
        floors: dict[str, int] = {}
        for _, handle in handles:
            for name, part in handle.operator_state.operators.items():
                if name in self._sources:
                    floor = self._sources[name].floor(part.position)
                    floors[name] = min(floors.get(name, floor), floor)
        with self._lock:
            self._floors[checkpoint] = floors

    def dropped(self, checkpoint: int) -> None:
        """A checkpoint is no longer kept."""
        with self._lock:
            self._floors.pop(checkpoint, None)

    def of(self, source: str) -> int:
        """The first number that may be needed; 0 before the first checkpoint."""
        with self._lock:
            return min((floors.get(source, 0) for floors in self._floors.values()), default=0)
