"""One subtask at work: channels, fused operators, state and the barrier alignment, driven by the slot's loop.

A *step* takes one message (or one source range, or one checkpoint trigger) to its end; it is a generator, so that
it can wait half-way for room in an output log without holding up the slot. Barriers and snapshots fall between steps.

Rules: called by the slot's loop thread only, except ``persist`` of the state, which runs in the snapshot pool and
comes back
as an event. The alignment core decides; this class obeys. An exception anywhere in a step is the subtask's failure.
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
from flinkplus.operators.base import Operator
from flinkplus.protocol import effects, events
from flinkplus.protocol.alignment import BarrierAlignment
from flinkplus.protocol.channel import Accept, Duplicate
from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.runtime import control
from flinkplus.runtime.fused import FusedOperators
from flinkplus.runtime.gates import InputChannel, InputGate, OutputGate
from flinkplus.runtime.pacing import Pacer
from flinkplus.runtime.wire import Kind, Message, decode_records
from flinkplus.state.backend import SubtaskState
from flinkplus.state.versions import PendingSnapshot

HANDLE_FORMAT = 1


@dataclass
class SubtaskPlan:
    """What a deployment tells a subtask."""

    graph: JobGraph
    vertex: Vertex
    subtask: SubtaskId
    generation: Generation
    options: Options
    slots: dict[SubtaskId, int]
    slot: int
    handle: dict[str, Any]
    checkpoint: CheckpointId
    mark: int | None

    def peer(self, vertex: Vertex, index: int) -> int | None:
        """The slot of another subtask, ``None`` when it is this one's."""
        slot = self.slots[SubtaskId(vertex.name, index)]
        return None if slot == self.slot else slot


@dataclass
class SubtaskPorts:
    """What a subtask may ask of its slot."""

    report: Callable[[control.ControlMessage], None]
    send: Callable[[int, list[Any]], None]
    hand_over: Callable[[Message], None]
    grant: Callable[[InputChannel, int], None]
    reach: Callable[[str, str], None]
    persist: Callable[[SubtaskId, CheckpointId, Callable[[], dict[str, Any]]], None]
    state: Callable[[SubtaskPlan], SubtaskState]


@dataclass
class Pending:
    """The asynchronous part of a snapshot: the frozen keyed state (if any) and the rest of the handle."""

    frozen: PendingSnapshot | None
    rest: dict[str, Any] = field(default_factory=dict)


class Subtask:
    """One deployed subtask of one generation."""

    def __init__(self, plan: SubtaskPlan, ports: SubtaskPorts) -> None:
        self.plan = plan
        self.id = plan.subtask
        self.generation = plan.generation
        self._ports = ports
        self._running = False
        self._triggers: deque[CheckpointId] = deque()
        self._step: Iterator[None] | None = None
        self._step_channel: InputChannel | None = None
        self._pending: dict[CheckpointId, Pending] = {}
        self._started = 0.0
        self._draining = False
        self.ended = False
        self.busy_s = 0.0
        graph, vertex, options = plan.graph, plan.vertex, plan.options
        self._is_source = vertex.is_source
        self.outputs = OutputGate(plan.generation, options.window, options.batch_rows, ports.send, ports.hand_over)
        self.inputs = InputGate(plan.generation, options.window, ports.grant)
        self.state: SubtaskState | None = ports.state(plan) if self._needs_state(graph, vertex) else None
        self.operators: FusedOperators | None = None
        try:
            self._restore()
        except BaseException:
            self.close()
            raise
        self._alignment = BarrierAlignment(self.id, tuple(sorted(self.inputs.channels)))
        self._mark = plan.mark
        self._pacer, self._rate_node, self._rate = self._make_pacer()
        self._run, self._run_base = plan.handle.get("operator_state", {}).get("run", (-1, 0))

    @staticmethod
    def _needs_state(graph: JobGraph, vertex: Vertex) -> bool:
        bodies = [graph.nodes[i].body for i in vertex.nodes]
        return any(isinstance(body, Operator) and body.key_columns for body in bodies)

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
        self.operators.restore(saved.get("operators", {}))
        self.ended = bool(saved.get("ended", False))
        self.outputs.epoch = plan.checkpoint

    def _add_channels(self, saved: dict[str, Any]) -> None:
        plan = self.plan
        ended = set(saved.get("ended_channels", ()))
        first_in, first_out = saved.get("inputs", {}), saved.get("outputs", {})
        for edge in plan.vertex.inputs:
            producer = plan.graph.producer_vertex(edge)
            for index in range(plan.options.parallelism):
                channel = ChannelId(edge, index, self.id.index)
                name = str(channel)
                self.inputs.add(channel, plan.peer(producer, index), first_in.get(name, 0), name in ended)
        for edge in plan.vertex.outputs:
            consumer = plan.graph.consumer_vertex(edge)
            peers = [plan.peer(consumer, index) for index in range(plan.options.parallelism)]
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
        return Pacer(share, options.batch_rows, options.flush_interval), rate_node, share

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
        self._triggers.append(checkpoint)

    def drain(self) -> None:
        """A source is to read no more and end as if exhausted."""
        self._draining = True

    def abort(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self._triggers:
            self._triggers.remove(checkpoint)
        self._obey(events.CheckpointAborted(checkpoint))

    def complete(self, checkpoint: CheckpointId) -> None:
        assert self.operators is not None
        self.operators.checkpoint_complete(checkpoint)
        if self.state is not None:
            self.state.checkpoint_complete(checkpoint)

    def receive(self, message: Message, payload: Any) -> None:
        """A message arrived for one of the input channels. Duplicates, gaps and fenced ones have no effect."""
        end = self.inputs.channels.get(message.channel)
        if end is None:
            raise PeerProtocolError(f"{self.id} has no input channel {message.channel}")
        match end.cursor.accept(message.generation, message.seq):
            case Accept():
                end.queue.append((message, payload))
            case Duplicate():
                # Sent again over a new stream: the credit that would have told so was lost with the old one.
                self._ports.grant(end, end.cursor.consumed)

    def runnable(self, now: float) -> bool:
        return self._running and self.deadline(now) <= now and self.outputs.has_room and self._has_work()

    def _has_work(self) -> bool:
        if self._step is not None:
            return True
        if self._is_source:
            return bool(self._triggers) or not self.ended
        return any(end.queue and not end.blocked for end in self.inputs.channels.values())

    def deadline(self, now: float) -> float:
        """When a paced source may read next; ``now`` when nothing is to be waited for."""
        if self._is_source and self._step is None and not (self._triggers or self._draining or self.ended):
            return self._pacer.ready_at(now, self._counted)
        return now

    def run(self) -> None:
        """Go on with the current step, or begin the next one; returns at its end or when an output has no more room."""
        begun = time.perf_counter()
        if self._step is None:
            self._step = self._begin()
        while self._step is not None and self.outputs.has_room:
            try:
                next(self._step)
            except StopIteration:
                self._step = None
                self._after_step()
        self.busy_s += time.perf_counter() - begun

    def _after_step(self) -> None:
        assert self.operators is not None
        if self._step_channel is not None:
            self.inputs.consumed(self._step_channel)
            self._step_channel = None
        if self.state is not None:
            self.state.spill_if_needed()
        if self._mark is not None and self.operators.rows_out > self._mark:
            self._caught_up()

    def _caught_up(self) -> None:
        """What was put out before a failure is reached again (or the end is: there is nothing beyond)."""
        if self._mark is not None:
            self._mark = None
            self._ports.report(control.Progressed(self.generation, str(self.id), time.time()))

    def _begin(self) -> Iterator[None] | None:
        if self._is_source:
            if self._triggers:
                self._obey(events.CheckpointTriggered(self._triggers.popleft()))
                return None
            return None if self.ended else self._read()
        end = self.inputs.next()
        if end is None:
            return None
        message, payload = end.queue.popleft()
        self._step_channel = end
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
        self._step_channel = None
        self.inputs.consumed(end)
        self._obey(events.BarrierArrived(end.channel, message.epoch))

    def _read(self) -> Iterator[None]:
        operators = self.operators
        assert operators is not None and operators.reader is not None
        before = [member.rows_out for member in operators.members.values()]
        rate_before = self._counted
        rows = self._pacer.rows(time.monotonic(), rate_before)
        batch = None if self._draining else operators.reader.read(rows)
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
        while not self.outputs.has_room:
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
        for effect in self._alignment.step(int(time.monotonic() * 1000), event):
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
            "ended_channels": [str(e.channel) for e in self.inputs.channels.values() if e.ended],
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
        }

    def close(self) -> None:
        """Give everything back; the subtask is not used again."""
        self._running = False
        step, self._step = self._step, None
        with contextlib.ExitStack() as closing:  # each of them, the step first, also when another one raises
            if self.state is not None:
                closing.callback(self.state.close)
            if self.operators is not None:
                closing.callback(self.operators.close)
            if isinstance(step, Generator):
                closing.callback(step.close)
