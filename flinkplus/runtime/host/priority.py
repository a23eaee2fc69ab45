"""Briefly raises the priority of the thread on the failover path, where the system permits it.

A failover is a few milliseconds of work for one thread, while Spark, the new process and resent messages compete for
the processors. With permission (root, or ``RLIMIT_NICE``) that thread gets a better ``nice`` value for this time.

Rules: only the calling thread gets the priority, and always loses it again; threads that it starts then inherit it.
"""

from __future__ import annotations

import os
import sys

PREFERRED = -10
PREFERENCE_S = 0.25


class Preference:
    """The priority of the thread that calls this. ``now_s``: monotonic clock."""

    def __init__(self) -> None:
        self._usual = 0
        self._until_s: float | None = None
        self._possible = sys.platform == "linux"

    def begin(self, now_s: float) -> None:
        """Raise the priority for at least ``PREFERENCE_S`` seconds from now on."""
        if self._until_s is None and self._possible:
            self._usual = os.getpriority(os.PRIO_PROCESS, 0)
            try:
                os.setpriority(os.PRIO_PROCESS, 0, PREFERRED)
            except OSError:
                self._possible = False
        if self._possible:
            self._until_s = now_s + PREFERENCE_S

    def end(self, now_s: float) -> None:
        """Restore the usual priority, if it is time."""
        if self._until_s is not None and now_s >= self._until_s:
            self._until_s = None
            os.setpriority(os.PRIO_PROCESS, 0, self._usual)
