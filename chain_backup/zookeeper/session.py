"""A slot's registration: an ephemeral node that exists while the slot lives.

Rules: the newest registration of a slot wins: by the coordinator's epoch, then by incarnation. A slot that was
replaced, or whose session has expired, gets ``SessionExpired`` once and is never registered again: it needs a new
incarnation. Nothing here blocks the slot: connecting, registering and watching happen in kazoo's threads.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from kazoo.exceptions import ConnectionLoss, KazooException, NodeExistsError, NoNodeError

from chain_backup.zookeeper.client import RETRY_DELAY_S, Client, KazooState, commit, result
from chain_backup.zookeeper.errors import BadRecord
from chain_backup.zookeeper.records import (
    Paths,
    SessionEvent,
    SessionExpired,
    SessionOpened,
    SessionReconnected,
    SessionSuspended,
    SlotRecord,
    split_hosts,
)

ANSWER_TIMEOUT_S = 5.0


class SlotSession:
    """Registers ``slot`` as ``record`` in the background, as soon as the application has a coordinator; with that one.

    ``deliver``: called from other threads with ``SessionEvent``s; must only enqueue.
    ``auth``, ``tls``: as in ``Client``. Raises ``ConfigurationError``.
    """

    def __init__(
        self,
        hosts: str,
        application: str,
        slot: int,
        record: SlotRecord,
        session_timeout_s: float,
        deliver: Callable[[SessionEvent], None],
        auth: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        servers, prefix = split_hosts(hosts)
        self._paths = Paths(application, prefix)
        self._path = self._paths.slot(slot)
        self._slot = slot
        self._record = record
        self._deliver = deliver
        self._lock = Lock()
        self._connection = 0  # number of the connection: findings of a broken one are not reported
        self._epoch = 0  # of the coordinator we are registered with
        self._suspended = False
        self._opened = False
        self._ended = False
        self.client = Client(servers, session_timeout_s, self._state_changed, auth, tls)
        self.client.start()

    def close(self) -> None:
        """Remove the registration and end all threads, bounded; nothing is delivered any more."""
        with self._lock:
            self._ended = True
        self.client.close()

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self._end("the ZooKeeper session has expired")
            return
        with self._lock:
            self._connection += 1
            if state == KazooState.SUSPENDED and self._opened and not self._suspended and not self._ended:
                self._suspended = True
                self._deliver(SessionSuspended())
        if state == KazooState.CONNECTED:
            self.client.post(self._register)

    def _changed(self, event: object) -> None:
        """A watch fired; they all do when the connection breaks, too."""
        if self.client.connected:
            self.client.post(self._register)

    def _register(self) -> None:
        """Make sure that our node stands. In the callback thread."""
        with self._lock:
            connection = self._connection
        while self.client.connected and not self._ended:
            try:
                done = self._try_register()
            except (KazooException, self.client.timeout):
                self.client.closing.wait(RETRY_DELAY_S)
                continue
            if done is None:
                continue
            if done:
                self._registered(connection)
            return

    def _registered(self, connection: int) -> None:
        with self._lock:
            if self._ended or connection != self._connection:
                return
            if not self._opened:
                self._opened = True
                self._deliver(SessionOpened())
            elif self._suspended:
                self._suspended = False
                self._deliver(SessionReconnected())

    def _try_register(self) -> bool | None:
        """One round: True when our node stands, False to wait for a watch (or never), None to try again at once."""
        kazoo, deadline, session = self.client.kazoo, time.monotonic() + ANSWER_TIMEOUT_S, self.client.session
        if session is None:
            raise ConnectionLoss()
        epoch = result(kazoo.exists_async(self._paths.epoch, watch=self._changed), deadline)
        if epoch is None or epoch.version == 0:
            return False  # no coordinator yet, or no more
        if self._opened and epoch.version != self._epoch:
            self._end("another driver coordinates the application now")
            return False
        self._epoch = epoch.version
        mine = self._record.encode(epoch.version)
        try:
            data, stat = result(kazoo.get_async(self._path, watch=self._changed), deadline)
        except NoNodeError:
            with suppress(NodeExistsError):
                result(kazoo.create_async(self._path, mine, ephemeral=True), deadline)
            return None  # once more, for the watch
        if stat.ephemeralOwner == session:
            return True
        if self._is_newer(data, epoch.version):
            self._end(f"slot {self._slot} was registered again by another process")
            return False
        transaction = self.client.kazoo.transaction()
        transaction.delete(self._path, stat.version)
        transaction.create(self._path, mine, ephemeral=True)
        commit(transaction, deadline)
        return None

    def _is_newer(self, data: bytes, epoch: int) -> bool:
        """Whether another's registration is newer than ours, or took the place of ours."""
        if self._opened:
            return True
        try:
            other, other_epoch = SlotRecord.decode(self._slot, data)
        except BadRecord:
            return False
        return (other_epoch, other.incarnation) > (epoch, self._record.incarnation)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._deliver(SessionExpired(reason))
        self.client.close_soon()
