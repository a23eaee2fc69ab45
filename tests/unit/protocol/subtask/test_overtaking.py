"""The steps of a subtask whose barriers overtake: what waits is recorded, and nothing is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.channels.output_logs import Entry
from flinkplus.protocol.channels.outputs import MAX_UNSENT_MESSAGES, MAX_UNSENT_TO_FAILED, OutputChannel
from flinkplus.protocol.determinants.determinants import Choice, decode_spans, unpack
from flinkplus.protocol.snapshot.handle import START, OperatorState
from flinkplus.protocol.subtask.checkpoints import add_logs
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.in_flight import MAX_OVERTAKEN_BYTES, AbortCause, InFlightBudget, Logs, cost_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from tests.unit.protocol.subtask.test_replay import INPUTS, NOTHING, Folding, message
from upstream_cache.log import OutputLog

ONE, TWO = CheckpointId(1), CheckpointId(2)
CHANNELS = [channel for channel, _ in INPUTS]
WIDE = 5
"""A record that makes two messages."""
ROOM = 2


class Overtaken(Folding):
    """Little room in its outputs; notes when its state was copied, and what was in flight then."""

    bundle_rows = 1

    def __init__(self, promotion: Promotion | None = None, saved: OperatorState = NOTHING, checkpoint: int = 0) -> None:
        self.copied: dict[int, dict[str, int]] = {}
        self.persisted_of: dict[int, Logs] = {}
        self.answered: dict[int, Any] = {}
        generation, began = 2 if promotion else 1, CheckpointId(checkpoint)
        super().__init__(generation, iter(count()), promotion, unaligned=True, saved=saved, checkpoint=began)

    @staticmethod
    def log(channel: ChannelId, first: int, received: int, may_spill: bool) -> OutputLog[Entry]:
        return OutputLog(channel, ROOM, 1 << 20, first, received=received)

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        self.copied[checkpoint] = self.saved(checkpoint).inputs

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        self.persisted_of[checkpoint] = logs

    def answer(self, checkpoint: CheckpointId, found: object) -> None:
        self.answered[checkpoint] = found

    @property
    def budget(self) -> InFlightBudget:
        return self._identity.in_flight

    @budget.setter
    def budget(self, found: InFlightBudget) -> None:
        self._identity.in_flight = self.checkpoints.channel_state._budget = found

    def close_outputs(self) -> None:
        """No consumer grants any credit."""
        for end in self.outputs.channels.values():
            end.limit = end.granted = 0

    def rest(self) -> None:
        """Take messages until a step rests half-way, for want of room."""
        seq = 0
        while self._step is None:
            self.receive(message(CHANNELS[0], seq, WIDE), None)
            self.run()
            seq += 1

    def work_off(self) -> None:
        while self.runnable(0.0):
            self.run()

    def in_flight(self, checkpoint: int) -> dict[ChannelId, list[int]]:
        logs = self.persisted_of[checkpoint]
        return {channel: [message.seq for message, _ in log.messages] for channel, log in logs.items()}


def packed(message: Message, payload: Any) -> Message:
    return message


def barrier(channel: ChannelId, seq: int, checkpoint: CheckpointId = ONE) -> Message:
    return Message(MessageKind.BARRIER, channel, Generation(1), Seq(seq), checkpoint)


def choices(subtask: Overtaken) -> list[Choice]:
    """How its steps since the last barrier began."""
    steps = subtask.history.steps
    assert steps is not None
    return [unpack(found)[0] for found in steps._determinants]


def test_the_state_is_copied_before_all_that_waits_and_that_is_recorded() -> None:
    subtask = Overtaken()
    subtask.checkpoints.overtake(ONE)
    for channel in CHANNELS:
        subtask.receive(message(channel, 0, 0), None)
    subtask.receive(barrier(CHANNELS[1], 1), None)
    assert (subtask.overdue,) == (True,)
    subtask.run()
    assert subtask.copied == {1: dict.fromkeys(map(str, CHANNELS), 0)}
    assert (subtask.overdue,) == (False,)
    subtask.receive(message(CHANNELS[0], 1, 0), None)
    subtask.run()
    subtask.receive(barrier(CHANNELS[0], 2), None)
    subtask.receive(message(CHANNELS[0], 3, 0), None)
    assert subtask.persisted_of == {}
    subtask.receive(barrier(CHANNELS[2], 1), None)
    assert subtask.in_flight(1) == {CHANNELS[0]: [0, 1, 2], CHANNELS[1]: [0, 1], CHANNELS[2]: [0, 1]}
    saved = add_logs(subtask.persisted_of[1], OperatorState(inputs=subtask.copied[1]), packed, cost_of)
    assert saved.inputs == {str(CHANNELS[0]): 3, str(CHANNELS[1]): 2, str(CHANNELS[2]): 2}, "behind the barriers"
    sizes = [cost_of(message) for message, _ in subtask.persisted_of[1][CHANNELS[0]].messages]
    assert subtask.persisted_of[1][CHANNELS[0]].size_bytes == sum(sizes)


def test_without_an_order_it_aligns() -> None:
    subtask = Overtaken()
    for channel in CHANNELS:
        subtask.receive(message(channel, 0, 0), None)
        subtask.receive(barrier(channel, 1), None)
    subtask.work_off()
    assert subtask.in_flight(1) == {} and subtask.copied == {1: dict.fromkeys(map(str, CHANNELS), 2)}


def test_the_order_may_come_when_some_barriers_are_taken() -> None:
    subtask = Overtaken()
    subtask.receive(barrier(CHANNELS[0], 0), None)
    subtask.receive(message(CHANNELS[0], 1, 0), None)
    subtask.receive(message(CHANNELS[1], 0, 0), None)
    subtask.work_off()
    subtask.receive(message(CHANNELS[1], 1, 0), None)
    subtask.checkpoints.overtake(ONE)
    subtask.run()
    subtask.receive(barrier(CHANNELS[1], 2), None)
    subtask.receive(barrier(CHANNELS[2], 0), None)
    assert subtask.in_flight(1) == {CHANNELS[1]: [1, 2], CHANNELS[2]: [0]}


def test_a_step_that_rests_is_done_and_the_barrier_sent_without_credit() -> None:
    subtask = Overtaken()
    subtask.close_outputs()
    subtask.rest()
    made = {channel: end.log.appended for channel, end in subtask.outputs.channels.items()}
    assert not subtask.outputs.accepts and not subtask.runnable(0.0)
    subtask.checkpoints.overtake(ONE)
    subtask.receive(barrier(CHANNELS[1], 0), None)
    assert subtask.runnable(0.0)
    subtask.run()
    assert list(subtask.copied) == [1]
    for channel, end in subtask.outputs.channels.items():
        assert end.log.sent == end.log.appended > made[channel]
        assert subtask.made(channel.consumer)[-1].kind is MessageKind.BARRIER


def test_what_was_sent_without_credit_is_waited_for() -> None:
    subtask = Overtaken()
    subtask.close_outputs()
    subtask.checkpoints.overtake(ONE)
    subtask.receive(barrier(CHANNELS[0], 0), None)
    subtask.receive(message(CHANNELS[0], 1, 0), None)
    subtask.run()
    assert (subtask.outputs.accepts, subtask.runnable(0.0)) == (False, False)
    for end in subtask.outputs.channels.values():
        assert (end.log.max_unsent_messages, end.log.sent, end.granted) == (ROOM, 1, 0)
        end.credit(1, 0, None)
    assert (subtask.outputs.accepts, subtask.runnable(0.0)) == (True, True)


def made_for_the_first(subtask: Overtaken, count: int, size_bytes: int = 10) -> OutputChannel:
    """So many messages for the first of its consumers, whose window is two messages; the channel."""
    end = next(iter(subtask.outputs.channels.values()))
    end.window = Window(2)
    for number in range(count):
        subtask.outputs.append_records(end, number, None, 1, size_bytes)
        subtask.outputs.pump()
    return end


def begin(subtask: Overtaken) -> None:
    """The state is copied for the first checkpoint."""
    subtask.checkpoints.overtake(ONE)
    subtask.receive(barrier(CHANNELS[1], 0), None)
    subtask.run()
    assert list(subtask.copied) == [1]


def test_what_is_sent_again_is_not_sent_without_credit_and_the_barrier_comes_right_behind_it() -> None:
    subtask = Overtaken()
    end = made_for_the_first(subtask, 12)
    end.fence(Generation(2))
    end.credit(2, 0, None)
    subtask.outputs.pump(end)
    assert (end.log.sent, end.granted) == (8, 8)
    begin(subtask)
    sent = [other.log.sent for other in subtask.outputs.channels.values()]
    assert sent == [8, 1, 1] and subtask.outputs.accepts, "it goes on meanwhile"
    for consumed, reaches in ((7, 9), (9, 11)):
        end.credit(2, consumed, None)
        subtask.outputs.pump(end)
        assert end.log.sent == reaches
    end.credit(2, 10, None)
    subtask.outputs.pump(end)
    assert (end.log.sent, end.granted, subtask.outputs.accepts) == (13, 12, False)
    end.credit(2, 11, None)
    assert subtask.outputs.accepts


def test_a_barrier_that_is_to_overtake_for_nobody_does_so_once_there_is_somebody() -> None:
    subtask = Overtaken()
    end = made_for_the_first(subtask, 6)
    end.fence(Generation(2))
    begin(subtask)
    assert (end.log.sent, end.log.appended) == (6, 7)
    end.credit(2, 6, None)
    end.limit = end.granted = 6
    subtask.outputs.pump(end)
    assert end.log.sent == 7


def test_of_what_was_never_sent_no_more_goes_without_credit_than_may_be_overtaken() -> None:
    subtask = Overtaken()
    end = next(iter(subtask.outputs.channels.values()))
    subtask.close_outputs()
    end.log.max_unsent_bytes = 4 * MAX_OVERTAKEN_BYTES
    made_for_the_first(subtask, 2, MAX_OVERTAKEN_BYTES // 2 + 1)
    begin(subtask)
    assert (end.log.sent, end.log.appended) == (0, 3)
    end.limit = end.granted = 1
    subtask.outputs.pump(end)
    assert end.log.sent == 3


def test_what_was_sent_already_is_sent_without_credit_when_the_order_comes() -> None:
    subtask = Overtaken()
    subtask.close_outputs()
    for channel in CHANNELS:
        subtask.receive(barrier(channel, 0), None)
    subtask.work_off()
    ends = list(subtask.outputs.channels.values())
    assert [end.log.sent for end in ends] == [0, 0, 0]
    subtask.checkpoints.overtake(TWO)
    assert [end.log.sent for end in ends] == [0, 0, 0], "its barrier is not there yet"
    subtask.checkpoints.overtake(ONE)
    assert [end.log.sent for end in ends] == [1, 1, 1]


def test_a_checkpoint_that_is_given_up_meanwhile_is_not_begun() -> None:
    subtask = Overtaken()
    subtask.close_outputs()
    subtask.rest()
    subtask.checkpoints.overtake(ONE)
    subtask.abort(ONE)  # waits until the step is done
    subtask.receive(barrier(CHANNELS[1], 0), None)
    subtask.run()
    assert subtask.copied == {} and not subtask.overdue
    assert all(end.log.max_unsent_messages == ROOM for end in subtask.outputs.channels.values())


def test_a_successor_overtakes_where_its_predecessor_did() -> None:
    first = Overtaken()
    first.checkpoints.overtake(ONE)
    first.receive(message(CHANNELS[0], 0, WIDE), None)
    first.receive(message(CHANNELS[1], 0, WIDE), None)
    first.run()
    first.receive(barrier(CHANNELS[2], 0), None)
    first.run()
    known = decode_spans(first.made(0)[-1].determinants)[0][1]
    assert [unpack(found)[0] for found in known if unpack(found)[0] is not Choice.CLOCK] == [
        Choice.INPUT,
        Choice.OVERTAKE,
    ]
    second = Overtaken(Promotion({}, known, {}, {}, frozenset(), None))
    second.checkpoints.overtake(ONE)
    second.receive(barrier(CHANNELS[2], 0), None)
    second.receive(message(CHANNELS[1], 0, WIDE), None)
    second.receive(message(CHANNELS[1], 1, WIDE), None)
    assert not second.runnable(0.0), "it repeats, and what it is to take first is not there yet"
    second.receive(message(CHANNELS[0], 0, WIDE), None)
    second.run()
    second.run()
    assert second.copied == first.copied and second.total == first.total
    assert [m[:7] for m in second.made(0)] == [m._replace(generation=Generation(2))[:7] for m in first.made(0)]
    first.work_off()
    second.receive(barrier(CHANNELS[1], 2), None)
    second.receive(barrier(CHANNELS[0], 1), None)
    assert second.in_flight(1) == {CHANNELS[0]: [1], CHANNELS[1]: [0, 1, 2], CHANNELS[2]: [0]}


def test_what_was_in_flight_is_put_back_and_its_barrier_means_nothing() -> None:
    messages = [message(CHANNELS[0], 3, 0), barrier(CHANNELS[0], 4)]
    saved = OperatorState(inputs={str(CHANNELS[0]): 5}, in_flight={str(CHANNELS[0]): messages})
    subtask = Overtaken(None, saved, ONE)
    end = subtask.inputs.channels[CHANNELS[0]]
    assert (len(end.queue), end.put_back, end.cursor.consumed) == (2, 2, 5)
    subtask.checkpoints.overtake(TWO)
    subtask.receive(barrier(CHANNELS[1], 0, TWO), None)
    subtask.run()
    subtask.receive(barrier(CHANNELS[0], 5, TWO), None)
    subtask.receive(barrier(CHANNELS[2], 0, TWO), None)
    assert subtask.in_flight(2)[CHANNELS[0]] == [3, 4, 5], "what is put back is in flight still"
    subtask.work_off()
    assert end.cursor.consumed == 6 and list(subtask.copied) == [2]


def test_a_barrier_overtakes_no_more_than_a_snapshot_can_hold() -> None:
    """It waits until little enough is left; what is still to come has to fit in, too."""
    subtask = Overtaken()
    subtask.checkpoints.overtake(ONE)
    for seq in range(3):
        subtask.receive(message(CHANNELS[0], seq, 0)._replace(size=MAX_OVERTAKEN_BYTES // 2 + 1), None)
    subtask.receive(barrier(CHANNELS[0], 3), None)
    for _ in range(2):
        assert (subtask.overdue,) == (False,)
        subtask.run()
    assert (subtask.overdue,) == (True,)
    subtask.run()
    assert subtask.copied == {1: {**dict.fromkeys(map(str, CHANNELS), 0), str(CHANNELS[0]): 2}}


def test_what_waits_behind_the_barrier_holds_it_up_nowhere() -> None:
    """On a channel that is blocked, since it was taken there, or where it is in."""
    large = MAX_OVERTAKEN_BYTES + 1
    subtask = Overtaken()
    subtask.receive(barrier(CHANNELS[0], 0), None)
    subtask.work_off()
    subtask.receive(message(CHANNELS[0], 1, 0)._replace(size=large), None)
    subtask.receive(message(CHANNELS[1], 0, 0), None)
    subtask.receive(barrier(CHANNELS[1], 1), None)
    subtask.receive(message(CHANNELS[1], 2, 0)._replace(size=large), None)
    subtask.checkpoints.overtake(ONE)
    assert (subtask.overdue,) == (True,)
    subtask.receive(message(CHANNELS[2], 0, 0)._replace(size=large), None)
    assert (subtask.overdue,) == (False,), "its barrier is still to come, and with it what is before it"
    subtask.inputs.take([(subtask.inputs.channels[CHANNELS[2]], len(subtask.inputs.channels[CHANNELS[2]].queue))])
    subtask.run()
    assert list(subtask.copied) == [1]
    subtask.receive(barrier(CHANNELS[2], 1), None)
    assert subtask.in_flight(1) == {CHANNELS[1]: [0, 1], CHANNELS[2]: [1]}


def test_what_an_older_alignment_blocks_is_overtaken_by_a_newer_barrier() -> None:
    subtask = Overtaken()
    subtask.receive(barrier(CHANNELS[0], 0), None)
    subtask.work_off()
    subtask.receive(message(CHANNELS[0], 1, 0)._replace(size=MAX_OVERTAKEN_BYTES), None)
    subtask.checkpoints.overtake(TWO)
    subtask.receive(barrier(CHANNELS[1], 0, TWO), None)
    assert (subtask.overdue,) == (False,), "it belongs to the record of the newer one"


def test_whether_a_barrier_is_to_overtake_is_asked_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count()
    overdue = SubtaskSteps.overdue.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(SubtaskSteps, "overdue", property(lambda self: (next(asked), overdue(self))[1]))
    subtask = Overtaken()
    for seq in range(5):
        subtask.receive(message(CHANNELS[0], seq, 0), None)
        assert subtask.runnable(0.0)
        subtask.run()
    assert next(asked) == 5


class Flushing(Overtaken):
    """Each message is a step that makes ten large ones for the first consumer."""

    @staticmethod
    def log(channel: ChannelId, first: int, received: int, may_spill: bool) -> OutputLog[Entry]:
        return OutputLog(channel, ROOM, 2 * MAX_OVERTAKEN_BYTES, first, received=received)

    def push(self, message: Message) -> Iterator[None]:
        for part in range(10):
            self.outputs.append_records(self.first, part, None, 1, MAX_OVERTAKEN_BYTES // 4)
            self.outputs.pump()
            yield

    @property
    def first(self) -> OutputChannel:
        return next(iter(self.outputs.channels.values()))


def test_a_step_that_makes_more_than_may_be_overtaken_waits_for_credit() -> None:
    """Of a large flush no more is made at a time than a snapshot of the consumer can hold."""
    subtask = Flushing()
    subtask.close_outputs()
    subtask.receive(message(CHANNELS[0], 0, 0), None)
    subtask.run()
    assert subtask.first.log.appended == ROOM
    subtask.checkpoints.overtake(ONE)
    subtask.receive(barrier(CHANNELS[1], 0), None)
    assert subtask.runnable(0.0)
    subtask.run()
    assert (subtask.first.log.appended, subtask.first.log.sent, subtask.copied) == (4, 0, {})
    assert not subtask.runnable(0.0), "until there is credit"
    for granted in range(1, 7):
        subtask.first.limit = subtask.first.granted = granted
        subtask.outputs.pump()
        assert subtask.runnable(0.0)
        subtask.run()
        assert (subtask.first.log.appended, subtask.copied) == (4 + granted, {})
    subtask.first.limit = subtask.first.granted = 7
    subtask.outputs.pump()
    subtask.work_off()
    assert (subtask.first.log.appended, subtask.first.log.sent, list(subtask.copied)) == (11, 11, [1])
    limits = [(end.log.max_unsent_messages, end.log.max_unsent_bytes) for end in subtask.outputs.channels.values()]
    assert limits == [(ROOM, 2 * MAX_OVERTAKEN_BYTES)] * 3


def test_a_channel_that_is_opened_meanwhile_has_room_as_well_and_the_usual_limits_afterwards() -> None:
    subtask = Overtaken()
    first, second, _ = subtask.outputs.channels.values()
    first.fence(Generation(1))
    second.fence(Generation(1))
    with subtask.outputs.endless():
        for number in range(2 * MAX_UNSENT_MESSAGES):
            if number == MAX_UNSENT_MESSAGES:
                first.credit(1, 0, None)
            subtask.outputs.append_records(first, number, None, 1, 10)
    limits = [end.log.max_unsent_messages for end in subtask.outputs.channels.values()]
    assert limits == [MAX_UNSENT_MESSAGES, MAX_UNSENT_TO_FAILED, ROOM]


def fill(subtask: Overtaken, channel: ChannelId, waiting: int, first: int = 0) -> None:
    for number in range(waiting):
        subtask.receive(message(channel, first + number, 0), None)


def snapshot_with(subtask: Overtaken, coming: int, checkpoint: CheckpointId, seq: int, size_of: Any = cost_of) -> None:
    """A checkpoint behind whose copy ``coming`` messages come in on the first channel, where ``seq`` is the next."""
    subtask.checkpoints.overtake(checkpoint)
    for channel in CHANNELS[1:]:
        subtask.receive(barrier(channel, checkpoint - 1, checkpoint), None)
    subtask.run()
    fill(subtask, CHANNELS[0], coming, seq)
    subtask.receive(barrier(CHANNELS[0], seq + coming, checkpoint), None)
    copied = OperatorState(inputs=subtask.copied[checkpoint])
    saved = add_logs(subtask.persisted_of[checkpoint], copied, packed, size_of)
    subtask.checkpoints.persisted(checkpoint, replace(START, operator_state=saved), "")


COST = cost_of(message(CHANNELS[0], 0, 0))
BARRIER_COST = cost_of(barrier(CHANNELS[0], 0))


def test_a_snapshot_that_holds_too_much_is_declined_and_the_next_one_is_not() -> None:
    budget = InFlightBudget(16 * COST)
    subtask = Overtaken()
    subtask.budget = budget
    snapshot_with(subtask, 9, ONE, 0)
    assert subtask.answered == {1: AbortCause.OVER_BUDGET} and budget.held_bytes == 0
    subtask.work_off()
    snapshot_with(subtask, 2, TWO, 10)
    held = subtask.answered[TWO].operator_state
    assert held.in_flight_bytes == sum(cost_of(one) for each in held.in_flight.values() for one in each) > 0
    assert budget.held_bytes == 0, "what is stored is not held any more"


def test_a_barrier_does_not_overtake_what_the_snapshot_would_be_declined_for() -> None:
    """It waits as an aligned one does, until little enough is left; then the snapshot fits in."""
    subtask = Overtaken()
    subtask.budget = InFlightBudget(2 * (4 * COST + 3 * BARRIER_COST))
    subtask.checkpoints.overtake(ONE)
    for channel in CHANNELS:
        fill(subtask, channel, 2)
        subtask.receive(barrier(channel, 2), None)
    for _ in range(2):
        assert (subtask.overdue, subtask.runnable(0.0)) == (False, True)
        subtask.run()
    assert (subtask.overdue,) == (True,)
    subtask.run()
    held = sum(cost_of(one) for log in subtask.persisted_of[1].values() for one, _ in log.messages)
    assert held == 4 * COST + 3 * BARRIER_COST == subtask.budget.held_bytes


def test_it_may_be_taken_off_all_inputs_before_little_enough_is_left() -> None:
    subtask = Overtaken()
    subtask.budget = InFlightBudget(2 * BARRIER_COST)
    subtask.checkpoints.overtake(ONE)
    for channel in CHANNELS:
        fill(subtask, channel, 2)
        subtask.receive(barrier(channel, 2), None)
        fill(subtask, channel, 2, 3)
    subtask.work_off()
    assert subtask.persisted_of[1].keys() <= {CHANNELS[2]} and list(subtask.copied) == [1]
    assert [len(end.queue) for end in subtask.inputs.channels.values()] == [0, 0, 0]


def test_where_its_barrier_is_still_to_come_a_channel_counts_twice() -> None:
    subtask = Overtaken()
    subtask.checkpoints.overtake(ONE)
    subtask.receive(barrier(CHANNELS[0], 0), None)
    fill(subtask, CHANNELS[1], 3)
    for snapshot_bytes, overtakes in ((BARRIER_COST + 6 * COST - 1, False), (BARRIER_COST + 6 * COST, True)):
        subtask.budget = InFlightBudget(2 * snapshot_bytes)
        assert (subtask.overdue,) == (overtakes,)
    subtask.receive(barrier(CHANNELS[1], 3), None)
    subtask.budget = InFlightBudget(2 * (2 * BARRIER_COST + 3 * COST))
    assert (subtask.overdue,) == (True,), "now it is known"


def test_what_other_snapshots_of_the_slot_hold_is_left_to_them() -> None:
    subtask = Overtaken()
    budget = subtask.budget = InFlightBudget(100 * COST)
    subtask.checkpoints.overtake(ONE)
    subtask.receive(barrier(CHANNELS[0], 0), None)
    fill(subtask, CHANNELS[0], 5, 1)
    budget.held_bytes = budget.slot_bytes - BARRIER_COST + 1
    assert (subtask.overdue,) == (False,)
    budget.held_bytes -= 1
    assert (subtask.overdue,) == (True,)


@pytest.mark.parametrize(("slots", "room"), [(1, 32), (8, 32), (16, 16), (64, 4)])
def test_nobody_has_room_for_more_than_all_slots_of_a_job_may_have_at_a_time(slots: int, room: int) -> None:
    budget = InFlightBudget(64 << 20, slots=slots)
    assert budget.room == room << 20
    budget.held_bytes = 2 << 20
    assert budget.room == min(32, 4 * 64 // slots - 2, 62) << 20


def test_what_a_snapshot_takes_in_the_handle_may_be_too_much_though_it_seemed_little() -> None:
    subtask = Overtaken()
    subtask.budget = InFlightBudget(1 << 20)
    snapshot_with(subtask, 1, ONE, 0, lambda packed: 1 << 18)
    assert subtask.answered == {1: AbortCause.OVER_BUDGET}


def test_a_subtask_that_ends_gives_back_what_its_snapshots_held() -> None:
    subtask = Overtaken()
    budget = subtask.budget = InFlightBudget()
    subtask.checkpoints.overtake(ONE)
    subtask.receive(message(CHANNELS[0], 0, 0), None)
    subtask.receive(barrier(CHANNELS[1], 0), None)
    subtask.run()
    assert budget.held_bytes > 0
    subtask.checkpoints.channel_state.release()
    assert budget.held_bytes == 0
