"""Planned batches, without any file or thread: which batch comes next, whose its partitions are, what may be let go.

A world of one driver and some readers is led through deaths of the driver, checkpoints, falls back to any of those that
are kept, and other parallelisms. In the end every row was read once. Deliberate faults show that this would be noticed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from flinkplus.errors import InputError, InvariantViolation
from flinkplus.sources.planned.planning import BatchPlanning, PlannedBatch
from flinkplus.sources.planned.position import PlannedPosition, positions_from, redealt

SEEDS, MORE_SEEDS = range(40), range(150)
FAULTS = (
    "read before it is stored",
    "first offset not stored",
    "numbers given again",
    "newest checkpoint counts",
    "rows of begun partitions forgotten",
)


def offset(at: int) -> str:
    return json.dumps({"at": at})


def at_of(text: str) -> int:
    return int(json.loads(text)["at"])


@dataclass
class Kept:
    """A complete checkpoint."""

    positions: list[PlannedPosition]
    rows: list[int]


@dataclass
class World:
    """``size``: rows that there are. ``stored``: the batches in the store."""

    chance: random.Random
    fault: str = ""
    size: int = 0
    began: int | None = None
    committed: int = 0
    stored: dict[int, PlannedBatch] = field(default_factory=dict)
    late: list[PlannedBatch] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    positions: list[PlannedPosition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.positions = [PlannedPosition.start(index, 2) for index in range(2)]
        self.kept.append(Kept(self.positions, []))
        self.new_driver()

    # --- the driver

    def new_driver(self) -> None:
        self.late.clear()
        known = [self.stored[number] for number in sorted(self.stored)]
        if self.fault == "numbers given again" and known:
            known = [PlannedBatch(known[-1].number, known[-1].start, known[-1].end, 0)]
        self.planning = BatchPlanning("s", 3, known)

    def put(self, batch: PlannedBatch) -> None:
        self.planning.add(batch)
        if self.fault == "read before it is stored" and batch.number:
            self.late.append(batch)
        elif not (self.fault == "first offset not stored" and batch.number == 0):
            self.stored[batch.number] = batch

    def store_late(self) -> None:
        for batch in self.late:
            self.stored[batch.number] = batch
        self.late.clear()

    def plan(self) -> None:
        if self.planning.at is None:
            first = offset(self.size)
            self.began = at_of(first) if self.began is None else self.began
            self.put(PlannedBatch(0, first, first, 0))
        if not self.planning.has_room(sum(position.partitions for position in self.positions)):
            return
        assert self.planning.at is not None
        start, end = at_of(self.planning.at), self.chance.randint(at_of(self.planning.at), self.size)
        if self.planning.is_new(offset(end)):
            cuts = sorted(self.chance.randint(start, end) for _ in range(self.chance.randrange(4)))
            edges = [start, *cuts, end]
            parts = [json.dumps(part).encode() for part in pairwise(edges)]
            batch = self.planning.following(offset(end), parts)
            self.put(batch)

    def let_go(self) -> None:
        floors = [min(position.floor for position in kept.positions) for kept in self.kept]
        floor = max(floors) if self.fault == "newest checkpoint counts" else min(floors)
        self.planning.check_kept(floor)
        committed, numbers = self.planning.passed(floor)
        self.committed = self.committed if committed is None else at_of(committed)
        for number in numbers:
            self.planning.removed(number)
            self.stored.pop(number, None)

    # --- the readers

    def batches(self) -> list[PlannedBatch]:
        return [*(self.stored[number] for number in sorted(self.stored)), *self.late]

    def read(self, index: int, limit: int) -> bool:
        known = self.batches()
        if not known:
            return False
        upcoming = self.positions[index].upcoming(known[-1].next, 1)
        if not upcoming:
            return False
        number, taken = upcoming[0]
        batch = next(batch for batch in reversed(known) if batch.first <= number < batch.next)
        low, high = json.loads(batch.partitions[number - batch.first])
        assert low + taken <= high, "more rows were read than there are"
        rows = list(range(low + taken, min(low + taken + limit, high)))
        assert all(row >= self.committed for row in rows), "what was committed is read again"
        self.rows = self.rows + rows
        self.positions = [*self.positions]
        self.positions[index] = self.positions[index].after(len(rows), ended=low + taken + len(rows) == high)
        return True

    def step(self) -> None:
        match self.chance.randrange(9):
            case 0:
                self.size += self.chance.randrange(9)
            case 1 | 2:
                self.plan()
            case 3 | 4 | 5:
                self.read(self.chance.randrange(len(self.positions)), self.chance.randrange(1, 4))
            case 6:
                self.let_go()
                self.store_late()
                self.kept.append(Kept(self.positions, self.rows))
                self.kept = self.kept[-2:]
            case 7:
                self.new_driver()
            case 8 if self.chance.random() < 0.5:
                back = self.chance.choice(self.kept)
                self.positions, self.rows = back.positions, back.rows
            case 8:
                self.rescale(self.chance.randrange(1, 5))

    def rescale(self, parallelism: int) -> None:
        """A stored position is as good as the one in memory."""
        before = positions_from("s", [json.loads(json.dumps(position.to_json())) for position in self.positions])
        if self.fault == "rows of begun partitions forgotten":
            before = [
                PlannedPosition(tuple(type(run)(run.first, run.step, run.end) for run in one.runs), one.rows)
                for one in before
            ]
        self.positions = redealt(before, parallelism)

    def end(self) -> None:
        """Read all that there is."""
        self.store_late()
        for _ in range(500):
            self.plan()
            while any([self.read(index, 100) for index in range(len(self.positions))]):
                pass
            if self.planning.at == offset(self.size):
                break
        assert self.began is not None and sorted(self.rows) == list(range(self.began, self.size))


def lead(seed: int, fault: str = "") -> World:
    world = World(random.Random(seed), fault)
    for _ in range(60):
        world.step()
    world.end()
    return world


def test_every_row_is_read_once_whatever_happens() -> None:
    worlds = [lead(seed) for seed in SEEDS]
    assert sum(world.committed > 0 for world in worlds) > 5
    assert sum(len(world.rows) for world in worlds) > 300


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(fault: str) -> None:
    with pytest.raises((AssertionError, InputError, InvariantViolation, StopIteration)):
        for seed in MORE_SEEDS:
            lead(seed, fault)


def planned(*ends: Any, max_unread: int = 10) -> BatchPlanning:
    """Planning with a batch of one partition up to each of these offsets."""
    found = BatchPlanning("s", max_unread, [PlannedBatch(0, json.dumps(ends[0]), json.dumps(ends[0]), 0)])
    for end in ends[1:]:
        found.add(found.following(json.dumps(end), [b"p"]))
    return found


@pytest.mark.parametrize(
    ("ends", "new"),
    [
        ([{"at": 1}], {"at": 2}),
        ([{"day": 1, "row": 9}], {"day": 2, "row": 0}),
        ([{"file": "a", "row": 9}], {"file": "b", "row": 0}),
        ([{"a": 1}], {"a": 1, "b": 0}),
        ([{"a": [1, 2]}], {"a": [1]}),
        ([{"done": False}], {"done": True}),
        ([{"at": None}], {"at": 0}),
    ],
)
def test_an_offset_that_says_something_else_is_new(ends: list[Any], new: Any) -> None:
    assert planned(*ends).is_new(json.dumps(new))


def test_the_same_offset_in_another_order_is_not_new() -> None:
    assert not planned({"a": 1, "b": {"c": 2, "d": 3}}).is_new('{"b": {"d": 3, "c": 2}, "a": 1}')


@pytest.mark.parametrize(
    ("ends", "new"),
    [
        ([{"at": 5}], {"at": 4}),
        ([{"at": 5.5}], {"at": 5}),
        ([{"a": 5, "b": [3, "x"]}], {"a": 5, "b": [2, "x"]}),
        ([{"file": "a"}, {"file": "b"}], {"file": "a"}),
        ([{"a": True}, {"a": False}, {"a": None}], {"a": True}),
    ],
)
def test_an_offset_that_goes_back_is_an_error(ends: list[Any], new: Any) -> None:
    with pytest.raises(InputError, match="source 's': latestOffset went back from"):
        planned(*ends).is_new(json.dumps(new))


def test_batches_wait_for_room() -> None:
    planning = planned(0, 1, 2, 3, max_unread=2)
    assert [planning.unread(read) for read in range(4)] == [3, 2, 1, 0]
    assert [planning.has_room(read) for read in range(4)] == [False, False, True, True]


def test_the_last_batch_stays_and_is_committed_once() -> None:
    planning = planned(0, 1, 2)
    assert planning.passed(0) == (None, [0])
    planning.removed(0)
    assert planning.passed(1) == ("1", [1])
    assert planning.passed(2) == ("2", [1])
    assert planning.passed(2) == (None, [1])
    planning.removed(1)
    assert planning.passed(2) == (None, []) and planning.at == "2" and planning.reached == 2


def test_batches_that_are_gone_are_noticed() -> None:
    planned(0, 1).check_kept(1)
    with pytest.raises(InputError, match=r"has read 2 partitions, and only 1 are planned .* were removed there"):
        planned(0, 1).check_kept(2)
    with pytest.raises(InvariantViolation, match="batch 5 does not follow batch 1"):
        planned(0, 1).add(PlannedBatch(5, "1", "2", 1))


def test_partitions_in_turn() -> None:
    at = PlannedPosition.start(1, 3)
    assert (at.upcoming(1, 2), at.upcoming(8, 2), at.left(8)) == ([], [(1, 0), (4, 0)], 3)
    at = at.after(5, ended=False)
    assert (at.upcoming(8, 1), at.begun, at.floor) == ([(1, 5)], 2, 1)
    at = at.after(2, ended=True)
    assert (at.upcoming(8, 9), at.begun, at.floor, at.rows, at.partitions) == ([(4, 0), (7, 0)], 0, 4, 7, 1)


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"format": 2},
        {"format": 1, "runs": [], "rows": 0, "partitions": 0},
        {"format": 1, "runs": [[0, 1, 5, 0]], "rows": 0, "partitions": 0},
        {"format": 1, "runs": [[0, 0, None, 0]], "rows": 0, "partitions": 0},
        {"format": 1, "runs": [[-1, 1, None, 0]], "rows": 0, "partitions": 0},
        {"format": 1, "runs": [[0, 1, None, 0]], "rows": -1, "partitions": 0},
    ],
)
def test_what_is_no_position_is_an_error(value: Any) -> None:
    with pytest.raises(InputError, match="source 's': not a position of this version"):
        PlannedPosition.from_json("s", value)
