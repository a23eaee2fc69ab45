"""Parquet files that ``spark.read.parquet`` and ``spark.readStream`` read exactly once, also while the job runs.

Files are written with plain types (no dictionary-encoded columns in the schema): Spark, pandas and others see the
logical schema of the stream. Timestamps are stored in microseconds, as Spark wants them; finer ones are truncated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from flinkplus.errors import ConfigurationError
from flinkplus.sinks.file_writer import SMALLEST_FILE_BYTES, Encoder, FileSink
from flinkplus.sinks.partitions import check_partitions, checked_columns

COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 * 1024 * 1024
DIVIDED_GROUP_BYTES = 8 * 1024 * 1024
"""With partitions: as many row groups are in memory as files are open."""


@dataclass(frozen=True)
class ParquetSink(FileSink):
    """Parquet files; ``compression`` is one of ``COMPRESSIONS``."""

    suffix: ClassVar[str] = "parquet"
    compression: str = "snappy"

    def check_schema(self, schema: pa.Schema) -> None:
        if self.compression not in COMPRESSIONS:
            raise ConfigurationError(
                f"sink {self.name!r}: compression {self.compression!r} must be one of {COMPRESSIONS}"
            )
        if len(schema) == 0 or len(set(schema.names)) < len(schema):
            raise ConfigurationError(
                f"sink {self.name!r}: Parquet needs columns with different names, not {schema.names}"
            )
        for field in schema:
            if not _spark_reads(field.type):
                raise ConfigurationError(
                    f"sink {self.name!r}: Spark cannot read column {field.name!r} of type {field.type} from Parquet; "
                    "cast it before"
                )
        check_partitions(schema, self.partition_by, self.name)

    def encoder(self, stream: Any, schema: pa.Schema) -> Encoder:
        group_bytes = DIVIDED_GROUP_BYTES if self.partition_by else ROW_GROUP_BYTES
        return ParquetEncoder(stream, schema, self.compression, min(group_bytes, self.max_file_bytes or group_bytes))

    def why_other(self, content: Any) -> str:
        there, here = (
            {field.name: _kind(field.type) for field in s} for s in (pq.read_schema(content), self.file_schema)
        )
        for name in {**there, **here}:
            if there.get(name) != here.get(name):
                return (
                    f"column {name!r} is {there.get(name, 'missing')}; in the stream it is {here.get(name, 'missing')}"
                )
        return ""


def parquet_sink(name: str, path: str, partition_by: object, max_file_bytes: int | None, append: bool) -> ParquetSink:
    """See ``Stream.to_parquet``. Raises ``ConfigurationError``."""
    if max_file_bytes is not None and (type(max_file_bytes) is not int or max_file_bytes < SMALLEST_FILE_BYTES):
        raise ConfigurationError(
            f"sink {name!r}: max_file_bytes {max_file_bytes!r} must be a whole number, {SMALLEST_FILE_BYTES} at least"
        )
    columns = checked_columns(partition_by, name)
    return ParquetSink(name, path, partition_by=columns, max_file_bytes=max_file_bytes, append=append)


def _kind(dtype: pa.DataType) -> str:
    """A type as Spark sees it in Parquet: units, the sizes of offsets, the names of the parts of lists and maps, and
    whether parts may be null do not count."""
    types = pa.types
    if types.is_timestamp(dtype):
        return "timestamp"
    if types.is_dictionary(dtype):
        return _kind(dtype.value_type)
    if types.is_list(dtype) or types.is_large_list(dtype):
        return f"list<{_kind(dtype.value_type)}>"
    if types.is_map(dtype):
        return f"map<{_kind(dtype.key_type)}, {_kind(dtype.item_type)}>"
    if types.is_struct(dtype):
        return f"struct<{', '.join(f'{field.name}: {_kind(field.type)}' for field in dtype)}>"
    return str(dtype).removeprefix("large_")


class ParquetEncoder(Encoder):
    """One Parquet file; small batches are gathered into row groups of ``group_bytes`` in memory at most."""

    def __init__(self, stream: Any, schema: pa.Schema, compression: str, group_bytes: int = ROW_GROUP_BYTES) -> None:
        textual = [field.name for field in schema if _is_textual(field.type)]
        self._schema = schema
        self._writer = pq.ParquetWriter(
            stream,
            schema,
            compression=compression,
            use_dictionary=textual,
            write_statistics=[field.name for field in schema if not _is_textual(field.type)],
            store_schema=False,
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
        )
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._group_bytes = group_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= self._group_bytes:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema), row_group_size=self._rows)
        self._batches = []
        self._rows = self._bytes = 0


def _is_textual(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(dtype) for is_kind in kinds)


def _spark_reads(dtype: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(dtype) or types.is_large_list(dtype):
        return _spark_reads(dtype.value_type)
    if types.is_struct(dtype):
        return all(_spark_reads(field.type) for field in dtype)
    if types.is_map(dtype):
        return _spark_reads(dtype.key_type) and _spark_reads(dtype.item_type)
    numbers = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_decimal128)
    return any(is_kind(dtype) for is_kind in (*numbers, types.is_date, types.is_timestamp, _is_textual))
