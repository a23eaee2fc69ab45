"""The cluster: the services of the compose file, on hosts that can be killed, paused and cut off.

Rules: however this process ends, no process, network or directory of the cluster outlives it for long: a block that is
left stops the cluster; hosts see the end of this process; a directory that it leaves behind, and a host that was paused
when it died, is removed by the next start of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from experiments.cluster.compose import Service, find_compose, read_compose
from experiments.cluster.host import Host, end_abandoned, note_process, noted_process
from experiments.cluster.network import ClusterError, Namespace, Network
from experiments.cluster.usage import add_up, directory_mb
from flinkplus.runtime.host.cleanup import remove_tree

PREFIX = "flinkplus-cluster-"
JOB, MASTER, WORKER, ZOOKEEPER = "job", "master", "worker-", "zk-"
TOOLS = ("ip", "nsenter", "unshare", "mount")
PASSED_ON = ("HOME", "LANG", "LC_ALL", "JAVA_HOME", "PYTHONPATH", "TZ", "FLINKPLUS_KEY_FILE")
REMOVE_TIMEOUT_S = 10.0
LOG_LINES = 15


def why_not() -> str | None:
    """Why no cluster of namespaces can be made here; ``None`` when it can."""
    if not sys.platform.startswith("linux"):
        return f"namespaces are a matter of Linux, not of {sys.platform}"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian, Ubuntu: apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "network namespaces are for root"
    try:
        Namespace().close()
    except ClusterError as error:
        return str(error)
    return None


class Cluster:
    """A context manager: the cluster runs inside the block.

    ``workers``: how many of the compose file's are started. ``settings``: variables of the compose file.
    """

    def __init__(
        self, workers: int | None = None, settings: Mapping[str, str] | None = None, compose: Path | None = None
    ) -> None:
        """Raises ``ConfigurationError`` for a compose file that cannot be used."""
        self._compose = compose or find_compose()
        services = read_compose(self._compose, settings or {})
        available = [name for name in services if name.startswith(WORKER)]
        if workers is not None and not 1 <= workers <= len(available):
            raise ClusterError(f"{workers} workers where {self._compose.name} has {len(available)}")
        self.workers = available[:workers]
        dropped = set(available) - set(self.workers)
        self._services: dict[str, Service] = {name: s for name, s in services.items() if name not in dropped}
        self._network: Network | None = None
        self.hosts: dict[str, Host] = {}
        self.directory = Path()

    # --- up and down

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every host and its service; they find each other by themselves. Raises ``ClusterError``."""
        reason = why_not()
        if reason is not None:
            raise ClusterError(f"no cluster of namespaces can be made here: {reason}")
        remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        note_process(self.directory, os.getpid())
        try:
            network = self._network = Network()
            spaces = {name: network.add(service.hostname) for name, service in self._services.items()}
            names = self.directory / "names"
            names.write_text(network.hosts_file())
            for name, service in self._services.items():
                self.hosts[name] = self._host(service, spaces[name], names)
            for name in self._services:
                self.boot(name)
        except BaseException:
            self.stop()
            raise

    def _host(self, service: Service, space: Namespace, names: Path) -> Host:
        directory = self.directory / "hosts" / service.name
        directory.mkdir(parents=True)
        volumes = [(self.volume(volume), target) for volume, target in service.volumes]
        scratch = directory / "tmp"
        environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        environment |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # As TMPDIR does for other programs: what a JVM unpacks goes with its host.
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
            **service.environment,
        }
        return Host(service.hostname, space, directory, names, volumes, environment)

    def volume(self, name: str) -> Path:
        """Where a volume is on the real machine."""
        path = self.directory / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """What the compose file gives the job's host."""
        return self._services[JOB].environment

    def shared(self, path: str) -> Path:
        """Where a file that the job's host has on a volume is on the real machine. Raises ``ClusterError``."""
        for volume, target in self._services[JOB].volumes:
            if path == target or path.startswith(f"{target}/"):
                return self.volume(volume) / path[len(target) :].lstrip("/")
        raise ClusterError(f"{path} is on no volume of the host {JOB}")

    def boot(self, name: str) -> None:
        """Start a host and its service."""
        host = self.hosts[name]
        host.boot()
        if name != JOB:  # it runs what is requested
            root = str(self._compose.parent)
            host.start(["sh", "-c", 'cd "$1"; shift; exec "$@"', "sh", root, *self._services[name].command])

    def stop(self) -> None:
        """End everything; nothing of it is left."""
        for host in self.hosts.values():
            host.kill()
        self.hosts.clear()
        if self._network is not None:
            self._network.close()
            self._network = None
        if self.directory.name.startswith(PREFIX):
            _remove(self.directory)

    # --- programs

    def job_command(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs ``command`` on the job's host, once master and ZooKeeper answer."""
        ready = self._compose.parent / "scripts" / "cluster" / "job.sh"
        return self.hosts[JOB].command(["sh", str(ready), *command], environment)

    # --- failures

    @property
    def network(self) -> Network:
        """The network of a cluster that runs. Raises ``ClusterError``."""
        if self._network is None:
            raise ClusterError("the cluster is not running")
        return self._network

    def kill(self, *names: str) -> None:
        """Hosts die: all their processes at once. Their connections break."""
        hosts = [self._host_named(name) for name in names]
        with ThreadPoolExecutor(len(hosts)) as pool:
            for end in [pool.submit(host.kill) for host in hosts]:
                end.result()

    def revive(self, name: str) -> None:
        """Undo all faults of a host: it is up and connected again, with an empty disk if it was down."""
        host = self._host_named(name)
        self.network.heal(name)
        if host.up:
            host.resume()
        else:
            host.wipe()
            self.boot(name)

    def pause(self, name: str) -> None:
        """A host hangs: its processes stand still, its connections stay."""
        self._host_named(name).pause()

    def resume(self, name: str) -> None:
        """A host that hung continues."""
        self._host_named(name).resume()

    def cut(self, name: str, peer: str | None = None) -> None:
        """A host and ``peer`` lose each other's packets; ``None``: those of all peers."""
        self._host_named(name)
        self.network.cut(name, peer)

    def usage(self, name: str) -> dict[str, float]:
        """MB of memory on a host by kind of process, and ``disk``: what slots have there (see ``usage``)."""
        host = self._host_named(name)
        disk = sum(directory_mb(path) for path in host.scratch.glob("flinkplus-*"))
        return {**add_up(host.processes()), "disk": round(disk, 2)}

    def lose(self, name: str, peer: str | None = None) -> None:
        """What a host sends to ``peer`` does not arrive any more, the other direction does; ``None``: to all peers."""
        self._host_named(name)
        self.network.lose(name, peer)

    def heal(self, name: str) -> None:
        """Everything arrives again that is from or to a host."""
        self._host_named(name)
        self.network.heal(name)

    def _host_named(self, name: str) -> Host:
        try:
            return self.hosts[name]
        except KeyError:
            raise ClusterError(f"there is no host {name!r}; there are {', '.join(self.hosts)}") from None

    def last_words(self) -> str:
        """The ends of the logs of all hosts, to tell why something did not work."""
        parts = []
        for name, host in self.hosts.items():
            with contextlib.suppress(OSError):
                lines = host.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                parts.append("\n  ".join([f"{name}:", *lines]))
        return "\n".join(parts)


def remove_leftovers() -> None:
    """Remove what harnesses that are dead have left."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if noted_process(directory) is None and _is_old(directory):
            _remove(directory)


def _is_old(directory: Path) -> bool:
    """Whether its harness has had the time to write down who it is."""
    try:
        return time.time() - directory.stat().st_mtime > 1.0
    except OSError:
        return False


def _remove(directory: Path) -> None:
    """Remove the directory of a cluster, and the hosts that it names."""
    for host in (directory / "hosts").glob("*"):
        end_abandoned(host)
    remove_tree(directory, REMOVE_TIMEOUT_S)  # a process that just died may have made a file
