"""Where a running job takes commands from outside: a port of its own at the driver, in the coordinator's loop.

Who has proved to know the key for commands (``Credentials.for_commands``) sends one request, gets one reply, and may
send the next. That key opens no other port, and no other key of the job opens this one.

Rules: a request is carried out in the coordinator's thread, as one of its events. A second one before the reply, and
whatever is too long, ends the connection. ``MAX_SHELLS`` are served at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import PeerRefused
from flinkplus.runtime import handshake
from flinkplus.runtime.commands import REQUEST_BYTES, Commands, Later
from flinkplus.runtime.credentials import Credentials
from flinkplus.runtime.frames import Frame
from flinkplus.runtime.handshake import Listening, Refusals
from flinkplus.runtime.inbox import Inbox
from flinkplus.runtime.planes import COORDINATOR
from flinkplus.runtime.tcp import Broken, Connection, Listener

PROTOCOL = b"flinkplus-commands/1"
SHELL = "shell"
"""What whoever gives commands is called in a handshake."""
MAX_SHELLS = 32


@dataclass
class _Shell:
    """Somebody who gives commands. ``waits``: for a reply, which ``later`` brings."""

    waits: bool = False
    later: Later | None = None


class CommandDoor:
    """The driver's end."""

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        inbox: Inbox[Any],
        commands: Commands,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``credentials``: those for commands. ``soon``: has the coordinator call something when it is its turn."""
        self._commands = commands
        self._soon = soon
        self._shells: dict[Connection, _Shell] = {}
        self.refusals = Refusals()
        self._listener = Listener(inbox, host, PROTOCOL, credentials, self.refusals, self._welcome)
        self.address = self._listener.address

    def _welcome(self, connection: Connection, found: Listening) -> None:
        if found.target != COORDINATOR or found.name != SHELL:
            raise PeerRefused(handshake.IDENTITY, f"{found.name!r} looks for {found.target!r}")
        if len(self._shells) >= MAX_SHELLS:
            raise PeerRefused(handshake.CROWD, f"more than {MAX_SHELLS} shells at a time")

        shell = self._shells[connection] = _Shell()

        def take(frame: Frame) -> None:
            if shell.waits:
                raise Broken("a request before the reply to the last one")
            shell.waits = True
            request = bytes(frame)
            self._soon(lambda: obey(request))

        def obey(request: bytes) -> None:
            if connection in self._shells:
                shell.later = self._commands.obey(request, answer)

        def answer(reply: bytes) -> None:
            shell.waits = False
            if connection in self._shells:
                connection.send([reply])

        def gone(_reason: str) -> None:
            self._shells.pop(connection, None)
            if shell.later is not None:
                shell.later.wanted = False

        connection.welcome(take, gone, joined=False, limit=REQUEST_BYTES)

    def close(self) -> None:
        """Take no more commands; who waits for an answer gets none."""
        self._listener.close()
        for connection in self._shells:
            connection.close()
        self._shells.clear()
