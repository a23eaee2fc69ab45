"""Which rows of which batches belong to a reader: each row to one, through any parallelisms."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from flinkplus.errors import InputError
from flinkplus.sources.batches.pieces import METRICS, BatchPosition, Piece, RowCut, redealt
from tests.examples import examples


def read(at: BatchPosition, sizes: dict[int, int], rows: int) -> tuple[BatchPosition, list[tuple[int, int]]]:
    """Read up to ``rows`` rows in the plainest way: one by one. ``sizes``: the rows of each batch."""
    found: list[tuple[int, int]] = []
    while len(found) < rows and (next_one := at.next(sorted(sizes))) is not None:
        index, batch = next_one
        piece = at.pieces[index]
        start, end = piece.rows_of(batch, sizes[batch])
        row = piece.row if piece.first == batch else 0
        if start + row >= end:
            at = at.advanced(index, piece.after(batch))
            continue
        found.append((batch, start + row))
        more = start + row + 1 < end
        at = at.advanced(index, Piece(batch, piece.end, piece.cuts, row + 1) if more else piece.after(batch))
    return at, found


SIZES = st.dictionaries(st.integers(0, 9), st.integers(1, 12), max_size=7)


@given(SIZES, st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 15), min_size=4, max_size=4)), max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_each_row_is_read_once_in_ascending_batches(sizes: dict[int, int], rounds: list[tuple[int, list[int]]]) -> None:
    """Some batches have no rows, and are not there. Readers stop anywhere, and are dealt to others, again and again."""
    positions = [BatchPosition.start(0, 1)]
    found: list[tuple[int, int]] = []
    for parallelism, counts in (*rounds, (2, [10**6] * 4)):
        positions = [
            BatchPosition.from_json("s", json.loads(json.dumps(position.to_json())))
            for position in redealt(positions, parallelism)
        ]
        for index in range(parallelism):
            floor = positions[index].floor
            positions[index], mine = read(positions[index], sizes, counts[index])
            assert [batch for batch, _ in mine] == sorted(batch for batch, _ in mine)
            assert all(batch >= floor for batch, _ in mine) and positions[index].floor >= floor
            found += mine
    assert Counter(found) == Counter((batch, row) for batch, rows in sizes.items() for row in range(rows))


@given(st.integers(0, 20), st.integers(0, 30), st.integers(1, 6))
def test_a_batch_is_cut_evenly(batch: int, rows: int, count: int) -> None:
    parts = [RowCut(index, count).of(batch, 5, 5 + rows) for index in range(count)]
    assert sorted(row for low, high in parts for row in range(low, high)) == list(range(5, 5 + rows))
    assert max(high - low for low, high in parts) - min(high - low for low, high in parts) <= 1


def test_small_batches_go_to_all_readers_in_turn() -> None:
    """So no reader stays behind, and holds up the removal of batches."""
    for index in range(3):
        had = [batch for batch in range(9) if range(*RowCut(index, 3).of(batch, 0, 1))]
        assert len(had) == 3 and all(b - a == 3 for a, b in pairwise(had))


def test_totals_are_dealt_too() -> None:
    positions = [BatchPosition(BatchPosition.start(i, 3).pieces, {"rows": 1 + i, "invalid_lines": i}) for i in range(3)]
    assert [position.metrics for position in redealt(positions, 2)] == [
        {"rows": 4, "invalid_lines": 2},
        {"rows": 2, "invalid_lines": 1},
    ]


GOOD: dict[str, Any] = {"format": 1, "pieces": [[0, None, 0, [[0, 1, 0]]]], **dict.fromkeys(METRICS, 0)}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"pieces": []},
        {"pieces": [[0, None, 0, []]]},
        {"pieces": [[0, None, 0, [[1, 1, 0]]]]},
        {"pieces": [[3, 3, 0, [[0, 1, 0]]]]},
        {"pieces": [[-1, None, 0, [[0, 1, 0]]]]},
        {"pieces": [["0", None, 0, [[0, 1, 0]]]]},
        {"rows": None},
    ],
)
def test_a_damaged_position_is_refused(change: dict[str, Any]) -> None:
    assert BatchPosition.from_json("s", GOOD) == BatchPosition.start(0, 1)
    with pytest.raises(InputError, match="source 's': not a position"):
        BatchPosition.from_json("s", {**GOOD, **change})
