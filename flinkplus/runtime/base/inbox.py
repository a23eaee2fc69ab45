"""The events and sockets that a slot's loop waits for: other threads put events in, and sockets become ready.

Rules: any thread may call ``put`` and ``call_soon``; everything else belongs to the loop. Callbacks of sockets run in
``poll`` and ``sleep``, and may put events, and watch or forget sockets. A system call wakes only a loop that sleeps.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import queue
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

E = TypeVar("E")

RECEIVE_BYTES = 256 << 10
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class HasFileno(Protocol):
    """A socket, or what stands for one."""

    def fileno(self) -> int: ...


Ready = Callable[[int], None]
"""Called with the events (``READ``, ``WRITE``) that a socket is ready for."""


class Inbox(Generic[E]):
    """Events, in the order they were put in, and the sockets of one loop."""

    def __init__(self) -> None:
        self._events: deque[E] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self._asleep = False
        self.received = memoryview(bytearray(RECEIVE_BYTES))  # where every socket is read to first

    @functools.cached_property
    def _selector(self) -> selectors.BaseSelector:
        """Made at its first use, with the sockets that wake it: an inbox that no loop has used needs no ``close``."""
        selector = selectors.DefaultSelector()
        self._awoken, self._waker = socket.socketpair()
        for end in (self._awoken, self._waker):
            end.setblocking(False)
        selector.register(self._awoken, READ, self._take_wakes)
        return selector

    # --- events

    def put(self, event: E) -> None:
        """Add an event; any thread."""
        self._events.append(event)
        self._wake()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have the loop call ``call``, before the next event; any thread."""
        self._calls.append(call)
        self._wake()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have the loop call ``call`` after ``delay_s`` seconds; only in the loop."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._timer_numbers), call))

    def _wake(self) -> None:
        if not self._asleep:
            return
        try:
            with contextlib.suppress(BlockingIOError):  # enough wakes are on their way
                self._waker.send(b"\0")
        except OSError:
            if self._waker.fileno() >= 0:  # otherwise the loop woke for something else meanwhile, and closed
                raise

    def _take_wakes(self, _ready: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._awoken.recv(4096)

    def empty(self) -> bool:
        return not self._events

    def get_nowait(self) -> E:
        """The next event. Raises ``queue.Empty``."""
        try:
            return self._events.popleft()
        except IndexError:
            raise queue.Empty from None

    def get(self, timeout: float) -> E:
        """The next event, waited for ``timeout`` seconds at most. Raises ``queue.Empty``, at the latest then."""
        if not self._events:
            self.sleep(timeout)
        return self.get_nowait()

    # --- sockets

    def watch(self, sock: HasFileno, events: int, ready: Ready) -> None:
        """Call ``ready`` whenever ``sock`` is ready for ``events``; this replaces an earlier call for ``sock``."""
        try:
            self._selector.modify(sock, events, ready)
        except KeyError:
            self._selector.register(sock, events, ready)

    def forget(self, sock: HasFileno) -> None:
        """Stop watching a socket, before it is closed. No effect if it is not watched."""
        with contextlib.suppress(KeyError, ValueError):  # ``ValueError``: it is closed already
            self._selector.unregister(sock)

    def poll(self) -> None:
        """Serve the sockets that are ready now."""
        self._serve(self._selector.select(0))

    def sleep(self, timeout: float) -> None:
        """Wait for an event or a socket, ``timeout`` seconds at most, and serve what is ready."""
        selector = self._selector
        if self._timers:
            timeout = min(timeout, self._timers[0][0] - time.monotonic())
        self._asleep = True  # before the check for events: a thread that adds one later sees this, and wakes the loop
        try:
            ready = selector.select(0 if self._events or self._calls else max(0.0, timeout))
        finally:
            self._asleep = False
        self._serve(ready)

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        while self._calls:
            self._calls.popleft()()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        watched = self._selector.get_map()
        for key, events in ready:
            if watched.get(key.fd) is key:  # an earlier callback of this round may have changed or closed it
                key.data(events)

    def close(self) -> None:
        """Sockets still watched are left as they are."""
        if "_selector" in self.__dict__:
            self._selector.close()
            self._awoken.close()
            self._waker.close()
