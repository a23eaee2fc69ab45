"""Producers that the driver has ready for the next fence: connected, with a name that they have not opened.

To connect takes most of the time of a fence: 50 to 500 ms, and to open the name a few. A producer has its name from the
beginning, and opens it later, so one that is ready changes nothing at the brokers.

Rules: the driver has one for each subtask that was fenced before, up to ``MOST``. A thread makes them, some time after
the last fence: failovers come first. A fence never waits for that thread. It takes what is ready, or a producer that is
not connected yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from flinkplus.errors import FlinkPlusError
from flinkplus.printable import printable
from flinkplus.sinks.kafka.recipe_topic import KafkaPartition

REST_S = 2.0
AGAIN_S = 5.0
MOST = 16
CLOSE_S = 1.0

log = logging.getLogger("flinkplus.kafka")


class PreparedPartitions:
    """``make``: makes what belongs to a subtask; it is not connected."""

    def __init__(self, make: Callable[[int], KafkaPartition]) -> None:
        self._make = make
        self._state = threading.Condition()
        self._ready: dict[int, KafkaPartition] = {}
        self._wanted: set[int] = set()
        self._due_s = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, index: int) -> KafkaPartition:
        """That of a subtask. It is the caller's from now on; the next one is prepared later."""
        with self._state:
            self._due_s = time.monotonic() + REST_S
            if len(self._wanted) < MOST:
                self._wanted.add(index)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._look_after, name="flinkplus-prepare", daemon=True)
                self._thread.start()
            self._state.notify_all()
            ready = self._ready.pop(index, None)
        return self._make(index) if ready is None else ready

    def close(self) -> None:
        """Let all that are ready go."""
        with self._state:
            self._closed = True
            thread, self._thread = self._thread, None
            self._state.notify_all()
        if thread is not None:
            thread.join(CLOSE_S)

    def _look_after(self) -> None:
        while (index := self._next()) is not None:
            made = self._make(index)
            try:
                made.prepare()
            except (OSError, FlinkPlusError) as error:  # a fence connects by itself, and reports what is wrong
                log.info("no producer is ready for the next fence: %s", printable(error))
                made.close()
                with self._state:
                    self._due_s = time.monotonic() + AGAIN_S
                continue
            with self._state:
                self._ready[index] = made
        with self._state:
            left, self._ready = self._ready, {}
        for one in left.values():
            one.close()

    def _next(self) -> int | None:
        """Waits until one is to be prepared; ``None``: it is over."""
        with self._state:
            while not self._closed:
                missing = sorted(self._wanted - set(self._ready))
                left_s = self._due_s - time.monotonic()
                if missing and left_s <= 0:
                    return missing[0]
                self._state.wait(left_s if missing else None)
        return None
