"""Writing sorted files and telling whole ones from damaged ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.file_system import file_chunks
from flinkplus.state.sst_format import Chunk, describe, write_sst


def test_description_goes_through_json(tmp_path: Path) -> None:
    entries = write_sst([([b"a", b"b"], [b"1", None]), ([b"c"], [b"3"])], tmp_path / "x.sst")
    file = describe(tmp_path / "x.sst", "count[0]/1-1-1.sst", "delta", entries)
    assert (file.entries, file.bytes) == (3, (tmp_path / "x.sst").stat().st_size)
    assert StateFile.from_json(json.loads(json.dumps(file.to_json()))) == file
    file.check(file_chunks(tmp_path / "x.sst"), "x.sst")


@pytest.mark.parametrize("damage", ["flip", "truncate", "append", "empty"])
def test_damage_is_seen(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.sst"
    file = describe(path, "n", "delta", write_sst([([b"a"], [b"1"])], path))
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"flip": flipped, "truncate": content[:-1], "append": content + b"\0", "empty": b""}[damage])
    with pytest.raises(CorruptState, match="n "):
        file.check(file_chunks(path), "n")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"name": None},
        {"name": "1-1-1.sst"},
        {"name": "../1-1-1.sst"},
        {"name": "a/../1-1-1.sst"},
        {"name": "/a/1-1-1.sst"},
        {"name": "a/1-1-1.sst\n"},
        {"checksum": None},
        {"replaces": ["1-1-1.sst"]},  # an older version
        {"replaces": [["n/1-1-1.sst", "9", "c"]]},
        {"replaces": [["n/1-1-1.sst", 9]]},
        {"replaces": [["../../1-1-1.sst", 9, "c"]]},
        {"replaces": [9]},
    ],
)
def test_bad_description_is_refused(change: dict) -> None:
    document = dataclasses.asdict(StateFile("n/1-2-1.sst", "base", 1, 2, "c")) | change
    document = {key: value for key, value in document.items() if value is not None}
    with pytest.raises(CorruptState):
        StateFile.from_json(document)


def test_unsorted_entries_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="ascending order"):
        write_sst([([b"b", b"a"], [b"1", b"2"])], tmp_path / "x.sst")
    assert list(tmp_path.iterdir()) == []


def test_failing_entries_leave_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[Chunk]:
        yield [b"a"], [b"1"]
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_sst(chunks(), tmp_path / "x.sst")
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"nowhere/x\.sst"):
        write_sst([([b"a"], [b"1"])], tmp_path / "nowhere" / "x.sst")
