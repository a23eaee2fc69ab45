"""Functions for expressions on the columns of a stream, by the names that PySpark gives them: ``functions as F``.

A text that stands for a column is its name (``F.upper("word")``); ``lit`` makes a constant of it. All other arguments
are constants, or columns. ``expr`` takes SQL text. See ``docs/operators.md`` for what they do.

Ring 2. Process: driver. Thread: the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkplus.operators.expressions.column import ColumnExpression as Column
from flinkplus.operators.expressions.column import expression, part_of, path_of
from flinkplus.operators.expressions.tree import Call, Case, Part


def col(name: str) -> Column:
    """A column, or a field within one: ``col("address.city")``."""
    return Column(path_of(name))


column = col


def lit(value: Any) -> Column:
    """A constant."""
    return value if isinstance(value, Column) else Column(part_of(value))


def expr(text: str) -> Column:
    """An expression in SQL: ``expr("price * 0.9")``."""
    return Column(expression(text))


def when(condition: Column, value: Any) -> Column:
    """``value`` where ``condition`` is true; further branches with ``.when``, the rest with ``.otherwise``."""
    return Column(Case(((part_of(condition), part_of(value)),)))


def _column(value: Any) -> Part:
    return path_of(value) if isinstance(value, str) else part_of(value)


def _function(name: str, kinds: str) -> Callable[..., Column]:
    """``name`` in SQL. ``kinds``: for each argument ``c``, a column or its name, or ``l``, a constant or column; with
    ``*`` the last one repeats."""
    repeats = kinds.endswith("*")
    given = kinds.rstrip("*")

    def make(*arguments: Any) -> Column:
        last = given[-1:] if repeats else "l"
        parts = [
            (_column if (given[at] if at < len(given) else last) == "c" else part_of)(argument)
            for at, argument in enumerate(arguments)
        ]
        return Column(Call(name, tuple(parts)))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"The function ``{name}`` of SQL."
    return make


coalesce = _function("coalesce", "c*")
nullif = _function("nullif", "cc")
nvl = ifnull = _function("nvl", "cc")
nvl2 = _function("nvl2", "ccc")
nanvl = _function("nanvl", "cc")
isnull = _function("isnull", "c")
isnotnull = _function("isnotnull", "c")
isnan = _function("isnan", "c")
greatest = _function("greatest", "c*")
least = _function("least", "c*")

abs = _function("abs", "c")
sign = signum = _function("sign", "c")
sqrt = _function("sqrt", "c")
exp = _function("exp", "c")
ln = _function("ln", "c")
log10 = _function("log10", "c")
log2 = _function("log2", "c")
sin = _function("sin", "c")
cos = _function("cos", "c")
tan = _function("tan", "c")
asin = _function("asin", "c")
acos = _function("acos", "c")
atan = _function("atan", "c")
atan2 = _function("atan2", "cc")
degrees = _function("degrees", "c")
radians = _function("radians", "c")
pow = power = _function("pow", "cc")
pmod = _function("pmod", "cc")
round = _function("round", "cl")
bround = _function("bround", "cl")
floor = _function("floor", "c")
ceil = ceiling = _function("ceil", "c")
negate = negative = _function("-", "c")
try_add = _function("try_add", "cc")
try_subtract = _function("try_subtract", "cc")
try_multiply = _function("try_multiply", "cc")
try_divide = _function("try_divide", "cc")
try_mod = _function("try_mod", "cc")
bitwise_not = _function("~", "c")


def log(first: Any, second: Any = None) -> Column:
    """The natural logarithm of a column, or ``log(base, column)``."""
    parts = (_column(first),) if second is None else (part_of(first), _column(second))
    return Column(Call("log", parts))


lower = lcase = _function("lower", "c")
upper = ucase = _function("upper", "c")
initcap = _function("initcap", "c")
reverse = _function("reverse", "c")


def _trim(name: str) -> Callable[..., Column]:
    def make(value: Any, characters: Any = None) -> Column:
        parts = (_column(value),) if characters is None else (part_of(characters), _column(value))
        return Column(Call(name, parts))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = "A text without blanks, or other characters, at its ends."
    return make


trim = _trim("trim")
ltrim = _trim("ltrim")
rtrim = _trim("rtrim")
btrim = _function("btrim", "cl")
length = char_length = character_length = _function("length", "c")
octet_length = _function("octet_length", "c")
concat = _function("concat", "c*")
concat_ws = _function("concat_ws", "lc*")
substring = substr = _function("substring", "cll")
left = _function("left", "cl")
right = _function("right", "cl")
startswith = _function("startswith", "cc")
endswith = _function("endswith", "cc")
contains = _function("contains", "cc")
like = _function("like", "cl")
ilike = _function("ilike", "cl")
rlike = regexp_like = regexp = _function("rlike", "cl")
regexp_replace = _function("regexp_replace", "cll")
regexp_extract = _function("regexp_extract", "cll")
replace = _function("replace", "cll")
translate = _function("translate", "cll")
repeat = _function("repeat", "cl")
lpad = _function("lpad", "cll")
rpad = _function("rpad", "cll")
instr = _function("instr", "cl")
locate = position = _function("locate", "lcl")
split = _function("split", "cll")
split_part = _function("split_part", "cll")

year = _function("year", "c")
quarter = _function("quarter", "c")
month = _function("month", "c")
day = dayofmonth = _function("day", "c")
dayofyear = _function("dayofyear", "c")
dayofweek = _function("dayofweek", "c")
weekday = _function("weekday", "c")
weekofyear = _function("weekofyear", "c")
hour = _function("hour", "c")
minute = _function("minute", "c")
second = _function("second", "c")
date_trunc = _function("date_trunc", "lc")
trunc = _function("trunc", "cl")
date_format = _function("date_format", "cl")
to_date = _function("to_date", "cl")
to_timestamp = _function("to_timestamp", "cl")
to_timestamp_ntz = _function("to_timestamp_ntz", "cl")
try_to_date = _function("try_to_date", "cl")
try_to_timestamp = _function("try_to_timestamp", "cl")
date_add = dateadd = _function("date_add", "cl")
date_sub = _function("date_sub", "cl")
datediff = date_diff = _function("datediff", "cc")
make_date = _function("make_date", "ccc")
unix_seconds = _function("unix_seconds", "c")
unix_millis = _function("unix_millis", "c")
unix_micros = _function("unix_micros", "c")
timestamp_seconds = _function("timestamp_seconds", "c")
timestamp_millis = _function("timestamp_millis", "c")
timestamp_micros = _function("timestamp_micros", "c")
from_utc_timestamp = _function("from_utc_timestamp", "cl")
to_utc_timestamp = _function("to_utc_timestamp", "cl")
current_timestamp = now = _function("current_timestamp", "")
current_date = _function("current_date", "")

array = _function("array", "c*")
struct = _function("struct", "c*")
create_map = _function("map", "c*")
get = _function("get", "cl")
element_at = _function("element_at", "cl")
try_element_at = _function("try_element_at", "cl")
size = cardinality = array_size = _function("size", "c")
to_json = _function("to_json", "c")
array_contains = _function("array_contains", "cl")
map_keys = _function("map_keys", "c")
map_values = _function("map_values", "c")
