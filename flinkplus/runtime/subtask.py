"""One subtask at work: channels, fused operators, state and the barrier alignment, driven by the slot's loop.

A *step* takes one message (or one source range, or one checkpoint trigger) to its end; it is a generator, so that
it can wait half-way for room in an output log without holding up the slot. Barriers and snapshots fall between steps.
A subtask without outputs takes several small messages in one step: nobody can tell.

With standbys, a subtask with outputs logs how each step began (``flinkplus.protocol.determinants``). One that was
promoted repeats the steps that its receivers know of, in the same order, and puts off whatever it is told meanwhile.

Rules: called by the slot's loop thread only, except ``persist`` of the state, which runs in the snapshot pool and
comes back as an event. The alignment core decides; this class obeys. An exception anywhere in a step is the subtask's
failure.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import assert_never

from flinkplus.config import Options
from flinkplus.errors import CorruptState, PeerProtocolError
from flinkplus.graph import JobGraph, Vertex
from flinkplus.operators.columns import merge
from flinkplus.protocol import effects, events
from flinkplus.protocol.alignment import BarrierAlignment
from flinkplus.protocol.channel import Accept, Duplicate
from flinkplus.protocol.determinants import Choice, KnownSteps, StepLog, unpack
from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.runtime import control
from flinkplus.runtime.fused import FusedOperators
from flinkplus.runtime.gates import InputChannel, InputGate, OutputGate, Peer
from flinkplus.runtime.output_trace import OutputRecorder
from flinkplus.runtime.pacing import Pacer
from flinkplus.runtime.wire import Kind, Message, decode_records
from flinkplus.state.backend import Prepared, SubtaskState
from flinkplus.state.versions import PendingSnapshot
from upstream_cache.retention import Retention

HANDLE_FORMAT = 1
MERGED_MESSAGES = 256
REPLAY_SLICE_S = 0.002


@dataclass
class Promotion:
    """What a standby is told when it becomes active.

    ``received``: channel -> next ``seq`` that its living consumer expects. ``determinants``: of the steps to repeat.
    ``marks``: channel -> next ``seq`` that its living producer had not sent before the failure: what is at or beyond it
    is new. ``resuming``: subtasks that are promoted as well. ``state``: what the standby holds.
    """

    received: dict[str, int]
    determinants: tuple[int, ...]
    marks: dict[str, int]
    resuming: frozenset[SubtaskId]
    state: Prepared | None


@dataclass
class SubtaskPlan:
    """What a deployment, or a promotion, tells a subtask. ``slots``, ``generations``: of all subtasks of the job."""

    graph: JobGraph
    vertex: Vertex
    subtask: SubtaskId
    generation: Generation
    options: Options
    slots: dict[SubtaskId, int]
    generations: dict[SubtaskId, Generation]
    slot: int
    handle: dict[str, Any]
    checkpoint: CheckpointId
    mark: int | None
    promotion: Promotion | None = None

    def slot_of(self, subtask: SubtaskId) -> int | None:
        """The slot of another subtask, ``None`` when it is this one's."""
        slot = self.slots[subtask]
        return None if slot == self.slot else slot

    def peer(self, consumer: SubtaskId, channel: ChannelId) -> Peer:
        """A consumer of this subtask."""
        slot, generation = self.slot_of(consumer), self.generations[consumer]
        if self.promotion is None:
            return Peer(slot, generation)
        if consumer in self.promotion.resuming:
            return Peer(slot, generation, resuming=True)
        return Peer(slot, generation, self.promotion.received.get(str(channel), 0))


@dataclass
class SubtaskPorts:
    """What a subtask may ask of its slot."""

    report: Callable[[control.ControlMessage], None]
    send: Callable[[int, list[Any]], None]
    hand_over: Callable[[Message, Any], None]
    grant: Callable[[Generation, InputChannel, int], None]
    reach: Callable[[str, str], None]
    persist: Callable[[SubtaskId, CheckpointId, Callable[[], dict[str, Any]]], None]
    state: Callable[[SubtaskPlan], SubtaskState]
    retention: Retention[tuple[Message, Any]] | None
    snapshotted: Callable[[SubtaskId, Generation, dict[str, Any]], None]


@dataclass
class Pending:
    """The asynchronous part of a snapshot: the frozen keyed state (if any) and the rest of the handle."""

    frozen: PendingSnapshot | None
    rest: dict[str, Any] = field(default_factory=dict)


class Subtask:
    """One active subtask of one generation."""

    def __init__(self, plan: SubtaskPlan, ports: SubtaskPorts) -> None:
        self.plan = plan
        self.id = plan.subtask
        self.generation = plan.generation
        self._ports = ports
        self._running = False
        self._triggers: deque[CheckpointId] = deque()
        self._step: Iterator[None] | None = None
        self._taken: list[tuple[InputChannel, int]] = []
        self._pending: dict[CheckpointId, Pending] = {}
        self._draining = False
        self.ended = False
        self.busy_s = 0.0
        graph, vertex, options = plan.graph, plan.vertex, plan.options
        self._is_source = vertex.is_source
        saved = plan.handle.get("operator_state", {})
        promotion = plan.promotion
        standbys = ports.retention is not None
        self._steps = StepLog(saved.get("steps", 0)) if standbys and vertex.outputs else None
        self._replay = deque(promotion.determinants if promotion is not None and vertex.outputs else ())
        self._put_off: list[Callable[[], None]] = []
        self._marks = promotion.marks if promotion is not None else {}
        self._cursors_at: dict[CheckpointId, dict[str, int]] = {}
        self.known = KnownSteps() if standbys else None
        self.outputs = OutputGate(
            plan.generation,
            options.window,
            options.batch_rows,
            ports.send,
            ports.hand_over,
            ports.retention,
            self._steps,
        )
        self.inputs = InputGate(options.window, lambda end, consumed: ports.grant(self.generation, end, consumed))
        self.state: SubtaskState | None = ports.state(plan) if graph.has_keyed_state(vertex) else None
        self.operators: FusedOperators | None = None
        traced = options.trace_output if graph.has_sink(vertex) else None
        self._trace = None if traced is None else OutputRecorder(traced, str(self.id), self.generation)
        try:
            self._restore()
        except BaseException:
            self.close()
            raise
        channels = tuple(sorted(self.inputs.channels))
        self._by_position = [self.inputs.channels[channel] for channel in channels]
        self._position = {channel: at for at, channel in enumerate(channels)}
        self._alignment = BarrierAlignment(self.id, channels)
        self._mark = plan.mark
        self._fresh = promotion is not None  # nothing new was put out since the promotion
        self._pacer, self._rate_node, self._rate = self._make_pacer()
        self._run, self._run_base = saved.get("run", (-1, 0))

    def _restore(self) -> None:
        plan = self.plan
        handle = plan.handle
        if handle and handle.get("format") != HANDLE_FORMAT:
            raise CorruptState(
                f"snapshot of {self.id}: format {handle.get('format')}, this program reads {HANDLE_FORMAT}"
            )
        if self.state is not None and handle:
            self.state.restore(handle)
        saved = handle.get("operator_state", {})
        self._add_channels(saved)
        self.operators = FusedOperators(
            plan.graph, plan.vertex, self.id.index, plan.options.parallelism, plan.generation, self.state, self.outputs
        )
        self.operators.restore(saved.get("operators", {}), plan.promotion is not None)
        self.ended = bool(saved.get("ended", False))
        self.outputs.epoch = plan.checkpoint
        self._cursors_at[plan.checkpoint] = dict(saved.get("outputs", {}))

    def _add_channels(self, saved: dict[str, Any]) -> None:
        plan = self.plan
        ended = set(saved.get("ended_channels", ()))
        first_in, first_out = saved.get("inputs", {}), saved.get("outputs", {})
        for channel, producer in plan.graph.inputs_of(self.id, plan.options.parallelism):
            name = str(channel)
            slot, generation = plan.slot_of(producer), plan.generations[producer]
            replayed = plan.promotion is not None
            self.inputs.add(channel, producer, slot, generation, first_in.get(name, 0), name in ended, replayed)
        for edge in plan.vertex.outputs:
            consumer = plan.graph.consumer_vertex(edge)
            peers = [
                plan.peer(SubtaskId(consumer.name, index), ChannelId(edge, self.id.index, index))
                for index in range(plan.options.parallelism)
            ]
            self.outputs.add_edge(edge, plan.graph.exchanges[edge].columns, self.id.index, peers, first_out)

    @property
    def _counted(self) -> int:
        """Rows that have left the operator that the rate counts at."""
        assert self.operators is not None
        return self.operators.members[self._rate_node].rows_out

    def _make_pacer(self) -> tuple[Pacer, int, float | None]:
        assert self.operators is not None
        nodes = self.operators.members
        rated = [index for index, member in nodes.items() if member.node.rate is not None]
        rate_node = rated[0] if rated else self.operators.root
        rate = nodes[rate_node].node.rate
        options = self.plan.options
        share = None if rate is None else rate / options.parallelism
        turn = self.id.index / options.parallelism
        return Pacer(share, options.batch_rows, options.paced_flush_interval, turn), rate_node, share

    # --- driven by the slot's loop

    def start(self, run: int, run_age_s: float) -> None:
        """Begin to work; a source that had ended already says so again.

        ``run_age_s``: how long ago this run of the job first started; paced rows arrive from then on, beginning
        with the first one that no earlier run has read.
        """
        self._running = True
        if run != self._run:
            self._run, self._run_base = run, self._counted
        rate = self._rate or 1.0
        self._pacer.begin(time.monotonic() - run_age_s - self._run_base / rate)
        self._ports.reach("start", str(self.id))
        if self.ended:
            self._caught_up()
        if self.ended and self._is_source:
            self._ports.report(control.Exhausted(self.generation, str(self.id)))

    def trigger(self, checkpoint: CheckpointId) -> None:
        """A source is to snapshot and send a barrier, between two steps."""
        if self._replay:
            self._put_off.append(lambda: self.trigger(checkpoint))
        else:
            self._triggers.append(checkpoint)

    def drain(self) -> None:
        """A source is to read no more and end as if exhausted."""
        self._draining = True

    def abort(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is given up."""
        if self._replay:
            self._put_off.append(lambda: self.abort(checkpoint))
            return
        if checkpoint in self._triggers:
            self._triggers.remove(checkpoint)
        if not self._is_source:
            self._note(Choice.ABORT, checkpoint)
        self._obey(events.CheckpointAborted(checkpoint))

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""
        assert self.operators is not None
        self.operators.checkpoint_complete(checkpoint)
        if self.state is not None:
            self.state.checkpoint_complete(checkpoint)
        if self.known is not None:
            self.known.complete(checkpoint)

    def trim(self, version: CheckpointId) -> None:
        """Nobody goes back before ``version``: what was sent before it is let go."""
        cursors = self._cursors_at.get(version)
        if cursors is not None:
            self.outputs.trim(cursors)
        self._cursors_at = {number: found for number, found in self._cursors_at.items() if number >= version}

    def _note(self, choice: Choice, value: int) -> None:
        if self._steps is not None:
            self._steps.begin(choice, value)

    def consumer_of(self, channel: ChannelId) -> SubtaskId:
        """The subtask at the other end of an output channel."""
        return SubtaskId(self.plan.graph.consumer_vertex(channel.edge).name, channel.consumer)

    def receive(self, message: Message, payload: Any) -> None:
        """A message arrived for one of the input channels. Duplicates, gaps and fenced ones have no effect."""
        end = self.inputs.channels.get(message.channel)
        if end is None:
            raise PeerProtocolError(f"{self.id} has no input channel {message.channel}")
        match end.cursor.accept(message.generation, message.seq):
            case Accept():
                if self.known is not None:
                    self._learn(end.producer, message)
                end.queue.append((message, payload))
            case Duplicate():
                # Sent again over a new stream: the credit that would have told so was lost with the old one.
                self._ports.grant(self.generation, end, end.cursor.consumed)

    def _learn(self, producer: SubtaskId, message: Message) -> None:
        assert self.known is not None
        if message.determinants:
            self.known.learn(producer, message.determinants)
        if message.kind is Kind.BARRIER:
            self.known.barrier(message.epoch, producer)

    def runnable(self, now: float) -> bool:
        return self._running and self.deadline(now) <= now and self._may_go_on()

    def _has_work(self) -> bool:
        if self._step is not None:
            return True
        if self._replay:
            choice, value = unpack(self._replay[0])
            return choice is not Choice.INPUT or bool(self._by_position[value].queue)
        if self._put_off:
            return True
        if self._is_source:
            return bool(self._triggers) or not (self.ended or self.outputs.blocked)
        return any(end.queue and not end.blocked for end in self.inputs.channels.values())

    def deadline(self, now: float) -> float:
        """When a paced source may read next; ``now`` when nothing is to be waited for."""
        waits = self._is_source and self._step is None and not (self._draining or self.ended)
        if waits and not (self._triggers or self._replay or self._put_off):
            return self._pacer.ready_at(now, self._counted)
        return now

    def run(self) -> None:
        """Go on with the current step, or begin the next one; returns at its end or when an output has no more room.

        Steps that are repeated follow each other at once, for a while: others wait for what comes behind them.
        """
        begun = time.perf_counter()
        self._run_step()
        while self._repeats_on() and time.perf_counter() - begun < REPLAY_SLICE_S:
            self._run_step()
        self.busy_s += time.perf_counter() - begun

    @property
    def repeating(self) -> bool:
        """Whether it does again what the one before it did."""
        return bool(self._replay)

    def _repeats_on(self) -> bool:
        return bool(self._replay) and self._step is None and self._may_go_on()

    def _may_go_on(self) -> bool:
        return self.outputs.accepts and self._has_work()

    def _run_step(self) -> None:
        if self._step is None:
            self._step = self._begin()
        while self._step is not None and self.outputs.accepts:
            try:
                next(self._step)
            except StopIteration:
                self._step = None
                self._after_step()

    def _after_step(self) -> None:
        assert self.operators is not None
        taken, self._taken = self._taken, []
        for end, count in taken:
            self.inputs.consumed(end, count)
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

    def _begin(self) -> Iterator[None] | None:
        if self._replay:
            return self._repeat(*unpack(self._replay.popleft()))
        if self._put_off:
            self._catch_up_with_orders()
        if self._is_source:
            if self._triggers:
                self._begin_checkpoint(self._triggers.popleft())
                return None
            return None if self.ended or self.outputs.blocked else self._read_next()
        if not self.plan.vertex.outputs:
            many = self.inputs.take_records(MERGED_MESSAGES)
            if many:
                return self._take_many(many)
        end = self.inputs.next()
        return None if end is None else self._take(end)

    def _repeat(self, choice: Choice, value: int) -> Iterator[None] | None:
        """A step that the one before this began in the same way."""
        match choice:
            case Choice.READ | Choice.END:
                return self._read(choice, value)
            case Choice.TRIGGER:
                self._begin_checkpoint(CheckpointId(value))
            case Choice.INPUT:
                return self._take(self._by_position[value])
            case Choice.ABORT:
                self._note(choice, value)
                self._obey(events.CheckpointAborted(CheckpointId(value)))
            case _:
                assert_never(choice)
        return None

    def _catch_up_with_orders(self) -> None:
        orders, self._put_off = self._put_off, []
        for order in orders:
            order()

    def _begin_checkpoint(self, checkpoint: CheckpointId) -> None:
        found = self._alignment.step(int(time.monotonic() * 1000), events.CheckpointTriggered(checkpoint))
        if found:
            self._note(Choice.TRIGGER, checkpoint)
        self._apply_all(found)

    def _take_many(self, many: list[tuple[InputChannel, Message, Any]]) -> Iterator[None]:
        assert self.operators is not None
        counts: dict[ChannelId, int] = {}
        for end, _, _ in many:
            counts[end.channel] = counts.get(end.channel, 0) + 1
        self._taken = [(self.inputs.channels[channel], count) for channel, count in counts.items()]
        batches = [m.records if m.records is not None else decode_records(payload) for _, m, payload in many]
        return self.operators.push(batches[0] if len(batches) == 1 else merge(batches))

    def _take(self, end: InputChannel) -> Iterator[None] | None:
        message, payload = end.queue.popleft()
        self._note(Choice.INPUT, self._position[end.channel])
        self._taken = [(end, 1)]
        match message.kind:
            case Kind.RECORDS:
                assert self.operators is not None
                batch = message.records if message.records is not None else decode_records(payload)
                return self.operators.push(batch)
            case Kind.BARRIER:
                self._take_barrier(end, message)
                return None
            case Kind.END_OF_INPUT:
                end.ended = True
                return self._end() if all(e.ended for e in self.inputs.channels.values()) else iter(())
            case Kind.CREDIT | Kind.REPLICA:
                raise PeerProtocolError(f"{message.kind.name} on input channel {end.channel}")
            case _:
                assert_never(message.kind)

    def _take_barrier(self, end: InputChannel, message: Message) -> None:
        # The barrier is consumed before the snapshot is taken, so that the cursors of the snapshot stand behind it.
        self._taken = []
        self.inputs.consumed(end)
        self._obey(events.BarrierArrived(end.channel, message.epoch))

    def _read_next(self) -> Iterator[None]:
        if self._draining:
            return self._read(Choice.END, 0)
        return self._read(Choice.READ, self._pacer.rows(time.monotonic(), self._counted))

    def _read(self, choice: Choice, rows: int) -> Iterator[None]:
        operators = self.operators
        assert operators is not None and operators.reader is not None
        self._note(choice, rows)
        before = [member.rows_out for member in operators.members.values()]
        rate_before = self._counted
        batch = None if choice is Choice.END else operators.reader.read(rows)
        if batch is None:
            yield from self._end()
            return
        if batch.num_rows:
            yield from operators.push(batch)
        widest = max(m.rows_out - b for m, b in zip(operators.members.values(), before, strict=True))
        self._pacer.after(batch.num_rows, widest, self._counted - rate_before)

    def _end(self) -> Iterator[None]:
        assert self.operators is not None
        yield from self.operators.end()
        while not self.outputs.accepts:
            yield
        self.outputs.broadcast(Kind.END_OF_INPUT, self.outputs.epoch)
        self._ports.reach("end", str(self.id))
        self.ended = True
        self._caught_up()
        if self._is_source:
            self._ports.report(control.Exhausted(self.generation, str(self.id)))

    # --- checkpointing: obeying the alignment core

    def persisted(self, checkpoint: CheckpointId, handle: dict[str, Any] | None, reason: str) -> None:
        """The asynchronous part of a snapshot ended, with a handle or a reason why not."""
        if handle is not None:
            self._obey(events.SnapshotPersisted(checkpoint, handle))
        else:
            self._obey(events.SnapshotFailed(checkpoint, reason))

    def _obey(self, event: events.AlignmentEvent) -> None:
        self._apply_all(self._alignment.step(int(time.monotonic() * 1000), event))

    def _apply_all(self, found: list[effects.AlignmentEffect]) -> None:
        for effect in found:
            self._apply(effect)

    def _apply(self, effect: effects.AlignmentEffect) -> None:
        match effect:
            case effects.BlockChannel(channel):
                self.inputs.channels[channel].blocked = True
                self._ports.reach("alignment", str(self.id))
            case effects.UnblockChannel(channel):
                self.inputs.channels[channel].blocked = False
            case effects.TakeSnapshot(checkpoint):
                self._take_snapshot(checkpoint)
            case effects.ForwardBarrier(checkpoint):
                self.outputs.broadcast(Kind.BARRIER, checkpoint)
            case effects.PersistSnapshot(checkpoint):
                self._persist(checkpoint)
            case effects.AcknowledgeCheckpoint(checkpoint, handle):
                assert isinstance(handle, dict)
                self._ports.snapshotted(self.id, self.generation, handle)
                self._ports.report(control.SnapshotAcked(self.generation, checkpoint, str(self.id), handle))
            case effects.DeclineCheckpoint(checkpoint, reason):
                self._ports.report(control.SnapshotRefused(self.generation, checkpoint, str(self.id), reason))
            case effects.DiscardSnapshot(checkpoint):
                self._pending.pop(checkpoint, None)
            case _:
                assert_never(effect)

    def _take_snapshot(self, checkpoint: CheckpointId) -> None:
        assert self.operators is not None
        begun = time.perf_counter()
        saved = {
            "operators": self.operators.stage(checkpoint),
            "inputs": self.inputs.cursors(),
            "outputs": {c: seq + 1 for c, seq in self.outputs.cursors().items()},  # behind the barrier, sent next
            "ended": self.ended,
            "drained": self._draining,
            "run": (self._run, self._run_base),
            "steps": self._steps.next_step if self._steps is not None else 0,
            "ended_channels": [str(e.channel) for e in self.inputs.channels.values() if e.ended],
        }
        if self.known is not None:
            self._cursors_at[checkpoint] = {c: seq + 1 for c, seq in self.outputs.cursors().items()}
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
        self._pending[checkpoint].rest["sync_ms"] = (time.perf_counter() - begun) * 1e3
        self._ports.reach("snapshot", str(self.id))

    def _persist(self, checkpoint: CheckpointId) -> None:
        pending = self._pending.pop(checkpoint)
        state = self.state
        if state is None or pending.frozen is None:
            self.persisted(checkpoint, pending.rest, "")
            return
        frozen, rest = pending.frozen, pending.rest

        def work() -> dict[str, Any]:
            self._ports.reach("upload", str(self.id))
            handle = {**state.persist(frozen), **rest}
            self._ports.reach("uploaded", str(self.id))
            return handle

        self._ports.persist(self.id, checkpoint, work)

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
            "blocked": self._blocked,
        }

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
            if self.state is not None:
                closing.callback(self.state.close)
            if self.operators is not None:
                closing.callback(self.operators.close)
            if self._trace is not None:
                closing.callback(self._trace.close)
            if isinstance(step, Generator):
                closing.callback(step.close)
