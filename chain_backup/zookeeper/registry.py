"""The coordinator's side: its election, the chains, and which slots live.

Rules: each application has one coordinator, which holds the ephemeral node that an election creates together with a new
epoch. A coordinator whose session expired takes its place again while the epoch is still its own. Kazoo's callback
thread compares the living slots with those reported, after each watch and each reconnection. A change that is undone
in between may not be reported; the last state always is.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Lock

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from chain_backup.zookeeper.chains import ChainStore
from chain_backup.zookeeper.client import RETRY_DELAY_S, SESSION_TIMEOUT_S, Client, KazooState, commit, result
from chain_backup.zookeeper.errors import BadRecord, CoordinatorElsewhere, RegistryUnavailable
from chain_backup.zookeeper.records import (
    ChainRecord,
    Paths,
    RegistryEvent,
    RegistryLost,
    RegistryReconnected,
    SlotNodeGone,
    SlotNodeSeen,
    SlotRecord,
    decode,
    encode,
    split_hosts,
)
from chain_backup.zookeeper.succession import here
from flinkplus.printable import printable

ANSWER_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 15.0
CLEAN_TIMEOUT_S = 3.0
CLEAN_TRIES = 5

_log = logging.getLogger(__name__)


class Registry:
    """Connects in the background. ``elect`` must have succeeded before anything else is called.

    ``deliver``: called from other threads with ``RegistryEvent``s, from ``elect`` until ``close``; must only enqueue.
    ``auth``, ``tls``: as in ``Client``. Raises ``ConfigurationError``.
    """

    def __init__(
        self,
        hosts: str,
        application: str,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        deliver: Callable[[RegistryEvent], None],
        auth: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        servers, prefix = split_hosts(hosts)
        self._paths = Paths(application, prefix)
        self._application = application
        self._identity = encode(host=socket.gethostname(), pid=os.getpid(), mark=here().mark)
        self._deliver = deliver
        self._lock = Lock()
        self._connection = 0  # number of the connection: findings of a broken one are not reported
        self._lost = False
        self._ended = False
        self._epoch: int | None = None
        self._slots: dict[int, tuple[int, SlotRecord]] = {}  # reported slots: czxid and record
        self._stale: set[int] = set()  # reported slots whose node has changed since
        self._watches: dict[int, Callable[[object], None]] = {}
        self.client = Client(servers, session_timeout_s, self._state_changed, auth, tls)
        self._chains = ChainStore(self.client, self._paths)
        self.client.start()

    def elect(self, timeout_s: float) -> None:
        """Become the coordinator. Raises ``CoordinatorElsewhere`` when another one is still there after ``timeout_s``
        (a killed driver is, for its session timeout); ``RegistryUnavailable`` when ZooKeeper does not answer."""
        what, deadline = f"becoming coordinator of {self._application!r}", time.monotonic() + timeout_s
        while self._epoch is None:
            self.client.await_connected(deadline, what, patient=True)
            gone = Event()
            try:
                self._epoch = self._try_elect(gone, max(deadline, time.monotonic() + 1.0))
            except (KazooException, self.client.timeout) as error:
                if time.monotonic() > deadline:
                    raise RegistryUnavailable(f"{what}: {type(error).__name__} {error}") from error
                self.client.closing.wait(RETRY_DELAY_S)
                continue
            if self._epoch is None and not gone.wait(max(0.0, deadline - time.monotonic())):
                raise CoordinatorElsewhere(f"{self._application!r} is coordinated by {self._who()}")
        self._chains.read(max(1.0, deadline - time.monotonic()))
        self.client.post(self._refresh)

    def write(self, records: Sequence[ChainRecord], timeout_s: float = WRITE_TIMEOUT_S, *, whole: bool = False) -> None:
        """Write chain records in one transaction; blocks. Each is checked against what was last written or read.
        ``whole``: remove all others. Raises as ``ChainStore.write``."""
        if self._epoch is None:
            raise CoordinatorElsewhere(f"not elected as the coordinator of {self._application!r}")
        self._chains.write(records, self._epoch, timeout_s, whole)

    def rehearse(self, writes: int, timeout_s: float) -> None:
        """Warm a server up that has just been started; see ``ChainStore.rehearse``. Raises nothing."""
        if self._epoch is not None:
            self._chains.rehearse(self._epoch, writes, timeout_s)

    def read(self, timeout_s: float = WRITE_TIMEOUT_S) -> dict[str, ChainRecord]:
        """All chain records by subtask. Raises ``RegistryUnavailable``, ``BadRecord``."""
        return self._chains.read(timeout_s)

    def close(self, *, clean: bool = False) -> None:
        """Give up the place and end all threads, bounded; nothing is delivered any more. ``clean`` removes all of the
        application, if ZooKeeper can be reached and this is still its coordinator."""
        with self._lock:
            self._ended = True
        if clean and self.client.connected and self._epoch is not None:
            try:
                self._remove_all(self._epoch)
            except (KazooException, self.client.timeout) as error:
                _log.warning("could not remove %s from ZooKeeper: %s", self._paths.base, type(error).__name__)
        self.client.close()

    def _try_elect(self, gone: Event, deadline: float) -> int | None:
        """Our epoch; None when another has the place: ``gone`` is set once that changes."""
        kazoo, session = self.client.kazoo, self.client.session
        result(kazoo.ensure_path_async(self._paths.root, OPEN_ACL_UNSAFE), deadline)  # applications share it
        for path in (self._paths.slots, self._paths.subtasks, self._paths.epoch):
            result(kazoo.ensure_path_async(path), deadline)
        stat = result(kazoo.exists_async(self._paths.coordinator, watch=lambda event: gone.set()), deadline)
        epoch = result(kazoo.exists_async(self._paths.epoch), deadline)
        if epoch is None:
            gone.set()  # another driver has just cleaned up
            return None
        if stat is not None and stat.ephemeralOwner == session:
            return int(epoch.version)
        transaction = self.client.kazoo.transaction()
        if stat is not None:
            if not self._has_ended(deadline):
                return None
            transaction.delete(self._paths.coordinator)  # its session has not expired yet
        transaction.create(self._paths.coordinator, self._identity, ephemeral=True)
        transaction.set_data(self._paths.epoch, b"", epoch.version)
        error, _ = commit(transaction, deadline)
        if error is not None:
            gone.set()
            return None
        return int(epoch.version) + 1

    def _has_ended(self, deadline: float) -> bool:
        """Whether the coordinator is a driver that is known to have ended (``succession``)."""
        try:
            return here().has_ended(self._coordinator(deadline).get("mark"))
        except (NoNodeError, BadRecord):
            return False

    def _coordinator(self, deadline: float) -> dict[str, object]:
        """What the coordinator says of itself. Raises ``KazooException``, ``BadRecord``."""
        data, _ = result(self.client.kazoo.get_async(self._paths.coordinator), deadline)
        return decode("coordinator", data, dict)

    def _who(self) -> str:
        try:
            fields = self._coordinator(time.monotonic() + ANSWER_TIMEOUT_S)
            return f"process {printable(fields.get('pid'))} on {printable(fields.get('host'))}"
        except (KazooException, self.client.timeout, BadRecord) as error:
            return f"another driver ({type(error).__name__})"

    def _state_changed(self, state: str) -> None:
        with self._lock:
            self._connection += 1
        if state != KazooState.CONNECTED:
            self._report_lost("the ZooKeeper session has expired" if state == KazooState.LOST else "connection lost")
        elif self._epoch is not None:
            self.client.post(self._refresh)

    def _report_lost(self, reason: str, final: bool = False) -> None:
        with self._lock:
            if self._epoch is None or self._ended or (self._lost and not final):
                return
            self._lost = True
            self._ended = final
            self._deliver(RegistryLost(reason, final))

    def _changed(self, event: object) -> None:
        """A watch fired; they all do when the connection breaks, too."""
        if self.client.connected:
            self.client.post(self._refresh)

    def _slot_changed(self, slot: int, event: object) -> None:
        self._stale.add(slot)
        self._changed(event)

    def _refresh(self) -> None:
        """Keep the place, and report what has changed. In the callback thread."""
        with self._lock:
            connection = self._connection
        while self.client.connected and not self._ended:
            try:
                if self._keep_place():
                    self._look_at_slots(connection)
                    self._report_back(connection)
                return
            except (KazooException, self.client.timeout):
                self.client.closing.wait(RETRY_DELAY_S)

    def _keep_place(self) -> bool:
        """Whether we are the coordinator, after taking the place again if it is empty."""
        deadline, session = time.monotonic() + ANSWER_TIMEOUT_S, self.client.session
        assert self._epoch is not None
        while session is not None:
            stat = result(self.client.kazoo.exists_async(self._paths.coordinator, watch=self._changed), deadline)
            if stat is not None and stat.ephemeralOwner == session:
                return True
            epoch = result(self.client.kazoo.exists_async(self._paths.epoch), deadline)
            if epoch is None or epoch.version != self._epoch:
                self._report_lost(f"{self._application!r} is now coordinated by {self._who()}", final=True)
                return False
            if stat is not None:
                raise NodeExistsError()  # our own, of a session that is about to end
            transaction = self.client.kazoo.transaction()
            transaction.check(self._paths.epoch, self._epoch)
            transaction.create(self._paths.coordinator, self._identity, ephemeral=True)
            commit(transaction, deadline)
        return False

    def _look_at_slots(self, connection: int) -> None:
        deadline, kazoo = time.monotonic() + ANSWER_TIMEOUT_S, self.client.kazoo
        steps = result(kazoo.get_children_async(self._paths.slots, watch=self._changed), deadline)
        living = {int(step) for step in steps if step.isdigit()}
        look = sorted(slot for slot in living if slot not in self._slots or slot in self._stale)
        answers = [kazoo.get_async(self._paths.slot(slot), watch=self._watch(slot)) for slot in look]
        found: dict[int, tuple[int, SlotRecord]] = {}
        for slot, answer in zip(look, answers, strict=True):
            try:
                data, stat = result(answer, deadline)
                record, epoch = SlotRecord.decode(slot, data)
                if epoch == self._epoch:
                    found[slot] = (stat.czxid, record)
                else:
                    living.discard(slot)  # a slot of the driver before us
            except NoNodeError:
                living.discard(slot)
            except BadRecord as error:
                _log.warning("ignoring a malformed slot registration: %s", error)
                living.discard(slot)
        self._stale.clear()
        self._report_slots(living, found, connection)

    def _watch(self, slot: int) -> Callable[[object], None]:
        """The same function each time, so that kazoo keeps one watch per slot."""
        return self._watches.setdefault(slot, partial(self._slot_changed, slot))

    def _report_slots(self, living: set[int], found: dict[int, tuple[int, SlotRecord]], connection: int) -> None:
        with self._lock:
            if self._ended or connection != self._connection:
                self._stale |= set(found)
                return
            for slot in sorted(self._slots.keys() | found.keys()):
                reported = self._slots.get(slot)
                new = found.get(slot, reported if slot in living else None)
                if reported is not None and new is not None and reported[0] == new[0]:
                    continue
                if reported is not None:
                    del self._slots[slot]
                    self._deliver(SlotNodeGone(slot, reported[1]))
                if new is not None:
                    self._slots[slot] = new
                    self._deliver(SlotNodeSeen(slot, new[1]))

    def _report_back(self, connection: int) -> None:
        with self._lock:
            if self._lost and not self._ended and connection == self._connection:
                self._lost = False
                self._deliver(RegistryReconnected())

    def _remove_all(self, epoch: int) -> None:
        """Remove the application's nodes in one transaction, unless another driver has taken over."""
        kazoo, deadline = self.client.kazoo, time.monotonic() + CLEAN_TIMEOUT_S
        for _ in range(CLEAN_TRIES):
            transaction = self.client.kazoo.transaction()
            transaction.check(self._paths.epoch, epoch)
            for parent in (self._paths.slots, self._paths.subtasks):
                for step in result(kazoo.get_children_async(parent), deadline):
                    transaction.delete(f"{parent}/{step}")
                transaction.delete(parent)
            if result(kazoo.exists_async(self._paths.coordinator), deadline) is not None:
                transaction.delete(self._paths.coordinator)
            transaction.delete(self._paths.epoch)
            transaction.delete(self._paths.base)
            error, failed = commit(transaction, deadline)
            if error is None or failed == 0:
                return
