"""The snapshot handle and the manifest: their documents come back equal, and malformed ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flinkplus.errors import CorruptCheckpoint, CorruptState
from flinkplus.protocol.snapshot.clips import Clip
from flinkplus.protocol.snapshot.files import StagedFile, StateFile
from flinkplus.protocol.snapshot.handle import HANDLE_FORMAT, START, KeyedPart, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import CommittedOutput, Manifest
from tests.handles import handle_of, manifest_of, part_of

REPLACED = StateFile("count[0]/1-1-1.sst", "delta", 0, 9, "cd")
CLIP = Clip(((0, 3), (5, 128)), ("n", "o"))
CUT = StateFile("count[0]/1-1-1000000.sst", "base", 0, 7, "ef", (), "count[1]/1-1-1.sst", CLIP)
FILE = StateFile("count[0]/1-3-1.sst", "base", 3, 400, "ab" * 20, (CUT, REPLACED))
SHARED = StateFile("count[0]/1-3-1000000.sst", "base", 3, 400, "ab" * 20, (), "count[1]/1-3-1.sst", CLIP)
STAGED = StagedFile(name="part-c00000003-s0-g1-0.parquet", rows=3, bytes=90, checkpoint=3)
PART = part_of([STAGED], rows_in=3, rows_out=2, own={"late": 1}, watermark_ms=7, position={"next": 1}, state=[1])
SAVED: dict[str, Any] = {"inputs": {"0:0->0": 4}, "aborted": (4, 5), "run": (2, 10), "rounds": {"number": 1}}
FULL = replace(
    handle_of(FILE, checkpoint=3, operators={"out": PART}, **SAVED),
    states={"n": KeyedPart(kind="number", keys=3, dtype="int64"), "o": KeyedPart(kind="object", keys=0)},
    begun_s=1.5,
    overtaken=True,
)
MANIFEST = replace(
    manifest_of(3, subtasks={"count[0]": FULL}), commits={"out": CommittedOutput(files=(STAGED,), rows=3)}, final=True
)
BEFORE_IT_WAS_A_CLASS: dict[str, Any] = {
    "format": HANDLE_FORMAT,
    "subtask": "count[0]",
    "generation": 1,
    "checkpoint": 3,
    "files": [{"name": "count[0]/1-3-1.sst", "kind": "base", "entries": 3, "bytes": 400, "checksum": "ab"}],
    "operator_state": {
        "operators": {
            "out": {"rows_in": 1, "rows_out": 1, "own": {}, "staged": []}, "read": {"rows_in": 0, "rows_out": 1},
        },
        "inputs": {}, "outputs": {}, "aborted": [], "ended": False, "steps": 9, "clock_ms": 0, "ended_channels": [],
        "watermarks": {}, "drained": False, "run": [1, 0],
    },
    "states": {"o": {"kind": "object", "keys": 3}}, "bytes_new": 400, "bytes_total": 400, "keys": 3,
    "begun_s": 1.5, "alignment_ms": 0.0, "sync_ms": 0.1, "async_ms": 1,
}  # fmt: skip


@pytest.mark.parametrize("handle", [FULL, START, SnapshotHandle.from_json(BEFORE_IT_WAS_A_CLASS)])
def test_a_handle_comes_back(handle: SnapshotHandle) -> None:
    assert SnapshotHandle.from_json(json.loads(json.dumps(handle.to_json()))) == handle


@pytest.mark.parametrize("file", [SHARED, replace(SHARED, stored_as=""), replace(SHARED, clip=None)])
def test_a_shared_file_comes_back(file: StateFile) -> None:
    handle = replace(FULL, files=(file, FILE))
    found = SnapshotHandle.from_json(json.loads(json.dumps(handle.to_json())))
    assert found == handle and found.files[1].replaces == (CUT, REPLACED)
    assert found.files[0].stored == (file.stored_as or file.name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": {"groups": [[3, 3]], "states": ["n"]}},
        {"clip": {"groups": [[0, 4], [4, 6]], "states": ["n"]}},
        {"clip": {"groups": [[-1, 4]], "states": ["n"]}},
        {"clip": {"groups": [[0, 32_769]], "states": ["n"]}},
        {"clip": {"groups": [[0]], "states": ["n"]}},
        {"clip": {"groups": [[0, "a"]], "states": ["n"]}},
        {"clip": {"groups": [[0, 4]], "states": ["o", "n"]}},
        {"clip": {"groups": [[0, 4]], "states": [""]}},
        {"clip": {"groups": [[0, 4]], "states": ["n" * 256]}},
        {"clip": {"groups": [[0, 4]]}},
        {"clip": [[0, 4]]},
        {"stored_as": "../a"},
        {"stored_as": 1},
    ],
)
def test_what_no_file_is_shared_by_is_refused(wrong: dict[str, Any]) -> None:
    document = {**SHARED.to_json(), **wrong}
    with pytest.raises(CorruptState, match="malformed description of a state file"):
        StateFile.from_json(document)
    replaced = {**FILE.to_json(), "replaces": [["count[0]/1-1-1.sst", 9, "cd", wrong]]}
    with pytest.raises(CorruptState, match="malformed description of a state file"):
        StateFile.from_json(replaced)


def test_a_manifest_names_a_shared_file_once() -> None:
    other = replace(SHARED, name="count[1]/1-3-1000000.sst", clip=Clip(((3, 5),), ("n",)))
    subtasks = {"count[0]": handle_of(SHARED, checkpoint=3), "count[1]": handle_of(other, checkpoint=3)}
    assert [file.stored for file in manifest_of(3, subtasks=subtasks).files] == ["count[1]/1-3-1.sst"]


def test_a_manifest_comes_back() -> None:
    assert Manifest.from_json(json.loads(json.dumps(MANIFEST.to_json()))) == MANIFEST
    assert [file.name for file in MANIFEST.files] == [FILE.name]


def test_handles_of_before_are_read_and_lose_nothing() -> None:
    document = SnapshotHandle.from_json(BEFORE_IT_WAS_A_CLASS).to_json()
    assert {name: document[name] for name in BEFORE_IT_WAS_A_CLASS.keys() - {"operator_state", "states"}} == {
        name: value for name, value in BEFORE_IT_WAS_A_CLASS.items() if name not in ("operator_state", "states")
    }
    saved, before = document["operator_state"], BEFORE_IT_WAS_A_CLASS["operator_state"]
    assert {name: saved[name] for name in before.keys() - {"operators"}} == {
        name: value for name, value in before.items() if name != "operators"
    }


@pytest.mark.parametrize("field", sorted(FULL.to_json()))
@pytest.mark.parametrize("value", ["x", True, ["x"], 1.5, {"a": None}, None])
def test_a_field_of_another_type_is_refused(field: str, value: object) -> None:
    kinds = {
        "subtask": str,
        "overtaken": bool,
        **dict.fromkeys(("begun_s", "alignment_ms", "sync_ms", "async_ms"), float),
    }
    if kinds.get(field) is type(value):
        return
    with pytest.raises(CorruptState, match="malformed snapshot handle"):
        SnapshotHandle.from_json({**FULL.to_json(), field: value})
    with pytest.raises(CorruptCheckpoint, match="malformed manifest: malformed snapshot handle"):
        Manifest.from_json({**MANIFEST.to_json(), "subtasks": {"count[0]": {**FULL.to_json(), field: value}}})


@pytest.mark.parametrize("field", sorted(FULL.operator_state.to_json()))
def test_a_field_of_another_type_is_refused_in_the_state_of_operators(field: str) -> None:
    saved = {**FULL.to_json()["operator_state"], field: 1.5}
    with pytest.raises(CorruptState, match=f"malformed operator state: {field}"):
        SnapshotHandle.from_json({**FULL.to_json(), "operator_state": saved})


@pytest.mark.parametrize("field", ["format", "subtask", "generation", "checkpoint", "files", "operator_state"])
def test_a_handle_that_lacks_a_field_is_refused(field: str) -> None:
    with pytest.raises(CorruptState, match=field):
        SnapshotHandle.from_json({name: value for name, value in FULL.to_json().items() if name != field})


@pytest.mark.parametrize("document", [None, 1, "format", [], ["format"], {}, {**FULL.to_json(), "more\n": 1}])
def test_what_is_no_handle_is_refused(document: object) -> None:
    with pytest.raises(CorruptState) as refused:
        SnapshotHandle.from_json(document)
    assert str(refused.value).isprintable()


def test_another_format_is_refused() -> None:
    for number in (1, 9):
        with pytest.raises(CorruptState, match=f"its format is {number}, and this program reads 2"):
            SnapshotHandle.from_json({**FULL.to_json(), "format": number})
    with pytest.raises(CorruptCheckpoint, match="its format is 9, and this program reads 1"):
        Manifest.from_json({**MANIFEST.to_json(), "format": 9})
