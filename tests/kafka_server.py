"""Clusters of Kafka for tests: a broker of their own, one that runs already, and an imitation.

With ``KAFKA_SERVERS`` in the environment tests use that cluster (``make kafka-check``), except for those that kill a
broker.
"""

from __future__ import annotations

import ctypes
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from experiments.harness.kafka_server import CALLS_S, VERSION, KafkaMissing, KafkaServer, Producing, Silent, until

__all__ = [
    "CALLS_S",
    "SERVERS",
    "VERSION",
    "Cluster",
    "GivenCluster",
    "KafkaMissing",
    "KafkaServer",
    "MockCluster",
    "Producing",
    "Reachable",
    "Silent",
    "new_topic",
]

SERVERS = "KAFKA_SERVERS"


class Reachable(Protocol):
    """Brokers. ``config``: of their clients."""

    @property
    def servers(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


class Cluster(Reachable, Protocol):
    """What tests do with a cluster."""

    def create(self, topic: str, partitions: int = 1, **config: str) -> None: ...

    def add_partitions(self, topic: str, partitions: int) -> None: ...

    def delete(self, topic: str) -> None: ...


class GivenCluster:
    """A cluster that runs already, at ``KAFKA_SERVERS``."""

    config: Mapping[str, Any] = {}

    def __init__(self) -> None:
        from confluent_kafka.admin import AdminClient

        self.servers = os.environ[SERVERS]
        self._admin = AdminClient({"bootstrap.servers": self.servers})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka.cimpl import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        self._done(self._admin.create_topics([NewTopic(topic, partitions, config=settings)]))
        until(lambda: len(self._admin.list_topics(topic).topics[topic].partitions) == partitions, topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        self._done(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def delete(self, topic: str) -> None:
        self._done(self._admin.delete_topics([topic]))

    @staticmethod
    def _done(futures: Mapping[str, Any]) -> None:
        for future in futures.values():
            future.result(CALLS_S)


class MockCluster:
    """librdkafka's own imitation of a cluster, in this process: new formats of records, nothing on disk.

    Of transactions it knows the requests, and no more: it ends no other producer's, and shows what was aborted. So it
    tests what a client asks for and what an error means.
    """

    config: Mapping[str, Any] = {}

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._holder = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "replaced"}, logger=Silent())
        (broker,) = self._holder.list_topics(timeout=CALLS_S).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"
        self._broker = broker.id

    def fail(self, request: int, *codes: int) -> None:
        """Answer the next requests of the kind ``request``, a number of Kafka's protocol, with these errors."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._mock("push_request_errors_array", ctypes.c_int16(request), ctypes.c_size_t(len(codes)), errors)

    def delay(self, millis: int) -> None:
        """Answer every request that much later."""
        self._mock("broker_set_rtt", ctypes.c_int32(self._broker), ctypes.c_int(millis))

    def is_up(self, is_up: bool) -> None:
        """Whether the broker takes connections."""
        self._mock("broker_set_up" if is_up else "broker_set_down", ctypes.c_int32(self._broker))

    def _mock(self, function: str, *arguments: Any) -> None:
        """Call librdkafka itself: its client for Python has no names for this."""
        import confluent_kafka

        folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        (path,) = folder.glob("librdkafka*")
        library = ctypes.CDLL(str(path))
        library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        handle = ctypes.c_void_p.from_address(id(self._holder) + object.__basicsize__)
        cluster = ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle))
        getattr(library, f"rd_kafka_mock_{function}")(cluster, *arguments)

    def close(self) -> None:
        self._holder.flush(0)


def touch(cluster: Reachable, topic: str) -> str:
    """``topic``, which an imitated cluster makes when a producer asks for it."""
    Producing(cluster.servers, cluster.config).touch(topic)
    return topic


def records_of(cluster: Reachable, topic: str) -> list[Any]:
    """The committed records of a topic, as messages, those of each partition in order."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": cluster.servers, "group.id": new_topic("reader"), "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", **cluster.config}, logger=Silent())
    try:
        numbers = sorted(consumer.list_topics(topic, timeout=CALLS_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found, left = [], set(numbers)
        deadline = time.monotonic() + CALLS_S
        while left:
            assert time.monotonic() < deadline, f"no end of {topic}, partitions {left}"
            for message in [*consumer.consume(1, 0.1), *consumer.consume(1_000, 0)]:
                if message.error() is None:
                    found.append(message)
                else:
                    left.discard(message.partition())
        return found
    finally:
        consumer.close()


def new_topic(prefix: str = "topic") -> str:
    """A name that no test has had."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"
