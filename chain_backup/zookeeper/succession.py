"""What a driver's supervisor knows of the drivers before it: that they have ended, so that nobody waits for them.

A supervisor gives each driver a *mark*, which the driver notes where it coordinates. The next driver is told the marks
of those that have ended. Without that it would wait until their sessions expire.

Rules: set in the driver's process before its program runs. A mark is random: a process number comes again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Succession:
    """``mark``: of this driver; empty without a supervisor. ``ended``: the marks of drivers that have ended."""

    mark: str = ""
    ended: frozenset[str] = frozenset()

    def has_ended(self, mark: object) -> bool:
        """Whether ``mark`` is of a driver that is known to have ended."""
        return isinstance(mark, str) and mark in self.ended


_here = Succession()


def follow(mark: str, ended: Collection[str]) -> None:
    """This process is the driver ``mark``, and follows those that have ``ended``."""
    global _here  # noqa: PLW0603 - of the process, as its supervisor is
    _here = Succession(mark, frozenset(ended))


def here() -> Succession:
    """That of this process."""
    return _here
