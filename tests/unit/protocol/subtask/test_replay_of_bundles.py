"""Replay of steps that take bundles: a successor takes the same messages in the same steps, whenever they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.errors import NondeterministicOperator
from flinkplus.protocol.determinants.determinants import Choice, InputPart, StepLog, decode_spans, pack
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.in_flight import Logs
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from tests.examples import examples
from tests.unit.protocol.subtask.test_replay import INPUTS, START, Folding, Ports, message

RECORDS, WATERMARK, BARRIER = MessageKind.RECORDS, MessageKind.WATERMARK, MessageKind.BARRIER
Taken = tuple[MessageKind, list[tuple[int, int]]]
"""The kind of a bundle, and position of the channel and number of each of its messages."""


def input_of(*parts: tuple[int, int]) -> tuple[int, ...]:
    """The determinants of a step that takes so many messages from the channel at each position, in this order."""
    last = len(parts) - 1
    found = [InputPart(position, count, more=at < last) for at, (position, count) in enumerate(parts)]
    return tuple(pack(Choice.INPUT, part.value(len(INPUTS))) for part in found)


def message_of(kind: MessageKind, position: int, seq: int) -> Message:
    """The records make nothing and read no clock. The watermarks of a channel rise."""
    channel = INPUTS[position][0]
    if kind is RECORDS:
        return message(channel, seq, 3 * (100 * position + seq))
    if kind is WATERMARK:
        return Message(WATERMARK, channel, Generation(1), Seq(seq), START, watermark_ms=100 * seq + position)
    return Message(BARRIER, channel, Generation(1), Seq(seq), CheckpointId(1))


class Advancing(Ports):
    """Records each rise of event time."""

    def __init__(self, owner: Folding) -> None:
        super().__init__(owner)
        self.advanced_ms: list[int] = []

    def push_together(self, steps: list[list[tuple[Message, Any]]]) -> list[Iterator[None]]:
        owner: Any = self._owner
        for messages in steps:
            owner.bundles.append((RECORDS, [(found.channel.producer, found.seq) for found, _ in messages]))
        return super().push_together(steps)

    def advance(self, watermark_ms: int) -> Iterator[None]:
        self.advanced_ms.append(watermark_ms)
        yield


class WholeLog(StepLog):
    """Keeps what a barrier lets go: the consumers, which have it with the barrier, know it still."""

    def clear(self) -> None:
        return None


class Noting(Folding):
    """Records the bundle of each step. ``determinants``: of the steps to repeat; ``None`` for a first generation."""

    bundle_rows = 4

    def __init__(self, determinants: tuple[int, ...] | None = None) -> None:
        self.bundles: list[Taken] = []
        names = [str(ChannelId(1, 0, consumer)) for consumer in range(3)]
        promotion = None
        if determinants is not None:
            had: dict[str, dict[int, int]] = {name: {} for name in names}
            promotion = Promotion(dict.fromkeys(names, 0), determinants, {}, {}, frozenset(), None, had)
        super().__init__(1 if promotion is None else 2, iter([0] * 100), promotion, ports=Advancing)
        if promotion is None:
            self.history.steps = WholeLog(self.history.next_step)

    def _process(self, taken: list[tuple[Message, Any]]) -> Iterator[None] | None:
        kinds = {found.kind for found, _ in taken}
        assert len(kinds) == 1, "a bundle has messages of one kind"
        self.bundles.append((kinds.pop(), [(found.channel.producer, found.seq) for found, _ in taken]))
        return super()._process(taken)

    @property
    def advanced_ms(self) -> list[int]:
        ports: Any = self._work
        found: list[int] = ports.advanced_ms
        return found

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        return None

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        return None

    def arrives(self, kind: MessageKind, position: int, seq: int) -> None:
        self.receive(message_of(kind, position, seq), None)

    def work(self) -> None:
        while self.runnable(0.0):
            self.run()


# --- what the predecessor took


kinds = st.lists(st.sampled_from([RECORDS, RECORDS, WATERMARK]), max_size=6)
queues = st.tuples(kinds, kinds).map(lambda halves: [*halves[0], BARRIER, *halves[1]])
"""What comes on one channel: one barrier, with records and watermarks around it."""


@settings(max_examples=examples(200), deadline=None)
@given(st.tuples(queues, queues, queues), st.lists(st.integers(0, 3), max_size=60), st.permutations([0, 1, 2]))
def test_a_successor_takes_the_same_bundles_whatever_comes_first(
    comes: tuple[list[MessageKind], ...], order: list[int], arrival: list[int]
) -> None:
    """A predecessor receives in ``order``, and begins a step where that is 3. Its successor receives whole channels."""
    first, at = Noting(), [0, 0, 0]
    for pick in order:
        if pick == 3:
            if first.runnable(0.0):
                first.run()
        elif at[pick] < len(comes[pick]):
            first.arrives(comes[pick][at[pick]], pick, at[pick])
            at[pick] += 1
    first.work()
    for kind, messages in first.bundles:
        assert kind is not BARRIER or len(messages) == 1
    assert first.history.steps is not None
    logged = first.history.steps.since(0)
    second = Noting(decode_spans(logged)[0][1] if logged else ())
    for pick in arrival:
        for seq in range(at[pick]):
            second.arrives(comes[pick][seq], pick, seq)
            second.work()
    assert second.bundles == first.bundles and not second.replay.active
    assert second.advanced_ms == first.advanced_ms
    assert second.history.begun == first.history.begun, "a bundle is one step"
    assert second.history.next_step == first.history.next_step, "with a determinant for each channel"


def test_a_bundle_ends_before_a_barrier() -> None:
    """Records behind the barrier belong to the next checkpoint, however many rows there is room for."""
    first = Noting()
    for seq, kind in enumerate([RECORDS, BARRIER, RECORDS]):
        first.arrives(kind, 0, seq)
    first.arrives(RECORDS, 1, 0)
    first.run()
    assert first.bundles == [(RECORDS, [(0, 0), (1, 0)])]
    first.work()
    assert first.bundles[1:] == [(BARRIER, [(0, 1)])], "its channel is blocked until the barrier of the others"


# --- given determinants


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.permutations([0, 1, 2]).flatmap(
            lambda order: st.lists(st.integers(1, 3), min_size=1, max_size=3).map(
                lambda counts: list(zip(order, counts, strict=False))
            )
        ),
        max_size=5,
    ),
    st.permutations([0, 1, 2]),
)
def test_bundles_are_repeated_whole_and_in_the_order_of_their_channels(
    bundles: list[list[tuple[int, int]]], arrival: list[int]
) -> None:
    """However long the rest of a bundle takes to come, and in an order that this ``InputGate`` would not choose."""
    at, expected = [0, 0, 0], []
    for parts in bundles:
        messages = []
        for position, count in parts:
            messages += [(position, at[position] + more) for more in range(count)]
            at[position] += count
        expected.append((RECORDS, messages))
    second = Noting(tuple(determinant for parts in bundles for determinant in input_of(*parts)))
    for position in arrival:
        for seq in range(at[position]):
            second.arrives(RECORDS, position, seq)
            second.work()
    assert second.bundles == expected and not second.replay.active
    assert second.history.begun == len(bundles), "a bundle is one step"
    assert second.history.next_step == sum(map(len, bundles)), "with a determinant for each channel"


def test_a_bundle_waits_for_the_last_of_its_messages() -> None:
    second = Noting(input_of((2, 1), (0, 2)))
    for position in (0, 1, 2):
        second.arrives(RECORDS, position, 0)
        second.work()
    assert not second.bundles, "the second message of the first channel is missing"
    second.arrives(RECORDS, 0, 1)
    second.work()
    assert second.bundles == [(RECORDS, [(2, 0), (0, 0), (0, 1)]), (RECORDS, [(1, 0)])]


def test_a_bundle_of_watermarks_raises_event_time_once() -> None:
    """To the least of what the channels have after it; not before the last of them came."""
    second = Noting(input_of((1, 1), (0, 2), (2, 1)))
    for position, seq in ((0, 0), (1, 0), (2, 0)):
        second.arrives(WATERMARK, position, seq)
        second.work()
    assert not second.bundles and not second.advanced_ms
    second.arrives(WATERMARK, 0, 1)
    second.work()
    assert second.bundles == [(WATERMARK, [(1, 0), (0, 0), (0, 1), (2, 0)])]
    assert second.advanced_ms == [1], "of channel 1, which is the least"


@pytest.mark.parametrize("behind", [(), (pack(Choice.ABORT, 1),)], ids=["nothing", "another step"])
def test_a_bundle_whose_determinants_are_cut_is_not_repeated_in_part(behind: tuple[int, ...]) -> None:
    whole = input_of((0, 1), (1, 1))
    second = Noting((whole[0], *behind))
    second.arrives(RECORDS, 0, 0)
    with pytest.raises(NondeterministicOperator, match="incomplete"):
        second.work()
    assert not second.bundles


@pytest.mark.parametrize("channels", [1, 3, 7])
@pytest.mark.parametrize("more", [False, True])
def test_a_part_of_a_bundle_is_read_back_as_it_was(channels: int, more: bool) -> None:
    parts = [InputPart(position, messages, more) for position in range(channels) for messages in (1, 2, 1000)]
    values = [part.value(channels) for part in parts]
    assert [InputPart.of(value, channels) for value in values] == parts
    assert len(set(values)) == len(values)
