"""What a keyed count put out, row by row: a record of time, key and count, from which it is seen which rows are new.

The output trace of the recovery experiments has totals of each subtask. Across another parallelism they do not show
what is new: a subtask takes over keys of others, and repeats what these had put out since the checkpoint. A row
``(key, count)`` does: it is new the first time that it comes.

Rules: a record is in the file when its batch leaves the count; one write, no buffer, so that nothing is lost when the
process ends. One file for each subtask and process, which names both. Times are those of the slot's clock: compare them
within one host only. The output of the operator depends on neither.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.keys import row_keys
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance
from flinkplus.state.hashing import hash_keys

HEADER = struct.Struct("<dQ")
"""Seconds since the Unix epoch, and the number of rows; behind it the hashes of their keys, and their counts."""
SUFFIX = ".rows"
ROW_BYTES = 16


class Partition(NamedTuple):
    """The output of one subtask of ``parallelism``, number ``subtask``."""

    parallelism: int
    subtask: int


class Batch(NamedTuple):
    """Rows that a partition put out at ``time_s``."""

    partition: Partition
    time_s: float
    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]


Outputs: TypeAlias = Mapping[Partition, Sequence[tuple[float, int]]]
"""For each partition ``(time_s, new rows)`` of every batch with new rows, by time."""


@dataclass(frozen=True)
class Recorder(Operator):
    """Passes the rows of a count of ``key`` on, and records them in ``directory``."""

    name: str
    directory: Path
    key: str
    count: str

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _RecorderInstance(self, Partition(ctx.parallelism, ctx.index))


class _RecorderInstance(OperatorInstance):
    joins_steps = gives_row_for_row = True

    def __init__(self, recorder: Recorder, partition: Partition) -> None:
        self._recorder, self._partition = recorder, partition
        self._file = -1

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._file < 0:
            self._file = self._opened()
        keys = hash_keys(row_keys(batch, (self._recorder.key,)))
        counts = batch.column(self._recorder.count).to_numpy(zero_copy_only=False)
        os.write(self._file, HEADER.pack(time.time(), len(keys)) + keys.tobytes() + counts.tobytes())
        yield batch

    def _opened(self) -> int:
        directory = self._recorder.directory
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{self._partition.parallelism}-{self._partition.subtask}-{os.getpid()}-{time.time_ns()}{SUFFIX}"
        return os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    @override
    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_records(directory: Path) -> Iterator[Batch]:
    """All batches of all files. A record that is only half written is left out."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        parallelism, index, _, _ = path.stem.split("-")
        partition, data, at = Partition(int(parallelism), int(index)), path.read_bytes(), 0
        while at + HEADER.size <= len(data):
            time_s, rows = HEADER.unpack_from(data, at)
            at, middle = at + HEADER.size, at + HEADER.size + rows * ROW_BYTES // 2
            if middle + rows * ROW_BYTES // 2 > len(data):
                break
            keys = np.frombuffer(data, np.uint64, rows, at)
            counts = np.frombuffer(data, np.int64, rows, middle)
            yield Batch(partition, time_s, keys, counts)
            at += rows * ROW_BYTES


def new_outputs(batches: Iterable[Batch]) -> Outputs:
    """Of each partition, when it put out how many new rows: those that no partition had put out before."""
    by_time = sorted(batches, key=lambda batch: batch.time_s)
    if not by_time:
        return {}
    lengths = [len(batch.keys) for batch in by_time]
    numbers = np.repeat(np.arange(len(by_time)), lengths)
    keys = np.concatenate([batch.keys for batch in by_time])
    counts = np.concatenate([batch.counts for batch in by_time])
    order = np.lexsort((numbers, counts, keys))
    keys, counts = keys[order], counts[order]
    first = np.append(True, (keys[1:] != keys[:-1]) | (counts[1:] != counts[:-1]))[: len(keys)]
    new = np.bincount(numbers[order[first]], minlength=len(by_time))
    found: dict[Partition, list[tuple[float, int]]] = {}
    for batch, rows in zip(by_time, new.tolist(), strict=True):
        if rows:
            found.setdefault(batch.partition, []).append((batch.time_s, rows))
    return found
