"""A Python data source of Spark as a source: without partitions and without an end, or its partitions, once."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import Self, override

from flinkplus.errors import HIDDEN, InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.operators.base.row import USER_EXCEPTIONS, described_cause
from flinkplus.sources.base import LiveReader, Source
from flinkplus.sources.python.fetching import SimpleReader
from flinkplus.sources.python.partitions import PartitionsPosition, PartitionsReader, redealt
from flinkplus.sources.python.position import OffsetPosition
from flinkplus.sources.python.reader import OffsetReader
from flinkplus.sources.secrets import known_secrets

SECRET_OPTION = re.compile("secret|password|passphrase|token|access[.]?key|credential", re.IGNORECASE)
"""What Spark redacts in its settings, and what is like it."""


def environment_name(option: str) -> str:
    """The variable that a secret is taken from where the program did not give it."""
    return "DATA_SOURCE_" + re.sub(r"\W", "_", option).upper()


@dataclass(frozen=True)
class SparkDataSource:
    """A user's class and its options, without those that are secret where it is stored.

    ``secret_names``: of those that are needed. ``secrets``: only in the process that was given them.
    """

    kind: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "options": dict(self.options), "secrets": {}}

    @classmethod
    def of(cls, kind: type[DataSource], options: Mapping[str, str]) -> SparkDataSource:
        """Names of options have no case, as in Spark."""
        given = {name.lower(): value for name, value in options.items()}
        secret = {name: value for name, value in given.items() if SECRET_OPTION.search(name)}
        plain = {name: value for name, value in given.items() if name not in secret}
        return cls(kind, plain, tuple(sorted(secret)), secret)

    def known_secrets(self, source: str) -> dict[str, str]:
        """All that are needed, also from the environment. Raises ``ConfigurationError`` if one is missing."""
        return known_secrets(f"source {source!r}", self.secret_names, self.secrets, environment_name, "option ")

    def hide(self, text: str) -> str:
        """``text`` of a user's error, without secrets."""
        for secret in filter(None, self.secrets.values()):
            text = text.replace(secret, HIDDEN)
        return text

    def instance(self) -> DataSource:
        """A new one."""
        return self.kind(CaseInsensitiveDict({**self.options, **self.secrets}))


@dataclass(frozen=True)
class DataSourceRows(Source):
    """The rows of ``source`` with the columns of ``schema``. ``struct``: the schema as Spark's JSON.

    ``poll_s``: pause before a data source that had nothing new is asked again.
    """

    name: str
    source: SparkDataSource
    schema: pa.Schema
    struct: str
    poll_s: float = 0.1

    is_live: ClassVar[bool] = True

    @property
    def shown(self) -> str:
        """The data source, for errors."""
        return self.source.kind.__name__

    def hide(self, text: str) -> str:
        """``text`` of a user's error, without secrets."""
        return self.source.hide(text)

    @property
    def spark_schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.struct))

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {"data source": self.shown}

    @override
    def secrets(self) -> Mapping[str, str]:
        return self.source.known_secrets(self.name)

    @override
    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        return replace(self, source=replace(self.source, secrets=dict(secrets)))

    def with_known_secrets(self) -> Self:
        """For calls in the driver: also with those that only the environment has. Raises ``ConfigurationError``."""
        return replace(self, source=replace(self.source, secrets=self.source.known_secrets(self.name)))


@dataclass(frozen=True)
class DataSourceStream(DataSourceRows):
    """What ``simpleStreamReader()`` reads, by one subtask."""

    def stream_reader(self) -> SimpleReader:
        """A new reader."""
        return self.source.instance().simpleStreamReader(self.spark_schema)

    @override
    def reader(self, index: int, parallelism: int) -> LiveReader:
        return OffsetReader(self, index)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        for position in positions:
            OffsetPosition.from_json(self.name, position)
        return [positions[0], *[None] * (parallelism - 1)]


@dataclass(frozen=True)
class DataSourcePartitions(DataSourceRows):
    """What ``reader()`` reads: ``partitions``, pickled, set by ``planned``."""

    partitions: tuple[bytes, ...] | None = None

    @override
    def planned(self) -> DataSourcePartitions:
        if self.partitions is not None:
            return self
        source = self.with_known_secrets().source
        try:
            found = _partitions(source.instance().reader(self.spark_schema))
            return replace(self, partitions=tuple(map(cloudpickle.dumps, found)))
        except USER_EXCEPTIONS as error:
            cause = source.hide(described_cause(error))
            raise InputError(f"source {self.name!r}: partitions of {self.shown} raised {cause}") from error

    @override
    def split_plan(self) -> JsonValue:
        return None if self.partitions is None else [base64.b64encode(each).decode() for each in self.partitions]

    @override
    def with_split_plan(self, plan: Any) -> DataSourcePartitions:
        return replace(self, partitions=tuple(base64.b64decode(each, validate=True) for each in plan))

    def read_partition(self, number: int) -> Any:
        """What the data source returns for a partition."""
        assert self.partitions is not None
        reader: DataSourceReader = self.source.instance().reader(self.spark_schema)
        return reader.read(cloudpickle.loads(self.partitions[number]))

    @override
    def reader(self, index: int, parallelism: int) -> LiveReader:
        assert self.partitions is not None, "not planned"
        return PartitionsReader(self, index, PartitionsPosition.start(len(self.partitions), index, parallelism))

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        assert self.partitions is not None, "not planned"
        found = [
            PartitionsPosition.start(len(self.partitions), index, len(positions))
            if position is None
            else PartitionsPosition.from_json(self.name, position)
            for index, position in enumerate(positions)
        ]
        return [position.to_json() for position in redealt(found, parallelism)]


def _partitions(reader: DataSourceReader) -> Sequence[InputPartition]:
    """Those of a reader; without any, one that stands for all, as in Spark."""
    try:
        found = list(reader.partitions())
    except NotImplementedError:  # the default of Spark 4.0
        found = []
    for partition in found:
        if not isinstance(partition, InputPartition):
            raise TypeError(f"a partition must be an InputPartition, not {type(partition).__name__}")
    return found or [InputPartition(None)]
