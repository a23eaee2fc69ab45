"""The steps of one subtask: which message, range, trigger or repeated choice is next, and what the step does.

A *step* processes one bundle of messages (or a source range, a checkpoint trigger, timers of the clock) to its end. It
is a generator, so it can wait in the middle for room in an output log without blocking the slot. No barrier or snapshot
falls inside a step; taking one is a step of its own.

A *bundle* is the records that wait on all input channels, up to a limit (``InputGate.next``). The work processes it as
one batch. A bundle of watermarks likewise raises event time once. A step takes only one message of any other kind, and
no bundle extends past a message of another kind on its channel. What a bundle took is the step's determinant.

The slot's loop calls ``run`` while ``runnable``. The steps call their ports (``ports``) directly: a list of effects for
each message would cost more than the message.

Rules: one thread. An exception anywhere in a step is the subtask's failure. The work never gets a message of an older
generation of its producer, a duplicate, or a message after a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from typing_extensions import assert_never

from flinkplus.errors import NondeterministicOperator, PeerProtocolError
from flinkplus.protocol.barriers.unaligned import UnalignedBarriers
from flinkplus.protocol.channels.channel import Accept, Duplicate, Stale
from flinkplus.protocol.channels.inputs import Bundle, InputChannel
from flinkplus.protocol.channels.watermarks import InputWatermarks
from flinkplus.protocol.determinants.determinants import TICKED, Choice, InputPart, unpack
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.subtask.answers import AnswerSide
from flinkplus.protocol.subtask.checkpoints import SubtaskCheckpoints
from flinkplus.protocol.subtask.clock import ClockSide
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.subtask.joined import JoinedSteps
from flinkplus.protocol.subtask.loops import LoopSide
from flinkplus.protocol.subtask.parts import SubtaskParts, add_inputs
from flinkplus.protocol.subtask.reading import SourceSide
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId, invariant
from flinkplus.protocol.vocabulary.in_flight import MAX_OVERTAKEN_BYTES
from flinkplus.protocol.vocabulary.messages import Message, MessageKind


class SubtaskSteps:
    """The protocol of one active subtask of one generation.

    ``saved``: what ``saved`` returned at the version that the subtask starts from.
    ``producers``: every input channel, with its producer.
    """

    def __init__(
        self,
        identity: SubtaskIdentity,
        saved: OperatorState,
        parts: SubtaskParts,
        producers: Sequence[tuple[ChannelId, SubtaskId]],
    ) -> None:
        self.id = identity.subtask
        self._identity = identity
        self._is_source = parts.is_source
        self._guarantee = identity.guarantee
        self.inputs = parts.inputs
        self.outputs = parts.outputs
        self.history = parts.history
        self.replay = parts.replay
        self.time = parts.time
        self.admission = parts.admission
        self._work = parts.work
        self._reports = parts.reports
        self._running = False
        self._step: Iterator[None] | None = None
        self._taken: Bundle = []
        self._waiting_since: float | None = None
        timed = not parts.is_source and parts.work.has_clock
        self._clock = ClockSide(parts, lambda: self.ended, lambda: self._has_input) if timed else None
        self._triggers: deque[CheckpointId] = deque()
        self.draining = False
        self.ended = saved.ended
        add_inputs(parts, identity, saved, producers)
        self._by_position = [self.inputs.channels[channel] for channel in sorted(self.inputs.channels)]
        channels = tuple(end.channel for end in self._by_position)
        self._position = {channel: at for at, channel in enumerate(channels)}
        ended = [end.channel for end in self._by_position if end.ended]
        self._watermarks = InputWatermarks(channels, saved.watermarks, ended)
        self.checkpoints = SubtaskCheckpoints(identity, saved, parts, self.saved)
        self._channel_state = self.checkpoints.channel_state
        self._unaligned = self.checkpoints.unaligned
        self._loop: LoopSide | None = None
        if identity.cycles.head_of(self.id.vertex) is not None:
            self._loop = LoopSide(identity, saved, parts, lambda: self.ended, self._end)
        is_head = self._loop is not None
        self._source = SourceSide(parts, self._end) if parts.is_source else None
        asked = parts.answers
        self._answers = None if asked is None else AnswerSide(parts, asked, self._input_ended, self._end)
        if identity.lineage.recipes and self.replay.determinants:
            self.outputs.lift_limits()
        self._joined = JoinedSteps(parts, self._by_position, self._begin_bundle, self._pass_on, self._end, is_head)

    def saved(self, checkpoint: CheckpointId) -> OperatorState:
        """The protocol's part of the snapshot of ``checkpoint``."""
        return replace(
            self.checkpoints.saved(checkpoint),
            steps=self.history.next_step,
            reached=self.history.saved_of_ancestors(),
            ended=self.ended,
            clock_ms=self.time.ms,
            ended_channels=tuple(str(e.channel) for e in self.inputs.channels.values() if e.ended),
            watermarks=self._watermarks.saved(),
            rounds=None if self._loop is None else self._loop.saved(),
            drained=self.draining,
        )

    # --- orders

    def start(self) -> None:
        """Start running. A source that had ended reports that again."""
        self._running = True
        self._check_repetition()
        self._reports.reached("start")
        if self._answers is not None:
            self._answers.ask()
        if self.ended:
            self._work.ended()
            self._report_end()

    def stop(self) -> Iterator[None] | None:
        """Stop running. Returns the unfinished step, which the caller closes."""
        self._running = False
        step, self._step = self._step, None
        return step

    def _report_end(self) -> None:
        is_head = self._loop is not None and self._loop.is_head
        if self._is_source or is_head or self._answers is not None:
            self._reports.exhausted()

    def trigger(self, checkpoint: CheckpointId) -> None:
        """Have a source take a snapshot and send a barrier, between two steps."""
        if self.replay.active:
            self.replay.deferred.append(lambda: self.trigger(checkpoint))
        else:
            self._triggers.append(checkpoint)

    def drain(self) -> None:
        """Have a source stop reading, and end as if it had read everything."""
        self.draining = True

    def abort(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is aborted. That is a step of its own, and waits for an unfinished step: otherwise, what the
        rest of that step sends would depend on when the order came."""
        if self.replay.active or self._step is not None:
            self.replay.deferred.append(lambda: self.abort(checkpoint))
            return
        if self.checkpoints.paused_by == checkpoint:
            self.checkpoints.paused_by = None
        if checkpoint in self._triggers:
            self._triggers.remove(checkpoint)
        if not self._is_source:
            self.history.begin(Choice.ABORT, checkpoint)
        self.checkpoints.handle(events.CheckpointAborted(checkpoint))

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""
        self.checkpoints.complete(checkpoint)
        if self.history.known is not None:
            self.history.known.complete(checkpoint)
        self.admission.forget(checkpoint)

    # --- messages

    def receive(self, message: Message, payload: Any) -> None:
        """A message arrived on one of the input channels. Duplicates, gaps and fenced messages have no effect."""
        end = self.inputs.channels.get(message.channel)
        if end is None:
            raise PeerProtocolError(f"{self.id} has no input channel {message.channel}")
        match self.admission.admit(end, message, payload):
            case Accept():
                self.history.learn(end.producer, message)
                self.inputs.put(end, message, payload)
                if self._unaligned is not None:
                    self.checkpoints.arrived(self._unaligned, message, payload)
            case Duplicate():
                # Sent again over a new stream: the credit that would have prevented it was lost with the old one.
                self.inputs.grant_anew(end)
            case Stale():
                self.inputs.stale += 1

    # --- when a step can run

    def runnable(self, now: float) -> bool:
        """Whether ``run`` would make progress; ``now`` in seconds."""
        return self._running and self._can_proceed() and self.deadline(now) <= now

    @property
    def repeats_on(self) -> bool:
        """Whether the next step can be repeated at once."""
        return self.replay.active and self._step is None and self._can_proceed()

    @property
    def overdue(self) -> bool:
        """Whether a barrier must overtake before the next step."""
        machine = self._unaligned
        if machine is None or self.replay.active:
            return False
        if machine.due is not None:
            if not self.checkpoints.can_hold(machine, machine.due):
                return False
        elif not self._triggers or not machine.may_overtake(self._triggers[0]):
            return False
        return self._step is None or self.outputs.accepts_within(MAX_OVERTAKEN_BYTES)

    def _can_proceed(self) -> bool:
        if (self.checkpoints.paused_by is None or self.replay.deferred) and self._has_work() and self.outputs.accepts:
            return True
        return self._unaligned is not None and self.overdue

    def _has_work(self) -> bool:
        if self._step is not None:
            return True
        replay = self.replay
        if replay.determinants:
            if self._source is not None:
                return self._source.can_repeat
            if self._answers is not None and not self._answers.can_repeat:
                return False
            channels = self._by_position
            return all(len(channels[at].queue) >= count for at, count, _ in replay.next_bundle(len(channels)))
        if replay.deferred or replay.rows_to_skip:
            return True
        if self._source is not None:
            return bool(self._triggers) or (self._may_read and (self.draining or self._source.has_work))
        return self._has_input or (self._clock is not None and self._clock.at is not None)

    @property
    def _has_input(self) -> bool:
        if self._answers is not None:
            return self._answers.has_work or self.inputs.has_next(self._answers.takes_records)
        for end in self.inputs.channels.values():  # noqa: SIM110  # asked before each step: quicker than ``any``
            if end.queue and not end.blocked:
                return True
        return False

    @property
    def _may_read(self) -> bool:
        return not (self.ended or self.outputs.blocked)

    def deadline(self, now: float) -> float:
        """When the next step may begin; ``now`` when it need not wait.

        A paced source waits for rows. Any other subtask may let a small bundle grow (``SubtaskWork.bundle_at``). This
        affects only when a step begins, never what is repeated.
        """
        if self._step is not None or self.replay.active or self.replay.deferred:
            return now
        if self._answers is not None and self._answers.has_work:
            return now
        if self._source is not None:
            waits = not (self.draining or self.ended or self._triggers)
            return self._source.begins_at(now) if waits else now
        clock_at = None if self._clock is None else self._clock.at
        if clock_at is not None and (clock_at <= now or not self._has_input):
            return now if self.overdue else max(now, clock_at)
        if not self.inputs.may_wait:
            return now
        if self._waiting_since is None:
            if not self._has_input:
                return now
            self._waiting_since = now
        bundle_at = self._work.bundle_at(self._waiting_since)
        return bundle_at if clock_at is None else min(bundle_at, clock_at)

    # --- steps

    def run(self) -> None:
        """Continue the current step, or begin the next one; returns at its end or when an output has no room."""
        if self._unaligned is not None and self.overdue:
            self._let_overtake(self._unaligned)
        else:
            if self._step is None:
                self._step = self._begin()
                if self._step is None:
                    self._check_repetition()
            self._proceed()
        if self._answers is not None:
            self._answers.ask()

    def _proceed(self) -> None:
        while self._step is not None and self.outputs.accepts:
            try:
                next(self._step)
            except StopIteration:
                self._step = None
                taken, self._taken = self._taken, []
                for end, count in taken:
                    self.inputs.consumed(end, count)
                self.outputs.cut_recipe()
                self._check_repetition()
                self._work.step_done(taken)

    def _check_repetition(self) -> None:
        """At the end of replay, check that all was regenerated; between two steps, as new steps could hide a gap."""
        if self.replay.take_finished():
            self.outputs.restore_limits()
            self.outputs.check_remade()

    def _begin(self) -> Iterator[None] | None:
        replay = self.replay
        if replay.determinants:
            if (joined := self._joined.begin()) is not None:
                self._taken, step = joined
                return step
            if replay.next_bundle(len(self._by_position)):
                return self._take([(self._by_position[part.position], part.messages) for part in replay.take_bundle()])
            return self._repeat(*unpack(replay.determinants.popleft()))
        if self._source is not None and replay.rows_to_skip:
            return self._source.pass_over()
        if replay.deferred:
            replay.carry_out_deferred()
        if self.checkpoints.paused_by is not None:
            return None
        if self._source is not None:
            if self._triggers:
                self._begin_checkpoint(self._triggers.popleft())
                return None
            return self._source.begin(self.draining) if self._may_read else None
        if self._clock is not None and (ticking := self._clock.begin()) is not None:
            return ticking
        if self._answers is not None and (taking := self._answers.begin()) is not None:
            return taking
        bundle = self.inputs.next(self._answers is None or self._answers.takes_records)
        return self._take(bundle) if bundle else None

    def _repeat(self, choice: Choice, value: int) -> Iterator[None] | None:
        """Repeat a step of the predecessor."""
        match choice:
            case Choice.END if value == TICKED and self._clock is not None:
                return self._clock.tick()
            case Choice.READ if self._answers is not None:
                return self._answers.take(value)
            case Choice.READ | Choice.END:
                invariant(self._source is not None, "a step that is no source's reads", subtask=self.id)
                assert self._source is not None
                return self._source.read(choice, value)
            case Choice.TRIGGER:
                self._begin_checkpoint(CheckpointId(value))
            case Choice.ABORT:
                self.history.begin(choice, value)
                self.checkpoints.handle(events.CheckpointAborted(CheckpointId(value)))
            case Choice.OVERTAKE:
                self._begin_overtaking(CheckpointId(value))
            case Choice.ERA | Choice.CLOCK | Choice.INPUT:
                raise NondeterministicOperator(f"{self.id} does not read the clock where its predecessor did")
            case _:
                assert_never(choice)
        return None

    def _begin_checkpoint(self, checkpoint: CheckpointId) -> None:
        found = self.checkpoints.decide(events.CheckpointTriggered(checkpoint))
        if found:
            self._reports.reached("trigger")
            self.history.begin(Choice.TRIGGER, checkpoint)
        self.checkpoints.carry_out(found)

    def _begin_overtaking(self, checkpoint: CheckpointId) -> None:
        found = self.checkpoints.decide_overtaking(checkpoint)
        self.history.begin(Choice.OVERTAKE, checkpoint)
        self.checkpoints.carry_out(found)

    def _let_overtake(self, machine: UnalignedBarriers) -> None:
        """Finish the current step without waiting for room, then copy the state. A step that produces more than a
        barrier may overtake pauses again, until enough is sent for it to continue."""
        with self.outputs.endless(MAX_OVERTAKEN_BYTES):
            self._proceed()
        if self._step is not None:
            return
        with self.outputs.endless():
            self.replay.carry_out_deferred()
            if self._triggers and machine.may_overtake(self._triggers[0]):
                self._begin_checkpoint(self._triggers.popleft())
            elif machine.due is not None and self.checkpoints.can_hold(machine, machine.due):
                self._begin_overtaking(machine.due)  # checked again: the step may have filled the slot's budget

    # --- taking messages

    def _take(self, bundle: Bundle) -> Iterator[None] | None:
        """Start a step that takes messages of one kind: several for records or watermarks, otherwise one."""
        self._begin_bundle(bundle)
        self._taken = bundle
        self._waiting_since = None
        taken: list[tuple[Message, Any]] = []
        for end, message, payload in self.inputs.take(bundle):
            self._pass_on(end, message, payload)
            # Messages on a channel that has ended were received before; they are sent again with other numbers.
            if not end.ended or message.kind is MessageKind.BARRIER:
                taken.append((message, payload))
        return self._process(taken) if taken else iter(())

    def _begin_bundle(self, bundle: Bundle) -> None:
        channels, last = len(self._by_position), len(bundle) - 1
        parts = [InputPart(self._position[end.channel], count, at < last) for at, (end, count) in enumerate(bundle)]
        self.history.begin(Choice.INPUT, *[part.value(channels) for part in parts])

    def _pass_on(self, end: InputChannel, message: Message, payload: Any) -> None:
        """A step that has begun takes a message."""
        self.history.pass_on(end.producer, message)
        if self._channel_state.logging:
            self._channel_state.taken(end.channel, message, payload)

    def _process(self, taken: list[tuple[Message, Any]]) -> Iterator[None] | None:
        message = taken[0][0]
        end = self.inputs.channels[message.channel]
        match message.kind:
            case MessageKind.RECORDS:
                if self._loop is not None:
                    for records, _ in taken:
                        self._loop.took_records(records.channel)
                return self._work.push(taken)
            case MessageKind.BARRIER:
                if self._work.holds_to_barrier and self.checkpoints.completes(end.channel, message.epoch):
                    return self._emit_before(end, message)
                self._take_barrier(end, message)
                return None
            case MessageKind.END_OF_INPUT:
                return self._take_end(end)
            case MessageKind.WATERMARK:
                risen = [self._watermarks.advance(mark.channel, mark.watermark_ms) for mark, _ in taken]
                return self._advanced(max((mark_ms for mark_ms in risen if mark_ms is not None), default=None))
            case MessageKind.ROUND:
                assert self._loop is not None
                return self._loop.take(message.channel, message.watermark_ms)
            case MessageKind.CREDIT | MessageKind.REPLICA:
                raise PeerProtocolError(f"{message.kind.name} on input channel {message.channel}")
            case _:
                assert_never(message.kind)

    def _take_end(self, end: InputChannel) -> Iterator[None]:
        self.inputs.mark_ended(end)
        if self.ended:
            return iter(())  # from a back edge: the loop ended at this subtask
        if all(e.ended for e in self.inputs.channels.values()):
            return self._end() if self._answers is None else iter(())
        advanced = self._advanced(self._watermarks.end(end.channel))
        return advanced if self._loop is None else chain(advanced, self._loop.one_ended(end.channel))

    def _advanced(self, watermark_ms: int | None) -> Iterator[None]:
        return iter(()) if watermark_ms is None else self._work.advance(watermark_ms)

    def _emit_before(self, end: InputChannel, message: Message) -> Iterator[None]:
        """The last barrier of a checkpoint: what is held back leaves before the snapshot and the subtask's own one."""
        yield from self._work.before_barrier()
        while not self.outputs.accepts:
            yield
        self._take_barrier(end, message)

    def _take_barrier(self, end: InputChannel, message: Message) -> None:
        # The barrier is consumed before the snapshot is taken, so that the cursors of the snapshot stand behind it.
        self._taken = []
        self.inputs.consumed(end)
        self.checkpoints.barrier_taken(end, message.epoch)

    # --- the end

    def _input_ended(self) -> bool:
        return not self.ended and all(end.ended for end in self.inputs.channels.values())

    def _end(self) -> Iterator[None]:
        yield from self._work.flush()
        while not self.outputs.accepts:
            yield
        self.outputs.broadcast(MessageKind.END_OF_INPUT, self.outputs.epoch)
        self._reports.reached("end")
        self.ended = True
        self._work.ended()
        self._report_end()

    # --- fencing

    def fence_inputs(
        self, failed: Mapping[SubtaskId, int], generation: Generation
    ) -> Iterator[tuple[ChannelId, SubtaskId, int]]:
        """As ``InputGate.fence``."""
        return self.inputs.fence(failed, generation, self._identity.slot)

    def fence_output(self, channel: ChannelId, generation: Generation) -> int:
        """The consumer of ``channel`` has failed: close it until a consumer of ``generation`` opens it. Returns the
        next ``seq`` that was not sent."""
        end = self.outputs.channels[channel]
        sent = end.log.sent
        end.fence(generation)
        if self.ended and not self._guarantee.replays:  # the first end of input is not sent again: append another
            self.outputs.append_end(end)
        return sent
