"""Where values could depend on more than their row, or take far too long: batches, many parts, time zones, errors."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.expressions.binding import bind
from flinkplus.operators.expressions.bound import FAILURES, RowValues
from flinkplus.operators.expressions.column import expression


def values(text: str, column: pa.Array) -> list[Any]:
    """An expression on the only column ``v``, and that each row has the same value alone."""
    batch = pa.record_batch([column], names=["v"])
    bound = bind(expression(text), batch.schema)
    found = bound.array(RowValues(batch, lambda: 0))
    assert found.type == bound.dtype
    alone = [bound.array(RowValues(batch.slice(at, 1), lambda: 0)) for at in range(batch.num_rows)]
    assert [str(one.to_pylist()[0]) for one in alone] == list(map(str, found.to_pylist()))
    if pa.types.is_timestamp(found.type):  # instants: times that are repeated are not compared between zones
        found = found.cast(pa.timestamp("us", "UTC"))
    return list(found.to_pylist())


@pytest.mark.parametrize("text", ["cast(v as string)", "round(v, 1)", "bround(v, 2)", "to_json(array(v))"])
@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64()])
def test_zero_and_minus_zero_beside_each_other_keep_their_own_values(text: str, dtype: pa.DataType) -> None:
    values(text, pa.array([-0.0, 0.0, 1.5, -0.0, None], dtype))


def test_many_arguments_are_computed_once_each() -> None:
    many = ", ".join(["v", *map(str, range(60))])
    numbers = pa.array([500, None, -1], pa.int64())
    assert values(f"greatest({many})", numbers) == [500, 59, 59]
    assert values(f"least({many})", numbers) == [0, 0, -1]
    deep = "v"
    for at in range(25):
        deep = f"nullif({deep}, {at})"
    assert values(deep, numbers) == [500, None, -1]


UTC = datetime.timezone.utc


def _utc(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def test_an_hour_that_is_repeated_is_cut_like_any_other() -> None:
    twice = [_utc(2024, 10, 27, 0, 30), _utc(2024, 10, 27, 1, 30), _utc(2024, 3, 31, 1, 30), None]
    column = pa.array(twice, pa.timestamp("us", "Europe/Berlin"))
    assert values("date_trunc('hour', v)", column) == [
        _utc(2024, 10, 27), _utc(2024, 10, 27, 1), _utc(2024, 3, 31, 1), None,
    ]  # fmt: skip
    assert values("date_trunc('day', v)", column) == [
        _utc(2024, 10, 26, 22), _utc(2024, 10, 26, 22), _utc(2024, 3, 30, 23), None,
    ]  # fmt: skip


def test_a_time_that_is_left_out_is_as_long_after_the_gap_as_it_says() -> None:
    clock = [datetime.datetime(2024, 3, 31, 2, 30), datetime.datetime(2024, 10, 27, 2, 30), None]
    assert values("to_utc_timestamp(cast(v as timestamp), 'Europe/Berlin')", pa.array(clock, pa.timestamp("us"))) == [
        _utc(2024, 3, 31, 1, 30), _utc(2024, 10, 27, 0, 30), None,
    ]  # fmt: skip


def test_dates_and_texts_beside_a_column_with_a_zone_are_of_that_zone() -> None:
    column = pa.array([_utc(2024, 7, 1, 22, 30)], pa.timestamp("us", "Europe/Berlin"))
    assert values("v >= cast(v as date)", column) == [True]
    assert values("v = '2024-07-02 00:30:00'", column) == [True]
    assert values("v between date '2024-07-02' and '2024-07-02 01:00:00'", column) == [True]
    assert values("coalesce(v, date '2024-07-02')", column) == [_utc(2024, 7, 1, 22, 30)]


TEXTS = pa.array(
    ["0x10", "+5", " -7 ", "\u0663", "1_0", "2023-02-29", "2024-02-29", "2024-2-9", "29.02.2023 10", "29.02.2024 10",
     "29.2.2024 1", None, ""]
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("try_cast(v as int)", {1: 5, 2: -7}),
        ("try_cast(v as double)", {1: 5.0, 2: -7.0}),
        ("try_cast(v as date)", {6: datetime.date(2024, 2, 29), 7: datetime.date(2024, 2, 9)}),
        ("try_to_date(v, 'dd.MM.yyyy HH')", {9: datetime.date(2024, 2, 29)}),
        ("try_to_timestamp(v, 'yyyy-MM-dd')", {6: _utc(2024, 2, 29)}),
    ],
)
def test_text_has_exactly_one_value_or_is_an_error(text: str, wanted: dict[int, Any]) -> None:
    assert values(text, TEXTS) == [wanted.get(at) for at in range(len(TEXTS))]
    strict = bind(expression(text.removeprefix("try_")), pa.schema([("v", pa.string())]))
    for at, value in enumerate(TEXTS.to_pylist()):
        row = RowValues(pa.record_batch([TEXTS.slice(at, 1)], names=["v"]), lambda: 0)
        if at in wanted or value is None:
            assert strict.array(row).to_pylist() == [wanted.get(at)]
        else:
            with pytest.raises(FAILURES):
                strict.array(row)


@pytest.mark.parametrize("text", ["try_cast('x' as int)", "try_to_date('2024-13-01')", "try_to_timestamp('x', 'yyyy')"])
def test_constants_that_cannot_be_cast_are_null_when_tried(text: str) -> None:
    assert values(text, pa.array([1])) == [None]


def test_structs_that_differ_in_what_may_be_null_have_a_common_type() -> None:
    rows = [{"a": 1, "b": {"c": ["x"]}}, None, {"a": None, "b": {"c": None}}]
    column = pa.array(rows, pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.string()))]))]))
    other = "struct(0 as a, struct(array('y') as c) as b)"
    assert values(f"coalesce(v, {other})", column) == [rows[0], {"a": 0, "b": {"c": ["y"]}}, rows[2]]
    assert values(f"element_at(array({other}, v), 2)", column) == rows
    assert values(f"case when v.a = 1 then map('k', {other}) else map('k', v) end['k'].a", column) == [0, None, None]
    with pytest.raises(ConfigurationError, match="has no type for"):
        values("coalesce(v, struct(0 as z, v.b as b))", column)


@pytest.mark.parametrize(
    "text",
    ["v + interval 999999999 day", "interval 99999999 day + interval 99999999 day > interval 1 day",
     "regexp_replace(cast(v as string), 'b', '$1')"],
)  # fmt: skip
def test_what_no_row_could_have_is_refused_before_anything_runs(text: str) -> None:
    with pytest.raises(ConfigurationError):
        values(text, pa.array([_utc(2024, 1, 1)], pa.timestamp("us", "UTC")))


def test_json_has_the_digits_of_the_type() -> None:
    column = pa.array([0.1, -0.0, 1e10, None, float("nan")], pa.float32())
    assert values("to_json(array(v))", column) == ["[0.1]", "[-0.0]", "[1.0E10]", "[null]", '["NaN"]']


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("v not like 'a%'", [False, True, None]),
        ("v not ilike 'A%'", [False, True, None]),
        ("v not rlike '^a'", [False, True, None]),
        ("not v like 'a%'", [False, True, None]),
        ("v like 'a%' or v not like 'a%'", [True, True, None]),
        ("1 | 2 & 4", [1, 1, 1]),
        ("1 ^ 3 & 2 | 4", [7, 7, 7]),
        ("(1 | 2) & 4", [0, 0, 0]),
        ("regexp_replace(v, 'b', '\\\\$0')", ["a$0", "$0a", None]),
        ("to_json(struct(concat(v, '\\u001f') as t))", ['{"t":"ab\\u001F"}', '{"t":"ba\\u001F"}', "{}"]),
        ("to_json(struct(1, v, 'x' as v2))", ['{"col1":1,"v":"ab","v2":"x"}', '{"col1":1,"v":"ba","v2":"x"}',
                                             '{"col1":1,"v2":"x"}']),
        ("to_json(array(round(-0.4D), round(-0.04D, 1)))", ["[0.0,0.0]"] * 3),
    ],
)  # fmt: skip
def test_what_sql_means(text: str, wanted: list[Any]) -> None:
    assert values(text, pa.array(["ab", "ba", None])) == wanted


@pytest.mark.parametrize("text", ["v between symmetric 2 and 1", "v like 'a' escape '/'", "v = all (1)", "v[1:2]"])
def test_a_word_that_is_not_known_is_never_left_out(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not supported|no function"):
        values(text, pa.array([1]))


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (15, 5), (18, 6), (24, 3), (38, 18), (38, 30), (5, 0)])
def test_a_decimal_becomes_the_nearest_double(precision: int, scale: int) -> None:
    rng = random.Random(precision)
    digits = [rng.randint(1 - 10**precision, 10**precision - 1) for _ in range(100)]
    wanted: list[Decimal | None] = [Decimal(f"{one}e-{scale}") for one in digits]
    column = pa.array([None, *wanted, None], pa.decimal128(precision, scale)).slice(1)
    floats = [*(float(str(one)) for one in wanted), None]
    assert values("cast(v as double)", column) == floats
    assert values("v + 0D = cast(cast(v as string) as double)", column) == [*([True] * 100), None]


@pytest.mark.parametrize(
    "name", ["comment", "desc", "set", "values_", "pivot", "case_", "order", "left", "date", "top"]
)
def test_words_of_sql_may_be_names_of_columns(name: str) -> None:
    batch = pa.record_batch([pa.array([1])], names=[name])
    for text in (name, f"{name} + 0", f"abs({name})"):
        assert bind(expression(text), batch.schema).array(RowValues(batch, lambda: 0)).to_pylist() == [1]


@pytest.mark.parametrize(
    "text", ["v from t", "v, v", "v; v", "v where v > 1", "distinct v", "v union select 1", "-- v"]
)
def test_a_query_is_no_expression(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not one expression|not understood|not supported"):
        values(text, pa.array([1]))
