"""The descriptor of a Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, cast, get_args

import pyarrow as pa
from typing_extensions import Self, override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.operator import JsonValue
from flinkplus.operators.base.schema import parse_schema
from flinkplus.sources.base import LiveReader, Source
from flinkplus.sources.kafka.chunks import ChunkMaker, OnError, with_dead_letters
from flinkplus.sources.kafka.client import BrokersAway, KafkaClient, Refused, confluent_module, planning_error
from flinkplus.sources.kafka.columns import chosen_columns, whole_schema
from flinkplus.sources.kafka.connecting import KafkaConnection
from flinkplus.sources.kafka.decoding import decoder, value_schema
from flinkplus.sources.kafka.partitions import Offsets, position_from, redealt
from flinkplus.sources.kafka.planning import Moment, SplitPlan, explicit_offsets, moment_of, plan_from, planned
from flinkplus.sources.kafka.reader import KafkaReader

BUFFER_BYTES = 32 << 20
DISCOVER_S = 30.0


@dataclass(frozen=True)
class KafkaSource(Source):
    """The records of ``topics``, which are in order, each once.

    ``values``: the columns of decoded values. ``metadata``: columns of the record. ``buffer_bytes``: about how much a
    reader holds of what was fetched and not read. ``discover_s``: how often it looks for new partitions. ``plan``: set
    by ``planned``.
    """

    is_live: ClassVar[bool] = True

    name: str
    connection: KafkaConnection
    topics: tuple[str, ...]
    value: str
    values: pa.Schema
    metadata: tuple[str, ...] = ()
    start: Moment | Offsets = "earliest"
    stop: Moment | None = None
    group: str | None = None
    on_error: OnError = "fail"
    buffer_bytes: int = BUFFER_BYTES
    discover_s: float = DISCOVER_S
    plan: SplitPlan | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.topics != tuple(sorted(set(self.topics))) or not self.topics:
            raise ConfigurationError(f"source {self.name!r}: topics must be different, and one at least")
        if self.start == "committed" and self.group is None:
            raise ConfigurationError(f"source {self.name!r}: start='committed' needs group='...'")
        whole_schema(self.name, self.values, self.metadata)

    @property
    def rows_schema(self) -> pa.Schema:
        """The columns of good rows."""
        return whole_schema(self.name, self.values, self.metadata)

    @property
    def schema(self) -> pa.Schema:
        """``rows_schema``, and with dead letters what was broken."""
        return with_dead_letters(self.rows_schema) if self.on_error == "dead-letter" else self.rows_schema

    @override
    def planned(self) -> KafkaSource:
        if self.plan is not None:
            return self
        client = self.connect(f"flinkplus-{self.name}")
        try:
            return replace(self, plan=planned(self.name, client, self.topics, self.start, self.stop))
        except (BrokersAway, Refused) as error:
            raise planning_error(self.name, self.connection.servers, error) from None
        finally:
            client.close()

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {"topics": list(self.topics), "value": self.value}

    @override
    def split_plan(self) -> JsonValue:
        return None if self.plan is None else self.plan.to_json()

    @override
    def with_split_plan(self, plan: Any) -> KafkaSource:
        return replace(self, plan=plan_from(plan))

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        found = [position_from(self.name, position) for position in positions]
        return [position.to_json() for position in redealt(found, self.topics, parallelism)]

    @override
    def secrets(self) -> Mapping[str, str]:
        return self.connection.known_secrets(f"source {self.name!r}")

    @override
    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        return replace(self, connection=replace(self.connection, secrets=dict(secrets)))

    def chunk_maker(self) -> ChunkMaker:
        return ChunkMaker(self.name, self.rows_schema, self.metadata, self.on_error, decoder(self.value, self.values))

    def connect(self, client: str) -> KafkaClient:
        """A new client. Raises ``ConfigurationError``."""
        connection = replace(self.connection, secrets=self.secrets())
        return KafkaClient(self.name, connection, self.group, client)

    @override
    def reader(self, index: int, parallelism: int) -> LiveReader:
        return KafkaReader(self, index, parallelism)


Start = str | int | datetime | Mapping[str, Mapping[int, int]]
Stop = str | int | datetime


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """The arguments of ``StreamEnvironment.from_kafka``, as users give them."""

    value: str
    schema: str | pa.Schema | None
    metadata: bool | Iterable[str]
    start: Start
    stop: Stop | None
    group: str | None
    on_error: str
    discover: Duration
    config: Mapping[str, Any] | None


def kafka_source(
    name: str, servers: str | Sequence[str], topics: str | Sequence[str], options: KafkaOptions
) -> KafkaSource:
    """The source that ``options`` describe. Raises ``ConfigurationError``."""
    confluent_module()
    names = tuple(sorted({topics} if isinstance(topics, str) else set(topics)))
    if options.on_error not in get_args(OnError):
        known = ", ".join(map(repr, get_args(OnError)))
        raise ConfigurationError(f"source {name!r}: on_error must be one of {known}; not {options.on_error!r}")
    start = (
        explicit_offsets(name, options.start, names)
        if isinstance(options.start, Mapping)
        else moment_of(name, "start", options.start, ("earliest", "latest", "committed"))
    )
    return KafkaSource(
        name,
        KafkaConnection.parse(f"source {name!r}", servers, options.config or {}),
        names,
        options.value,
        value_schema(name, options.value, None if options.schema is None else parse_schema(options.schema)),
        chosen_columns(name, options.metadata),
        start,
        None if options.stop is None else moment_of(name, "stop", options.stop, ("latest",)),
        options.group,
        cast(OnError, options.on_error),
        discover_s=duration_ms(options.discover, f"source {name!r}: discover", least=100) / 1_000,
    )
