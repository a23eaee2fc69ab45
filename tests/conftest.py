"""What holds for every test: a local environment for Spark, and nothing left running afterwards.

A test that leaves a non-daemon thread or a child process behind fails, by itself, at once. What was there before the
test (fixtures of a wider scope: a SparkSession, a ZooKeeper) is not its leak.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from chain_backup.zookeeper import embedded
from tests import java_classes, kafka_server
from tests.examples import examples
from tests.postgres_server import PostgresServer, binaries

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = java_classes.options()
embedded.JVM_OPTIONS += java_classes.options_of_zookeeper()

# Each test process has temporary files of its own: tests that look for all jobs on this machine see no others.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # ``tmp_path`` stays where pytest has it
TEMPORARY = tempfile.mkdtemp(prefix="tests-of-flinkplus-")
os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY

# Checkpoints of tests are signed with a key of the tests, and not with that of whoever runs them.
KEY_FILE = os.path.join(TEMPORARY, "key")
with open(KEY_FILE, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as key_file:
    key_file.write(secrets.token_hex(32))
os.environ["FLINKPLUS_KEY_FILE"] = KEY_FILE


def pytest_unconfigure() -> None:
    shutil.rmtree(TEMPORARY, ignore_errors=True)


# Machines of very different speed run these tests: a slow example is not a wrong one.
hypothesis.settings.register_profile("flinkplus", deadline=None, print_blob=True, max_examples=examples(100))
hypothesis.settings.load_profile("flinkplus")


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """What a test makes of the level of the product's log ends with it."""
    log = logging.getLogger("flinkplus")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server of this test process, which runs when a test begins and when it ends."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: no initdb on the PATH or below /usr/lib/postgresql")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")
    server = PostgresServer(Path(os.environ["PYTEST_DEBUG_TEMPROOT"]))
    yield server
    server.close()


@pytest.fixture
def empty_postgres(postgres: PostgresServer) -> Iterator[None]:
    """What a test makes in the schema ``public`` goes with it."""
    yield
    postgres.execute("DROP SCHEMA public CASCADE")
    postgres.execute("CREATE SCHEMA public")


@pytest.fixture(scope="session")
def kafka() -> Iterator[kafka_server.Cluster]:
    """A broker of this test process, or the cluster that ``KAFKA_SERVERS`` names."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'")
    if kafka_server.SERVERS in os.environ:
        yield kafka_server.GivenCluster()
        return
    try:
        server = kafka_server.KafkaServer(Path(os.environ["PYTEST_DEBUG_TEMPROOT"]))
    except kafka_server.KafkaMissing as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture
def own_kafka(kafka: kafka_server.Cluster) -> kafka_server.KafkaServer:
    """A broker that a test may kill."""
    if not isinstance(kafka, kafka_server.KafkaServer):
        pytest.skip("the cluster is not one of the tests' own, which may be killed")
    return kafka


@pytest.fixture
def new_kafka(kafka: kafka_server.Cluster) -> kafka_server.Cluster:
    """A cluster with transactions and timestamps."""
    if isinstance(kafka, kafka_server.KafkaServer):
        pytest.skip(f"Kafka {kafka_server.VERSION} has neither transactions nor timestamps: make kafka-check")
    return kafka


GRACE_S = 30.0
"""How long what a test has told to stop may take to be gone."""


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _children() -> set[psutil.Process]:
    """Direct child processes, without the helper that multiprocessing keeps for the life of this process."""
    children = set()
    for child in psutil.Process().children():
        try:
            command_line = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "multiprocessing.resource_tracker" not in command_line and child.status() != psutil.STATUS_ZOMBIE:
            children.add(child)
    return children


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    threads_before, children_before = _threads(), _children()
    yield
    deadline = time.monotonic() + GRACE_S
    while True:
        threads, children = _threads() - threads_before, _children() - children_before
        if not threads and not children:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for child in children:
        child.kill()
    names = sorted(thread.name for thread in threads)
    commands = sorted(f"{child.pid} {child.name()}" for child in children if child.is_running())
    pytest.fail(f"left running by this test: threads {names}, child processes {commands}")
