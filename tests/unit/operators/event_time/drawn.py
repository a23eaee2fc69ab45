"""Window operators in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkplus.operators.event_time.assigners import FixedWindows
from flinkplus.operators.event_time.contents import Aggregated
from flinkplus.operators.event_time.windows import KeyedWindow
from flinkplus.operators.keyed.aggregates import Aggregate


def tumbling(
    name: str, keys: tuple[str, ...], column: str, size_ms: int, aggregates: Sequence[Aggregate], **more: Any
) -> KeyedWindow:
    """Windows that do not overlap."""
    return KeyedWindow(name, keys, column, FixedWindows(size_ms, size_ms), Aggregated(tuple(aggregates)), **more)
