"""The job in ZooKeeper: an embedded server unless the user has an ensemble, the election, and the chains' records.

Rules: a thread starts it while Spark starts the slots; calls that need the result wait for it. When a job is resumed in
an ensemble, another driver may still run it, so the election comes first (``elect_first``). An embedded server that
dies is restarted with its data; until then, calls fail at once. A job that begins with one slot has no other to fence:
its embedded server is started *late*, with the first chain that has a standby, and slots are sent its address then.
If that fails, the job runs on, and every failure rolls back. ``close`` releases everything, at any stage. A job without
ZooKeeper imports none of its modules.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chain_backup.failover.effects import ChainEntry
from flinkplus.config import MOST_SPARES, Options
from flinkplus.errors import JobRunsElsewhere, described
from flinkplus.runtime.transport.auth.tls import Certificates, context

if TYPE_CHECKING:
    from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
    from chain_backup.zookeeper.records import ChainRecord, RegistryEvent
    from chain_backup.zookeeper.registry import Registry
    from chain_backup.zookeeper.supervisor import Supervisor

ELECTION_TIMEOUT_S = 30.0
SUCCESSION_PATIENCE_S = 6.0  # beyond the session timeout of a dead driver
START_TIMEOUT_S = 60.0
URGENT_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 5.0  # for writes outside failovers: a failover may queue behind one
REHEARSED_WRITES = 250  # after so many calls the server's JVM has compiled the write path
REHEARSAL_TIMEOUT_S = 5.0
log = logging.getLogger("flinkplus.coordinator")

RECORD_BYTES = 250  # of one record in a request that writes several, beside its name, which may be quoted


class RecordWriter(Protocol):
    """Stores chain records; the part of ``JobRegistry`` that the coordinator uses."""

    moved: str | None
    """The current address of ZooKeeper, if it is not the one that slots were started with."""
    begun: bool
    """Whether the job uses ZooKeeper, or is about to."""

    def write(self, records: Sequence[ChainEntry], urgent: bool, whole: bool = False) -> None:
        """Write all records, or none and raise. ``whole``: the job has no others; they are removed."""


@dataclass(eq=False, repr=False)
class JobRegistry:
    """One job in ZooKeeper.

    ``application``: the job's name there, the same in every run.
    ``directory``, ``bind``, ``reach``: of an embedded server: its data, the host that it binds, its host for slots.
    ``deliver``: gets ZooKeeper's events.
    ``give_up``: ends the job, with a reason.
    ``auth``: see ``Registry``.
    ``certificates``: of an embedded server and its clients.
    ``vertices``: the names of the job's vertices, each of which has a record for each subtask.
    """

    _options: Options
    _application: str
    _directory: Path
    _bind: str
    _reach: str
    _deliver: Callable[[RegistryEvent], None]
    _give_up: Callable[[str], None]
    _auth: str | None = None
    _certificates: Certificates | None = None
    _vertices: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.moved: str | None = None
        options = self._options
        self.late = options.standbys and options.parallelism == 1 and options.zookeeper is None
        self.begun = not self.late
        self._unwritten: dict[str, ChainRecord] = {}
        self._unwritten_whole = False
        self._hosts: Future[str] = Future()
        self._elected: Future[Registry] = Future()
        self._server: EmbeddedZooKeeper | None = None
        self._supervisor: Supervisor | None = None
        self._down: str | None = None
        self._registry: Registry | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._start, name="flinkplus-zookeeper", daemon=True)

    def elect_first(self) -> None:
        """Become the coordinator of a job that another driver ran, or still runs. Raises ``JobRunsElsewhere`` if that
        driver is alive, ``RegistryUnavailable`` if ZooKeeper does not answer."""
        from chain_backup.zookeeper.errors import CoordinatorElsewhere

        assert self._options.zookeeper is not None
        self._hosts.set_result(self._options.zookeeper)
        try:
            patience_s = 2 * self._options.session_timeout + SUCCESSION_PATIENCE_S
            self._elected.set_result(self._elect(self._options.zookeeper, patience_s))
        except BaseException as error:
            self.close()
            if isinstance(error, CoordinatorElsewhere):
                raise JobRunsElsewhere(f"{error}, which is alive; end that driver first") from error
            raise

    def begin(self) -> None:
        """Start in the background, unless ``elect_first`` has done so, or it is to be late."""
        if self.begun and not self._elected.done():
            self._thread.start()

    def _begin_late(self) -> None:
        with self._lock:
            if self.begun or self._closing.is_set():
                return
            self.begun = True
            self._thread.start()

    def _start(self) -> None:
        try:
            hosts = self._options.zookeeper or self._start_server()
            if self.late:
                self._publish(hosts)
            self._hosts.set_result(hosts)
            registry = self._elect(hosts, ELECTION_TIMEOUT_S)
            self._elected.set_result(registry)
            if self._server is not None:
                registry.rehearse(REHEARSED_WRITES, REHEARSAL_TIMEOUT_S)
        except BaseException as error:
            for future in (self._hosts, self._elected):
                if not future.done():
                    future.set_exception(error)
            if self._closing.is_set():
                return
            if self.late:
                self._server_down(described(error))
            else:
                self._give_up(f"cannot coordinate through ZooKeeper: {described(error)}")

    def _publish(self, hosts: str) -> None:
        """Send the slots the address of a server that was started late."""
        from chain_backup.zookeeper.records import RegistryMoved

        with self._lock:
            self.moved = hosts
        self._deliver(RegistryMoved(hosts))

    def _elect(self, hosts: str, timeout_s: float) -> Registry:
        from chain_backup.zookeeper.errors import RegistryUnavailable
        from chain_backup.zookeeper.registry import Registry

        with self._lock:
            if self._closing.is_set():
                raise RegistryUnavailable("the job is over")
            registry = self._registry = Registry(
                self.moved or hosts,
                self._application,
                session_timeout_s=self._options.session_timeout,
                deliver=self._deliver,
                auth=self._auth,
                tls=None if self._certificates is None else context(self._certificates, False),
            )
            registry.client.expect_nothing(self._down)
        registry.elect(timeout_s)
        return registry

    def _start_server(self) -> str:
        from chain_backup.zookeeper.embedded import REQUEST_BYTES, EmbeddedZooKeeper, Tls
        from chain_backup.zookeeper.supervisor import Supervisor

        java = "java"
        if os.environ.get("JAVA_HOME"):
            java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
        bind = socket.getaddrinfo(self._bind, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        tls, certificates = None, self._certificates
        if certificates is not None:
            tls = Tls(certificates.authority, certificates.certificate, certificates.key, context(certificates, False))
        clients = self._options.parallelism + 1 + MOST_SPARES
        self._server = EmbeddedZooKeeper(
            directory=self._directory,
            java=java,
            bind=str(bind),
            tls=tls,
            clients=clients,
            request_bytes=REQUEST_BYTES + clients * sum(RECORD_BYTES + 3 * len(name) for name in self._vertices),
        )
        hosts = self._reached(self._server.start())
        self._supervisor = Supervisor(self._server, self._server_down, self._server_back)
        self._supervisor.start()
        return hosts

    def _reached(self, hosts: str) -> str:
        """The server's address for slots."""
        return f"{self._reach}:{hosts.rpartition(':')[2]}"

    def _server_down(self, reason: str) -> None:
        """The server could not be restarted at once."""
        from chain_backup.zookeeper.records import RegistryLost

        with self._lock:
            self._down = reason
            if self._registry is not None:
                self._registry.client.expect_nothing(reason)
        if self._elected.done():
            self._deliver(RegistryLost(reason))

    def _server_back(self) -> None:
        from chain_backup.zookeeper.records import RegistryMoved

        assert self._server is not None
        hosts = self._reached(self._server.hosts)
        with self._lock:
            moved = hosts != (self.moved or self._hosts.result(START_TIMEOUT_S))
            if moved:
                self.moved = hosts
            self._down = None
            registry = self._registry
        if moved:
            log.warning(
                "another process uses the port of the job's own ZooKeeper server; the server now listens at %s", hosts
            )
            if registry is not None:
                registry.client.move_to(hosts)
            self._deliver(RegistryMoved(hosts))
        if registry is not None:
            registry.client.expect_nothing(None)
            registry.rehearse(REHEARSED_WRITES, REHEARSAL_TIMEOUT_S)

    @property
    def server_restarts(self) -> int:
        """How often the embedded server was restarted."""
        return 0 if self._supervisor is None else self._supervisor.restarts

    def hosts(self) -> str:
        """The address for slots; waits for the server. Raises the error with which its start failed."""
        found = self._hosts.result(START_TIMEOUT_S)
        return self.moved or found

    def write(self, records: Sequence[ChainEntry], urgent: bool, whole: bool = False) -> None:
        """Write chain records. ``urgent``: a failover waits. ``whole``: the job has no others; they are removed. Raises
        unless it is certain that they were written."""
        from chain_backup.zookeeper.records import ChainRecord

        if not self.begun:
            if all(len(record.members) < 2 for record in records):
                return  # there is no other slot, which could take over
            self._begin_late()
        timeout_s = URGENT_TIMEOUT_S if urgent else IDLE_TIMEOUT_S
        found = {} if whole else {**self._unwritten}
        for record in records:
            name = str(record.subtask)
            found[name] = ChainRecord(name, record.generation, tuple(record.members), record.stable)
        whole |= self._unwritten_whole
        if not urgent:  # a late server is not there yet: the next write has these, too
            self._unwritten, self._unwritten_whole = found, whole
        elected = self._elected.result(timeout_s)
        self._unwritten, self._unwritten_whole = {}, False
        elected.write(list(found.values()), timeout_s, whole=whole)

    def close(self, clean: bool = True) -> None:
        """End the client, the threads and the embedded server. ``clean``: also remove the job from ZooKeeper."""
        with self._lock:
            self._closing.set()
        if self._registry is not None:
            self._registry.close(clean=clean)  # waiting calls end
        if self._server is not None:
            self._server.need_no_more()
        if self._thread.ident is not None:
            self._thread.join(START_TIMEOUT_S)
        if self._supervisor is not None:
            self._supervisor.close()
        if self._server is not None:
            self._server.stop()
