"""Joins whose state is larger than what memory may hold, and keys with very many rows, on RocksDB."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from flinkplus.operators.joins import stored_rows
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from tests.unit.operators.operator_fakes import create

pytestmark = pytest.mark.long
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
SIDES = JoinSide(SCHEMA, ("k",), None, "left_"), JoinSide(SCHEMA, ("k",), None, "right_")
JOIN = KeyedJoin("join", ("k",), *SIDES, Bounds(), how="full")
MB = 1 << 20


def batch(keys: np.ndarray, first: int, width: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + len(keys))
    texts = pa.array([f"{number:0{width}d}" for number in numbers.tolist()])
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(numbers), texts], schema=SCHEMA)


def state_of(tmp_path: Path, max_entries: int) -> SubtaskState:
    storage = CheckpointStorage(str(tmp_path / "storage"))
    return SubtaskState(tmp_path / "work", storage.state_files, "join[0]", 1, max_entries=max_entries)


def test_a_state_that_does_not_fit(tmp_path: Path) -> None:
    """Some 150 MB of rows where memory may hold 16 MB of them; each row is found, once."""
    rng = np.random.default_rng(5)
    with mock.patch.object(stored_rows, "KEPT_ROWS", 1 << 16), mock.patch.object(stored_rows, "GATHERED_ROWS", 1 << 15):
        state = state_of(tmp_path, max_entries=1 << 16)
        instance = create(JOIN, SCHEMA, state)
        before, most, keys = pa.total_allocated_bytes(), 0, rng.permutation(300_000)
        for first in range(0, len(keys), 5_000):
            assert list(instance.process_input(0, batch(keys[first : first + 5_000], first, 400))) == []
            state.spill_if_needed()
            most = max(most, pa.total_allocated_bytes() - before)
        assert most < 110 * MB
        wanted = keys[::997]
        found = [out.column("left_n").to_pylist() for out in instance.process_input(1, batch(wanted, 0, 1))]
        assert sorted(number for numbers in found for number in numbers) == list(range(0, len(keys), 997))
        state.close()


def test_a_key_with_very_many_rows(tmp_path: Path) -> None:
    state = state_of(tmp_path, max_entries=1 << 16)
    with mock.patch.object(stored_rows, "KEPT_ROWS", 1 << 16):
        instance = create(JOIN, SCHEMA, state)
        for first in range(0, 600_000, 50_000):
            assert list(instance.process_input(0, batch(np.zeros(50_000, np.int64), first, 40))) == []
            state.spill_if_needed()
        before, pairs, most = pa.total_allocated_bytes(), 0, 0
        for out in instance.process_input(1, batch(np.zeros(3, np.int64), 0, 40)):
            assert out.num_rows <= 65_536
            numbers = out.column("left_n").to_numpy()
            assert (np.diff(numbers) == 1).all() and numbers[0] == pairs % 600_000, "in the order in which they came"
            pairs += out.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
        assert pairs == 3 * 600_000
        assert most < 100 * MB
        state.close()
