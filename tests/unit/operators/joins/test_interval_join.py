"""The interval join against two nested loops, however the input is cut, and through snapshots at any place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, InvariantViolation
from flinkplus.operators.base import parts
from flinkplus.operators.base.columns import plain
from flinkplus.operators.joins import pairing, sides, stored_rows, timed
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.hashing import hash_keys
from tests.examples import examples
from tests.handles import part_of
from tests.unit.operators.operator_fakes import FakeState, context

LEFT = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("n", pa.int32())])
RIGHT = pa.schema([("k", pa.string()), ("at", pa.timestamp("us")), ("n", pa.int32())])
Row = tuple[str | None, int | None, int]


def join(lower_ms: int, upper_ms: int) -> KeyedJoin:
    left, right = JoinSide(LEFT, ("k",), "ts", "left_"), JoinSide(RIGHT, ("k",), "at", "right_")
    return KeyedJoin("join", ("k",), left, right, Bounds(lower_ms, upper_ms))


def batch_of(which: int, rows: list[Row], encode: bool = False) -> pa.RecordBatch:
    keys = pa.array([row[0] for row in rows], pa.string())
    times = pa.array([row[1] for row in rows], pa.int64())
    if which:
        times = pa.array([None if row[1] is None else row[1] * 1000 for row in rows], pa.int64()).cast(RIGHT[1].type)
    numbers = pa.array([row[2] for row in rows], pa.int32())
    return pa.RecordBatch.from_arrays(
        [keys.dictionary_encode() if encode else keys, times, numbers], names=(LEFT, RIGHT)[which].names
    )


class Model:
    """Both sides in lists, nothing is ever dropped from them."""

    def __init__(self, lower_ms: int, upper_ms: int) -> None:
        self.bounds = lower_ms, upper_ms
        self.rows: tuple[list[tuple[str | None, int, int]], ...] = ([], [])
        self.watermark_ms = -(2**62)
        self.late = self.without = 0

    def take(self, which: int, row: Row) -> list[tuple[Any, ...]]:
        key, time, number = row
        if time is None:
            self.without += 1
            return []
        if time < self.watermark_ms:
            self.late += 1
            return []
        self.rows[which].append((key, time, number))
        lower, upper = self.bounds if which == 0 else (-self.bounds[1], -self.bounds[0])
        others = [r for r in self.rows[1 - which] if r[0] == key is not None and lower <= r[1] - time <= upper]
        found: list[tuple[Any, ...]] = []
        for _, other_time, other_number in sorted(others, key=lambda r: r[1]):
            if which == 0:
                found.append((key, time, number, other_time, other_number))
            else:
                found.append((key, other_time, other_number, time, number))
        return found


def shown(operator: KeyedJoin, batches: Any) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        table = plain(batch, operator.output_schema(LEFT))
        assert table.schema.names == ["k", "ts", "left_n", "at", "right_n"]
        table = table.set_column(3, "at", table.column(3).cast(pa.timestamp("ms")).cast(pa.int64()))
        found += [tuple(row.values()) for row in table.to_pylist()]
    return found


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.one_of(st.integers(-30, 60), st.none()), st.integers(0, 99)),
    min_size=1,
    max_size=8,
)
events = st.lists(
    st.one_of(st.tuples(st.integers(0, 1), rows), st.tuples(st.integers(0, 1), rows), st.integers(-30, 60), st.none()),
    max_size=20,
)


@given(
    events,
    st.sampled_from([(-5, 5), (0, 0), (3, 20), (-20, -3), (-100, 100), (0, 7)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 4, 1_000]),
    st.sampled_from([0, 6, 1 << 20]),
)
@settings(max_examples=examples(400), deadline=None)
def test_pairs_as_by_two_loops(
    events: list[Any], bounds: tuple[int, int], encode: bool, collide: bool, shelf_ms: int, kept: int
) -> None:
    """A pair is a batch for a side, a number raises the watermark to it, ``None`` is a snapshot and its restoring."""
    state, operator, model = FakeState(), join(*bounds), Model(*bounds)
    hashes = (lambda keys: np.zeros(len(keys), np.uint64)) if collide else hash_keys
    with (
        mock.patch.object(timed, "LEAST_SHELF_MS", shelf_ms),
        mock.patch.object(stored_rows, "KEPT_ROWS", kept),
        mock.patch.object(pairing, "MAX_PAIRS", 3),
        mock.patch.object(parts, "MAX_WAITING_ROWS", kept),
        mock.patch.object(sides, "hash_keys", hashes),
    ):
        ctx = context(operator, LEFT, state)
        instance = operator.create(ctx)
        for event in events:
            if event is None:
                saved, metrics = json.loads(json.dumps(instance.snapshot(1))), ctx.metrics
                ctx = context(operator, LEFT, state)
                ctx.metrics.update(metrics)
                instance = operator.create(ctx)
                instance.restore(saved)
            elif isinstance(event, tuple):
                expected = [pair for row in event[1] for pair in model.take(event[0], row)]
                assert (
                    shown(operator, instance.process_input(event[0], batch_of(event[0], event[1], encode))) == expected
                )
            elif event > model.watermark_ms:
                model.watermark_ms = event
                assert list(instance.on_watermark(event)) == []
        assert ctx.metrics.get("late_rows", 0) == model.late
        assert ctx.metrics.get("rows_without_time", 0) == model.without
        list(instance.on_watermark(END_OF_TIME_MS))
        instance.snapshot(2)
        assert all(objects.content == {} for objects in state.objects.values()), "nothing is left behind"


def test_what_can_match_nothing_any_more_is_dropped() -> None:
    state, operator = FakeState(), join(-5_000, 5_000)
    instance = operator.create(context(operator, LEFT, state))
    for second in range(100):
        rows: list[Row] = [(f"k{i}", second * 1_000 + i, i) for i in range(50)]
        for which in (0, 1):
            list(instance.process_input(which, batch_of(which, rows)))
        list(instance.on_watermark(second * 1_000))
    saved: Any = instance.snapshot(1)
    kept = sum(
        rows for side in ("left", "right") for _, found in saved[side]["rows"]["rows"]["shelves"] for _, rows in found
    )
    assert kept <= 2 * 50 * 9
    assert len(json.dumps(saved)) < 4_000
    assert instance.behind_ms == 5_000


def test_many_rows_on_rocksdb(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path / "storage"))
    first = SubtaskState(tmp_path / "work", storage.state_files, "join[0]", 1)
    operator = join(0, 10)
    instance = operator.create(context(operator, LEFT, first))
    left: list[Row] = [(f"k{i % 1_000}", i // 10, i) for i in range(30_000)]
    right: list[Row] = [(f"k{i % 1_000}", i // 10 + 5, i) for i in range(30_000)]
    for start in range(0, len(left), 5_000):
        assert list(instance.process_input(0, batch_of(0, left[start : start + 5_000]))) == []
    handle = first.persist(first.freeze(1, OperatorState(operators={"operator": part_of(state=instance.snapshot(1))})))
    second = SubtaskState(tmp_path / "other", storage.state_files, "join[0]", 2)
    second.restore(handle)
    instance = operator.create(context(operator, LEFT, second))
    instance.restore(handle.operator_state.operators["operator"].state)
    pairs = shown(operator, instance.process_input(1, batch_of(1, right)))
    assert pairs == [(key, i // 10, i, i // 10 + 5, i) for i, (key, _, _) in enumerate(left)]
    first.close()
    second.close()


def test_columns_of_the_same_name() -> None:
    other = pa.schema([("id", pa.string()), ("k", pa.int32()), ("ts", pa.int64())])
    left, right = JoinSide(LEFT, ("k",), "ts", "left_"), JoinSide(other, ("id",), "ts", "right_")
    operator = KeyedJoin("join", ("k",), left, right, Bounds(0, 0))
    operator.check()
    assert operator.output_schema(LEFT).names == ["left_k", "left_ts", "n", "id", "right_k", "right_ts"]


@pytest.mark.parametrize(
    ("right", "bounds", "message"),
    [
        (JoinSide(RIGHT, ("n",), "at", "r_"), (0, 1), r"the keys \('k',\) and \('n',\) are of different types: string"),
        (JoinSide(RIGHT, ("k",), "n", ""), (1, 0), "lower .1 ms. is above upper .0 ms."),
        (JoinSide(RIGHT, ("k",), "k", "r_"), (0, 1), "column 'k' is string; event time is"),
        (JoinSide(RIGHT, ("k", "n"), "at", "r_"), (0, 1), "are of different types"),
        (JoinSide(RIGHT, ("k",), "at", "left_"), (0, 1), "the column 'left_n' twice; give other prefixes"),
    ],
)
def test_what_cannot_be_joined(right: JoinSide, bounds: tuple[int, int], message: str) -> None:
    operator = KeyedJoin("join", ("k",), JoinSide(LEFT, ("k",), "ts", "left_"), right, Bounds(*bounds))
    with pytest.raises(ConfigurationError, match=message):
        operator.check()
        operator.output_schema(LEFT)


def test_a_batch_of_neither_side() -> None:
    operator = join(0, 0)
    with pytest.raises(InvariantViolation, match="neither side"):
        operator.create(context(operator, LEFT, FakeState())).process(batch_of(0, [("a", 1, 1)]))
