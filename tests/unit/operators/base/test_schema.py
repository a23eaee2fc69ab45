"""Schema texts in Spark's words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import parse_schema


def test_every_type() -> None:
    text = """s string, b BINARY, o boolean, t tinyint, t2 byte, h short, h2 smallint, i int, i2 INTEGER,
              l long, l2 bigint, f float,
              f2 real, d double, day date, at timestamp, at2 timestamp_ntz, m decimal(12,2), m2 decimal"""
    types = [pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int8(), pa.int16(), pa.int16(), pa.int32(), pa.int32()]
    types += [
        pa.int64(),
        pa.int64(),
        pa.float32(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
    ]
    types += [pa.timestamp("us"), pa.decimal128(12, 2), pa.decimal128(10, 0)]
    assert parse_schema(text).types == types


def test_nested_quoted_and_not_null() -> None:
    schema = parse_schema("`my ``word``` array<array<long>>, `größe`: double not null, date date")
    assert schema == pa.schema(
        [
            ("my `word`", pa.list_(pa.list_(pa.int64()))),
            pa.field("größe", pa.float64(), nullable=False),
            ("date", pa.date32()),
        ]
    )


def test_a_lone_type_is_the_column_value() -> None:
    assert parse_schema("long") == pa.schema([("value", pa.int64())])
    assert parse_schema("array<string>") == pa.schema([("value", pa.list_(pa.string()))])
    assert parse_schema("decimal(3)") == pa.schema([("value", pa.decimal128(3, 0))])


def test_a_pyarrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([("a", pa.uint8())])
    assert parse_schema(schema) is schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'its end'"),
        ("word", "'word'"),
        ("word strin", "'strin'"),
        ("word string,", "'its end'"),
        ("word string n long", "'n' is not expected"),
        ("word string not", "NULL"),
        ("a array<long", "'>'"),
        ("a map<string>", "','"),
        ("a struct<>", "'>'"),
        ("a struct<b: long, b: long>", "'b' twice"),
        ("a string; b long", "';"),
        ("a string, a long", "twice"),
        ("a decimal(99,1)", "precision"),
        ("a decimal(x)", "x"),
        (7, "not 7"),
        (pa.schema([]), "at least one"),
    ],
)
def test_what_is_wrong_is_said(text: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_schema(text)
