"""What is in a checkpoint directory: every checkpoint with its sizes, and what cannot be read with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from flinkplus import checkpoints
from flinkplus.errors import CheckpointDirectoryError
from flinkplus.protocol.snapshot.handle import KeyedPart
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.state.durable.listing import Listing, StoredCheckpoints, StoredOperator
from flinkplus.state.durable.ownership import JOB_FORMAT
from flinkplus.state.durable.seals import SigningKey
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.sst_format import describe
from tests.handles import handle_of, part_of

JOB = {"name": "words", "fingerprint": "abc"}
KEY = SigningKey(b"k" * 32, "here")


def begun(root: Path, filesystem: fs.FileSystem | None = None, key: SigningKey | None = KEY) -> CheckpointStorage:
    storage = CheckpointStorage(str(root), filesystem, key=key)
    storage.ownership.prepare(JOB, resume=False, job_id="job-1")
    storage.runs.begin(1)
    return storage


def stored(storage: CheckpointStorage, place: Path, number: int, size: int = 100, **fields: Any) -> Manifest:
    """A checkpoint of two sources and two counts; each count has uploaded a file of ``size`` bytes for it."""
    subtasks = {}
    for index in range(2):
        local = place / "local"
        local.write_bytes(bytes([number, index]) * (size // 2))
        name = f"count[{index}]/1-{number}-1.sst"
        storage.state_files.upload(local, name)
        file = describe(local, name, "delta", 7)
        subtasks[f"lines[{index}]"] = handle_of(
            checkpoint=number, subtask=f"lines[{index}]", operators={"lines": part_of(rows_out=10)}
        )
        subtasks[f"count[{index}]"] = replace(
            handle_of(
                file,
                checkpoint=number,
                subtask=f"count[{index}]",
                operators={"count": part_of(rows_in=10, rows_out=9), "out": part_of(rows_in=9)},
                in_flight_bytes=3,
            ),
            states={"count": KeyedPart(kind="number", keys=5), "count#zero": KeyedPart(kind="number", keys=1)},
            bytes_new=size // 2,
            bytes_total=size,
            keys=6,
        )
    manifest = Manifest(checkpoint=number, generation=1, subtasks=subtasks, time_s=1_000.0 + number, **fields)
    storage.manifests.write(manifest)
    return manifest


def listed(storage: CheckpointStorage, key: SigningKey | None = KEY, verify: bool = False) -> StoredCheckpoints:
    """As another process lists it."""
    return Listing(CheckpointStorage(storage.uri), key, verify).read()


def reasons(found: StoredCheckpoints) -> dict[int, tuple[str, str]]:
    return {one.number: (one.status, one.reason) for one in found}


def manifest_file(root: Path, number: int) -> Path:
    (found,) = (root / "checkpoints").glob(f"{number:08d}*.json")
    return found


@pytest.mark.parametrize("filesystem", [None, fs.LocalFileSystem()], ids=["local", "arrow"])
def test_sizes_and_operators(tmp_path: Path, filesystem: fs.FileSystem | None) -> None:
    storage = begun(tmp_path / "c", filesystem)
    stored(storage, tmp_path, 1)
    manifest = stored(storage, tmp_path, 2, final=True)
    local = tmp_path / "local"
    storage.state_files.upload(local, "count[0]/1-3-1.sst")  # of a checkpoint in progress
    found = Listing(CheckpointStorage(storage.uri, filesystem), KEY).read()
    assert (found.job, found.job_id, found.format, found.problem) == ("words", "job-1", JOB_FORMAT, "")
    assert (found.stored_bytes, found.unnamed_bytes, found.other_files, found.intact) == (500, 100, (), True)
    first, last = found
    assert (first.kind, last.kind, found.latest) == ("aligned", "final", last)
    assert (last.number, last.status, last.reason, last.format, last.created_s) == (2, "readable", "", 1, 1_002.0)
    assert last.age_s is not None and last.age_s > 1e6
    assert (last.bytes, last.bytes_new, last.in_flight_bytes, last.keys) == (200, 100, 6, 12)
    assert (last.parallelism, last.subtasks, last.generation) == (2, 4, manifest.generation)
    assert {operator.name: operator for operator in last.operators} == {
        "lines": StoredOperator(name="lines", vertex="lines", keys=0, bytes=0, rows_in=0, rows_out=20),
        "count": StoredOperator(name="count", vertex="count", keys=12, bytes=200, rows_in=20, rows_out=18),
        "out": StoredOperator(name="out", vertex="count", keys=0, bytes=0, rows_in=18, rows_out=0),
    }
    assert StoredCheckpoints.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_kinds_and_shared_files(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    manifest = stored(storage, tmp_path, 1)
    two = {"count": KeyedPart(kind="number", keys=1), "other/last": KeyedPart(kind="object", keys=2)}
    subtasks = {}
    for name, handle in manifest.subtasks.items():
        parts = {**handle.operator_state.operators, "other": part_of(), "count/x": part_of()}
        state = replace(handle.operator_state, operators=parts)
        subtasks[name] = replace(handle, states=two, operator_state=state, overtaken=name == "lines[1]", checkpoint=2)
    storage.manifests.write(replace(manifest, checkpoint=2, subtasks=subtasks))
    found = listed(storage)
    assert [one.kind for one in found] == ["aligned", "unaligned"] and found.latest is not None
    of = {operator.name: (operator.keys, operator.bytes) for operator in found.latest.operators if operator.keys}
    assert of == {"count": (2, None), "other": (4, None)}


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def altered(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"keys"', b'"sexy"'))


def of_another_format(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"flinkplus-manifest 2", b"flinkplus-manifest 1", 1))


def of_another_number(path: Path) -> None:
    path.with_name("00000009-100000.json").rename(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncated, "does not match its checksum"),
        (altered, "does not match its checksum"),
        (of_another_format, "has format 1, known is 2"),
        (lambda path: path.write_bytes(b""), "is truncated or is not a FlinkPlus file"),
        (lambda path: path.write_bytes(b'{"format": 3}'), "is truncated or is not a FlinkPlus file"),
        (of_another_number, "its manifest is that of checkpoint 9"),
    ],
)
def test_a_manifest_that_is_damaged(tmp_path: Path, damage: Callable[[Path], Any], reason: str) -> None:
    storage = begun(tmp_path / "c")
    for number in (1, 2, 9):
        stored(storage, tmp_path, number)
    damage(manifest_file(tmp_path / "c", 2))
    found = listed(storage)
    status, why = reasons(found)[2]
    assert status == "damaged" and reason in why and "\n" not in why
    assert not found.intact and found.latest is not None and found.latest.number != 2


def test_a_manifest_of_a_later_format_has_its_number(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    document = {**stored(storage, tmp_path, 1).to_json(), "format": 7, "checkpoint": 2}
    storage.signed.write(b"flinkplus-manifest", "checkpoints/00000002-100000.json", json.dumps(document).encode())
    one = listed(storage).checkpoints[1]
    assert (one.status, one.format, one.kind) == ("damaged", 7, None)
    assert "its format is 7, and this program reads 1" in one.reason


@pytest.mark.parametrize("lost", [True, False], ids=["missing", "short"])
def test_a_state_file_that_is_damaged(tmp_path: Path, lost: bool) -> None:
    storage = begun(tmp_path / "c")
    stored(storage, tmp_path, 1)
    stored(storage, tmp_path, 2)
    path = tmp_path / "c" / "state" / "count[1]" / "1-2-1.sst"
    path.unlink() if lost else path.write_bytes(b"short")
    found = listed(storage)
    why = "is missing" if lost else "has 5 bytes instead of 100"
    assert reasons(found) == {1: ("readable", ""), 2: ("damaged", f"state file count[1]/1-2-1.sst {why}")}
    assert found.checkpoints[1].keys == 12  # what its manifest says is known


def test_content_is_compared_on_request(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    stored(storage, tmp_path, 1)
    (tmp_path / "c" / "state" / "count[1]" / "1-1-1.sst").write_bytes(b"x" * 100)
    assert listed(storage).intact
    ((status, why),) = reasons(listed(storage, verify=True)).values()
    assert status == "damaged" and "does not match its checksum" in why


def test_signatures(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    stored(storage, tmp_path, 1)
    strange = SigningKey(b"s" * 32, "elsewhere")
    found = listed(storage, strange)
    assert found.job is None and "is signed with the key" in found.problem and not found.intact
    ((status, why),) = reasons(found).values()
    assert status == "untrusted" and "the key here, elsewhere" in why and "--trust" not in why
    assert found.checkpoints[0].keys == 12
    assert listed(storage, None).intact  # without a key no signature is checked
    unsigned = begun(tmp_path / "u", key=None)
    stored(unsigned, tmp_path, 1)
    assert (listed(unsigned, None).job_id, listed(unsigned, None).intact) == (None, True)


def test_a_checkpoint_of_another_job(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    stored(storage, tmp_path, 1)
    other = CheckpointStorage(str(tmp_path / "o"), key=KEY)
    other.ownership.prepare(JOB, resume=False, job_id="job-2")
    other.runs.begin(1)
    stored(other, tmp_path, 2)
    taken = manifest_file(tmp_path / "o", 2)
    taken.rename(tmp_path / "c" / "checkpoints" / taken.name)
    (tmp_path / "c" / "checkpoints" / "notes\n.txt").write_text("")
    found = listed(storage)
    assert reasons(found)[2] == ("foreign", "its manifest is of job job-2, and the directory of job job-1")
    assert found.other_files == ("checkpoints/notes\\n.txt",)


def test_what_the_job_has_gone_back_from_is_void(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    stored(storage, tmp_path, 1)
    stored(storage, tmp_path, 2)
    late = manifest_file(tmp_path / "c", 2)
    content = late.read_bytes()
    storage.manifests.withdraw_after(1)
    late.write_bytes(content)
    found = listed(storage)
    assert reasons(found)[2] == ("void", "it appeared after the job had gone back to an earlier checkpoint")
    assert found.intact and found.latest is not None and found.latest.number == 1


def test_what_is_removed_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job drops checkpoint 1 between the manifests and the state files, 2 between list and manifest."""
    storage = begun(tmp_path / "c")
    for number in (1, 2, 3):
        stored(storage, tmp_path, number)
    other = CheckpointStorage(storage.uri)
    read, sizes = other.files.read, other.files.sizes

    def removing(name: str) -> bytes:
        if "00000002" in name:
            storage.retention.drop(2)
        return read(name)

    def dropping(folder: str) -> dict[str, int]:
        if folder == "state":
            storage.retention.drop(1)
        return sizes(folder)

    monkeypatch.setattr(other.files, "read", removing)
    monkeypatch.setattr(other.files, "sizes", dropping)
    assert reasons(Listing(other, KEY).read()) == {3: ("readable", "")}


def test_a_directory_without_a_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, reason in ((tmp_path / "none", "holds no job"), (tmp_path / "file", "cannot be read")):
        with pytest.raises(CheckpointDirectoryError, match=reason):
            checkpoints(place)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("content", "problem", "number"),
    [
        (b'{"format": 4, "job": {}, "place": ""}', "has a format this version does not know", 4),
        (b"{", "is damaged", None),
        (b"[]", "has a format this version does not know", None),
        (None, "holds no job", None),
    ],
)
def test_a_directory_whose_job_cannot_be_read(
    tmp_path: Path, content: bytes | None, problem: str, number: int | None
) -> None:
    storage = begun(tmp_path / "c")
    path = tmp_path / "c" / "JOB.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointDirectoryError, match=problem):
        listed(storage)
    stored(storage, tmp_path, 1)
    found = listed(storage)
    assert problem in found.problem and (found.job, found.format, found.intact) == (None, number, False)
    assert reasons(found) == {1: ("readable", "")}


def test_a_listing_changes_nothing(tmp_path: Path) -> None:
    storage = begun(tmp_path / "c")
    stored(storage, tmp_path, 1)

    def content() -> dict[str, tuple[int, bytes]]:
        paths = [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = content()
    listed(storage, verify=True)
    assert content() == before
