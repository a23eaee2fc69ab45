"""The job that is struck: WordCount at a steady rate, with an operator that fails or keeps ballast when ordered to.

The operator ``probe``, fused behind ``count``, raises in the chosen subtask, once for each order, in mid-step: the rows
of the step are counted and not yet put out. The process that renames the order's file raises; a successor in another
process finds no file. The result does not change.

Ballast is keyed state that the stream never touches again: objects of ``BALLAST_BYTES`` random bytes, a few of them
with every batch until the job holds as many as were asked for, at some ``BALLAST_KEYS_PER_S``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from typing_extensions import override

from flinkplus.api.environment import StreamEnvironment
from flinkplus.cli.wordcount import COUNT, SINK, SOURCE, TOKENIZE
from flinkplus.operators.base.operator import JsonValue, KeyedState, Operator, OperatorContext, OperatorInstance

PROBE = "probe"
BALLAST_BYTES = 1_000
BALLAST_KEYS_PER_S = 40_000
SOURCE_BATCHES_PER_S = 50
ORDER_S, ORDER_POLL_S = 20.0, 0.005


class InjectedFailure(RuntimeError):
    """What ``probe`` raises when ordered to."""


@dataclass(frozen=True)
class Trigger:
    """The order to raise, as a file in a directory that the slots and the driver share."""

    directory: Path

    def pull(self, index: int) -> None:
        """Subtask ``index`` is to raise in its next step."""
        self._armed(index).touch()

    def take(self, index: int) -> bool:
        """Whether subtask ``index`` is to raise now: true once, for one process, which notes the time."""
        try:
            if not self._armed(index).exists():
                return False
            self._armed(index).rename(self._raised(index))
        except FileNotFoundError:
            return False
        self._raised(index).write_text(repr(time.time()))
        return True

    def raised_s(self, index: int) -> float | None:
        """When it raised, in seconds since the Unix epoch; ``None`` when it has not."""
        try:
            return float(self._raised(index).read_text() or "nan")
        except FileNotFoundError:
            return None

    def fire(self, index: int, check: Callable[[], None]) -> float:
        """Have subtask ``index`` raise; returns when it did, in seconds since the Unix epoch.

        ``check`` is called while waiting, and raises to end it. Raises ``TimeoutError`` when the subtask takes no step
        for ``ORDER_S``, and so does not read the order.
        """
        self._raised(index).unlink(missing_ok=True)
        self.pull(index)
        deadline_s = time.monotonic() + ORDER_S
        while (raised_s := self.raised_s(index)) is None or math.isnan(raised_s):
            check()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"partition {index} did not raise within {ORDER_S:g} s")
            time.sleep(ORDER_POLL_S)
        return raised_s

    def _armed(self, index: int) -> Path:
        return self.directory / f"{index}.armed"

    def _raised(self, index: int) -> Path:
        return self.directory / f"{index}.raised"


@dataclass(frozen=True)
class Probe(Operator):
    """Passes its rows on. ``trigger``: raises when ordered to; ``ballast_keys``: keyed state, over all subtasks."""

    name: str
    trigger: Trigger | None = None
    ballast_keys: int = 0

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        share = (self.ballast_keys + ctx.parallelism - 1 - ctx.index) // ctx.parallelism
        batches_per_s = SOURCE_BATCHES_PER_S * ctx.parallelism**2
        at_a_time = max(1, BALLAST_KEYS_PER_S // batches_per_s)
        return _ProbeInstance(self.trigger, ctx.index, share, at_a_time, ctx.keyed_state() if share else None)


class _ProbeInstance(OperatorInstance):
    def __init__(
        self, trigger: Trigger | None, index: int, share: int, at_a_time: int, state: KeyedState | None
    ) -> None:
        self._trigger = trigger
        self._index = index
        self._share = share
        self._at_a_time = at_a_time
        self._filled = 0
        self._ballast = None if state is None else state.object_state("ballast")

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._trigger is not None and self._trigger.take(self._index):
            raise InjectedFailure(f"subtask {self._index} was ordered to fail")
        if self._ballast is not None and self._filled < self._share:
            numbers = range(self._filled, min(self._share, self._filled + self._at_a_time))
            data = np.random.default_rng((self._index, self._filled)).bytes(BALLAST_BYTES * len(numbers))
            values = [data[at : at + BALLAST_BYTES] for at in range(0, len(data), BALLAST_BYTES)]
            self._ballast.put_many([b"%d/%d" % (self._index, number) for number in numbers], values)
            self._filled = numbers.stop
        yield batch

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return self._filled if self._share else None  # without ballast any parallelism may continue

    @override
    def restore(self, state: JsonValue) -> None:
        self._filled = state if isinstance(state, int) else 0


def draw(
    env: StreamEnvironment, text: str, output: str | None, rate: float | None, probe: Probe | None, repeat: int = 1
) -> None:
    """Draw the WordCount of ``text`` into Parquet files in ``output`` (``None``: counted and dropped)."""
    words = env.read_text(text, name=SOURCE, repeat=repeat).tokenize("value", output="word", name=TOKENIZE)
    if rate is not None:
        words = words.throttle(rate)
    counts = words.key_by("word").count(name=COUNT)
    if probe is not None:
        counts = counts._then(probe)
    if output is None:
        counts.discard(name=SINK)
    else:
        counts.to_parquet(output, name=SINK)
