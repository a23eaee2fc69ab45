"""Which driver has a job: the chain of claims in its checkpoint directory.

A run of a job begins with a *claim*, a small file. The driver lists the claims, and creates the next one. ``check``
says later whether it is still the newest. What is stored where, and how, is left to the caller.

Rules:
- a claim is created only if none of its place exists. So each place belongs to one driver;
- a claim is never changed and never removed as long as the directory exists;
- places are consecutive from 1, since a driver takes the place behind the newest claim that it has listed. So a later
  claim than that of place p exists if, and only if, one of place p + 1 exists;
- run numbers rise along the chain. They are not the places, because a job that starts from a savepoint begins with a
  number above those of the savepoint's job.

Where a file cannot be created on a condition, two drivers may write the same claim. The last one stays, and the mark
tells the other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunClaim:
    """``place``: in the chain, from 1. ``run``: number of the run. ``mark``: random, of the driver."""

    place: int
    run: int
    mark: str

    def content(self) -> bytes:
        """What is stored at its place."""
        return f"{self.run} {self.mark}".encode()

    @staticmethod
    def stored(place: int, content: bytes) -> RunClaim:
        """The inverse of ``content``. Raises ``ValueError``."""
        run, mark = content.decode("ascii").split(" ")
        if not run.isdecimal() or int(run) < 1 or not mark:
            raise ValueError(f"{content[:50]!r} is no claim")
        return RunClaim(place, int(run), mark)


NO_CLAIM = RunClaim(0, 0, "")
"""Before the first one."""


def newest_place(places: Iterable[int]) -> int:
    """The place of the newest claim; 0: no run has begun."""
    return max(places, default=0)


def next_claim(newest: RunClaim, mark: str, at_least: int = 1) -> RunClaim:
    """What a driver tries to create. ``at_least``: a lower bound of the run's number."""
    return RunClaim(newest.place + 1, max(newest.run + 1, at_least), mark)


def is_current(mine: RunClaim, stored: bytes | None, has_next: bool) -> bool:
    """Whether a driver still has the job. ``stored``: what is at the place of its claim. ``has_next``: whether a claim
    is at the place behind."""
    return stored == mine.content() and not has_next
