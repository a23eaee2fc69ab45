"""The columns of a Kafka source: those of the values, and those of the record itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.sources.kafka.buffers import NO_TIMESTAMP

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_COLUMNS = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
BROKEN_SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("reason", pa.string(), False), *RECORD_COLUMNS])
"""Records that could not be decoded."""
BROKEN = "flinkplus_broken"
"""The column of a source with dead letters that is null for the rows of good records."""


class Record(Protocol):
    """A record as ``confluent_kafka.Message`` gives it."""

    def topic(self) -> str | None: ...

    def partition(self) -> int | None: ...

    def offset(self) -> int | None: ...

    def key(self) -> Any: ...

    def value(self) -> Any: ...

    def headers(self) -> Any: ...

    def timestamp(self) -> tuple[int, int]: ...


def chosen_columns(source: str, metadata: bool | Iterable[str]) -> tuple[str, ...]:
    """The names of the record's columns that are asked for. Raises ``ConfigurationError`` for others."""
    if isinstance(metadata, bool):
        return tuple(RECORD_COLUMNS.names) if metadata else ()
    if isinstance(metadata, str):
        metadata = (metadata,)
    names = tuple(metadata)
    for name in names:
        if name not in RECORD_COLUMNS.names:
            near = did_you_mean(str(name), RECORD_COLUMNS.names)
            raise ConfigurationError(
                f"source {source!r}: metadata has no column {name!r} among {RECORD_COLUMNS.names}{near}"
            )
    return tuple(name for name in RECORD_COLUMNS.names if name in names)


def whole_schema(source: str, values: pa.Schema, metadata: Sequence[str]) -> pa.Schema:
    """The columns of the values, then ``metadata``. Raises ``ConfigurationError`` for names that collide."""
    twice = sorted({*values.names} & {*metadata, BROKEN})
    if twice:
        raise ConfigurationError(
            f"source {source!r}: the column {twice[0]!r} is one of the schema, and one of the record's metadata: leave "
            "it out of one of them"
        )
    return pa.schema([*values, *(RECORD_COLUMNS.field(name) for name in metadata)])


def record_arrays(records: Sequence[Record], names: Iterable[str]) -> list[pa.Array]:
    """The columns ``names`` of ``RECORD_COLUMNS``."""
    makers = {
        "topic": lambda: pa.array([record.topic() for record in records], pa.string()),
        "partition": lambda: pa.array([record.partition() for record in records], pa.int32()),
        "offset": lambda: pa.array([record.offset() for record in records], pa.int64()),
        "timestamp": lambda: _timestamps(records),
        "key": lambda: pa.array([_as_bytes(record.key()) for record in records], pa.binary()),
        "headers": lambda: pa.array([_headers(record) for record in records], HEADERS),
    }
    return [makers[name]() for name in names]


def timestamps_of(records: Sequence[Record]) -> npt.NDArray[np.int64]:
    """Milliseconds since 1970, or ``NO_TIMESTAMP``."""
    pairs = [record.timestamp() for record in records]
    return np.array([millis if kind else NO_TIMESTAMP for kind, millis in pairs], dtype=np.int64)


def _timestamps(records: Sequence[Record]) -> pa.Array:
    millis = timestamps_of(records)
    return pa.array(millis * 1_000, pa.int64(), mask=millis < 0).cast(RECORD_COLUMNS.field("timestamp").type)


def _headers(record: Record) -> list[dict[str, Any]]:
    return [{"key": key, "value": _as_bytes(value)} for key, value in record.headers() or []]


def _as_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
