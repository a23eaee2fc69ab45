"""What expressions give: values and types, from SQL text, for rows with nulls, NaN and limits of ranges."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flinkplus import functions as F
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.expressions.binding import bind
from flinkplus.operators.expressions.bound import FAILURES, RowValues
from flinkplus.operators.expressions.column import ColumnExpression as Column
from flinkplus.operators.expressions.column import expression

UTC = datetime.timezone.utc
SCHEMA = parse_schema(
    "n long, i int, x double, t string, ts timestamp, d decimal(10,2), l array<int>, m map<string, int>, "
    "s struct<u: int, v: string>, ok boolean, day date"
)
LONGEST = 2**63 - 1
ROWS: list[dict[str, Any]] = [
    {
        "n": 7, "i": 2, "x": 1.5, "t": "Apple pie", "ts": datetime.datetime(2024, 2, 29, 13, 5, 6, 120_000, UTC),
        "d": Decimal("12.34"), "l": [1, 2, None], "m": [("k", 1)], "s": {"u": 1, "v": "q"}, "ok": True,
        "day": datetime.date(2024, 2, 29),
    },
    dict.fromkeys(SCHEMA.names),
    {
        "n": -7, "i": 3, "x": math.nan, "t": "ß,x", "ts": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "d": Decimal("-0.05"), "l": [], "m": [], "s": {"u": None, "v": None}, "ok": False,
        "day": datetime.date(1960, 1, 1),
    },
]  # fmt: skip
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


def values(what: str | Column, batch: pa.RecordBatch = BATCH) -> tuple[str, list[Any]]:
    """The type and the values of an expression, and that it is the same for rows alone."""
    bound = bind(expression(what), batch.schema)
    array = bound.array(RowValues(batch, lambda: 1_000))
    array.validate(full=True)
    assert array.type == bound.dtype
    alone = [bound.array(RowValues(batch.slice(at, 1), lambda: 1_000)) for at in range(batch.num_rows)]
    assert str(pa.concat_arrays(alone).to_pylist()) == str(array.to_pylist())
    assert len(bound.array(RowValues(batch.slice(0, 0), lambda: 1_000))) == 0
    return str(array.type), array.to_pylist()


@pytest.mark.parametrize(
    ("text", "dtype", "wanted"),
    [
        ("n + i", "int64", [9, None, -4]),
        ("-n", "int64", [-7, None, 7]),
        ("n * 0.908", "decimal128(24, 3)", [Decimal("6.356"), None, Decimal("-6.356")]),
        ("i / 2", "double", [1.0, None, 1.5]),
        ("n % 3", "int64", [1, None, -1]),
        ("pmod(n, 3)", "int64", [1, None, 2]),
        ("n div 2", "int64", [3, None, -3]),
        ("d * 2", "decimal128(12, 2)", [Decimal("24.68"), None, Decimal("-0.10")]),
        ("d / 3", "decimal128(14, 6)", [Decimal("4.113333"), None, Decimal("-0.016667")]),
        ("d % 5", "decimal128(3, 2)", [Decimal("2.34"), None, Decimal("-0.05")]),
        ("x = x", "bool", [True, None, True]),
        ("x > 1e300", "bool", [False, None, True]),
        ("x <= 1.5D", "bool", [True, None, False]),
        ("n > 5 and n / (i - 3) > 0", "bool", [False, None, False]),
        ("n < 5 or n / (i - 3) < 0", "bool", [True, None, True]),
        ("ok or null", "bool", [True, None, None]),
        ("not ok", "bool", [False, None, True]),
        ("i in (2, null)", "bool", [True, None, None]),
        ("i not in (2, 5)", "bool", [False, None, True]),
        ("x in (1.5D)", "bool", [True, None, False]),
        ("i <=> null", "bool", [False, True, False]),
        ("i is distinct from 2", "bool", [False, True, True]),
        ("ts > '2024-01-01'", "bool", [True, None, False]),
        ("day = date '2024-02-29'", "bool", [True, None, False]),
        ("t like 'A%' and t not rlike 'z'", "bool", [True, None, False]),
        ("case when n > 5 then 'big' when n is null then 'none' end", "string", ["big", "none", None]),
        ("case i when 2 then 1 else 2.5 end", "decimal128(11, 1)", [Decimal("1.0"), Decimal("2.5"), Decimal("2.5")]),
        ("if(i = 3, 0, n / (i - 3))", "double", [-7.0, None, 0.0]),
        ("coalesce(i, n, 0)", "int64", [2, 0, 3]),
        ("nullif(i, 2)", "int32", [None, None, 3]),
        ("nanvl(x, 0)", "double", [1.5, None, 0.0]),
        ("greatest(n, i, 1)", "int64", [7, 1, 3]),
        ("least(x, 2.0D)", "double", [1.5, 2.0, 2.0]),
        ("round(2.675D, 2)", "double", [2.68, 2.68, 2.68]),
        ("round(d, 1)", "decimal128(10, 1)", [Decimal("12.3"), None, Decimal("-0.1")]),
        ("floor(d)", "decimal128(9, 0)", [Decimal(12), None, Decimal(-1)]),
        ("ln(n)", "double", [math.log(7), None, None]),
        ("cast(x as string)", "string", ["1.5", None, "NaN"]),
        ("cast(1e20D as string)", "string", ["1.0E20"] * 3),
        ("cast(-0.001D as string)", "string", ["-0.001"] * 3),
        ("cast(d as int)", "int32", [12, None, 0]),
        ("cast(ts as string)", "string", ["2024-02-29 13:05:06.12", None, "1969-12-31 23:59:59.999999"]),
        ("cast(ts as long)", "int64", [1_709_211_906, None, -1]),
        ("try_cast(t as int)", "int32", [None, None, None]),
        ("try_divide(n, i - 3)", "double", [-7.0, None, None]),
        ("t || '!' || i", "string", ["Apple pie!2", None, "ß,x!3"]),
        ("concat_ws('-', t, i)", "string", ["Apple pie-2", "", "ß,x-3"]),
        ("substring(t, 2, 2)", "string", ["pp", None, ",x"]),
        ("substring(t, -2)", "string", ["ie", None, ",x"]),
        ("split(t, ',')[0]", "string", ["Apple pie", None, "ß"]),
        ("split_part(t, ',', 2)", "string", ["", None, "x"]),
        ("regexp_extract(t, '(x)|(A)', 2)", "string", ["A", None, ""]),
        ("regexp_replace(t, '([a-z])p', '$1P')", "string", ["ApPle pie", None, "ß,x"]),
        ("lpad(t, 4, 'ab')", "string", ["Appl", None, "aß,x"]),
        ("instr(t, 'x')", "int32", [0, None, 3]),
        ("length(t)", "int32", [9, None, 3]),
        ("trim('A', t)", "string", ["pple pie", None, "ß,x"]),
        ("'it''s'", "string", ["it's"] * 3),
        ("hour(ts) * 100 + minute(ts)", "int32", [1305, None, 2359]),
        (
            "date_format(ts, \"yyyy/MM/dd'T'HH:mm:ss.SSS\")", "string",
            ["2024/02/29T13:05:06.120", None, "1969/12/31T23:59:59.999"],
        ),
        ("unix_millis(ts)", "int64", [1_709_211_906_120, None, -1]),
        ("unix_seconds(timestamp_millis(n))", "int64", [0, None, -1]),
        ("dayofweek(day)", "int32", [5, None, 6]),
        ("day + 1", "date32[day]", [datetime.date(2024, 3, 1), None, datetime.date(1960, 1, 2)]),
        ("datediff(day, '2024-02-28')", "int32", [1, None, -23434]),
        ("unix_seconds(ts + interval 1 hour 30 minutes)", "int64", [1_709_217_306, None, 5399]),
        ("unix_millis(date_trunc('hour', ts))", "int64", [1_709_211_600_000, None, -3_600_000]),
        ("hour(from_utc_timestamp(ts, 'Europe/Berlin'))", "int32", [14, None, 0]),
        ("unix_millis(current_timestamp())", "int64", [1_000] * 3),
        ("get(l, 1)", "int32", [2, None, None]),
        ("size(l)", "int32", [3, None, 0]),
        ("array_contains(l, 2)", "bool", [True, None, False]),
        ("array_contains(l, 7)", "bool", [None, None, False]),
        ("m['k']", "int32", [1, None, None]),
        ("element_at(m, t)", "int32", [None, None, None]),
        ("map_keys(m)", "list<item: string>", [["k"], None, []]),
        ("s.u + 1", "int32", [2, None, None]),
        ("struct(n, i as j).j", "int32", [2, None, 3]),
        ("array(n, i)", "list<item: int64>", [[7, 2], [None, None], [-7, 3]]),
        ("map('a', n)['a']", "int64", [7, None, -7]),
        (
            "named_struct('a', 1, 'b', t)", "struct<a: int32 not null, b: string>",
            [{"a": 1, "b": t} for t in ("Apple pie", None, "ß,x")],
        ),
    ],
)  # fmt: skip
def test_values(text: str, dtype: str, wanted: list[Any]) -> None:
    assert values(text) == (dtype, wanted)


def test_columns_of_python_are_the_same_as_text() -> None:
    col = F.col
    same: list[tuple[Column, str]] = [
        (col("n") * Decimal("0.908"), "n * 0.908"),
        (1 - col("n"), "1 - n"),
        ((col("n") > 5) & ~(col("i") == 2) | col("ok"), "n > 5 and not i = 2 or ok"),
        (
            F.when(col("n") > 5, "big").when(col("n").isNull(), "none").otherwise(F.lit(None)),
            "case when n > 5 then 'big' when n is null then 'none' else null end",
        ),
        (col("s.u"), "s.u"),
        (col("s").getField("u"), "s.u"),
        (col("l")[0], "l[0]"),
        (col("x").cast("int"), "cast(x as int)"),
        (col("t").try_cast("int"), "try_cast(t as int)"),
        (col("i").isin(1, 2), "i in (1, 2)"),
        (col("i").between(1, 2), "i between 1 and 2"),
        (F.upper("t"), "upper(t)"),
        (F.concat_ws("-", "t", F.lit("x")), "concat_ws('-', t, 'x')"),
        (F.substring("t", 1, 3), "substring(t, 1, 3)"),
        (F.trim("t", "x"), "trim('x', t)"),
        (F.log("n"), "log(n)"),
        (F.date_format("ts", "HH"), "date_format(ts, 'HH')"),
        (F.struct("n", col("i").alias("j")), "struct(n, i as j)"),
        (F.expr("n + 1"), "n + 1"),
    ]  # fmt: skip
    assert [str(column.part) for column, _ in same] == [str(expression(text)) for _, text in same]
    assert values(F.coalesce("i", F.lit(0))) == ("int32", [2, 0, 3])


@pytest.mark.parametrize(
    "text",
    [
        f"n + {LONGEST}", "n * 9223372036854775807", "1 / 0", "n % 0", "n div (i - 3)", "cast(t as int)", "l[5]",
        "element_at(l, 0)", "cast(99999999.99 as decimal(3, 1))", "cast(x as int)", "floor(x)", "to_date(t, 'yyyy')",
        "make_date(2023, 2, 29 + i - i)", "cast(n as tinyint) + cast(127 as tinyint)", "split_part(t, ',', 0)",
        "abs(-9223372036854775808 + n - n)",
    ],
)  # fmt: skip
def test_what_has_no_value_is_an_error(text: str) -> None:
    bound = bind(expression(text), SCHEMA) if "cast(99" not in text else None
    if bound is None:
        with pytest.raises(ConfigurationError, match="cannot be cast"):
            bind(expression(text), SCHEMA)
        return
    assert bound.fails
    with pytest.raises(FAILURES):
        bound.array(RowValues(BATCH, lambda: 0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("price > 1", "no column 'price' among"),
        ("N > 1", "no column 'N' among"),
        ("n + t", r"\(n \+ t\): '\+' needs numbers, not string: cast it"),
        ("t > 5", "'>' has no type for string and int: cast one"),
        ("lenght(t)", "there is no function 'lenght'; did you mean 'length'"),
        ("length(t, t)", "2 arguments"),
        ("length(n)", "needs text or binary, not long"),
        ("not n", "needs a condition, not long"),
        ("s.w", r"s\.w: there is no field 'w' among \['u', 'v'\]"),
        ("l = l", "cannot be compared"),
        ("ts - ts", "unix_millis"),
        ("ts + 1", "interval"),
        ("ts + interval 1 month", "an interval is a number and a unit"),
        ("count(*)", "can only stand alone"),
        ("sum(n)", "there is no function 'sum'"),
        ("sum(n) over ()", "is not supported"),
        ("exists(l, e -> e > 1)", "is not supported"),
        ("n in (select 1)", "IN takes a list of values"),
        ("select n", "is not understood"),
        ("n +", "is not understood"),
        ("n n n", "is not understood"),
        ("", "is not one expression"),
        ("n; n", "is not one expression"),
        ("t rlike '('", "no regular expression of RE2"),
        ("t rlike t", "must be a constant"),
        ("regexp_extract(t, 'a', 1)", "has no group 1"),
        ("date_format(ts, 'QQ')", "what is known is"),
        ("date_trunc('fortnight', ts)", "there is no unit"),
        ("from_utc_timestamp(ts, 'Mars/Olympus')", "no time zone"),
        ("cast(l as int)", "cannot be cast"),
        ("cast('x' as int)", "a constant cannot be cast"),
        ("cast(n as money)", "money"),
        ("map(t, 1)", "different constants"),
        ("struct(n, n)", "a field twice"),
        ("123456789012345678901234567890123456789", "more than 38 digits"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        bind(expression(text), SCHEMA)


def test_deep_and_long_texts_are_refused_or_taken() -> None:
    assert values("+".join(["i"] * 100))[1] == [200, None, 300]
    with pytest.raises(ConfigurationError, match=r"levels|not understood"):
        bind(expression("(" * 5_000 + "i" + ")" * 5_000), SCHEMA)
    with pytest.raises(ConfigurationError, match="too long"):
        expression("i + " * 100_000 + "i")
    for terms in (101, 250, 400):
        with pytest.raises(ConfigurationError, match="levels"):
            bind(expression("+".join(["i"] * terms)), SCHEMA)
    doubled = F.col("i")
    for _ in range(60):
        doubled = doubled + doubled
    with pytest.raises(ConfigurationError, match="parts"):
        bind(expression(doubled), SCHEMA)


def test_conditions_may_be_joined_by_any_number_of_and_and_or() -> None:
    assert values(" or ".join(f"n = {number}" for number in range(500)))[1] == [True, None, False]
    assert values(" and ".join(f"n <> {number}" for number in range(500)))[1] == [False, None, True]
    either = F.col("n") == 0
    for number in range(1, 500):
        either = either | (F.col("n") == number)
    assert values(either)[1] == [True, None, False]


def test_columns_of_python_that_are_wrong() -> None:
    with pytest.raises(ConfigurationError, match=r"& and \|"):
        bool(F.col("n") > 1)
    with pytest.raises(ConfigurationError, match="otherwise follows when"):
        F.col("n").otherwise(1)
    with pytest.raises(ConfigurationError, match="cannot stand in an expression"):
        F.col("n") + object()
    with pytest.raises(ConfigurationError, match="SQL text or a column"):
        expression(5)
    with pytest.raises(ConfigurationError, match="is no name of a column"):
        F.col("")


def test_types_that_spark_does_not_have_are_widened() -> None:
    schema = pa.schema([("u", pa.uint32()), ("t", pa.large_string()), ("k", pa.dictionary(pa.int32(), pa.string()))])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([2**32 - 1, None], pa.uint32()),
            pa.array(["a", None], pa.large_string()),
            pa.array(["x", "y"]).dictionary_encode(),
        ],
        schema=schema,
    )
    assert values("u + 1", batch) == ("int64", [2**32, None])
    assert values("t || k", batch) == ("string", ["ax", None])
