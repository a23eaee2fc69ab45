"""Rows on which an operator fails (``on_error``), and streams beside the main one (side outputs).

Rules:

- ``fail``: the first such row ends the job's attempt. ``skip``: the row is left out, and counted in the metric
  ``skipped_rows``. ``dead-letter``: it goes to the side output ``dead letters``, as it came, with the error; counted in
  ``dead_letters``.
- A row is rejected as a whole: what it had given before it failed is dropped.
- A batch that fails is tried again in halves, down to single rows. So a function is called for a row more than once.
- What is rejected, and with which text, follows from the rows alone: addresses of objects and the directories of files
  are taken out of texts.
- A batch for a side output carries its name in the metadata of its schema. The operators that are drawn behind
  (``SideOutput``) take what is theirs; no such batch goes further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import cut, merge, plain
from flinkplus.operators.base.operator import Inherited, JsonValue, Operator, OperatorContext, OperatorInstance
from flinkplus.printable import printable

OnError = Literal["fail", "skip", "dead-letter"]
CHOICES = ("fail", "skip", "dead-letter")
DEAD_LETTERS, LATE_ROWS = "dead letters", "late rows"
METHODS = {DEAD_LETTERS: "dead_letters()", LATE_ROWS: "late_rows()"}
"""What gives these side outputs of a stream; ``side_output(name)`` gives any."""
ADVICE = {DEAD_LETTERS: "; give it on_error='dead-letter'", LATE_ROWS: "; give its windows on_late='side-output'"}
SKIPPED_ROWS, DEAD_ROWS = "skipped_rows", "dead_letters"
LONGEST_REASON = 2_000
_TAG = b"flinkplus.side_output"
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
_DIRECTORY = re.compile(r"\((?:[^()]*[/\\])([^()/\\]+:\d+ in )")


def check_on_error(operator: str, on_error: str) -> None:
    """Raises ``ConfigurationError`` for another choice than ``CHOICES``."""
    if on_error not in CHOICES:
        raise ConfigurationError(f"operator {operator!r}: on_error must be one of {CHOICES}, not {on_error!r}")


def dead_letter_outputs(operator: str, schema: pa.Schema, on_error: str) -> dict[str, pa.Schema]:
    """The side outputs of an operator with an input of ``schema``. Raises ``ConfigurationError``."""
    check_on_error(operator, on_error)
    if on_error != "dead-letter":
        return {}
    added = [pa.field("operator", pa.string(), nullable=False), pa.field("error", pa.string(), nullable=False)]
    for field in added:
        if field.name in schema.names:
            raise ConfigurationError(
                f"operator {operator!r}: dead letters have the columns of the input, operator and error; the input has "
                f"a column {field.name!r}: rename it before"
            )
    return {DEAD_LETTERS: pa.schema([*schema, *added])}


def stable(cause: str) -> str:
    """The text of an error without what differs from process to process."""
    return printable(_DIRECTORY.sub(r"(\1", _ADDRESS.sub("0x", cause)), LONGEST_REASON)


def tagged(batch: pa.RecordBatch, output: str) -> pa.RecordBatch:
    """``batch``, for a side output."""
    return batch.replace_schema_metadata({_TAG: output.encode()})


def tag_of(batch: pa.RecordBatch) -> bytes | None:
    """The name of the side output that a batch is for; ``None``: the main output."""
    metadata = batch.schema.metadata
    return None if metadata is None else metadata.get(_TAG)


@dataclass(frozen=True)
class SideOutput(Operator):
    """Of the batches of the operator before it, those of one side output; of the main one if ``output`` is ``None``.

    ``operator``: the operator before it.
    """

    name: str
    operator: str
    output: str | None
    schema: pa.Schema

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return self.schema

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _SideOutputInstance(None if self.output is None else self.output.encode())


class _SideOutputInstance(OperatorInstance):
    joins_steps = True

    def __init__(self, output: bytes | None) -> None:
        self._output = output

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        tag = tag_of(batch)
        if tag != self._output:
            return ()
        return [batch if tag is None else batch.replace_schema_metadata(None)]


class Rejects:
    """The rows that one operator has rejected since the last ``flush``."""

    def __init__(self, ctx: OperatorContext, on_error: str) -> None:
        self._ctx = ctx
        self._schema = dead_letter_outputs(ctx.operator, ctx.input_schema, on_error).get(DEAD_LETTERS)
        self._metric = SKIPPED_ROWS if self._schema is None else DEAD_ROWS
        self._rows: list[pa.RecordBatch] = []
        self._reasons: list[str] = []
        ctx.metrics.setdefault(self._metric, 0)

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, row: pa.RecordBatch, error: UserFunctionError) -> None:
        """Take the only row of a batch."""
        self._rows.append(row)
        self._reasons.append(stable(error.cause))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Count the rows, and give them for the side output, if there is one."""
        if not self._reasons:
            return
        self._ctx.metrics[self._metric] += len(self._reasons)
        if self._schema is not None:
            rows = merge([plain(row, self._ctx.input_schema) for row in self._rows])
            operators = pa.array([self._ctx.operator] * rows.num_rows, pa.string())
            columns = [*rows.columns, operators, pa.array(self._reasons, pa.string())]
            yield from cut(tagged(pa.RecordBatch.from_arrays(columns, schema=self._schema), DEAD_LETTERS))
        self._rows, self._reasons = [], []


def rejecting(instance: OperatorInstance, ctx: OperatorContext, on_error: str) -> OperatorInstance:
    """``instance``, with what ``on_error`` says of rows on which it fails.

    A batch on which ``process`` has failed must have left nothing in its state.
    """
    return instance if on_error == "fail" else _Rejecting(instance, Rejects(ctx, on_error))


class _Rejecting(OperatorInstance):
    def __init__(self, instance: OperatorInstance, rejects: Rejects) -> None:
        self._instance = instance
        self._rejects = rejects
        self.joins_steps = instance.joins_steps

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        given = self._tried(batch)
        if not len(self._rejects):
            yield from given
            return
        outputs: dict[bytes | None, list[pa.RecordBatch]] = {}
        for each in given:
            outputs.setdefault(tag_of(each), []).append(each)
        for batches in outputs.values():
            yield from cut(merge(batches))
        yield from self._rejects.flush()

    def _tried(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        try:
            return list(self._instance.process(batch))
        except UserFunctionError as error:
            if batch.num_rows == 1:
                self._rejects.add(batch, error)
                return []
        half = batch.num_rows // 2
        return [*self._tried(batch.slice(0, half)), *self._tried(batch.slice(half))]

    @override
    def on_watermark(self, watermark_ms: int) -> Iterable[pa.RecordBatch]:
        return self._instance.on_watermark(watermark_ms)

    @property
    @override
    def clock_at_ms(self) -> int | None:
        return self._instance.clock_at_ms

    @override
    def on_clock(self) -> Iterable[pa.RecordBatch]:
        return self._instance.on_clock()

    @override
    def end(self) -> Iterable[pa.RecordBatch]:
        return self._instance.end()

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        self._instance.inherit(parts)

    @override
    def checkpoint_complete(self, checkpoint: int) -> None:
        self._instance.checkpoint_complete(checkpoint)

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        return self._instance.snapshot(checkpoint)

    @override
    def restore(self, state: JsonValue) -> None:
        self._instance.restore(state)

    @override
    def close(self) -> None:
        self._instance.close()
