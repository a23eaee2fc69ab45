"""Generated rows: each number once, from any position."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, InputError, UserFunctionError
from flinkplus.sources.generator import Generator
from tests.unit.sources.source_checks import check_replay, opened, read_all

SCHEMA = pa.schema([("n", pa.int64())])


def row(i: int) -> int:
    return i


def rows(start: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + n), pa.int64())})


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
    sizes = [blocks.read(1000) for _ in range(3)]
    assert [(b.num_rows, b.column(0)[0].as_py()) for b in sizes if b] == [(1000, 1024), (24, 2024), (1000, 4096)]


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
    for position in (5, {"format": 2, "next": 0}, {"format": 1}, {"format": 1, "next": "1"}):
        with pytest.raises(InputError, match="not a position"):
            opened(source, position=position)
