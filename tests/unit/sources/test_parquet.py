"""Staged Parquet: every row once, from any position, in bounded memory, and bad files said."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources.parquet import StagedParquet
from flinkplus.sources.utf8 import invalid_rows, repaired
from tests.examples import examples
from tests.unit.sources.source_checks import check_replay, drain, opened, read_all

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


def write(path: Path, start: int, rows: int, group_rows: int = 1000) -> str:
    numbers = range(start, start + rows)
    table = pa.table({"extra": list(numbers), "n": list(numbers), "word": [f"w{n}" for n in numbers]})
    pq.write_table(table, path, row_group_size=group_rows)
    return str(path)


def staged(*files: str, **options: Any) -> StagedParquet:
    return StagedParquet("rows", files, options.pop("schema", SCHEMA), **options).planned()


def text_of(values: list[Any], dtype: pa.DataType) -> pa.Array:
    """An array whose text may be no UTF-8."""
    if pa.types.is_list(dtype):
        lengths = [0 if v is None else len(v) for v in values]
        flat = text_of([t for v in values if v is not None for t in v], dtype.value_type)
        offsets = [sum(lengths[:i]) for i in range(len(values) + 1)]
        return pa.ListArray.from_arrays(offsets, flat, mask=pa.array([v is None for v in values]))
    return pa.array(values, pa.binary()).cast(pa.string(), safe=False).cast(dtype, safe=False)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 5),
)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_once_from_any_position(
    tmp_path: Path, files: list[tuple[int, int]], parallelism: int, repeat: int, max_rows: int
) -> None:
    paths, start = [], 0
    for number, (rows, group_rows) in enumerate(files):
        paths.append(write(tmp_path / f"{number}.parquet", start, rows, group_rows))
        start += rows
    source = staged(*paths, repeat=repeat)
    expected = [{"n": n, "word": f"w{n}"} for n in range(start)]
    parts = read_all(source, parallelism, max_rows)
    assert [row for part in parts for row in part[: len(part) // repeat]] == expected
    assert all(part == part[: len(part) // repeat] * repeat for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= repeat
    check_replay(source, parallelism - 1, parallelism, max_rows, 4)


def test_a_large_row_group_is_read_in_batches(tmp_path: Path) -> None:
    source = staged(write(tmp_path / "a", 0, 30_000, 30_000))
    reader = opened(source, 1, 2)
    batch = reader.read(10**9)
    assert batch is not None and batch.num_rows < 10_000
    assert batch.column("n")[0].as_py() == 15_000
    assert [row["n"] for row in drain(reader, 5000)] == list(range(15_000 + batch.num_rows, 30_000))


def test_a_directory_as_spark_leaves_it(tmp_path: Path) -> None:
    write(tmp_path / "part-00001.snappy.parquet", 2, 1)
    write(tmp_path / "part-00000.snappy.parquet", 0, 2)
    for name in ("_SUCCESS", ".part.crc", "_x.parquet"):
        (tmp_path / name).touch()
    source = StagedParquet("rows", (), SCHEMA, repeat=2)
    for directory in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}/"):
        at = pickle.loads(pickle.dumps(source.staged_at(directory)))
        assert [row["n"] for row in read_all(at)[0]] == [0, 1, 2] * 2
    (tmp_path / "none").mkdir()
    assert read_all(source.staged_at(str(tmp_path / "none"))) == [[]]
    with pytest.raises(InputError, match="nowhere"):
        source.staged_at(str(tmp_path / "nowhere"))


def test_files_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """More partitions than five digits can number, and more files of a partition than three can."""
    names = [
        "part-00002-a1-c000",
        "part-00002-a1-c999",
        "part-00002-a1-c1000",
        "part-99999-a1-c000",
        "part-100000-a1-c000",
    ]
    for number, name in enumerate(names):
        write(tmp_path / f"{name}.snappy.parquet", number, 1)
    source = StagedParquet("rows", (), SCHEMA).staged_at(str(tmp_path))
    assert [row["n"] for row in read_all(source)[0]] == list(range(len(names)))


def test_timestamps_as_spark_may_store_them(tmp_path: Path) -> None:
    """In 96 bits: nanoseconds would end in the year 2262."""
    times = pa.array([datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 30), None], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": times}), tmp_path / "a", use_deprecated_int96_timestamps=True)
    source = staged(str(tmp_path / "a"), schema=pa.schema([("at", times.type)]))
    assert [row["at"] for row in drain(opened(source))] == times.to_pylist()


def test_text_that_is_not_utf8_within_structs_and_maps(tmp_path: Path) -> None:
    bad = text_of([b"ok", b"\xffx", None], pa.string())
    fields = pa.StructArray.from_arrays([bad, pa.array([1, 2, 3])], names=["t", "n"], mask=pa.array([False] * 3))
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2, 2], pa.int32()), pa.array(["a", "b"]), bad.slice(0, 2))
    pq.write_table(pa.table({"s": fields, "m": maps}), tmp_path / "a")
    source = staged(str(tmp_path / "a"), schema=pa.schema([("s", fields.type), ("m", maps.type)]))
    reader = opened(source)
    assert drain(reader) == [
        {"s": {"t": "ok", "n": 1}, "m": [("a", "ok")]},
        {"s": {"t": "\ufffdx", "n": 2}, "m": [("b", "\ufffdx")]},
        {"s": {"t": None, "n": 3}, "m": []},
    ]
    assert reader.metrics == {"rows": 3, "invalid_lines": 1}


@pytest.mark.parametrize(
    "dtype", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us"), pa.date32(), pa.time64("us")]
)
def test_times_beside_text_that_is_not_utf8_stay_as_they_are(dtype: pa.DataType) -> None:
    far = 2932897 if dtype == pa.date32() else 253402300800000000  # the year 10000
    times = pa.array([far, None, 1], dtype)
    structs = pa.StructArray.from_arrays([text_of([b"\xff", b"ok", None], pa.string()), times], names=["t", "at"])
    bad = invalid_rows(structs)
    assert bad is not None and bad.tolist() == [True, False, False]
    whole = repaired(structs)
    assert whole.field("t").to_pylist() == ["\ufffd", "ok", None] and whole.field("at").equals(times)


def test_columns_come_as_the_schema_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"word": ["a", None], "n": pa.array([1, 2], pa.int32())}), tmp_path / "a")
    reader = opened(staged(str(tmp_path / "a")))
    batch = reader.read(5)
    assert batch is not None and batch.schema == SCHEMA
    assert batch.to_pylist() == [{"n": 1, "word": "a"}, {"n": 2, "word": None}]


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string(), pa.list_(pa.string())])
def test_text_that_is_not_utf8(tmp_path: Path, dtype: pa.DataType) -> None:
    texts: list[Any] = [b"ok", b"\xffx", None, b"\xe2\x82", "é".encode()]
    expected: list[Any] = ["ok", "\ufffdx", None, "\ufffd", "é"]
    if pa.types.is_list(dtype):
        texts = [None if text is None else [b"a", None, text] for text in texts]
        expected = [None if text is None else ["a", None, text] for text in expected]
    pq.write_table(pa.table({"t": text_of(texts, dtype)}), tmp_path / "a")
    schema = pa.schema([("t", dtype)])
    source = staged(str(tmp_path / "a"), schema=schema, repeat=2)
    reader = opened(source)
    assert [row["t"] for row in drain(reader)] == expected * 2
    assert reader.metrics == {"rows": 10, "invalid_lines": 4}
    check_replay(source, 0, 1, 1, 2)
    with pytest.raises(InputError, match="a' holds text that is not UTF-8: row 1 of row group 0, column 't'"):
        drain(opened(staged(str(tmp_path / "a"), schema=schema, errors="strict")))


def test_bad_files_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 0, 10, 5)
    with pytest.raises(InputError, match=r"'rows': cannot read .*nothing"):
        staged(str(tmp_path / "nothing"))
    (tmp_path / "text").write_text("no parquet")
    with pytest.raises(InputError, match=r"'rows': cannot read .*text"):
        staged(str(tmp_path / "text"))
    with pytest.raises(InputError, match="no column 'm'"):
        staged(path, schema=pa.schema([("m", pa.int64())]))
    source = staged(path)
    for rows, group_rows, message in [(5, 5, "row group 1 is no longer"), (10, 6, "other rows than before")]:
        write(tmp_path / "a", 0, rows, group_rows)
        with pytest.raises(InputError, match=message):
            drain(opened(source))
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match="cannot read"):
        drain(opened(source))


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 0, 1000)
    source = staged(path)
    data = bytearray(Path(path).read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[4:-footer] = b"\xff" * (len(data) - 4 - footer)
    Path(path).write_bytes(data)
    with pytest.raises(InputError, match="cannot read"):
        drain(opened(source))


def test_positions_and_options(tmp_path: Path) -> None:
    source = staged(write(tmp_path / "a", 0, 10))
    reader = opened(source)
    reader.read(3)
    position: Any = reader.position()
    with pytest.raises(InputError, match="does not lie in rows"):
        drain(opened(source, position=position | {"cursor": 11}))
    with pytest.raises(InputError, match="another parallelism"):
        opened(source, 0, 2, position)
    with pytest.raises(ConfigurationError, match="planned"):
        StagedParquet("rows", ("a",), SCHEMA).reader(0, 1)
    with pytest.raises(ConfigurationError, match="repeat"):
        StagedParquet("rows", ("a",), SCHEMA, repeat=0)
