"""Partitions that are read once: each row once, at every parallelism, and again from every position."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from flinkplus import UserFunctionError
from flinkplus.errors import InputError
from flinkplus.sources.python.choices import END, SourceChoice, encode
from flinkplus.sources.python.partitions import PartitionsPosition, PartitionsReader, redealt
from tests.unit.sources.python.stock import Woken

SCHEMA = pa.schema([("part", pa.int64()), ("n", pa.int64())])


@dataclass
class Parts:
    """``sizes``: rows of each partition. ``fails_at``: a row that cannot be read. ``rows``: given first."""

    sizes: list[int]
    fails_at: tuple[int, int] | None = None
    rows: Any = None
    read: list[int] = field(default_factory=list)
    name: str = "parts"
    schema: pa.Schema = SCHEMA
    shown: str = "Parts"

    def hide(self, text: str) -> str:
        return text.replace("hunter2", "***")

    def read_partition(self, number: int) -> Iterator[tuple[int, int]]:
        self.read.append(number)
        if self.rows is not None:
            yield from self.rows
        for n in range(self.sizes[number]):
            if (number, n) == self.fails_at:
                raise ConnectionError("gone")
            yield number, n

    def all(self) -> list[tuple[int, int]]:
        return [(part, n) for part, size in enumerate(self.sizes) for n in range(size)]


class Reading(Woken):
    """A reader, driven by hand. ``steps``: choice, and rows."""

    def __init__(self, parts: Parts, index: int, parallelism: int, position: Any = None) -> None:
        super().__init__()
        self.reader = PartitionsReader(parts, index, PartitionsPosition.start(len(parts.sizes), index, parallelism))
        self.reader.open(position)
        self.reader.begin(self.wake)
        self.steps: list[tuple[int, list[tuple[int, int]] | None]] = []

    def step(self, max_rows: int) -> bool:
        """``False`` at the end."""
        self.wait(lambda: self.reader.choose(max_rows) is not None)
        choice = self.reader.choose(max_rows)
        assert choice is not None
        return self.take(choice)

    def take(self, choice: int) -> bool:
        self.wait(lambda: self.reader.can_read(choice))
        batch = self.reader.read(choice)
        rows = None if batch is None else [tuple(row.values()) for row in batch.to_pylist()]
        assert len(rows or []) <= self.reader.rows_of(choice)
        self.steps.append((choice, rows))
        return rows is not None

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [row for _, rows in self.steps for row in rows or []]

    @property
    def position(self) -> Any:
        return json.loads(json.dumps(self.reader.position()))


@pytest.fixture
def reading() -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def read(*arguments: Any) -> Reading:
        made.append(Reading(*arguments))
        return made[-1]

    yield read
    for one in made:
        one.reader.close()


def test_all_readers_together_give_every_row_once(reading: Callable[..., Reading]) -> None:
    parts = Parts([3, 0, 9000, 1, 5])
    readers = [reading(parts, index, 2) for index in range(2)]
    for one in readers:
        while one.step(1000):
            pass
        assert one.steps[-1] == (END, None)
        assert one.reader.gauges() == {"lag_partitions": 0}
    assert sorted(row for one in readers for row in one.rows) == parts.all()
    assert readers[0].rows == [row for row in parts.all() if row[0] % 2 == 0]


def test_a_successor_repeats_and_another_parallelism_has_the_rest(reading: Callable[..., Reading]) -> None:
    rng = random.Random(8)
    for _ in range(10):
        parts = Parts([rng.randrange(12) for _ in range(rng.randrange(1, 9))])
        parallelism = rng.randrange(1, 4)
        done: list[tuple[int, int]] = []
        positions = []
        for index in range(parallelism):
            one = reading(parts, index, parallelism)
            begin, at = one.position, 0
            for number in range(rng.randrange(8)):
                if not one.step(rng.randrange(1, 6)):
                    break
                if rng.random() < 0.3:
                    begin, at = one.position, number + 1
            two = reading(parts, index, parallelism, begin)
            for choice, _ in one.steps[at:]:
                two.take(choice)
            assert two.steps == one.steps[at:] and two.position == one.position
            done += one.rows
            positions.append(PartitionsPosition.from_json("parts", one.position))
        dealt = redealt(positions, 3)
        assert sum(position.rows for position in dealt) == len(done)
        for index, position in enumerate(dealt):
            rest = reading(parts, index, 3, position.to_json())
            while rest.step(4):
                pass
            done += rest.rows
        assert sorted(done) == parts.all()


def test_an_error_comes_behind_the_rows_before_it(reading: Callable[..., Reading]) -> None:
    one = reading(Parts([9000], fails_at=(0, 8500)), 0, 1)
    with pytest.raises(InputError, match="source 'parts': read of Parts raised ConnectionError: gone"):
        while one.step(4096):
            pass
    assert one.rows and one.rows == [(0, n) for n in range(len(one.rows))]


def test_a_row_that_does_not_fit_names_the_source(reading: Callable[..., Reading]) -> None:
    one = reading(Parts([1], rows=[("a", 1)]), 0, 1)
    with pytest.raises(UserFunctionError, match=r"(?s)parts.*column 'part' of type int64 cannot hold 'a'"):
        one.step(10)


def test_other_rows_than_before_are_an_error(reading: Callable[..., Reading]) -> None:
    parts = Parts([5])
    one = reading(parts, 0, 1)
    one.wait(lambda: one.reader.choose(10) == encode(SourceChoice.LAST_ROWS, 5))  # all of them, and no more
    one.step(10)
    for size in (4, 6):
        parts.sizes[0] = size
        two = reading(parts, 0, 1)
        with pytest.raises(InputError, match=r"partition 0 of Parts.*has other records"):
            two.take(one.steps[0][0])


@pytest.mark.parametrize("position", [7, {}, {"format": 1, "left": [[1]], "rows": 0}, {"format": 1, "left": [[1, -1]]}])
def test_what_is_no_position_is_an_error(position: Any) -> None:
    with pytest.raises(InputError, match="source 'parts': not a position of this version"):
        PartitionsPosition.from_json("parts", position)
