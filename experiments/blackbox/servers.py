"""The servers of all rounds: PostgreSQL, and Kafka where its jars are given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.blackbox.faults import BROKER, OF_SERVERS
from experiments.blackbox.pipelines import Pipeline
from experiments.harness.kafka_server import KafkaServer, check_kafka
from experiments.harness.postgres_server import PostgresServer, check_postgres
from flinkplus.errors import ConfigurationError

POSTGRES_SETTINGS = {"fsync": "off", "max_connections": "60"}
"""What a process has written outlives SIGKILL; no host dies here."""


@dataclass(frozen=True)
class Servers:
    """Those that are there."""

    postgres: PostgresServer | None = None
    kafka: KafkaServer | None = None

    def of(self, pipeline: Pipeline) -> Servers:
        """Those that it needs."""
        return Servers(
            self.postgres if pipeline.needs(*OF_SERVERS) else None, self.kafka if pipeline.needs(BROKER) else None
        )


def check_servers(pipelines: Sequence[Pipeline], kafka_jars: Path | None) -> None:
    """Raises ``ConfigurationError`` where a server that is needed cannot be started."""
    if any(pipeline.needs(*OF_SERVERS) for pipeline in pipelines):
        check_postgres()
    for pipeline in pipelines:
        if pipeline.needs(BROKER):
            if kafka_jars is None:
                raise ConfigurationError(f"{pipeline.name} needs --kafka-jars DIR, with which a broker is started")
            check_kafka(kafka_jars)


@contextlib.contextmanager
def started(pipelines: Sequence[Pipeline], kafka_jars: Path | None) -> Iterator[Servers]:
    """The servers that these need."""
    with contextlib.ExitStack() as stack:
        postgres, kafka = None, None
        if any(pipeline.needs(*OF_SERVERS) for pipeline in pipelines):
            postgres = PostgresServer(None, POSTGRES_SETTINGS, sync_files=False)
            stack.callback(postgres.close)
        if any(pipeline.needs(BROKER) for pipeline in pipelines):
            kafka = KafkaServer(None, kafka_jars)
            stack.callback(kafka.close)
        yield Servers(postgres, kafka)
