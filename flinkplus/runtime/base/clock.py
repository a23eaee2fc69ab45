"""What time it is: the module ``time``, or one that a simulation makes."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The part of the module ``time`` that drivers of the protocol use; seconds."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...
