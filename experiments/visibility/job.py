"""The job whose output is read: numbered rows, numbered once more by key behind a shuffle, into PostgreSQL.

Row *i* has the key ``i * 48,271 % 10,007``; *n* says that it is the *n*-th of its key. Which row of a key comes first
is the interleaving's choice, but each *n* from 1 up is there once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from experiments.baselines.jobs import Layout
from flinkplus.api.environment import StreamEnvironment

ROWS, NUMBER, SINK = "rows", "number", "out"
KEYS, FACTOR = 10_007, 48_271
SCHEMA = "key long, value long, one long"
COLUMNS = "key bigint, value bigint, one bigint, n bigint"
"""Of the table."""
PIECE_BYTES = 1 << 20


class Rows:
    """Makes rows ``start`` to ``start + count``."""

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        return rows_of(np.arange(start, start + count, dtype=np.int64))


def rows_of(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return pa.record_batch({"key": keys_of(numbers), "value": numbers, "one": np.ones_like(numbers)})


def keys_of(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return numbers * FACTOR % KEYS


def draw(env: StreamEnvironment, dsn: str, table: str, visibility: str, count: int | None, rate: float | None) -> None:
    """``count``: of rows, ``None``: no end. ``rate``: rows per second, ``None``: unlimited."""
    rows = env.generate(Rows(), schema=SCHEMA, count=count, rate=rate, batches=True, name=ROWS)
    numbered = rows.key_by("key").sum("one", output="n", name=NUMBER)
    numbered.to_postgres(dsn, table, visibility=visibility, name=SINK)


@dataclass(frozen=True)
class Findings:
    """What is wrong with a table. ``lost``, ``doubled``: rows of the input; ``wrong``: rows that no interleaving
    gives."""

    lost: int
    doubled: int
    wrong: int

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def check(
    keys: npt.NDArray[np.int64], values: npt.NDArray[np.int64], ns: npt.NDArray[np.int64], count: int
) -> Findings:
    """Compare the columns of a table with the input of ``count`` rows."""
    inside = (values >= 0) & (values < count)
    times = np.bincount(values[inside], minlength=count)
    wrong = int(np.count_nonzero(~inside)) + int(np.count_nonzero(keys != keys_of(values)))
    order = np.lexsort((ns, keys))
    keys, ns = keys[order], ns[order]
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    expected = np.arange(len(keys)) - np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0)) + 1
    wrong += int(np.count_nonzero(ns != expected))
    return Findings(int(np.count_nonzero(times == 0)), int((times[times > 1] - 1).sum()), wrong)


def numbered_rows(count: int) -> pa.Table:
    """The rows of the table for an input of ``count`` rows, in the order of the input."""
    numbers = np.arange(count, dtype=np.int64)
    rows = rows_of(numbers)
    order = np.argsort(rows["key"].to_numpy(), kind="stable")
    keys = rows["key"].to_numpy()[order]
    starts = np.r_[0, np.flatnonzero(keys[1:] != keys[:-1]) + 1]
    lengths = np.diff(np.r_[starts, count])
    ns = np.empty(count, np.int64)
    ns[order] = np.arange(count) - np.repeat(starts, lengths) + 1
    return pa.table({**{name: rows[name] for name in rows.schema.names}, "n": ns})


def csv_pieces(table: pa.Table) -> Iterator[memoryview]:
    """Rows as CSV without a header, in pieces."""
    stream = io.BytesIO()
    csv.write_csv(table, stream, csv.WriteOptions(include_header=False))
    whole = stream.getbuffer()
    for at in range(0, len(whole), PIECE_BYTES):
        yield whole[at : at + PIECE_BYTES]


def layout(parallelism: int, rate: float) -> Layout:
    """When rows are due."""
    return Layout(parallelism, 1, rate)
