"""The clock: the module ``time``, or that of a simulation."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The part of the module ``time`` that drivers of the protocol use; seconds."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...
