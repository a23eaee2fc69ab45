"""One subtask at work: fused operators and state, driven by the slot's loop.

Which step comes next, what is taken, blocked, repeated, sent again or let go is the protocol's
(``flinkplus.protocol.subtask.subtask``); this is the work in it, the snapshots' content, and the ways to coordinator
and chain.

Rules: called by the slot's loop thread only, except ``persist`` of the state, which runs in the snapshot pool and
comes back as an event. An exception anywhere in a step is the subtask's failure.
"""

from __future__ import annotations

import base64
import contextlib
import random
import time
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from dedup.filter import MessageFilter
from flinkplus.config import Options
from flinkplus.errors import ControlMessageTooLarge, CorruptState
from flinkplus.graph import JobGraph, Vertex
from flinkplus.operators.base.columns import merge
from flinkplus.operators.base.routes import partitioner
from flinkplus.operators.base.row import short_repr
from flinkplus.protocol.channels.channel import InputCursor
from flinkplus.protocol.job.crashes import KEPT_CHECKPOINTS
from flinkplus.protocol.subtask.incarnation import Incarnation, Promotion
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.subtask.work import Taken
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause, Logs, in_flight_bytes
from flinkplus.runtime.base.step_note import EDGE, OPERATOR, PRODUCER, SEQ, SUBTASK, Numbers, StepNote, no_note
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.faults.points import CURSOR, DETERMINANTS, DIGESTS, FILTER, left_out
from flinkplus.runtime.slot.subtasks.ablation import PartialAdmission, UncheckedCursor, without
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.runtime.slot.subtasks.output_gate import InputChannel, InputGate, OutputGate
from flinkplus.runtime.slot.subtasks.output_trace import OutputRecorder
from flinkplus.runtime.slot.subtasks.pacing import Pacer
from flinkplus.runtime.transport.wire.wire import (
    Message,
    decode_frame,
    decode_records,
    digest_of,
    encode,
    encode_records,
)
from flinkplus.state.backend import SubtaskState
from flinkplus.state.store import Aside
from flinkplus.state.versions import PendingSnapshot
from upstream_cache.retention import Retention

HANDLE_FORMAT = 1
REPLAY_SLICE_S = 0.002
PACKED_AT_ONCE_BYTES = 64 << 10
"""Of messages that were in flight; more are packed beside the stream."""

__all__ = ["HANDLE_FORMAT", "Promotion", "Subtask", "SubtaskPlan", "SubtaskPorts"]


@dataclass(kw_only=True)
class SubtaskPlan(Incarnation):
    """What a deployment, or a promotion, tells a subtask. ``salt``: what makes random numbers those of this job.
    ``notes_rows``: a process was lost, so rows are noted before users' functions get them."""

    graph: JobGraph
    vertex: Vertex
    options: Options
    handle: dict[str, Any]
    mark: int | None
    salt: str
    notes_rows: bool = False


@dataclass
class SubtaskPorts:
    """What a subtask may ask of its slot."""

    report: Callable[[control.ControlMessage], None]
    send: Callable[[int, list[Any]], None]
    hand_over: Callable[[Message, Any], None]
    grant: Callable[[Generation, InputChannel, int], None]
    reach: Callable[[str, str], None]
    persist: Callable[[SubtaskId, CheckpointId, Callable[[], dict[str, Any]]], None]
    tend: Callable[[SubtaskState], object]
    beside: Aside
    state: Callable[[SubtaskPlan], SubtaskState]
    retention: Retention[tuple[Message, Any]] | None
    snapshotted: Callable[[SubtaskId, Generation, dict[str, Any]], None]
    seen: Callable[[], MessageFilter | None]
    note: StepNote | None = None


@dataclass
class Pending:
    """The asynchronous part of a snapshot: the frozen keyed state (if any) and the rest of the handle."""

    frozen: PendingSnapshot | None
    rest: dict[str, Any] = field(default_factory=dict)
    copied: float = 0.0


def _records(message: Message, payload: Any) -> pa.RecordBatch:
    return message.records if message.records is not None else decode_records(payload)


class Subtask(SubtaskSteps):
    """One active subtask of one generation."""

    outputs: OutputGate
    _sound_from: CheckpointId | None = None  # the first that was begun behind what is to be repeated

    def __init__(self, plan: SubtaskPlan, ports: SubtaskPorts) -> None:
        self.plan = plan
        self._ports = ports
        self._note: Numbers = no_note() if ports.note is None else ports.note.numbers
        self._number = 1 + plan.graph.vertices.index(plan.vertex) * plan.options.parallelism + plan.subtask.index
        self._pending: dict[CheckpointId, Pending] = {}
        self._in_pool: set[CheckpointId] = set()
        self._random, self._random_of = random.Random(0), -1
        self.busy_s = 0.0
        graph, vertex, options = plan.graph, plan.vertex, plan.options
        saved = plan.handle.get("operator_state", {})
        omitted = left_out(options.faults)
        if omitted:
            plan.promotion = without(omitted, plan.promotion)
        promotion = plan.promotion
        unfiltered = vertex.is_source or not plan.guarantee.repeats or {FILTER, DIGESTS} <= omitted
        seen = None if unfiltered else ports.seen()
        super().__init__(plan, saved, vertex.is_source, bool(vertex.outputs), options.local, seen)
        if omitted:
            self.admission = PartialAdmission(self.id, seen, self._digest_of, omitted)
        if DETERMINANTS in omitted:
            self._steps = self._ancestors = None
        self._marks = promotion.marks if promotion is not None else {}
        self.outputs = OutputGate(
            plan.generation,
            options.window,
            options.batch_rows,
            ports.send,
            ports.hand_over,
            ports.retention,
            options.standbys and plan.guarantee.replays,
            self._steps,
            self._ancestors,
            self._digest_of,
        )
        self.inputs = InputGate(
            options.window,
            lambda end, consumed: ports.grant(self.generation, end, consumed),
            UncheckedCursor if CURSOR in omitted else InputCursor,
            plan.unaligned,
        )
        self.state: SubtaskState | None = ports.state(plan) if graph.has_keyed_state(vertex) else None
        self.operators: FusedOperators | None = None
        traced = options.trace_output if graph.has_sink(vertex) else None
        self._trace = None if traced is None else OutputRecorder(traced, str(self.id), self.generation)
        try:
            self._restore()
        except BaseException:
            self.close()
            raise
        plan.handle = {}  # what was in flight in it may be large
        self._mark = plan.mark  # without it, a promoted subtask is told which messages are new
        self._alignment_began: float | None = None
        self._fresh = promotion is not None and self._mark is None  # nothing new was put out since the promotion
        self._pacer, self._rate_node, self._rate = self._make_pacer()
        self._run, self._run_base = saved.get("run", (-1, 0))

    def _restore(self) -> None:
        plan = self.plan
        handle = plan.handle
        if handle and handle.get("format") != HANDLE_FORMAT:
            raise CorruptState(
                f"snapshot of {self.id}: format {handle.get('format')!r:.100}, this program reads {HANDLE_FORMAT}"
            )
        if self.state is not None and handle:
            self.state.restore(handle)
        saved = handle.get("operator_state", {})
        parallelism = plan.options.parallelism
        self.add_inputs(saved, list(plan.graph.inputs_of(self.id, parallelism)))
        for edge in plan.vertex.outputs:
            consumer = plan.graph.consumer_vertex(edge).name
            peers = self.peers(edge, [SubtaskId(consumer, index) for index in range(parallelism)])
            first = saved.get("outputs", {})
            exchange = plan.graph.exchanges[edge]
            split = partitioner(exchange.route, exchange.columns, self.id.index, len(peers))
            self.outputs.add_edge(edge, split, self.id.index, peers, first, edge in plan.cycles.back_edges)
        self.operators = FusedOperators(
            plan.graph,
            plan.vertex,
            self.id.index,
            parallelism,
            plan.generation,
            self.state,
            self.outputs,
            self.now_ms,
            self._rng,
            self._note,
            self._note_row if plan.notes_rows else None,
        )
        self.operators.restore(saved.get("operators", {}), plan.promotion is not None)
        self.begin_from(saved)

    @property
    def _counted(self) -> int:
        """Rows that have left the operator that the rate counts at."""
        assert self.operators is not None
        return self.operators.nodes[self._rate_node].rows_out

    def _make_pacer(self) -> tuple[Pacer, int, float | None]:
        assert self.operators is not None
        nodes = self.operators.nodes
        rated = [index for index, fused in nodes.items() if fused.node.rate is not None]
        rate_node = rated[0] if rated else self.operators.root
        rate = nodes[rate_node].node.rate
        options = self.plan.options
        share = None if rate is None else rate / options.parallelism
        turn = self.id.index / options.parallelism
        return Pacer(share, options.batch_rows, options.paced_flush_interval, turn), rate_node, share

    # --- driven by the slot's loop

    def begin(self, run: int, run_age_s: float) -> None:
        """Begin to work (``start``) in this run of the job.

        ``run_age_s``: how long ago this run of the job first started; paced rows arrive from then on, beginning
        with the first one that no earlier run has read.
        """
        if run != self._run:
            self._run, self._run_base = run, self._counted
        rate = self._rate or 1.0
        self._pacer.begin(time.monotonic() - run_age_s - self._run_base / rate)
        self.start()

    def consumer_of(self, channel: ChannelId) -> SubtaskId:
        """The subtask at the other end of an output channel."""
        return SubtaskId(self.plan.graph.consumer_vertex(channel.edge).name, channel.consumer)

    def run(self) -> None:
        """See ``SubtaskSteps``; what it takes counts as busy.

        Steps that are repeated follow each other at once, for a while: others wait for what comes behind them.
        """
        begun = time.perf_counter()
        note = self._note
        note[OPERATOR] = 0
        note[SUBTASK] = self._number
        try:
            super().run()
            while self.repeats_on and time.perf_counter() - begun < REPLAY_SLICE_S:
                super().run()
        except Exception:  # which is reported; one that ends the process, such as ``SystemExit``, leaves its note
            note[OPERATOR] = note[SUBTASK] = 0
            raise
        note[SUBTASK] = 0
        self.busy_s += time.perf_counter() - begun

    def stand_in_for(self, failed: Collection[SubtaskId]) -> None:
        """Have the turns of a source's ``failed`` subtasks not be missed: the last living one before each reads then.

        What is downstream of the source would hear of nobody for two turns otherwise.
        """
        if not self._is_source or self._rate is None:
            return
        parallelism = self.plan.options.parallelism
        missing = {subtask.index for subtask in failed if subtask.vertex == self.id.vertex}
        turn = self.plan.options.paced_flush_interval / parallelism
        index = (self.id.index + 1) % parallelism
        while index in missing:
            self._pacer.stand_in(time.monotonic(), index / parallelism, turn)
            index = (index + 1) % parallelism

    def _ready_at(self, now: float) -> float:
        return self._pacer.ready_at(now, self._counted)

    def _on_step_done(self, taken: Taken) -> None:
        assert self.operators is not None
        if self.state is not None:
            self.state.spill_if_needed()
        if self._trace is not None:
            self._trace.note(self.operators.rows_out)
        if self._mark is not None and self.operators.rows_out > self._mark:
            self._caught_up()
        if self._fresh and not self._replay and (self._is_source or any(self._is_new(end) for end, _ in taken)):
            self._caught_up()

    def _is_new(self, end: InputChannel) -> bool:
        """Whether a message was consumed that the failed one cannot have had."""
        mark = self._marks.get(str(end.channel))
        return mark is not None and end.cursor.consumed > mark

    def _caught_up(self) -> None:
        """What was put out before a failure is reached again (or the end is: there is nothing beyond)."""
        if self._mark is not None or self._fresh:
            self._mark, self._fresh = None, False
            self._ports.report(control.Progressed(self.generation, str(self.id), time.time()))

    def _on_end(self) -> None:
        self._caught_up()

    def _on_point(self, point: str) -> None:
        if point == "alignment" and sum(end.blocked for end in self.inputs.channels.values()) == 1:
            self._alignment_began = time.perf_counter()
        self._ports.reach(point, str(self.id))

    def _report_exhausted(self) -> None:
        self._ports.report(control.Exhausted(self.generation, str(self.id)))

    # --- the work

    def _push(self, message: Message, payload: Any) -> Iterator[None]:
        assert self.operators is not None
        self._note_message(message)
        return self.operators.push(_records(message, payload), message.channel.edge)

    def _note_message(self, message: Message) -> None:
        """The work to come is on ``message``, or on several of which that is the first."""
        note, channel = self._note, message.channel
        note[EDGE], note[PRODUCER], note[SEQ] = channel.edge + 1, channel.producer, message.seq

    def _note_row(self, row: object) -> None:
        if self._ports.note is not None:
            self._ports.note.row(short_repr(row))

    def _push_many(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        assert self.operators is not None
        self._note_message(messages[0][0])
        if self.operators.tells_inputs_apart:
            for edge, run in groupby(messages, lambda item: item[0].channel.edge):
                yield from self.operators.push(merge([_records(*item) for item in run]), edge)
        else:
            yield from self.operators.push(merge([_records(*item) for item in messages]))

    def _rows_to_read(self) -> int:
        return self._pacer.rows(time.monotonic(), self._counted)

    def _read_rows(self, rows: int) -> Generator[None, None, bool]:
        operators = self.operators
        assert operators is not None and operators.reader is not None
        before = [fused.rows_out for fused in operators.nodes.values()]
        rate_before = self._counted
        self._note[EDGE] = 0
        batch = operators.read(rows)
        if batch is None:
            return False
        self.has_read(batch.num_rows)
        if batch.num_rows:
            yield from operators.push(batch)
        widest = max(fused.rows_out - b for fused, b in zip(operators.nodes.values(), before, strict=True))
        self._pacer.after(batch.num_rows, widest, self._counted - rate_before)
        return True

    def _advance(self, watermark_ms: int) -> Iterator[None]:
        assert self.operators is not None
        return self.operators.advance(watermark_ms)

    def _digest(self, message: Message, payload: Any) -> int:
        return digest_of(message, payload)

    def _wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _rng(self) -> random.Random:
        """The random numbers of the step under way: they follow from its number, so there is nothing to be logged."""
        if self._random_of != self.step_number:
            self._random_of = self.step_number
            self._random = random.Random(f"{self.plan.salt}/{self.id}/{self.step_number}")
        return self._random

    def _flush(self) -> Iterator[None]:
        assert self.operators is not None
        return self.operators.end()

    # --- snapshots

    def _on_complete(self, checkpoint: CheckpointId) -> None:
        assert self.operators is not None
        self.operators.checkpoint_complete(checkpoint)
        if self._sound_from is not None and checkpoint >= self._sound_from + KEPT_CHECKPOINTS:
            self.operators.knows_rows_no_more()
        state = self.state
        if state is not None:
            self._ports.beside(lambda: state.checkpoint_complete(checkpoint))

    def _acknowledge(self, checkpoint: CheckpointId, handle: dict[str, Any]) -> None:
        try:
            self._ports.report(control.Acknowledged(self.generation, checkpoint, str(self.id), handle))
        except ControlMessageTooLarge as error:
            cause = AbortCause.OVER_BUDGET if in_flight_bytes(handle) else AbortCause.OTHER
            self._decline(checkpoint, str(error), cause)
        else:
            self._ports.reach("acknowledged", str(self.id))
            self._ports.snapshotted(self.id, self.generation, handle)

    def _decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        self._ports.report(control.Declined(self.generation, checkpoint, str(self.id), reason, cause.value))

    def _pack(self, message: Message, payload: Any) -> str:
        if message.records is not None:
            payload = encode_records(message.records)
        return base64.b64encode(b"".join(encode(message, payload if payload is not None else b""))).decode()

    def _unpack(self, packed: str) -> tuple[Message, Any]:
        return next(decode_frame(base64.b64decode(packed)))

    def _discard(self, checkpoint: CheckpointId) -> None:
        self._pending.pop(checkpoint, None)

    def _take_snapshot(self, checkpoint: CheckpointId) -> None:
        assert self.operators is not None
        if self._sound_from is None and not self.repeating:
            self._sound_from = checkpoint
        begun, begun_s = time.perf_counter(), time.time()
        saved = {
            "operators": self.operators.stage(checkpoint),
            **self.saved_cursors(checkpoint),
            "drained": self._draining,
            "run": (self._run, self._run_base),
        }
        rest = {
            "format": HANDLE_FORMAT,
            "subtask": str(self.id),
            "generation": self.generation,
            "checkpoint": checkpoint,
        }
        if self.state is not None:
            self._pending[checkpoint] = Pending(self.state.freeze(checkpoint, saved))
        else:
            rest |= {"files": [], "operator_state": saved, "bytes_new": 0, "bytes_total": 0, "keys": 0, "async_ms": 0.0}
            self._pending[checkpoint] = Pending(None, rest)
        self._pending[checkpoint].rest |= {
            "begun_s": begun_s,
            "alignment_ms": (begun - (self._alignment_began or begun)) * 1e3,
            "sync_ms": (time.perf_counter() - begun) * 1e3,
        }
        self._pending[checkpoint].copied = begun
        self._alignment_began = None
        self._ports.reach("snapshot", str(self.id))

    def _persist(self, checkpoint: CheckpointId) -> None:
        pending = self._pending.pop(checkpoint)
        state, logs = self.state, self.logs_of(checkpoint)
        frozen, rest = pending.frozen, pending.rest
        in_flight = sum(log.size_bytes for log in logs.values())
        if self.plan.unaligned and logs:
            rest["overtaken"] = True
            rest["alignment_ms"] += (time.perf_counter() - pending.copied) * 1e3
        operators = self.operators
        assert operators is not None
        little = frozen is None and in_flight <= PACKED_AT_ONCE_BYTES
        if little and not (self._in_pool or self.plan.options.standbys or self.plan.graph.has_sink(self.plan.vertex)):
            self._add_logged(rest, logs)
            self.persisted(checkpoint, rest, "")
            return

        def work() -> dict[str, Any]:
            begun = time.perf_counter()
            handle = rest
            if state is not None and frozen is not None:
                self._ports.reach("upload", str(self.id))
                handle = {**state.persist(frozen), **rest}
            operators.settle(handle["operator_state"]["operators"])
            self._add_logged(handle, logs)
            handle["async_ms"] = round((time.perf_counter() - begun) * 1e3, 3)
            if state is not None and frozen is not None:
                self._ports.reach("uploaded", str(self.id))
                self._ports.tend(state)
            return handle

        self._in_pool.add(checkpoint)
        self._ports.persist(self.id, checkpoint, work)

    def persisted(self, checkpoint: CheckpointId, handle: dict[str, Any] | None, reason: str) -> None:
        """See ``SubtaskSnapshots``. In the order of the copies: none passes those that are in the pool."""
        self._in_pool.discard(checkpoint)
        super().persisted(checkpoint, handle, reason)

    def _add_logged(self, handle: dict[str, Any], logs: Logs) -> None:
        """What was in flight, known only now, becomes a part of the state that was copied before."""
        if logs:
            self.add_logs(logs, handle["operator_state"])

    # --- the end

    def counters(self) -> dict[str, Any]:
        """Progress for the heartbeat."""
        assert self.operators is not None
        return {
            "rows_out": self.operators.rows_out,
            "operators": self.operators.counters(),
            "keys": self.state.state_keys() if self.state is not None else 0,
            "bytes": self.state.state_bytes() if self.state is not None else 0,
            "busy_s": round(self.busy_s, 6),
            "payload_bytes": self.outputs.payload_bytes,
            "determinant_bytes": self.outputs.determinant_bytes,
            "blocked": self._blocked,
            "behind": self._behind,
            "waiting": sum(len(end.queue) for end in self.inputs.channels.values()),
            **self._id_counters(),
        }

    def _id_counters(self) -> dict[str, int]:
        if self.seen is None:
            return {}
        return {f"ids_{name}": count for name, count in asdict(self.seen.counts).items()}

    @property
    def _behind(self) -> int | None:
        """Rows that have arrived at a paced source that still reads."""
        reads = self._is_source and not self.ended
        return self._pacer.behind(time.monotonic(), self._counted) if reads else None

    @property
    def _blocked(self) -> str:
        """Why a source does not read, when that is so."""
        retention = self._ports.retention
        if retention is None or self.ended or not self._is_source:
            return ""
        return retention.blocked or ""

    def close(self) -> None:
        """Give everything back; the subtask is not used again."""
        self._running = False
        step, self._step = self._step, None
        with contextlib.ExitStack() as closing:  # each of them, the step first, also when another one raises
            closing.callback(self.outputs.release)
            closing.callback(self.release_logs)
            if self.state is not None:
                closing.callback(self.state.close, self._ports.beside)  # others in this slot do not wait for the disk
            if self.operators is not None:
                closing.callback(self.operators.close)
            if self._trace is not None:
                closing.callback(self._trace.close)
            if self.seen is not None:
                closing.callback(self.seen.close)
            if isinstance(step, Generator):
                closing.callback(step.close)
