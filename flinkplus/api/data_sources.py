"""From a user's Python data source to a source that the slots read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.row import USER_EXCEPTIONS, described_cause
from flinkplus.runtime.job.spark_types import arrow_schema, spark_type
from flinkplus.sources.python.source import DataSourcePartitions, DataSourceRows, DataSourceStream, SparkDataSource


def data_source_rows(
    name: str, kind: type[DataSource], options: Mapping[str, str], schema: Any, batch: bool, poll_s: float
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
        _check_readers(name, made, struct, batch)
    except ConfigurationError:
        raise
    except USER_EXCEPTIONS as error:
        cause = described.hide(described_cause(error))
        raise ConfigurationError(f"source {name!r}: {kind.__name__} raised {cause}") from error
    what = DataSourcePartitions if batch else DataSourceStream
    return what(name, described, columns, struct.json(), poll_s)


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


def _check_readers(name: str, made: DataSource, struct: StructType, batch: bool) -> None:
    """Raises ``ConfigurationError`` unless the data source can be read as ``batch`` says."""
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
    elif has("streamReader", DataSourceStreamReader):
        raise ConfigurationError(
            f"source {name!r}: {shown} has a streamReader(), whose partitions are planned batch by batch: let Spark do "
            f"that, with env.from_spark(spark.readStream.format({made.name()!r}).load())"
        )
    elif not has("simpleStreamReader", SimpleDataSourceStreamReader):
        raise ConfigurationError(
            f"source {name!r}: {shown} has no simpleStreamReader(); batch=True reads what its reader() gives"
        )
