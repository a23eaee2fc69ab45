"""Ways between subtasks that are not by key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flinkplus.operators.base.columns import SMALL_ROWS, plain
from flinkplus.operators.base.keys import HashPartitioner
from flinkplus.operators.base.routes import ToOne, partitioner

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])


def test_who_gets_the_rows() -> None:
    batch = pa.record_batch([["a", "b"], [1, 2]], schema=SCHEMA)
    for producer in range(3):
        assert partitioner("forward", (), producer, 3).split(batch) == [(producer, batch)]
        assert partitioner("gather", (), producer, 3).split(batch) == [(0, batch)]
    assert isinstance(partitioner("hash", ("word",), 0, 3), HashPartitioner)
    assert ToOne(1).split(batch.slice(0, 0)) == []


@pytest.mark.parametrize("rows", [3, SMALL_ROWS + 1])
def test_only_what_is_used_of_a_dictionary_is_sent(rows: int) -> None:
    """A small batch leaves plain, a large one with a dictionary of its own words."""
    words = pa.array([f"w{i % 40_000}" for i in range(50_000)]).dictionary_encode().slice(20_000, rows)
    batch = pa.RecordBatch.from_arrays([words, pa.array(range(rows))], names=SCHEMA.names)
    ((target, sent),) = ToOne(2).split(batch)
    assert target == 2
    assert plain(sent, SCHEMA).equals(plain(batch, SCHEMA))
    column = sent.column("word")
    if rows <= SMALL_ROWS:
        assert column.type == pa.string()
    else:
        assert len(column.dictionary) == rows
