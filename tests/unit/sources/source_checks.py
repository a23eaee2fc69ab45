"""What every source must do, whatever it reads; used by the tests of each."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

from flinkplus.sources.base import Source, SourceReader


def drain(reader: SourceReader, max_rows: int = 7) -> list[dict[str, Any]]:
    """All rows that are left."""
    rows: list[dict[str, Any]] = []
    while (batch := reader.read(max_rows)) is not None:
        assert 0 < batch.num_rows <= max_rows
        batch.validate(full=True)
        rows += batch.to_pylist()
    assert reader.read(max_rows) is None
    return rows


def opened(source: Source, index: int = 0, parallelism: int = 1, position: Any = None) -> SourceReader:
    reader = source.reader(index, parallelism)
    reader.open(position)
    return reader


def read_all(source: Source, parallelism: int = 1, max_rows: int = 7) -> list[list[dict[str, Any]]]:
    """The rows of each subtask."""
    rows = []
    for index in range(parallelism):
        reader = opened(source, index, parallelism)
        rows.append(drain(reader, max_rows))
        assert reader.metrics["rows"] == len(rows[-1])
        reader.close()
    return rows


def _serialized(reader: SourceReader, max_rows: int) -> Iterator[bytes]:
    while (batch := reader.read(max_rows)) is not None:
        yield batch.serialize().to_pybytes()


def check_replay(source: Source, index: int, parallelism: int, max_rows: int, resumed_max_rows: int) -> None:
    """From each position that a run reports, a new reader gives exactly the rest, and arrives at the same totals. Asked
    for as many rows as the first one, it gives them in the same batches, byte for byte: a standby repeats steps."""
    source = pickle.loads(pickle.dumps(source))
    whole = opened(source, index, parallelism)
    everything = drain(whole)
    reader = opened(source, index, parallelism)
    taken = 0
    same = opened(source, index, parallelism)
    batches = list(_serialized(same, max_rows))
    same.close()
    while True:
        position = json.loads(json.dumps(reader.position()))
        again = opened(source, index, parallelism, position)
        assert again.position() == position
        assert drain(again, resumed_max_rows) == everything[taken:]
        assert again.metrics == whole.metrics
        again.close()
        same = opened(source, index, parallelism, position)
        rest = list(_serialized(same, max_rows))
        assert rest == batches[len(batches) - len(rest) :]
        same.close()
        batch = reader.read(max_rows)
        if batch is None:
            break
        taken += batch.num_rows
    reader.close()
    reader.close()
