"""A subtask that begins anew in the slot where it was: what its consumers have allowed holds for it, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flinkplus.protocol.channels.channel import REPLAY_WINDOWS, Window
from flinkplus.protocol.channels.outputs import OutputChannel
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.runtime.slot.control.active import ActiveSubtasks
from upstream_cache.log import OutputLog

CHANNEL, WINDOW = ChannelId(0, 0, 1), 2
GRAPH: Any = SimpleNamespace(vertices=[SimpleNamespace(name="source"), SimpleNamespace(name="count")])


def producer(
    first: int, received: int, consumer_generation: int = 1, resuming: bool = False, recipe: Any = None
) -> Any:
    """One whose consumer has received so much of what it begins to make at ``first``."""
    log: OutputLog[Any] = OutputLog(CHANNEL, 4, 1 << 20, first, received=received)
    end = OutputChannel(CHANNEL, 1, Window(WINDOW), log, received, Generation(consumer_generation), resuming=resuming)
    vertex = SimpleNamespace(inputs=(), outputs=(0,))
    return SimpleNamespace(
        id=SubtaskId("source", 0),
        plan=SimpleNamespace(vertex=vertex),
        outputs=SimpleNamespace(channels={CHANNEL: end}, recipe=recipe),
        inputs=SimpleNamespace(stale=0),
        close=log.close,
    )


def limit_of(subtask: Any) -> int:
    return int(subtask.outputs.channels[CHANNEL].limit)


def granted_to(subtask: Any) -> int:
    return int(subtask.outputs.channels[CHANNEL].granted)


def test_credit_that_the_predecessor_got_is_its_successors() -> None:
    active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
    first, second = producer(0, 0), producer(0, 5)
    active.add(first)
    active.credit(CHANNEL, (1, 5, 1))
    active.retire_for_successor(first)
    active.add(second)
    assert limit_of(second) == granted_to(second) == 5 + WINDOW
    active.retire(second)
    third = producer(0, 5)
    active.add(third)
    assert limit_of(third) == 5, "it is not kept for longer"


def test_what_is_made_again_is_received_and_not_consumed() -> None:
    """A successor of a successor: all that it made again counts as acknowledged, which nobody has said."""
    active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
    first = producer(0, 5)
    active.add(first)
    end = first.outputs.channels[CHANNEL]
    for seq in range(5):
        end.log.append((seq, None), 1)
    active.credit(CHANNEL, (1, 4, 1))
    assert (end.log.acknowledged, end.limit) == (5, 4 + WINDOW)
    active.retire_for_successor(first)
    second = producer(0, 5)
    active.add(second)
    assert limit_of(second) == 4 + WINDOW


def test_what_was_sent_without_credit_is_not_granted_to_the_successor() -> None:
    """It may send what was granted, and what it sends counts as granted: or it would wait for what is not to come."""
    active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
    first, second = producer(0, 0), producer(0, 3)
    active.add(first)
    active.credit(CHANNEL, (1, 3, 1))
    first.outputs.channels[CHANNEL].limit = 20
    active.retire_for_successor(first)
    active.add(second)
    end = second.outputs.channels[CHANNEL]
    assert (end.limit, end.granted) == (3 + WINDOW, 3 + WINDOW)
    for seq in range(3 + WINDOW):
        end.log.append((seq, None), 1)
    while end.log.next_to_send(end.limit) is not None:
        pass
    assert end.log.sent == 3 + WINDOW and not end.is_overdrawn


def test_early_credit_and_what_the_predecessor_got_do_not_take_from_each_other() -> None:
    for early, handed_on in ((7, 5), (5, 7)):
        active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
        first, second = producer(0, 0), producer(0, 7)
        active.add(first)
        active.credit(CHANNEL, (1, handed_on, 1))
        active.retire_for_successor(first)
        active.credit(CHANNEL, (1, early, 1))
        active.add(second)
        assert limit_of(second) == granted_to(second) == 7 + WINDOW


def test_a_consumer_that_begins_anew_as_well_allows_by_itself() -> None:
    active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
    for second in (producer(0, 0, consumer_generation=2, resuming=True), producer(0, 0, consumer_generation=2)):
        first = producer(0, 0)
        active.add(first)
        active.credit(CHANNEL, (1, 5, 1))
        active.retire_for_successor(first)
        active.add(second)
        assert limit_of(second) == 0
        active.retire(second)
    unopened = producer(0, 3, resuming=True)
    active.add(unopened)
    active.retire_for_successor(unopened)
    second = producer(0, 0)
    active.add(second)
    assert limit_of(second) == 0, "what was not open allows nothing"


def test_late_credit_of_a_fenced_consumer_does_not_take_the_place_of_its_successors() -> None:
    active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
    subtask = producer(0, 5)
    subtask.outputs.channels[CHANNEL].fence(Generation(2))
    active.credit(CHANNEL, (2, 3, 1))
    active.credit(CHANNEL, (1, 7, 2))
    active.credit(CHANNEL, (2, 1, 1))
    active.add(subtask)
    assert not subtask.outputs.channels[CHANNEL].resuming
    assert granted_to(subtask) == 3 + REPLAY_WINDOWS * WINDOW
    assert active.stale == 1


def test_rows_are_held_back_by_all_that_are_active_and_become_active() -> None:
    active: ActiveSubtasks[Any] = ActiveSubtasks(GRAPH)
    orders: list[tuple[str, int]] = []

    def recipe(name: str) -> Any:
        return SimpleNamespace(hold=lambda checkpoint: orders.append((name, checkpoint)))

    active.add(producer(0, 0, recipe=recipe("first")))
    active.hold(CheckpointId(7))
    assert orders == [("first", 0), ("first", 7)]
    active.retire_all()
    active.add(producer(0, 5, recipe=recipe("second")))
    assert orders[2:] == [("second", 7)], "also where it takes over"
