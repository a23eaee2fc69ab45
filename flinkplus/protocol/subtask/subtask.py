"""The steps of one subtask: which message, range, trigger or repeated choice comes next, and what follows from it.

A *step* takes one message (or one source range, or one checkpoint trigger) to its end; it is a generator, so that
it can wait half-way for room in an output log without holding up the slot. Barriers and snapshots fall between steps.
A watermark is a message like any other: what the work does when that of all inputs rises is part of the step.
A subtask without outputs takes several small messages in one step: nobody can tell. One in a loop does so, too, of one
channel, and notes how many: rows that go round would come apart into ever smaller messages.

Where recovery is local (by standbys, or of a part of the graph), a subtask with outputs logs how each step began
(``determinants``), and passes on how those of its ancestors did that its own depend on. One that was promoted repeats
the steps that somebody knows of, in the same order, and puts off whatever it is told meanwhile.

What a driver adds: the work itself (``_push`` and its like), state, and the ways to the coordinator. It calls ``run``
while ``runnable``; everything is a call, since a list of effects for each message would cost more than the message.

Rules: one thread. An exception anywhere in a step is the subtask's failure. Nothing of an older generation of a
producer, no duplicate and no message behind a gap reaches the work (``admission``). The barrier machine decides which
checkpoint algorithm is used; ``snapshots`` carries out its effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from typing_extensions import assert_never

from flinkplus.errors import NondeterministicOperator, PeerProtocolError
from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.cyclic import CyclicAlignment
from flinkplus.protocol.barriers.unaligned import UnalignedBarriers
from flinkplus.protocol.channels.channel import Accept, Duplicate, Stale
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.channels.outputs import Peer
from flinkplus.protocol.channels.watermarks import InputWatermarks
from flinkplus.protocol.determinants.determinants import (
    CLOCK_CHOICES,
    AncestorLog,
    Choice,
    KnownSteps,
    StepClock,
    StepLog,
    decode_spans,
    unpack,
)
from flinkplus.protocol.determinants.progress import AncestorProgress, KnownProgress, ProgressLog
from flinkplus.protocol.subtask.admission import Admission
from flinkplus.protocol.subtask.incarnation import Incarnation
from flinkplus.protocol.subtask.loops import SubtaskLoop
from flinkplus.protocol.subtask.snapshots import NO_TIME_MS
from flinkplus.protocol.subtask.work import SeenMessages, Taken
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId, invariant
from flinkplus.protocol.vocabulary.in_flight import MAX_OVERTAKEN_BYTES
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

MERGED_MESSAGES = 256
MERGED_WHERE_BARRIERS_OVERTAKE = 8
"""A barrier waits for the end of a step."""
PASSED_OVER_ROWS = 16_384
"""In one step, at most."""
DIGEST_MASK = (1 << 64) - 1


class SubtaskSteps(SubtaskLoop):
    """The protocol of one active subtask of one generation; a driver derives from it.

    ``saved``: what ``saved_cursors`` gave at the version that it begins from (empty: the start). ``local``: whether
    others go on when one fails. ``seen``: the filter of what comes in, empty (``None``: there is none).
    Made in two parts, since the work may need the first and the channels need the work.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        saved: Mapping[str, Any],
        is_source: bool,
        has_outputs: bool,
        local: bool,
        seen: SeenMessages | None = None,
    ) -> None:
        super().__init__(incarnation, local)
        promotion = incarnation.promotion
        self.id = incarnation.subtask
        self.generation = incarnation.generation
        self._is_source = is_source
        self._has_outputs = has_outputs
        self._running = False
        self._triggers: deque[CheckpointId] = deque()
        self._step: Iterator[None] | None = None
        self._taken: Taken = []
        self._draining = False
        self.ended = False
        guarantee = self._guarantee = incarnation.guarantee
        tells = local and guarantee is not Guarantee.AT_LEAST_ONCE
        passes_on = tells and has_outputs
        logs = passes_on and (guarantee.repeats or is_source)
        self._progress = ProgressLog(saved.get("steps", 0)) if logs and not guarantee.repeats else None
        self._steps = StepLog(saved.get("steps", 0)) if logs and guarantee.repeats else self._progress
        self._to_pass_over = promotion.pass_over if promotion is not None else 0
        self._unlogged = 0 if self._steps is not None else int(saved.get("steps", 0))
        self._clock = StepClock(saved.get("clock_ms", 0))
        self._clock_is_read = False
        self.step_number = 0  # of the one under way; a repeated step has the number that it had
        self._passes_on = frozenset(incarnation.lineage.passed_on(self.id.vertex))
        self._ancestors: AncestorLog | None = None
        if passes_on and self._passes_on:
            self._ancestors = AncestorLog(self._reached_at(saved)) if guarantee.repeats else AncestorProgress()
        self._replay = deque(promotion.determinants if promotion is not None and logs else ())
        self._repeats = promotion is not None and logs
        self.seen = seen
        self.admission = Admission(self.id, seen, self._digest_of)
        self._put_off: list[Callable[[], None]] = []
        self.known: KnownSteps | None = None
        if tells:
            told = dict(promotion.ancestors) if promotion is not None else {}
            told.pop(self.id, None)  # in a loop it is its own ancestor, and needs nobody to tell
            self.known = KnownSteps(told, incarnation.runs_ahead) if guarantee.repeats else KnownProgress()
        self._unaligned: UnalignedBarriers | None = None
        self._merged = MERGED_WHERE_BARRIERS_OVERTAKE if incarnation.unaligned else MERGED_MESSAGES

    def _reached_at(self, saved: Mapping[str, Any]) -> dict[int, int]:
        """How far ancestors were known at the version that it begins from. It matters only where barriers run ahead:
        there, what is told of one of them need not begin at the same step on all channels."""
        return {int(number): step for number, step in saved.get("reached", {}).items()}

    def add_inputs(self, saved: Mapping[str, Any], inputs: Sequence[tuple[ChannelId, SubtaskId]]) -> None:
        """Add every input channel, each with its producer; ``inputs`` is made by then."""
        incarnation = self._incarnation
        ended, first = frozenset(saved.get("ended_channels", ())), dict(saved.get("inputs", {}))
        if incarnation.promotion is not None:
            first.update(incarnation.promotion.inputs)
        in_flight = saved.get("in_flight", {})
        for channel, producer in inputs:
            name = str(channel)
            again = [self._unpack(message) for message in in_flight.get(name, ())]
            slot, generation = incarnation.slot_of(producer), incarnation.generations[producer]
            replayed = incarnation.promotion is not None
            self.inputs.add(channel, producer, slot, generation, first.get(name, 0), name in ended, replayed, again)
            if self.seen is not None:
                self.seen.begin(channel, first.get(name, 0))

    def peers(self, edge: int, consumers: Sequence[SubtaskId]) -> list[Peer]:
        """The consumers of one exchange, as the output channels want them."""
        return [
            self._incarnation.peer(consumer, ChannelId(edge, self.id.index, consumer.index)) for consumer in consumers
        ]

    def begin_from(self, saved: Mapping[str, Any]) -> None:
        """All channels are there: be as the version was that it begins from."""
        self.ended = bool(saved.get("ended", False))
        channels = tuple(sorted(self.inputs.channels))
        self._by_position = [self.inputs.channels[channel] for channel in channels]
        self._position = {channel: at for at, channel in enumerate(channels)}
        aborted = [CheckpointId(number) for number in saved.get("aborted", ())]
        cycles = self._incarnation.cycles
        back = tuple(channel for channel in channels if channel.edge in cycles.back_edges)
        version = self._incarnation.checkpoint
        machine = BarrierAlignment(self.id, channels, version, aborted=aborted, blocking=self._guarantee.aligns)
        if back:
            invariant(self._guarantee.aligns, "a loop needs alignment", subtask=self.id)
            machine = CyclicAlignment(self.id, channels, back, version, aborted=aborted)
        elif self._incarnation.unaligned:
            invariant(self._guarantee.repeats and not cycles, "this job cannot take unaligned ones", subtask=self.id)
            machine = self._unaligned = UnalignedBarriers(self.id, channels, version, aborted=aborted)
        self._handle_barriers(machine, version, saved)
        ended = [end.channel for end in self._by_position if end.ended]
        self._watermarks = InputWatermarks(channels, saved.get("watermarks"), ended)
        self._begin_loop(back, channels, ended, saved)

    def saved_cursors(self, checkpoint: CheckpointId) -> dict[str, Any]:
        """The protocol's part of the snapshot of ``checkpoint``, JSON: where every channel stands, the number of the
        next step and its time, what has ended, which later checkpoints are given up already, how far event time is."""
        return {
            **self._saved_checkpoints(checkpoint),
            "ended": self.ended,
            "steps": self._steps.next_step if self._steps is not None else self._unlogged,
            "clock_ms": self._clock.ms,
            "ended_channels": [str(e.channel) for e in self.inputs.channels.values() if e.ended],
            "watermarks": self._watermarks.saved(),
            **self._saved_of_ancestors(),
            **self._saved_of_loop(),
        }

    def _saved_of_ancestors(self) -> dict[str, Any]:
        if not self._incarnation.runs_ahead or not isinstance(self._ancestors, AncestorLog):
            return {}
        return {"reached": {str(number): step for number, step in self._ancestors.reached.items()}}

    # --- orders

    def start(self) -> None:
        """Begin to work; a source that had ended already says so again."""
        self._running = True
        self._check_repetition()
        self._on_point("start")
        if self.ended:
            self._on_end()
        if self.ended and (self._is_source or self._is_loop_head):
            self._report_exhausted()

    def trigger(self, checkpoint: CheckpointId) -> None:
        """A source is to snapshot and send a barrier, between two steps."""
        if self.repeating:
            self._put_off.append(lambda: self.trigger(checkpoint))
        else:
            self._triggers.append(checkpoint)

    def overtake(self, checkpoint: CheckpointId) -> None:
        """The barriers of ``checkpoint`` shall wait for nothing: neither those that are sent already, nor others."""
        if self._unaligned is not None:
            self._apply_all(self._unaligned.step(NO_TIME_MS, events.OvertakingOrdered(checkpoint)))
            if self.outputs.epoch >= checkpoint:
                self.outputs.overdraw()

    def drain(self) -> None:
        """A source is to read no more and end as if exhausted."""
        self._draining = True

    def abort(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is given up. That is a step of its own, and comes behind one that rests half-way: else what the
        rest of that one sends would tell of it, or not, depending on when the order came."""
        if self.repeating or self._step is not None:
            self._put_off.append(lambda: self.abort(checkpoint))
            return
        if self._halted == checkpoint:
            self._halted = None
        if checkpoint in self._triggers:
            self._triggers.remove(checkpoint)
        if not self._is_source:
            self._begin_with(Choice.ABORT, checkpoint)
        self._obey(events.CheckpointAborted(checkpoint))

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""
        self.go_on_after(checkpoint)
        self._on_complete(checkpoint)
        if self.known is not None:
            self.known.complete(checkpoint)
        if self.seen is not None:
            self.seen.drop(checkpoint)

    def _begin_with(self, choice: Choice, value: int) -> None:
        """A step begins."""
        self._number_step()
        if self._steps is not None:
            self._steps.begin(choice, value)

    def _number_step(self) -> None:
        self._clock_is_read = False
        if self._steps is not None:
            self.step_number = self._steps.next_step
        else:
            self.step_number = self._unlogged = self._unlogged + 1

    # --- messages

    def receive(self, message: Message, payload: Any) -> None:
        """A message arrived for one of the input channels. Duplicates, gaps and fenced ones have no effect."""
        end = self.inputs.channels.get(message.channel)
        if end is None:
            raise PeerProtocolError(f"{self.id} has no input channel {message.channel}")
        match self.admission.admit(end, message, payload):
            case Accept():
                if self.known is not None:
                    self._learn(end.producer, message)
                end.queue.append((message, payload))
                if self._unaligned is not None:
                    self._arrived(self._unaligned, message, payload)
            case Duplicate():
                # Sent again over a new stream: the credit that would have told so was lost with the old one.
                self.inputs.grant_anew(end)
            case Stale():
                self.inputs.stale += 1

    def _arrived(self, machine: UnalignedBarriers, message: Message, payload: Any) -> None:
        if self._open_records:
            self._note_arrival(message.channel, message, payload)
        if message.kind is MessageKind.BARRIER:
            self._apply_all(machine.step(NO_TIME_MS, events.BarrierSighted(message.channel, message.epoch)))

    def _digest_of(self, message: Message, payload: Any) -> int:
        if message.kind is MessageKind.RECORDS:
            return self._digest(message, payload)
        told = message.watermark_ms if message.kind in (MessageKind.WATERMARK, MessageKind.ROUND) else message.epoch
        return (told << 8 | message.kind) & DIGEST_MASK

    def _learn(self, producer: SubtaskId, message: Message) -> None:
        assert self.known is not None
        if not message.determinants:
            return
        (first, determinants), others = decode_spans(message.determinants)
        spans = [(producer, first, determinants)]
        spans += [(self._incarnation.lineage.subtask(number), at, theirs) for number, at, theirs in others]
        for subtask, at, theirs in spans:  # its own as well: what others are to repeat may depend on what came round
            self.known.learn(subtask, at, theirs)
            if message.kind is MessageKind.BARRIER:
                self.known.barrier(message.epoch, subtask, at + len(theirs))

    def _pass_on(self, producer: SubtaskId, message: Message) -> None:
        """What depends on this message from now on depends on what came with it."""
        if self._ancestors is None or not message.determinants:
            return
        lineage = self._incarnation.lineage
        own, others = decode_spans(message.determinants)
        if producer != self.id:
            self._ancestors.take(lineage.number(producer), *own)
        for number, first, determinants in others:
            subtask = lineage.subtask(number)
            if subtask.vertex in self._passes_on and subtask != self.id:
                self._ancestors.take(number, first, determinants)

    # --- what the work may ask for

    def now_ms(self) -> int:
        """The time of day of the step under way: read once, noted, and the same when the step is repeated. It never
        goes back, not on another machine either.

        Raises ``NondeterministicOperator`` when it is asked for in a step in which it was not before.
        """
        if not self._clock_is_read:
            self._clock_is_read = True
            self._read_clock()
        return self._clock.ms

    def _read_clock(self) -> None:
        choice: Choice | None = None
        while self._replay and choice is not Choice.CLOCK:
            choice, value = unpack(self._replay[0])
            if choice not in CLOCK_CHOICES:
                raise NondeterministicOperator(f"{self.id} reads the clock where its predecessor did not")
            self._replay.popleft()
            self._move_clock(choice, value)
        if choice is not Choice.CLOCK:
            for chosen, value in self._clock.read(self._wall_ms()):
                self._move_clock(chosen, value)

    def _move_clock(self, choice: Choice, value: int) -> None:
        if self._steps is not None:
            self._steps.begin(choice, value)
        self._clock.move(choice, value)

    # --- steps

    def runnable(self, now: float) -> bool:
        """Whether ``run`` would get anywhere; ``now`` in seconds."""
        return self._running and self.deadline(now) <= now and self._may_go_on()

    @property
    def promoted(self) -> bool:
        """Whether it was a standby before."""
        return self._incarnation.promotion is not None

    @property
    def repeating(self) -> bool:
        """Whether it does again what the one before it did."""
        return bool(self._replay) or self._to_pass_over > 0

    @property
    def repeats_on(self) -> bool:
        """Whether it could go on with that at once, at the beginning of a step."""
        return self.repeating and self._step is None and self._may_go_on()

    @property
    def overdue(self) -> bool:
        """Whether a barrier is to overtake all that it would do next."""
        machine = self._unaligned
        if machine is None or self.repeating:
            return False
        if machine.due is not None:
            if not self._can_hold(machine, machine.due):
                return False
        elif not self._triggers or not machine.may_overtake(self._triggers[0]):
            return False
        return self._step is None or self.outputs.accepts_within(MAX_OVERTAKEN_BYTES)

    def _can_hold(self, machine: UnalignedBarriers, checkpoint: CheckpointId) -> bool:
        """Whether a snapshot may hold what the barrier of ``checkpoint`` would overtake, as far as it can be known."""
        room = self._incarnation.in_flight.room
        for channel in machine.overtaken_by(checkpoint):
            size_bytes, in_snapshot = self.inputs.channels[channel].waiting_before(checkpoint, room)
            room -= in_snapshot
            if size_bytes >= MAX_OVERTAKEN_BYTES or room < 0:
                return False
        return True

    def _may_go_on(self) -> bool:
        if (self._halted is None or bool(self._put_off)) and self._has_work() and self.outputs.accepts:
            return True
        return self._unaligned is not None and self.overdue

    def _has_work(self) -> bool:
        if self._step is not None:
            return True
        if self._replay:
            choice, value = unpack(self._replay[0])
            if choice is not Choice.INPUT:
                return True
            further, position = divmod(value, len(self._by_position))
            return len(self._by_position[position].queue) > further
        if self._put_off or self._to_pass_over:
            return True
        if self._is_source:
            return bool(self._triggers) or not (self.ended or self.outputs.blocked)
        for end in self.inputs.channels.values():  # noqa: SIM110  # asked before each step: quicker than ``any``
            if end.queue and not end.blocked:
                return True
        return False

    def deadline(self, now: float) -> float:
        """When a paced source may read next; ``now`` when nothing is to be waited for."""
        waits = self._is_source and self._step is None and not (self._draining or self.ended)
        if waits and not (self._triggers or self.repeating or self._put_off):
            return self._ready_at(now)
        return now

    def run(self) -> None:
        """Go on with the current step, or begin the next one; returns at its end or when an output has no more room."""
        if self._unaligned is not None and self.overdue:
            self._let_overtake(self._unaligned)
            return
        if self._step is None:
            self._step = self._begin()
            if self._step is None:
                self._check_repetition()
        self._go_on()

    def _go_on(self) -> None:
        while self._step is not None and self.outputs.accepts:
            try:
                next(self._step)
            except StopIteration:
                self._step = None
                taken, self._taken = self._taken, []
                for end, count in taken:
                    self.inputs.consumed(end, count)
                self._check_repetition()
                self._on_step_done(taken)

    def _let_overtake(self, machine: UnalignedBarriers) -> None:
        """A barrier is not to wait for room: a step that rests is done to its end, and the state is copied. A step that
        makes more than may be overtaken rests again, until so much is sent that it may go on."""
        with self.outputs.endless(MAX_OVERTAKEN_BYTES):
            self._go_on()
        if self._step is not None:
            return
        with self.outputs.endless():
            self._catch_up_with_orders()
            if self._triggers and machine.may_overtake(self._triggers[0]):
                self._begin_checkpoint(self._triggers.popleft())
            elif machine.due is not None and self._can_hold(machine, machine.due):  # a step may have filled the slot
                self._begin_overtaking(machine, machine.due)

    def _begin_overtaking(self, machine: UnalignedBarriers, checkpoint: CheckpointId) -> None:
        found = machine.step(NO_TIME_MS, events.BarrierOvertook(checkpoint))
        self._begin_with(Choice.OVERTAKE, checkpoint)
        self._apply_all(found)

    def _check_repetition(self) -> None:
        """Between two steps: once there is nothing left to repeat, whatever the last step was that was repeated, all
        that anybody has had must have been made again. New steps could hide that it was not."""
        if self._repeats and not self._replay:
            self._repeats = False
            self.outputs.check_remade()

    def _begin(self) -> Iterator[None] | None:
        if self._replay:
            return self._repeat(*unpack(self._replay.popleft()))
        if self._to_pass_over:
            return self._pass_over()
        if self._put_off:
            self._catch_up_with_orders()
        if self._halted is not None:
            return None
        if self._is_source:
            if self._triggers:
                self._begin_checkpoint(self._triggers.popleft())
                return None
            return None if self.ended or self.outputs.blocked else self._read_next()
        if not self._has_outputs:
            many = self.inputs.take_records(self._merged)
            if many:
                return self._take_many(many)
        end = self.inputs.next()
        if end is None:
            return None
        return self._take(end) if self._rounds is None else self._take_in_loop(end, self.inputs.records_ahead(end))

    def _repeat(self, choice: Choice, value: int) -> Iterator[None] | None:
        """A step that the one before this began in the same way."""
        match choice:
            case Choice.READ | Choice.END:
                return self._read(choice, value)
            case Choice.TRIGGER:
                self._begin_checkpoint(CheckpointId(value))
            case Choice.INPUT:
                further, position = divmod(value, len(self._by_position))
                return self._take_in_loop(self._by_position[position], further + 1)
            case Choice.ABORT:
                self._begin_with(choice, value)
                self._obey(events.CheckpointAborted(CheckpointId(value)))
            case Choice.OVERTAKE:
                assert self._unaligned is not None
                self._begin_overtaking(self._unaligned, CheckpointId(value))
            case Choice.ERA | Choice.CLOCK:
                raise NondeterministicOperator(f"{self.id} does not read the clock where its predecessor did")
            case _:
                assert_never(choice)
        return None

    def _catch_up_with_orders(self) -> None:
        orders, self._put_off = self._put_off, []
        for order in orders:
            order()

    def _begin_checkpoint(self, checkpoint: CheckpointId) -> None:
        found = self._barriers.step(NO_TIME_MS, events.CheckpointTriggered(checkpoint))
        if found:
            self._on_point("trigger")
            self._begin_with(Choice.TRIGGER, checkpoint)
        self._apply_all(found)

    def _take_many(self, many: list[tuple[InputChannel, Message, Any]]) -> Iterator[None]:
        self._number_step()
        counts: dict[ChannelId, int] = {}
        for end, _, _ in many:
            counts[end.channel] = counts.get(end.channel, 0) + 1
        self._taken = [(self.inputs.channels[channel], count) for channel, count in counts.items()]
        return self._push_many([(message, payload) for _, message, payload in many])

    def _take_in_loop(self, end: InputChannel, count: int) -> Iterator[None] | None:
        """``count``: of messages of records."""
        if count <= 1:
            return self._take(end)
        self._begin_with(Choice.INPUT, self._position[end.channel] + (count - 1) * len(self._by_position))
        self._taken = [(end, count)]
        taken = [end.queue.popleft() for _ in range(count)]
        for message, payload in taken:
            self._pass_on(end.producer, message)
            if self._open_logs:
                self._note_in_flight(end.channel, message, payload)
        if end.ended:
            return iter(())
        if end.channel in self._back:
            self._record_came_round(end.channel)
        return self._push_many(taken)

    def _take(self, end: InputChannel) -> Iterator[None] | None:
        message, payload = end.queue.popleft()
        self._begin_with(Choice.INPUT, self._position[end.channel])
        self._pass_on(end.producer, message)
        self._taken = [(end, 1)]
        if self._open_logs:
            self._note_in_flight(end.channel, message, payload)
        if end.ended and message.kind is not MessageKind.BARRIER:
            return iter(())  # sent again, under other numbers: it was all here before
        match message.kind:
            case MessageKind.RECORDS:
                if self._rounds is not None and end.channel in self._back:
                    self._record_came_round(end.channel)
                return self._push(message, payload)
            case MessageKind.BARRIER:
                self._take_barrier(end, message)
                return None
            case MessageKind.END_OF_INPUT:
                return self._take_end(end)
            case MessageKind.WATERMARK:
                return self._advanced(self._watermarks.advance(end.channel, message.watermark_ms))
            case MessageKind.ROUND:
                assert self._rounds is not None
                return self._hand_on(self._rounds.take(end.channel, message.watermark_ms))
            case MessageKind.CREDIT | MessageKind.REPLICA:
                raise PeerProtocolError(f"{message.kind.name} on input channel {end.channel}")
            case _:
                assert_never(message.kind)

    def _take_end(self, end: InputChannel) -> Iterator[None]:
        end.ended = True
        if self.ended:
            return iter(())  # of a loop, which ended here
        if all(e.ended for e in self.inputs.channels.values()):
            return self._end()
        advanced = self._advanced(self._watermarks.end(end.channel))
        return advanced if self._rounds is None else chain(advanced, self._one_ended(end.channel))

    def _advanced(self, watermark_ms: int | None) -> Iterator[None]:
        return iter(()) if watermark_ms is None else self._advance(watermark_ms)

    def _take_barrier(self, end: InputChannel, message: Message) -> None:
        # The barrier is consumed before the snapshot is taken, so that the cursors of the snapshot stand behind it.
        self._taken = []
        self.inputs.consumed(end)
        if not self._guarantee.aligns:  # what comes behind it will be sent again to whoever begins from this snapshot
            self._inputs_at.setdefault(message.epoch, {}).setdefault(str(end.channel), end.cursor.consumed)
        self._obey(events.BarrierArrived(end.channel, message.epoch))

    def _read_next(self) -> Iterator[None]:
        if self._draining:
            return self._read(Choice.END, 0)
        return self._read(Choice.READ, self._rows_to_read())

    def _read(self, choice: Choice, rows: int) -> Iterator[None]:
        self._begin_with(choice, rows)
        if choice is not Choice.END and (yield from self._read_rows(rows)):
            return
        yield from self._end()

    def _pass_over(self) -> Iterator[None]:
        """Rows whose effects somebody has seen: read, and not sent."""
        assert self._progress is not None
        before = self._progress.rows
        self.outputs.silent = True
        try:
            more = yield from self._read_rows(min(self._to_pass_over, PASSED_OVER_ROWS))
        finally:
            self.outputs.silent = False
        self._to_pass_over = max(0, self._to_pass_over - (self._progress.rows - before)) if more else 0

    def has_read(self, rows: int) -> None:
        """To be called in ``_read_rows``, before anything is made of the ``rows`` that were read."""
        if self._progress is not None:
            self._progress.rows += rows

    def _end(self) -> Iterator[None]:
        yield from self._flush()
        while not self.outputs.accepts:
            yield
        self.outputs.broadcast(MessageKind.END_OF_INPUT, self.outputs.epoch)
        self._on_point("end")
        self.ended = True
        self._on_end()
        if self._is_source or self._is_loop_head:
            self._report_exhausted()

    # --- a failure of others

    def stand_in_for(self, failed: Collection[SubtaskId]) -> None:
        """Some subtasks, perhaps of the same source, are not at work for a moment: a driver may do some of theirs."""

    def fence_inputs(
        self, failed: Mapping[SubtaskId, int], generation: Generation
    ) -> Iterator[tuple[ChannelId, SubtaskId, int]]:
        """The producers among ``failed`` (-> slot of the new head) get ``generation``: take nothing older. Yields their
        channels with the next ``seq`` expected, and says to their successors where to go on."""
        for channel, end in self.inputs.channels.items():
            if end.producer not in failed:
                continue
            slot = failed[end.producer]
            yield channel, end.producer, end.fence(generation, None if slot == self._incarnation.slot else slot)
            self.inputs.grant_anew(end)

    def received_digests(self, channel: ChannelId) -> Sequence[tuple[int, Any]]:
        """Of the messages that have come in on ``channel``: spans, each with the number of its first."""
        return self.seen.spans(channel) if self.seen is not None else ()

    def fence_output(self, channel: ChannelId, generation: Generation) -> int:
        """The consumer of ``channel`` has failed: close it until one of ``generation`` opens it. Returns the next
        ``seq`` that was not sent."""
        end = self.outputs.channels[channel]
        sent = end.log.sent
        end.fence(generation)
        if self.ended and not self._guarantee.replays:  # what said so is not sent again: say so anew
            self.outputs.tell_end(end)
        return sent
