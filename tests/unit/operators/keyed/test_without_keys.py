"""Keyed operators of no key columns: all rows are of one key."""

from __future__ import annotations

from itertools import accumulate
from unittest import mock

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.operators.base.keys import encode_keys, row_keys
from flinkplus.operators.keyed import keyed
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from tests.unit.operators.operator_fakes import FakeState, run

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-9, 9)), max_size=20)


@given(ROWS, st.integers(1, 20), st.booleans(), st.sampled_from([0, keyed.FEW_ROWS]))
@settings(deadline=None)
def test_totals(rows: list[tuple[str | None, int]], size: int, encode: bool, few_rows: int) -> None:
    words = pa.array([word for word, _ in rows], pa.string())
    whole = pa.RecordBatch.from_arrays(
        [words.dictionary_encode() if encode else words, pa.array([n for _, n in rows], pa.int64())], SCHEMA.names
    )
    batches = [whole.slice(at, size) for at in range(0, len(rows), size)]
    totals = list(accumulate(n for _, n in rows))
    with mock.patch.multiple(keyed, FEW_ROWS=few_rows, FEW_NUMBERS=few_rows):
        counted = run(Count("count", ()), batches, SCHEMA, FakeState())
        summed = run(Sum("sum", (), "n"), batches, SCHEMA, FakeState())
    assert [row["count"] for row in counted] == list(range(1, len(rows) + 1))
    assert [row["sum"] for row in summed] == totals
    reduced = run(Reduce("r", (), lambda a, b: (b.word, a.n + b.n)), batches, SCHEMA, FakeState())
    assert [(row["word"], row["n"]) for row in reduced] == list(zip([w for w, _ in rows], totals, strict=True))
    process = Process("p", (), lambda key, row, ctx: [(str(key), row.n)], "key string, n long")
    assert run(process, batches, SCHEMA, FakeState()) == [{"key": "()", "n": n} for _, n in rows]


@pytest.mark.parametrize("rows", [0, 3])
def test_the_key_of_all_rows(rows: int) -> None:
    batch = pa.record_batch([["a"] * rows, range(rows)], schema=SCHEMA)
    key = encode_keys(batch, ())
    assert (key.keys, key.codes.tolist(), key.distinct) == ([b""] * bool(rows), [0] * rows, True)
    assert row_keys(batch, ()).to_pylist() == [b""] * rows
