"""The job whose parallelism changes: WordCount at a steady rate, beside it a keyed state that is filled and kept.

The state is objects of ``KEPT_BYTES`` under whole numbers, put in as fast as the job takes them by a source of its own,
which has ended when anything is measured. An object depends on its key alone, and is not compressible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from experiments.harness.running import Context
from experiments.rescale.records import Recorder
from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.batch_check import BatchCheck
from flinkplus.cli.wordcount import COUNT, SINK, SOURCE, TOKENIZE
from flinkplus.operators.base.keys import keys_of
from flinkplus.operators.base.operator import KeyedOperator, KeyedState, OperatorContext, OperatorInstance

NUMBERS, KEEP, RECORD, KEPT_SINK = "numbers", "keep", "record", "kept"
KEPT_BYTES = 1_000
KEYS_PER_MB = 1_000_000 // KEPT_BYTES
WORDS_PER_OBJECT = KEPT_BYTES // 8
NAME = "rescale"
CHECKPOINTS, OUTPUT, RECORDS = "checkpoints", "out", "records"
FILL_RATE = 1.0
"""Words per second while the state is filled: the words are for later."""


def numbered(start: int, count: int) -> pa.RecordBatch:
    """Rows ``start`` to ``start + count`` of the source of the state."""
    return pa.record_batch({"key": np.arange(start, start + count, dtype=np.int64)})


def objects_of(numbers: npt.NDArray[np.int64]) -> list[bytes]:
    """The object of each number: the steps of a mixing generator that begins with it."""
    at = numbers.astype(np.uint64)[:, None] * np.uint64(WORDS_PER_OBJECT)
    mixed = (at + np.arange(WORDS_PER_OBJECT, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    data = mixed.tobytes()
    return [data[at : at + KEPT_BYTES] for at in range(0, len(data), KEPT_BYTES)]


@dataclass(frozen=True)
class Keep(KeyedOperator):
    """Keeps an object for each key, and passes its rows on."""

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _KeepInstance(ctx.keyed_state())


class _KeepInstance(OperatorInstance):
    def __init__(self, state: KeyedState) -> None:
        self._kept = state.object_state(KEEP)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        numbers = batch.column(0).to_numpy(zero_copy_only=False)
        self._kept.put_many(keys_of(numbers), objects_of(numbers))
        yield batch


@dataclass(frozen=True)
class RescaledJob:
    """The job in ``directory``: ``rate`` words per second of ``text``, and ``keys`` objects."""

    directory: Path
    text: Path
    words: int
    rate: float
    keys: int

    @property
    def records(self) -> Path:
        return self.directory / RECORDS

    def environment(self, context: Context[Any], options: dict[str, Any], rate: float | None = None) -> Any:
        """The job, drawn. ``rate``: another one for this run."""
        env = StreamEnvironment(context.spark, **options, checkpoint_dir=str(self.directory / CHECKPOINTS))
        words = env.read_text(str(self.text), name=SOURCE).tokenize("value", output="word", name=TOKENIZE)
        counts = words.throttle(self.rate if rate is None else rate).key_by("word").count(name=COUNT)
        recorded = counts._then(Recorder(RECORD, self.records, "word", "count"))
        recorded.to_parquet(str(self.directory / OUTPUT), name=SINK)
        if self.keys:
            numbers = env.generate(numbered, schema="key long", count=self.keys, batches=True, name=NUMBERS)
            numbers.key_by("key")._then(Keep(KEEP, ("key",))).discard(name=KEPT_SINK)
        return env

    def check(self, context: Context[Any]) -> BatchCheck:
        """Compare the output of the job, which has finished, with a batch count of the text."""
        return context.batch_check(self.directory / OUTPUT, self.text)
