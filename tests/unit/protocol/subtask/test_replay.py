"""A subtask's successor does the same again, as far as anybody has seen, whatever comes to it in whatever order.

Against the obvious way: write down the messages that the first one made, and compare those that the second one makes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.errors import NondeterministicOperator
from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.channels.inputs import Bundle, InputChannel, InputGate
from flinkplus.protocol.channels.output_logs import Entry
from flinkplus.protocol.channels.outputs import OutputChannel, OutputChannels
from flinkplus.protocol.determinants.determinants import Choice, InputPart, KnownSteps, decode_spans, merge, pack
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.subtask.admission import Admission, digests
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.identity import Promotion, SubtaskIdentity
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.subtask.replay import Replay, StepTime
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause, Logs
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from tests.examples import examples
from upstream_cache.log import OutputLog

WORK, CONSUMERS = SubtaskId("work", 0), [SubtaskId("end", i) for i in range(3)]
INPUTS = [(ChannelId(0, i, 0), SubtaskId("begin", i)) for i in range(3)]
LINEAGE = Lineage(["begin", "work", "end"], [("begin", "work"), ("work", "end")])
START = CheckpointId(0)
NOTHING = OperatorState()


class Wires(OutputChannels):
    """Nothing leaves: logs are looked at."""

    def _transmit(self, slot: int, message: Message, payload: Any) -> None:
        return None


class Ports:
    """Work, snapshots and reports of a subtask, which are its own methods."""

    def __init__(self, owner: Folding) -> None:
        self._owner = owner

    def push(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        for message, _ in messages:
            yield from self._owner.push(message)

    joins_steps = True
    nothing_to_read = False
    idle_at = None
    holds_to_barrier = False

    has_clock = False
    holds_to_barrier = False

    @property
    def clock_at(self) -> float | None:
        return None

    @property
    def clock_due(self) -> bool:
        return False

    def push_together(self, steps: list[list[tuple[Message, Any]]]) -> list[Iterator[None]]:
        self._owner.joined += len(steps)
        return [self.push(messages) for messages in steps]

    def take(self, checkpoint: CheckpointId, protocol_part: Callable[[], OperatorState]) -> None:
        self._owner.take_snapshot(checkpoint)

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        self._owner.persist(checkpoint, logs)

    def complete(self, checkpoint: CheckpointId) -> None:
        return None

    def acknowledge(self, checkpoint: CheckpointId, handle: SnapshotHandle) -> None:
        self._owner.answer(checkpoint, handle)

    def decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        self._owner.answer(checkpoint, cause)

    def unpack(self, packed: Any) -> tuple[Message, Any]:
        return packed, None

    def bundle_at(self, since: float) -> float:
        return since

    def ready_at(self, now: float) -> float:
        return now

    def step_done(self, taken: Bundle) -> None:
        return None

    def reached(self, point: str) -> None:
        return None

    def read_rows(self, choice: int) -> Generator[None, None, bool]:
        return self._never()

    def _never(self, *_: Any) -> Any:
        raise AssertionError("not in this test")

    read_together: Any = _never
    become_idle: Any = _never
    tick: Any = _never
    next_read: Any = _never
    can_read: Any = _never
    rows_of: Any = _never
    advance: Any = _never
    flush: Any = _never
    discard: Any = _never
    exhausted: Any = _never
    ended: Any = _never


class Folding(SubtaskSteps):
    """Folds what it takes, and the time now and then, and sends that to one of its consumers: order and clock show.

    ``whim``: a function's dependence on something else.
    """

    bundle_rows = 3

    def __init__(
        self,
        generation: int,
        wall_ms: Iterator[int],
        promotion: Promotion | None = None,
        synchronous: bool = False,
        unaligned: bool = False,
        retain: bool = True,
        inputs: Sequence[tuple[ChannelId, SubtaskId]] = INPUTS,
        saved: OperatorState = NOTHING,
        checkpoint: CheckpointId = START,
        ports: type[Any] = Ports,
    ) -> None:
        everyone = [WORK, *CONSUMERS, *(producer for _, producer in INPUTS)]
        incarnation = SubtaskIdentity(
            subtask=WORK,
            generation=Generation(generation),
            slot=0,
            slots={subtask: subtask.index for subtask in everyone},
            generations=dict.fromkeys(everyone, Generation(1)),
            lineage=LINEAGE,
            checkpoint=checkpoint,
            promotion=promotion,
            synchronous=synchronous,
            unaligned=unaligned,
        )
        history = StepHistory(incarnation, saved, False, True, True)
        replay = Replay(promotion, history.logs)
        digest = self.digest
        outputs = Wires(
            Generation(generation), Window(1000), lambda m, p: None, self.log, steps=history.steps, digest=digest
        )
        outputs.add_channels(1, 0, incarnation.peers(1, CONSUMERS), {})
        for end in outputs.channels.values():
            end.retain = retain
        self.whim = self.joined = 0
        self.total = 17
        own = ports(self)
        parts = SubtaskParts(
            is_source=not inputs,
            local=True,
            inputs=InputGate(Window(1000), lambda end, consumed: None, bundle_rows=self.bundle_rows),
            outputs=outputs,
            history=history,
            replay=replay,
            time=StepTime(WORK, history, replay, lambda: next(wall_ms), 0),
            admission=Admission(WORK, None, digest),
            work=own,
            snapshots=own,
            reports=own,
        )
        super().__init__(incarnation, saved, parts, inputs)
        self.start()

    @staticmethod
    def log(channel: ChannelId, first: int, received: int, may_spill: bool) -> OutputLog[Entry]:
        return OutputLog(channel, 1000, 1 << 20, first, received=received)

    def made(self, consumer: int) -> list[Message]:
        log: Any = self.outputs.channels[ChannelId(1, 0, consumer)].log
        return [log._messages[seq][0][0] for seq in range(log.trimmed, log.appended)]

    def digest(self, message: Message, payload: Any) -> int:
        return digests(lambda records, _: int(records.records))(message, payload)

    def push(self, message: Message) -> Iterator[None]:
        self.total = (self.total * 31 + message.records) % 1_000_003
        for part in range(message.records % 3):
            if (message.records + part) % 2:
                self.total = (self.total * 31 + self.time.now_ms()) % 1_000_003
            end = self.outputs.channels[ChannelId(1, 0, (self.total + part) % 3)]
            self.outputs.append_records(end, self.total + self.whim, None, 1, 10)
            yield

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        raise AssertionError("not in this test")

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        raise AssertionError("not in this test")

    def answer(self, checkpoint: CheckpointId, found: object) -> None:
        raise AssertionError("not in this test")


def message(channel: ChannelId, seq: int, value: int) -> Message:
    return Message(MessageKind.RECORDS, channel, Generation(1), Seq(seq), START, value, 10, rows=1)


values = st.lists(st.integers(0, 50), min_size=1, max_size=12)
STEP = 3
orders = st.lists(st.integers(0, STEP), max_size=40)
times = st.lists(st.integers(0, 10_000), min_size=40, max_size=40)


def live(inputs: list[list[int]], order: list[int], wall_ms: list[int]) -> Folding:
    """It receives its input in ``order``, and begins a step where that is ``STEP``: with one message or several."""
    first = Folding(1, iter(wall_ms * 2))
    at = [0, 0, 0]
    for pick in order:
        if pick == STEP:
            first.run()
        elif at[pick] < len(inputs[pick]):
            channel = INPUTS[pick][0]
            first.receive(message(channel, at[pick], inputs[pick][at[pick]]), None)
            at[pick] += 1
    while first.runnable(0.0):
        first.run()
    return first


def promoted(
    first: Folding, received: list[int], wall_ms: list[int], retain: bool = True, failed: Sequence[SubtaskId] = ()
) -> Folding:
    """Its successor, told what consumers know who have received so many messages each. ``failed``: of these consumers,
    the ones that are being promoted by now."""
    told: dict[str, int] = {}
    had: dict[str, dict[int, int]] = {}
    runs = []
    for consumer, count in enumerate(received):
        known = KnownSteps()
        name = str(ChannelId(1, 0, consumer))
        told[name], had[name] = count, {}
        for sent in first.made(consumer)[:count]:
            had[name][sent.seq] = sent.records
            if sent.determinants:
                known.learn(WORK, *decode_spans(sent.determinants)[0])
        run = known.of(WORK)
        runs += [run] if run is not None else []
    told_all = Promotion(told, merge(0, runs), {}, {}, frozenset(failed), None, had)
    return Folding(2, iter(wall_ms * 2), told_all, retain=retain)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.tuples(values, values, values),
    orders,
    st.permutations([0, 1, 2]),
    times,
    times,
    st.data(),
)
def test_a_successor_makes_what_was_seen_again_and_then_goes_on(
    inputs: Any, order: list[int], arrival: list[int], times_1: list[int], times_2: list[int], data: st.DataObject
) -> None:
    first = live(list(inputs), order, sorted(times_1))
    received = [data.draw(st.integers(0, len(first.made(consumer)))) for consumer in range(3)]
    second = promoted(first, received, times_2)
    for pick in arrival:  # all of one channel, and then all of the next
        for seq, value in enumerate(inputs[pick]):
            second.receive(message(INPUTS[pick][0], seq, value), None)
            while second.runnable(0.0):
                second.run()
    assert not second.replay.active
    for consumer, count in enumerate(received):
        seen = [(m.seq, m.records, m.determinants) for m in first.made(consumer)[:count]]
        assert [(m.seq, m.records, m.determinants) for m in second.made(consumer)[:count]] == seen
    assert all(end.cursor.consumed == len(inputs[i]) for i, end in enumerate(ends(second)))


def ends(subtask: Folding) -> list[InputChannel]:
    return [subtask.inputs.channels[channel] for channel, _ in INPUTS]


@pytest.mark.parametrize("whim", [1, 3])
def test_a_successor_with_a_whim_is_found_out(whim: int) -> None:
    inputs = [[5, 8, 11], [2, 4], [7]]
    first = live(inputs, [0, 1, 2, 0, 1, 0], list(range(0, 4000, 100)))
    received = [len(first.made(consumer)) for consumer in range(3)]
    assert sum(received) > 3
    second = promoted(first, received, [0] * 40)
    second.whim = whim
    with pytest.raises(NondeterministicOperator, match="differs when it is regenerated"):
        feed(second, inputs)


@settings(max_examples=examples(200), deadline=None)
@given(st.tuples(values, values, values), orders, times, st.data())
def test_a_consumer_that_fails_meanwhile_goes_on_within_what_its_predecessor_had_received(
    inputs: Any, order: list[int], wall_ms: list[int], data: st.DataObject
) -> None:
    """Whenever it says where: before anything is made again, half-way, or after all. From there on it is sent all."""
    first = live(list(inputs), order, sorted(wall_ms))
    received = [len(first.made(consumer)) for consumer in range(3)]
    second = promoted(first, received, wall_ms, failed=CONSUMERS)
    goes_on = {consumer: data.draw(st.integers(0, count)) for consumer, count in enumerate(received)}
    says = {consumer: data.draw(st.integers(0, 8)) for consumer in goes_on}
    for pick, found in enumerate(inputs):
        for seq, value in enumerate(found):
            second.receive(message(INPUTS[pick][0], seq, value), None)
    sent: dict[int, list[int]] = {consumer: [] for consumer in goes_on}
    for step in range(60):
        for consumer, seq in goes_on.items():
            end = output(second, consumer)
            if says[consumer] == step:
                end.credit(1, seq, None)
            while (item := end.log.next_to_send(end.limit)) is not None:
                sent[consumer].append(item[0])
        for _ in range(4):
            if second.runnable(0.0):
                second.run()
    assert not second.replay.active and not second.runnable(0.0)
    for consumer, seq in goes_on.items():
        seen = [(m.seq, m.records, m.determinants) for m in first.made(consumer)]
        assert [(m.seq, m.records, m.determinants) for m in second.made(consumer)[: received[consumer]]] == seen
        assert sent[consumer] == list(range(seq, output(second, consumer).log.appended))


def test_a_consumer_cannot_have_what_its_predecessor_had_not() -> None:
    first, received = some_made()
    second = promoted(first, received, [0] * 40, failed=CONSUMERS)
    with pytest.raises(ValueError, match=f"cannot rewind to {received[1] + 1}, only within 0 and {received[1]}"):
        output(second, 1).credit(1, received[1] + 1, 1)


def test_what_a_consumer_had_that_has_failed_must_be_the_same_when_it_is_made_again() -> None:
    first, received = some_made()
    second = promoted(first, received, [0] * 40, failed=CONSUMERS)
    second.whim = 1
    with pytest.raises(NondeterministicOperator, match="differs when it is regenerated"):
        feed(second, SOME)


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_where_messages_have_new_numbers_a_consumer_that_fails_meanwhile_follows_its_producer(
    guarantee: Guarantee,
) -> None:
    """It is told to begin where the version of its producer stood."""
    first, received = some_made()
    second = promoted(first, received, [0] * 40, failed=CONSUMERS[:1])
    incarnation = second._identity
    incarnation.guarantee = guarantee
    failed, living = [incarnation.peer(CONSUMERS[at], ChannelId(1, 0, at)) for at in (0, 1)]
    assert (failed.resuming, failed.received, failed.had) == (True, None, None)
    assert (living.resuming, living.received, living.renumbered) == (False, received[1], True)


SOME = [[5, 8, 11], [2, 4], [7]]


def some_made() -> tuple[Folding, list[int]]:
    """One that has worked, and how many messages it has made for each consumer."""
    first = live(SOME, [0, 1, 2, 0, 1, 0], list(range(0, 4000, 100)))
    received = [len(first.made(consumer)) for consumer in range(3)]
    assert sum(received) > 3
    return first, received


def output(subtask: Folding, consumer: int) -> OutputChannel:
    return subtask.outputs.channels[ChannelId(1, 0, consumer)]


def test_without_retention_what_consumers_have_had_is_made_again_and_not_kept() -> None:
    inputs = [[5, 8, 11], [2, 4], [7]]
    first = live(inputs, [0, 1, 2, 0, 1, 0], list(range(0, 4000, 100)))
    made = [first.made(consumer) for consumer in range(3)]
    received = [max(0, len(messages) - 1) for messages in made]
    assert sum(received) > 3
    second = promoted(first, received, [0] * 40, retain=False)
    feed(second, inputs)
    for consumer, count in enumerate(received):
        log: Any = second.outputs.channels[ChannelId(1, 0, consumer)].log
        assert log.trimmed == log.acknowledged == count <= log.appended


def test_a_successor_that_makes_less_is_found_out() -> None:
    inputs = [[5, 8, 11], [2, 4], [7]]
    first = live(inputs, [0, 1, 2, 0, 1, 0], list(range(0, 4000, 100)))
    received = [len(first.made(consumer)) for consumer in range(3)]
    second = promoted(first, received, [0] * 40)
    second.push = lambda message: iter(())  # type: ignore[method-assign]
    with pytest.raises(NondeterministicOperator):
        feed(second, inputs)


class Forgetful(Folding):
    """All that it makes has one digest; it takes part in checkpoints."""

    def digest(self, message: Message, payload: Any) -> int:
        return 0

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        return None

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        return None


class Silent(Forgetful):
    """It does not tell anybody anything."""

    def push(self, message: Message) -> Iterator[None]:
        return iter(())


TAKEN = pack(Choice.INPUT, 0)
BARRIERS = tuple(pack(Choice.INPUT, InputPart(at, 1, more=False).value(3)) for at in range(3))


@pytest.mark.parametrize(
    ("begun", "last"),
    [((TAKEN,), "records"), ((TAKEN, *BARRIERS), "barrier"), ((TAKEN, pack(Choice.ABORT, 1)), "given up")],
    ids=["records", "barrier", "abort"],
)
def test_one_that_makes_less_does_nothing_new_before_it_is_found_out(begun: tuple[int, ...], last: str) -> None:
    """Whatever the last step was that is repeated, and though no digest tells."""
    names = [str(ChannelId(1, 0, consumer)) for consumer in range(3)]
    received = dict.fromkeys(names, 2)
    told = Promotion(received, begun, {}, {}, frozenset(), None, {name: {0: 0, 1: 0} for name in names})
    second = Silent(2, iter(range(100)), told)
    for channel, _ in INPUTS:
        second.receive(message(channel, 0, 5) if channel == INPUTS[0][0] else barrier(channel, 0), None)
    second.receive(barrier(INPUTS[0][0], 1), None)
    for seq in range(2, 6):
        second.receive(message(INPUTS[0][0], seq, 5), None)
    for _ in begun[1:]:
        second.run()
        assert second.replay.active
    with pytest.raises(NondeterministicOperator, match="consumer had received 2"):
        second.run()
    assert not second.replay.active
    assert ends(second)[0].cursor.consumed == (2 if last == "barrier" else 1)


def test_one_who_has_nothing_to_repeat_must_not_have_been_heard_of() -> None:
    had = {str(ChannelId(1, 0, 1)): {0: 0}}
    with pytest.raises(NondeterministicOperator, match="0 messages were regenerated, but its consumer had received 1"):
        Forgetful(2, iter(()), Promotion({str(ChannelId(1, 0, 1)): 1}, (), {}, {}, frozenset(), None, had))
    Forgetful(2, iter(()), Promotion({}, (), {}, {}, frozenset(), None, {}))


def barrier(channel: ChannelId, seq: int) -> Message:
    return Message(MessageKind.BARRIER, channel, Generation(1), Seq(seq), CheckpointId(1))


def feed(subtask: Folding, inputs: list[list[int]]) -> None:
    for pick, found in enumerate(inputs):
        for seq, value in enumerate(found):
            subtask.receive(message(INPUTS[pick][0], seq, value), None)
    while subtask.runnable(0.0):
        subtask.run()
