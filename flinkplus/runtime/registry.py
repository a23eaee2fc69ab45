"""The job's place in ZooKeeper: an embedded server unless there is an ensemble, the election, the chains' records.

Rules: starting is done by a thread of its own while Spark starts the slots' job; whoever needs the result waits for it.
``close`` gives everything back whatever was reached. Nothing of ZooKeeper is loaded by a job that does not use it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chain_backup.effects import ChainRecordLike
from flinkplus.config import Options
from flinkplus.runtime.tls import Certificates, context

if TYPE_CHECKING:
    from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
    from chain_backup.zookeeper.records import RegistryEvent
    from chain_backup.zookeeper.registry import Registry

ELECTION_TIMEOUT_S = 30.0
START_TIMEOUT_S = 60.0
URGENT_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 5.0  # for what no failover waits for: it must not keep one waiting behind it
REHEARSED_WRITES = 250  # what the server's Java has run so often is compiled
REHEARSAL_TIMEOUT_S = 5.0
log = logging.getLogger("flinkplus.coordinator")


class RecordWriter(Protocol):
    """Where the records of chains go."""

    def write(self, records: Sequence[ChainRecordLike], urgent: bool) -> None:
        """Write all of them, or none and raise."""


class JobRegistry:
    """One job in ZooKeeper.

    ``application``: the job's name there. ``bind`` and ``reach``: where an embedded server listens, and the host that
    slots know that by. ``deliver`` gets the registry's events, in other threads; ``give_up`` the reason why there is
    none. ``auth``: see ``Registry``. ``certificates``: by which an embedded server and its clients know each other.
    """

    def __init__(
        self,
        options: Options,
        application: str,
        directory: Path,
        bind: str,
        reach: str,
        deliver: Callable[[RegistryEvent], None],
        give_up: Callable[[str], None],
        auth: str | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._options = options
        self._application = application
        self._directory = directory
        self._bind = bind
        self._reach = reach
        self._deliver = deliver
        self._give_up = give_up
        self._auth = auth
        self._certificates = None if options.zookeeper else certificates
        self._hosts: Future[str] = Future()
        self._elected: Future[Registry] = Future()
        self._server: EmbeddedZooKeeper | None = None
        self._registry: Registry | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._start, name="flinkplus-zookeeper", daemon=True)

    def begin(self) -> None:
        """Start in the background."""
        self._thread.start()

    def _start(self) -> None:
        try:
            hosts = self._options.zookeeper or self._start_server()
            self._hosts.set_result(hosts)
            registry = self._elect(hosts)
            self._elected.set_result(registry)
            if self._server is not None:
                registry.rehearse(REHEARSED_WRITES, REHEARSAL_TIMEOUT_S)
        except BaseException as error:
            for future in (self._hosts, self._elected):
                if not future.done():
                    future.set_exception(error)
            if not self._closing.is_set():
                self._give_up(f"no coordination through ZooKeeper: {type(error).__name__}: {error}")

    def _elect(self, hosts: str) -> Registry:
        from chain_backup.zookeeper.errors import RegistryUnavailable
        from chain_backup.zookeeper.registry import Registry

        with self._lock:
            if self._closing.is_set():
                raise RegistryUnavailable("the job is over")
            registry = self._registry = Registry(
                hosts,
                self._application,
                session_timeout_s=self._options.session_timeout,
                deliver=self._deliver,
                auth=self._auth,
                tls=None if self._certificates is None else context(self._certificates, False),
            )
        registry.elect(ELECTION_TIMEOUT_S)
        return registry

    def _start_server(self) -> str:
        from chain_backup.zookeeper.embedded import EmbeddedZooKeeper, Tls

        java = "java"
        if os.environ.get("JAVA_HOME"):
            java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
        bind = socket.getaddrinfo(self._bind, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        tls, certificates = None, self._certificates
        if certificates is not None:
            tls = Tls(certificates.authority, certificates.certificate, certificates.key, context(certificates, False))
        clients = self._options.parallelism + 1
        self._server = EmbeddedZooKeeper(directory=self._directory, java=java, bind=str(bind), tls=tls, clients=clients)
        return f"{self._reach}:{self._server.start().rpartition(':')[2]}"

    def hosts(self) -> str:
        """What slots connect to, once the server is there. Raises whatever starting it raised."""
        return self._hosts.result(START_TIMEOUT_S)

    def write(self, records: Sequence[ChainRecordLike], urgent: bool) -> None:
        """Write chain records; ``urgent``: a failover waits. Raises when nothing, or nobody knows what, was written."""
        from chain_backup.zookeeper.records import ChainRecord

        timeout_s = URGENT_TIMEOUT_S if urgent else IDLE_TIMEOUT_S
        found = [ChainRecord(str(r.subtask), r.generation, tuple(r.members), r.stable) for r in records]
        self._elected.result(timeout_s).write(found, timeout_s)

    def close(self) -> None:
        """Remove the job from ZooKeeper and end what was started; when this returns, nothing is left."""
        if self._thread.ident is None:
            return
        with self._lock:
            self._closing.set()
        if self._registry is not None:
            self._registry.close(clean=True)  # whoever waits for an answer is told
        self._thread.join(START_TIMEOUT_S)
        if self._server is not None:
            self._server.stop()
