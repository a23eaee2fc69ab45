"""Clusters of Kafka for tests: a broker of their own, one that runs already, and an imitation.

With ``KAFKA_SERVERS`` in the environment tests use that cluster (``make kafka-check``), except for those that kill a
broker.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from experiments.harness.kafka_server import CALLS_S, VERSION, KafkaMissing, KafkaServer, Producing, Silent, until

__all__ = [
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
    """librdkafka's own imitation of a cluster, in this process: new formats of records, nothing on disk."""

    config: Mapping[str, Any] = {}

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._holder = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "replaced"})
        (broker,) = self._holder.list_topics(timeout=CALLS_S).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"

    def close(self) -> None:
        self._holder.flush(0)


def new_topic(prefix: str = "topic") -> str:
    """A name that no test has had."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"
