"""Requests of the web server to the coordinator, through its thread, as shells make them.

Rules: the server's thread never waits for the coordinator's and never reads what that owns. However many clients look,
the status is built at most every ``REUSE_S``, and takes at most a twentieth of the coordinator's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from flinkplus.errors import CommandRefused
from flinkplus.runtime.operations.commands import (
    FORMAT_VERSION,
    HAS_ENDED,
    Commands,
    Later,
    decode_reply,
    encode_reply,
)

REUSE_S = 0.25
REST = 20
"""A status that took t seconds to build is reused for this many times t at least."""
STATUS_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 60.0


def request_bytes(name: str, body: dict[str, Any]) -> bytes:
    """A request of class ``name``, as shells send it."""
    return json.dumps({"v": FORMAT_VERSION, "request": name, "body": body}).encode()


class WebRequests:
    """Asks the coordinator of one job; only in the web server's thread, except for ``end``.

    ``soon``: runs an action in the coordinator's thread; has no effect when the job is over.
    ``status``: name of the request for the status.
    """

    def __init__(self, commands: Commands, soon: Callable[[Callable[[], None]], None], status: str) -> None:
        self.commands = commands
        self._soon = soon
        self.status_name = status
        self._status_request = request_bytes(status, {})
        self._under_way: asyncio.Task[dict[str, Any]] | None = None
        self._known: dict[str, Any] | None = None
        self._until_s = 0.0
        self._last: dict[str, Any] | None = None
        self._waiting: dict[asyncio.Future[bytes], tuple[asyncio.AbstractEventLoop, list[Later]]] = {}
        self._over = False

    def end(self, status: dict[str, Any] | None) -> None:
        """The job has ended: answer what waits, if that is known by now, and refuse the rest. Any thread.

        ``status``: the last one; ``None``: the coordinator's thread has not ended, and may still answer.
        """
        self._last, self._over = status, True
        for answer, (loop, begun) in list(self._waiting.items()):
            for later in begun if status is not None else ():
                later.end()
            _settle(loop, answer, encode_reply(CommandRefused(HAS_ENDED)))

    async def status(self) -> dict[str, Any]:
        """The status, a fraction of a second old at most. Raises ``CommandRefused``, ``TimeoutError``."""
        if self._last is not None:
            return self._last
        if self._known is not None and time.monotonic() < self._until_s:
            return self._known
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._read())
        return await asyncio.shield(self._under_way)

    async def _read(self) -> dict[str, Any]:
        reply, took_s = await self._ask(self._status_request, STATUS_TIMEOUT_S)
        self._known = decode_reply(reply)
        self._until_s = time.monotonic() + max(REUSE_S, REST * took_s)
        return self._known

    async def command(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request; returns its result. Raises ``CommandRefused``, ``TimeoutError``."""
        reply, _ = await self._ask(request_bytes(name, body), COMMAND_TIMEOUT_S)
        return decode_reply(reply)

    async def _ask(self, request: bytes, timeout_s: float) -> tuple[bytes, float]:
        """The reply, and the seconds that the coordinator's thread took to begin it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        begun: list[Later] = []
        took_s = [0.0]

        def carry_out() -> None:
            if answer.done():  # given up before its turn came
                return
            started_s = time.perf_counter()
            begun.append(self.commands.obey(request, lambda reply: _settle(loop, answer, reply)))
            took_s[0] = time.perf_counter() - started_s

        def give_up() -> None:
            for later in begun:
                later.wanted = False

        self._waiting[answer] = loop, begun
        try:
            if self._over:  # looked at after the request is among those that ``end`` refuses
                raise CommandRefused(HAS_ENDED)
            self._soon(carry_out)
            reply = await asyncio.wait_for(answer, timeout_s)
        except (asyncio.TimeoutError, asyncio.CancelledError) as error:
            self._soon(give_up)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise TimeoutError(f"the job has not answered within {timeout_s:g} s") from None
        finally:
            del self._waiting[answer]
        return reply, took_s[0]


def _settle(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[bytes], reply: bytes) -> None:
    """Give the reply, unless there is one. Any thread."""

    def settle() -> None:
        if not answer.done():
            answer.set_result(reply)

    with contextlib.suppress(RuntimeError):  # the server has ended
        loop.call_soon_threadsafe(settle)
