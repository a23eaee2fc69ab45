"""Where a running job takes commands from outside: a port of its own at the driver, in the coordinator's loop.

Who has proved to know the key for commands (``Credentials.for_commands``) sends one request, gets one reply, and may
send the next. That key opens no other port, and no other key of the job opens this one.

Shells on the driver's host have a door of their own as well: a socket in the job's directory, which other users cannot
enter. A crowd of strangers at the port takes no place from them there.

Rules: a request is carried out in the coordinator's thread, as one of its events. A second one before the reply, and
whatever is too long, ends the connection. ``MAX_SHELLS`` are served at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flinkplus.errors import PeerRefused
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.operations.commands import REQUEST_BYTES, Commands, Later
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Listening, Refusals
from flinkplus.runtime.transport.tcp.connections import Broken, Connection, Listener
from flinkplus.runtime.transport.wire.frames import Frame
from flinkplus.runtime.transport.wire.ports import COORDINATOR

PROTOCOL = b"flinkplus-commands/2"
SHELL = "shell"
"""What whoever gives commands is called in a handshake."""
SOCKET = "COMMANDS.sock"
MAX_SHELLS = 32

log = logging.getLogger("flinkplus.security")


@dataclass
class _Shell:
    """Somebody who gives commands. ``waits``: for a reply, which ``later`` brings."""

    waits: bool = False
    later: Later | None = None


class CommandServer:
    """The driver's end."""

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        inbox: Inbox[Any],
        commands: Commands,
        soon: Callable[[Callable[[], None]], None],
        directory: Path | None = None,
    ) -> None:
        """``credentials``: those for commands. ``soon``: has the coordinator call something when it is its turn.
        ``directory``: where the socket for shells on this host is to be.
        """
        self._commands = commands
        self._soon = soon
        self._shells: dict[Connection, _Shell] = {}
        self.refusals = Refusals()
        self._listener = Listener(inbox, host, PROTOCOL, COORDINATOR, credentials, self.refusals, self._welcome)
        self.address = self._listener.address
        self._local: Listener | None = None
        self._socket = None if directory is None else directory.resolve() / SOCKET
        if self._socket is not None:
            try:
                self._local = Listener(
                    inbox, str(self._socket), PROTOCOL, COORDINATOR, credentials, self.refusals, self._welcome
                )
            except OSError as error:  # as of a path that is too long for a socket
                log.debug("cannot open the local command socket: %s", error)

    def _welcome(self, connection: Connection, found: Listening) -> None:
        if found.name != SHELL:
            raise PeerRefused(handshake.IDENTITY, f"{found.name!r} may not send commands")
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

        connection.welcome(found.welcome, take, gone, joined=False, limit=REQUEST_BYTES)

    def close(self) -> None:
        """Take no more commands; who waits for an answer gets none."""
        self._listener.close()
        if self._local is not None and self._socket is not None:
            self._local.close()
            self._socket.unlink(missing_ok=True)
        for connection in self._shells:
            connection.close()
        self._shells.clear()
