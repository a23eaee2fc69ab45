"""Values to rows: which are good, and what is said of the others."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.sources.kafka.decoding import decoder, value_schema

SCHEMA = parse_schema("a long, b string")
GOOD = b'{"a": 1, "b": "x"}'


def decoded(values: Sequence[bytes | None], schema: pa.Schema = SCHEMA) -> tuple[list[Any], dict[int, str]]:
    found = decoder("json", schema)(values)
    found.rows.validate(full=True)
    assert found.rows.schema == schema
    return [tuple(row.values()) for row in found.rows.to_pylist()], dict(found.broken)


def test_objects_become_rows() -> None:
    values = [GOOD, b'{"b":"\\u00e9\xc3\xa9"}', b"{}", b' \n{"c": [{"d": null}], "a":null}\t', b'{"a":\n2}']
    assert decoded(values) == ([(1, "x"), (None, "éé"), (None, None), (None, None), (2, None)], {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value (a tombstone)"),
        (b"", "an empty value"),
        (b"  ", "an empty value"),
        (b"null", "not a JSON object"),  # alone, it crashes the parser
        (b"[1]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b"\xef\xbb\xbf{}", "not a JSON object"),
        (b'{"a": "1"}', "changed from number to string"),
        (b'{"a": 1.0}', "couldn't parse:1.0"),
        (b'{"a": 99999999999999999999}', "couldn't parse"),
        (b'{"b": 1}', "changed from string to number"),
        (b'{"a": 1, "a": 2}', "specified twice"),
        (b'{"a": 1', "not a JSON object"),
        (b'{"a": 1}}', "empty"),
        (b'{"a": 1}{"a": 2}', "2 JSON objects in a record"),
        (b'{"a": 1}\n{"a": 2}', "2 JSON objects in a record"),
        (b'{"b": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"b": "\x00"}', "quotation mark"),
        (b'{"b": "\\ud800"}', "surrogate"),
        (b'{"b": "}', "string"),
        (b'{"b": {}', "changed from string to object"),
    ],
)
def test_a_broken_value_is_found_among_good_ones(value: bytes | None, reason: str) -> None:
    rows, broken = decoded([GOOD, value, GOOD, GOOD])
    assert rows == [(1, "x")] * 3
    assert list(broken) == [1] and reason in broken[1]
    assert decoded([value]) == ([], {0: broken[1]})


def test_two_halves_of_an_object_are_two_broken_values() -> None:
    for halves in ([b'{"b": "}', b'{"}'], [b'{"a":{}', b"{}}"], [b'{"b":"x"},{}', b'{"a":{}}}']):
        rows, broken = decoded([GOOD, *halves, GOOD])
        assert rows == [(1, "x")] * 2 and sorted(broken) == [1, 2], halves


@given(st.lists(st.one_of(st.binary(max_size=8), st.sampled_from([b'{"a":1}', b'{"b":"x"}', b'{"a":', b"}", b"null"]))))
def test_a_value_is_decoded_alone_as_it_is_among_others(values: list[bytes]) -> None:
    rows, broken = decoded(list(values))
    alone = [decoded([value]) for value in values]
    assert rows == [row for found, _ in alone for row in found]
    assert broken == {number: wrong[0] for number, (_, wrong) in enumerate(alone) if wrong}


@given(st.lists(st.tuples(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.text())))
def test_what_python_writes_is_read(rows: list[tuple[int | None, str | None]]) -> None:
    values: list[bytes | None] = []
    expected = []
    for a, b in rows:
        try:
            values.append(json.dumps({"b": b, "a": a}, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            continue
        expected.append((a, b))
    assert decoded(values) == (expected, {})


def test_a_column_that_must_not_be_null() -> None:
    rows, broken = decoded([b'{"a": 1}', b"{}", b'{"a": null}'], parse_schema("a long not null"))
    assert rows == [(1,)]
    assert sorted(broken) == [1, 2] and "a required field was" in broken[1]


def test_types() -> None:
    schema = parse_schema(
        "t timestamp, n timestamp_ntz, d date, m decimal(10,2), f double, y boolean, l array<date>, s struct<x: int>"
    )
    value = {
        "t": "2024-01-02T03:04:05.123456+02:00",
        "n": "2024-01-02 03:04:05",
        "d": "2024-01-02",
        "m": 1.5,
        "f": 2,
        "y": True,
        "l": ["2024-01-02", None],
        "s": {"x": 1, "z": 2},
    }
    rows, broken = decoded([json.dumps(value).encode(), b'{"d": "2024-02-30"}', b'{"s": null}'], schema)
    utc = datetime.timezone.utc
    day = datetime.date(2024, 1, 2)
    assert rows[0] == (
        datetime.datetime(2024, 1, 2, 1, 4, 5, 123456, tzinfo=utc),
        datetime.datetime(2024, 1, 2, 3, 4, 5),
        day,
        Decimal("1.50"),
        2.0,
        True,
        [day, None],
        {"x": 1},
    )
    assert list(broken) == [1] and "2024-02-30" in broken[1]


def test_text_and_bytes() -> None:
    text = decoder("text", value_schema("s", "text", None))([b"x", None, b"\xff", "é".encode()])
    assert text.rows.column("value").to_pylist() == ["x", None, "é"]
    assert text.broken == {2: "not UTF-8 at byte 0"}
    raw = decoder("bytes", value_schema("s", "bytes", None))([b"x", None, b"\xff"])
    assert raw.rows.column("value").to_pylist() == [b"x", None, b"\xff"] and not raw.broken


@pytest.mark.parametrize(
    ("kind", "schema", "message"),
    [
        ("json", None, "needs a schema"),
        ("text", "a long", "takes no schema"),
        ("avro", None, "value must be 'json', 'bytes' or 'text', not 'avro'"),
        ("json", "a map<string, int>", "'a' cannot be read from JSON as map<string, int32>"),
        ("json", "a struct<x: array<binary>>", "'a' cannot be read from JSON as binary"),
    ],
)
def test_what_cannot_be_decoded_is_refused(kind: str, schema: str | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        value_schema("s", kind, None if schema is None else parse_schema(schema))


def test_arrows_other_types_are_tried() -> None:
    with pytest.raises(ConfigurationError, match="the schema cannot be read from JSON"):
        value_schema("s", "json", pa.schema([("a", pa.month_day_nano_interval())]))
