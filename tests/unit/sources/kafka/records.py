"""Records as a client gives them, and chunks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flinkplus.errors import InputError
from flinkplus.sources.kafka.buffers import NO_TIMESTAMP, Chunk


@dataclass(frozen=True)
class FakeRecord:
    """See ``flinkplus.sources.kafka.columns.Record``."""

    data: bytes | None
    at: int
    topic_name: str = "t"
    partition_number: int = 0
    millis: int | None = None
    key_bytes: bytes | None = None
    header_list: Sequence[tuple[str, bytes | None]] | None = None

    def topic(self) -> str:
        return self.topic_name

    def partition(self) -> int:
        return self.partition_number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.key_bytes

    def value(self) -> bytes | None:
        return self.data

    def headers(self) -> Any:
        return self.header_list

    def timestamp(self) -> tuple[int, int]:
        return (0, NO_TIMESTAMP) if self.millis is None else (1, self.millis)


def chunk(
    offsets: Sequence[int],
    *,
    time: int = NO_TIMESTAMP,
    without_row: Sequence[int] = (),
    size: int = 100,
    failure: InputError | None = None,
) -> Chunk:
    """Records at ``offsets``; the row of one is its offset. ``without_row``: offsets of those that have none."""
    rows = pa.RecordBatch.from_pydict(
        {"o": [o for o in offsets if o not in without_row]}, pa.schema([("o", pa.int64())])
    )
    ends = np.cumsum([o not in without_row for o in offsets]) if without_row else None
    times = np.full(len(offsets), time, dtype=np.int64)
    return Chunk(rows, np.array(offsets, dtype=np.int64), times, size, ends, failure)
