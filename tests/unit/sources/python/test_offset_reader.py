"""The reader of a data source without partitions: what it calls, what it repeats, and what it refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from flinkplus import UserFunctionError
from flinkplus.errors import InputError
from flinkplus.sources.python.choices import END, SourceChoice, bytes_of, pack, piece_of, unpack
from flinkplus.sources.python.fetching import AHEAD
from tests.unit.sources.python.stock import Driven, Stock, rows_between

LAST = SourceChoice.LAST_ROWS


def expected(size: int, first: int = 0) -> list[Any]:
    return [{"n": n, "text": text} for n, text in rows_between(first, size)]


@pytest.fixture
def driven() -> Iterator[Callable[..., Driven]]:
    made: list[Driven] = []

    def drive(*arguments: Any, **named: Any) -> Driven:
        made.append(Driven(*arguments, **named))
        return made[-1]

    yield drive
    for one in made:
        one.reader.close()


@pytest.mark.parametrize("before", ["", '{"at": 1}', json.dumps({"p": {str(n): n for n in range(500)}})])
def test_an_offset_is_the_same_after_its_pieces(before: str) -> None:
    for at in (0, 1, 12, 2**70):
        offset = json.dumps({"p": {str(n): n + at for n in range(at % 500)}, "at": at})
        packed = pack(offset, before)
        pieces = [bytes_of(piece_of(packed, start)) for start in range(0, len(packed) + 1, 3)]
        assert unpack(b"".join(pieces), before) == offset
        assert [len(piece) for piece in pieces[:-1]] == [3] * (len(pieces) - 1)
        assert len(pieces[-1]) < 3


def test_an_offset_like_the_one_before_takes_few_steps() -> None:
    before, after = ({"shard": "a" * 40, "at": at} for at in (123_456_789, 123_459_999))
    assert len(pack(json.dumps(after), json.dumps(before))) <= 12


def test_rows_arrive_as_they_come(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=10, limit=4, first=2)
    one = driven(stock)
    one.read_until(8, max_rows=3)
    assert one.rows == expected(10, 2)
    stock.size = 12
    one.read_until(10)
    assert one.rows == expected(12, 2)
    assert stock.called("initialOffset") == [()]
    assert not stock.called("readBetweenOffsets")


def test_a_successor_repeats_the_same_batches_between_their_offsets(driven: Callable[..., Driven]) -> None:
    rng = random.Random(5)
    for _ in range(15):
        stock = Stock(size=rng.randrange(1, 40), limit=rng.randrange(1, 12))
        one = driven(stock)
        positions = [one.reader.position()]
        for _ in range(rng.randrange(60)):
            stock.size += rng.choice((0, 1, 5))
            if len(one.rows) == stock.size:
                stock.size += 1
            one.step(rng.randrange(1, 9))
            positions.append(json.loads(json.dumps(one.reader.position())))
        one.reader.close()
        begin = rng.randrange(len(positions))
        # Now a new read gives other batches. The thread of the first reader may call once more.
        stock = replace(stock, limit=rng.randrange(1, 12), calls=[])
        two = driven(stock, positions[begin])
        two.repeat(one.steps[begin:])
        assert not stock.called("read") and not stock.called("initialOffset")
        stock.size += 3
        two.read_until(stock.size)
        read = sum(len(rows or []) for _, rows in one.steps[:begin])
        assert two.rows == expected(stock.size)[read:]


def test_an_offset_that_a_predecessor_had_only_begun_is_given_up(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=123_456_789, rows=lambda start, end: iter(()))
    one = driven(stock)
    while not one.reader._at.pieces or one.reader._at.start is None:
        one.step()
    two = driven(stock, one.reader.position())
    stock.size, stock.rows = 7, None
    two.read_until(7)
    assert two.rows == expected(7)


def test_the_next_batches_are_read_ahead_and_not_all(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=100, limit=1)
    one = driven(stock)
    while one.step() is not LAST:
        pass
    one.wait(lambda: len(stock.called("read")) == AHEAD + 2)
    one.step()
    assert len(stock.called("read")) == AHEAD + 2


def test_a_batch_without_rows_moves_the_offset_on(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=5, ends={0: 3}, rows=lambda start, end: iter(()) if start == 0 else rows_between(start, end))
    one = driven(stock)
    one.read_until(2)
    assert one.rows == expected(5, 3)


def test_what_checkpoints_cover_is_committed_once(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=6, limit=3)
    one = driven(stock)
    one.step()
    one.reader.committed(one.reader.position())
    one.read_until(5, max_rows=1)
    middle = one.reader.position()
    one.reader.committed(middle)
    one.wait(lambda: stock.called("commit") == [(3,)])
    one.reader.committed(middle)
    one.end_batch(6)
    one.reader.committed(one.reader.position())
    one.wait(lambda: stock.called("commit") == [(3,), (6,)])


def test_other_subtasks_end_at_once(driven: Callable[..., Driven]) -> None:
    one = driven(Stock(size=5), index=1)
    assert one.reader.choose(10) == END and one.reader.can_read(END) and one.reader.read(END) is None
    assert one.reader.gauges() == {}


@pytest.mark.parametrize(("more", "what"), [(True, "more"), (False, "fewer")])
def test_other_rows_than_before_are_an_error(driven: Callable[..., Driven], more: bool, what: str) -> None:
    stock = Stock(size=4)
    one = driven(stock)
    one.end_batch(4)
    stock.rows = lambda start, end: rows_between(start, end + (1 if more else -1))
    with pytest.raises(InputError, match=f"stock.*readBetweenOffsets of Stock gave {what} rows"):
        driven(stock).repeat(one.steps)


def test_fewer_rows_than_a_snapshot_says_are_an_error(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=4)
    one = driven(stock)
    one.read_until(3, max_rows=1)
    stock.rows = lambda start, end: iter(())
    two = driven(stock, one.reader.position())
    with pytest.raises(InputError, match="readBetweenOffsets gave fewer rows"):
        two.step()


def test_rows_behind_which_the_offset_stays_are_an_error(driven: Callable[..., Driven]) -> None:
    stock = Stock(size=4, rows=lambda start, end: rows_between(0, 1))
    one = driven(stock)
    with pytest.raises(InputError, match=r'read gave rows, and the offset \{"at": 4\} again'):
        one.read_until(9)


def raising(method: str) -> Callable[[tuple[Any, ...]], None]:
    def fault(call: tuple[Any, ...]) -> None:
        if call[0] == method:
            raise ConnectionError("the shop is closed for hunter2")

    return fault


@pytest.mark.parametrize("method", ["initialOffset", "read", "readBetweenOffsets", "commit"])
def test_an_error_names_source_and_method(driven: Callable[..., Driven], method: str) -> None:
    stock = Stock(size=3)
    one = driven(stock)
    one.end_batch(3)
    stock.fault = raising(method)
    two = driven(stock, None if method == "initialOffset" else one.reader.position())
    with pytest.raises(InputError, match=rf"source 'stock': {method} of Stock raised ConnectionError: .* for \*\*\*"):
        if method == "commit":
            two.reader.committed(one.reader.position())
            two.wait(lambda: False)
        elif method == "readBetweenOffsets":
            driven(stock).repeat(one.steps)
        else:
            two.step()


@pytest.mark.parametrize("offset", [7, {"at": {1}}, {"at": float("nan")}, {"at": "x" * 40_000}])
def test_an_offset_must_be_a_small_json_object(driven: Callable[..., Driven], offset: Any) -> None:
    stock = Stock()
    reader = stock.stream_reader()
    reader.initialOffset = lambda: offset  # type: ignore[method-assign]
    stock.stream_reader = lambda: reader  # type: ignore[method-assign]
    with pytest.raises(InputError, match="source 'stock': an offset"):
        driven(stock).step()


def test_rows_may_be_tuples_lists_rows_and_arrow_batches(driven: Callable[..., Driven]) -> None:
    arrow = pa.record_batch({"text": ["c", "d"], "n": pa.array([3, 4], pa.int32())})
    given = [(1, "a"), [2, "b"], arrow, Row(text="e", n=5), (6, None)]
    one = driven(Stock(size=6, rows=lambda start, end: iter(given if end > start else [])))
    one.read_until(6)
    assert [tuple(row.values()) for row in one.rows] == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, None)]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("ab", "gave str, which is no tuple"),
        ({"n": 1, "text": "a"}, "gave dict, which is no tuple"),
        ((1,), "1 values for the columns"),
        (("1", "a"), "column 'n' of type int64 cannot hold '1'"),
        ((1.5, "a"), "float is not int64"),
        ((1, 2), "int is not string"),
        (Row(n=1, other="a"), "gave a Row of .*other"),
        (pa.record_batch({"n": [1]}), "Arrow batch that does not fit"),
        (pa.record_batch({"n": ["x"], "text": ["a"]}), "Arrow batch that does not fit"),
    ],
)
def test_a_row_that_does_not_fit_names_the_source(driven: Callable[..., Driven], row: Any, what: str) -> None:
    one = driven(Stock(size=2, rows=lambda start, end: iter([(0, "good"), row] if end > start else [])))
    with pytest.raises(UserFunctionError, match=f"(?s)stock.*{what}"):
        one.read_until(2)


def iterated(row: Any, start: int, end: int) -> Iterator[Any]:
    yield row


def test_a_null_where_there_must_be_none_is_an_error(driven: Callable[..., Driven]) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), False), pa.field("text", pa.string())])
    for row in ((None, "a"), pa.record_batch({"n": pa.array([None], pa.int64()), "text": ["a"]})):
        rows = partial(iterated, row)
        one = driven(Stock(size=1, schema=schema, rows=rows))
        with pytest.raises(UserFunctionError, match=r"(?s)null in"):
            one.read_until(1)


def test_what_is_no_iterator_is_an_error(driven: Callable[..., Driven]) -> None:
    one = driven(Stock(size=1, rows=lambda start, end: [(1, "a")]))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="read of Stock must return an iterator, not list"):
        one.read_until(1)


@pytest.mark.parametrize("position", [7, {}, {"format": 1}, {"format": 1, "start": 3, "end": None}])
def test_what_is_no_position_is_an_error(position: Any) -> None:
    with pytest.raises(InputError, match="source 'stock': not a position of this version"):
        Driven(Stock(), position)


def test_a_large_batch_is_not_held_in_memory(driven: Callable[..., Driven]) -> None:
    given: list[int] = []

    def rows(start: int, end: int) -> Iterator[Any]:
        for n in range(start, end):
            given.append(n)
            yield n, "x" * 1000

    stock = Stock(size=200_000, rows=rows)
    one = driven(stock)
    one.read_until(1, max_rows=1)
    one.wait(lambda: len(given) > 5_000)
    before = -1
    while before != len(given):  # until it stands still
        before = len(given)
        one._woken.wait(0.2)
        one._woken.clear()
    assert len(given) < 30_000
