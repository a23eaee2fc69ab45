"""The command server: a port of the driver, in the coordinator's loop, for commands of shells.

A shell proves that it knows the key for commands (``Credentials.for_commands``), which only this port accepts. On the
driver's host, a socket in the job's directory, closed to other users, also works while unknown peers crowd the port.

Rules: a request is carried out in the coordinator's thread, as one of its events. A second request before the reply, or
a frame that is too long, ends the connection. At most ``MAX_SHELLS`` are served at a time. A shell that follows what it
has requested stays connected, and so learns how it ended, also when the job ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
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
LOOK_S = 0.05
LAST_WORDS_S = 1.0
"""The end of a job waits so long for connected shells to read their replies, and to ask for the outcome."""

log = logging.getLogger("flinkplus.security")


@dataclass
class _Shell:
    """A connected shell. ``waits``: for a reply. ``request``: not carried out yet. ``later``: its reply."""

    waits: bool = False
    request: bytes | None = None
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
        self._inbox = inbox
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
            shell.waits, shell.request = True, bytes(frame)
            self._soon(lambda: self._obey(connection))

        def gone(_reason: str) -> None:
            self._shells.pop(connection, None)
            if shell.later is not None:
                shell.later.wanted = False

        connection.welcome(found.welcome, take, gone, joined=False, limit=REQUEST_BYTES)

    def _obey(self, connection: Connection) -> None:
        """Carry out the request of this shell, unless it has gone, or that is done."""
        shell = self._shells.get(connection)
        if shell is None or shell.request is None:
            return

        def answer(reply: bytes) -> None:
            shell.waits, shell.later = False, None
            if connection in self._shells:
                connection.send([reply])

        request, shell.request = shell.request, None
        later = self._commands.obey(request, answer)
        if shell.waits:
            shell.later = later

    def close(self) -> None:
        """The job has ended: close the port, reply to the shells, and close the connections when the shells have, at
        the latest after ``LAST_WORDS_S``. Only in the coordinator's thread, after its last turn."""
        self._listener.close()
        if self._local is not None and self._socket is not None:
            self._local.close()
            self._socket.unlink(missing_ok=True)
        self._commands.end()
        self._soon = lambda action: action()
        for connection, shell in list(self._shells.items()):
            self._obey(connection)
            if shell.later is not None:
                shell.later.end()
        deadline = time.monotonic() + LAST_WORDS_S
        while self._shells and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=LOOK_S)  # of the job that has ended: it concerns no one
        for connection in self._shells:
            connection.close()
        self._shells.clear()
