"""The command server: a port of the driver, in the coordinator's loop, for commands of shells.

A shell proves that it knows the key for commands (``Credentials.for_commands``), which only this port accepts. On the
driver's host, a socket in the job's directory, closed to other users, also works while unknown peers crowd the port.

Rules: a request is carried out in the coordinator's thread, as one of its events. A second request before the reply, or
a frame that is too long, ends the connection. At most ``MAX_SHELLS`` are served at a time.
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
"""The name of every shell in the handshake."""
SOCKET = "COMMANDS.sock"
MAX_SHELLS = 32

log = logging.getLogger("flinkplus.security")


@dataclass
class _Shell:
    """A connected shell. ``waits``: for the reply ``later``."""

    waits: bool = False
    later: Later | None = None


class CommandServer:
    """Accepts shells and carries out their requests.

    ``credentials``: those for commands.
    ``soon``: runs an action in the coordinator's thread.
    ``directory``: for the socket for shells on this host; ``None``: no socket.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        inbox: Inbox[Any],
        commands: Commands,
        soon: Callable[[Callable[[], None]], None],
        directory: Path | None = None,
    ) -> None:
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
            except OSError as error:  # for example, the path is too long for a socket
                log.debug("cannot open the local command socket: %s", error)

    def _welcome(self, connection: Connection, found: Listening) -> None:
        if found.name != SHELL:
            raise PeerRefused(handshake.IDENTITY, f"{found.name!r} may not send commands")
        if len(self._shells) >= MAX_SHELLS:
            raise PeerRefused(handshake.CROWD, f"more than {MAX_SHELLS} shells are connected")

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
        """Close the port and all connections; waiting shells get no reply."""
        self._listener.close()
        if self._local is not None and self._socket is not None:
            self._local.close()
            self._socket.unlink(missing_ok=True)
        for connection in self._shells:
            connection.close()
        self._shells.clear()
