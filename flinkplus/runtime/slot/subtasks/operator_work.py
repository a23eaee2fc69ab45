"""The work in a subtask's steps: batches go through the fused operators, a source is read at its rate.

Rules: called by the steps (``protocol.subtask.subtask``), in the slot's loop thread. Before a user's function gets
rows, what it is given is noted where it survives the process (``base.step_note``): an input that ends the process is
found that way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa

from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.steps import join
from flinkplus.protocol.channels.inputs import Bundle, InputChannel
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.subtask.replay import Replay
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.base.step_note import EDGE, PRODUCER, SEQ, Numbers
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.runtime.slot.subtasks.output_trace import OutputRecorder
from flinkplus.runtime.slot.subtasks.pacing import Pacer, Ticks
from flinkplus.runtime.transport.wire.message_format import Message, decode_records
from flinkplus.state.backend import SubtaskState

T = TypeVar("T")

MAX_JOINED_READ_S = 0.02
"""How long a source reads for steps that are repeated together: the slot's loop waits."""


def wall_ms() -> int:
    """The time of day, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _records(message: Message, payload: Any) -> pa.RecordBatch:
    return message.records if message.records is not None else decode_records(payload)


def _edge(item: tuple[Message, Any]) -> int:
    return item[0].channel.edge


class StepRandom:
    """The random numbers of each step. They follow from its number, so that nothing need be logged.

    ``seed``: of the job and the subtask.
    """

    def __init__(self, seed: str, history: StepHistory) -> None:
        self._seed = seed
        self._history = history
        self._random, self._random_of = random.Random(0), -1

    def __call__(self) -> random.Random:
        step = self._history.step_number
        if self._random_of != step:
            self._random_of = step
            self._random = random.Random(f"{self._seed}/{step}")
        return self._random


class CatchUp:
    """When a promoted, or restored, subtask has put out something that its predecessor had not.

    ``mark``: rows that its predecessor had put out, after a rollback.
    ``report``: called once.
    """

    def __init__(
        self, promotion: Promotion | None, mark: int | None, is_source: bool, replay: Replay, report: Callable[[], None]
    ) -> None:
        self._mark = mark  # without it, a promoted subtask knows which messages are new
        self._awaits_new = promotion is not None and mark is None
        self._marks = promotion.marks if promotion is not None else {}
        self._is_source = is_source
        self._replay = replay
        self._report = report

    def step_done(self, taken: Bundle, rows_out: int) -> None:
        """A step has ended; ``rows_out``: that the subtask has put out by now."""
        if self._mark is not None and rows_out > self._mark:
            self.reached()
        if self._awaits_new and not self._replay.determinants and self._has_new(taken):
            self.reached()

    def _has_new(self, taken: Bundle) -> bool:
        return self._is_source or any(self._is_new(end) for end, _ in taken)

    def _is_new(self, end: InputChannel) -> bool:
        """Whether a message was consumed that the failed incarnation cannot have received."""
        mark = self._marks.get(str(end.channel))
        return mark is not None and end.cursor.consumed > mark

    def reached(self) -> None:
        """The output has reached the position before the failure, or the end of input."""
        if self._mark is not None or self._awaits_new:
            self._mark, self._awaits_new = None, False
            self._report()


class OperatorWork:
    """``SubtaskWork`` with the fused operators of a vertex.

    ``note``: where the step under way is noted.
    ``note_row``: called with each row before a user's function gets it, when a process was lost; otherwise ``None``.
    ``counted``: the operator after which a source's rate counts.
    """

    def __init__(
        self,
        subtask: SubtaskId,
        operators: FusedOperators,
        state: SubtaskState | None,
        history: StepHistory,
        catch_up: CatchUp,
        pacer: Pacer,
        ticks: Ticks,
        counted: int,
        trace: OutputRecorder | None,
        note: Numbers,
    ) -> None:
        self._id = subtask
        self._operators = operators
        self._live = operators.live_reader
        self._idle_since: float | None = None
        self._failure: Exception | None = None
        self._state = state
        self._history = history
        self._catch_up = catch_up
        self.pacer = pacer
        self._ticks = ticks
        self._counted = operators.nodes[counted]
        self._trace = trace
        self._note = note

    @property
    def rows_counted(self) -> int:
        """Rows that have left the operator after which the rate counts."""
        return self._counted.rows_out

    def push(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        operators = self._operators
        self._note_message(messages[0][0])
        if operators.tells_inputs_apart:
            of_one_exchange = sorted(messages, key=_edge)
            for edge, run in groupby(of_one_exchange, key=_edge):
                yield from operators.push(merge([_records(*item) for item in run]), edge)
        else:
            yield from operators.push(merge([_records(*item) for item in messages]))

    @property
    def joins_steps(self) -> bool:
        return self._operators.joins_steps

    def push_together(self, steps: list[list[tuple[Message, Any]]]) -> list[Iterator[None]]:
        self._note_message(steps[0][0][0])
        batches = [[_records(*item) for item in step] for step in steps]
        rows = join(batches)
        return self._operators.push_together([[merge(step)] for step in batches] if rows is None else rows)

    def read_together(self, steps: list[int], max_bytes: int) -> tuple[list[Iterator[None]], bool]:
        self._raise_failure()
        operators = self._operators
        batches: list[list[pa.RecordBatch]] = []
        self._note[EDGE] = 0
        begun, read_rows, at_end = time.monotonic(), 0, False
        for choice in steps:
            if batches and (not self.can_read(choice) or self._failure is not None):
                break
            batch = operators.read(choice, self.rows_of(choice), read_rows)
            if batch is None:
                at_end = True
                break
            self._history.has_read(batch.num_rows)
            read_rows += batch.num_rows
            max_bytes -= batch.nbytes
            batches.append([batch] if batch.num_rows else [])
            if max_bytes <= 0 or time.monotonic() - begun > MAX_JOINED_READ_S:
                break
        return operators.push_together(batches), at_end

    def _note_message(self, message: Message) -> None:
        """The work to come is on a bundle of which ``message`` is the first."""
        note, channel = self._note, message.channel
        note[EDGE], note[PRODUCER], note[SEQ] = channel.edge + 1, channel.producer, message.seq

    def bundle_at(self, since: float) -> float:
        return self._ticks.at(since)

    @property
    def nothing_to_read(self) -> bool:
        live = self._live
        if live is None or self._asked(lambda: live.choose(1) is not None, True):
            self._idle_since = None
            return False
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        self.pacer.rest(now, self.rows_counted)
        return True

    @property
    def idle_at(self) -> float | None:
        if self._idle_since is None:
            return None
        after_ms = self._operators.idle_after_ms
        return None if after_ms is None else self._idle_since + after_ms / 1000

    def become_idle(self) -> Iterator[None]:
        self._idle_since = None  # the time begins again
        return self._operators.become_idle()

    @property
    def has_clock(self) -> bool:
        return self._operators.has_clock

    @property
    def clock_at(self) -> float | None:
        at_ms = self._operators.clock_at_ms
        return None if at_ms is None else time.monotonic() + at_ms / 1000 - time.time()

    @property
    def clock_due(self) -> bool:
        at_ms = self._operators.clock_at_ms
        return at_ms is not None and at_ms <= wall_ms()

    def tick(self) -> Iterator[None]:
        self._note[EDGE] = 0
        return self._operators.tick()

    def _asked(self, question: Callable[[], T], otherwise: T) -> T:
        """What the reader answers outside of a step; an error is raised in the next step, for which there is work."""
        if self._failure is not None:
            return otherwise
        try:
            return question()
        except Exception as error:
            self._failure = error
            return otherwise

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def gauges(self) -> dict[str, dict[str, int]]:
        """What the source says of this moment, by its name."""
        return self._asked(self._operators.gauges, {})

    def next_read(self) -> int | None:
        self._raise_failure()
        rows = self.pacer.rows(time.monotonic(), self.rows_counted)
        return rows if self._live is None else self._live.choose(rows)

    def can_read(self, choice: int) -> bool:
        live = self._live
        return live is None or self._asked(lambda: live.can_read(choice), True)

    def rows_of(self, choice: int) -> int:
        return choice if self._live is None else self._live.rows_of(choice)

    def read_rows(self, choice: int) -> Generator[None, None, bool]:
        self._raise_failure()
        operators = self._operators
        assert operators.reader is not None
        before = [member.rows_out for member in operators.nodes.values()]
        counted_before = self.rows_counted
        self._note[EDGE] = 0
        batch = operators.read(choice, self.rows_of(choice))
        if batch is None:
            return False
        self._history.has_read(batch.num_rows)
        if batch.num_rows:
            yield from operators.push(batch)
        widest = max(m.rows_out - b for m, b in zip(operators.nodes.values(), before, strict=True))
        self.pacer.after(batch.num_rows, widest, self.rows_counted - counted_before)
        return True

    def ready_at(self, now: float) -> float:
        return self.pacer.ready_at(now, self.rows_counted)

    def advance(self, watermark_ms: int) -> Iterator[None]:
        return self._operators.advance(watermark_ms)

    @property
    def holds_to_barrier(self) -> bool:
        return self._operators.holds_to_barrier

    def before_barrier(self) -> Iterator[None]:
        return self._operators.before_barrier()

    def flush(self) -> Iterator[None]:
        return self._operators.end()

    def step_done(self, taken: Bundle) -> None:
        if self._state is not None:
            self._state.spill_if_needed()
        if self._trace is not None:
            self._trace.note(self._operators.rows_out)
        self._catch_up.step_done(taken, self._operators.rows_out)

    def ended(self) -> None:
        self._catch_up.reached()
