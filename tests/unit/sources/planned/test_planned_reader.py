"""Planned batches as files, and the reader of a subtask: replays read the same; damaged and forged ones are errors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import InputError, JobRunsElsewhere, UntrustedCheckpoint
from flinkplus.sources.planned.area import PlanArea
from flinkplus.sources.planned.planning import PlannedBatch
from flinkplus.sources.planned.position import PlannedPosition, positions_from, redealt
from flinkplus.sources.planned.reader import PlannedReader
from flinkplus.state.durable.seals import SigningKey
from tests.unit.sources.python.stock import Woken

SCHEMA = pa.schema([("batch", pa.int64()), ("n", pa.int64())])
KEY = SigningKey.made("a key")
Rows = Callable[[int, int], Iterator[Any]]


def all_rows(batch: int, size: int) -> Iterator[tuple[int, int]]:
    return ((batch, n) for n in range(size))


@dataclass
class Planned:
    """Batches with partitions of so many rows. ``rows``: those of a partition, by its batch and its size."""

    location: str
    sizes: list[list[int]] = field(default_factory=list)
    rows: Rows = all_rows
    key: SigningKey = KEY
    name: str = "planned"
    schema: pa.Schema = SCHEMA
    shown: str = "Planned"

    def area(self) -> PlanArea:
        return PlanArea(self.location, self.key)

    def hide(self, text: str) -> str:
        return text.replace("hunter2", "***")

    def read_planned(self, partition: bytes) -> Iterator[Any]:
        return self.rows(*json.loads(partition))

    def plan(self, *sizes: int) -> PlannedBatch:
        number, first = len(self.sizes), sum(map(len, self.sizes))
        self.sizes.append([*sizes])
        partitions = tuple(json.dumps([number, size]).encode() for size in sizes)
        batch = PlannedBatch(number, f"{number}", f"{number + 1}", first, partitions)
        return self.area().put(batch, lambda: None)

    def all(self) -> list[tuple[int, int]]:
        return sorted(
            row for number, sizes in enumerate(self.sizes) for size in sizes for row in all_rows(number, size)
        )


class Reading(Woken):
    """A reader, driven by hand. ``steps``: position before, choice, and rows."""

    def __init__(self, source: Planned, start: PlannedPosition, index: int = 0) -> None:
        super().__init__()
        self.reader = PlannedReader(source, index, start)
        self.reader.open(json.loads(json.dumps(start.to_json())))
        self.reader.begin(self.wake)
        self.steps: list[tuple[Any, int, list[tuple[int, int]] | None]] = []

    def step(self, max_rows: int = 3) -> bool:
        """``False`` at the end."""
        self.wait(lambda: self.reader.choose(max_rows) is not None)
        choice = self.reader.choose(max_rows)
        assert choice is not None
        return self.take(choice)

    def take(self, choice: int) -> bool:
        before = self.reader.position()
        self.wait(lambda: self.reader.can_read(choice))
        batch = self.reader.read(choice)
        rows = None if batch is None else [tuple(row.values()) for row in batch.to_pylist()]
        assert len(rows or []) <= self.reader.rows_of(choice)
        self.steps.append((before, choice, rows))
        return rows is not None

    def position(self) -> PlannedPosition:
        return PlannedPosition.from_json("planned", self.reader.position())

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [row for _, _, rows in self.steps for row in rows or []]


@contextmanager
def reading(source: Planned, start: PlannedPosition | None = None) -> Iterator[Reading]:
    run = Reading(source, start or PlannedPosition.start(0, 1))
    try:
        yield run
    finally:
        run.reader.close()


@pytest.fixture
def source(tmp_path: Path) -> Planned:
    return Planned(str(tmp_path / "area"))


def test_partitions_are_read_when_they_are_planned(source: Planned) -> None:
    with reading(source) as run:
        assert run.reader.choose(9) is None and not run.reader.can_read(9)
        source.plan()
        source.plan(2, 0, 3)
        while len(run.rows) < 5:
            run.step()
        assert run.rows == [(1, 0), (1, 1), (1, 0), (1, 1), (1, 2)]
        assert run.reader.metrics["rows"] == 5
        source.plan()
        source.plan(1)
        while len(run.rows) < 6:
            run.step()
        source.area().end(lambda: None)
        while run.step():
            pass
        assert run.reader.metrics == {"rows": 6, "partitions": 4} and run.reader.gauges() == {"lag_partitions": 0}


def test_batches_that_were_passed_are_not_held(source: Planned) -> None:
    """Also if no partition is read behind them."""
    source.plan(1)
    with reading(source) as run:
        while not run.reader.metrics["partitions"]:
            run.step()
        for _ in range(3):
            source.plan()
        watch = run.reader._watch
        assert watch is not None
        run.wait(lambda: run.reader.choose(9) is None and [batch.number for batch in watch.batches] == [3])
        source.plan(2)
        while len(run.rows) < 3:
            run.step()
        assert run.rows == [(0, 0), (4, 0), (4, 1)]


def test_a_replay_reads_the_same_though_more_is_planned(source: Planned) -> None:
    source.plan(4, 7)
    source.plan(5)
    with reading(source) as run:
        while len(run.rows) < 16:
            run.step()
    source.plan(3)
    for at, (position, _, _) in enumerate(run.steps):
        with reading(source, PlannedPosition.from_json("planned", position)) as again:
            for _, choice, rows in run.steps[at:]:
                again.take(choice)
                assert again.steps[-1][2] == rows


def test_another_parallelism_in_the_middle_of_partitions(source: Planned) -> None:
    chance = random.Random(2)
    for _ in range(5):
        source.plan(*(chance.randrange(7) for _ in range(chance.randrange(5))))
    found: list[tuple[int, int]] = []
    positions = positions_from("planned", [None, None])
    for parallelism in (2, 3, 1, 4):
        positions = redealt(positions, parallelism)
        for index in range(parallelism):
            with reading(source, positions[index]) as run:
                if positions[index].left(sum(map(len, source.sizes))):
                    run.step(2)
                found += run.rows
                positions[index] = run.position()
    source.area().end(lambda: None)
    for position in positions:
        with reading(source, position) as run:
            while run.step():
                pass
            found += run.rows
    assert sorted(found) == source.all()


def begun(source: Planned, rows: int) -> Reading:
    """A reader that has read so many rows of the first partition."""
    with reading(source) as run:
        while len(run.rows) < rows:
            run.step(1)
    return run


@pytest.mark.parametrize(("size", "message"), [(3, "gave 3 rows for partition 0 of batch 0 of Planned, of which 4")])
def test_fewer_rows_than_a_checkpoint_has_read(source: Planned, size: int, message: str) -> None:
    source.plan(6)
    run = begun(source, 4)
    source.rows = lambda batch, _: all_rows(batch, size)
    with reading(source, run.position()) as again, pytest.raises(InputError, match=message):
        again.step()


@pytest.mark.parametrize("size", [5, 7])
def test_another_number_of_rows_than_a_repeated_step_has_read(source: Planned, size: int) -> None:
    source.plan(6)
    with reading(source) as run:
        run.wait(lambda: run.reader.choose(9) == 6 << 3 | 2)  # all of them, and no more
        run.step(9)
    source.rows = lambda batch, _: all_rows(batch, size)
    with (
        reading(source) as again,
        pytest.raises(InputError, match=r"partition 0 of batch 0 of Planned.* other records"),
    ):
        again.take(run.steps[0][1])


def test_an_error_of_read_names_it_without_secrets(source: Planned) -> None:
    def broken(batch: int, size: int) -> Iterator[Any]:
        yield batch, 0
        raise LookupError("hunter2 is gone")

    source.rows = broken
    source.plan(5)
    with reading(source) as run:
        with pytest.raises(
            InputError,
            match=r"read of Planned raised LookupError: \*\*\* is gone .*test_planned_reader.py:\d+ in broken",
        ):
            run.step() and run.step()
        assert len(run.rows) <= 1


def test_a_batch_that_was_removed_is_an_error_where_it_is_needed(source: Planned) -> None:
    source.plan(2)
    source.plan(2)
    source.area().remove(0)
    source.area().remove(0)
    with reading(source) as run, pytest.raises(InputError, match="partition 0 of Planned was planned in a batch that"):
        run.step()


def test_a_batch_that_was_removed_between_others(source: Planned) -> None:
    for _ in range(3):
        source.plan(1)
    source.area().remove(1)
    message = (
        r"partition 1 of Planned was planned in a batch that is not there; the batches from \d to 2 do not have it"
    )
    with reading(source) as run, pytest.raises(InputError, match=message):
        while run.step():
            pass


def test_a_stored_batch_never_changes(source: Planned) -> None:
    """What another driver has planned counts, and is returned."""
    first = source.plan(2)
    other = PlannedBatch(0, "0", "5", 0, (b"[0, 9]",))
    assert source.area().put(other, lambda: None) == first == source.area().put(first, lambda: None)
    assert source.area().read(0) == first and source.area().ready() == ([0], False)


def test_another_driver_makes_no_batch_visible(source: Planned) -> None:
    def replaced() -> None:
        raise JobRunsElsewhere("another driver")

    area = source.area()
    for write in (lambda: area.put(PlannedBatch(0, "0", "1", 0), replaced), lambda: area.end(replaced)):
        with pytest.raises(JobRunsElsewhere):
            write()
    assert area.ready() == ([], False)


def test_batches_of_strangers_are_not_unpickled(source: Planned, tmp_path: Path) -> None:
    source.plan(2)
    source.key = SigningKey.made("another key")
    with reading(source) as run, pytest.raises(UntrustedCheckpoint, match="is signed with the key"):
        run.step()
    source.area().sign_again()
    with reading(source) as run:
        run.step()
        assert run.rows == [(0, 0), (0, 1)]
    other = source.area()
    (file,) = (tmp_path / "area").iterdir()
    file.rename(file.with_name(f"{1:020d}.planned"))  # one batch in the place of another
    with pytest.raises(UntrustedCheckpoint):
        other.read(1)


@pytest.mark.parametrize("data", [b"", b"{}", b"flinkplus-planned 2 1 x planned k s\n{"])
def test_damaged_batches_are_named(source: Planned, tmp_path: Path, data: bytes) -> None:
    source.plan(2)
    (file,) = (tmp_path / "area").iterdir()
    file.write_bytes(data)
    with reading(source) as run, pytest.raises(InputError, match=r"area/0+\.planned is damaged: "):
        run.step()
