"""Deduplication against a dict of expiries: any batches, snapshots and restores between them, a clock of our own."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import KeyedState, OperatorInstance
from flinkplus.operators.keyed import deduplicate, keyed
from flinkplus.operators.keyed.deduplicate import Deduplicate
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.state import CheckpointStorage, SubtaskState
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
IDS = st.one_of(st.none(), st.integers(0, 30).map(str))
STEPS = st.lists(
    st.tuples(st.lists(IDS, min_size=1, max_size=12), st.sampled_from([0, 1, 3, 10, 25]), st.booleans()), max_size=25
)
"""Rows of a batch, milliseconds since the batch before, whether a snapshot is taken and restored first."""


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.ms


class Model:
    """The rules of the module with a dict."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms
        self.expiries: dict[Any, float] = {}

    def keeps(self, key: Any, now: int) -> bool:
        if self.expiries.get(key, 0) > now:
            return False
        self.expiries[key] = float("inf") if self._ttl_ms is None else now + self._ttl_ms
        return True

    def alive(self, now: int) -> int:
        return sum(expiry > now for expiry in self.expiries.values())


def create(ttl_ms: int | None, state: KeyedState, clock: Clock) -> OperatorInstance:
    operator = Deduplicate("dedup", ("id",), ttl_ms)
    ctx = context(operator, SCHEMA, state)
    ctx.now_ms = clock
    return operator.create(ctx)


def batch_of(ids: list[Any], first: int, encode: bool = False) -> pa.RecordBatch:
    column = pa.array(ids, pa.string())
    columns = [column.dictionary_encode() if encode else column, pa.array(range(first, first + len(ids)), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def kept_of(instance: OperatorInstance, batch: pa.RecordBatch) -> list[int]:
    out = list(instance.process(batch))
    for each in out:
        assert each.num_rows > 0
        each.validate(full=True)
    return [n for each in out for n in plain(each, SCHEMA).column("n").to_pylist()]


@contextmanager
def sizes(few_rows: int, chunk_keys: int) -> Iterator[None]:
    with (
        mock.patch.multiple(keyed, FEW_ROWS=few_rows, FEW_NUMBERS=few_rows),
        mock.patch.object(deduplicate, "CHUNK_KEYS", chunk_keys),
    ):
        yield


@given(
    STEPS, st.sampled_from([None, 1, 5, 20]), st.booleans(), st.sampled_from([0, 5, keyed.FEW_ROWS]), st.integers(1, 5)
)
@settings(max_examples=examples(300), deadline=None)
def test_as_with_a_dict(steps: Any, ttl_ms: int | None, encode: bool, few_rows: int, chunk_keys: int) -> None:
    clock, model, state = Clock(), Model(ttl_ms), FakeState()
    number = 0
    with sizes(few_rows, chunk_keys):
        instance = create(ttl_ms, state, clock)
        for ids, pause_ms, restored in steps:
            if restored:
                saved = json.loads(json.dumps(instance.snapshot(1)))
                state = copy.deepcopy(state)
                instance = create(ttl_ms, state, clock)
                instance.restore(saved)
            clock.ms += pause_ms
            expected = [n for n, key in enumerate(ids, number) if model.keeps(key, clock.ms)]
            assert kept_of(instance, batch_of(ids, number, encode)) == expected
            number += len(ids)
        assert clock.readings == (0 if ttl_ms is None else len(steps))
        assert len(state.numbers["dedup"].content()) >= model.alive(clock.ms)
        if ttl_ms is not None:
            assert_all_goes(instance, state, clock)


def assert_all_goes(instance: OperatorInstance, state: FakeState, clock: Clock) -> None:
    """When time goes on, every key leaves, and what stood in the queue too."""
    for _ in range(12):
        clock.ms += 100
        assert kept_of(instance, batch_of(["the only one"] * 20, 0)) == [0]
    assert len(state.numbers["dedup"].content()) == 1
    assert len(state.objects["dedup/expiry"].content) <= 1


def test_a_row_exactly_at_the_end_of_its_time_is_new() -> None:
    clock = Clock()
    instance = create(10, FakeState(), clock)
    assert kept_of(instance, batch_of(["a", "a"], 0)) == [0]
    clock.ms += 9
    assert kept_of(instance, batch_of(["a"], 2)) == []
    clock.ms += 1
    assert kept_of(instance, batch_of(["a", "a"], 3)) == [3]
    clock.ms += 9
    assert kept_of(instance, batch_of(["a"], 5)) == []


def test_after_a_long_silence_a_batch_removes_some_and_the_next_ones_the_rest() -> None:
    clock, state = Clock(), FakeState()
    instance = create(10, state, clock)
    many = [str(i) for i in range(3000)]
    assert kept_of(instance, batch_of(many, 0)) == list(range(3000))
    clock.ms += 1000
    left = [3000]
    while left[-1] > 1:
        assert kept_of(instance, batch_of(["x"], 0)) == ([0] if len(left) == 1 else [])
        left.append(len(state.numbers["dedup"].content()))
    assert max(before - after for before, after in pairwise(left)) <= deduplicate.CHUNK_KEYS
    assert len(left) <= 3000 // deduplicate.CHUNK_KEYS + 3
    assert kept_of(instance, batch_of(many[:1000], 0)) == list(range(1000))


def test_rows_go_on_as_they_came() -> None:
    """Nothing is copied when nothing is dropped, and a dictionary stays one."""
    instance = create(None, FakeState(), Clock())
    batch = batch_of([str(i) for i in range(200)], 0, encode=True)
    (out,) = instance.process(batch)
    assert out is batch
    (out,) = instance.process(batch_of([str(i) for i in range(199, 400)], 0, encode=True))
    assert out.num_rows == 200
    assert pa.types.is_dictionary(out.schema.field("id").type)
    assert list(instance.process(batch.slice(0, 0))) == []


@pytest.mark.parametrize("ttl_ms", [None, 300])
@pytest.mark.parametrize("max_entries", [50, 100_000])
def test_on_rocksdb_with_restores(ttl_ms: int | None, max_entries: int) -> None:
    """More keys than fit in memory; every now and then everything goes back to the last checkpoint."""
    rng = np.random.default_rng(3)
    clock, model = Clock(), Model(ttl_ms)
    with tempfile.TemporaryDirectory() as folder, sizes(keyed.FEW_ROWS, 32):
        storage = CheckpointStorage(Path(folder) / "checkpoints")
        storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)

        def open_state(generation: int) -> SubtaskState:
            return SubtaskState(
                Path(folder) / "work", storage.state_files, "dedup[0]", generation, max_entries=max_entries
            )

        state = open_state(1)
        try:
            instance = create(ttl_ms, state, clock)
            back: tuple[SnapshotHandle, Any, Model] | None = None
            for number in range(120):
                clock.ms += 10
                ids = [str(i) for i in rng.integers(0, 3000, int(rng.choice([7, 150])))]
                expected = [n for n, key in enumerate(ids) if model.keeps(key, clock.ms)]
                assert kept_of(instance, batch_of(ids, 0)) == expected
                state.spill_if_needed()
                if number % 20 == 9:
                    saved = json.loads(json.dumps(instance.snapshot(number)))
                    handle = state.persist(state.freeze(number, OperatorState()))
                    back = handle, saved, copy.deepcopy(model)
                if number % 40 == 35:
                    assert back is not None
                    state.close()
                    state = open_state(number)
                    instance = create(ttl_ms, state, clock)
                    state.restore(back[0])
                    instance.restore(back[1])
                    model = copy.deepcopy(back[2])
            alive, held = model.alive(clock.ms), state.number_state("dedup").live_keys
            assert alive <= held <= (alive if ttl_ms is None else 1.2 * alive + 200)
        finally:
            state.close()


def test_several_columns_and_what_cannot_be_a_key() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(pa.int64()))])
    operator = Deduplicate("dedup", ("a", "b"), None)
    batch = pa.record_batch([["x", "x", "x", None], [1, 2, 1, None], [[], [], [1], []]], schema=schema)
    (out,) = operator.create(context(operator, schema, FakeState())).process(batch)
    assert out.to_pylist() == [
        {"a": "x", "b": 1, "c": []},
        {"a": "x", "b": 2, "c": []},
        {"a": None, "b": None, "c": []},
    ]
    assert operator.output_schema(schema) == schema
    with pytest.raises(ConfigurationError, match="list"):
        Deduplicate("dedup", ("c",)).output_schema(schema)


@given(st.lists(st.lists(st.integers(-4, 4), min_size=1, max_size=20), max_size=6), st.sampled_from([0, 10, 100]))
def test_keys_that_are_whole_numbers(batches: list[list[int]], few_rows: int) -> None:
    """Their rows are found without their bytes."""
    instance, seen, n = create(None, FakeState(), Clock()), set[int](), 0
    for ids in batches:
        batch = pa.record_batch({"id": pa.array(ids), "n": pa.array(range(n, n + len(ids)))})
        with sizes(few_rows, 32):
            kept = [row for out in instance.process(batch) for row in out.column("n").to_pylist()]
        assert kept == [n + at for at, key in enumerate(ids) if key not in seen and key not in ids[:at]]
        seen.update(ids)
        n += len(ids)
