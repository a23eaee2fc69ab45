"""Rows as records: each column, what a record cannot hold, and what ``from_kafka`` reads again."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sinks.kafka.records import STAGED, RecordEncoder, RecordForm, Staged, staged_records
from flinkplus.sources.kafka.columns import HEADERS
from flinkplus.sources.kafka.decoding import decoder

AS_JSON = RecordForm()
UTC = datetime.timezone.utc
NOT_UTF8 = pa.Array.from_buffers(pa.binary(), 1, pa.array([b"\xff"]).buffers()).view(pa.string())


def batch(**columns: Any) -> pa.RecordBatch:
    """Each column: its type, and values."""
    arrays = [pa.array(values, dtype) for dtype, *values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def staged(rows: pa.RecordBatch, form: RecordForm = AS_JSON) -> list[Staged]:
    form.check(rows.schema, "out")
    stream = pa.BufferOutputStream()
    encoder = RecordEncoder(stream, form, "out")
    encoder.write(rows)
    encoder.write(rows.slice(0, 0))
    encoder.finish()
    return list(staged_records(stream.getvalue().to_pybytes()))


def value_of(rows: pa.RecordBatch, form: RecordForm = AS_JSON) -> bytes | None:
    ((_, value, _, _),) = staged(rows, form)
    return value


MANY = batch(
    flag=(pa.bool_(), True, None),
    small=(pa.int8(), -3, 4),
    large=(pa.int64(), 2**63 - 1, -(2**63)),
    unsigned=(pa.uint64(), 2**64 - 1, 0),
    half=(pa.float32(), 0.5, -0.0),
    double=(pa.float64(), 0.1, 1e300),
    text=(pa.string(), 'ü "\n', None),
    long_text=(pa.large_string(), "x", ""),
    exact=(pa.decimal128(20, 3), Decimal("12345678901234567.890"), Decimal("-0.001")),
    day=(pa.date32(), datetime.date(2024, 2, 29), None),
    moment=(pa.timestamp("us", "UTC"), datetime.datetime(2024, 1, 2, 3, 4, 5, 6, UTC), None),
    local=(pa.timestamp("us"), datetime.datetime(2024, 1, 2, 3, 4, 5), None),
    items=(pa.list_(pa.int64()), [1, None], []),
    inner=(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}, None),
)


def test_a_source_reads_again_what_was_written_as_json() -> None:
    values = [value for _, value, _, _ in staged(MANY)]
    assert values[0] is not None
    assert values[0].decode().startswith('{"flag":true,"small":-3,"large":9223372036854775807,')
    assert '"exact":"12345678901234567.890","day":"2024-02-29","moment":"2024-01-02T03:04:05.000006Z"' in str(values[0])
    decoded = decoder("json", MANY.schema)(values)
    assert not decoded.broken
    assert decoded.rows.to_pylist() == MANY.to_pylist()


def test_times_are_text_in_utc_and_finer_ones_are_cut() -> None:
    zone = pa.timestamp("ns", "Asia/Kolkata")
    rows = batch(at=(zone, 1_700_000_000_123_456_789), day=(pa.date64(), datetime.date(2024, 1, 1)))
    assert value_of(rows) == b'{"at":"2023-11-14T22:13:20.123456Z","day":"2024-01-01"}'
    nested = pa.list_(pa.timestamp("ns"))
    assert value_of(batch(at=(nested, [1_700_000_000_123_456_789]))) == b'{"at":["2023-11-14T22:13:20.123456"]}'


@pytest.mark.parametrize(
    ("columns", "key", "found"),
    [
        ({"k": (pa.string(), "ü")}, ("k",), "ü".encode()),
        ({"k": (pa.binary(), b"\xff")}, ("k",), b"\xff"),
        ({"k": (pa.binary(2), b"ab")}, ("k",), b"ab"),
        ({"k": (pa.string(), None)}, ("k",), None),
        ({"k": (pa.int64(), 42)}, ("k",), b"42"),
        ({"k": (pa.int64(), None)}, ("k",), None),
        ({"k": (pa.bool_(), True)}, ("k",), b"true"),
        ({"k": (pa.string(), "a"), "n": (pa.int64(), None)}, ("n", "k"), b'{"n":null,"k":"a"}'),
        ({}, (), None),
    ],
)
def test_keys(columns: dict[str, Any], key: tuple[str, ...], found: bytes | None) -> None:
    rows = batch(**columns, value=(pa.string(), "v"))
    assert staged(rows, RecordForm("text", key)) == [(found, b"v", None, None)]


def test_values_of_bytes_and_text_are_as_they_are_and_a_null_is_a_tombstone() -> None:
    assert staged(batch(value=(pa.binary(), b"\x00\xff", None)), RecordForm("bytes")) == [
        (None, b"\x00\xff", None, None),
        (None, None, None, None),
    ]
    assert [one[1] for one in staged(batch(value=(pa.large_string(), "ü", None)), RecordForm("text"))] == [
        b"\xc3\xbc",
        None,
    ]


def test_headers_and_partition_are_no_part_of_a_json_value() -> None:
    rows = batch(
        n=(pa.int64(), 1, 2, 3),
        h=(HEADERS, [{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None),
        p=(pa.int64(), 7, None, 0),
    )
    form = RecordForm(headers="h", partition="p")
    assert staged(rows, form) == [
        (None, b'{"n":1}', [("a", b"1"), ("a", None)], 7),
        (None, b'{"n":2}', [], None),
        (None, b'{"n":3}', None, 0),
    ]
    maps = batch(value=(pa.string(), "v"), h=(pa.map_(pa.string(), pa.string()), [("a", "ü"), ("b", None)]))
    assert staged(maps, RecordForm("text", headers="h")) == [(None, b"v", [("a", "ü".encode()), ("b", None)], None)]


@pytest.mark.parametrize(
    ("rows", "form", "message"),
    [
        (
            batch(x=(pa.float64(), 1.0, math.nan)),
            RecordForm(),
            "column 'x', row 1 of the batch cannot be .* JSON: Out of",
        ),
        (batch(x=(pa.list_(pa.float64()), [math.inf])), RecordForm(), "column 'x', row 0 of the batch cannot be"),
        (
            batch(k=(pa.float64(), math.nan), value=(pa.string(), "v")),
            RecordForm("text", ("k",)),
            "key column 'k', row 0",
        ),
        (
            batch(at=(pa.timestamp("s"), 2**40)),
            RecordForm(),
            "column 'at', row 0 of the batch cannot be written as JSON",
        ),
        (
            batch(at=(pa.date32(), 10_000_000)),
            RecordForm(),
            "column 'at', row 0 of the batch cannot be written as JSON",
        ),
        (
            pa.RecordBatch.from_arrays([NOT_UTF8], ["x"]),
            RecordForm(),
            "column 'x', row 0 .* 'utf-8' codec can't decode",
        ),
        (
            pa.RecordBatch.from_arrays([NOT_UTF8], ["value"]),
            RecordForm("text"),
            "column 'value' holds text that is not",
        ),
        (batch(n=(pa.int64(), 1), p=(pa.int64(), -1)), RecordForm(partition="p"), "partition column 'p' holds -1"),
        (
            batch(n=(pa.int64(), 1), p=(pa.int64(), 2**40)),
            RecordForm(partition="p"),
            "partition column 'p': Integer value",
        ),
        (
            batch(n=(pa.int64(), 1), h=(HEADERS, [{"key": None, "value": b"x"}])),
            RecordForm(headers="h"),
            "headers column 'h' holds a header without a key",
        ),
        (
            batch(value=(pa.binary(), b"x" * 2_000)),
            RecordForm("bytes", max_bytes=2_035),
            r"a record of 2036 bytes is larger than message.max.bytes \(2035\)",
        ),
        (
            batch(value=(pa.binary(), b"x"), h=(HEADERS, [{"key": "ü" * 500, "value": b"y" * 1_000}])),
            RecordForm("bytes", headers="h", max_bytes=2_000),
            "a record of 2047 bytes",
        ),
    ],
)
def test_what_no_record_can_hold_is_an_error_where_it_is_made(
    rows: pa.RecordBatch, form: RecordForm, message: str
) -> None:
    with pytest.raises(InputError, match=f"sink 'out': .*{message}"):
        staged(rows, form)


@pytest.mark.parametrize(
    ("schema", "form", "message"),
    [
        ({"x": pa.binary()}, RecordForm(), "column 'x' cannot be written as JSON: it holds binary"),
        ({"x": pa.list_(pa.time64("us"))}, RecordForm(), "column 'x' .* it holds time64"),
        ({"x": pa.map_(pa.string(), pa.string())}, RecordForm(), "column 'x' .* it holds map"),
        ({"x": pa.dictionary(pa.int32(), pa.string())}, RecordForm(), "column 'x' .* it holds dictionary"),
        (
            {"word": pa.string()},
            RecordForm(key=("wrod",)),
            "key column 'wrod' is not in the stream.*did you mean 'word'",
        ),
        ({"p": pa.int64()}, RecordForm(partition="p"), "no column is left for the value"),
        (
            {"n": pa.int64(), "p": pa.string()},
            RecordForm(partition="p"),
            "partition column 'p' must hold whole numbers",
        ),
        ({"n": pa.int64(), "h": pa.string()}, RecordForm(headers="h"), "headers column 'h' must be array<struct"),
        (
            {"n": pa.int64(), "h": pa.list_(pa.string())},
            RecordForm(headers="h"),
            "headers column 'h' must be array<struct",
        ),
        ({"n": pa.int64()}, RecordForm("text"), "value='text' takes the column 'value' of type string; .* n int64"),
        ({"value": pa.string()}, RecordForm("bytes"), "value='bytes' takes the column 'value' of type binary"),
        ({"value": pa.string(), "n": pa.int64()}, RecordForm("text"), "column 'n' would be in no part of a record"),
        (
            {"value": pa.string(), "k": pa.binary(), "n": pa.int64()},
            RecordForm("text", ("k", "n")),
            "column 'k' cannot be written as JSON",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_when_the_job_is_drawn(
    schema: dict[str, pa.DataType], form: RecordForm, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"sink 'out': .*{message}"):
        form.check(pa.schema(list(schema.items())), "out")


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="different names"):
        RecordForm().check(pa.schema([("a", pa.int64()), ("a", pa.int64())]), "out")


def test_a_file_of_another_format_is_refused() -> None:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, STAGED) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=STAGED))
    with pytest.raises(ValueError, match="its format is another one"):
        list(staged_records(stream.getvalue().to_pybytes()))
