"""A real ZooKeeper server for one job, from the jars that PySpark ships.

Rules: the system chooses the port and the server binds it itself; nothing probes for a free one. The server has a
process group of its own (a Ctrl-C in the terminal is not for it) and dies with this process, however that ends: a
shell beside it waits for the end of a pipe that only we hold open. Its data must survive the server, not the machine,
so nothing is forced to disk. A stop is a kill: what was committed is in the files by then.

The port: ZooKeeper takes ``clientPort=0`` for "not set", but a ``server.N`` line may ask for client port 0, and with
one server in it and ``standaloneEnabled`` that is all the line does. Which port it became is read from the process.
With TLS there is no such way: a port that the system has chosen is kept for the server until it binds it.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from chain_backup.zookeeper.errors import ZooKeeperStartError
from flinkplus.errors import ConfigurationError

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JARS = ("zookeeper", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "metrics-core", "snappy-java")
JARS_OF_TLS = ("netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport")
HEAP_MB = 64
HEAP_MB_FOR_CONNECTION = 1.5  # a request may announce a megabyte, and memory is taken before it comes
CONNECTIONS_OF_STRANGERS = 128
MAX_SESSION_TIMEOUT_MS = 60_000
NICENESS = -10  # if we may: every failover waits for its answer, which is little work but many switches of threads
START_TIMEOUT_S = 30.0
POLL_S = 0.01
RESTART_TRIES = 4  # its port may be taken for a moment, by an outgoing connection that the system gave that number
LOG_LINES = 15
LOG_FOLLOWS = "; its log ends with:"

JVM_OPTIONS = (
    f"-Xms{HEAP_MB}m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disable.jmx=true",
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.nio.numWorkerThreads=0",
)

CONFIGURATION = """\
tickTime={tick_ms}
initLimit=10
syncLimit=5
dataDir={data}
maxClientCnxns=0
maxCnxns={connections}
maxSessionTimeout={max_session_timeout_ms}
admin.enableServer=false
4lw.commands.whitelist=srvr
forceSync=no
preAllocSize=256
standaloneEnabled=true
"""
IN_CLEAR = "server.1={bind}:1:2:participant;{bind}:{port}\n"
BY_TLS = """\
secureClientPortAddress={bind}
secureClientPort={port}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={directory}/server.pem
ssl.trustStore.location={directory}/authority.pem
ssl.protocol=TLSv1.3
ssl.enabledProtocols=TLSv1.3
ssl.clientAuth=need
ssl.hostnameVerification=false
ssl.clientHostnameVerification=false
"""

LOGGING = """\
status = off
appender.log.type = Console
appender.log.name = log
appender.log.target = SYSTEM_ERR
appender.log.layout.type = PatternLayout
appender.log.layout.pattern = %d %-5p %c{1}: %m%n%throwable{4}
logger.config.name = org.apache.zookeeper.server.quorum.QuorumPeerConfig
logger.config.level = off
rootLogger.level = warn
rootLogger.appenderRef.log.ref = log
"""

# $1: what to remove when we are gone, or nothing. The server takes over the shell's process, so $$ is the server.
SCRIPT = """\
remove=$1; shift; exec 3<&0 </dev/null
(read -r _ <&3; kill -9 $$; [ -n "$remove" ] && rm -rf -- "$remove") >/dev/null 2>&1 &
exec 3<&- "$@"
"""


@dataclass(frozen=True)
class Tls:
    """Those who may connect, and be connected to, show a certificate of ``authority``. PEM, the key in PKCS #8;
    ``client``: for connections to the server.
    """

    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client: ssl.SSLContext = field(repr=False)


class EmbeddedZooKeeper:
    """One server. ``start`` blocks until it serves; ``stop`` ends it and, unless ``directory`` was given, its data.

    ``jars``: where ZooKeeper's jars are (default: Spark's). ``directory``: an own directory for its data (default: a
    temporary one). ``tick_ms``: sessions may be two ticks long or longer. ``bind``: an IPv4 address of this machine
    that the slots can reach; whoever reaches it can write where no access list forbids it (option ``zookeeper_acl``),
    unless there is ``tls``. ``clients``: how many there will be; of strangers so many are let in beside them that they
    cannot take all of its memory.
    """

    def __init__(
        self,
        jars: Path | None = None,
        directory: Path | None = None,
        java: str | None = None,
        tick_ms: int = 100,
        bind: str = "127.0.0.1",
        tls: Tls | None = None,
        clients: int = 64,
    ) -> None:
        if tick_ms <= 0:
            raise ConfigurationError(f"ZooKeeper's tick must take 1 ms or more, not {tick_ms}")
        self._jars = jars
        self._given = directory
        self._java = java
        self._tick_ms = tick_ms
        self._bind = bind
        self._tls = tls
        self._connections = 2 * clients + CONNECTIONS_OF_STRANGERS
        self._directory: Path | None = None
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._needed_no_more = threading.Event()
        self._asking: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The server's process; None when it is stopped."""
        return None if self._process is None else self._process.pid

    @property
    def hosts(self) -> str:
        """``address:port``. Raises ``ZooKeeperStartError`` before the first start."""
        if not self._port:
            raise ZooKeeperStartError("the embedded ZooKeeper was never started")
        return f"{self._bind}:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def end(self) -> str | None:
        """How the server's process ended, with the last lines of its log; None when it runs, or was told to end."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        return self._last_words(f"was killed by signal {-status}" if status < 0 else f"ended with status {status}")

    def start(self) -> str:
        """Start, on the port of the last start if there was one: ``address:port``. Raises ``ZooKeeperStartError``."""
        if self._process is not None:
            raise ZooKeeperStartError("the embedded ZooKeeper has been started already")
        if not isinstance(_address(self._bind), ipaddress.IPv4Address):
            raise ZooKeeperStartError(f"the embedded ZooKeeper binds an IPv4 address, not {self._bind!r}")
        names = JARS if self._tls is None else JARS + JARS_OF_TLS
        java, jars = _java(self._java), _class_path(self._jars if self._jars is not None else find_jars(), names)
        first = not self._port
        try:
            with nullcontext(self._port) if self._tls is None or self._port else _kept_port(self._bind) as port:
                self._process = self._launch(java, jars, port)
                self._port = self._await_serving(self._process)
        except BaseException as error:
            self._kill()
            if first:  # else this was a restart, whose data may yet be wanted
                self._port = 0
                self._remove()
            if isinstance(error, OSError):
                raise ZooKeeperStartError(f"the embedded ZooKeeper cannot be started: {error}") from error
            raise
        return self.hosts

    def stop(self) -> None:
        """End the server; nothing of it is left. The port is kept for another ``start``."""
        self._kill()
        self._remove()

    def kill(self) -> None:
        """End the server and keep its data, as a crash would."""
        self._kill()

    def restart(self) -> str:
        """End the server if it runs, and start it with its data on its port."""
        self._kill()
        for _ in range(RESTART_TRIES - 1):
            try:
                return self.start()
            except ZooKeeperStartError as error:
                if "Address already in use" not in str(error):
                    raise
        return self.start()

    def responds(self, timeout_s: float) -> bool:
        """Whether the server reacts to a question within ``timeout_s``. That it closes the connection is a reaction: it
        may have too many. ``need_no_more`` ends the wait.
        """
        until_s = time.monotonic() + timeout_s
        try:
            with ExitStack() as opened:
                connection = opened.enter_context(socket.create_connection((self._bind, self._port), timeout_s))
                self._asking = connection
                if self._needed_no_more.is_set():
                    return False
                for act in (self._secured, _asked):
                    connection.settimeout(max(POLL_S, until_s - time.monotonic()))
                    connection = opened.enter_context(act(connection))
                return True
        except (TimeoutError, ConnectionRefusedError):
            return False
        except OSError:
            return True
        finally:
            self._asking = None

    def _secured(self, connection: socket.socket) -> socket.socket:
        return connection if self._tls is None else self._tls.client.wrap_socket(connection)

    def need_no_more(self) -> None:
        """Have a start that is under way in another thread, and every later one, end with ``ZooKeeperStartError``."""
        self._needed_no_more.set()
        asking = self._asking
        if asking is not None:
            with suppress(OSError):
                asking.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, java: str, jars: str, port: int) -> subprocess.Popen[bytes]:
        if self._directory is None:
            self._directory = self._given or Path(tempfile.mkdtemp(prefix="flinkplus-zookeeper-"))
        self._write_configuration(self._directory, port)
        heap_mb = HEAP_MB + int(self._connections * HEAP_MB_FOR_CONNECTION)
        command = [java, *JVM_OPTIONS, f"-Xmx{heap_mb}m", "-cp", jars]
        command += [f"-Dlog4j2.configurationFile={(self._directory / 'log4j2.properties').as_uri()}"]
        command += [MAIN_CLASS, str(self._directory / "zoo.cfg")]
        remove = "" if self._given is not None else str(self._directory)
        with open(self._directory / "server.log", "wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "sh", remove, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
            )
        with suppress(OSError):  # only root may
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        return process

    def _write_configuration(self, directory: Path, port: int) -> None:
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text("1\n")
        (directory / "log4j2.properties").write_text(LOGGING)
        listen = IN_CLEAR
        if self._tls is not None:
            listen = BY_TLS
            (directory / "authority.pem").write_bytes(self._tls.authority)
            with open(os.open(directory / "server.pem", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self._tls.key + b"\n" + self._tls.certificate)
        (directory / "zoo.cfg").write_text(
            (CONFIGURATION + listen).format(
                tick_ms=self._tick_ms,
                data=data,
                directory=directory,
                max_session_timeout_ms=MAX_SESSION_TIMEOUT_MS,
                bind=self._bind,
                port=port,
                connections=self._connections,
            )
        )

    def _await_serving(self, process: subprocess.Popen[bytes]) -> int:
        """The port, once the server answers on it."""
        deadline = time.monotonic() + START_TIMEOUT_S
        port: int | None = None
        while time.monotonic() < deadline:
            if self._needed_no_more.is_set():
                raise ZooKeeperStartError("the embedded ZooKeeper is needed no more")
            if process.poll() is not None:
                raise ZooKeeperStartError(self._last_words(f"ended with status {process.returncode}"))
            if port is None:
                port = _listening(process.pid)
            elif _serves(self._bind, port, None if self._tls is None else self._tls.client):
                return port
            time.sleep(POLL_S)
        raise ZooKeeperStartError(self._last_words(f"did not serve within {START_TIMEOUT_S:.0f} s"))

    def _last_words(self, what: str) -> str:
        assert self._directory is not None
        lines = _lines(self._directory / "server.log")[-LOG_LINES:]
        return "\n  ".join([f"the embedded ZooKeeper {what}{LOG_FOLLOWS}", *(lines or ["(nothing)"])])

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the server and the shell beside it
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _remove(self) -> None:
        if self._given is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def find_jars() -> Path:
    """The directory of Spark's jars, by ``SPARK_HOME`` or the PySpark package. Raises ``ZooKeeperStartError``."""
    places: list[Path] = []
    if os.environ.get("SPARK_HOME"):
        places.append(Path(os.environ["SPARK_HOME"]) / "jars")
    import pyspark

    places.append(Path(pyspark.__file__).parent / "jars")
    for place in places:
        if any(place.glob("zookeeper-*.jar")):
            return place
    raise ZooKeeperStartError(
        f"no ZooKeeper jars in {', '.join(map(str, places))}; name an ensemble instead (--zookeeper HOST:PORT,...)"
    )


def _class_path(jars: Path, names: Sequence[str]) -> str:
    found = {name: sorted(jars.glob(f"{name}-*.jar")) for name in names}
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        raise ZooKeeperStartError(f"{jars} lacks the jars of {', '.join(missing)}")
    return os.pathsep.join(str(path) for paths in found.values() for path in paths)


def _java(given: str | None) -> str:
    home = os.environ.get("JAVA_HOME")
    java = given or (str(Path(home) / "bin" / "java") if home else "java")
    path = shutil.which(java)
    if path is None:
        raise ZooKeeperStartError(f"the embedded ZooKeeper needs Java, but {java!r} is not to be found")
    return path


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _listening(pid: int) -> int | None:
    """The port that a process listens on; None as long as it does not."""
    try:
        process = psutil.Process(pid)
        connections = process.net_connections if hasattr(process, "net_connections") else process.connections
        return next((c.laddr.port for c in connections(kind="tcp") if c.status == psutil.CONN_LISTEN), None)
    except psutil.NoSuchProcess:
        return None


@contextmanager
def _kept_port(host: str) -> Iterator[int]:
    """A port that the system gives to nobody else meanwhile, but that a server may bind."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, 0))
        yield sock.getsockname()[1]


def _lines(path: Path) -> list[str]:
    """What is in a file of text; nothing when it is not there."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _asked(connection: socket.socket) -> socket.socket:
    """The connection, once something has come back on it for a question. Raises ``OSError``."""
    connection.sendall(b"srvr")
    connection.recv(1)
    return connection


def _serves(host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    """Whether the server answers that it serves; before that it accepts connections, but only to refuse requests."""
    try:
        with ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((host, port), timeout=1.0))
            if tls is not None:
                connection = opened.enter_context(tls.wrap_socket(connection))
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return b"Mode: standalone" in answer
    except OSError:
        return False
