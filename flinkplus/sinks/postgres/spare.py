"""A connection that a slot's process has ready for the next writer of a sink, so that a promoted one need not open it.

Each process in which a writer of a sink runs has one spare connection for that sink. It is authenticated, has its
settings, and has checked the table. A promoted standby takes it; the next one is opened when the failover is over.

Rules and invariants:

- A spare connection belongs to no subtask: it has no subtask's name, no transaction and no lock. A fence neither ends
  it nor waits for it. Its taker reads the row of its subtask in its first transaction, like a writer that has just
  connected; whether it may write is decided there.
- It is opened and looked after by a thread of its own. ``take`` never waits for the network: it gives a connection that
  was in order within the last ``CHECK_S`` seconds, or none.
- It ends with the last writer of its sink in this process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flinkplus.errors import OutputTableError
from flinkplus.printable import printable
from flinkplus.sinks.postgres.connecting import SYNCHRONOUS, Address, connect, translated
from flinkplus.sinks.postgres.table import OutputTable

REST_S = 2.0
"""How long after a writer has begun the next spare connection is opened: deployments and failovers come first."""
CHECK_S = 5.0
TAKE_S = 0.01
"""How long a taker waits for a check that is under way."""
CLOSE_S = 1.0

log = logging.getLogger("flinkplus.slot")


class SpareOwner(Protocol):
    """The sink, as its writers know it."""

    @property
    def name(self) -> str: ...

    @property
    def job_id(self) -> str: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def address(self) -> Address: ...

    @property
    def place(self) -> str: ...

    def output_table(self) -> OutputTable: ...


@dataclass(frozen=True)
class PreparedConnection:
    """A connection, and the table as it was found there."""

    connection: Any
    table: OutputTable


class SpareConnection:
    """The spare connection for one table. ``name``: what the server calls it. ``make_table``: makes the table as the
    sink describes it."""

    def __init__(self, address: Address, make_table: Callable[[], OutputTable], name: str) -> None:
        self._address = address
        self._make_table = make_table
        self._name = name
        self._state = threading.Condition()
        self._checking = threading.Lock()
        self._ready: PreparedConnection | None = None
        self._users = 0
        self._due_s = 0.0
        self._thread: threading.Thread | None = None
        self._failure = ""

    def join(self) -> None:
        """A writer of this sink begins."""
        with self._state:
            self._users += 1
            self._rest()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name=f"{self._name}-spare", daemon=True)
                self._thread.start()

    def leave(self) -> bool:
        """A writer has ended; whether it was the last one. With that, the spare connection ends."""
        with self._state:
            self._users -= 1
            thread = None if self._users else self._thread
            self._state.notify_all()
        if thread is not None:
            thread.join(CLOSE_S)
        return thread is not None

    def take(self) -> PreparedConnection | None:
        """The spare connection, which is the caller's from now on; ``None``: there is none."""
        if not self._checking.acquire(timeout=TAKE_S):
            return None
        try:
            with self._state:
                taken, self._ready = self._ready, None
                self._rest()
            return taken
        finally:
            self._checking.release()

    def _rest(self) -> None:
        self._due_s = time.monotonic() + REST_S
        self._state.notify_all()

    # --- the thread

    def _look_after(self) -> None:
        while True:
            with self._state:
                while self._users and (left_s := self._due_s - time.monotonic()) > 0:
                    self._state.wait(left_s)
                if not self._users:
                    break
            with self._checking:
                self._check()
            with self._state:
                self._due_s = max(self._due_s, time.monotonic() + CHECK_S)
        with self._checking:
            self._drop()

    def _check(self) -> None:
        """Open the connection, or find out whether it is still in order."""
        try:
            with translated(self._address, "a spare connection"):
                if self._ready is None:
                    self._ready = self._open()
                else:
                    with self._ready.connection.transaction():
                        _find(self._ready)
        except Exception as error:  # the writer that takes none connects by itself, and reports what is wrong
            self._drop()
            reason = printable(error)
            if reason != self._failure:
                log.info("no spare connection: %s", reason)
            self._failure = reason
        else:
            self._failure = ""

    def _open(self) -> PreparedConnection:
        connection = connect(self._address, lasting=True, application_name=self._name)
        try:
            opened = PreparedConnection(connection, self._make_table())
            connection.execute(SYNCHRONOUS)
            with connection.transaction():
                _find(opened)
                opened.table.ready(connection)
        except BaseException:
            connection.close()
            raise
        return opened

    def _drop(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            with contextlib.suppress(Exception):
                ready.connection.close()


def _find(prepared: PreparedConnection) -> None:
    if not prepared.table.found(prepared.connection):
        raise OutputTableError(f"{prepared.table} has gone")


_spares: dict[tuple[str, ...], SpareConnection] = {}
_joining = threading.Lock()


def join_spare(sink: SpareOwner) -> Callable[[], PreparedConnection | None]:
    """A writer of ``sink`` begins in this process; at its end it calls ``leave_spare``. Returns what gives it the spare
    connection (``SpareConnection.take``)."""
    with _joining:
        spare = _spares.get(_key(sink))
        if spare is None:
            name = spare_name(sink.job_id)
            spare = _spares[_key(sink)] = SpareConnection(sink.address, sink.output_table, name)
        spare.join()
        return spare.take


def leave_spare(sink: SpareOwner) -> None:
    """A writer of ``sink`` has ended in this process."""
    with _joining:
        if _spares[_key(sink)].leave():
            del _spares[_key(sink)]


def _key(sink: SpareOwner) -> tuple[str, ...]:
    """The table, and how it is written."""
    return sink.job_id, sink.name, sink.place, *sink.keys


def spare_name(job_id: str) -> str:
    """What the server calls the spare connections of a job."""
    return f"flinkplus spare/{job_id}"[:63]
