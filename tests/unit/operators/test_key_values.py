"""Keys come back from their bytes, whatever their types, and from what a user types."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, CorruptState
from flinkplus.operators.base.key_values import key_columns, key_of
from flinkplus.operators.base.keys import row_keys
from flinkplus.state.reading.plain_objects import jsonable, to_json

MOMENT = datetime.datetime(2026, 1, 31, 12, 30, 15, 123456)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): ["", "a", "ü€😀", "\x00", '{"c": 1}', "12", "null", "[1]"],
    pa.large_string(): ["", "a b"],
    pa.binary(): [b"", b"\xff", b"\xff\xff", b"a\x00", b"\xffa"],
    pa.large_binary(): [b"\xff", b"b"],
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), 5],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.uint8(): [0, 255],
    pa.uint64(): [0, 2**63, 2**64 - 1],
    pa.float32(): [-1.5, 0.0, 3.25],
    pa.float64(): [-1e300, -0.5, 0.0, 5e-324, float("inf")],
    pa.date32(): [MOMENT.date(), datetime.date(1, 1, 1)],
    pa.timestamp("us"): [MOMENT, datetime.datetime(1960, 1, 1)],
    pa.timestamp("us", "UTC"): [MOMENT.replace(tzinfo=datetime.timezone.utc)],
    pa.timestamp("s"): [MOMENT.replace(microsecond=0)],
    pa.time32("s"): [datetime.time(1, 2, 3)],
    pa.time64("us"): [datetime.time(1, 2, 3, 4)],
    pa.decimal128(38, 5): [Decimal("-123456789012345678901234567890.12345"), Decimal("0.00001"), Decimal(0)],
    pa.decimal128(5, 2): [Decimal("-1.50"), Decimal("999.99")],
}


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_one_column(dtype: pa.DataType) -> None:
    values = pa.array([*VALUES[dtype], None], dtype)
    keys = row_keys(pa.RecordBatch.from_arrays([values], names=["c"]), ["c"]).to_pylist()
    (found,) = key_columns(keys, [dtype])
    assert found.type == dtype and found.equals(values)
    assert [part.to_pylist() for part in key_columns([], [dtype])] == [[]]


def test_several_columns() -> None:
    rng = random.Random(1)
    for _ in range(200):
        types = rng.choices(list(VALUES), k=rng.randrange(2, 5))
        columns = [pa.array([rng.choice([*VALUES[t], None]) for _ in range(6)], t) for t in types]
        names = [f"c{at}" for at in range(len(types))]
        keys = row_keys(pa.RecordBatch.from_arrays(columns, names=names), names).to_pylist()
        for found, column in zip(key_columns(keys, types), columns, strict=True):
            assert found.equals(column)


def test_the_same_number_has_one_key() -> None:
    values = pa.array([-0.0, 0.0, float("nan")])
    keys = row_keys(pa.RecordBatch.from_arrays([values], names=["c"]), ["c"]).to_pylist()
    (found,) = key_columns(keys, [pa.float64()])
    assert str(found.to_pylist()) == "[0.0, 0.0, nan]"


@pytest.mark.parametrize(
    ("key", "types"),
    [
        (b"\xfea", [pa.string()]),
        (b"123", [pa.int64()]),
        (b"12345678", [pa.decimal128(10, 2)]),
        (b"\xff" * 16, [pa.decimal128(10, 2)]),
        (b"\x81" + bytes(7), [pa.int8()]),
        (b"", [pa.int64(), pa.int64()]),
        (b"\x00", [pa.int64(), pa.int64()]),
        (b"\x01\x00\x00\x00\x09a", [pa.string(), pa.string()]),
        (b"\x01\x00", [pa.string(), pa.string()]),
    ],
)
def test_bytes_that_are_no_key(key: bytes, types: list[pa.DataType]) -> None:
    with pytest.raises(CorruptState, match="no key of type"):
        key_columns([key], types)


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_a_key_is_asked_for_as_it_is_shown(dtype: pa.DataType) -> None:
    fields = [pa.field("c", dtype), pa.field("d", pa.string())]
    for value in [*VALUES[dtype], None]:
        array = pa.array([value], dtype)
        (key,) = row_keys(pa.RecordBatch.from_arrays([array], names=["c"]), ["c"]).to_pylist()
        assert key_of({"c": value}, fields[:1]) == key == key_of(to_json({"c": value}), fields[:1])
        if value is not None and value != '{"c": 1}':  # which is taken for the columns
            shown = jsonable(value)
            assert key_of(value, fields[:1]) == key
            assert key_of(shown if type(shown) is str else to_json(value), fields[:1]) == key
        both = row_keys(pa.RecordBatch.from_arrays([array, pa.array(["x"])], names=["c", "d"]), ["c", "d"])[0].as_py()
        for asked in ((value, "x"), {"d": "x", "c": value}, to_json([value, "x"]), to_json({"c": value, "d": "x"})):
            assert key_of(asked, fields) == both


@pytest.mark.parametrize(
    ("given", "columns", "message"),
    [
        ("abc", {"n": pa.int64()}, "key column 'n' is int64, and 'abc' cannot be read as that"),
        ("1.5", {"n": pa.int64()}, "cannot be read"),
        (b"x", {"n": pa.int64()}, "cannot be read"),
        ("[1]", {"n": pa.int64()}, "cannot be read"),
        ('{"m": 1}', {"n": pa.int64()}, "cannot be read"),
        ({"m": 1}, {"n": pa.int64()}, r"the key columns are \['n'\]"),
        (300, {"n": pa.int8()}, "cannot be read"),
        ("2026-13-01", {"d": pa.date32()}, "cannot be read"),
        ("not base64!", {"b": pa.binary()}, "cannot be read"),
        (Path("x"), {"t": pa.string()}, "cannot be read"),
        ("a", {"n": pa.int64(), "t": pa.string()}, "give a JSON array of 2 values, or a JSON object"),
        ("[1]", {"n": pa.int64(), "t": pa.string()}, "give a JSON array"),
        ({"n": 1}, {"n": pa.int64(), "t": pa.string()}, r"the key columns are \['n', 't'\]"),
        ("a", {}, "give a JSON array of 0 values"),
    ],
)
def test_what_cannot_be_the_key(given: Any, columns: dict[str, pa.DataType], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        key_of(given, [pa.field(name, dtype) for name, dtype in columns.items()])
