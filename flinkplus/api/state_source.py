"""``spark.read.format("flinkplus-state")``: the state in a checkpoint directory as a DataFrame.

Rules:
- the driver finds the checkpoint, checks signatures, and makes a partition for each subtask; the tasks check the files;
- all partitions are of one checkpoint. One that the job removes meanwhile is an error, never a mixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from flinkplus.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from flinkplus.runtime.job.reading.found import FoundState, StateQuery

NAME = "flinkplus-state"
OPTIONS = ("path", "operator", "key", "checkpoint", "signingkey", "trust")


class StateDataSource(DataSource):
    """Options: ``operator``, ``key``, ``checkpoint``, ``signingKey``, ``trust``, with the meaning that they have for
    ``flinkplus.read_state``; the path is the checkpoint directory."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """The columns. Key and value stay JSON where Spark has no such type."""
        found = self._found()
        return _spark_schema(found.schema)

    def reader(self, schema: StructType) -> StateReader:
        """Reads the checkpoint that is the newest now. Raises ``ConfigurationError`` for another schema."""
        found = self._found()
        if schema != _spark_schema(found.schema):
            raise ConfigurationError(f"{NAME} has columns of its own: leave out schema(...)")
        return StateReader(found, schema)

    def _found(self) -> FoundState:
        from flinkplus.runtime.job.reading.found import find_state

        options = {name.lower(): value for name, value in self.options.items()}
        unknown = sorted(options.keys() - set(OPTIONS))
        if unknown:
            raise ConfigurationError(f"{NAME} has no option {unknown[0]!r}; its options are: {', '.join(OPTIONS)}")
        query = _query(options)
        trust = options.get("trust", "false").lower() == "true"
        found = find_state(query, None, options.get("signingkey"), trust)
        texts = frozenset(name for name in ("key", "value") if not _is_of_spark(found.schema.field(name).type))
        if texts:
            query = replace(query, texts=texts, checkpoint=found.checkpoint)
            found = find_state(query, None, options.get("signingkey"), trust)
        return found


def _query(options: dict[str, str]) -> StateQuery:
    from flinkplus.runtime.job.reading.found import StateQuery

    if "path" not in options:
        raise ConfigurationError(f'{NAME} needs a checkpoint directory: .format("{NAME}").load(DIR)')
    number = options.get("checkpoint")
    if number is not None and not number.isdecimal():
        raise ConfigurationError(f"option checkpoint: {number!r:.100} is not the number of a checkpoint")
    return StateQuery(
        options["path"], options.get("operator"), options.get("key"), None if number is None else int(number)
    )


class StatePartition(InputPartition):
    """One subtask. ``value``: its ``SubtaskReading``."""


class StateReader(DataSourceReader):
    """A partition for each subtask that may have rows."""

    def __init__(self, found: FoundState, schema: StructType) -> None:
        self._readings = found.readings
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """At least one, which may be empty: Spark wants one."""
        return [StatePartition(reading) for reading in self._readings] or [StatePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a subtask, in the types that Spark has."""
        from flinkplus.runtime.job.spark_types import arrow_schema

        if partition.value is not None:
            wanted = arrow_schema(self._schema)
            for batch in partition.value.batches():
                yield batch.cast(wanted)


def _spark_schema(schema: pa.Schema) -> Any:
    import pyarrow as pa

    from flinkplus.runtime.job.spark_types import spark_type

    return spark_type(pa.struct(list(schema)))


def _is_of_spark(dtype: pa.DataType) -> bool:
    from flinkplus.runtime.job.spark_types import spark_type

    return spark_type(dtype) is not None
