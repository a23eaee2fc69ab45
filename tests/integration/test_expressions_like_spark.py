"""Expressions give what Spark SQL gives in its ANSI mode: values, types, and errors."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.expressions.binding import bind
from flinkplus.operators.expressions.bound import FAILURES, RowValues
from flinkplus.operators.expressions.column import expression

pytestmark = [pytest.mark.integration, pytest.mark.long]

UTC = datetime.timezone.utc
SCHEMA = parse_schema(
    "a long, b int, x double, t string, ts timestamp, d decimal(10,2), l array<int>, m map<string, int>, "
    "s struct<u: int, v: string>, ok boolean, dt date"
)


def _at(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def _day(*parts: int) -> datetime.date:
    return datetime.date(*parts)


ROWS: list[tuple[Any, ...]] = [
    (
        7,
        2,
        1.5,
        "Apple pie",
        _at(2024, 2, 29, 13, 5, 6, 120_000),
        Decimal("12.34"),
        [1, 2, None],
        [("k", 1)],
        {"u": 1, "v": "q"},
        True,
        _day(2024, 2, 29),
    ),
    (-7, None, math.nan, "", None, None, None, None, None, None, None),
    (
        None,
        -3,
        None,
        None,
        _at(1969, 12, 31, 23, 59, 59, 999_999),
        Decimal("-0.05"),
        [],
        [],
        {"u": None, "v": None},
        False,
        _day(1960, 1, 1),
    ),
    (
        2**40,
        3,
        -0.0,
        "xyz,äöü,,",
        _at(2023, 7, 16),
        Decimal("99999999.99"),
        [5, 2],
        [("k", None), ("z", 3)],
        {"u": 4, "v": ""},
        True,
        _day(2100, 12, 31),
    ),
    (0, 1, 2.675, " 42 ", _at(2000, 1, 1), Decimal(0), [None], [("", 7)], {"u": 9, "v": "zz"}, False, _day(2000, 1, 3)),
    (
        100,
        100,
        1e10,
        "1e3 a-b_c",
        _at(2024, 12, 30, 23, 59, 59, 500_000),
        Decimal("1.00"),
        [2, 2, 2],
        [("k", 9)],
        {"u": 1, "v": "k"},
        True,
        _day(2024, 12, 30),
    ),
    (
        -1,
        7,
        -123.4567,
        "%_\\",
        _at(2021, 1, 3, 12),
        Decimal("-2.50"),
        [3],
        [],
        {"u": 2, "v": "É"},
        True,
        _day(2021, 1, 3),
    ),
]
BATCH = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in ROWS], schema=SCHEMA)

SAME = r"""
b + b
a + x
d + x
d - 0.005
d / 0.07
d * 1.5
1.5 * b
a / b
b % 2
-b % 2
d % 0.3
pmod(-a, 3)
pmod(d, 0.3)
d div 3
x < 1
x >= 2
x <> x
x > 2
b < a
d < a
d = 1
d > x
dt < ts
dt = '2024-02-29'
ok and null
ok or x > 1
not (a > 1)
round(d, 1)
round(d, 0)
round(d, -1)
round(d)
round(x, 2)
round(x)
round(a, -1)
bround(x, 2)
bround(d, 1)
floor(d)
ceil(b)
floor(b)
ceil(2.5D)
abs(d)
abs(b)
sign(x)
sign(d)
sqrt(x)
exp(b)
ln(x)
log10(a)
log2(b)
log(2, b)
pow(b, 2)
pow(x, 0.5)
degrees(x)
atan2(x, b)
cast(d as double)
cast(d as string)
cast(a as string)
cast(ok as string)
cast(ok as int)
cast(b as boolean)
cast(x as string)
cast(cast(x as float) as string)
cast(dt as string)
cast(ts as date)
cast(dt as timestamp)
cast(ts as timestamp_ntz)
cast(ts as long)
cast(ts as double)
cast(b as timestamp)
cast(b as decimal(5,2))
cast(cast(b as decimal(5,2)) as decimal(12,4))
try_cast(x as decimal(6,2))
try_cast(t as double)
try_cast(t as boolean)
try_cast(t as date)
try_cast(t as timestamp)
try_cast(t as decimal(4,1))
try_cast(d as decimal(4,1))
try_cast(a as tinyint)
try_cast(x as long)
cast('  12 ' as int)
cast('2024-02-29T10:00:00' as timestamp)
cast('2024-02-29 10:00:00.5+01:00' as timestamp)
cast('2024-02-29 10:00' as timestamp)
cast('2024-2-9' as date)
cast('true' as boolean)
cast('y' as boolean)
cast('1.25' as decimal(3,1))
cast(1.25 as decimal(2,1))
cast(1e20 as string)
cast(0.001D as string)
cast(0.0001D as string)
cast(1234567.125D as string)
cast(12345678.125D as string)
cast(t as binary)
cast(cast(t as binary) as string)
lower(t)
initcap(t)
reverse(t)
trim(t)
ltrim(t)
rtrim(t)
trim('x', t)
length(t)
octet_length(t)
concat(t, a, d)
concat(t, 'x')
concat_ws('/', t, s.v, 'e')
substring(t, 2)
substring(t, -3, 2)
substring(t, 0, 2)
substring(t, -20, 14)
substring(t, b, 2)
substr(t, 2, -1)
left(t, 2)
right(t, 3)
left(t, 0)
startswith(t, 'A')
endswith(t, s.v)
contains(t, 'p')
t like '%p%'
t like '_pp%'
t like '\\%%'
t ilike 'APPLE%'
t rlike '[a-z]+,'
regexp_replace(t, '[aeiou]', '<$0>')
regexp_replace(t, '(p)(i)', '$2$1')
regexp_extract(t, '([a-z]+),', 1)
regexp_extract(t, '(x)|(A)', 2)
regexp_extract(t, '[a-z]+', 0)
replace(t, 'p')
translate(t, 'apz', '12')
repeat(t, 2)
repeat(t, b)
lpad(t, 12, 'ab')
rpad(t, 4, 'ab')
lpad(t, 0, 'ab')
instr(t, 'ö')
locate('p', t)
locate('p', t, 3)
split(t, ',')
split(t, ',', 2)
split(t, '[,-]')
split(t, ',', 1)
split_part(t, ',', 2)
split_part(t, ',', -1)
year(ts)
year(dt)
quarter(dt)
month(ts)
day(ts)
dayofyear(ts)
dayofweek(ts)
weekday(dt)
weekofyear(ts)
hour(ts)
minute(ts)
second(ts)
hour(dt)
date_trunc('WEEK', ts)
date_trunc('month', ts)
date_trunc('quarter', ts)
date_trunc('year', dt)
date_trunc('minute', ts)
date_trunc('millisecond', ts)
trunc(dt, 'month')
trunc(ts, 'week')
date_format(ts, 'yyyy-MM-dd')
date_format(ts, "yyyy/MM/dd'T'HH:mm:ss.SSS")
date_format(dt, 'yyyyMMdd')
date_format(ts, 'HH')
to_date('2024-01-02', 'yyyy-MM-dd')
to_date(ts)
to_timestamp('02/01/2024 03:04:05', 'dd/MM/yyyy HH:mm:ss')
date_add(dt, b)
date_sub(dt, 2)
dt + 2
dt - 2
datediff(ts, dt)
datediff(dt, '2024-01-01')
unix_seconds(ts)
unix_millis(ts)
unix_micros(ts)
timestamp_seconds(b)
timestamp_millis(a)
timestamp_micros(a)
ts + interval 1 day
ts - interval '90' minute
dt + interval 1 hour
from_utc_timestamp(ts, 'America/New_York')
to_utc_timestamp(ts, 'Europe/Berlin')
make_date(2024, 2, 29)
array(a, b)
array(b, 1.5)
array('a', t)
struct(a, s.v)
struct(a, a + 1 as z)
named_struct('q', a, 'r', t)
map('p', b, 'q', 2)
size(l)
size(m)
get(l, 1)
get(l, -1)
try_element_at(l, 2)
try_element_at(l, -1)
try_element_at(l, 9)
element_at(m, 'k')
m['zz']
m.k
s.u + 1
s.v
array_contains(l, 2)
array_contains(l, 5L)
map_keys(m)
map_values(m)
coalesce(a, b, 0)
coalesce(d, 0)
nvl(t, 'none')
nvl2(t, 1, 2)
nullif(a, 7)
nanvl(x, 0)
isnan(x)
isnull(a)
greatest(a, b)
greatest(x, b)
least(x, 2.0D)
least(t, 'B')
a in (7, null)
a in (7, 100)
t in ('', 'x')
x in (1.5D, 2)
a between b and 100
case b when 2 then 'two' when 3 then 'three' else 'x' end
case when b > 2 then 1 else 2.5 end
case when b <> 0 then a / b end
if(b > 2, a, b)
a & b
a | 1
a ^ b
~b
try_add(a, 1)
try_divide(a, b - 2)
try_multiply(9223372036854775807, a)
try_mod(a, b - 2)
'it''s'
'a' || 1
1 + null
-1.5
1e3
2147483648
x'1F'
9999999999.99 * d
a is distinct from b
a <=> null
b is not null and a > 0
cast(99999999.99 as decimal(38,20)) * cast(1.5 as decimal(38,10))
cast(d as decimal(38,18)) / cast(3 as decimal(38,18))
cast(d as decimal(38,18)) + cast(b as decimal(38,2))
a + b
a * 0.908
b / 2
a % 3
a div 2
-a
x = x
x > 1
d * 2
d / 3
d % 5
t || '!'
substring(t, 1, 3)
upper(t)
hour(ts)
case when a > 5 then 'big' when a > 0 then 'small' end
b not between 1 and 2
to_json(struct(a, t, d, dt, date_trunc('millisecond', ts) as ts, l, m, s, x))
to_json(array(a, null))
t not like 'A%'
t not ilike 'A%'
b | 2 & 4
b ^ 3 & 2 | 4
struct(1, 'a', s.u, a + 1)
to_json(struct(1, round(-0.04D, 1)))
to_json(array('a\u0001b\u001f'))
to_json(struct(cast(0.1 as float)))
regexp_replace('a.b', '\\.', '\\$')
to_utc_timestamp(timestamp '2024-03-31 02:30:00', 'Europe/Berlin')
to_utc_timestamp(timestamp '2024-10-27 02:30:00', 'Europe/Berlin')
to_date('20240229', 'yyyyMMdd')
try_to_timestamp('2023-02-29', 'yyyy-MM-dd')
try_cast('0x10' as int)
try_cast('+12' as int)
try_cast('abc' as date)
coalesce(s, named_struct('u', 0, 'v', 'x'))
greatest(x, a, b, d)
concat_ws('-', s.v, cast(null as string))
"""
ERRORS = r"""
x = 'a'
cast(x as int)
cast(d as decimal(5,1))
b'x'
date '2024-02-30'
a + 'x'
to_date('2024-02-31', 'yyyy-MM-dd')
to_date('2024-1-02', 'yyyy-MM-dd')
cast('0x10' as int)
t + 1
t > 1
1 / 0
a / 0
1 % 0
2147483647 + 1
9223372036854775807 + a
cast('x' as int)
cast(300 as tinyint)
cast(x as decimal(3,1))
l[10]
element_at(l, 0)
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def kind(dtype: pa.DataType) -> str:
    """A type, without the names of the parts of lists and maps, and without what may be null."""
    return str(dtype).replace("item: ", "element: ").replace(" not null", "")


def equal(mine: Any, theirs: Any) -> bool:
    """Whether values are the same; the last digits of floating point may differ."""
    if isinstance(mine, float) and isinstance(theirs, float):
        return mine == theirs or (mine != mine and theirs != theirs) or math.isclose(mine, theirs, rel_tol=1e-14)
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(equal, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(equal(mine[key], theirs[key]) for key in mine)
    return type(mine) is type(theirs) and bool(mine == theirs)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Any:
    """The rows as a DataFrame, in a session whose time zone is UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark.createDataFrame(pa.Table.from_batches([BATCH])).cache()
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", before)


def test_values_and_types_are_those_of_spark(frame: Any) -> None:
    texts = lines(SAME)
    theirs = frame.selectExpr(*[f"{text} AS c{number}" for number, text in enumerate(texts)]).toArrow()
    different = []
    for text, column in zip(texts, theirs.columns, strict=True):
        bound = bind(expression(text), SCHEMA)
        mine = bound.array(RowValues(BATCH, lambda: 0))
        found, wanted = (kind(mine.type), mine.to_pylist()), (kind(column.type), column.to_pylist())
        if found[0] != wanted[0] or not equal(found[1], wanted[1]):
            different.append((text, found, wanted))
    assert not different
    assert len(texts) > 200


@pytest.mark.parametrize("text", lines(ERRORS))
def test_errors_are_those_of_spark(frame: Any, text: str) -> None:
    with pytest.raises(Exception, match=r"SQLSTATE|Exception|INVALID|ERROR"):
        frame.selectExpr(f"{text} AS r").toArrow()
    with pytest.raises((ConfigurationError, *FAILURES)):
        bind(expression(text), SCHEMA).array(RowValues(BATCH, lambda: 0))
