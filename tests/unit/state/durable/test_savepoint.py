"""A savepoint as files: complete in itself, copied once, never half; and a new job's directory that begins with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from flinkplus.errors import (
    CheckpointDirectoryError,
    CorruptCheckpoint,
    CorruptState,
    FlinkPlusError,
    SavepointError,
    SavepointRefused,
    StateError,
    UntrustedCheckpoint,
)
from flinkplus.protocol.snapshot.clips import Clip
from flinkplus.protocol.snapshot.files import StagedFile, StateFile
from flinkplus.protocol.snapshot.manifest import CommittedOutput, Manifest
from flinkplus.state.durable.blobs import PLAN_BLOB, PROGRAM_BLOB
from flinkplus.state.durable.listing import Listing
from flinkplus.state.durable.savepoint import FoundSavepoint, SavepointWriter, check_apart, origin_of
from flinkplus.state.durable.savepoint_file import BEGUN_FILE, SAVEPOINT_FILE
from flinkplus.state.durable.seals import SigningKey
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.sst_format import describe
from tests.handles import handle_of, part_of
from tests.s3_server import s3_server

JOB = {"name": "words", "fingerprint": "abc"}
KEY = SigningKey(b"k" * 32, "here")
STAGED = StagedFile(name="part-1", rows=3, checkpoint=7)


def job_at(root: Path, place: Path, size: int = 1_000) -> CheckpointStorage:
    """The directory of a job with checkpoint 7: two subtasks name the same file, and one of them a file of its own."""
    storage = CheckpointStorage(str(root), key=KEY)
    storage.ownership.prepare(JOB, resume=False, job_id="job-1")
    storage.runs.begin(3)
    storage.blobs.put_signed(PLAN_BLOB, b"the plan")
    storage.blobs.put_signed(PROGRAM_BLOB, b"the program")
    files: list[StateFile] = []
    for name in ("count[0]/1-6-1.sst", "count[1]/1-7-1.sst"):
        local = place / "local"
        local.write_bytes(os.urandom(size))
        storage.state_files.upload(local, name)
        files.append(describe(local, name, "base", 7))
    storage.files.write("staged/numbers/part-00000.parquet", b"rows")
    storage.files.write("staged/numbers/.part-00000.parquet.crc", b"sum")
    both = {
        f"count[{index}]": replace(
            handle_of(*own, checkpoint=7, subtask=f"count[{index}]", operators={"out": part_of([STAGED], rows_in=3)}),
            bytes_total=sum(file.bytes for file in own),
        )
        for index, own in enumerate((files[:1], files))
    }
    commits = {"out": CommittedOutput(files=(STAGED,), rows=30)}
    storage.manifests.write(Manifest(checkpoint=7, generation=200_001, subtasks=both, time_s=1.0, commits=commits))
    return storage


@pytest.fixture
def job(tmp_path: Path) -> CheckpointStorage:
    return job_at(tmp_path / "state", tmp_path)


def target_at(place: Path, filesystem: fs.FileSystem | None = None) -> CheckpointStorage:
    return CheckpointStorage(str(place), filesystem, key=KEY)


def taken(job: CheckpointStorage, target: CheckpointStorage, stopped: bool = False) -> SavepointWriter:
    writer = SavepointWriter(job, target)
    writer.begin()
    writer.copy(7, stopped)
    writer.publish()
    return writer


def found_at(place: Path, filesystem: fs.FileSystem | None = None, key: SigningKey = KEY) -> FoundSavepoint:
    storage = CheckpointStorage(str(place), filesystem)
    _, job_id = storage.ownership.job_and_id(lambda: key)
    assert storage.ownership.savepoint is not None
    return FoundSavepoint(storage, storage.ownership.savepoint, job_id)


def files_of(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("filesystem", [None, fs.LocalFileSystem()], ids=["local", "arrow"])
def test_it_is_complete_in_itself_and_a_new_job_begins_with_it(
    job: CheckpointStorage, tmp_path: Path, filesystem: fs.FileSystem | None
) -> None:
    writer = taken(job, target_at(tmp_path / "taken", filesystem), stopped=True)
    assert (writer.copied.files, writer.copied.files_in_all) == (3, 3)
    assert writer.copied.bytes == writer.copied.bytes_in_all == 2_004
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "taken").rename(tmp_path / "moved")
    assert files_of(tmp_path / "moved") == {
        SAVEPOINT_FILE,
        "blobs/plan",
        "blobs/program",
        "checkpoints/00000007.json",
        "state/count[0]/1-6-1.sst",
        "state/count[1]/1-7-1.sst",
        "staged/numbers/part-00000.parquet",
    }
    listed = Listing(CheckpointStorage(str(tmp_path / "moved"), filesystem), KEY, verify=True).read()
    assert listed.savepoint and listed.intact and listed.job == "words" and listed.unnamed_bytes == 0
    savepoint = found_at(tmp_path / "moved", filesystem)
    assert savepoint.found.stopped and savepoint.found.origin == str(tmp_path / "state")
    before = {path: path.read_bytes() for path in (tmp_path / "moved").rglob("*") if path.is_file()}
    new = CheckpointStorage(str(tmp_path / "new"), key=KEY)
    new.ownership.prepare(JOB, resume=False, job_id="job-2")
    manifest = savepoint.manifest()
    assert manifest.commits == {"out": CommittedOutput(files=(), rows=30)}
    assert all(not handle.operator_state.operators["out"].staged for handle in manifest.subtasks.values())
    savepoint.begin(new, manifest, b"its plan", 3)
    assert {path: path.read_bytes() for path in (tmp_path / "moved").rglob("*") if path.is_file()} == before
    shutil.rmtree(tmp_path / "moved")
    again = CheckpointStorage(str(tmp_path / "new"), key=KEY)
    assert again.manifests.latest_valid() == (7, manifest, []) and again.begin() == 4
    assert again.blobs.get_signed(PLAN_BLOB) == b"its plan"
    origin = origin_of(again)
    assert origin is not None and (origin.job_id, origin.checkpoint) == ("job-1", 7)
    assert again.ownership.job_and_id(lambda: KEY) == (JOB, "job-2")


def test_files_are_linked_on_one_file_system_and_stay_when_the_job_removes_them(
    job: CheckpointStorage, tmp_path: Path
) -> None:
    taken(job, target_at(tmp_path / "taken"))
    name = "state/count[0]/1-6-1.sst"
    assert (tmp_path / "taken" / name).samefile(tmp_path / "state" / name)
    job.manifests.remove(7)
    job.retention.sweep_all()
    assert not (tmp_path / "state" / name).exists()
    found_at(tmp_path / "taken").manifest()


def test_planned_batches_that_are_removed_or_written_meanwhile_are_left_out(
    job: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint needs neither; but other staged input that is gone is an error."""
    folder = "staged/numbers-1"
    for name in ("1.planned", "2.planned", "3.planned", "4.planned.0.tmp"):
        job.files.write(f"{folder}/{name}", b"batch")
    listed, listings = type(job.files).sizes, 0

    def sizes(files: Any, inside: str) -> dict[str, int]:
        """The first listing misses a batch before the last; the second shows one behind it."""
        nonlocal listings
        found = listed(files, inside)
        if inside == "staged" and not listings:
            listings += 1
            found.pop(f"{folder}/2.planned")
            job.files.write(f"{folder}/5.planned", b"batch")
        return found

    monkeypatch.setattr(type(job.files), "sizes", sizes)
    writer = SavepointWriter(job, target_at(tmp_path / "savepoint"))
    writer.progressed = lambda: job.files.delete(f"{folder}/1.planned")
    writer.begin()
    writer.copy(7, False)
    writer.publish()
    assert files_of(tmp_path / "savepoint") & {f"{folder}/{n}.planned" for n in range(9)} == {
        f"{folder}/2.planned",
        f"{folder}/3.planned",
    }
    found_at(tmp_path / "savepoint").manifest()
    gone = SavepointWriter(job, target_at(tmp_path / "another"))
    gone.progressed = lambda: job.files.delete("staged/numbers/part-00000.parquet")
    gone.begin()
    with pytest.raises(StateError, match="cannot be written"):
        gone.copy(7, False)


def test_no_job_claims_a_savepoint_and_nothing_is_written_there(job: CheckpointStorage, tmp_path: Path) -> None:
    taken(job, target_at(tmp_path / "taken"))
    before = files_of(tmp_path / "taken"), (tmp_path / "taken").stat().st_mtime_ns
    for resume in (True, False):
        with pytest.raises(CheckpointDirectoryError, match="never written to"):
            target_at(tmp_path / "taken").ownership.prepare(JOB, resume=resume, job_id="job-1")
    with pytest.raises(SavepointRefused, match="holds a savepoint"):
        SavepointWriter(job, target_at(tmp_path / "taken")).begin()
    assert (files_of(tmp_path / "taken"), (tmp_path / "taken").stat().st_mtime_ns) == before


@pytest.mark.parametrize("target", ["", "/", "/below", "/../state/below"])
def test_it_is_not_taken_in_the_checkpoint_directory(tmp_path: Path, target: str) -> None:
    with pytest.raises(SavepointRefused, match="in the job's checkpoint directory"):
        check_apart(f"{tmp_path}/state{target}", f"{tmp_path}/state")
    check_apart(f"{tmp_path}/state-2", f"{tmp_path}/state")
    with pytest.raises(SavepointRefused, match="in the job's checkpoint directory"):
        check_apart(f"file://{tmp_path}/state{target}", f"{tmp_path}/state")


@pytest.mark.parametrize(
    "inside", ["s3://bucket/job/one", "s3://bucket/job?region=a", "s3://k:s@bucket/x/../job/y/?a=b"]
)
def test_nor_in_one_on_an_object_store(inside: str) -> None:
    for kept in ("s3://bucket/job/", "s3://bucket/job?scheme=http", "s3://key:secret@bucket/job"):
        with pytest.raises(SavepointRefused, match="in the job's checkpoint directory") as refused:
            check_apart(inside, kept)
        assert "secret" not in str(refused.value)
    for apart in ("s3://bucket/job-2", "s3://other/job/one", "gs://bucket/job/one", "/job/one"):
        check_apart(apart, "s3://bucket/job")


class Failing(fs.FileSystemHandler):
    """A local file system whose writes fail from the ``left``-th on."""

    def __init__(self, left: int) -> None:
        self.left, self._inner = left, fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device", path)
        return self._inner.open_output_stream(path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._inner.create_dir(path, recursive=recursive)

    def get_file_info(self, paths: list[str]) -> Any:
        return self._inner.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._inner.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        return self._inner.open_input_stream(path)

    def delete_file(self, path: str) -> None:
        self._inner.delete_file(path)

    def get_type_name(self) -> str:
        return "failing"

    copy_file = delete_dir = delete_dir_contents = delete_root_dir_contents = move = normalize_path = None
    open_append_stream = open_input_file = None


Failing.__abstractmethods__ = frozenset()


def test_storage_that_fails_at_any_write_leaves_nothing(job: CheckpointStorage, tmp_path: Path) -> None:
    failed = 0
    for left in range(20):
        place = tmp_path / f"at-{left}"
        writer = SavepointWriter(job, target_at(place, fs.PyFileSystem(Failing(left))))
        try:
            writer.begin()
            writer.copy(7, False)
            writer.publish()
        except (SavepointRefused, StateError) as error:
            assert "No space left" in str(error)
            failed += 1
            with pytest.raises(CheckpointDirectoryError):
                found_at(place)
            writer.remove()
            assert files_of(place) == set()
        else:
            break
    assert failed == 8, "the mark, two files, the input, the program, the plan, the manifest, SAVEPOINT.json"
    found_at(place).manifest()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_fills(tmp_path: Path) -> None:
    job, disk = job_at(tmp_path / "state", tmp_path, size=100_000), tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=140k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        writer = SavepointWriter(job, target_at(disk / "taken"))
        writer.begin()
        with pytest.raises(StateError, match="No space left"):
            writer.copy(7, False)
        writer.remove()
        assert files_of(disk) == set()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_it_is_stored_on_s3_and_a_new_job_begins_with_it(job: CheckpointStorage, tmp_path: Path) -> None:
    with s3_server() as bucket:
        taken(job, CheckpointStorage(bucket.uri("taken"), key=KEY))
        taken(job, target_at(tmp_path / "here"))
        assert bucket.below("taken") == files_of(tmp_path / "here")
        shutil.rmtree(tmp_path / "state")
        found = CheckpointStorage(bucket.uri("taken"))
        _, job_id = found.ownership.job_and_id(lambda: KEY)
        assert found.ownership.savepoint is not None and "secret" not in str(found.ownership.savepoint)
        savepoint = FoundSavepoint(found, found.ownership.savepoint, job_id)
        for place in (str(tmp_path / "new"), bucket.uri("new")):
            new = CheckpointStorage(place, key=KEY)
            new.ownership.prepare(JOB, resume=False, job_id="job-2")
            savepoint.begin(new, savepoint.manifest(), b"its plan", 3)
            assert new.manifests.latest_valid() == (7, savepoint.manifest(), [])
        with pytest.raises(SavepointRefused, match="holds a savepoint"):
            SavepointWriter(job, CheckpointStorage(bucket.uri("taken"), key=KEY)).begin()


def test_s3_that_refuses_half_way_leaves_nothing(job: CheckpointStorage) -> None:
    with s3_server() as bucket:
        writer = SavepointWriter(job, CheckpointStorage(bucket.uri("taken"), key=KEY))
        writer.begin()
        writer.progressed = lambda: setattr(bucket, "full", writer.copied.files > 0)
        with pytest.raises(StateError, match="cannot be written"):
            writer.copy(7, False)
        assert bucket.below("taken") > {BEGUN_FILE}
        with pytest.raises(CheckpointDirectoryError, match="a savepoint that was not completed"):
            CheckpointStorage(bucket.uri("taken")).ownership.job()
        with pytest.raises(SavepointRefused, match="cannot be written"):
            SavepointWriter(job, CheckpointStorage(bucket.uri("other"), key=KEY)).begin()
        with pytest.raises(OSError, match="bucket is full"):  # Arrow puts a marker in the place of the last file
            writer.remove()
        assert bucket.below("taken") == {BEGUN_FILE}
        bucket.full = False
        writer.remove()
        assert bucket.below("taken") == set()


def test_a_file_that_subtasks_share_is_taken_once_under_its_name_in_storage(
    job: CheckpointStorage, tmp_path: Path
) -> None:
    """After a rescale: two subtasks have key groups of one file, each under a name of its own."""
    (own,) = job.manifests.read(7).subtasks["count[0]"].files
    shared = [
        replace(own, name=f"count[{at}]/2-8-1.sst", stored_as=own.name, clip=Clip.of(groups, ["count"]))
        for at, groups in enumerate((range(64), range(64, 128)))
    ]
    handles = {
        f"count[{at}]": replace(handle_of(file, checkpoint=8, subtask=f"count[{at}]"), bytes_total=file.bytes)
        for at, file in enumerate(shared)
    }
    job.manifests.write(Manifest(checkpoint=8, generation=200_002, subtasks=handles))
    job.retention.drop(7)
    writer = SavepointWriter(job, target_at(tmp_path / "taken"))
    writer.begin()
    writer.copy(8, False)
    writer.publish()
    assert {name for name in files_of(tmp_path / "taken") if name.startswith("state")} == {"state/count[0]/1-6-1.sst"}
    assert writer.copied.bytes_in_all == own.bytes + 4
    shutil.rmtree(tmp_path / "state")
    savepoint = found_at(tmp_path / "taken")
    new = CheckpointStorage(str(tmp_path / "new"), key=KEY)
    new.ownership.prepare(JOB, resume=False, job_id="job-2")
    savepoint.begin(new, savepoint.manifest(), b"its plan", 3)
    shutil.rmtree(tmp_path / "taken")
    (_, manifest, _) = new.manifests.latest_valid() or (0, None, [])
    assert manifest is not None and [handle.files for handle in manifest.subtasks.values()] == [(f,) for f in shared]


def test_a_file_that_was_cut_is_found_also_where_it_is_linked(job: CheckpointStorage, tmp_path: Path) -> None:
    (tmp_path / "state/state/count[1]/1-7-1.sst").write_bytes(b"x")
    writer = SavepointWriter(job, target_at(tmp_path / "taken"))
    writer.begin()
    with pytest.raises(CorruptState, match="1 bytes instead of"):
        writer.copy(7, False)
    writer.remove()
    assert files_of(tmp_path / "taken") == set()


def test_a_damaged_file_is_found_when_it_is_copied(
    job: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state/state/count[1]/1-7-1.sst").write_bytes(b"x" * 1_000)
    writer = SavepointWriter(job, target_at(tmp_path / "taken", fs.LocalFileSystem()))
    writer.begin()
    with pytest.raises(CorruptState, match="checksum"):
        writer.copy(7, False)
    writer.remove()
    assert files_of(tmp_path / "taken") == set()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a state file is gone": lambda place: (place / "state/count[0]/1-6-1.sst").unlink(),
    "a state file is altered": lambda place: _rewrite(place / "state/count[0]/1-6-1.sst", b"y" * 1_000),
    "input is gone": lambda place: (place / "staged/numbers/part-00000.parquet").unlink(),
    "input is short": lambda place: _rewrite(place / "staged/numbers/part-00000.parquet", b"r"),
    "the manifest is gone": lambda place: (place / "checkpoints/00000007.json").unlink(),
    "it says that it is of another checkpoint": lambda place: _replace(place / SAVEPOINT_FILE, b": 7,", b": 8,"),
    "it says that it was stopped": lambda place: _replace(place / SAVEPOINT_FILE, b"false", b"true"),
    "input leads out of it": lambda place: _replace(place / SAVEPOINT_FILE, b"staged/n", b"staged/../n"),
    "it is no JSON": lambda place: _rewrite(place / SAVEPOINT_FILE, b"{"),
    "it is of another format": lambda place: _replace(place / SAVEPOINT_FILE, b'"format": 1', b'"format": 2'),
}


def _rewrite(path: Path, content: bytes) -> None:
    path.unlink()  # the job's own file may be linked to it
    path.write_bytes(content)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_savepoint_is_refused(job: CheckpointStorage, tmp_path: Path, what: str) -> None:
    taken(job, target_at(tmp_path / "taken"))
    DAMAGES[what](tmp_path / "taken")
    with pytest.raises((CorruptCheckpoint, CorruptState, CheckpointDirectoryError)):
        found_at(tmp_path / "taken").manifest()


def test_a_savepoint_of_a_stranger_is_not_trusted(job: CheckpointStorage, tmp_path: Path) -> None:
    taken(job, target_at(tmp_path / "taken"))
    with pytest.raises(UntrustedCheckpoint):
        found_at(tmp_path / "taken", key=SigningKey(b"o" * 32, "there"))


def test_a_trusted_savepoint_of_a_stranger_is_signed_where_it_is_copied_to(
    job: CheckpointStorage, tmp_path: Path
) -> None:
    taken(job, target_at(tmp_path / "taken"))
    before = {path: path.read_bytes() for path in (tmp_path / "taken").rglob("*") if path.is_file()}
    mine, storage = SigningKey(b"m" * 32, "there"), CheckpointStorage(str(tmp_path / "taken"), trust=True)
    _, job_id = storage.ownership.job_and_id(lambda: mine)
    assert storage.ownership.savepoint is not None
    savepoint = FoundSavepoint(storage, storage.ownership.savepoint, job_id)
    new = CheckpointStorage(str(tmp_path / "new"), key=mine)
    new.ownership.prepare(JOB, resume=False, job_id="job-2")
    savepoint.begin(new, savepoint.manifest(), b"its plan", 3)
    again = CheckpointStorage(str(tmp_path / "new"), key=mine)
    assert again.ownership.job_and_id(lambda: mine) == (JOB, "job-2")
    assert again.manifests.latest_valid() is not None and origin_of(again) is not None
    assert {path: path.read_bytes() for path in before} == before


def test_what_is_cancelled_is_never_published(job: CheckpointStorage, tmp_path: Path) -> None:
    writer = SavepointWriter(job, target_at(tmp_path / "taken"))
    writer.begin()
    writer.copy(7, False)
    writer.cancel()
    with pytest.raises(SavepointError, match="given up"):
        writer.publish()
    writer.remove()
    assert files_of(tmp_path / "taken") == set() and not writer.published


def test_two_that_take_one_place_leave_it_to_one(job: CheckpointStorage, tmp_path: Path) -> None:
    first, second = (SavepointWriter(job, target_at(tmp_path / "taken")) for _ in range(2))
    first.begin()
    (tmp_path / "taken" / BEGUN_FILE).unlink()
    second.begin()
    with pytest.raises(SavepointError, match="another process"):
        first.publish()
    first.remove()
    second.copy(7, False)
    second.publish()
    found_at(tmp_path / "taken").manifest()


CHILD = """
import os, sys
from pathlib import Path
from tests.unit.state.durable.test_savepoint import KEY, target_at
from flinkplus.state.durable.savepoint import SavepointWriter
from flinkplus.state.durable.storage import CheckpointStorage
storage = CheckpointStorage(sys.argv[1], key=KEY)
storage.signed.job_id = "job-1"
writer = SavepointWriter(storage, target_at(Path(sys.argv[2])))
writes = int(sys.argv[3])
def step(*_):
    global writes
    writes -= 1
    if writes < 0:
        os.kill(os.getpid(), 9)
def counted(function):
    def call(*arguments):
        step()
        return function(*arguments)
    return call
files = writer.target.files
files.write, files.store, files.take = counted(files.write), counted(files.store), counted(files.take)
writer.begin()
writer.copy(7, False)
writer.publish()
"""


def test_a_driver_that_is_killed_at_any_write_leaves_no_savepoint(job: CheckpointStorage, tmp_path: Path) -> None:
    """SIGKILL for real; what is there is refused as what it is, and is no place for another one."""
    for writes in (1, 3, 6):
        place = tmp_path / f"at-{writes}"
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / "state"), str(place), str(writes)], check=False
        )
        assert child.returncode == -signal.SIGKILL
        assert BEGUN_FILE in files_of(place) and SAVEPOINT_FILE not in files_of(place)
        with pytest.raises(CheckpointDirectoryError, match="a savepoint that was not completed"):
            found_at(place)
        with pytest.raises(CheckpointDirectoryError, match="was not completed"):
            Listing(CheckpointStorage(str(place)), KEY).read()
        with pytest.raises(CheckpointDirectoryError, match="never written to"):
            target_at(place).ownership.prepare(JOB, resume=True)
        with pytest.raises(SavepointRefused, match="holds a savepoint that was not completed"):
            SavepointWriter(job, target_at(place)).begin()


def test_a_new_job_whose_driver_dies_before_the_copy_is_whole_has_not_begun(
    job: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(job, target_at(tmp_path / "taken"))
    savepoint = found_at(tmp_path / "taken")
    new = CheckpointStorage(str(tmp_path / "new"), key=KEY)
    new.ownership.prepare(JOB, resume=False, job_id="job-2")

    def dies(_manifest: Manifest) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(new.manifests, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        savepoint.begin(new, savepoint.manifest(), b"its plan", 3)
    again = CheckpointStorage(str(tmp_path / "new"), key=KEY)
    again.ownership.job(lambda: KEY)
    with pytest.raises(CheckpointDirectoryError, match="was not copied to its end"):
        origin_of(again)
    again.ownership.prepare(JOB, resume=False, job_id="job-3")
    savepoint.begin(again, savepoint.manifest(), b"its plan", 3)
    assert origin_of(again) is not None


def test_random_damage_is_an_error_of_its_kind(job: CheckpointStorage, tmp_path: Path) -> None:
    taken(job, target_at(tmp_path / "taken"))
    path = tmp_path / "taken" / SAVEPOINT_FILE
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        with pytest.raises(FlinkPlusError):
            found_at(tmp_path / "taken").manifest()
