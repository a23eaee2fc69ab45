"""Orders to a cluster that is not there."""

from __future__ import annotations

from experiments.cluster.control import Control


class Orders(Control):
    """Notes the orders that are given."""

    def __init__(self, time_s: float = 0.0) -> None:
        self._time_s = time_s
        self.given: list[tuple[str, str]] = []

    def order(self, order: str, host: str, peer: str | None = None) -> float:
        self.given.append((order, host))
        return self._time_s
