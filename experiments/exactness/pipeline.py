"""The job that is hurt: three keyed stages in a row, each of which depends on the order of its input.

Words, numbered *i*, each with its reader, the subtask that read it | ``count``: the running count *n* of each word |
``place``, keyed by *n*: the words that reach a count of *n* are numbered *m* = 1, 2, ... | ``top``, keyed by a bucket
that *n* and *m* decide: each row is given its number *k* in the bucket, the ten words with the highest counts there so
far, and the end of a chain of hashes over all rows before it | Parquet.

Which occurrence of a word has which count, and comes to which place, is the interleaving's choice, and so is everything
behind it: a history that is continued by another one leaves gaps, doubles, or a row that does not follow from those
before it. What holds for every interleaving, and for nothing else, is what ``check`` checks.

Rules: ``after`` is the sequential model, for the job and for the check alike. Words come at a steady rate, except for
stalls of a source now and then, which the seed decides.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from typing_extensions import override

from experiments.exactness.strikes import COUNT, PLACE, SINK, STAGES, TOP, WORDS
from experiments.harness.workload import Probe, Trigger
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance

BUCKETS = 13
TOP_ROWS = 10
HASH_BYTES = 8
READERS = 1 << 16
"""More than the subtasks of any source."""
STALL_ONE_IN = 128
LONGEST_STALL_S = 0.008
WORDS_SCHEMA = "word string, i long"
BUCKETED = "word string, i long, reader long, n long, m long, bucket long"
RANKED = "bucket long, k long, i long, word string, n long, m long, top string, chain string, reader long"
READER = pa.field("reader", pa.int64(), nullable=False)
_MASK = (1 << 64) - 1


class Ranked(NamedTuple):
    """A row of the output."""

    bucket: int
    k: int
    i: int
    word: str
    n: int
    m: int
    top: str
    chain: str
    reader: int


Standing: TypeAlias = tuple[int, str, str]
"""Of a bucket: rows so far, the top words (``word:n,...``), the end of the chain."""

NOTHING: Standing = (0, "", "")


def bucket_of(n: int, m: int) -> int:
    """Where the word goes that was the ``m``-th to reach a count of ``n``."""
    return (31 * n + m) % BUCKETS


def after(before: Standing, i: int, word: str, n: int, m: int) -> Standing:
    """A bucket when one more row has come. Among equal counts who came first stands first; of a word, the last count
    stands, be it lower than the one before."""
    k, top, chain = before
    others = [entry for entry in top.split(",") if entry and entry.rpartition(":")[0] != word]
    at = sum(int(entry.rpartition(":")[2]) >= n for entry in others)
    # Words that have dropped out are forgotten, also if others fall later: the list depends on the order of rows.
    ranked = [*others[:at], f"{word}:{n}", *others[at:]][:TOP_ROWS]
    link = hashlib.blake2b(f"{chain}/{i}/{word}/{n}/{m}".encode(), digest_size=HASH_BYTES)
    return k + 1, ",".join(ranked), link.hexdigest()


@dataclass(frozen=True)
class Input:
    """Row ``i`` of the input; a pure function of ``i``, except for the time it takes."""

    seed: int
    vocabulary: int

    def __call__(self, i: int) -> tuple[str, int]:
        chance = _mixed(self.seed, i)
        if chance % STALL_ONE_IN == 0:
            time.sleep(LONGEST_STALL_S * (chance >> 40 & 0xFF) / 0xFF)
        return self.word(i), i

    def word(self, i: int) -> str:
        """Some words often, some seldom."""
        share = (_mixed(self.seed, ~i) >> 11) / 2.0**53
        return f"w{int(self.vocabulary * share * share)}"

    def words(self, rows: int) -> list[str]:
        """The first ``rows`` words."""
        return [self.word(i) for i in range(rows)]


def _mixed(seed: int, i: int) -> int:
    """64 bits that look random (the finish of splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + i * 0xD1B54A32D192ED03) & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def reader_of(parallelism: int, index: int) -> int:
    """The number of the subtask that reads: each parallelism has its own."""
    return parallelism * READERS + index


@dataclass(frozen=True)
class Reader(Operator):
    """Adds the column ``reader``: the subtask of the source with which it is fused."""

    name: str

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(READER)

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _ReaderInstance(reader_of(ctx.parallelism, ctx.index), ctx.input_schema.append(READER))


class _ReaderInstance(OperatorInstance):
    def __init__(self, reader: int, schema: pa.Schema) -> None:
        self._reader, self._schema = reader, schema

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        readers = pa.array([self._reader] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([*batch.columns, readers], schema=self._schema)


def with_bucket(row: Any) -> tuple[str, int, int, int, int, int]:
    return row.word, row.i, row.reader, row.n, row.m, bucket_of(row.n, row.m)


def ranked(bucket: int, row: Any, ctx: Any) -> list[Ranked]:
    """One row of the output for each of the input."""
    standing = ctx.state("standing")
    k, top, chain = after(standing.get(NOTHING), row.i, row.word, row.n, row.m)
    standing.put((k, top, chain))
    return [Ranked(bucket, k, row.i, row.word, row.n, row.m, top, chain, row.reader)]


def triggers(directory: Path) -> dict[str, Trigger]:
    """The order to raise for the subtasks of each stage, in a directory that slots and driver share."""
    return {stage: Trigger(directory / stage) for stage in STAGES}


def draw(
    env: StreamEnvironment,
    words: Callable[[int], tuple[str, int]],
    rows: int,
    rate: float,
    output: str,
    raises: dict[str, Trigger],
) -> None:
    """Draw the job; behind every stage, fused with it, is an operator that raises on request."""
    stream = _probed(env.generate(words, schema=WORDS_SCHEMA, count=rows, rate=rate, name=WORDS), raises)
    stream = stream._then(Reader("reader"))
    stream = _probed(stream.key_by("word").count(output="n", name=COUNT), raises)
    stream = _probed(stream.key_by("n").count(output="m", name=PLACE), raises)
    stream = stream.map(with_bucket, schema=BUCKETED, name="bucket")
    stream = _probed(stream.key_by("bucket").process(ranked, schema=RANKED, name=TOP), raises)
    stream.to_parquet(output, name=SINK)


def _probed(stream: Stream, raises: dict[str, Trigger]) -> Stream:
    return stream._then(Probe(f"{stream.name}-probe", raises[stream.name]))


def rows_of(table: Any) -> Iterator[Ranked]:
    """The rows of an Arrow table, as they stand."""
    return map(Ranked, *(table.column(name).to_pylist() for name in Ranked._fields))
