"""``map_async``: a function that asks something outside for each row, several rows at a time.

Rules:

- a row waits from the step that takes it to the step that takes its answer. Rows that wait are in the snapshot, and are
  asked for again from there, so a call may be made more than once for a row; one answer counts;
- answers are stored before a step takes them (``stored``), if steps may be repeated. A choice is the distance from the
  number of the last answers taken to that of the next ones;
- with ``in_order`` rows are sent on in the order in which they came, otherwise in that of their answers, as stored;
- at another parallelism, subtask *i* of *n* takes the waiting rows of all *j* with ``j % n == i``.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.asking import AskingInstance
from flinkplus.operators.base.columns import cut, merge, plain
from flinkplus.operators.base.operator import (
    Inherited,
    JsonValue,
    Operator,
    OperatorContext,
    OperatorInstance,
    described_columns,
)
from flinkplus.operators.base.row import Row, rows_of
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.calls.caller import Caller, CallSettings, Outcome
from flinkplus.operators.calls.recorder import AnswerRecorder
from flinkplus.operators.calls.stored import AnswerFiles, numbers_after
from flinkplus.operators.rows.rejects import OnError, Rejects, check_on_error, dead_letter_outputs
from flinkplus.protocol.program.description import StateDescription

WAITING_ROWS = "waiting_rows"


@dataclass(frozen=True)
class MapAsync(Operator):
    """``fn(row)``, plain or a coroutine function, gives one row of ``schema``."""

    name: str
    fn: Callable[..., Any]
    schema: str | pa.Schema
    settings: CallSettings
    in_order: bool = True
    on_error: OnError = "fail"
    hears_watermarks = True
    holds_rows = True
    asks = True

    def check(self) -> None:
        """Raises ``ConfigurationError`` for settings that make no sense."""
        settings = self.settings
        check_on_error(self.name, self.on_error)
        if not callable(self.fn):
            raise ConfigurationError(f"operator {self.name!r}: {self.fn!r:.100} is not a function")
        for what, value, least in (("capacity", settings.capacity, 1), ("retries", settings.retries, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(
                    f"operator {self.name!r}: {what} must be a whole number, at least {least}, not {value!r}"
                )

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return parse_schema(self.schema)

    @override
    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        return dead_letter_outputs(self.name, schema, self.on_error)

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        return StateDescription(settings={"waiting rows": [str(column) for column in described_columns(schema)]})

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _MapAsyncInstance(self, ctx)


class _MapAsyncInstance(AskingInstance):
    """``_rows``: the rows that wait, by number: a batch, and the place in it. ``_marks``: watermarks that wait for the
    rows before a number."""

    def __init__(self, descriptor: MapAsync, ctx: OperatorContext) -> None:
        self._descriptor, self._ctx = descriptor, ctx
        self._schema = parse_schema(descriptor.schema)
        self._rejects = Rejects(ctx, descriptor.on_error)
        self._rows: dict[int, tuple[pa.RecordBatch, int]] = {}
        self._to_ask: deque[int] = deque()
        self._next = self._taken = 0
        self._taken_at: dict[int, int] = {}
        self._marks: deque[tuple[int, int]] = deque()
        self._latest_ms: int | None = None
        self._passed_ms: int | None = None
        self._caller: Caller | None = None
        self._recorder: AnswerRecorder | None = None
        ctx.metrics.setdefault(WAITING_ROWS, 0)

    @override
    def begin(self, location: str | None, woken: Callable[[Exception | None], None]) -> None:
        ctx, descriptor = self._ctx, self._descriptor
        self._recorder = AnswerRecorder(
            ctx.operator,
            ctx.subtask,
            self._schema,
            descriptor.in_order,
            descriptor.on_error == "fail",
            None if location is None else partial(AnswerFiles, location, ctx.operator, ctx.index),
            self._taken,
            ctx.parallelism if ctx.index == 0 else None,
            woken,
        )
        name = f"flinkplus-calls-{ctx.operator}"
        self._caller = Caller(descriptor.fn, descriptor.settings, self._recorder.came, name)

    # --- rows

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self._wait(plain(batch, self._ctx.input_schema))
        return ()

    def _wait(self, batch: pa.RecordBatch) -> None:
        first = self._next
        self._next += batch.num_rows
        self._rows.update({first + at: (batch, at) for at in range(batch.num_rows)})
        self._to_ask.extend(range(first, self._next))
        self._count()

    def _count(self) -> None:
        self._ctx.metrics[WAITING_ROWS] = len(self._rows)

    def _row(self, number: int) -> pa.RecordBatch:
        batch, at = self._rows[number]
        return batch.slice(at, 1)

    @property
    @override
    def waiting(self) -> int:
        return len(self._rows)

    @property
    @override
    def full(self) -> bool:
        return len(self._rows) >= self._descriptor.settings.capacity

    # --- asking

    @override
    def ask(self) -> None:
        caller, recorder = self._caller, self._recorder
        if not self._to_ask or caller is None or recorder is None:
            return
        numbers = [number for number in self._to_ask if number in self._rows]  # a repeated step took the others
        self._to_ask.clear()
        recorder.asked(numbers)
        shown: list[tuple[int, Row]] = []
        for number, row in zip(numbers, self._shown(numbers), strict=True):
            if isinstance(row, UserFunctionError):
                recorder.came(Outcome(number, row.row, error=row.cause))
            else:
                shown.append((number, row))
        if shown:
            caller.call(shown)

    def _shown(self, numbers: Sequence[int]) -> list[Row | UserFunctionError]:
        """The rows as the function gets them, or the errors of those that Python cannot represent."""
        if not numbers:
            return []
        try:
            return list(rows_of(self._gathered(numbers), self._ctx))
        except UserFunctionError as error:
            if len(numbers) == 1:
                return [error]
        half = len(numbers) // 2
        return [*self._shown(numbers[:half]), *self._shown(numbers[half:])]

    def _gathered(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """These rows as one batch."""
        runs: list[tuple[pa.RecordBatch, list[int]]] = []
        for batch, at in map(self._rows.__getitem__, numbers):
            if not runs or runs[-1][0] is not batch:
                runs.append((batch, []))
            runs[-1][1].append(at)
        return merge([batch.take(pa.array(places)) for batch, places in runs])

    # --- answers

    @override
    def repeats(self, choices: Sequence[int]) -> None:
        assert self._recorder is not None
        self._recorder.repeats(numbers_after(self._taken, choices))

    @override
    def choose(self) -> int | None:
        first = None if self._recorder is None else self._recorder.first()
        return None if first is None else first - self._taken

    @override
    def can_take(self, choice: int) -> bool:
        recorder = self._recorder
        return recorder is not None and (recorder.failed or recorder.first() == self._taken + choice)

    @override
    def take(self, choice: int) -> Iterator[pa.RecordBatch]:
        assert self._recorder is not None
        answers = self._recorder.take()
        self._taken += choice
        for at, text in answers.errors.items():
            error = UserFunctionError(self._ctx.operator, self._ctx.subtask, "", text)
            self._rejects.add(self._row(answers.numbers[at]), error)
        for number in answers.numbers:
            del self._rows[number]
        self._count()
        self._pass_marks()
        yield from cut(answers.rows)
        yield from self._rejects.flush()

    # --- event time

    @override
    def on_watermark(self, watermark_ms: int) -> Iterable[pa.RecordBatch]:
        self._latest_ms = watermark_ms
        self._marks.append((self._next, watermark_ms))
        self._pass_marks()
        return ()

    @property
    @override
    def delays_watermark(self) -> bool:
        return bool(self._marks)

    @property
    @override
    def passed_ms(self) -> int | None:
        return self._passed_ms

    def _pass_marks(self) -> None:
        if self._marks:
            oldest = next(iter(self._rows), self._next)  # rows wait in the order of their numbers
            while self._marks and self._marks[0][0] <= oldest:
                _, self._passed_ms = self._marks.popleft()

    # --- snapshots

    @override
    def snapshot(self, checkpoint: int) -> JsonValue:
        self._taken_at[checkpoint] = self._taken
        numbers = sorted(self._rows)
        return {
            "next": self._next,
            "taken": self._taken,
            "numbers": numbers,
            "rows": packed(self._gathered(numbers)) if numbers else "",
            "marks": list(map(list, self._marks)),
            "latest_ms": self._latest_ms,
        }

    @override
    def restore(self, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self._take_over(state["rows"], state["numbers"])
        self._next, self._taken = state["next"], state["taken"]
        self._marks = deque((before, mark_ms) for before, mark_ms in state["marks"])
        self._latest_ms = state["latest_ms"]
        self._count()

    def _take_over(self, rows: str, numbers: Sequence[int]) -> None:
        if numbers:
            batch = unpacked(rows, self._ctx.input_schema)
            self._rows.update({number: (batch, at) for at, number in enumerate(numbers)})
            self._to_ask.extend(numbers)

    @override
    def inherit(self, parts: Sequence[Inherited]) -> None:
        """Event time that all have reached waits for the rows; it has reached this subtask's inputs already."""
        states: list[Any] = [part.state for part in parts]
        for state in states[self._ctx.index :: self._ctx.parallelism]:
            if state["numbers"]:
                self._wait(unpacked(state["rows"], self._ctx.input_schema))
        known = [state["latest_ms"] for state in states]
        if known and None not in known:
            self.on_watermark(min(known))

    @override
    def checkpoint_complete(self, checkpoint: int) -> None:
        taken = self._taken_at.get(checkpoint)
        self._taken_at = {later: taken for later, taken in self._taken_at.items() if later > checkpoint}
        if taken is not None and self._recorder is not None:
            self._recorder.covered(taken)

    @override
    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
        if self._recorder is not None:
            self._recorder.close()


def packed(rows: pa.RecordBatch) -> str:
    """Rows as text, for a snapshot."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return base64.b64encode(zlib.compress(sink.getvalue(), 1)).decode()


def unpacked(text: str, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``packed``."""
    with pa.ipc.open_stream(zlib.decompress(base64.b64decode(text))) as reader:
        return plain(reader.read_next_batch(), schema)
