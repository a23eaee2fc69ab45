"""One active subtask: its parts are made here, put together, and given back.

The protocol decides the next step, and what is taken, blocked, repeated, sent again or dropped
(``flinkplus.protocol.subtask.subtask``). The parts: ``work`` (operators), ``snapshots``, ``output_gate`` (channels).

Rules: called by the slot's loop thread only. An exception anywhere in a step is the subtask's failure.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from flinkplus.operators.base.routes import partitioner
from flinkplus.operators.base.row import short_repr
from flinkplus.protocol.channels.channel import InputCursor
from flinkplus.protocol.channels.inputs import InputGate
from flinkplus.protocol.determinants.recipe import RecipeLog
from flinkplus.protocol.snapshot.handle import START, OperatorState, SnapshotHandle
from flinkplus.protocol.subtask.admission import Admission, digests
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.subtask.replay import Replay, StepTime
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.runtime.base.step_note import OPERATOR, SUBTASK, Numbers, no_note
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.faults.points import BUNDLES, CURSOR, DETERMINANTS, DIGESTS, FILTER, left_out
from flinkplus.runtime.slot.subtasks.ablation import PartialAdmission, UnboundReplay, UncheckedCursor, without
from flinkplus.runtime.slot.subtasks.asked import OperatorAnswers
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.runtime.slot.subtasks.operator_work import CatchUp, OperatorWork, StepRandom, wall_ms
from flinkplus.runtime.slot.subtasks.output_gate import OutputGate
from flinkplus.runtime.slot.subtasks.output_trace import OutputRecorder
from flinkplus.runtime.slot.subtasks.pacing import Pacer, Ticks, interval_of, stage_of
from flinkplus.runtime.slot.subtasks.plan import SubtaskPlan, SubtaskPorts
from flinkplus.runtime.slot.subtasks.snapshots import SubtaskSnapshots
from flinkplus.runtime.transport.wire.message_format import digest_of
from flinkplus.sources.base import LAG_ROWS
from flinkplus.state.backend import SubtaskState

MIN_READ_SCALE = 0.125
"""Of the interval between waves: a paced source does not read each row by itself."""
REPLAY_SLICE_S = 0.002
DIGEST = digests(digest_of)
"""The digest of a message of any kind and its payload; producers and receivers compute the same."""


class Subtask:
    """One active subtask of one generation."""

    def __init__(self, plan: SubtaskPlan, ports: SubtaskPorts) -> None:
        self.plan = plan
        self.id, self.generation = plan.subtask, plan.generation
        self._name = str(plan.subtask)
        self._ports = ports
        self._note: Numbers = no_note() if ports.note is None else ports.note.numbers
        self._number = 1 + plan.graph.vertices.index(plan.vertex) * plan.parallelism + plan.subtask.index
        self.busy_s = 0.0
        self._closing = ExitStack()  # closes each part, the newest first, also when another one raises
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        plan.handle = START  # what was in flight in it may be large

    def _build(self) -> None:
        plan, ports, options = self.plan, self._ports, self.plan.options
        saved = plan.handle.operator_state
        omitted = left_out(options.faults)
        if omitted:
            plan.promotion = without(omitted, plan.promotion)
        is_source, has_outputs = plan.vertex.is_source, bool(plan.vertex.outputs)
        history = StepHistory(plan, saved, is_source, has_outputs, plan.is_local, DETERMINANTS not in omitted)
        self.inputs = self._make_inputs(omitted)
        replay = Replay(plan.promotion, history.logs, plan.repeats)
        if BUNDLES in omitted:
            replay = UnboundReplay(plan.promotion, history.logs, self.inputs)
        clock = StepTime(self.id, history, replay, wall_ms, saved.clock_ms)
        self.admission = self._make_admission(omitted)
        self._closing.callback(self.admission.close)
        self.outputs = self._make_outputs(saved, history)
        self._closing.callback(self.outputs.release)
        self.state: SubtaskState | None = ports.state(plan) if plan.graph.has_keyed_state(plan.vertex) else None
        if self.state is not None:
            self._closing.callback(self.state.close, ports.beside)  # other subtasks do not wait for the disk
            if plan.handle.checkpoint:
                self.state.restore(plan.handle)
        self.operators = self._make_operators(history, clock)
        self._closing.callback(self.operators.close)
        self.operators.restore(saved.operators, plan.promotion is not None)
        self._begin_recipe(history)
        if self.operators.live_reader is not None:
            self.operators.live_reader.begin(self._woken)
        asking = self.operators.asking
        if asking is not None:
            asking.begin(None if history.steps is None else ports.location, self._woken)
        self._run, self._rows_before_run = saved.run
        self.work = self._make_work(history, replay)
        self._snapshots = SubtaskSnapshots(plan, ports, self.operators, self.state, replay, self._saved_of_run)
        parts = SubtaskParts(
            is_source=is_source,
            local=plan.is_local,
            inputs=self.inputs,
            outputs=self.outputs,
            history=history,
            replay=replay,
            time=clock,
            admission=self.admission,
            work=self.work,
            snapshots=self._snapshots,
            reports=self,
            answers=None if asking is None else OperatorAnswers(self.operators, asking),
        )
        self.steps = SubtaskSteps(plan, saved, parts, list(plan.graph.inputs_of(self.id, plan.parallelism)))
        self._closing.callback(self.steps.checkpoints.channel_state.release)

    def _begin_recipe(self, history: StepHistory) -> None:
        """Have the rows of a sink that keeps a recipe cut at the ends of steps, and stored from now on."""
        plan, writer = self.plan, self.operators.recipe_writer
        if writer is None or history.steps is None:
            return
        self.outputs.recipe = RecipeLog(history.steps, history.ancestors, plan.recorded, writer)
        writer.begin(plan.recorded, self._woken, plan.is_local)

    def _woken(self, error: Exception | None) -> None:
        self._ports.woken(self.id, self.generation, error)

    def _make_inputs(self, omitted: frozenset[str]) -> InputGate:
        plan, ports, options = self.plan, self._ports, self.plan.options
        return InputGate(
            options.channel_window,
            lambda end, consumed: ports.grant(self.generation, end, consumed),
            UncheckedCursor if CURSOR in omitted else InputCursor,
            plan.overdrawn,
            options.bundle_rows,
        )

    def _make_admission(self, omitted: frozenset[str]) -> Admission:
        plan = self.plan
        needless = plan.vertex.is_source or not plan.guarantee.repeats or not plan.is_local
        unfiltered = needless or {FILTER, DIGESTS} <= omitted
        seen = None if unfiltered else self._ports.seen()
        if omitted:
            return PartialAdmission(self.id, seen, DIGEST, omitted)
        return Admission(self.id, seen, DIGEST)

    def _make_outputs(self, saved: OperatorState, history: StepHistory) -> OutputGate:
        plan, ports, options = self.plan, self._ports, self.plan.options
        outputs = OutputGate(
            plan.generation,
            options.channel_window,
            options.batch_rows,
            ports.send,
            ports.hand_over,
            ports.retention,
            options.standbys and plan.is_local and plan.guarantee.replays,
            history.steps,
            history.ancestors,
            DIGEST,
        )
        for edge in plan.vertex.outputs:
            consumer = plan.graph.consumer_vertex(edge).name
            peers = plan.peers(edge, [SubtaskId(consumer, index) for index in range(plan.parallelism)])
            exchange = plan.graph.exchanges[edge]
            groups = options.max_parallelism
            split = partitioner(exchange.route, exchange.columns, self.id.index, len(peers), groups)
            outputs.add_edge(edge, split, self.id.index, peers, saved.outputs, edge in plan.cycles.back_edges)
        return outputs

    def _make_operators(self, history: StepHistory, clock: StepTime) -> FusedOperators:
        plan = self.plan
        return FusedOperators(
            plan.graph,
            plan.vertex,
            self.id.index,
            plan.parallelism,
            plan.generation,
            self.state,
            self.outputs,
            clock.now_ms,
            StepRandom(f"{plan.salt}/{self.id}", history),
            self._note,
            self._note_row if plan.notes_rows else None,
        )

    def _make_work(self, history: StepHistory, replay: Replay) -> OperatorWork:
        plan, options = self.plan, self.plan.options
        traced = options.trace_output if plan.has_sink else None
        trace = None if traced is None else OutputRecorder(traced, self._name, self.generation)
        if trace is not None:
            self._closing.callback(trace.close)
        members = self.operators.nodes
        rated = [index for index, member in members.items() if member.node.rate is not None]
        counted = rated[0] if rated else self.operators.root
        rate = members[counted].node.rate
        self._rate = None if rate is None else rate / plan.parallelism
        stage, load = stage_of(plan.graph, plan.vertex), self._ports.load
        interval_s = interval_of(options.flush_interval, plan.graph)
        reads = Ticks(lambda: max(load.read_scale, MIN_READ_SCALE), interval_s, stage)
        pacer = Pacer(self._rate, options.batch_rows, reads.at)
        ticks = Ticks(lambda: load.scale, interval_s, stage)
        catch_up = CatchUp(plan.promotion, plan.mark, plan.vertex.is_source, replay, self._report_progress)
        return OperatorWork(
            self.id, self.operators, self.state, history, catch_up, pacer, ticks, counted, trace, self._note
        )

    def _note_row(self, row: object) -> None:
        if self._ports.note is not None:
            self._ports.note.row(short_repr(row))

    def _saved_of_run(self) -> tuple[int, int]:
        return self._run, self._rows_before_run

    # --- driven by the slot's loop

    def begin(self, run: int, run_age_s: float) -> None:
        """Begin to run in this run of the job.

        ``run_age_s``: how long ago this run of the job first started; paced rows arrive from then on, beginning
        with the first one that no earlier run has read.
        """
        if run != self._run:
            self._run, self._rows_before_run = run, self.work.rows_counted
        self.work.pacer.begin(time.monotonic() - run_age_s - self._rows_before_run / (self._rate or 1.0))
        self.steps.start()

    def run(self) -> None:
        """Continue the current step, or begin the next one; the time counts as busy.

        Repeated steps follow each other at once, for a while, since other subtasks wait for the output after them.
        """
        steps, note = self.steps, self._note
        begun = time.perf_counter()
        note[OPERATOR] = 0
        note[SUBTASK] = self._number
        try:
            steps.run()
            while steps.repeats_on and time.perf_counter() - begun < REPLAY_SLICE_S:
                steps.run()
        except Exception:  # which is reported; one that ends the process, such as ``SystemExit``, leaves its note
            note[OPERATOR] = note[SUBTASK] = 0
            raise
        note[SUBTASK] = 0
        self.busy_s += time.perf_counter() - begun

    def persisted(self, checkpoint: CheckpointId, handle: SnapshotHandle | None, reason: str) -> None:
        """The work given to ``ports.persist`` has ended, with a handle or a reason why not."""
        self._snapshots.left_pool(checkpoint)
        self.steps.checkpoints.persisted(checkpoint, handle, reason)

    def consumer_of(self, channel: ChannelId) -> SubtaskId:
        """The subtask at the other end of an output channel."""
        return SubtaskId(self.plan.graph.consumer_vertex(channel.edge).name, channel.consumer)

    # --- reports

    def exhausted(self) -> None:
        """See ``SubtaskReports``."""
        self._ports.report(control.Exhausted(self.generation, self._name))

    def reached(self, point: str) -> None:
        """See ``SubtaskReports``."""
        if point == "alignment" and sum(end.blocked for end in self.inputs.channels.values()) == 1:
            self._snapshots.alignment_begins()
        self._ports.reach(point, self._name)

    def _report_progress(self) -> None:
        self._ports.report(control.Progressed(self.generation, self._name, time.time()))

    def counters(self) -> dict[str, Any]:
        """Progress for the heartbeat."""
        return {
            "rows_out": self.operators.rows_out,
            "operators": self.operators.counters(),
            "gauges": self._gauges,
            "keys": self.state.state_keys() if self.state is not None else 0,
            "bytes": self.state.state_bytes() if self.state is not None else 0,
            "reads": self.state.state_reads() if self.state is not None else 0,
            "busy_s": round(self.busy_s, 6),
            "watermark": self.operators.watermark_ms,
            "payload_bytes": self.outputs.payload_bytes,
            "determinant_bytes": self.outputs.determinant_bytes,
            "blocked": self._blocked,
            "behind": self._behind,
            "waiting": sum(len(end.queue) for end in self.inputs.channels.values()),
            **self._id_counters(),
        }

    def _id_counters(self) -> dict[str, int]:
        counts = self.admission.counts
        return {} if counts is None else {f"ids_{name}": count for name, count in asdict(counts).items()}

    @property
    def _reads(self) -> bool:
        return self.plan.vertex.is_source and not self.steps.ended

    @property
    def _gauges(self) -> dict[str, dict[str, int]]:
        """Of a source that still reads."""
        return self.work.gauges() if self._reads else {}

    @property
    def _behind(self) -> int | None:
        """Rows that a source that still reads could have read: those of a live one, or that a paced one should have."""
        if not self._reads:
            return None
        if self.operators.live_reader is not None:
            return next((gauges.get(LAG_ROWS) for gauges in self._gauges.values()), None)
        return self.work.pacer.behind(time.monotonic(), self.work.rows_counted)

    @property
    def _blocked(self) -> str:
        """Why a source does not read, when that is so."""
        retention = self._ports.retention
        return "" if retention is None or not self._reads else retention.blocked or ""

    def close(self) -> None:
        """Give everything back; the subtask is not used again."""
        with self._closing.pop_all() as closing:
            step = self.steps.stop() if hasattr(self, "steps") else None
            if isinstance(step, Generator):
                closing.callback(step.close)
