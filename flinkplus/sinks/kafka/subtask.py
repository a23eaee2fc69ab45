"""A topic whose rows are visible at once, as the writer of one subtask stores in it, and the fence of one subtask.

What comes next is decided by ``protocol.checkpoints.subtask_output``; this carries it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import pyarrow as pa
from typing_extensions import assert_never, override

from flinkplus.errors import OutputError, OutputTopicError, OutputUnavailable
from flinkplus.operators.base.columns import plain
from flinkplus.protocol.checkpoints.subtask_output import (
    BEGUN,
    CLOSED,
    FenceEnd,
    FenceRefusal,
    OpenSubtaskName,
    Raise,
    ReadState,
    SubtaskFence,
    may_append,
    next_order,
    opened,
    read,
)
from flinkplus.protocol.determinants.recorded import Recorded
from flinkplus.sinks.at_once.store import Encoded, OutputStore, StepsUpdate
from flinkplus.sinks.kafka.recipe_records import ITSELF, Shown, Stored
from flinkplus.sinks.kafka.recipe_topic import RecipePartition
from flinkplus.sinks.kafka.records import RecordForm, Staged, content_of, records_in


class KafkaSubtask(OutputStore[list[Staged]]):
    """``place``: of the output, for errors. ``connect``: returns the partition of the subtask. ``reader``: what it is
    read with; entered from the writer's beginning to its end."""

    def __init__(
        self,
        sink: str,
        place: str,
        generation: int,
        schema: pa.Schema,
        form: RecordForm,
        connect: Callable[[], RecipePartition],
        reader: AbstractContextManager[object] | None = None,
    ) -> None:
        self._sink, self.place, self._generation = sink, place, generation
        self._schema, self._form = schema, form
        self._connect, self._reader = connect, reader
        self._entered = ExitStack()
        self._partition: RecipePartition | None = None
        self._opening = CLOSED
        self._behind: int | None = None
        """Where the first transaction after a connection must begin: otherwise not all was read."""
        self._places: deque[tuple[int, int]] = deque()

    @override
    def begin(self, has_successors: bool) -> None:
        if self._reader is not None:
            self._entered.enter_context(self._reader)

    @override
    def end(self) -> None:
        self._entered.close()

    @override
    def encoded(self, batches: Sequence[pa.RecordBatch]) -> Encoded:
        rows = [
            record
            for batch in batches
            for record in records_in(self._form.records(plain(batch, self._schema), self._sink))
        ]
        return Encoded(content_of(rows), rows)

    @property
    @override
    def is_connected(self) -> bool:
        return self._opening.phase == "known"

    @override
    def connect(self) -> Recorded | None:
        self._partition = partition = self._connect()
        partition.open()
        self._opening = opened(self._opening)
        stored, self._behind = partition.read()
        if stored is not None and stored.state.generation < self._generation:
            raise OutputUnavailable(
                f"{self.place}: the brokers show generation {stored.state.generation} of what makes rows again, not "
                f"yet {self._generation}"
            )
        self._opening = read(self._opening, None if stored is None else stored.state)
        self._places = deque(() if stored is None else stored.places)
        return self.recorded()

    @override
    def recorded(self) -> Recorded | None:
        state = self._opening.state
        return None if state is None else Recorded(state.generation, state.step, state.digest)

    @override
    def store(self, update: StepsUpdate, rows: Sequence[list[Staged]]) -> bool:
        partition, state = self._partition, self._opening.state
        if partition is None or state is None or not may_append(self._opening, self._generation, update.before):
            return False
        trimmed = max(state.trimmed, update.trim)
        after = replace(state, step=update.step, digest=update.digest, trimmed=trimmed)
        entries = [entry for _, entry in update.entries]
        while self._places and self._places[0][1] < trimmed:
            self._places.popleft()
        since = self._places[0][0] if self._places else ITSELF
        behind, self._behind = self._behind, None
        records = [record for some in rows for record in some]
        first, _ = partition.append(records, after, entries, since, behind)
        self._opening = read(self._opening, after)
        if entries:
            self._places.append((first, max(entry.checkpoint for entry in entries)))
        partition.trim(first if since == ITSELF else since)
        return True

    @override
    def disconnect(self) -> None:
        partition, self._partition, self._opening = self._partition, None, CLOSED
        if partition is not None:
            partition.close()

    @override
    def error(self, text: str) -> OutputError:
        return OutputTopicError(f"{self.place}: {text}")


def fence_subtask(partition: RecipePartition, fence: SubtaskFence, place: str) -> Stored | None:
    """What is stored of a subtask once ``fence`` is carried out; ``None``: nothing. Closes ``partition``.

    Raises ``OutputUnavailable``, and ``OutputTopicError`` if others write already. ``place``: for errors.
    """
    opening, shown = CLOSED, Shown(None, 0)
    try:
        while True:
            order = next_order(opening, fence)
            match order:
                case OpenSubtaskName():
                    partition.open()
                    opening = opened(opening)
                case ReadState():
                    shown = partition.read()
                    opening = read(opening, None if shown.stored is None else shown.stored.state)
                case Raise():
                    shown = _raised(partition, shown, order)
                    opening = read(opening, order.state)
                case FenceEnd():
                    return shown.stored
                case FenceRefusal():
                    raise OutputTopicError(f"{place}: {_why_refused(order, fence)}")
                case _:
                    assert_never(order)
    finally:
        partition.close()


def begin_recipe(partition: RecipePartition) -> None:
    """Write the first record, unless there is one: another driver may have begun meanwhile. Closes ``partition``."""
    try:
        partition.open()
        stored, end = partition.read()
        if stored is None:
            partition.append([], BEGUN, [], ITSELF, end)
    finally:
        partition.close()


def _raised(partition: RecipePartition, shown: Shown, order: Raise) -> Shown:
    """Write a state without rows, right behind what was read: otherwise the brokers had not shown all."""
    stored, end = shown
    begins = stored is None or stored.state.division < order.state.division
    entries, places = ((), ()) if stored is None or begins else (stored.entries, stored.places)
    since = places[0][0] if places else ITSELF
    _, last = partition.append([], order.state, [], since, end)
    return Shown(Stored(order.state, entries, places), last + 1)


def _why_refused(order: FenceRefusal, fence: SubtaskFence) -> str:
    match order.why:
        case "later":
            return f"a later generation than {fence.generation} writes already"
        case "parallelism":
            return (
                "the job has written its rows, which are visible at once, at parallelism "
                f"{order.state.parallelism}: resume it at that"
            )
    assert_never(order.why)
