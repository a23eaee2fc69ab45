"""A real ZooKeeper server for one job, from the jars that PySpark ships.

Rules: the system chooses the port and the server binds it itself. The server has a process group of its own (a Ctrl-C
in the terminal is not for it) and dies with this process, however that ends: a shell beside it waits for the end of a
pipe that only this process holds open. Its data must survive the server, not the machine, so nothing is forced to disk.
A stop is a kill: what was committed is in the files by then.

The port: ZooKeeper takes ``clientPort=0`` for "not set", but a ``server.N`` line may ask for client port 0, and with
one server in it and ``standaloneEnabled`` that is all the line does. The port is then read from the process. With TLS
there is no such way: a port that the system has chosen is kept for the server until it binds it. So is the port of the
last start at a restart; if another process has taken that one, the server gets another port.
"""

from __future__ import annotations

import errno
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chain_backup.zookeeper.errors import ZooKeeperStartError
from chain_backup.zookeeper.jars import JARS, JARS_OF_TLS, class_path, find_jars, find_java, native_tls
from flinkplus.printable import printable

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
HEAP_MB = 64
HEAP_MB_FOR_CONNECTION = 1.5
REQUEST_BYTES = 0x2FFFF
LARGEST_REQUEST_BYTES = 0xFFFFF  # ZooKeeper's own limit
CONNECTIONS_BESIDE = 16  # of the supervisor's questions, and for connections that are gone and not known to be
MAX_SESSION_TIMEOUT_MS = 60_000
TICK_MS = 100  # sessions may be two ticks long or longer
NICENESS = -10  # if we may: every failover waits for its answer, which is little work but many switches of threads
START_TIMEOUT_S = 30.0
SERVES_TIMEOUT_S = 2.0
POLL_S = 0.01
RESTART_TRIES = 4  # another process may take the port between our bind and the server's
LOG_LINES = 15
LOG_LINE_CHARACTERS = 500
LOG_BYTES = 65_536  # of its end: a log may have become long
LOG_FOLLOWS = "; its log ends with:"

JVM_OPTIONS: tuple[str, ...] = (
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
JVM_OPTIONS_OF_TLS = (  # without these, Netty looks for a network card and a pool at its start
    "-Dio.netty.machineId=02:00:00:00:00:00",
    "-Dio.netty.processId=1",
    "-Dio.netty.leakDetection.level=disabled",
    "-Dio.netty.allocator.type=unpooled",
    "-Dio.netty.eventLoopThreads=1",
)

WITHOUT_NATIVE_TLS = ("-Dio.netty.handler.ssl.noOpenSsl=true",)
NO_CHANNEL = "Failed to initialize a channel"  # Netty, when its native library cannot be used

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
ssl.authProvider=x509
"""  # the last line: else every connection has the server read key and certificates again
BY_NATIVE_TLS = "ssl.sslProvider=OPENSSL\n"

LOGGING = """\
status = off
appender.log.type = Console
appender.log.name = log
appender.log.target = SYSTEM_ERR
appender.log.layout.type = PatternLayout
appender.log.layout.pattern = %d %-5p %c{1}: %m%n%throwable{4}
logger.config.name = org.apache.zookeeper.server.quorum.QuorumPeerConfig
logger.config.level = off
logger.connections.name = org.apache.zookeeper.server.NettyServerCnxnFactory
logger.connections.level = off
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
    """PEM, the key in PKCS #8: both ends of a connection show a certificate of ``authority``. ``client``: for
    connections to the server."""

    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client: ssl.SSLContext = field(repr=False)


class _NativeTlsUnusable(ZooKeeperStartError):
    """The native TLS library is there, but does not load on this machine."""


@dataclass(eq=False, repr=False)
class EmbeddedZooKeeper:
    """One server. ``start`` blocks until it serves; ``stop`` ends it and, unless ``directory`` was given, its data.

    ``jars``: where ZooKeeper's jars are (default: Spark's). ``directory``: an own directory for its data (default: a
    temporary one). ``bind``: an IPv4 address of this machine that the slots can reach.
    ``tls``: without it, any process that reaches the server can take all connections, end any session, and write where
    no access list forbids it (option ``zookeeper_acl``).
    ``clients``: how many there will be; there is memory for twice as many, and none for strangers.
    ``request_bytes``: maximum size of a request. The server takes that memory when a request is announced, and while it
    is busy it accepts more connections than it should: so a small limit is what keeps strangers from taking all of it.
    """

    jars: Path | None = None
    directory: Path | None = None
    java: str | None = None
    bind: str = "127.0.0.1"
    tls: Tls | None = None
    clients: int = 64
    request_bytes: int = REQUEST_BYTES

    def __post_init__(self) -> None:
        self._native_tls = self.tls is not None
        self._connections = 2 * self.clients + CONNECTIONS_BESIDE
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
        return f"{self.bind}:{self._port}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def processor_s(self) -> float:
        """Processor time that the server's process has taken; 0 when it does not run."""
        try:
            return 0.0 if self._process is None else sum(psutil.Process(self._process.pid).cpu_times()[:2])
        except psutil.Error:
            return 0.0

    @property
    def end(self) -> str | None:
        """How the server's process ended, with the last lines of its log; None when it runs, or was stopped."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        return self._last_words(f"was killed by signal {-status}" if status < 0 else f"ended with status {status}")

    def start(self) -> str:
        """Start, on the port of the last start if that is free: ``address:port``. Raises ``ZooKeeperStartError``."""
        if self._process is not None:
            raise ZooKeeperStartError("the embedded ZooKeeper has been started already")
        try:
            ipaddress.IPv4Address(self.bind)
        except ValueError as error:
            raise ZooKeeperStartError(f"the embedded ZooKeeper binds an IPv4 address, not {self.bind!r}") from error
        names = JARS if self.tls is None else JARS + JARS_OF_TLS
        found = self.jars if self.jars is not None else find_jars()
        java, jars = find_java(self.java), class_path(found, names)
        native = native_tls(found) if self._native_tls else []
        first = not self._port
        try:
            with nullcontext(0) if self.tls is None and first else _kept_port(self.bind, self._port) as port:
                try:
                    self._serve(java, jars, port, native)
                except _NativeTlsUnusable:
                    self.kill()
                    self._native_tls = False
                    self._serve(java, jars, port, [])
        except BaseException as error:
            self.kill()
            if first:  # else this was a restart, whose data may yet be wanted
                self._port = 0
                self._remove()
            if isinstance(error, OSError):
                raise ZooKeeperStartError(f"the embedded ZooKeeper cannot be started: {error}") from error
            raise
        return self.hosts

    def stop(self) -> None:
        """End the server; nothing of it is left. Another ``start`` asks for the same port."""
        self.kill()
        self._remove()

    def kill(self) -> None:
        """End the server and keep its data, as a crash would."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the server and the shell beside it
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def restart(self) -> str:
        """End the server if it runs, and start it with its data, on its port or, if that is taken, on another. Returns
        ``address:port``. Raises ``ZooKeeperStartError``."""
        self.kill()
        for _ in range(RESTART_TRIES - 1):
            try:
                return self.start()
            except ZooKeeperStartError as error:
                if "Address already in use" not in str(error):
                    raise
        return self.start()

    def responds(self, timeout_s: float) -> bool:
        """Whether the server reacts to a question within ``timeout_s``, be it by closing the connection: it may have
        too many. ``need_no_more`` ends the wait."""
        try:
            with self._asked(self._port, timeout_s) as connection:
                connection.recv(1)
                return True
        except (TimeoutError, ConnectionRefusedError):
            return False
        except OSError:
            return True

    def _serves(self, port: int) -> bool:
        """Whether the server answers that it serves: before that it accepts connections, and refuses requests."""
        try:
            with self._asked(port, SERVES_TIMEOUT_S) as connection:
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
                return b"Mode: standalone" in answer
        except OSError:
            return False

    @contextmanager
    def _asked(self, port: int, timeout_s: float) -> Iterator[socket.socket]:
        """A connection to the server with a request for its status. Raises ``OSError``, also after ``need_no_more``."""
        until_s = time.monotonic() + timeout_s
        with ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((self.bind, port), timeout_s))
            self._asking = connection
            opened.callback(setattr, self, "_asking", None)
            if self._needed_no_more.is_set():
                raise ConnectionRefusedError("the server is not needed any more")
            if self.tls is not None:
                connection.settimeout(max(POLL_S, until_s - time.monotonic()))
                connection = opened.enter_context(self.tls.client.wrap_socket(connection))
            connection.settimeout(max(POLL_S, until_s - time.monotonic()))
            connection.sendall(b"srvr")
            yield connection

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

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _serve(self, java: str, jars: str, port: int, native: list[Path]) -> None:
        self._process = self._launch(java, jars, port, native)
        self._port = self._await_serving(self._process)

    def _launch(self, java: str, jars: str, port: int, native: list[Path]) -> subprocess.Popen[bytes]:
        if self._directory is None:
            self._directory = self.directory or Path(tempfile.mkdtemp(prefix="flinkplus-zookeeper-"))
        self._write_configuration(self._directory, port, bool(native))
        heap_mb = HEAP_MB + int(self._connections * HEAP_MB_FOR_CONNECTION)
        options = JVM_OPTIONS if self.tls is None else JVM_OPTIONS + JVM_OPTIONS_OF_TLS
        options += (f"-Djute.maxbuffer={min(self.request_bytes, LARGEST_REQUEST_BYTES)}",)
        options += (f"-Dio.netty.native.workdir={self._directory}",) if native else WITHOUT_NATIVE_TLS
        command = [java, *options, f"-Xmx{heap_mb}m", "-cp", os.pathsep.join([jars, *map(str, native)])]
        command += [f"-Dlog4j2.configurationFile={(self._directory / 'log4j2.properties').as_uri()}"]
        command += [MAIN_CLASS, str(self._directory / "zoo.cfg")]
        remove = "" if self.directory is not None else str(self._directory)
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

    def _write_configuration(self, directory: Path, port: int, native_tls: bool) -> None:
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text("1\n")
        (directory / "log4j2.properties").write_text(LOGGING)
        listen = IN_CLEAR
        if self.tls is not None:
            listen = BY_TLS + (BY_NATIVE_TLS if native_tls else "")
            (directory / "authority.pem").write_bytes(self.tls.authority)
            with open(os.open(directory / "server.pem", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self.tls.key + b"\n" + self.tls.certificate)
        (directory / "zoo.cfg").write_text(
            (CONFIGURATION + listen).format(
                tick_ms=TICK_MS,
                data=data,
                directory=directory,
                max_session_timeout_ms=MAX_SESSION_TIMEOUT_MS,
                bind=self.bind,
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
                raise ZooKeeperStartError("the embedded ZooKeeper was closed while it started")
            if process.poll() is not None:
                raise ZooKeeperStartError(self._last_words(f"ended with status {process.returncode}"))
            if port is None:
                port = _listening(process.pid)
            elif self._serves(port):
                return port
            elif self._native_tls and any(NO_CHANNEL in line for line in self._log()):
                raise _NativeTlsUnusable(self._last_words("cannot use its native TLS library"))
            time.sleep(POLL_S)
        raise ZooKeeperStartError(self._last_words(f"did not serve within {START_TIMEOUT_S:.0f} s"))

    def _log(self) -> list[str]:
        assert self._directory is not None
        return _lines(self._directory / "server.log")

    def _last_words(self, what: str) -> str:
        lines = [printable(line, LOG_LINE_CHARACTERS) for line in self._log()[-LOG_LINES:]]
        return "\n  ".join([f"the embedded ZooKeeper {what}{LOG_FOLLOWS}", *(lines or ["(nothing)"])])

    def _remove(self) -> None:
        if self.directory is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _listening(pid: int) -> int | None:
    """The port that a process listens on; None as long as it does not."""
    try:
        process = psutil.Process(pid)
        connections = process.net_connections if hasattr(process, "net_connections") else process.connections
        return next((c.laddr.port for c in connections(kind="tcp") if c.status == psutil.CONN_LISTEN), None)
    except psutil.NoSuchProcess:
        return None


@contextmanager
def _kept_port(host: str, wanted: int) -> Iterator[int]:
    """``wanted``, or another port if that is 0 or taken: kept from all other processes that do not listen."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, wanted))
        except OSError as error:
            if not wanted or error.errno != errno.EADDRINUSE:
                raise
            sock.bind((host, 0))
        yield sock.getsockname()[1]


def _lines(path: Path) -> list[str]:
    """The last lines of a file of text; nothing when it is not there."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
