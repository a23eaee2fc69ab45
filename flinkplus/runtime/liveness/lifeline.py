"""The lifeline: a connection from each slot's process to the driver that is cut at once when the process dies.

The control stream breaks later: the kernel closes the files of a killed process when its last thread has ended and its
memory is released, ten to thirty milliseconds later on a busy machine. The lifeline belongs to a thread with its own
file table (``unshare``), which contains only the lifeline. The kernel closes such a table when its thread ends, which
is at once after SIGKILL.

Rules: a lifeline carries no data after the handshake, which has its name. The driver ends it, or the slot with
``close``. On systems other than Linux a thread cannot have its own file table; there the control stream must suffice.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import PeerRefused
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening, Refusals
from flinkplus.runtime.transport.auth.tls import context
from flinkplus.runtime.transport.tcp.connections import Broken, Connection, Listener
from flinkplus.runtime.transport.tcp.dialing import dial
from flinkplus.runtime.transport.wire.frames import Frame
from flinkplus.runtime.transport.wire.ports import COORDINATOR

log = logging.getLogger("flinkplus.lifeline")

PROTOCOL = b"flinkplus-lifeline/2"
CONNECT_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5.0
CLONE_FILES = 0x400


@dataclass(frozen=True, slots=True)
class LifelineCut:
    """The process with the lifeline of this name has ended."""

    name: str
    time_s: float


class Lifelines:
    """The coordinator's end, in its loop. ``cut``: called when a lifeline is cut; must not block."""

    def __init__(
        self, host: str, credentials: Credentials, inbox: Inbox[Any], cut: Callable[[LifelineCut], None]
    ) -> None:
        self._cut = cut
        self._held: dict[str, Connection] = {}
        self.refusals = Refusals()
        self._listener = Listener(inbox, host, PROTOCOL, COORDINATOR, credentials, self.refusals, self._welcome)
        self.address = self._listener.address

    def _welcome(self, connection: Connection, found: Listening) -> None:
        name = found.name
        if not name or name in self._held:
            raise PeerRefused(handshake.IDENTITY, f"a second lifeline of {name!r}")

        def gone(_reason: str) -> None:
            if self._held.pop(name, None) is not None:
                self._cut(LifelineCut(name, time.time()))

        def received(frame: Frame) -> None:
            raise Broken(f"{len(frame)} bytes on a lifeline")

        self._held[name] = connection
        connection.welcome(found.welcome, received, gone, limit=0)

    def drop(self, name: str) -> None:
        """Close one lifeline, without a ``LifelineCut``."""
        connection = self._held.pop(name, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._listener.close()
        for connection in self._held.values():
            connection.close()
        self._held.clear()


class Lifeline:
    """The slot's end."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._keep: int | None = None

    def open(self, address: str, credentials: Credentials, name: str) -> bool:
        """Connect as ``name``; false if that fails, and the reason is logged."""
        if not address:
            return False
        done = threading.Event()
        found: list[BaseException] = []
        tls = None if credentials.certificates is None else context(credentials.certificates, False)
        end, self._keep = os.pipe()

        def hold() -> None:
            try:
                _unshare_files(end)
                connecting = Connecting(credentials.secret, PROTOCOL, name, COORDINATOR)
                connection = dial(address, connecting, tls, CONNECT_TIMEOUT_S)
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except BaseException as error:  # reported by ``open``
                found.append(error)
                done.set()
                return
            waiting = select.poll()
            for one in (end, connection.fileno()):
                waiting.register(one, select.POLLIN)
            done.set()
            waiting.poll()
            connection.close()

        self._thread = threading.Thread(target=hold, name="flinkplus-lifeline", daemon=True)
        # A collection in that thread could finalize foreign objects, and close their file numbers in its own table.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._thread.start()
            done.wait()
        finally:
            if collecting:
                gc.enable()
            os.close(end)
        if found:
            log.info("could not open a lifeline to %s: %s", address, found[0])
            self.close()
        return not found

    def close(self) -> None:
        keep, self._keep = self._keep, None
        if keep is not None:
            os.close(keep)  # the thread reads the end of the pipe
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None


def _unshare_files(kept: int) -> None:
    """Give this thread its own file table, with only the file ``kept`` of the process. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(CLONE_FILES) != 0:
        raise OSError(ctypes.get_errno(), "a thread cannot have its own file table here")
    highest = max(int(name) for name in os.listdir(f"/proc/self/task/{threading.get_native_id()}/fd"))
    os.closerange(0, kept)
    os.closerange(kept + 1, highest + 1)
