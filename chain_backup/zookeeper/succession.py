"""Which earlier drivers have ended, as the supervisor of this driver knows it.

A supervisor gives each driver a *mark*, which the driver stores with its place as coordinator. The next driver receives
the marks of the drivers that have ended. Otherwise it would wait until their sessions expire.

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
