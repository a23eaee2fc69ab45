"""The fused operators of one subtask: a tree of instances through which batches are pushed.

Rules: a push is a generator that yields when it has appended to an output, so that its driver can wait for room. It
must be exhausted before the next push or snapshot. Batches reach user functions and sinks with plain columns.
Row counters belong to the state: they are saved and restored with it, so replayed rows are not counted twice.

A watermark passes down the tree like a batch: rows that an operator emits because of it precede it. Where an operator
makes its own watermarks, those from above end, and its own follow the batch from which they were made.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from flinkplus.errors import CorruptState
from flinkplus.graph import JobGraph, Vertex
from flinkplus.operators.base.asking import AskingInstance
from flinkplus.operators.base.operator import (
    Operator,
    OperatorContext,
    OperatorInstance,
    WatermarkMaker,
)
from flinkplus.operators.base.steps import (
    StepBatches,
    batches_of,
    count_rows,
    count_steps,
    process_together,
    separate,
)
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS, IDLE_MS
from flinkplus.protocol.snapshot.handle import OperatorPart
from flinkplus.runtime.base.step_note import FIRST_ROW, OPERATOR, ROWS, TEXT_BYTES, Numbers, no_note
from flinkplus.runtime.slot.subtasks.fused_node import FusedNode, has_clock, reader_of
from flinkplus.sinks.base import RecipeWriter, Sink, SinkWriter
from flinkplus.sources.base import LiveReader, Source, SourceReader

NOTHING = OperatorPart(rows_in=0, rows_out=0)
"""Of an operator at the start of the job."""


class Exchanges(Protocol):
    """Where batches leave the subtask."""

    def append(self, edge: int, batch: pa.RecordBatch) -> Iterator[None]:
        """Append the batch to the output logs of ``edge``; yields between two appends to the same log."""

    def append_together(self, edge: int, steps: StepBatches) -> Sequence[Iterator[None]]:
        """For each of ``steps``, an iterator that appends its batches as ``append`` would."""

    def watermark(self, edge: int, watermark_ms: int) -> Iterator[None]:
        """Append a watermark to each output log of ``edge``, and yield."""


class FusedOperators:
    """The operators of one vertex in one subtask.

    ``joins_steps``: several steps may be repeated together; see ``OperatorInstance.joins_steps``.
    ``has_clock``: an operator may wait for the time of day. ``holds_to_barrier``: one holds rows back until a barrier.
    """

    def __init__(
        self,
        graph: JobGraph,
        vertex: Vertex,
        index: int,
        parallelism: int,
        generation: int,
        state: Any,
        exchanges: Exchanges,
        now_ms: Callable[[], int],
        rng: Callable[[], random.Random],
        note: Numbers | None = None,
        note_row: Callable[[object], None] | None = None,
    ) -> None:
        self._exchanges = exchanges
        self._note = no_note() if note is None else note
        self.nodes: dict[int, FusedNode] = {}
        for node_index, schema in graph.input_schemas(vertex).items():
            node = graph.nodes[node_index]
            name = f"{node.name}[{index}]"
            context = OperatorContext(
                node.name, name, index, parallelism, schema, state, now_ms=now_ms, rng=rng, note_row=note_row
            )
            fused = FusedNode(node, context)
            if isinstance(node.body, Operator):
                fused.instance = node.body.create(context)
            elif isinstance(node.body, Source):
                fused.reader = reader_of(node.body, index, parallelism)
            elif isinstance(node.body, Sink):
                fused.writer = node.body.writer(context, generation)
            self.nodes[node_index] = fused
        self.root = vertex.nodes[0]
        self._clocks = [i for i, fused in self.nodes.items() if isinstance(fused.instance, WatermarkMaker)]
        instances = {index: fused.instance for index, fused in self.nodes.items() if fused.instance is not None}
        self._timed = [(index, one) for index, one in instances.items() if has_clock(self.nodes[index].node)]
        self.has_clock = bool(self._timed)
        self._heard = frozenset(edge for edge in vertex.outputs if graph.hears_watermarks(edge))
        self._inputs = {edge: at for at, edge in enumerate(vertex.inputs)}
        self._by_input = self.nodes[self.root].instance if self._tells_inputs_apart() else None
        bodies = {index: fused.node.body for index, fused in self.nodes.items()}
        self._to_barrier = [at for at, body in bodies.items() if isinstance(body, Operator) and body.holds_to_barrier]
        self.holds_to_barrier = bool(self._to_barrier)
        self._last = [fused for fused in self.nodes.values() if not fused.node.children]
        joined = all(one.joins_steps for one in instances.values())
        self.joins_steps = self._by_input is None and not self._clocks and joined

    def _tells_inputs_apart(self) -> bool:
        instance = self.nodes[self.root].instance
        return instance is not None and type(instance).process_input is not OperatorInstance.process_input

    @property
    def tells_inputs_apart(self) -> bool:
        """Whether batches of different edges must not be pushed as one."""
        return self._by_input is not None

    @property
    def recipe_writer(self) -> RecipeWriter | None:
        """The writer of the sink whose rows are visible at once, if there is one."""
        found = [fused.writer for fused in self.nodes.values() if isinstance(fused.writer, RecipeWriter)]
        return found[0] if found else None

    @property
    def reader(self) -> SourceReader | None:
        return self.nodes[self.root].reader

    @property
    def live_reader(self) -> LiveReader | None:
        """The reader of a live source."""
        return self.reader if isinstance(self.reader, LiveReader) else None

    @property
    def asking(self) -> AskingInstance | None:
        """The operator whose rows wait for answers from outside."""
        instance = self.nodes[self.root].instance
        return instance if isinstance(instance, AskingInstance) else None

    def take_answers(self, asking: AskingInstance, choice: int) -> Iterator[None]:
        """Take answers at the root, and then what event time has waited for them."""
        self._begin(self.root, 0)
        yield from self._emit_all(self.root, asking.take(choice))
        yield from self._rise_of_makers()
        if asking.passed_ms is not None:
            yield from self._rise(self.root, asking.passed_ms)

    def push(self, batch: pa.RecordBatch, edge: int | None = None) -> Iterator[None]:
        """Take a batch at the root: from the source, or from an input channel of exchange ``edge``."""
        if self.reader is not None:
            yield from self._emit(self.root, batch)
        elif self._by_input is None or edge is None:
            yield from self._process(self.root, batch)
        else:
            self._begin(self.root, batch.num_rows)
            self.nodes[self.root].rows_in += batch.num_rows
            yield from self._emit_all(self.root, self._by_input.process_input(self._inputs[edge], batch))
        if self._clocks:
            yield from self._rise_of_makers()

    def _rise_of_makers(self) -> Iterator[None]:
        """The watermarks of operators that make them from the rows that have just passed."""
        for index in self._clocks:
            clock = self.nodes[index].instance
            assert isinstance(clock, WatermarkMaker)
            was_idle, clock.is_idle = clock.is_idle, False
            if clock.watermark_ms is not None:
                if was_idle:
                    yield from self._return(index, clock.watermark_ms)
                yield from self._rise(index, clock.watermark_ms)

    @property
    def watermark_ms(self) -> int | None:
        """The lowest watermark of the operators that have one, ms since the Unix epoch; ``None``: none has one yet."""
        known = (fused.watermark_ms for fused in self.nodes.values())
        return min((ms for ms in known if ms is not None), default=None)

    @property
    def idle_after_ms(self) -> int | None:
        """For how long the source may have nothing to read before ``become_idle``; ``None``: for ever, or it is idle.

        With several makers of watermarks: the longest time."""
        makers = self._makers_to_idle()
        return max((maker.idle_after_ms or 0 for maker in makers.values()), default=None)

    def become_idle(self) -> Iterator[None]:
        """The source had no rows for that time: event time does not wait for it any more, or is that of the clock."""
        for index, maker in self._makers_to_idle().items():
            if maker.becomes_idle():
                yield from self._send_down(index, IDLE_MS)
            elif maker.watermark_ms is not None:
                yield from self._rise(index, maker.watermark_ms)

    def _makers_to_idle(self) -> dict[int, WatermarkMaker]:
        makers = {index: self.nodes[index].instance for index in self._clocks}
        return {
            index: maker
            for index, maker in makers.items()
            if isinstance(maker, WatermarkMaker) and maker.idle_after_ms is not None and not maker.is_idle
        }

    def _return(self, index: int, watermark_ms: int) -> Iterator[None]:
        """Event time waits for the source again. Unless its watermark rises now, it is sent once more."""
        before_ms = self.nodes[index].watermark_ms
        if before_ms is not None and watermark_ms <= before_ms:
            yield from self._send_down(index, before_ms)

    def _send_down(self, index: int, watermark_ms: int) -> Iterator[None]:
        """Send a watermark to the exchanges behind a node, without any effect on the operators in between."""
        for child in self.nodes[index].node.children:
            if not isinstance(self.nodes[child].instance, WatermarkMaker):
                yield from self._send_down(child, watermark_ms)
        for edge in self.nodes[index].node.exchanges:
            if edge in self._heard:
                yield from self._exchanges.watermark(edge, watermark_ms)

    def push_together(self, steps: StepBatches) -> list[Iterator[None]]:
        """``push`` the batches of several steps at once. Returns for each step what appends its output."""
        appends: list[list[Iterator[None]]] = [[] for _ in range(count_steps(steps))]
        if self.reader is not None:
            self._emit_together(self.root, steps, appends)
        else:
            self._process_together(self.root, steps, appends)
        return [chain.from_iterable(each) for each in appends]

    def _process_together(self, index: int, steps: StepBatches, appends: list[list[Iterator[None]]]) -> None:
        fused = self.nodes[index]
        rows = count_rows(steps)
        self._begin(index, rows)
        fused.rows_in += rows
        if fused.writer is not None:
            if isinstance(fused.writer, RecipeWriter):  # whose rows belong to the step after which they are cut
                for own, batches in zip(appends, separate(steps), strict=True):
                    own.append(_written(fused.writer, batches))
            else:
                _write(fused.writer, batches_of(steps))
            fused.rows_out += rows
            self._note[OPERATOR] = 0
            return
        assert fused.instance is not None
        given = process_together(fused.instance, steps)
        self._note[OPERATOR] = 0
        self._emit_together(index, given, appends)

    def _emit_together(self, index: int, steps: StepBatches, appends: list[list[Iterator[None]]]) -> None:
        fused = self.nodes[index]
        fused.rows_out += count_rows(steps)
        for child in fused.node.children:
            self._process_together(child, steps, appends)
        for edge in fused.node.exchanges:
            for own, appending in zip(appends, self._exchanges.append_together(edge, steps), strict=True):
                own.append(appending)

    def advance(self, watermark_ms: int) -> Iterator[None]:
        """The watermark of the input channels has risen."""
        yield from self._advance(self.root, watermark_ms)

    @property
    def clock_at_ms(self) -> int | None:
        """The time of day that an operator waits for, in milliseconds since 1970; ``None``: none does."""
        return min((at_ms for _, one in self._timed if (at_ms := one.clock_at_ms) is not None), default=None)

    def tick(self) -> Iterator[None]:
        """The time of day may have come that operators wait for."""
        for index, instance in self._timed:
            self._begin(index, 0)
            yield from self._emit_all(index, instance.on_clock())

    def end(self) -> Iterator[None]:
        """All input has ended, and event time with it: flush every operator, upstream ones first."""
        for index, fused in self.nodes.items():
            if fused.instance is not None:
                self._begin(index, 0)
                yield from self._emit_all(index, fused.instance.on_watermark(END_OF_TIME_MS))
                self._begin(index, 0)
                yield from self._emit_all(index, fused.instance.end())

    def before_barrier(self) -> Iterator[None]:
        """A barrier is to be sent: operators emit what they hold back until then, upstream ones first."""
        for index in self._to_barrier:
            instance = self.nodes[index].instance
            assert instance is not None
            self._begin(index, 0)
            yield from self._emit_all(index, instance.before_barrier())

    def _process(self, index: int, batch: pa.RecordBatch) -> Iterator[None]:
        fused = self.nodes[index]
        self._begin(index, batch.num_rows)
        fused.rows_in += batch.num_rows
        if fused.writer is not None:
            fused.writer.write(batch)
            fused.rows_out += batch.num_rows
            self._note[OPERATOR] = 0
            return
        assert fused.instance is not None
        yield from self._emit_all(index, fused.instance.process(batch))

    def read(self, choice: int, rows: int, ahead: int = 0) -> pa.RecordBatch | None:
        """The rows of a choice of the source; ``None`` at its end.

        ``rows``: the highest number of them.
        ``ahead``: rows that were read and not pushed yet.
        """
        fused = self.nodes[self.root]
        assert fused.reader is not None
        self._begin(self.root, rows, fused.rows_out + ahead)
        batch = fused.reader.read(choice)
        self._note[OPERATOR] = 0
        return batch

    def _begin(self, index: int, rows: int, first: int | None = None) -> None:
        """Operator ``index`` begins to work on so many rows: that is noted. ``first``: the number of the first."""
        note = self._note
        note[FIRST_ROW] = self.nodes[index].rows_in if first is None else first
        note[ROWS], note[TEXT_BYTES] = rows, 0
        note[OPERATOR] = index + 1

    def _emit_all(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
        """Emit what an operator gives. Only while it makes that is it noted as the one that is working."""
        note, number = self._note, index + 1
        for batch in batches:
            note[OPERATOR] = 0
            yield from self._emit(index, batch)
            note[OPERATOR] = number
        note[OPERATOR] = 0

    def knows_rows_no_more(self) -> None:
        """Rows need not be noted any more before operators work on them."""
        for fused in self.nodes.values():
            fused.context.note_row = None

    def _emit(self, index: int, batch: pa.RecordBatch) -> Iterator[None]:
        fused = self.nodes[index]
        fused.rows_out += batch.num_rows
        for child in fused.node.children:
            yield from self._process(child, batch)
        for edge in fused.node.exchanges:
            yield from self._exchanges.append(edge, batch)

    def _advance(self, index: int, watermark_ms: int) -> Iterator[None]:
        fused = self.nodes[index]
        if isinstance(fused.instance, WatermarkMaker):
            return
        if fused.instance is not None:
            emitted_ms = watermark_ms - fused.instance.behind_ms
            if fused.watermark_ms is not None and emitted_ms <= fused.watermark_ms:
                return  # at another parallelism or in another program inputs may be behind those of before
            self._begin(index, 0)
            yield from self._emit_all(index, fused.instance.on_watermark(watermark_ms))
            if fused.instance.delays_watermark:
                return
            watermark_ms = emitted_ms
        yield from self._rise(index, watermark_ms)

    def _rise(self, index: int, watermark_ms: int) -> Iterator[None]:
        """The watermark after a node's output, if it is higher than the last one."""
        fused = self.nodes[index]
        if fused.watermark_ms is not None and watermark_ms <= fused.watermark_ms:
            return
        fused.watermark_ms = watermark_ms
        for child in fused.node.children:
            yield from self._advance(child, watermark_ms)
        for edge in fused.node.exchanges:
            if edge in self._heard:
                yield from self._exchanges.watermark(edge, watermark_ms)

    def stage(self, checkpoint: int) -> dict[str, OperatorPart]:
        """The operators' part of a snapshot: per operator its state, counters, position, staged output."""
        return {
            fused.node.name: OperatorPart(
                rows_in=fused.rows_in,
                rows_out=fused.rows_out,
                own=dict(fused.own),
                watermark_ms=fused.watermark_ms,
                position=fused.position_at(checkpoint),
                state=_state_of(fused, checkpoint),
                staged=() if fused.writer is None else tuple(fused.writer.stage(checkpoint)),
            )
            for fused in self.nodes.values()
        }

    def settle(self, saved: dict[str, OperatorPart]) -> dict[str, OperatorPart]:
        """Finish what sinks have set aside in ``stage``, and return the completed parts. In any thread. Raises the
        errors of the sinks."""
        settled = dict(saved)
        for fused in self.nodes.values():
            if fused.writer is not None:
                part = saved[fused.node.name]
                if isinstance(fused.writer, RecipeWriter):
                    part = replace(part, state=fused.writer.settled(part.state))
                settled[fused.node.name] = replace(part, staged=tuple(fused.writer.settle(part.staged)))
        return settled

    def restore(self, saved: dict[str, OperatorPart], promoted: bool = False) -> None:
        """Take back what ``stage`` gave, or begin at the start when ``saved`` is empty.

        ``promoted``: the job has gone on since; output that is staged may not be committed yet, and is still wanted.
        """
        for fused in self.nodes.values():
            if saved and fused.node.name not in saved:
                raise CorruptState(f"the snapshot of {fused.context.subtask} holds nothing of it")
            part = saved.get(fused.node.name, NOTHING)
            fused.rows_in, fused.rows_out, fused.watermark_ms = part.rows_in, part.rows_out, part.watermark_ms
            if fused.reader is not None:
                fused.reader.open(part.position)
            if fused.instance is not None and saved:
                fused.context.metrics.update(part.own)
                fused.instance.restore(part.state)
            if isinstance(fused.writer, RecipeWriter) and saved:
                fused.writer.restore(part.state)
            if fused.writer is not None and promoted:
                fused.writer.adopt(part.staged)

    def checkpoint_complete(self, checkpoint: int) -> None:
        for fused in self.nodes.values():
            fused.commit_position(checkpoint)
            if fused.instance is not None:
                fused.instance.checkpoint_complete(checkpoint)
            if fused.writer is not None:
                fused.writer.checkpoint_complete(checkpoint)

    def counters(self) -> dict[str, dict[str, int]]:
        """Per operator: rows in and out, and its own metrics."""
        counters = {}
        for fused in self.nodes.values():
            counters[fused.node.name] = {**fused.own, "rows_in": fused.rows_in, "rows_out": fused.rows_out}
        return counters

    def gauges(self) -> dict[str, dict[str, int]]:
        """What the source says of this moment, by its name."""
        return {} if self.reader is None else {self.nodes[self.root].node.name: dict(self.reader.gauges())}

    @property
    def rows_out(self) -> int:
        """Rows that left the last operators, of all branches: what the subtask has achieved."""
        return sum(fused.rows_out for fused in self._last)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:  # each of them, also when another one raises
            for fused in reversed(self.nodes.values()):
                if fused.closable is not None:
                    closing.callback(fused.closable.close)


def _write(writer: SinkWriter, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.write(batch)


def _written(writer: SinkWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
    """An iterator that writes the batches of a step; it waits for nothing."""
    _write(writer, batches)
    yield from ()


def _state_of(fused: FusedNode, checkpoint: int) -> Any:
    """What an operator's part of a snapshot has as its state. That of a writer which keeps a recipe is known when its
    rows are stored; until then it is the checkpoint."""
    if isinstance(fused.writer, RecipeWriter):
        return checkpoint
    return None if fused.instance is None else fused.instance.snapshot(checkpoint)
