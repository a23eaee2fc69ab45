"""One asyncio thread per process, for all gRPC of all jobs in it.

Rules: ``grpc.aio`` objects live in this thread only; other threads pass work to it by ``submit`` and ``post``. There is
only one, because ``grpc.aio`` polls best for one event loop. It runs from its first use to the end of the interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # we never fork with gRPC loaded; its fork handlers only warn
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")  # a driver's name may be in /etc/hosts only, as Spark finds it
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a peer that dies is an event here, not a line on the user's terminal

import grpc
from grpc import aio

__all__ = ["IoThread", "aio", "grpc"]

Result = TypeVar("Result")

STOP_TIMEOUT_S = 2.0


class IoThread:
    """The process's asyncio loop. Get it with ``IoThread.get()``."""

    _instance: IoThread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._awoken = False
        self._thread = threading.Thread(target=self._run, name="flinkplus-io", daemon=True)
        self._thread.start()
        self._pid = os.getpid()

    @classmethod
    def get(cls) -> IoThread:
        with cls._lock:
            if cls._instance is None or cls._instance._pid != os.getpid() or cls._instance.loop.is_closed():
                cls._instance = cls()
                atexit.register(cls._instance.stop)
            return cls._instance

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        aio.init_grpc_aio()  # permanently: otherwise gRPC ends its poller between two jobs, and prints errors
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the loop; the future is for the calling thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call ``callback(*args)`` soon in the loop's thread. One system call wakes the loop for several posts."""
        self._posted.append((callback, args))
        if not self._awoken:
            self._awoken = True
            try:
                self.loop.call_soon_threadsafe(self._take_posted)
            except BaseException:
                self._awoken = False
                raise

    def _take_posted(self) -> None:
        self._awoken = False  # before anything is taken: what is posted from now on wakes the loop again
        while self._posted:
            callback, args = self._posted.popleft()
            try:
                callback(*args)
            except Exception as error:  # as the loop itself does, so that the other callbacks run
                context = {"message": f"posted {callback!r} failed", "exception": error}
                self.loop.call_exception_handler(context)

    def stop(self) -> None:
        """Stop the loop and wait for the thread, bounded."""
        if self._pid == os.getpid() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(STOP_TIMEOUT_S)
