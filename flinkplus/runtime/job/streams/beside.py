"""A thread of the driver that works for one source while the job runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

STOP_TIMEOUT_S = 20.0

log = logging.getLogger("flinkplus")


class SourceThread:
    """Calls ``run`` once, in a thread called ``name``. ``run`` ends soon after ``stopping`` is set.

    ``late``: what is logged if it does not.
    """

    def __init__(self, name: str, run: Callable[[], None], late: str) -> None:
        self.stopping = threading.Event()
        self._late = late
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def begin(self) -> None:
        """Start it; returns at once."""
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it, and wait for that. May be called twice, and without ``begin``."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("%s", self._late)
