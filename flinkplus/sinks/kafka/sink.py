"""The descriptor of a topic that takes the rows of a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.protocol.program.description import LOCATION
from flinkplus.sinks.base import SinkCommitter
from flinkplus.sinks.file_writer import Encoder, StagedSink
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.kafka.at_once import TAG_BYTES, KafkaAtOnceSink
from flinkplus.sinks.kafka.client import KafkaTransactions
from flinkplus.sinks.kafka.cluster import OWN, PROGRESS_TOPIC, SCHEME
from flinkplus.sinks.kafka.committer import KafkaCommitter
from flinkplus.sinks.kafka.records import MAX_BYTES, VALUES, RecordEncoder, RecordForm
from flinkplus.sources.kafka.client import confluent_module
from flinkplus.sources.kafka.connecting import KafkaConnection

VISIBILITIES = ("checkpoint", "at_once")
MAX_BYTES_SETTING = "message.max.bytes"
LONGEST_TOPIC = 249
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_TOPIC}}}", re.ASCII)


@dataclass(frozen=True)
class KafkaSink(StagedSink):
    """Records in ``topic``. ``path``: the checkpoint directory, where they are staged."""

    suffix: ClassVar[str] = "arrow"
    connection: KafkaConnection = field(default_factory=lambda: KafkaConnection(""))
    topic: str = ""
    progress_topic: str = PROGRESS_TOPIC
    form: RecordForm = field(default_factory=RecordForm)

    @property
    @override
    def place(self) -> str:
        """The topic, as a location. The servers of a cluster may change."""
        return f"{SCHEME}{self.topic}"

    @override
    def check_schema(self, schema: pa.Schema) -> None:
        self.form.check(schema, self.name)

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {LOCATION: self.place, "value": self.form.value}

    @override
    def encoder(self, stream: Any, schema: pa.Schema) -> Encoder:
        return RecordEncoder(stream, self.form, self.name)

    def transactions(self, job: str) -> KafkaTransactions:
        """The client for the transactions of a job."""
        name = f"flinkplus-{job}-{self.topic}"
        return KafkaTransactions(f"sink {self.name!r}", self.connection, name, self.topic, self.progress_topic)

    @override
    def committer(self) -> SinkCommitter:
        return KafkaCommitter(self.job_id, self.topic, self.transactions, OutputFiles(self.path), self.staging)


@dataclass(frozen=True, kw_only=True)
class KafkaOutputOptions:
    """The arguments of ``Stream.to_kafka``, as users give them."""

    value: str
    key: str | Sequence[str] | None
    headers: str | None
    partition: str | None
    visibility: str
    config: Mapping[str, Any] | None
    progress_topic: str


def kafka_sink(
    name: str, servers: str | Sequence[str], topic: str, options: KafkaOutputOptions
) -> KafkaSink | KafkaAtOnceSink:
    """See ``Stream.to_kafka``. Raises ``ConfigurationError``."""
    confluent_module("to_kafka")
    owner = f"sink {name!r}"
    if options.visibility not in VISIBILITIES:
        raise ConfigurationError(f"{owner}: visibility {options.visibility!r} must be one of {VISIBILITIES}")
    if options.value not in VALUES:
        raise ConfigurationError(f"{owner}: value {options.value!r} must be one of {VALUES}")
    for one in (topic, options.progress_topic):
        if not isinstance(one, str) or not _TOPIC.fullmatch(one) or one in (".", ".."):
            raise ConfigurationError(
                f"{owner}: topic {one!r} must be 1 to 249 letters, digits, dots, underscores or hyphens"
            )
    if topic == options.progress_topic:
        raise ConfigurationError(f"{owner}: topic {topic!r} keeps the progress of jobs; give another topic")
    if options.visibility == "at_once" and len(options.progress_topic) > (longest := LONGEST_TOPIC - 1 - 2 * TAG_BYTES):
        raise ConfigurationError(
            f"{owner}: progress_topic must have at most {longest} characters where rows are visible at once"
        )
    config = dict(options.config or {})
    largest = config.get(MAX_BYTES_SETTING, MAX_BYTES)
    if type(largest) is not int or largest < 1_000:
        raise ConfigurationError(f"{owner}: {MAX_BYTES_SETTING} in config must be a whole number from 1000 on")
    form = RecordForm(options.value, _columns(owner, options.key), options.headers, options.partition, largest)
    for what, column in (("headers", form.headers), ("partition", form.partition)):
        if column is not None and not isinstance(column, str):
            raise ConfigurationError(f"{owner}: {what} {column!r} must be the name of a column")
    connection = KafkaConnection.parse(owner, servers, config, OWN)
    made = KafkaAtOnceSink if options.visibility == "at_once" else KafkaSink
    return made(name, connection=connection, topic=topic, progress_topic=options.progress_topic, form=form)


def _columns(owner: str, key: object) -> tuple[str, ...]:
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else key
    if not isinstance(keys, tuple) or not all(isinstance(one, str) for one in keys) or len(set(keys)) < len(keys):
        raise ConfigurationError(f"{owner}: key {key!r} must be a column's name, or a list of different ones")
    return keys
