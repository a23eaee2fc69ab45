"""Formats: every record once, from any record on, with any size of chunks; broken ones said or passed over."""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources.files.parquet_format import fits
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import FileBlock
from flinkplus.sources.files.source import DirectoryFiles
from tests.examples import examples
from tests.unit.sources.files.driven import put, source_of

UTC = datetime.timezone.utc


def blocks_of(source: DirectoryFiles, cursor: int = 0, record: int = 0) -> list[FileBlock]:
    (file,) = source.directory.files()
    return list(source.form.blocks(source.directory, OpenFile(file, cursor, record)))


def rows_of(source: DirectoryFiles) -> list[dict[str, Any]]:
    return [row for block in blocks_of(source) for row in block.rows.to_pylist()]


def check_places(source: DirectoryFiles) -> list[dict[str, Any]]:
    """From behind each record, the rest of the records is the same. Returns all rows."""
    blocks = blocks_of(source)
    cursors = [int(cursor) for block in blocks for cursor in block.cursors]
    each = [block.between(at, at + 1) for block in blocks for at in range(block.records)]
    kept = [part.to_pylist() for part, _, _ in each]
    for record, cursor in enumerate(cursors, 1):
        rest = blocks_of(source, cursor, record)
        again = [block.between(at, at + 1) for block in rest for at in range(block.records)]
        assert [part.to_pylist() for part, _, _ in again] == kept[record:]
        assert [(broken, repaired) for _, broken, repaired in again] == [(b, r) for _, b, r in each[record:]]
        assert [int(c) for block in rest for c in block.cursors] == cursors[record:]
    return [row for part in kept for row in part]


# --- text

LINES = st.lists(st.sampled_from(["", "a", "bc\r", "\xe4", "\ufeff", "lines of a file", " "]), max_size=9)


@given(LINES, st.sampled_from(["", "\n"]), st.sampled_from(["", ".gz", ".bz2"]), st.integers(1, 9))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_from_any_line_on(tmp_path: Path, lines: list[str], end: str, ending: str, chunk: int) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    text = "\n".join(lines) + (end if lines else "")
    compress: Any = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[ending]
    put(tmp_path / f"a.txt{ending}", compress(text.encode()))
    found = check_places(source_of(tmp_path, chunk_bytes=chunk))
    expected = text.removeprefix("\ufeff").split("\n")
    if expected[-1] == "":
        expected.pop()
    plain = [line.removesuffix("\r") if n < text.count("\n") else line for n, line in enumerate(expected)]
    assert [row["value"] for row in found] == plain


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    put(tmp_path / "a", b"ok\nb\xffd\n\xfe\n")
    (block,) = blocks_of(source_of(tmp_path))
    assert block.rows.to_pylist() == [{"value": "ok"}, {"value": "b\ufffdd"}, {"value": "\ufffd"}]
    assert block.between(0, 3)[2] == 2 and block.between(0, 2)[2] == 1
    with pytest.raises(InputError, match=r"a' is not UTF-8 at byte 4 \(0xff\)"):
        blocks_of(source_of(tmp_path, errors="strict"))


def test_a_stream_of_gzip_members_is_one_file(tmp_path: Path) -> None:
    put(tmp_path / "a.gz", gzip.compress(b"1\n2") + gzip.compress(b"3\n4\n"))
    assert [row["value"] for row in check_places(source_of(tmp_path, chunk_bytes=2))] == ["1", "23", "4"]


def test_compression_that_is_not_known_or_broken(tmp_path: Path) -> None:
    put(tmp_path / "a.xz", b"x")
    with pytest.raises(InputError, match="compressed in a way"):
        blocks_of(source_of(tmp_path))
    (tmp_path / "a.xz").unlink()
    put(tmp_path / "a.gz", gzip.compress(b"line\n" * 1000)[:-20])
    with pytest.raises(OSError):
        blocks_of(source_of(tmp_path))


# --- JSON

TYPES = (
    "i int, n long, f double, s string, b boolean, d date, t timestamp, u timestamp_ntz, m decimal(10,2), l array<date>"
)
TYPED = (
    '{"i": 1, "n": 9007199254740993, "f": 1, "s": "\\u00e9\\n", "b": true, "d": "2024-02-29",'
    ' "t": "2024-01-01T00:00:00Z", "u": "2024-01-01 00:00:00.5", "m": "1.25",'
    ' "l": ["2024-01-01", null], "more": {"x": [1]}}'
)


def test_types_of_json(tmp_path: Path) -> None:
    put(tmp_path / "a.json", f"{TYPED}\n{{}}\n")
    first, second = rows_of(source_of(tmp_path, "json", TYPES))
    assert first == {
        "i": 1,
        "n": 9007199254740993,
        "f": 1.0,
        "s": "\xe9\n",
        "b": True,
        "d": datetime.date(2024, 2, 29),
        "t": datetime.datetime(2024, 1, 1, tzinfo=UTC),
        "u": datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000),
        "m": Decimal("1.25"),
        "l": [datetime.date(2024, 1, 1), None],
    }
    assert set(second.values()) == {None}


GOOD = [b'{"n": 1}', b'{"n": 2, "m": {"n": 3}}', b' {"n": 3} \t', b"{}", b"", b"  ", b'{"n": null}\r']
BAD = [
    b"{",
    b"[1]",
    b'{"n": 1}{"n": 2}',
    b'{"n": "1"}',
    b'{"n": 1.5}',
    b"\xff",
    b'{"s": "\xff"}',
    b"}",
    b'{"n":',
    b"1}",
]


@given(st.lists(st.sampled_from(GOOD + BAD), max_size=9), st.integers(1, 30))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_broken_lines_of_json_are_passed_over(tmp_path: Path, lines: list[bytes], chunk: int) -> None:
    put(tmp_path / "a", b"\n".join(lines))
    source = source_of(tmp_path, "json", "n long, s string", on_error="skip", chunk_bytes=chunk)
    found = check_places(source)
    assert [row["n"] for row in found] == [json.loads(line).get("n") for line in lines if line in GOOD and line.strip()]
    blocks = blocks_of(source)
    assert sum(block.between(0, block.records)[1] for block in blocks) == sum(line in BAD for line in lines)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"n": "x"}', r"Column\(/n\) changed from number to string"),
        (b"[1]", "not a JSON object"),
        (b'{"n": 1}{"n": 2}', "more than one JSON object in a line"),
        (b'{"s": "\xff"}', "not UTF-8 at byte 7"),
        (b"{}", "null in the column 'n', which is NOT NULL"),
        (b'{"n": 1, "d": "2024-02-30"}', "column 'd'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    put(tmp_path / "a.json", b'{"n": 1}\n\n{"n": 2}\n' + line + b'\n{"n": 3}\n')
    with pytest.raises(InputError, match=rf"a\.json', row 4: {reason}"):
        blocks_of(source_of(tmp_path, "json", "n long NOT NULL, s string, d date"))


# --- CSV


def test_types_of_csv(tmp_path: Path) -> None:
    put(
        tmp_path / "a.csv",
        'x,t,u,s,n,m,b,d\n1,2024-01-01T00:00:00+01:00,2024-01-01 00:00:00,"a ""b""",7,1.25,true,2024-02-29\n\n'
        '2,2024-01-01 00:00:00,,"",,,,\n',
    )
    found = rows_of(
        source_of(
            tmp_path,
            "csv",
            "n long, s string, t timestamp, u timestamp_ntz, m decimal(10,2), b boolean, d date",
        )
    )
    assert found == [
        {
            "n": 7,
            "s": 'a "b"',
            "t": datetime.datetime(2023, 12, 31, 23, tzinfo=UTC),
            "u": datetime.datetime(2024, 1, 1),
            "m": Decimal("1.25"),
            "b": True,
            "d": datetime.date(2024, 2, 29),
        },
        {
            "n": None,
            "s": "",
            "t": datetime.datetime(2024, 1, 1, tzinfo=UTC),
            "u": None,
            "m": None,
            "b": None,
            "d": None,
        },
    ]


CSV_GOOD = [b"1,a", b',"b ""c"""', b"2,", b"", b'3,"d"\r']
CSV_BAD = [b"x,a", b"1", b"1,2,3", b"1,\xff"]


@given(st.lists(st.sampled_from(CSV_GOOD + CSV_BAD), max_size=9), st.booleans(), st.integers(1, 30))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_broken_lines_of_csv_are_passed_over(tmp_path: Path, lines: list[bytes], header: bool, chunk: int) -> None:
    put(tmp_path / "a", b"\n".join([b"n,s"] * header + lines))
    source = source_of(tmp_path, "csv", "n long, s string", on_error="skip", chunk_bytes=chunk, header=header)
    values = {CSV_GOOD[0]: (1, "a"), CSV_GOOD[1]: (None, 'b "c"'), CSV_GOOD[2]: (2, None), CSV_GOOD[4]: (3, "d")}
    assert [(row["n"], row["s"]) for row in check_places(source)] == [values[line] for line in lines if line in values]
    broken = sum(block.between(0, block.records)[1] for block in blocks_of(source))
    assert broken == sum(line in CSV_BAD for line in lines)


def test_values_of_several_lines(tmp_path: Path) -> None:
    put(tmp_path / "a", 's;n\n"one\ntwo";1\n"three ""\n""";2\n')
    source = source_of(tmp_path, "csv", "n long, s string", delimiter=";", multiline=True, chunk_bytes=3)
    assert [row["s"] for row in check_places(source)] == ["one\ntwo", 'three "\n"']


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("n,s\n1,a\nx,b\n", r"row 3: column 'n': .*invalid value 'x'"),
        ("s,n\na,1\nb,x\n", r"row 3: column 'n': .*invalid value 'x'"),
        ("n,s\n1\n", "row 2: .*Expected 2 columns, got 1"),
        ("n,t\n1,a\n", "has no column 's' in its header"),
        ("n,s,s\n1,a,b\n", "has two columns 's' in its header"),
    ],
)
def test_a_broken_row_of_csv_is_named(tmp_path: Path, content: str, reason: str) -> None:
    put(tmp_path / "a.csv", content)
    with pytest.raises(InputError, match=rf"a\.csv'(?:,)? {reason}"):
        blocks_of(source_of(tmp_path, "csv", "n long, s string"))


def test_a_file_with_nothing_is_no_error(tmp_path: Path) -> None:
    put(tmp_path / "a", "")
    for form, schema in (("csv", "n long"), ("json", "n long"), ("text", None)):
        assert rows_of(source_of(tmp_path, form, schema)) == []
    put(tmp_path / "a", "\ufeff")
    for form, schema in (("json", "n long"), ("text", None)):
        assert rows_of(source_of(tmp_path, form, schema)) == []


# --- Parquet


def test_rows_of_parquet_from_any_row_on(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(25)), "n": pa.array(range(25), pa.int32()), "s": [f"r{n}" for n in range(25)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    found = check_places(source_of(tmp_path, "parquet", "s string, n long"))
    assert found == [{"s": f"r{n}", "n": n} for n in range(25)]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("n long, m long", "has no column 'm'"),
        ("n string", "the column 'n' is int64, not string"),
        ("n int", "the column 'n' is int64, not int32"),
        ("s string NOT NULL", "has a null in the column 's', which is NOT NULL"),
    ],
)
def test_parquet_that_does_not_fit_is_named(tmp_path: Path, schema: str, reason: str) -> None:
    pq.write_table(pa.table({"n": [1, 2], "s": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a\.parquet'.* {reason}"):
        blocks_of(source_of(tmp_path, "parquet", schema))


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", "text" * 10)
    with pytest.raises(InputError, match=r"a\.parquet' cannot be read as Parquet"):
        blocks_of(source_of(tmp_path, "parquet", "n long"))


def test_which_types_fit() -> None:
    for there, wanted in [
        (pa.int32(), pa.int64()),
        (pa.uint32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.string(), pa.large_string()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.decimal128(9, 2), pa.decimal128(12, 3)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())])),
    ]:
        assert fits(there, wanted), (there, wanted)
    for there, wanted in [
        (pa.int64(), pa.int32()),
        (pa.uint64(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(12, 3), pa.decimal128(12, 4)),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
        (pa.int64(), pa.list_(pa.int64())),
    ]:
        assert not fits(there, wanted), (there, wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "json"}, "needs a schema"),
        ({"form": "text", "schema": "value string"}, "takes no schema"),
        ({"form": "json", "schema": "m map<string, long>"}, "column 'm' cannot be read from JSON"),
        ({"form": "json", "schema": "l array<struct<b: binary>>"}, "cannot be read from JSON as binary"),
        ({"form": "csv", "schema": "l array<long>"}, "column 'l' cannot be read from CSV"),
        ({"form": "csv", "schema": "n long", "delimiter": "||"}, "delimiter must be one ASCII character"),
        ({"form": "text", "header": False}, "header is an option of format='csv'"),
        ({"form": "orc", "schema": "n long"}, "format must be"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"errors": "ignore"}, "errors must be"),
        ({"changed": "retry"}, "changed must be"),
        ({"after": "burn"}, "after must be"),
        ({"after": "archive"}, "archive_dir go together"),
        ({"file_column": "value"}, "choose another file_column"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        source_of(tmp_path, **options)
