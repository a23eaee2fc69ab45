"""Repeated attempts to reach a far end, for a limited time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from flinkplus.errors import OutputUnavailable

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0

log = logging.getLogger("flinkplus")


def patiently(action: Callable[[], T], patience_s: float, log_as: str) -> T:
    """``action``, repeated while it raises ``OutputUnavailable``; after ``patience_s`` that error is raised."""
    begun, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        try:
            done = action()
        except OutputUnavailable as error:
            left_s = begun + patience_s - time.monotonic()
            if left_s <= pause_s:
                raise
            log.warning("%s; trying again for %.1f s", error, left_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            if pause_s > FIRST_PAUSE_S:
                log.info("%s: done after %.1f s", log_as, time.monotonic() - begun)
            return done
