"""From a user's Python data source to a source that the slots read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.row import USER_EXCEPTIONS, described_cause
from flinkplus.runtime.job.spark_types import arrow_schema, spark_type
from flinkplus.sources.planned.source import DataSourceBatches
from flinkplus.sources.python.source import DataSourcePartitions, DataSourceRows, DataSourceStream, SparkDataSource

AVAILABLE_NOW = {"availableNow": True}


@dataclass(frozen=True)
class DataSourceReading:
    """How a data source is read; see ``StreamEnvironment.from_data_source``."""

    batch: bool
    poll_s: float
    trigger: Any
    max_unread_batches: int | None

    def planned(self, name: str) -> dict[str, Any]:
        """The arguments of a source with planned batches. Raises ``ConfigurationError``."""
        if self.trigger not in (None, AVAILABLE_NOW):
            raise ConfigurationError(f"source {name!r}: trigger must be {AVAILABLE_NOW}, not {self.trigger!r}")
        unread = {} if self.max_unread_batches is None else {"max_unread_batches": self.max_unread_batches}
        return {"available_now": self.trigger is not None, **unread}

    def check_others(self, name: str) -> None:
        """Raises ``ConfigurationError`` for arguments that only planned batches have."""
        for argument in ("trigger", "max_unread_batches"):
            if getattr(self, argument) is not None:
                raise ConfigurationError(f"source {name!r}: {argument} is for a data source with a streamReader()")


def data_source_rows(
    name: str, kind: type[DataSource], options: Mapping[str, str], schema: Any, reading: DataSourceReading
) -> DataSourceRows:
    """The source that reads ``kind``; the other arguments are those of ``StreamEnvironment.from_data_source``.

    Raises ``ConfigurationError``.
    """
    if not isinstance(kind, type) or not issubclass(kind, DataSource):
        raise ConfigurationError(
            f"source {name!r}: from_data_source takes a subclass of pyspark's DataSource, not {kind!r:.200}"
        )
    for option, value in options.items():
        if not isinstance(option, str) or not isinstance(value, str):
            raise ConfigurationError(f"source {name!r}: options of a data source are text; {option!r} is not")
    described = SparkDataSource.of(kind, options)
    try:
        made = described.instance()
        struct = _struct(name, made, schema)
        columns = arrow_schema(struct, f"source {name!r}")
        what = _readable(name, made, struct, reading.batch)
    except ConfigurationError:
        raise
    except USER_EXCEPTIONS as error:
        cause = described.hide(described_cause(error))
        raise ConfigurationError(f"source {name!r}: {kind.__name__} raised {cause}") from error
    rows = (name, described, columns, struct.json(), reading.poll_s)
    if what is DataSourceBatches:
        return DataSourceBatches(*rows, **reading.planned(name))
    reading.check_others(name)
    return what(*rows)


def _struct(name: str, made: DataSource, schema: Any) -> StructType:
    """The given schema, otherwise that of the data source."""
    if schema is None:
        try:
            schema = made.schema()
        except NotImplementedError:
            raise ConfigurationError(
                f"source {name!r}: {type(made).__name__} has no schema of its own: give schema=..."
            ) from None
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except PySparkException as error:
            raise ConfigurationError(f"source {name!r}: the schema {schema!r} is not understood: {error}") from error
    if isinstance(schema, pa.Schema):
        found = [(field.name, spark_type(field.type), field.nullable) for field in schema]
        struct = StructType()
        for column, dtype, nullable in found:
            if dtype is None:
                raise ConfigurationError(f"source {name!r}: column {column!r} has a type that Spark lacks")
            struct.add(column, dtype, nullable)
        return struct
    if not isinstance(schema, StructType):
        raise ConfigurationError(f"source {name!r}: a schema is text, a StructType or a pyarrow.Schema")
    return schema


def _readable(name: str, made: DataSource, struct: StructType, batch: bool) -> type[DataSourceRows]:
    """What reads the data source; as in Spark, a ``streamReader()`` comes first.

    Raises ``ConfigurationError`` unless it can be read as ``batch`` says.
    """
    shown = type(made).__name__

    def has(method: str, kinds: type | tuple[type, ...]) -> bool:
        try:
            found = getattr(made, method)(struct)
        except NotImplementedError:
            return False
        if not isinstance(found, kinds):
            raise ConfigurationError(
                f"source {name!r}: {method} of {shown} returned {type(found).__name__}, which is no reader of that kind"
            )
        return True

    if batch:
        if not has("reader", DataSourceReader):
            raise ConfigurationError(f"source {name!r}: {shown} has no reader(), which batch=True reads")
        return DataSourcePartitions
    if has("streamReader", DataSourceStreamReader):
        return DataSourceBatches
    if not has("simpleStreamReader", SimpleDataSourceStreamReader):
        raise ConfigurationError(
            f"source {name!r}: {shown} has neither streamReader() nor simpleStreamReader(); batch=True reads what its "
            "reader() gives"
        )
    return DataSourceStream
