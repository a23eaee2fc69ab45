"""Text files: every line once, whatever the splits, and every kind of bad input said."""

from __future__ import annotations

import os
import time
from itertools import chain
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources import text as text_module
from flinkplus.sources.text import TextFiles
from tests.examples import examples
from tests.unit.sources.source_checks import check_replay, drain, opened, read_all

SAMPLE = "erste Zeile\nzwei\r\n\n\r\n  drei 🎉\nvier\rvier\r\r\nfünf\n\n".encode() + b"last\r"
contents = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", "é".encode(), b"\xff", b"\xc3"]), max_size=25
).map(b"".join)


def lines_of(data: bytes) -> list[str]:
    """The lines by the rules, in plain Python."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    last = lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines] + ([last] if last else [])
    return [line.decode("utf-8", "replace") for line in lines]


def source_of(path: Path, **options: Any) -> TextFiles:
    return TextFiles("lines", path, **options).planned()


def values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"] for row in rows]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "text"


def test_split_at_every_byte_with_every_size(file: Path) -> None:
    file.write_bytes(SAMPLE)
    expected = lines_of(SAMPLE)
    for split_bytes in range(1, len(SAMPLE) + 2):
        for chunk_bytes in (1, 2, 3, 7, 1000):
            source = source_of(file, split_bytes=split_bytes, chunk_bytes=chunk_bytes)
            assert values(read_all(source)[0]) == expected
        for parallelism in (2, 3):
            parts = read_all(source, parallelism)
            assert sorted(values(list(chain.from_iterable(parts)))) == sorted(expected)


@given(
    st.lists(contents, min_size=1, max_size=3),
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 5),
)
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_any_splits_any_replay(
    tmp_path: Path, files: list[bytes], split_bytes: int, chunk_bytes: int, parallelism: int, repeat: int, max_rows: int
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    for number, data in enumerate(files):
        (tmp_path / f"f{number}").write_bytes(data)
    source = source_of(tmp_path, split_bytes=split_bytes, chunk_bytes=chunk_bytes, repeat=repeat)
    expected = [line for data in files for line in lines_of(data)]
    parts = read_all(source, parallelism, max_rows)
    assert sorted(values(list(chain.from_iterable(parts)))) == sorted(expected * repeat)
    assert values(read_all(source)[0]) == expected * repeat
    for part in parts:
        assert part == part[: len(part) // repeat] * repeat
    check_replay(source, parallelism - 1, parallelism, max_rows, 3)


def test_splits_are_even_and_dealt_in_turn(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 600)
    (tmp_path / "b").write_bytes(b"x" * 400)
    source = source_of(tmp_path, split_bytes=400)
    sizes = [
        sum(split.end - split.start for part in source._parts(4)[index::4] for split in part) for index in range(4)
    ]
    assert sizes == [250] * 4
    assert [(os.path.basename(s.file.path), s.start, s.end) for s in source.plan()] == [
        ("a", 0, 333),
        ("a", 333, 600),
        ("b", 0, 66),
        ("b", 66, 400),
    ]


def test_bad_bytes_are_replaced_and_counted(file: Path) -> None:
    data = b"good\nb\xffad\xc3\n\xe2\x82\n\xc3\xa9\n" * 3
    file.write_bytes(data)
    source = source_of(file, repeat=2, chunk_bytes=11)
    reader = opened(source)
    assert values(drain(reader)) == lines_of(data) * 2
    assert reader.metrics == {"rows": 24, "invalid_lines": 12}
    check_replay(source, 0, 1, 1, 5)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bad_bytes_as_an_error_name_file_and_byte(file: Path, mark: bytes) -> None:
    file.write_bytes(mark + b"good\r\nb\xffad\n")
    with pytest.raises(InputError, match=rf"text' is not UTF-8 at byte {7 + len(mark)} \(0xff\)"):
        drain(opened(source_of(file, errors="strict")))
    file.write_bytes("gut: ä\n".encode())
    assert values(drain(opened(source_of(file, errors="strict")))) == ["gut: ä"]


def test_byte_order_mark_is_skipped(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfa\nb")
    assert values(drain(opened(source_of(file)))) == ["a", "b"]
    check_replay(source_of(file), 0, 1, 1, 1)
    file.write_bytes(b"\xef\xbb\xbf")
    assert drain(opened(source_of(file, repeat=10))) == []


def test_empty_files_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert read_all(source_of(tmp_path, repeat=10**9), 3) == [[], [], []]
    (tmp_path / "b").write_bytes(b"x")
    assert read_all(source_of(tmp_path, repeat=2), 2) == [[], [{"value": "x"}] * 2]


def test_looping_over_nothing_ends(file: Path) -> None:
    file.write_bytes(b"one long line")
    source = source_of(file, repeat=10**12)
    started = time.process_time()
    assert opened(source, 1, 2).read(10) is None
    assert time.process_time() - started < 1


def test_a_100_mb_line(file: Path) -> None:
    with open(file, "wb") as out:
        out.write(b"short\n")
        for _ in range(100):
            out.write(b"long " * 200_000)
        out.write(b"\nlast")
    started = time.process_time()
    first, long, last = drain(opened(source_of(file)))
    assert time.process_time() - started < 5
    assert (first["value"], len(long["value"]), last["value"]) == ("short", 100_000_000, "last")
    parts = read_all(source_of(file), 3)
    assert sorted(len(row["value"]) for part in parts for row in part) == [4, 5, 100_000_000]


def test_a_line_beyond_the_limit_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_LINE_BYTES", 100)
    file.write_bytes(b"ok\n" + b"x" * 200)
    with pytest.raises(InputError, match=r"text' has a line of 1 GB or more at byte 3"):
        drain(opened(source_of(file, chunk_bytes=10)))


def test_what_a_path_may_be(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", "_hidden", ".hidden", "sub/d.txt", "[x].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def read(path: str) -> list[str]:
        return values(read_all(TextFiles("lines", path).planned())[0])

    assert read(f"{tmp_path}") == ["[x].txt", "a.txt", "b.txt", "c.md"]
    assert read(f"{tmp_path}/a.txt") == read(f"file://{tmp_path}/a.txt") == read(f"file:{tmp_path}/a.txt") == ["a.txt"]
    assert read(f"{tmp_path}/[x].txt") == ["[x].txt"]
    assert read(f"{tmp_path}/?.txt") == ["a.txt", "b.txt"]
    assert read(f"{tmp_path}/**/*.txt") == ["[x].txt", "a.txt", "b.txt", "sub/d.txt"]
    assert read(f"{tmp_path}/s*") == ["sub/d.txt"]
    assert read(f"{tmp_path}/_hidden") == ["_hidden"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "no such file"),
        ("*.txt", "no file matches"),
        ("empty", "no files in the directory"),
        ("a.gz", "compressed"),
        ("s3://bucket/a", "from_spark"),
        ("locked", "cannot read"),
    ],
)
def test_input_that_is_not_there(tmp_path: Path, path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.gz").touch()
    (tmp_path / "locked").touch()
    real_open = open

    def locked_open(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return real_open(file, *arguments, **options)

    monkeypatch.setattr("builtins.open", locked_open)
    with pytest.raises(InputError, match=message) as caught:
        TextFiles("lines", path if "://" in path else str(tmp_path / path)).planned()
    assert "'lines'" in str(caught.value) and path.rstrip("*") in str(caught.value)


def test_a_file_that_changed(file: Path) -> None:
    file.write_bytes(b"a\nb\n")
    source = source_of(file)
    file.write_bytes(b"a\nb\nc\n")
    with pytest.raises(InputError, match=r"text' has changed: 4 bytes when the job was planned, now 6"):
        drain(opened(source))
    file.unlink()
    with pytest.raises(InputError, match=r"cannot read .*No such file"):
        drain(opened(source))


def test_a_file_cut_while_it_is_read(file: Path) -> None:
    file.write_bytes(b"a\n" * 50)
    reader = opened(source_of(file, chunk_bytes=10))
    assert reader.read(1) is not None
    os.truncate(file, 20)
    with pytest.raises(InputError, match="shorter"):
        drain(reader)
    reader.close()


def test_positions_of_other_input_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n" * 5)
    source = source_of(tmp_path, repeat=2)
    reader = opened(source)
    reader.read(3)
    good: Any = reader.position()
    assert len(drain(opened(source, position=good))) == 17
    bad: list[Any] = [good | {"format": 9}, good | {"split": -1}, good | {"round": "0"}, [], 5, {"format": 1}]
    for position in bad:
        with pytest.raises(InputError, match="not a position"):
            opened(source, position=position)
    with pytest.raises(InputError, match="does not lie in"):
        drain(opened(source, position=good | {"cursor": 1000}))
    for other in (source_of(tmp_path / "a"), source_of(tmp_path, split_bytes=3, repeat=2)):
        with pytest.raises(InputError, match="other files"):
            opened(other, position=good)
    with pytest.raises(InputError, match="fewer passes"):
        opened(source_of(tmp_path), position=good | {"round": 2})
    (tmp_path / "a").write_text("a\n" * 6)
    with pytest.raises(InputError, match="other file sizes"):
        opened(source_of(tmp_path, repeat=2), position=good)


@pytest.mark.parametrize("options", [{"repeat": 0}, {"errors": "ignore"}, {"split_bytes": 0}, {"chunk_bytes": 0}])
def test_options_must_make_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'lines'.*" + next(iter(options))):
        TextFiles("lines", "x", **options)


def test_readers_need_a_plan(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="planned"):
        TextFiles("lines", file).reader(0, 1)
    file.write_bytes(b"a")
    assert source_of(file).planned().files == source_of(file).files
