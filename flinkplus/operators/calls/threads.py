"""Threads for plain functions that wait for something.

Rules: the threads are daemons, since a call that never returns must not keep the process alive. A thread whose call is
no longer waited for stays with it; another takes its place, up to a limit, beyond which calls wait for a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

Work = tuple["Future[Any]", Callable[[Any], Any], Any]


class CallThreads:
    """At most ``limit`` threads, which begin when they are needed. ``name``: of the threads."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def call(self, function: Callable[[Any], Any], argument: Any) -> Future[Any]:
        """Call ``function(argument)`` in a thread. A call that waits for a thread can be cancelled."""
        future: Future[Any] = Future()
        with self._lock:
            self._works.put((future, function, argument))
            if self._idle:
                self._idle -= 1
            elif self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Have the threads end, each after the call that it is in. Does not wait."""
        with self._lock:
            for _ in range(self._threads):
                self._works.put(None)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            future, function, argument = work
            if future.set_running_or_notify_cancel():
                try:
                    result = function(argument)
                except BaseException as error:  # ``SystemExit`` too: it is the answer to this call
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del work, future, function, argument  # a thread that waits holds no row
            with self._lock:
                if self._works.empty():
                    self._idle += 1
