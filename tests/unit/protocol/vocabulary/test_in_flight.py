"""How much of what is in flight the snapshots of a slot may hold."""

from __future__ import annotations

import pytest

from flinkplus.protocol.vocabulary import in_flight
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.in_flight import (
    MESSAGE_OVERHEAD_BYTES,
    InFlightBudget,
    SnapshotLogs,
    cost_of,
    excess_of,
)
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

FIRST, SECOND = ChannelId(0, 0, 0), ChannelId(0, 1, 0)


def message(size: int, known: bytes = b"") -> Message:
    return Message(MessageKind.RECORDS, FIRST, Generation(1), Seq(0), CheckpointId(0), size=size, determinants=known)


COST = cost_of(message(1_000))


def held(logs: SnapshotLogs) -> list[int]:
    return [len(log.messages) for log in logs.channels.values()]


def test_what_a_message_tells_of_steps_counts_as_well() -> None:
    assert cost_of(message(0, bytes(3_000))) == cost_of(message(3_000)) > 4_000, "as text"


def test_a_snapshot_may_have_half_of_what_its_slot_may_and_keeps_nothing_beyond() -> None:
    budget = InFlightBudget(8 * COST)
    logs = SnapshotLogs(budget)
    first, second = logs.open(FIRST), logs.open(SECOND)
    for log in (first, second, first, second):
        log.add(message(1_000), None)
    assert (held(logs), logs.excess, budget.held_bytes) == ([2, 2], "", 4 * COST)
    first.add(message(1), None)
    assert (held(logs), budget.held_bytes) == ([0, 0], 0)
    assert logs.excess.endswith(f"bytes were in flight to it, and the maximum is {4 * COST:,}")
    second.add(message(1), None)
    assert (held(logs), budget.held_bytes) == ([0, 0], 0), "nothing more is kept, however small"
    assert min(first.size_bytes, second.size_bytes) > 2 * COST, "it still tells how much there was"


def test_snapshots_of_a_slot_share_what_there_is_and_give_it_back() -> None:
    budget = InFlightBudget(4 * COST)
    one, two, three = (SnapshotLogs(budget) for _ in range(3))
    for logs in (one, two):
        log = logs.open(FIRST)
        log.add(message(1_000), None)
        log.add(message(1_000), None)
    three.open(FIRST).add(message(0), None)
    assert three.excess.endswith(f"bytes were in flight to its slot, and the maximum is {4 * COST:,}")
    assert (held(one), held(two), held(three), budget.held_bytes) == ([2], [2], [0], 4 * COST)
    one.release()
    one.release()
    assert budget.held_bytes == 2 * COST
    four = SnapshotLogs(budget)
    four.open(FIRST).add(message(1_000), None)
    assert (four.excess, budget.held_bytes) == ("", 3 * COST)


def test_a_channel_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MAX_LOGGED_BYTES", 1_000 + MESSAGE_OVERHEAD_BYTES)
    logs = SnapshotLogs(InFlightBudget())
    log = logs.open(SECOND)
    log.add(message(1_000), None)
    logs.open(FIRST).add(message(1_000), None)
    assert not logs.excess
    log.add(message(0), None)
    assert logs.excess.startswith(f"{log.size_bytes:,} bytes were in flight on {SECOND}")


def test_what_it_takes_in_the_end_is_what_counts() -> None:
    budget = InFlightBudget(4 * COST)
    logs = SnapshotLogs(budget)
    logs.open(FIRST).add(message(1_000), None)
    logs.stored(2 * COST)
    assert not logs.excess and budget.held_bytes == COST
    logs.stored(2 * COST + 1)
    assert (held(logs), budget.held_bytes) == ([0], 0)


@pytest.mark.parametrize(
    ("held", "where", "most"),
    [
        ({(0, 0, 0): 32, (0, 1, 0): 18}, "", 0),
        ({(0, 0, 0): 33, (0, 1, 0): 18}, "51 bytes would be in flight to count[0]", 50),
        ({(0, 0, 1): 50, (1, 0, 1): 50}, "", 0),
        ({(0, 0, 1): 50, (1, 0, 1): 49, (2, 3, 1): 2}, "101 bytes would be in flight to subtasks 1", 100),
        ({(1, 0, index): 50 for index in range(8)}, "", 0),
        ({(1, 0, index): 45 for index in range(9)}, "405 bytes would be in flight in the job", 400),
    ],
)
def test_what_is_divided_has_the_limits_of_a_snapshot(
    held: dict[tuple[int, int, int], int], where: str, most: int
) -> None:
    channels = {ChannelId(*channel): size for channel, size in held.items()}
    expected = f"{where}, and the maximum is {most}" if where else ""
    assert excess_of(channels, {0: "count", 1: "loop", 2: "top"}, 100) == expected


def test_what_is_divided_has_the_limit_of_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MAX_LOGGED_BYTES", 300)
    assert not excess_of({FIRST: 400, SECOND: 400}, {0: "count"}, 10_000)
    assert excess_of({FIRST: 401}, {0: "count"}, 10_000).startswith(f"401 bytes would be in flight on {FIRST}")
