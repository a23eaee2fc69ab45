"""A simulated subtask: the product's steps, channels and logs, with work that is only counting."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NoReturn
from zlib import crc32

from dedup.filter import FORGOTTEN, Channel, MessageFilter
from flinkplus.errors import UserFunctionError
from flinkplus.graph import Vertex
from flinkplus.protocol.channels.channel import InputCursor, Window
from flinkplus.protocol.channels.inputs import Bundle, InputChannel, InputGate
from flinkplus.protocol.channels.output_logs import Entry
from flinkplus.protocol.channels.outputs import MAX_UNSENT_MESSAGES, OutputChannels
from flinkplus.protocol.channels.watermarks import IDLE_MS
from flinkplus.protocol.determinants.recipe import RecipeLog
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.subtask.admission import Admission, digests
from flinkplus.protocol.subtask.checkpoints import add_logs
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.subtask.replay import Replay, StepTime
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause, Logs, cost_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.faults.points import BUNDLES, CURSOR
from flinkplus.runtime.slot.subtasks.ablation import PartialAdmission, UnboundReplay, UncheckedCursor, without
from flinkplus.sources.dealing import BlockRun
from tests.simulation import live
from tests.simulation.asking import SimAnswers
from tests.simulation.graph import Row
from tests.simulation.live import LivePlaces, blocks_of
from tests.simulation.table import SimRecipeSink, stored_through
from upstream_cache.log import OutputLog

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot
    from tests.simulation.world import World

HELD_S = 0.01
MAX_FILES = 3
RECORD_BYTES = 100
MS_A_RECORD = 10
"""What lies in event time between two records of a source subtask."""
CLOCK_BYTES = 50
"""A message is so many bytes larger, at most, by what the clock says: so it shows when it is made again."""
Count = tuple[int, int]
"""(key, records so far)."""
WORK = "work"
"""The only operator."""
LOOP_POINTS = ("logging", "returned", "round")
WITHOUT_REFERENCES = 2
"""Version of marshal in which equal values are equal bytes."""


class ProcessEnded(Exception):
    """The process ends in the middle of a step."""


def event_time_ms(row: Row) -> int:
    """When the record of a row happened."""
    return row[0][2] * MS_A_RECORD


class MarshalCodec:
    """How messages are spilled."""

    def encode(self, message: Entry) -> Sequence[Any]:
        found = message[0]
        content = (
            int(found.kind),
            tuple(found.channel),
            found.generation,
            found.seq,
            found.epoch,
            found.records,
            found.size,
            found.determinants,
            found.watermark_ms,
            found.rows,
        )
        return (marshal.dumps(content, WITHOUT_REFERENCES),)

    def decode(self, data: memoryview) -> Entry:
        kind, channel, *rest = marshal.loads(data)
        return Message(MessageKind(kind), ChannelId(*channel), *rest), None


class WatchedLog(OutputLog[Entry]):
    """An output log that is looked at by the checkers."""

    __slots__ = ("owner",)
    owner: SimSubtask

    def append(self, message: Entry, size_bytes: int) -> int:
        seq = super().append(message, size_bytes)
        self.owner.slot.world.checks.appended(self.owner, message[0])
        return seq

    def trim(self, seq: int) -> None:
        super().trim(seq)
        self.owner.slot.world.checks.trimmed(self.owner, self)


class WatchedFilter(MessageFilter):
    """A filter of message IDs whose answers are counted."""

    world: World

    def add(self, epoch: int, channel: Channel, seq: int, digest: int) -> int | None:
        had = super().add(epoch, channel, seq, digest)
        if had is not None:
            self.world.checks.counts["old_ids" if had == FORGOTTEN else "known_ids"] += 1
        return had


class SimOutputs(OutputChannels):
    """Messages travel as they are."""

    slot: SimSlot

    def _transmit(self, slot: int, message: Message, payload: Any) -> None:
        self.slot.data.send(slot, message)

    def _overdraw(self) -> None:
        before = [(end, end.limit, end.log.sent) for end in self._to_overdraw]
        super()._overdraw()
        self.slot.world.checks.overdrawn(before)


@dataclass(kw_only=True)
class SimPlan(SubtaskIdentity):
    """What ``SubtaskPlan`` is to the runtime."""

    vertex: Vertex
    parallelism: int
    handle: SnapshotHandle
    alone: bool


class WatchedSteps(SubtaskSteps):
    """The product's steps, looked at by the checkers."""

    owner: SimSubtask

    def __init__(self, owner: SimSubtask, *arguments: Any) -> None:
        self.owner = owner
        self._checks = owner.slot.world.checks
        super().__init__(*arguments)

    def receive(self, message: Message, payload: Any) -> None:
        self.owner.throw_if_receipt_is_poisoned()
        end = self.inputs.channels[message.channel]
        before = end.cursor._received
        super().receive(message, payload)
        if end.cursor._received != before:
            self._checks.accepted(self.owner, end, message)

    def _begin(self) -> Iterator[None] | None:
        if self._unaligned is not None:
            self._checks.begins_step(self.owner)
        return super()._begin()

    def _begin_overtaking(self, checkpoint: CheckpointId) -> None:
        waiting = sum(len(end.queue) for end in self.inputs.channels.values())
        world = self.owner.slot.world
        world.note("%s: the barrier of checkpoint %s overtakes %s messages", self.id, checkpoint, waiting)
        repeated = bool(self.replay.determinants) or self.replay.unchecked
        super()._begin_overtaking(checkpoint)
        if not repeated:
            self._checks.overtook(self.owner, checkpoint)

    def _take(self, bundle: Bundle) -> Iterator[None] | None:
        checks = self._checks
        messages = [(end, message) for end, count in bundle for message, _ in islice(end.queue, count)]
        if self._unaligned is not None:
            first = messages[0][1]
            self.owner.passes_barrier = (
                first.kind is MessageKind.BARRIER and first.epoch <= self._unaligned._newest_seen
            )
            checks.counts["put_back"] += sum(min(end.put_back, count) for end, count in bundle)
        if checks.exact:
            checks.causes.takes(self.owner, [message for _, message in messages], len(bundle))
        if len(messages) > 1:
            checks.counts["bundles"] += 1
            checks.counts["joint_bundles"] += len(bundle) > 1
            checks.counts["repeated_bundles"] += self.replay.unchecked
        known = dict(self._watermarks._known)
        for end, message in messages:
            returned = self._loop is not None and end.channel in self._loop.back_edges
            if returned or message.kind is MessageKind.ROUND:
                checks.takes_in_loop(self.owner, end, message)
            if message.kind is MessageKind.WATERMARK:
                checks.takes_watermark(self.owner, message, known.get(end.channel))
                known[end.channel] = message.watermark_ms
        return super()._take(bundle)


class SimSubtask:
    """One active subtask: the work, the snapshots and the reports of the product's steps.

    ``poisoned``: the next thing that it processes makes it throw. ``poisoned_receipt``: the next that arrives.
    ``has_whims``: what it does depends on more than its steps.
    ``passes_barrier``: what it took last is a barrier that had overtaken.
    """

    def __init__(self, slot: SimSlot, plan: SimPlan) -> None:
        self.slot = slot
        self.plan = plan
        self.id, self.generation = plan.subtask, plan.generation
        world, graph, vertex = slot.world, slot.graph, plan.vertex
        self._world = world
        self._at = graph.vertices.index(vertex)
        saved = plan.handle.operator_state
        self.seen: WatchedFilter | None = None
        local = world.options.local_unless(plan.alone)
        if local and not vertex.is_source and plan.guarantee.repeats:
            self.seen = WatchedFilter(slot.ids, slot.next_filter(), world.parameters.error_rate)
            self.seen.world = world
        omitted = frozenset(world.parameters.without)
        plan.promotion = without(omitted, plan.promotion)
        history = StepHistory(plan, saved, vertex.is_source, bool(vertex.outputs), local)
        cursor = UncheckedCursor if CURSOR in omitted else InputCursor
        window = Window(world.parameters.window, world.parameters.window_bytes)
        bundle_rows = world.parameters.bundle_rows
        self.inputs = InputGate(window, self._grant, cursor, plan.overdrawn, bundle_rows)
        replay = Replay(plan.promotion, history.logs, plan.repeats)
        if BUNDLES in omitted:
            replay = UnboundReplay(plan.promotion, history.logs, self.inputs)
        self._time = StepTime(self.id, history, replay, lambda: world.now_ms, saved.clock_ms)
        digest = digests(self._digest)
        admission = Admission(self.id, self.seen, digest)
        if omitted:
            admission = PartialAdmission(self.id, self.seen, digest, omitted)
        self.snapshot_of: CheckpointId | None = None
        self.poisoned = self.poisoned_receipt = self.passes_barrier = False
        self.has_whims = world.parameters.whims
        self._told_ms = 0
        self.closed = False
        self._next_read_s = 0.0
        self._idle_since_s: float | None = None
        self._rng = world.rng_work
        self.outputs = SimOutputs(
            plan.generation,
            window,
            slot.routing.hand_over,
            self._make_log,
            slot.retention,
            world.options.standbys and local and plan.guarantee.replays,
            history.steps,
            history.ancestors,
            digest,
        )
        self.outputs.slot = slot
        self.sink: SimRecipeSink | None = None
        if plan.keeps_recipe:
            assert history.steps is not None
            self.sink = SimRecipeSink(self)
            self.outputs.recipe = RecipeLog(history.steps, history.ancestors, plan.recorded, self.sink)
        self._awaiting: set[CheckpointId] = set()  # never iterated in an order that shows
        own = work_of(saved)
        self._parallelism = plan.parallelism
        self._live: LivePlaces | None = None
        first: tuple[BlockRun, ...] = (BlockRun(self.id.index, plan.parallelism),)
        if vertex.is_source and world.parameters.live:
            self._live = LivePlaces(slot, self._at)
            first = live.places(self.id.index, plan.parallelism, world.parameters.live)
        self._left: tuple[BlockRun, ...] = own.get("left", first)
        self.depends: dict[SubtaskId, int] = dict(own.get("depends", {}))
        self._staged: list[tuple[str, int, tuple[Row, ...]]] = []
        if plan.promotion is not None:
            self._staged = [file for file in own.get("staged", ()) if file[1] > world.commits.newest]
        self._open: list[Row] = []
        self._ticks_ms = world.parameters.ticks_ms
        self._holds_back = (world.parameters.watermarks or self._ticks_ms is not None) and self._at % 2 == 1
        self._to_barrier = world.parameters.to_barrier and self._at % 2 == 1
        self._held: list[Row] = list(own.get("held", ()))
        self._tick_at_ms: int | None = own.get("tick_at_ms")
        self.advanced_ms = own.get("advanced_ms", -1)
        self._said_idle = own.get("said_idle", False)
        self.answers: SimAnswers | None = None
        if self._at in graph.asking:
            self.answers = SimAnswers(self, own.get("asked", {}), history.steps is not None)
        self._restore_state()
        for edge in vertex.outputs:
            consumer = graph.consumer_vertex(edge).name
            peers = plan.peers(edge, [SubtaskId(consumer, index) for index in range(plan.parallelism)])
            is_back = edge in plan.cycles.back_edges
            self.outputs.add_channels(edge, self.id.index, peers, saved.outputs, is_back)
        parts = SubtaskParts(
            is_source=vertex.is_source,
            local=local,
            inputs=self.inputs,
            outputs=self.outputs,
            history=history,
            replay=replay,
            time=self._time,
            admission=admission,
            work=self,
            snapshots=self,
            reports=self,
            answers=self.answers,
        )
        self.steps = WatchedSteps(self, plan, saved, parts, list(graph.inputs_of(self.id, plan.parallelism)))
        waiting = [message for end in self.inputs.channels.values() for message, _ in end.queue]
        again = sum(len(message.records) for message in waiting if message.kind is MessageKind.RECORDS)
        if again:
            world.note("%s takes up %s rows that were in flight", self.id, again)
            world.reach("taken_up", slot, self.id)
        if self._live is not None:
            self._live.begin(self._left)
        world.cyclic.append(self)
        world.checks.began(self)

    def _restore_state(self) -> None:
        plan = self.plan
        self._files: tuple[str, ...] = tuple(file.name for file in plan.handle.files)
        prepared = None if plan.promotion is None else plan.promotion.state
        self._counts: dict[int, int] = self.slot.fold(self._files) if prepared is None else counts_of(prepared)
        self._dirty: dict[int, int] = {}
        self._frozen: list[tuple[CheckpointId, dict[int, int], OperatorState]] = []

    def _make_log(self, channel: ChannelId, first: int, received: int, may_spill: bool) -> WatchedLog:
        spills_to = self.slot.retention if may_spill else None
        window_bytes = self.slot.world.parameters.window_bytes
        log = WatchedLog(channel, MAX_UNSENT_MESSAGES, window_bytes, first, retention=spills_to, received=received)
        log.owner = self
        return log

    def _grant(self, end: InputChannel, consumed: int) -> None:
        self.slot.routing.grant(self.generation, end, consumed)

    def consumer_of(self, channel: ChannelId) -> SubtaskId:
        return self.slot.graph.consumer_of(channel)

    def throw_if_receipt_is_poisoned(self) -> None:
        if self.poisoned_receipt:
            self.poisoned_receipt = False
            self._throw()

    # --- the work

    def begin(self, run: int, run_age_s: float) -> None:
        self.steps.start()

    def _throw_if_poisoned(self) -> None:
        if self.poisoned or self._world.outages:
            self.poisoned = False
            self._throw()

    def _throw(self) -> NoReturn:
        raise UserFunctionError("count", str(self.id), "", "boom")

    def _end_at_deadly_row(self, message: Message) -> None:
        deadly = self._world.deadly
        if deadly is not None and any(record == deadly for record, _ in message.records):
            self._world.ended_by_input(self.slot, self.id, message)
            self.slot.end("a row ends it")
            raise ProcessEnded

    def push(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        self._world.checks.works(self)
        for message, _ in messages:
            self._end_at_deadly_row(message)
        rows = tuple(row for message, _ in messages for row in self._on_time(message))
        if self.answers is not None:
            self._throw_if_poisoned()
            self.answers.wait(rows)
            return iter(())
        return self._count(rows)

    def answered(self, rows: tuple[Row, ...], answers: int) -> Iterator[None]:
        """Process rows that have waited; ``answers``: their sum."""
        return self._count(rows, answers)

    @property
    def joins_steps(self) -> bool:
        parameters = self._world.parameters
        waits = self._holds_back or self.answers is not None
        return parameters.joins and not parameters.clock_keys and not waits

    def push_together(self, steps: list[list[tuple[Message, Any]]]) -> list[Iterator[None]]:
        self._world.checks.counts["joined_steps"] += len(steps)
        return [self._sent_after(messages, self.push(messages)) for messages in steps]

    def _sent_after(self, messages: list[tuple[Message, Any]], sending: Iterator[None]) -> Iterator[None]:
        """What one of the joined steps sends; it has begun."""
        taken = [message for message, _ in messages]
        if self._world.checks.exact:
            self._world.checks.causes.takes(self, taken, determinants=0)
        yield from sending

    def read_together(self, steps: list[int], max_bytes: int) -> tuple[list[Iterator[None]], bool]:
        self._world.checks.counts["joined_reads"] += len(steps)
        if self._live is not None:
            return self._read_live_together(self._live, steps)
        left = self._rows_left
        before = [0, *accumulate(steps)]
        found: list[Iterator[None]] = [
            self.read_rows(rows) for rows, first in zip(steps, before, strict=False) if first < left
        ]
        return found, len(found) < len(steps)

    def _read_live_together(self, reader: LivePlaces, steps: list[int]) -> tuple[list[Iterator[None]], bool]:
        left, found = self._left, list[Iterator[None]]()
        for choice in steps:
            if choice == live.END:
                return found, True
            if found and not reader.can_read(left, choice):
                break
            found.append(self.read_rows(choice))
            _, left = reader.read(left, choice)
        return found, False

    def _on_time(self, message: Message) -> tuple[Row, ...]:
        known = self.steps._watermarks._known
        self._world.checks.on_time(self, message, known.get(message.channel) if known else None)
        rows: tuple[Row, ...] = message.records
        return rows

    def _count(self, rows: tuple[Row, ...], answers: int = 0) -> Iterator[None]:
        self._throw_if_poisoned()
        graph, at, counts, dirty = self.slot.graph, self._at, self._counts, self._dirty
        if self.has_whims and self.generation % 2:
            rows = rows[::-1]
        counted = []
        self._told_ms = 0
        for record, passages in rows:
            key = graph.key(record, at)
            if key < self._world.parameters.clock_keys:
                self._told_ms = self._time.now_ms() % CLOCK_BYTES
            counts[key] = dirty[key] = number = counts.get(key, 0) + 1
            counted.append((record, (*passages, (at, key, number))))
        self._told_ms = (self._told_ms + answers) % CLOCK_BYTES
        if self._holds_back or self._to_barrier:
            self._held += counted
            if self._ticks_ms is not None and self._held and self._tick_at_ms is None:
                self._tick_at_ms = self._time.now_ms() + self._ticks_ms
            return iter(())
        return self._emit(counted)

    @property
    def has_clock(self) -> bool:
        return self._ticks_ms is not None

    @property
    def clock_at(self) -> float | None:
        return None if self._tick_at_ms is None else self._tick_at_ms / 1000

    @property
    def clock_due(self) -> bool:
        return self._tick_at_ms is not None and self._tick_at_ms <= self._world.now_ms

    def tick(self) -> Iterator[None]:
        checks = self._world.checks
        checks.works(self)
        checks.counts["ticks"] += 1
        checks.counts["repeated_ticks"] += self.steps.replay.unchecked
        if checks.exact:
            checks.causes.takes(self, [], determinants=0)
        self._throw_if_poisoned()
        now_ms = self._time.now_ms()
        if self._tick_at_ms is None or now_ms < self._tick_at_ms:
            return iter(())
        self._told_ms = now_ms % CLOCK_BYTES
        due, self._held, self._tick_at_ms = sorted(self._held), [], None
        return self._emit(due)

    def advance(self, watermark_ms: int) -> Iterator[None]:
        if self.answers is not None and self.answers.holds(watermark_ms):
            return iter(())
        return self.advances(watermark_ms)

    def advances(self, watermark_ms: int) -> Iterator[None]:
        """Event time has reached ``watermark_ms``, and no row before it waits."""
        parameters = self._world.parameters
        if parameters.idle_ms is not None and parameters.groups and watermark_ms <= self.advanced_ms:
            return  # as the product's operators do: what producers promise may be behind after a rescale
        self._world.checks.advances(self, watermark_ms)
        if self._holds_back:
            due = sorted(row for row in self._held if event_time_ms(row) < watermark_ms)
            self._held = [row for row in self._held if event_time_ms(row) >= watermark_ms]
            self._told_ms = self._time.now_ms() % CLOCK_BYTES if self._world.parameters.clock_keys else 0
            if due:
                yield from self._emit(due)
        yield from self._send_watermark(watermark_ms)

    def _send_watermark(self, watermark_ms: int) -> Iterator[None]:
        for edge in self.plan.vertex.outputs:
            self.outputs.append_watermark(edge, watermark_ms)
            yield

    def _emit(self, rows: list[Row]) -> Iterator[None]:
        graph = self.slot.graph
        outputs = self.plan.vertex.outputs
        if not outputs:
            self._open.extend(rows)
            return
        for edge in outputs:
            consumer = graph.exchanges[edge].consumer
            parts: dict[int, list[Row]] = {}
            for row in rows:
                if not graph.goes_on(row, edge):
                    continue
                parts.setdefault(graph.owner(graph.key(row[0], consumer), self._parallelism), []).append(row)
            ends = self.outputs._edges[edge]
            for target in sorted(parts):
                part = tuple(parts[target])
                size_bytes = RECORD_BYTES * len(part) + self._told_ms
                self.outputs.append_records(ends[target], part, None, len(part), size_bytes)
            self.outputs.pump()
            yield

    def bundle_at(self, since: float) -> float:
        return since + self._world.parameters.patience_ms / 1000

    @property
    def nothing_to_read(self) -> bool:
        if self._live is None or not self._live.nothing_to_read(self._left):
            self._idle_since_s = None
            return False
        if self._idle_since_s is None:
            self._idle_since_s = self._world.clock.monotonic()
        return True

    @property
    def idle_at(self) -> float | None:
        after_ms = self._world.parameters.idle_ms
        if after_ms is None or self._idle_since_s is None or self._said_idle:
            return None
        return self._idle_since_s + after_ms / 1000

    def become_idle(self) -> Iterator[None]:
        self._world.checks.counts["said_idle"] += 1
        self._said_idle = True
        return self._send_watermark(IDLE_MS)

    def next_read(self) -> int | None:
        rows = self._rng.randint(1, self._world.parameters.rows)
        return rows if self._live is None else self._live.choose(self._left, rows)

    def can_read(self, choice: int) -> bool:
        return self._live is None or self._live.can_read(self._left, choice)

    def rows_of(self, choice: int) -> int:
        return choice if self._live is None else live.rows_of(choice)

    def _digest(self, message: Message, payload: Any) -> int:
        return crc32(marshal.dumps((message.records, message.size), WITHOUT_REFERENCES))

    def ready_at(self, now: float) -> float:
        world = self._world
        if world.endings.holds_sources and self._rows_left <= world.parameters.rows:
            return now + HELD_S
        return max(now, self._next_read_s)

    def read_rows(self, choice: int) -> Generator[None, None, bool]:
        self._world.checks.works(self)
        if choice == live.END if self._live is not None else not self._rows_left:
            return False
        self._throw_if_poisoned()
        graph, before_ms = self.slot.graph, self._promise_ms
        blocks = self._read(choice) if self._live is None else self._read_live(self._live, choice)
        self.steps.history.has_read(len(blocks))
        yield from self._emit([(graph.record(self._at, block), ()) for block in blocks])
        if self._world.parameters.watermarks and (self._promise_ms > before_ms or self._said_idle):
            self._said_idle = False
            yield from self._send_watermark(self._promise_ms)
        self._next_read_s = (self._world.now_ms + self._rng.randint(0, self._world.parameters.read_ms)) / 1000
        return True

    @property
    def _rows_left(self) -> int:
        """How many records a source has still to read."""
        return sum(len(blocks_of(run, self.slot.graph.blocks)) for run in self._left)

    @property
    def _promise_ms(self) -> int:
        """No record that a source has still to read happened before."""
        graph = self.slot.graph
        return min([graph.blocks, *(run.first for run in self._left)]) // graph.parallelism * MS_A_RECORD

    def _read(self, rows: int) -> list[int]:
        """The next blocks, in ascending order; each is one record."""
        end = self.slot.graph.blocks
        found: list[int] = []
        while len(found) < rows and self._left:
            run = min(self._left, key=lambda one: one.first)
            if run.first >= end:
                break
            found.append(run.first)
            rest = run.after(1, 1)
            others = [other for other in self._left if other is not run]
            self._left = tuple(others if rest is None else [*others, rest])
        return found

    def _read_live(self, reader: LivePlaces, choice: int) -> list[int]:
        self._world.checks.counts["live_reads"] += 1
        found, self._left = reader.read(self._left, choice)
        return found

    @property
    def holds_to_barrier(self) -> bool:
        return self._to_barrier

    def before_barrier(self) -> Iterator[None]:
        held, self._held = self._held, []
        self._world.checks.counts["held_to_barrier"] += len(held)
        self._told_ms = self._time.now_ms() % CLOCK_BYTES if self._world.parameters.clock_keys else 0
        return self._emit(held) if held else iter(())

    def flush(self) -> Iterator[None]:
        held, self._held, self._told_ms = self._held, [], 0
        return self._emit(held) if held else iter(())

    def step_done(self, taken: Bundle) -> None:
        return None

    def ended(self) -> None:
        return None

    def reached(self, point: str) -> None:
        if point in LOOP_POINTS:
            self._world.note("%s: %s", self.id, point)
        self._world.reach(point, self.slot, self.id)

    def exhausted(self) -> None:
        self.slot.report(control.Exhausted(self.generation, str(self.id)))

    # --- snapshots

    def take_rows(self) -> tuple[Row, ...]:
        """What was put out and is not given to the sink yet."""
        rows, self._open = tuple(self._open), []
        return rows

    def complete(self, checkpoint: CheckpointId) -> None:
        if self.sink is not None:
            self.sink.complete(checkpoint)
        if self.answers is not None:
            self.answers.complete(checkpoint)
        self._staged = [file for file in self._staged if file[1] > checkpoint]

    def take(self, checkpoint: CheckpointId, protocol_part: Callable[[], OperatorState]) -> None:
        if self._to_barrier:
            self._world.checks.holds_nothing(self, checkpoint, len(self._held))
        self.snapshot_of = checkpoint
        if self.sink is not None:
            self.sink.snapshot = checkpoint
        if self._open and self.sink is None:  # a sink with a recipe gets them with the barrier's cut
            name = f"{self.id}-{self.generation}-{checkpoint}"
            self._staged.append((name, checkpoint, tuple(self._open)))
            self._open = []
        work = {
            "left": self._left,
            "staged": tuple(self._staged),
            "depends": dict(self.depends),
            "held": tuple(self._held),
            "advanced_ms": self.advanced_ms,
            "said_idle": self._said_idle,
            "tick_at_ms": self._tick_at_ms,
            "asked": {} if self.answers is None else self.answers.saved(checkpoint),
            **self._next_of_inputs(),
        }
        part = OperatorPart(rows_in=0, rows_out=0, state=work)
        saved = replace(protocol_part(), operators={WORK: part})
        self._frozen.append((checkpoint, self._dirty, saved))
        self._dirty = {}
        self._world.reach("snapshot", self.slot, self.id)

    def _next_of_inputs(self) -> dict[str, Any]:
        """What is to be taken next, where more may be in flight."""
        if not self.plan.unaligned:
            return {}
        ends = self.inputs.channels.items()
        return {"next": {str(c): end.queue[0][0].seq if end.queue else end.cursor.expected for c, end in ends}}

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> SnapshotHandle | None:
        saved = next(saved for number, _, saved in self._frozen if number == checkpoint)
        saved = add_logs(logs, saved, pack, packed_bytes)
        self._frozen = [(number, dirty, saved if number == checkpoint else old) for number, dirty, old in self._frozen]
        if self.plan.vertex.is_source:
            self._frozen = [entry for entry in self._frozen if entry[0] > checkpoint]
            if self.sink is None:
                return self._handle(checkpoint, saved)
            self.slot.later(1, self.slot.guard, self, self._persist_source, checkpoint, saved)
            return None
        self._world.reach("upload", self.slot, self.id)
        self.slot.upload(self, checkpoint)
        return None

    def _persist_source(self, checkpoint: CheckpointId, saved: OperatorState) -> None:
        if self.closed:
            return
        if self._awaits_rows(checkpoint):
            self.slot.later(2, self.slot.guard, self, self._persist_source, checkpoint, saved)
        else:
            self.steps.checkpoints.persisted(checkpoint, self._handle(checkpoint, saved), "")

    def _handle(self, checkpoint: CheckpointId, saved: OperatorState) -> SnapshotHandle:
        return SnapshotHandle(
            subtask=str(self.id),
            generation=self.generation,
            checkpoint=checkpoint,
            files=tuple(map(self._world.state_files.card, self._files)),
            operator_state=saved,
            overtaken=self.plan.unaligned and any(saved.in_flight.values()),
        )

    def uploaded(self, checkpoint: CheckpointId, reason: str) -> None:
        """The asynchronous part ended: what was frozen up to here is one file more, or stays for the next one."""
        if self.sink is not None and not reason and self._awaits_rows(checkpoint):
            if not self.closed:
                self.slot.later(2, self.slot.guard, self, self.uploaded, checkpoint, reason)
            return
        if reason:
            self.steps.checkpoints.persisted(checkpoint, None, reason)
            return
        saved = next(saved for number, _, saved in self._frozen if number == checkpoint)
        delta: dict[int, int] = {}
        for number, dirty, _ in self._frozen:
            if number <= checkpoint:
                delta.update(dirty)
        self._frozen = [entry for entry in self._frozen if entry[0] > checkpoint]
        name = f"{self.id}/{self.generation}-{checkpoint}-0.sst"
        if len(self._files) >= MAX_FILES:
            base = f"{self.id}/{self.generation}-{checkpoint}-1.sst"
            self._world.files[base] = tuple(self.slot.fold(self._files).items())
            self._world.replaced[base] = self._files
            self._world.durable.put(base)
            self._files = (base,)
        self._world.files[name] = tuple(delta.items())
        self._world.durable.put(name)
        self._files = (*self._files, name)
        self._world.reach("uploaded", self.slot, self.id)
        self.steps.checkpoints.persisted(checkpoint, self._handle(checkpoint, saved), "")

    def _awaits_rows(self, checkpoint: CheckpointId) -> bool:
        """Whether rows before a barrier are not stored yet, or an earlier snapshot waits for that."""
        before = [number for number in self._awaiting if number < checkpoint]
        self._awaiting.discard(checkpoint)
        if before or not stored_through(self.sink, checkpoint):
            self._awaiting.add(checkpoint)
        return checkpoint in self._awaiting

    def unpack(self, packed: Any) -> tuple[Message, Any]:
        return unpacked(packed), None

    def discard(self, checkpoint: CheckpointId) -> None:
        return None

    def acknowledge(self, checkpoint: CheckpointId, handle: SnapshotHandle) -> None:
        self.slot._snapshotted(self.id, self.generation, handle)
        self.slot.report(control.Acknowledged(self.generation, checkpoint, str(self.id), handle))

    def decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        self._world.checks.aborted(cause.value)
        self.slot.report(control.Declined(self.generation, checkpoint, str(self.id), reason, cause.value))

    def close(self) -> None:
        self.steps.stop()
        self.closed = True
        self.outputs.release()
        self.steps.checkpoints.channel_state.release()
        if self.seen is not None:
            self.seen.close()


def work_of(saved: OperatorState) -> dict[str, Any]:
    """What the work itself has saved."""
    return saved.operators[WORK].state if saved.operators else {}


def pack(message: Message, payload: Any) -> Any:
    """A message as a part of a snapshot."""
    return (int(message.kind), tuple(message.channel), *message[2:])


def unpacked(packed: Any) -> Message:
    """A message that a snapshot holds."""
    kind, channel, *rest = packed
    return Message(MessageKind(kind), ChannelId(*channel), *rest)


def packed_bytes(packed: Any) -> int:
    """What it takes there."""
    return cost_of(unpacked(packed))


def counts_of(prepared: Any) -> dict[int, int]:
    """What a promotion is given."""
    return {} if prepared.store is None else dict(prepared.store.counts)


def fold(files: Mapping[str, tuple[Count, ...]], names: Sequence[str]) -> dict[int, int]:
    """The counts that a list of files makes up."""
    counts: dict[int, int] = {}
    for name in names:
        counts.update(files[name])
    return counts
