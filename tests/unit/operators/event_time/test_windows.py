"""Tumbling windows against a plain model: rows out of order within the bound, cut and restored anywhere."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base import parts
from flinkplus.operators.base.columns import plain
from flinkplus.operators.event_time import slices
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from tests.examples import examples
from tests.handles import part_of
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema(
    [("word", pa.string()), ("k", pa.int32()), ("ts", pa.int64()), ("n", pa.int32()), ("x", pa.float64())]
)
SIZE_MS = 10
AGGREGATES = (
    Aggregate("rows", "count"),
    Aggregate("some", "count", "n"),
    Aggregate("total", "sum", "n"),
    Aggregate("least", "min", "n"),
    Aggregate("greatest", "max", "x"),
    Aggregate("mean", "mean", "n"),
    Aggregate("weight", "sum", "x"),
)
WINDOW = tumbling("window", ("word", "k"), "ts", SIZE_MS, AGGREGATES)
Row = tuple[Any, ...]

rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "é", None]),
        st.integers(0, 2),
        st.one_of(st.integers(-40, 60), st.none()),
        st.one_of(st.none(), st.integers(-100, 100)),
        st.one_of(st.none(), st.integers(-8, 8).map(lambda n: n / 4)),
    ),
    max_size=40,
)


def batch_of(rows: list[Row], encode: bool = False) -> pa.RecordBatch:
    arrays = [pa.array([row[i] for row in rows], type=f.type) for i, f in enumerate(SCHEMA)]
    if encode:
        arrays[0] = arrays[0].dictionary_encode()
    return pa.RecordBatch.from_arrays(arrays, names=SCHEMA.names)


def reckoned(rows: list[Row], start: int) -> list[dict[str, Any]]:
    """The output of one window; by word and k, null last, as the bytes of the keys are: 0 for null comes first."""
    groups = defaultdict(list)
    for row in rows:
        if row[2] is not None and row[2] // SIZE_MS * SIZE_MS == start:
            groups[row[0], row[1]].append(row)
    found = []
    for (word, k), members in groups.items():
        n = [row[3] for row in members if row[3] is not None]
        x = [row[4] for row in members if row[4] is not None]
        found.append(
            {
                "word": word,
                "k": k,
                "window_start": start,
                "window_end": start + SIZE_MS,
                "rows": len(members),
                "some": len(n),
                "total": sum(n) if n else None,
                "least": min(n, default=None),
                "greatest": max(x, default=None),
                "mean": sum(n) / len(n) if n else None,
                "weight": sum(x) if x else None,
            }
        )
    return sorted(
        found, key=lambda row: (row["word"] is not None, len(str(row["word"]).encode()), str(row["word"]), row["k"])
    )


def shown(batches: Any) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        table = plain(batch, WINDOW.output_schema(SCHEMA))
        for name in ("window_start", "window_end"):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(at).cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
        found += table.to_pylist()
    return found


@given(
    rows,
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["cut", "restart", "watermark"])), max_size=8),
    st.booleans(),
    st.sampled_from([0, 5, 65_536]),
    st.sampled_from([0, 3, 8_192]),
    st.sampled_from([2, 3, 8]),
)
@settings(max_examples=examples(300), deadline=None)
def test_windows_as_by_a_model(
    rows: list[Row], stops: list[tuple[int, str]], encode: bool, waiting: int, kept: int, together: int
) -> None:
    """At a stop the rows are cut; it restores a snapshot, or raises the watermark to the latest row less some bound."""
    state, ctx_late = FakeState(), 0
    with (
        mock.patch.object(parts, "MAX_WAITING_ROWS", waiting),
        mock.patch.object(parts, "KEPT_ROWS", kept),
        mock.patch.object(slices, "MERGED_PARTS", together),
    ):
        ctx = context(WINDOW, SCHEMA, state)
        instance = WINDOW.create(ctx)
        watermark_ms, in_time, out, expected = -1_000, [], [], []
        bounds = [(0, "cut"), *sorted((min(at, len(rows)), kind) for at, kind in stops), (len(rows), "cut")]
        for (a, _), (b, kind) in pairwise(bounds):
            part = rows[a:b]
            if part:
                assert list(instance.process(batch_of(part, encode))) == []
            for row in part:
                if row[2] is not None and row[2] // SIZE_MS * SIZE_MS + SIZE_MS <= watermark_ms:
                    ctx_late += 1
                else:
                    in_time.append(row)
            latest = max([row[2] for row in rows[:b] if row[2] is not None], default=None)
            if kind == "restart":
                saved = json.loads(json.dumps(instance.snapshot(1)))
                ctx_metrics, ctx = ctx.metrics, context(WINDOW, SCHEMA, state)
                ctx.metrics.update(ctx_metrics)
                instance = WINDOW.create(ctx)
                instance.restore(saved)
            elif kind == "watermark" and latest is not None and latest - 15 > watermark_ms:
                before, watermark_ms = watermark_ms, latest - 15
                out += shown(instance.on_watermark(watermark_ms))
                for start in range(-50, 70, SIZE_MS):
                    if before < start + SIZE_MS <= watermark_ms:
                        expected += reckoned(in_time, start)
        out += shown(instance.on_watermark(END_OF_TIME_MS))
        for start in range(-50, 70, SIZE_MS):
            if start + SIZE_MS > watermark_ms:
                expected += reckoned(in_time, start)
        assert out == expected
        assert ctx.metrics.get("late_rows", 0) == ctx_late
        assert ctx.metrics.get("rows_without_time", 0) == sum(row[2] is None for row in rows)
        instance.snapshot(2)
        assert all(objects.content == {} for objects in state.objects.values()), "nothing is left behind"


@pytest.mark.parametrize("cuts", [(), (1,), (2, 4)])
def test_not_a_number_is_the_largest_one_and_means_are_of_any_numbers(cuts: tuple[int, ...]) -> None:
    """As in Spark SQL."""
    large, nan = (1 << 60) + 1, math.nan
    aggregates = [Aggregate("low", "min", "x"), Aggregate("high", "max", "x"), Aggregate("mean", "mean", "ts")]
    window = tumbling("window", ("word",), "n", SIZE_MS, aggregates)
    instance = window.create(context(window, SCHEMA, FakeState()))
    x: dict[str, list[float | None]] = {
        "a": [nan, 2.0, None, 1.0, nan, None],
        "b": [nan, None, None, None, None, nan],
        "c": [None] * 6,
    }
    for first, end in pairwise((0, *cuts, 6)):
        given = [(word, 0, large, 1, value) for word in x for value in x[word][first:end]]
        list(instance.process(batch_of(given)))
    (out,) = instance.on_watermark(SIZE_MS)
    assert out.column("mean").to_pylist() == [float(large)] * 3
    assert [str(value) for value in out.column("low").to_pylist()] == ["1.0", "nan", "None"]
    assert [str(value) for value in out.column("high").to_pylist()] == ["nan", "nan", "None"]


def test_many_keys_on_rocksdb(tmp_path: Path) -> None:
    """Large parts leave memory, are merged, restored by another process, and come out whole."""
    storage = CheckpointStorage(str(tmp_path / "storage"))
    first = SubtaskState(tmp_path / "work", storage.state_files, "window[0]", 1)
    operator = tumbling("window", ("k",), "ts", 1_000, (Aggregate("total", "sum", "n"),))
    instance = operator.create(context(operator, SCHEMA, first))
    count = 60_000

    def batch(begin: int) -> pa.RecordBatch:
        numbers = pa.array(range(begin, begin + count))
        nulls = pa.nulls(count, pa.string())
        keys = pa.array([i * 7919 % 50_000 for i in range(begin, begin + count)], pa.int32())
        columns = [
            nulls,
            keys,
            pa.array([i % 2_000 for i in range(count)]),
            numbers.cast(pa.int32()),
            pa.nulls(count, pa.float64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    for begin in (0, count):
        list(instance.process(batch(begin)))
    handle = first.persist(first.freeze(1, OperatorState(operators={"operator": part_of(state=instance.snapshot(1))})))
    assert len(json.dumps(handle.operator_state.to_json())) < 550
    second = SubtaskState(tmp_path / "other", storage.state_files, "window[0]", 2)
    second.restore(handle)
    instance = operator.create(context(operator, SCHEMA, second))
    instance.restore(handle.operator_state.operators["operator"].state)
    list(instance.process(batch(2 * count)))
    totals: dict[tuple[int, int], int] = defaultdict(int)
    for i in range(3 * count):
        totals[i % count % 2_000 // 1_000, i * 7919 % 50_000] += i
    out = [row for batch in instance.on_watermark(END_OF_TIME_MS) for row in batch.to_pylist()]
    assert [(int(row["window_start"].timestamp()), row["k"], row["total"]) for row in out] == [
        (*key, total) for key, total in sorted(totals.items())
    ]
    first.close()
    second.close()


def test_sums_beyond_64_bits() -> None:
    big = 2**62
    schema = pa.schema([("k", pa.int32()), ("ts", pa.int64()), ("n", pa.int64())])
    operator = tumbling("window", ("k",), "ts", SIZE_MS, (Aggregate("total", "sum", "n"),))
    instance = operator.create(context(operator, schema, FakeState()))

    def add(*numbers: int) -> None:
        columns = [
            pa.array([1] * len(numbers), pa.int32()),
            pa.array([0] * len(numbers)),
            pa.array(numbers, pa.int64()),
        ]
        list(instance.process(pa.RecordBatch.from_arrays(columns, schema=schema)))

    add(big, big, -big)
    add(-big, big)
    add(big)
    with pytest.raises(UserFunctionError, match=r"window\[1\].*beyond 64 bits"):
        list(instance.on_watermark(SIZE_MS))
    instance = operator.create(context(operator, schema, FakeState()))
    with pytest.raises(UserFunctionError, match=r"window\[1\].*beyond 64 bits"):
        add(big, big)


def test_not_a_number_and_nothing() -> None:
    window = tumbling("window", ("k",), "ts", SIZE_MS, (Aggregate("m", "max", "x"), Aggregate("s", "mean", "x")))
    instance = window.create(context(window, SCHEMA, FakeState()))
    rows = [("a", 1, 0, 1, math.nan), ("a", 1, 0, 1, 2.0), ("a", 2, 0, 1, None)]
    list(instance.process(batch_of(rows)))
    ((one, two),) = [batch.to_pylist() for batch in instance.on_watermark(SIZE_MS)]
    assert math.isnan(one["m"]) and math.isnan(one["s"])
    assert (two["m"], two["s"]) == (None, None)


@pytest.mark.parametrize(
    ("aggregates", "column", "message"),
    [
        ((), "ts", "name at least one aggregate"),
        ((Aggregate("n", "median", "n"),), "ts", "'median' is not an aggregate"),
        ((Aggregate("n", "sum"),), "ts", "sum needs a column"),
        ((Aggregate("n", "sum", "word"),), "ts", "column 'word' is string; sum is of numbers"),
        ((Aggregate("n", "sum", "y"),), "ts", "no column 'y'"),
        ((Aggregate("word", "count"),), "ts", "the column 'word' twice"),
        ((Aggregate("n", "count"),), "word", "event time is a timestamp"),
    ],
)
def test_what_cannot_work(aggregates: tuple[Aggregate, ...], column: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tumbling("window", ("word",), column, SIZE_MS, aggregates).output_schema(SCHEMA)
