"""Steps by the time of day: a successor has those of its predecessor, at the same places and with the same times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.protocol.determinants.determinants import KnownSteps, Span, decode_spans, merge
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.protocol.vocabulary.messages import MessageKind
from tests.examples import examples
from tests.unit.protocol.subtask.test_replay import INPUTS, WORK, Folding, Ports, message

EVERY_MS = 7


class Ticking(Ports):
    """Waits, after each step, for a time that follows from what it has done; folds the time of each step of the clock
    into what it sends."""

    def __init__(self, owner: Folding) -> None:
        super().__init__(owner)
        self.waits_ms: int | None = None
        self.ticks: list[int] = []

    joins_steps = False
    has_clock = True

    def push(self, messages: list[tuple[Any, Any]]) -> Iterator[None]:
        yield from super().push(messages)
        if self.waits_ms is None:
            self.waits_ms = self._owner.time.now_ms() + EVERY_MS

    @property
    def clock_at(self) -> float | None:
        return None if self.waits_ms is None else self.waits_ms / 1000

    @property
    def clock_due(self) -> bool:
        owner: Any = self._owner
        return self.waits_ms is not None and self.waits_ms <= owner.wall.ms

    def _tick(self) -> Iterator[None]:
        owner = self._owner
        now_ms = owner.time.now_ms()
        self.ticks.append(now_ms)
        self.waits_ms = None
        owner.total = (owner.total * 31 + now_ms) % 1_000_003
        end = owner.outputs.channels[ChannelId(1, 0, owner.total % 3)]
        owner.outputs.append_records(end, owner.total, None, 1, 10)
        yield

    tick: Any = _tick


class Wall:
    """The time of day, which a test sets."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return self.ms


class TickingSteps(Folding):
    def take_snapshot(self, checkpoint: int) -> None:
        self.taken = [checkpoint]


def ticking(generation: int, wall: Wall, promotion: Promotion | None = None, unaligned: bool = False) -> Any:
    made: Any = TickingSteps.__new__(TickingSteps)
    made.wall = wall
    made.__init__(generation, iter(wall), promotion, unaligned=unaligned, ports=Ticking)
    return made


def run(subtask: Any) -> None:
    while subtask.runnable(subtask.wall.ms / 1000):
        subtask.run()


@given(st.lists(st.one_of(st.integers(0, 50), st.integers(-20, -1)), min_size=1, max_size=25), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_successor_has_the_same_steps(events: list[int], data: Any) -> None:
    """Numbers are records; below 0, so much time passes."""
    wall = Wall()
    first, seq = ticking(1, wall), 0
    for event in events:
        if event < 0:
            wall.ms -= event
        else:
            first.receive(message(INPUTS[0][0], seq, event), None)
            seq += 1
        run(first)
    told: dict[str, int] = {}
    had: dict[str, dict[int, int]] = {}
    runs: list[Span] = []
    for consumer in range(3):
        name, sent = str(ChannelId(1, 0, consumer)), first.made(consumer)
        count = data.draw(st.integers(0, len(sent)))
        told[name], had[name] = count, {each.seq: each.records for each in sent[:count]}
        known = KnownSteps()
        for each in sent[:count]:
            if each.determinants:
                known.learn(WORK, *decode_spans(each.determinants)[0])
        if (steps := known.of(WORK)) is not None:
            runs.append(steps)
    later = Wall()
    later.ms = wall.ms + 1_000
    second = ticking(2, later, Promotion(told, merge(0, runs), {}, {}, frozenset(), None, had))
    events = [event for event in events if event >= 0]
    for seq, event in enumerate(events):
        second.receive(message(INPUTS[0][0], seq, event), None)
    run(second)
    ticks, again = first._work.ticks, second._work.ticks
    repeated = [at_ms for at_ms in again if at_ms < later.ms]
    assert repeated == ticks[: len(repeated)]
    assert not second.replay.active and not second.replay.unchecked
    assert second._work.waits_ms is None or second._work.waits_ms > later.ms


def test_a_time_that_has_always_come_again_holds_up_no_input() -> None:
    subtask = ticking(1, Wall())
    for seq in range(4):
        subtask.receive(message(INPUTS[0][0], seq, 1), None)
    subtask.receive(message(INPUTS[1][0], 0, 1)._replace(kind=MessageKind.BARRIER, epoch=1), None)
    for _ in range(12):
        subtask._work.waits_ms = subtask.wall.ms
        subtask.run()
    assert not any(end.queue for end in subtask.inputs.channels.values())
    assert len(subtask._work.ticks) >= 6


def test_a_barrier_that_is_to_overtake_waits_for_no_time_of_day() -> None:
    subtask = ticking(1, Wall(), unaligned=True)
    subtask._work.waits_ms = subtask.wall.ms + 1_000_000
    subtask.checkpoints.overtake(1)
    subtask.receive(message(INPUTS[0][0], 0, 1)._replace(kind=MessageKind.BARRIER, epoch=1), None)
    run(subtask)
    assert subtask.taken == [1]


def test_a_subtask_without_input_wakes_up_when_the_time_has_come() -> None:
    wall = Wall()
    subtask = ticking(1, wall)
    subtask.receive(message(INPUTS[0][0], 0, 1), None)
    run(subtask)
    assert subtask.deadline(wall.ms / 1000) == (wall.ms + EVERY_MS) / 1000
    assert not subtask.runnable(wall.ms / 1000)
    wall.ms += EVERY_MS
    assert subtask.runnable(wall.ms / 1000)
    run(subtask)
    assert subtask._work.ticks == [wall.ms] and subtask._work.waits_ms is None
    assert not subtask.runnable(wall.ms / 1000 + 100)
