"""Generated rows: each number once, from any position."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, InputError, UserFunctionError
from flinkplus.sources.base import SourceReader
from flinkplus.sources.generator import Generator
from tests.unit.sources.source_checks import check_replay, opened, read_all

SCHEMA = pa.schema([("n", pa.int64())])


def row(i: int) -> int:
    return i


def rows(start: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + n), pa.int64())})


def read_numbers(reader: SourceReader, max_rows: int) -> list[int]:
    batch = reader.read(max_rows)
    return [] if batch is None else list(batch.column(0).to_pylist())


@given(st.booleans(), st.integers(0, 40), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 9)), st.integers(1, 7))
@settings(deadline=None)
def test_every_number_once_from_any_position(
    batches: bool, count: int, parallelism: int, block_rows: int | None, max_rows: int
) -> None:
    source = Generator("g", rows if batches else row, "n long", count=count, batches=batches, block_rows=block_rows)
    parts = read_all(source, parallelism, max_rows)
    assert sorted(r["n"] for part in parts for r in part) == list(range(count))
    assert all([r["n"] for r in part] == sorted(r["n"] for r in part) for part in parts)
    check_replay(source, parallelism - 1, parallelism, max_rows, 3)


def test_rows_are_dealt_one_by_one_and_ranges_in_blocks() -> None:
    single = opened(Generator("g", row, "n long"), 1, 3)
    assert single.read(4).to_pylist() == [{"n": n} for n in (1, 4, 7, 10)]  # type: ignore[union-attr]
    blocks = opened(Generator("g", rows, SCHEMA, batches=True), 1, 3)
    numbers = [batch.column(0).to_pylist() for _ in range(3) if (batch := blocks.read(1000))]
    block_rows = 1024
    expected = [n for block in (1, 4, 7) for n in range(block * block_rows, (block + 1) * block_rows)]
    assert numbers == [expected[:1000], expected[1000:2000], expected[2000:3000]]


class Counted:
    """A function of ranges that notes what it was called for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, start: int, n: int) -> pa.RecordBatch:
        self.calls.append((start, n))
        return rows(start, n)


def test_blocks_that_follow_each_other_are_one_call() -> None:
    function = Counted()
    reader = opened(Generator("g", function, SCHEMA, batches=True, block_rows=10))
    assert read_numbers(reader, 35) == list(range(35))
    assert read_numbers(reader, 100) == list(range(35, 135))
    assert function.calls == [(0, 35), (35, 100)]


def test_blocks_of_several_subtasks_are_a_call_each() -> None:
    function = Counted()
    reader = opened(Generator("g", function, SCHEMA, batches=True, block_rows=10), 1, 2)
    assert read_numbers(reader, 25) == [*range(10, 20), *range(30, 40), *range(50, 55)]
    assert function.calls == [(10, 10), (30, 10), (50, 5)]


@pytest.mark.parametrize(
    ("count", "calls"),
    [(34, [(10, 10), (30, 4)]), (30, [(10, 10)]), (40, [(10, 10), (30, 10)]), (10, [])],
    ids=["inside", "before", "behind", "nothing"],
)
def test_a_count_may_end_inside_a_block(count: int, calls: list[tuple[int, int]]) -> None:
    function = Counted()
    reader = opened(Generator("g", function, SCHEMA, batches=True, block_rows=10, count=count), 1, 2)
    assert read_numbers(reader, 100) == [n for start, size in calls for n in range(start, start + size)]
    assert function.calls == calls
    assert reader.read(100) is None


def test_a_reader_resumes_inside_a_block() -> None:
    def source(function: Counted) -> Generator:
        return Generator("g", function, SCHEMA, batches=True, block_rows=10, count=70)

    first = opened(source(Counted()), 0, 2)
    assert read_numbers(first, 13) == [*range(10), *range(20, 23)]
    function = Counted()
    second = opened(source(function), 0, 2, position=first.position())
    assert read_numbers(second, 12) == [*range(23, 30), *range(40, 45)]
    assert read_numbers(second, 100) == [*range(45, 50), *range(60, 70)]
    assert function.calls == [(23, 7), (40, 5), (45, 5), (60, 10)]


def test_a_function_that_fails_is_named_with_its_number() -> None:
    with pytest.raises(UserFunctionError, match=r"operator 'g', subtask g\[1\]: ZeroDivisionError.*input row: 3"):
        opened(Generator("g", lambda i: 1 // (3 - i), "n long"), 1, 2).read(5)
    with pytest.raises(UserFunctionError, match=r"cannot hold 'x'.*input row: 2"):
        opened(Generator("g", lambda i: "x" if i == 2 else i, "n long")).read(5)
    bad: list[Any] = [lambda s, n: rows(s, n + 1), lambda s, n: None, lambda s, n: pa.record_batch({"m": [1] * n})]
    for function in bad:
        with pytest.raises(UserFunctionError, match=r"input row: range\(0, 5\)"):
            opened(Generator("g", function, "n long", batches=True)).read(5)


def test_schema_and_options() -> None:
    source = Generator("g", row, "n long")
    assert source.schema == SCHEMA
    assert source.planned() is source
    wrong: list[dict[str, Any]] = [{"count": -1}, {"block_rows": 0}]
    for options in wrong:
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            Generator("g", row, "n long", **options)
    with pytest.raises(ConfigurationError, match="'strin'"):
        Generator("g", row, "n strin")
    for position in (5, {"format": 1, "next": 0}, {"format": 2}, {"format": 2, "rows": "1", "runs": []}):
        with pytest.raises(InputError, match="not a position"):
            opened(source, position=position)
