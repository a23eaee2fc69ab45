"""The thread that calls a user's function for rows, several at a time, again after errors, and each only for so long.

Rules:

- coroutine functions run in the event loop of this thread, plain functions in threads of their own (``CallThreads``);
- an attempt that takes longer than ``timeout_s`` counts as failed. A coroutine is cancelled; a plain function cannot be
  ended, and keeps its thread until it returns;
- after a failed attempt comes a pause, twice as long each time, and the next attempt, ``retries`` times;
- every row gets one outcome. What it is depends on the outside, so nothing here is repeated by a successor.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flinkplus.operators.base.row import Row, described_cause
from flinkplus.operators.calls.threads import CallThreads

MAX_PAUSE_S = 30.0
MAX_DOUBLINGS = 64
"""Of the pause: more would be no number."""
CLOSING_S = 1.0
"""For how long coroutines that were cancelled may clean up."""


@dataclass(frozen=True)
class CallSettings:
    """How a function is called. ``timeout_s``: of one attempt (``None``: no limit). ``retries``: attempts after the
    first one. ``pause_s``: before the second attempt. ``capacity``: calls at a time."""

    timeout_s: float | None
    retries: int
    pause_s: float
    capacity: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the calls for one row. ``number``: of the row. ``error``: of the last attempt, if all failed."""

    number: int
    row: object
    value: Any = None
    error: str | None = None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` gives a coroutine."""
    called = getattr(type(function), "__call__", None)  # noqa: B004  # not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class Caller:
    """Calls ``function`` for rows. ``done``: called in the thread, with each outcome. ``name``: of the thread."""

    def __init__(
        self, function: Callable[[Row], Any], settings: CallSettings, done: Callable[[Outcome], None], name: str
    ) -> None:
        self._function, self._settings, self._done, self._name = function, settings, done, name
        self._is_async = is_coroutine_function(function)
        self._threads = CallThreads(2 * settings.capacity, name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rows: deque[tuple[int, Row]] = deque()
        self._calls: set[asyncio.Task[None]] = set()  # an event loop keeps no task alive by itself

    # --- for the slot's loop

    def call(self, rows: Sequence[tuple[int, Row]]) -> None:
        """Call the function for numbered rows. Does not wait."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True).start()
        self._loop.call_soon_threadsafe(self._take, rows)

    def close(self) -> None:
        """Cancel the calls under way. Does not wait."""
        self._threads.close()
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._loop.stop)

    # --- the thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=CLOSING_S))
        finally:
            asyncio.set_event_loop(None)
            loop.set_exception_handler(lambda _loop, _context: None)  # of tasks that go with the loop
            loop.close()

    def _take(self, rows: Sequence[tuple[int, Row]]) -> None:
        self._rows.extend(rows)
        self._fill()

    def _fill(self) -> None:
        while self._rows and len(self._calls) < self._settings.capacity:
            task = asyncio.ensure_future(self._answer(*self._rows.popleft()))
            self._calls.add(task)

    async def _answer(self, number: int, row: Row) -> None:
        outcome = await self._tried(number, row)
        task = asyncio.current_task()
        assert task is not None
        self._calls.discard(task)
        self._done(outcome)
        self._fill()

    async def _tried(self, number: int, row: Row) -> Outcome:
        settings = self._settings
        error = ""
        for attempt in range(settings.retries + 1):
            if attempt:
                await asyncio.sleep(min(MAX_PAUSE_S, settings.pause_s * 2 ** min(attempt - 1, MAX_DOUBLINGS)))
            result = await self._attempt(row)
            if isinstance(result, _Raised):
                error = described_cause(result.error)
                continue
            if inspect.isawaitable(result):
                kind = type(result).__name__
                if inspect.iscoroutine(result):
                    result.close()  # it will not be awaited
                return Outcome(number, row, error=f"TypeError: returned {kind}; a function that awaits is 'async def'")
            return Outcome(number, row, result)
        return Outcome(number, row, error=error)

    async def _awaited(self, row: Row) -> Any:
        """What the coroutine returns, or ``_Raised``."""
        try:
            return await self._function(row)
        except BaseException as error:
            return _Raised(error)

    def _called(self, row: Row) -> Any:
        """What the plain function returns, or ``_Raised``."""
        try:
            return self._function(row)
        except BaseException as error:
            return _Raised(error)

    async def _attempt(self, row: Row) -> Any:
        """The result of one attempt, or ``_Raised``."""
        timeout_s = self._settings.timeout_s
        call: asyncio.Future[Any]
        if self._is_async:
            call = asyncio.ensure_future(self._awaited(row))
        else:
            call = asyncio.wrap_future(self._threads.call(self._called, row))
        try:
            await asyncio.wait({call}, timeout=timeout_s)
        except asyncio.CancelledError:  # this thread closes
            call.cancel()
            raise
        if not call.done():
            call.cancel()
            return _Raised(TimeoutError(f"no answer within {timeout_s:g} s"))
        if call.cancelled():  # before it began
            return _Raised(asyncio.CancelledError("the call was cancelled"))
        return call.result()


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a function raised, of whatever kind. It is a result: futures do not take ``StopIteration`` for an error, and
    take ``CancelledError`` for something else; an event loop ends with ``SystemExit``."""

    error: BaseException
