"""Checkpoint storage: whose directory it is, manifests that are whole or refused, and what is garbage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import fs

from flinkplus.errors import CheckpointDirectoryError, CorruptCheckpoint, CorruptState, StateError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.sst_format import describe
from tests.handles import manifest_of

JOB = {"name": "wordcount", "fingerprint": "abc", "extra": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture(params=["local", "arrow"])
def storage(request: pytest.FixtureRequest, root: Path) -> CheckpointStorage:
    filesystem = None if request.param == "local" else fs.LocalFileSystem()
    storage = CheckpointStorage(str(root), filesystem)
    storage.ownership.prepare(JOB, resume=False)
    return storage


def put_state(storage: CheckpointStorage, tmp_path: Path, name: str, content: bytes = b"content") -> StateFile:
    local = tmp_path / "local"
    local.write_bytes(content)
    storage.state_files.upload(local, name)
    return describe(local, name, "delta", 1)


# -- the directory ----------------------------------------------------------------------------------------------------


def test_resume_needs_the_same_job(storage: CheckpointStorage) -> None:
    storage.ownership.prepare({**JOB, "extra": 2}, resume=True)
    assert storage.ownership.job()["extra"] == 2
    with pytest.raises(CheckpointDirectoryError, match=r"another job \(name 'wordcount'.*'other'\); choose another"):
        storage.ownership.prepare({**JOB, "name": "other"}, resume=True)
    with pytest.raises(CheckpointDirectoryError, match=r"another job .fingerprint"):
        storage.ownership.prepare({**JOB, "fingerprint": "x"}, resume=False)
    assert storage.ownership.job()["name"] == "wordcount"


def test_another_job_is_told_apart_by_what_differs(storage: CheckpointStorage) -> None:
    there = {"parallelism": "2", "operator 'count'": "Count of (word string)", "sink 'out'": "TextSink", "x": "1"}
    storage.ownership.prepare({**JOB, "shape": there}, resume=True)
    here = {"parallelism": "3", "operator 'count'": "Count of (word string)", "sink 'log'": "TextSink", "x": "2"}
    with pytest.raises(CheckpointDirectoryError) as caught:
        storage.ownership.prepare({**JOB, "fingerprint": "x", "shape": here}, resume=True)
    assert (
        "(fingerprint 'abc', this job has 'x'; parallelism: 2 there, 3 here; sink 'out': TextSink there, none here; "
        "x: 1 there, 2 here; and 1 more); choose another"
    ) in str(caught.value)


@pytest.mark.parametrize("known", [None, {}, "a text", ["a list"]])
def test_what_differs_is_told_where_it_is_known(storage: CheckpointStorage, known: object) -> None:
    storage.ownership.prepare({**JOB, "shape": known}, resume=True)
    with pytest.raises(CheckpointDirectoryError, match=r"this job has 'x'(; [^;]*)?\); choose another"):
        storage.ownership.prepare({**JOB, "fingerprint": "x", "shape": {"parallelism": "2"}}, resume=True)


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointDirectoryError, match="cannot be read"):
        CheckpointStorage(tmp_path / "file").ownership.job()
    (tmp_path / "kept" / "JOB.json").mkdir(parents=True)
    with pytest.raises(CheckpointDirectoryError, match="cannot be read"):
        CheckpointStorage(tmp_path / "kept").ownership.job()


def test_checkpoints_are_not_overwritten_by_a_new_run(storage: CheckpointStorage, tmp_path: Path) -> None:
    storage.manifests.write(manifest_of(1, put_state(storage, tmp_path, "a/1-1-1.sst")))
    with pytest.raises(CheckpointDirectoryError, match="already has checkpoints of this job; resume it"):
        storage.ownership.prepare(JOB, resume=False)
    storage.ownership.prepare(JOB, resume=True)
    assert storage.manifests.latest_valid() is not None


def test_a_new_run_removes_files_of_one_that_made_no_checkpoint(storage: CheckpointStorage, tmp_path: Path) -> None:
    put_state(storage, tmp_path, "a/1-1-1.sst")
    storage.ownership.prepare(JOB, resume=False)
    with pytest.raises(CorruptState, match="missing"):
        storage.state_files.download(StateFile("a/1-1-1.sst", "base", 0, 1, ""), tmp_path / "to")


def test_nothing_to_resume(root: Path) -> None:
    with pytest.raises(CheckpointDirectoryError, match="no job to resume"):
        CheckpointStorage(root).ownership.prepare(JOB, resume=True)
    with pytest.raises(CheckpointDirectoryError, match="holds no job"):
        CheckpointStorage(root).ownership.job()


def test_directory_with_other_data_is_left_alone(root: Path) -> None:
    root.mkdir()
    (root / "thesis.tex").write_text("...")
    with pytest.raises(CheckpointDirectoryError, match=r"thesis\.tex.*choose an empty one"):
        CheckpointStorage(root).ownership.prepare(JOB, resume=False)
    assert [path.name for path in root.iterdir()] == ["thesis.tex"]


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointDirectoryError, match=r"cannot be written.*may write"):
        CheckpointStorage(tmp_path / "file" / "checkpoints").ownership.prepare(JOB, resume=False)
    with pytest.raises(CheckpointDirectoryError, match="cannot be written"):
        CheckpointStorage("/proc/flinkplus").ownership.prepare(JOB, resume=False)


@pytest.mark.parametrize("uri", ["nosuch://bucket/path", "file://host/path"])
def test_uri_that_names_nothing(uri: str) -> None:
    with pytest.raises(CheckpointDirectoryError, match="cannot be opened"):
        CheckpointStorage(uri)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 1, "job": {}}', b'{"format": 99, "job": {}}', b"\xff"]
)
def test_damaged_job_file(root: Path, storage: CheckpointStorage, content: bytes) -> None:
    (root / "JOB.json").write_bytes(content)
    with pytest.raises(CheckpointDirectoryError, match=r"JOB\.json"):
        storage.ownership.prepare(JOB, resume=True)


# -- blobs and manifests ----------------------------------------------------------------------------------------------


def test_a_private_blob_is_for_its_owner(root: Path) -> None:
    storage = CheckpointStorage(str(root))
    storage.ownership.prepare(JOB, resume=False)
    storage.blobs.put_signed("secret", b"old")
    for _ in range(2):
        storage.blobs.put_signed("secret", b"secret", private=True)
    assert storage.blobs.get_signed("secret") == b"secret"
    assert (root / "blobs" / "secret").stat().st_mode & 0o777 == 0o600


def test_blob_comes_back_or_is_refused(storage: CheckpointStorage, root: Path) -> None:
    storage.blobs.put("plan", b"\x00pickled\nplan")
    assert storage.blobs.get("plan") == b"\x00pickled\nplan"
    (root / "blobs" / "plan").write_bytes((root / "blobs" / "plan").read_bytes()[:-1])
    with pytest.raises(CorruptCheckpoint, match="plan"):
        storage.blobs.get("plan")
    with pytest.raises(CorruptCheckpoint, match=r"other.*missing"):
        storage.blobs.get("other")


def test_manifest_comes_back(storage: CheckpointStorage, tmp_path: Path) -> None:
    written = manifest_of(
        12, put_state(storage, tmp_path, "a/1-12-1.sst"), put_state(storage, tmp_path, "b/1-12-1.sst")
    )
    storage.manifests.write(written)
    storage.manifests.write(manifest_of(3))
    assert storage.manifests.read(12) == written
    assert storage.manifests.checkpoints() == [3, 12]
    assert [file.name for file in written.files] == ["a/1-12-1.sst", "b/1-12-1.sst"]
    with pytest.raises(CorruptCheckpoint, match="missing"):
        storage.manifests.read(4)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "append", "format", "other", "text"])
def test_damaged_manifest_is_refused_and_the_previous_used(
    storage: CheckpointStorage, root: Path, tmp_path: Path, damage: str
) -> None:
    for checkpoint in (1, 2):
        file = put_state(storage, tmp_path, f"a/1-{checkpoint}-1.sst")
        storage.manifests.write(manifest_of(checkpoint, file))
    path = root / "checkpoints" / "00000002.json"
    content = path.read_bytes()
    damaged = {
        "flip": content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
        "truncate": content[: len(content) // 2],
        "empty": b"",
        "append": content + b" ",
        "format": content.replace(b"manifest 2 ", b"manifest 3 ", 1),
        "other": (root / "checkpoints" / "00000001.json").read_bytes(),
        "text": b"hello",
    }[damage]
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match=r"00000002\.json"):
        storage.manifests.read(2)
    found = storage.manifests.latest_valid()
    assert found is not None
    checkpoint, document, skipped = found
    assert (checkpoint, document.checkpoint) == (1, 1)
    assert len(skipped) == 1 and "00000002.json" in skipped[0]


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing"])
def test_checkpoint_with_a_damaged_state_file_is_skipped(
    storage: CheckpointStorage, root: Path, tmp_path: Path, damage: str
) -> None:
    for checkpoint in (1, 2):
        file = put_state(storage, tmp_path, f"a/1-{checkpoint}-1.sst")
        storage.manifests.write(manifest_of(checkpoint, file))
    path = root / "state" / "a" / "1-2-1.sst"
    match damage:
        case "flip":
            path.write_bytes(b"Content")
        case "truncate":
            path.write_bytes(b"conte")
        case _:
            path.unlink()
    found = storage.manifests.latest_valid()
    assert found is not None and found[0] == 1
    assert "1-2-1.sst" in found[2][0]


def test_no_checkpoint_and_no_whole_checkpoint_differ(storage: CheckpointStorage, root: Path) -> None:
    assert storage.manifests.latest_valid() is None
    storage.manifests.write(manifest_of(1))
    (root / "checkpoints" / "00000001.json").write_bytes(b"")
    with pytest.raises(CorruptCheckpoint, match=r"no checkpoint in .* can be restored: checkpoint 1"):
        storage.manifests.latest_valid()


def test_failing_storage_says_what_could_not_be_stored(storage: CheckpointStorage, root: Path, tmp_path: Path) -> None:
    (root / "state").write_text("in the way")
    (root / "checkpoints").write_text("in the way")
    with pytest.raises(StateError, match=r"a/1-1-1\.sst cannot be stored"):
        put_state(storage, tmp_path, "a/1-1-1.sst")
    with pytest.raises(StateError, match="manifest 1 cannot be stored"):
        storage.manifests.write(manifest_of(1))


# -- removal ----------------------------------------------------------------------------------------------------------


def test_drop_removes_what_only_that_checkpoint_names(storage: CheckpointStorage, root: Path, tmp_path: Path) -> None:
    shared = put_state(storage, tmp_path, "a/1-1-1.sst")
    old = put_state(storage, tmp_path, "b/1-1-1.sst")
    storage.manifests.write(manifest_of(1, shared, old))
    storage.manifests.write(manifest_of(2, shared, put_state(storage, tmp_path, "b/1-2-2.sst")))
    fresh = CheckpointStorage(root)  # another process has no memory of what manifests name
    assert fresh.retention.drop(1) == ["b/1-1-1.sst"]
    assert fresh.manifests.checkpoints() == [2]
    assert fresh.manifests.latest_valid() is not None
    assert fresh.retention.drop(1) == []


def test_garbage_is_what_no_manifest_names_and_no_running_snapshot_may_name(
    storage: CheckpointStorage, root: Path, tmp_path: Path
) -> None:
    named = put_state(storage, tmp_path, "a/2-4-1.sst")
    for name in ("a/1-9-1.sst", "a/2-3-1.sst", "a/2-5-2.sst", "a/3-1-1.sst", "b/2-4-2.sst"):
        put_state(storage, tmp_path, name)
    (root / "state" / "a" / "1-8-1.sst.tmp").write_bytes(b"half")
    (root / "state" / "a" / "notes.txt").write_bytes(b"not ours")
    storage.manifests.write(manifest_of(4, named))
    removed = storage.retention.collect_garbage(2, 4)
    assert removed == ["a/1-8-1.sst.tmp", "a/1-9-1.sst", "a/2-3-1.sst", "b/2-4-2.sst"]
    assert storage.retention.collect_garbage(3, 1) == ["a/2-5-2.sst", "a/3-1-1.sst"]
    assert storage.manifests.latest_valid() is not None


def test_garbage_collection_without_checkpoints_keeps_the_running_generation(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    for name in ("a/1-1-1.sst", "a/2-1-1.sst"):
        put_state(storage, tmp_path, name)
    assert storage.retention.collect_garbage(2) == ["a/1-1-1.sst"]


REMOVERS: dict[str, Callable[[CheckpointStorage], object]] = {
    "sweep": lambda storage: storage.retention.sweep(9, 9),
    "sweep_all": lambda storage: storage.retention.sweep_all(),
    "collect_garbage": lambda storage: storage.retention.collect_garbage(9, 9),
    "drop": lambda storage: storage.retention.drop(1),
}


@pytest.fixture(params=list(REMOVERS))
def remove(request: pytest.FixtureRequest) -> Callable[[CheckpointStorage], object]:
    return REMOVERS[request.param]


def two_checkpoints(storage: CheckpointStorage, folder: Path) -> list[str]:
    """Their state files: one of each, one of both, and one that no manifest names."""
    put_state(storage, folder, "a/1-1-9.sst")
    first, both, second = (put_state(storage, folder, f"a/1-{n}-1.sst") for n in range(1, 4))
    storage.manifests.write(manifest_of(1, first, both))
    storage.manifests.write(manifest_of(2, both, second))
    assert storage.retention.sweep(1, 1) == [], "the file that no manifest names was seen for the first time"
    return storage.files.names("state")


def test_nothing_is_removed_when_the_checkpoints_cannot_be_listed(
    storage: CheckpointStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remove: Callable[[CheckpointStorage], object],
) -> None:
    before = two_checkpoints(storage, tmp_path)
    names = storage.files.names

    def fails(folder: str) -> list[str]:
        if folder == "checkpoints":
            raise OSError("stale file handle")
        return names(folder)

    monkeypatch.setattr(storage.files, "names", fails)
    with pytest.raises(OSError, match="stale"):
        remove(storage)
    assert names("state") == before


@pytest.mark.parametrize("resumed", [False, True])
def test_nothing_is_removed_when_a_known_checkpoint_is_not_listed(
    storage: CheckpointStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remove: Callable[[CheckpointStorage], object],
    resumed: bool,
) -> None:
    before = two_checkpoints(storage, tmp_path)
    if resumed:
        storage.manifests._named.clear()
        assert storage.manifests.latest_valid() is not None
    names = storage.files.names
    monkeypatch.setattr(storage.files, "names", lambda folder: [] if folder == "checkpoints" else names(folder))
    with pytest.raises((StateError, CorruptCheckpoint)):
        remove(storage)
    assert names("state") == before


@pytest.mark.parametrize("damaged", [1, 2])
def test_nothing_is_removed_when_a_manifest_cannot_be_read(
    storage: CheckpointStorage, tmp_path: Path, remove: Callable[[CheckpointStorage], object], damaged: int
) -> None:
    before = two_checkpoints(storage, tmp_path)
    storage.manifests._named.clear()  # as in a run that continues
    storage.files.write(f"checkpoints/{damaged:08d}.json", b"flinkplus-manifest 1")
    with suppress(CorruptCheckpoint):
        remove(storage)
    assert storage.files.names("state") == before


def test_a_checkpoint_that_is_void_is_not_missed(storage: CheckpointStorage, tmp_path: Path) -> None:
    two_checkpoints(storage, tmp_path)
    storage.manifests.withdraw_after(1)
    assert storage.retention.sweep_all() == ["a/1-1-9.sst", "a/1-3-1.sst"]
