"""What a shell asks of a running job, and what it is answered.

A *request* is a frozen dataclass of JSON values; its name on the wire is the name of its class. A job knows the
requests that were added to its ``Commands``, each with the function that carries it out. To add one::

    @dataclass(frozen=True)
    class DrainCommand:
        host: str

    commands.add(DrainCommand, drain)  # def drain(request: DrainCommand) -> dict[str, Any] | Later

and, in the shell, ``call(access, DrainCommand("worker-2"))``, which returns what ``drain`` has returned, or raises
``CommandRefused`` with the text of the ``FlinkPlusError`` that it has raised. What takes its time returns a ``Later``,
and answers by it.

Rules: no socket here. Requests are carried out in the coordinator's thread, which nothing may hold up. What cannot be
read, or is not known, is refused and has no effect; an error in a command is not one of the job.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from flinkplus.documents import fits, parse_document
from flinkplus.errors import CommandRefused, FlinkPlusError, PeerProtocolError, described
from flinkplus.printable import printable

FORMAT_VERSION = 1
REQUEST_BYTES = 64 << 10
"""The longest request that is taken."""
MAX_ERROR_CHARACTERS = 2_000
"""Of the reason for a refusal that a shell shows."""
REPLY_BYTES = 256 << 20
"""The longest reply that is taken: it tells of every subtask, and the last thousand checkpoints."""

Body = dict[str, Any]
R = TypeVar("R")
log = logging.getLogger("flinkplus.commands")


class Later:
    """An answer that is given when something has come about, once; only in the coordinator's thread.

    ``wanted``: false when whoever asked has gone, and what was to be done for them alone need not be.
    """

    def __init__(self) -> None:
        self._take: Callable[[Body | FlinkPlusError], None] | None = None
        self._answer: Body | FlinkPlusError | None = None
        self.wanted = True

    def give(self, body: Body) -> None:
        """It is done."""
        self._end(body)

    def refuse(self, error: FlinkPlusError) -> None:
        """It could not be done."""
        self._end(error)

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self._answer is not None

    def _end(self, answer: Body | FlinkPlusError) -> None:
        if self._answer is None:
            self._answer = answer
            if self._take is not None:
                self._take(answer)

    def then(self, take: Callable[[Body | FlinkPlusError], None]) -> None:
        """Have ``take`` called with the answer, now or when it is there."""
        self._take = take
        if self._answer is not None:
            take(self._answer)


class Commands:
    """The requests that a job takes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type[Any], dict[str, Any], Callable[[Any], Body | Later]]] = {}

    def add(self, request: type[R], carry_out: Callable[[R], Body | Later]) -> None:
        """Take requests of this class from now on."""
        self._known[request.__name__] = (request, typing.get_type_hints(request), carry_out)

    def obey(self, data: bytes, answer: Callable[[bytes], None]) -> Later:
        """Carry out the request in ``data``; ``answer`` gets the reply, now or later."""
        later = self._obey(data)
        later.then(lambda outcome: answer(encode_reply(outcome)))
        return later

    def _obey(self, data: bytes) -> Later:
        later = Later()
        try:
            request, carry_out = self.decode(data)
            found = carry_out(request)
        except FlinkPlusError as error:
            later.refuse(error)
        except Exception as error:
            log.exception("a command failed")
            later.refuse(CommandRefused(f"the command failed: {described(error)}"))
        else:
            if isinstance(found, Later):
                return found
            later.give(found)
        return later

    def decode(self, data: bytes) -> tuple[Any, Callable[[Any], Body | Later]]:
        """The request in ``data``, and who carries it out. Raises ``CommandRefused``."""
        try:
            outer = parse_document(data)
            version, name, body = outer["v"], outer["request"], outer["body"]
            if version != FORMAT_VERSION:
                raise CommandRefused(
                    f"the request has format {version!r:.100}, the job's program speaks {FORMAT_VERSION}"
                )
            if not isinstance(name, str) or name not in self._known:
                raise CommandRefused(f"this job does not know the command {name!r:.100}")
            made, hints, carry_out = self._known[name]
            request = made(**body)
            for field, hint in hints.items():
                if not fits(getattr(request, field), hint):
                    raise CommandRefused(f"{field!r} of the request {name} has the wrong type")
        except (ValueError, KeyError, TypeError) as error:
            raise CommandRefused(f"the request cannot be read: {error!r:.300}") from error
        return request, carry_out


def encode_request(request: Any) -> bytes:
    """A request as JSON bytes."""
    body = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    return json.dumps({"v": FORMAT_VERSION, "request": type(request).__name__, "body": body}).encode()


def encode_reply(outcome: Body | FlinkPlusError) -> bytes:
    """An answer as JSON bytes."""
    told = {"error": str(outcome)} if isinstance(outcome, FlinkPlusError) else {"body": outcome}
    return json.dumps({"v": FORMAT_VERSION, **told}).encode()


def decode_reply(data: bytes) -> Body:
    """What a job has answered. Raises ``CommandRefused`` with what it says, ``PeerProtocolError`` for no answer."""
    try:
        outer = parse_document(data)
        if outer["v"] != FORMAT_VERSION:
            raise PeerProtocolError(f"the job answers in format {outer['v']!r:.100}; use the program that started it")
        if "error" in outer:
            raise CommandRefused(printable(outer["error"], MAX_ERROR_CHARACTERS))
        body = outer["body"]
        if not isinstance(body, dict):
            raise TypeError("no body")
    except (ValueError, KeyError, TypeError) as error:
        raise PeerProtocolError(f"malformed reply: {error!r:.300}") from error
    return body
