"""The chain records of an application, read and written by its coordinator alone.

Rules: one write is one transaction: all of its records or none. It checks the coordinator's epoch, so that a driver
that was replaced writes nothing, and the version of every record, so that nothing is overwritten unseen. After a write
whose outcome is open (the connection broke, no answer came) the records themselves tell whether it was done. Records of
chains that a deployment no longer has are removed in the transaction that writes those that it has; whatever is left
after a failure is removed with the next write. A removal checks no version, since nothing needs that record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TypeVar

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from chain_backup.zookeeper.client import UNCERTAIN, Client, commit, result
from chain_backup.zookeeper.errors import CoordinatorElsewhere, RegistryUnavailable, StaleRecord
from chain_backup.zookeeper.records import ChainRecord, Paths, unquote

ABSENT = -1  # the version of a record that is not there
Found = tuple[int, bytes]  # version, data
T = TypeVar("T")


class ChainStore:
    """Reads and writes; each call blocks until its timeout at most, and may come from any thread."""

    def __init__(self, client: Client, paths: Paths) -> None:
        self._client = client
        self._paths = paths
        self._lock = Lock()
        self._known: dict[str, int] = {}  # versions
        self._open: dict[str, bytes | None] = {}  # what writes of open outcome wanted; ``None``: a removal
        self._obsolete: set[str] = set()  # to be removed, if there; never iterated in an order that shows

    def read(self, timeout_s: float) -> dict[str, ChainRecord]:
        """All records; what is written next is checked against them. Raises ``RegistryUnavailable``, ``BadRecord``."""
        with self._lock:
            deadline = time.monotonic() + timeout_s
            found = self._retried("reading the chains", deadline, lambda: self._read_all(deadline))
            records = {subtask: ChainRecord.decode(subtask, data) for subtask, (_, data) in found.items()}
            self._known = {subtask: version for subtask, (version, _) in found.items()}
            self._open.clear()
            return records

    def write(self, records: Sequence[ChainRecord], epoch: int, timeout_s: float, whole: bool = False) -> None:
        """Write all or nothing, as the coordinator of ``epoch``. Raises ``StaleRecord`` or ``CoordinatorElsewhere``
        (then nothing was written), ``RegistryUnavailable``.

        ``whole``: the application has no other chains; all other records are removed.
        """
        wanted = {record.subtask: record.encode() for record in records}
        what = f"writing the chains of {', '.join(list(wanted)[:5])}"
        with self._lock:
            deadline = time.monotonic() + timeout_s
            others = self._known.keys() | self._open.keys() if whole else self._obsolete
            self._obsolete = others - wanted.keys()

            def write() -> None:
                if not (self._open and self._settle(wanted, deadline)):
                    self._commit(wanted, epoch, deadline)

            if wanted:
                self._retried(what, deadline, write)

    def rehearse(self, epoch: int, writes: int, timeout_s: float) -> None:
        """Do ``writes`` transactions like those of a failover that change nothing: a new server is slow at first."""
        deadline = time.monotonic() + timeout_s
        try:
            self._client.await_connected(deadline, "warming ZooKeeper up")
            for _ in range(writes):
                if self._client.closing.is_set() or not self._client.connected:
                    return
                transaction = self._client.kazoo.transaction()
                transaction.check(self._paths.epoch, epoch)
                for _ in range(2):
                    transaction.set_data(self._paths.subtasks, b"")
                commit(transaction, deadline)
        except (*UNCERTAIN, KazooException, RegistryUnavailable):
            return  # real writes find out what is wrong

    def _commit(self, wanted: Mapping[str, bytes], epoch: int, deadline: float) -> None:
        changes: dict[str, bytes | None] = {**wanted}
        changes.update(dict.fromkeys(sorted(self._obsolete & self._known.keys())))
        transaction = self._client.kazoo.transaction()
        transaction.check(self._paths.epoch, epoch)
        for subtask, data in changes.items():
            version = self._known.get(subtask, ABSENT)
            if data is None:
                transaction.delete(self._paths.subtask(subtask))
            elif version == ABSENT:
                transaction.create(self._paths.subtask(subtask), data)
            else:
                transaction.set_data(self._paths.subtask(subtask), data, version)
        self._open.update(changes)  # until there is an answer
        error, failed = commit(transaction, deadline)
        for subtask, data in changes.items():
            del self._open[subtask]
            if error is None and data is None:
                del self._known[subtask]
            elif error is None:
                self._known[subtask] = self._known.get(subtask, ABSENT) + 1
        if error is None:
            return
        if failed == 0:
            raise CoordinatorElsewhere(f"another driver has taken over {self._paths.base}")
        subtask, data = list(changes.items())[failed - 1]
        if data is None and isinstance(error, NoNodeError):
            del self._known[subtask]  # it was removed by hand
            self._commit(wanted, epoch, deadline)
            return
        what = f"the chain of {subtask}"
        if isinstance(error, (BadVersionError, NodeExistsError, NoNodeError)):
            raise StaleRecord(f"{what} was changed by another: {type(error).__name__}")
        raise RegistryUnavailable(f"{what} cannot be written: {type(error).__name__} {error}")

    def _settle(self, wanted: Mapping[str, bytes], deadline: float) -> bool:
        """Find out what became of open writes: True when that of ``wanted`` was done. Raises ``StaleRecord``."""
        kazoo = self._client.kazoo
        result(kazoo.sync_async(self._paths.subtasks), deadline)  # what a broken connection has sent is behind us then
        found = self._read_these(list(self._open), deadline)
        done = all(self._open.get(subtask) == data for subtask, data in wanted.items())
        for subtask, data in self._open.items():
            known = self._known.get(subtask, ABSENT)
            version, content = found[subtask]
            if data is None and version == ABSENT:
                self._known.pop(subtask, None)
            elif version == known + 1 and content == data:
                self._known[subtask] = version
            elif data is None or version == known:
                done = False
            else:
                raise StaleRecord(f"the chain of {subtask} was changed by another")
        self._open.clear()
        return done

    def _read_these(self, subtasks: Sequence[str], deadline: float) -> dict[str, Found]:
        answers = [self._client.kazoo.get_async(self._paths.subtask(subtask)) for subtask in subtasks]
        found: dict[str, Found] = {}
        for subtask, answer in zip(subtasks, answers, strict=True):
            try:
                data, stat = result(answer, deadline)
                found[subtask] = (stat.version, data)
            except NoNodeError:
                found[subtask] = (ABSENT, b"")
        return found

    def _read_all(self, deadline: float) -> dict[str, Found]:
        kazoo = self._client.kazoo
        result(kazoo.sync_async(self._paths.subtasks), deadline)
        steps = result(kazoo.get_children_async(self._paths.subtasks), deadline)
        found = self._read_these(sorted(unquote(step) for step in steps), deadline)
        return {subtask: entry for subtask, entry in found.items() if entry[0] != ABSENT}

    def _retried(self, what: str, deadline: float, action: Callable[[], T]) -> T:
        """The result of ``action``, which is tried again as long as its outcome is open."""
        while True:
            self._client.await_connected(deadline, what)
            try:
                return action()
            except UNCERTAIN as error:
                left = deadline - time.monotonic()
                if left <= 0 or self._client.closing.is_set():
                    raise RegistryUnavailable(f"{what}: {type(error).__name__}") from error
                # kazoo reports a broken connection a moment after the request's error
                self._client.closing.wait(min(0.02, left))
