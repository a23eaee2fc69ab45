"""Requests of a shell to a running job, and the replies.

A *request* is a frozen dataclass of JSON values; its name on the wire is the name of its class. A job accepts the
requests that were added to its ``Commands``, each with the function that carries it out. To add one::

    @dataclass(frozen=True)
    class DrainCommand:
        host: str

    commands.add(DrainCommand, drain)  # def drain(request: DrainCommand) -> dict[str, Any] | Later

and, in the shell, ``call(access, DrainCommand("worker-2"))``. It returns the result of ``drain``, or raises
``CommandRefused`` with the text of its ``FlinkPlusError``. A slow function returns a ``Later`` and answers through it.

Rules: requests are carried out in the coordinator's thread, which must not be blocked. Malformed and unknown ones are
refused; an error in a command does not fail the job.
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
REQUEST_BYTES = 64 << 10  # maximum length of a request
MAX_ERROR_CHARACTERS = 2_000  # maximum length of the reason for a refusal that a shell shows
HAS_ENDED = "the job has ended"
REPLY_BYTES = 256 << 20  # maximum length of a reply, for example with the status of every subtask

Body = dict[str, Any]
R = TypeVar("R")
log = logging.getLogger("flinkplus.commands")


class Later:
    """A reply that is given later, once; only in the coordinator's thread. ``wanted``: until the shell disconnects.

    ``look``: gives the reply if it is known by now.
    """

    def __init__(self, look: Callable[[Later], None] | None = None) -> None:
        self._look = look
        self._take: Callable[[Body | FlinkPlusError], None] | None = None
        self._answer: Body | FlinkPlusError | None = None
        self.wanted = True

    def give(self, answer: Body | FlinkPlusError) -> None:
        """Reply with the body, or refuse with an error; later calls have no effect."""
        if self._answer is None:
            self._answer = answer
            if self._take is not None:
                self._take(answer)

    def end(self) -> None:
        """The job has ended: give the reply, or refuse."""
        if self._look is not None and self._answer is None:
            self._look(self)
        self.give(CommandRefused(HAS_ENDED))

    def then(self, take: Callable[[Body | FlinkPlusError], None]) -> None:
        """Call ``take`` with the reply, now or when it is given."""
        self._take = take
        if self._answer is not None:
            take(self._answer)


class Commands:
    """The requests that a job accepts."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type[Any], dict[str, Any], Callable[[Any], Body | Later]]] = {}
        self._reports: set[str] = set()
        self._ended = False

    def add(self, request: type[R], carry_out: Callable[[R], Body | Later], *, reports: bool = False) -> None:
        """Accept requests of this class from now on. ``reports``: they only ask, and are answered after the end too."""
        self._known[request.__name__] = (request, typing.get_type_hints(request), carry_out)
        if reports:
            self._reports.add(request.__name__)

    @property
    def requests(self) -> dict[str, type[Any]]:
        """The classes of the requests that are accepted, by name."""
        return {name: made for name, (made, _, _) in self._known.items()}

    def end(self) -> None:
        """The job has ended: refuse all but reports."""
        self._ended = True

    def obey(self, data: bytes, answer: Callable[[bytes], None]) -> Later:
        """Carry out the request in ``data``; ``answer`` gets the reply, now or later."""
        later = Later()
        try:
            request, carry_out = self.decode(data)
            found = carry_out(request)
            if isinstance(found, Later):
                later = found
            else:
                later.give(found)
        except FlinkPlusError as error:
            later.give(error)
        except Exception as error:
            log.exception("a command failed")
            later.give(CommandRefused(f"the command failed: {described(error)}"))
        later.then(lambda outcome: answer(encode_reply(outcome)))
        return later

    def decode(self, data: bytes) -> tuple[Any, Callable[[Any], Body | Later]]:
        """The request in ``data``, and the function that carries it out. Raises ``CommandRefused``."""
        try:
            outer = parse_document(data)
            version, name, body = outer["v"], outer["request"], outer["body"]
            if version != FORMAT_VERSION:
                raise CommandRefused(f"the request has format {version!r:.100}, this job accepts {FORMAT_VERSION}")
            if not isinstance(name, str) or name not in self._known:
                raise CommandRefused(f"this job does not know the command {name!r:.100}")
            if self._ended and name not in self._reports:
                raise CommandRefused(HAS_ENDED)
            made, hints, carry_out = self._known[name]
            request = made(**body)
            for field, hint in hints.items():
                if not fits(getattr(request, field), hint):
                    raise CommandRefused(f"{field!r} of the request {name} has the wrong type")
        except (ValueError, KeyError, TypeError) as error:
            raise CommandRefused(f"the request cannot be read: {error!r:.300}") from error
        return request, carry_out


def encode_request(request: Any) -> bytes:
    body = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    return json.dumps({"v": FORMAT_VERSION, "request": type(request).__name__, "body": body}).encode()


def encode_reply(outcome: Body | FlinkPlusError) -> bytes:
    content = {"error": str(outcome)} if isinstance(outcome, FlinkPlusError) else {"body": outcome}
    return json.dumps({"v": FORMAT_VERSION, **content}).encode()


def decode_reply(data: bytes) -> Body:
    """The body of a reply. Raises ``CommandRefused`` for a refusal, ``PeerProtocolError`` for a malformed reply."""
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
