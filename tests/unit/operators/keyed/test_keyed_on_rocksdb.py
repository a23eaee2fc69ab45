"""Keyed operators on the real state, with keys that do not fit in memory, over snapshots and a restore."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import KeyedState, Operator
from flinkplus.operators.base.row import Row
from flinkplus.operators.keyed.functions.context import ProcessContext
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.state import CheckpointStorage, SubtaskState
from tests.unit.operators.operator_fakes import create

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])


def last_two(key: str, row: Row, ctx: ProcessContext) -> list[tuple[str, str]]:
    state = ctx.state("last")
    state.put([*state.get([]), row.n][-2:])
    return [(key, str(state.get()))]


def expected_counts(rows: list[tuple[str, int]]) -> list[Any]:
    counts: dict[str, int] = defaultdict(int)
    out = []
    for word, _ in rows:
        counts[word] += 1
        out.append(counts[word])
    return out


def expected_sums(rows: list[tuple[str, int]]) -> list[Any]:
    sums: dict[str, int] = defaultdict(int)
    out = []
    for word, n in rows:
        sums[word] += n
        out.append(sums[word])
    return out


def expected_last(rows: list[tuple[str, int]]) -> list[Any]:
    last: dict[str, list[int]] = defaultdict(list)
    out = []
    for word, n in rows:
        last[word] = [*last[word], n][-2:]
        out.append(str(last[word]))
    return out


@pytest.mark.parametrize(
    ("operator", "column", "expected"),
    [
        (Count("count", ("word",)), "count", expected_counts),
        (Sum("sum", ("word",), "n"), "sum", expected_sums),
        (Reduce("reduce", ("word",), lambda a, b: (a.word, a.n + b.n)), "n", expected_sums),
        (Process("last", ("word",), last_two, "word string, last string"), "last", expected_last),
    ],
)
def test_results_survive_eviction_and_restore(
    tmp_path: Path, operator: Operator, column: str, expected: Callable[[list[tuple[str, int]]], list[Any]]
) -> None:
    rng = np.random.default_rng(5)
    rows = [(f"w{i}", int(n)) for i, n in zip(rng.integers(0, 400, 3000), rng.integers(-9, 9, 3000), strict=True)]
    batches = [
        pa.record_batch([list(c) for c in zip(*rows[i : i + 100], strict=True)], schema=SCHEMA)
        for i in range(0, 3000, 100)
    ]
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    output = operator.output_schema(SCHEMA)
    results: list[Any] = []
    handle: SnapshotHandle | None = None
    for generation, part in ((1, range(0, 15)), (2, range(12, 30))):
        state = SubtaskState(tmp_path / "work", storage.state_files, "count[0]", generation, max_entries=100)
        try:
            typed: KeyedState = state
            instance = create(operator, SCHEMA, typed)
            if handle is not None:
                state.restore(handle)
                del results[12 * 100 :]
            for number in part:
                if number == 12 and generation == 1:
                    handle = state.persist(state.freeze(1, OperatorState()))
                for out in instance.process(batches[number]):
                    results += plain(out, output).column(column).to_pylist()
                state.spill_if_needed()
        finally:
            state.close()
    assert results == expected(rows)
