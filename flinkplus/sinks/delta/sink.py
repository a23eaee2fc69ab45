"""The descriptor of a Delta table that takes the rows of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.protocol.program.description import LOCATION
from flinkplus.sinks.base import SinkCommitter
from flinkplus.sinks.delta.columns import delta_schema
from flinkplus.sinks.delta.committer import DeltaCommitter
from flinkplus.sinks.delta.location import StorageOptions, TableLocation
from flinkplus.sinks.delta.table import DeltaOutput, deltalake_module
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.parquet import ParquetSink
from flinkplus.sinks.partitions import checked_columns
from flinkplus.state.file_system import absolute, is_uri

SCHEME = "delta:"
"""Before the path, where the table is a sink's location."""
MODES = ("append",)
SCHEMA_MODES = (None, "merge")


@dataclass(frozen=True)
class DeltaSink(ParquetSink):
    """Rows in the Delta table at ``path``. ``merge``: columns that the table lacks are added to it."""

    merge: bool = False
    options: StorageOptions = field(default_factory=StorageOptions)

    @override
    def check_schema(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        delta_schema(schema, self.name)

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {**super().settings(), LOCATION: f"{SCHEME}{self.path}"}

    @override
    def committer(self) -> SinkCommitter:
        location = TableLocation.of(self.path, self.options)
        columns = delta_schema(self.bound_schema, self.name, self.partition_by)
        output = DeltaOutput(location, columns, self.partition_by, self.merge)
        return DeltaCommitter(self.name, self.job_id, output, OutputFiles(self.path), self.staging)


def delta_sink(
    name: str, path: str, mode: str, partition_by: object, schema_mode: str | None, storage_options: object
) -> DeltaSink:
    """See ``Stream.to_delta``. Raises ``ConfigurationError``."""
    deltalake_module()
    if mode not in MODES:
        raise ConfigurationError(f"sink {name!r}: mode {mode!r} must be one of {MODES}")
    if schema_mode not in SCHEMA_MODES:
        raise ConfigurationError(f"sink {name!r}: schema_mode {schema_mode!r} must be one of {SCHEMA_MODES}")
    if not is_uri(path) or path.startswith("file:"):
        place = TableLocation.of(path, StorageOptions()).uri
        if unquote(place) != place:
            raise ConfigurationError(f"sink {name!r}: deltalake does not find a local path with {place!r}: rename it")
    columns = checked_columns(partition_by, name)
    options = StorageOptions.parse(storage_options, name)
    return DeltaSink(name, absolute(path), partition_by=columns, merge=schema_mode == "merge", options=options)
