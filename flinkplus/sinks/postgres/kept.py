"""A connection that the driver keeps from one fence to the next, so that a failover need not open one.

Rules and invariants:

- The transaction is the same on a connection that is kept and on a new one. So the safety of a fence does not depend on
  which it has: it ends the transactions of older generations, and raises the generation in the subtasks' rows.
- A connection that has failed is not used again. If it is broken, the transaction is repeated at once on a new one, so
  ``action`` must be repeatable; whether its first attempt was committed does not matter.
- One caller at a time has the connection. Another one, in another thread, opens its own.
- No transaction is open between two uses. So nothing is locked, and a connection that a dead driver leaves does not
  matter.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from flinkplus.errors import OutputUnavailable
from flinkplus.sinks.postgres.connecting import SYNCHRONOUS, Address, connect, translated

T = TypeVar("T")
LOST_AFTER_MS = "2000"
"""How long sent bytes may be unacknowledged until the connection counts as lost. A new one may reach another host."""

log = logging.getLogger("flinkplus")


class KeptConnection:
    """The kept connection of one sink. ``what``: for errors. ``begin``: called with each new connection."""

    def __init__(self, address: Address, what: str, begin: Callable[[Any], None]) -> None:
        self._address = address
        self._what = what
        self._begin = begin
        self._in_use = threading.Lock()
        self._connection: Any = None
        self._closed = False

    def transacted(self, action: Callable[[Any], T]) -> T:
        """What ``action`` returns in a transaction, which is committed then. Raises what ``action`` raises, and as
        ``translated``."""
        if not self._in_use.acquire(blocking=False):
            with translated(self._address, self._what), contextlib.closing(self._open()) as connection:
                return _transacted(connection, action)
        try:
            with translated(self._address, self._what):
                return self._on_kept(action)
        except BaseException:
            self._drop()
            raise
        finally:
            self._in_use.release()
            self._drop_when_closed()

    def _on_kept(self, action: Callable[[Any], T]) -> T:
        if self._connection is not None:
            try:
                with translated(self._address, self._what):
                    return _transacted(self._connection, action)
            except OutputUnavailable as error:
                is_broken = self._connection.broken
                self._drop()
                if not is_broken:  # such as a lock that was not given in time: the caller decides about another attempt
                    raise
                log.info("%s; connecting again", error)
        self._connection = self._open()
        return _transacted(self._connection, action)

    def _open(self) -> Any:
        connection = connect(self._address, lasting=True, tcp_user_timeout=LOST_AFTER_MS)
        try:
            connection.execute(SYNCHRONOUS)
            self._begin(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the connection. If it is in use, its user does that."""
        self._closed = True
        self._drop_when_closed()

    def _drop_when_closed(self) -> None:
        if self._closed and self._in_use.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._in_use.release()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def _transacted(connection: Any, action: Callable[[Any], T]) -> T:
    with connection.transaction():
        return action(connection)
