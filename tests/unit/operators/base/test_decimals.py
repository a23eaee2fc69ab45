"""Decimals as keys and in sums: exact, against Python's own, and of the types that Spark SQL gives them."""

from __future__ import annotations

from collections import defaultdict
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import pairwise
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import UserFunctionError
from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.keys import encode_keys, encode_values
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.keyed import keyed
from flinkplus.operators.keyed.aggregates import Aggregate, Groups
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.top import Top
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from tests.examples import examples
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.operators.operator_fakes import FakeState, create, run

EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
KEY, SMALL, LARGE = pa.decimal128(9, 3), pa.decimal128(12, 2), pa.decimal128(38, 4)
SCHEMA = pa.schema([("k", KEY), ("ts", pa.int64()), ("small", SMALL), ("large", LARGE)])


def of_scale(scale: int, digits: int) -> st.SearchStrategy[Decimal]:
    limit = 10**digits - 1
    numbers = st.one_of(st.integers(-9, 9), st.integers(-limit, limit), st.sampled_from([limit, -limit]))
    return numbers.map(lambda n: EXACT.scaleb(Decimal(n), -scale))


rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["0", "-1.5", "1.500", "99999.999"]).map(Decimal)),
        st.integers(0, 29),
        st.one_of(st.none(), of_scale(2, 12)),
        st.one_of(st.none(), of_scale(4, 36)),
    ),
    min_size=1,
    max_size=30,
)
cuts = st.lists(st.integers(0, 30), max_size=4)


def batches_of(rows: list[tuple[Any, ...]], cuts: list[int]) -> list[pa.RecordBatch]:
    arrays = [pa.array([row[i] for row in rows], type=field.type) for i, field in enumerate(SCHEMA)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [whole.slice(a, b - a) for a, b in pairwise(bounds)]


def added(values: list[Decimal]) -> Decimal | None:
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total if values else None


@given(rows, cuts, st.sampled_from([0, keyed.FEW_ROWS]))
@settings(max_examples=examples(150))
def test_running_sums_are_those_of_python(rows: list[tuple[Any, ...]], cuts: list[int], few_rows: int) -> None:
    seen: dict[Any, list[Decimal]] = defaultdict(list)
    expected = []
    for key, _, small, _ in rows:
        seen[key] += [] if small is None else [small]
        expected.append(added(seen[key]))
    with mock.patch.multiple(keyed, FEW_ROWS=few_rows, FEW_NUMBERS=few_rows):
        summed = run(Sum("sum", ("k",), "small"), batches_of(rows, cuts), SCHEMA, FakeState())
        counted = run(Count("count", ("k",)), batches_of(rows, cuts), SCHEMA, FakeState())
    assert [row["sum"] for row in summed] == expected
    keys = [row[0] for row in rows]
    assert [row["count"] for row in counted] == [keys[: at + 1].count(key) for at, key in enumerate(keys)]


@given(rows, cuts)
@settings(max_examples=examples(150))
def test_aggregates_of_windows_are_those_of_python(rows: list[tuple[Any, ...]], cuts: list[int]) -> None:
    kinds = ("sum", "min", "max", "mean")
    aggregates = [Aggregate(f"{kind}_{of}", kind, of) for of in ("small", "large") for kind in kinds]
    window = tumbling("window", ("k",), "ts", 10, tuple(aggregates))
    instance = create(window, SCHEMA, FakeState())
    for batch in batches_of(rows, cuts):
        list(instance.process(batch))
    output = window.output_schema(SCHEMA)
    assert output.field("sum_small").type == pa.decimal128(22, 2)
    assert output.field("mean_small").type == pa.decimal128(16, 6)
    assert output.field("sum_large").type == pa.decimal128(38, 4)
    assert output.field("mean_large").type == pa.decimal128(38, 8)
    groups = defaultdict(list)
    for row in rows:
        groups[row[1] // 10, row[0]].append(row)
    means = [mean_of(values_of(group, 3)) for group in groups.values()]
    if any(mean is not None and abs(mean) >= 10**30 for mean in means):
        with pytest.raises(UserFunctionError, match="digits"):
            list(instance.on_watermark(END_OF_TIME_MS))
        return
    found = [row for batch in instance.on_watermark(END_OF_TIME_MS) for row in plain(batch, output).to_pylist()]
    assert len(found) == len(groups)
    for row in found:
        members = groups[row["window_start"].microsecond // 10_000, row["k"]]
        for of, at, scale in (("small", 2, 6), ("large", 3, 8)):
            values = values_of(members, at)
            mean = mean_of(values)
            rounded = None if mean is None else mean.quantize(Decimal(1).scaleb(-scale), context=EXACT)
            expected = (added(values), min(values, default=None), max(values, default=None), rounded)
            assert tuple(row[f"{kind}_{of}"] for kind in kinds) == expected


def mean_of(values: list[Decimal]) -> Decimal | None:
    total = added(values)
    return None if total is None else EXACT.divide(total, Decimal(len(values)))


def values_of(members: list[tuple[Any, ...]], at: int) -> list[Decimal]:
    return [row[at] for row in members if row[at] is not None]


@given(st.lists(st.one_of(st.none(), of_scale(4, 38)), max_size=20), st.integers(0, 5))
def test_unscaled_and_back(values: list[Decimal | None], skipped: int) -> None:
    array = pa.array(values, LARGE).slice(skipped)
    numbers = decimals.unscaled(array)
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    again = decimals.from_unscaled(numbers, LARGE, nulls)
    again.validate(full=True)
    assert again.equals(array)
    known = [value for value in values[skipped:] if value is not None]
    keys = [key for key in encode_values(array).to_pylist() if key]
    assert sorted(range(len(known)), key=known.__getitem__) == sorted(range(len(known)), key=keys.__getitem__)
    assert len(set(keys)) == len(set(known))


def test_keys_are_equal_as_numbers_and_null_is_a_key() -> None:
    batch = pa.record_batch({"k": pa.array([Decimal("1.5"), Decimal("1.500"), None, Decimal("-1.5")], KEY)})
    key = encode_keys(batch, ("k",))
    assert key.codes.tolist() == [0, 0, 1, 2]
    assert [len(name) for name in key.keys] == [16, 0, 16]


@pytest.mark.parametrize("dtype", [LARGE, pa.decimal128(30, 4)])
def test_a_sum_with_too_many_digits_is_an_error(dtype: pa.DataType) -> None:
    limit = 10**dtype.precision - 1
    value = EXACT.scaleb(Decimal(limit), -4)
    schema = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("x", dtype)])
    batch = pa.record_batch([["a", "a"], pa.array([0, 0]), pa.array([value, value], dtype)], schema=schema)
    state = FakeState()
    if dtype.precision + 10 <= 38 or limit * 2 < 10**38:
        assert run(Sum("sum", ("k",), "x"), [batch], schema, state)[-1]["sum"] == EXACT.add(value, value)
        return
    with pytest.raises(UserFunctionError, match=r"operator 'sum'.* goes beyond 38 digits.*column 'x'"):
        run(Sum("sum", ("k",), "x"), [batch], schema, state)
    assert state.objects["sum"].content == {}
    instance = create(tumbling("window", ("k",), "ts", 10, (Aggregate("n", "sum", "x"),)), schema, FakeState())
    with pytest.raises(UserFunctionError, match=r"operator 'window'.*digits of its decimal type.*column 'x'"):
        list(instance.process(batch))


@pytest.mark.parametrize("operator", [Sum("sum", ("k",), "x"), Top("top", ("k",), 2, "x", "x")], ids=lambda o: o.name)
def test_what_cannot_be_exact_is_refused(operator: Operator) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.decimal256(50, 2))])
    with pytest.raises(Exception, match="x'"):
        operator.output_schema(schema)


def test_items_of_a_ranking_may_be_decimals() -> None:
    schema = pa.schema([("item", KEY), ("n", pa.int64())])
    batch = pa.record_batch([pa.array([Decimal("1.5"), Decimal("2"), Decimal("1.500")], KEY), [1, 2, 3]], schema=schema)
    found = run(Top("top", (), 2, "n", "item"), [batch], schema, FakeState())
    assert [(row["rank"], row["item"], row["n"]) for row in found][-2:] == [
        (1, Decimal("1.5"), 3),
        (2, Decimal("2"), 2),
    ]


@pytest.mark.skipif(not hasattr(pa, "decimal64"), reason="this version of pyarrow has no short decimals")
@pytest.mark.parametrize("short", ["decimal32(7, 2)", "decimal64(12, 2)"])
@pytest.mark.parametrize("kind", ["min", "max", "sum", "mean"])
def test_short_decimals_come_to_what_long_ones_do(short: str, kind: str) -> None:
    dtype = eval(f"pa.{short}")
    values = [Decimal("1.10"), Decimal("2.20"), None, Decimal("-3.30")]
    results = []
    for given_as in (dtype, pa.decimal128(dtype.precision, dtype.scale)):
        schema = pa.schema([("d", given_as)])
        batch = pa.record_batch([pa.array(values, given_as)], schema=schema)
        aggregate = Aggregate("out", kind, "d")
        partials = aggregate.first(batch, Groups.of(np.array([0, 1, 2, 3])), aggregate.partial_types(schema))
        result = aggregate.result(partials, aggregate.result_type(schema))
        result.validate(full=True)
        assert result.type == aggregate.result_type(schema)
        results.append(result.to_pylist())
    assert results[0] == results[1]
