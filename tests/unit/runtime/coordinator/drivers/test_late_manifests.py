"""A write that hangs beyond every time-out, and happens when the job is over, is being resumed, or runs again.

Whatever the order: the job can be resumed, committed output stays, and no row is visible twice.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from flinkplus.errors import StateError
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.coordinator.dispatch.dispatch import Dispatch
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.job import running
from flinkplus.runtime.job.restoring import GENERATIONS_PER_RUN, _find_restore
from flinkplus.runtime.job.running import RunningJob
from flinkplus.sinks.text import TextSink
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.sst_format import describe
from tests.handles import handle_of, manifest_of, part_of
from tests.unit.sinks.harness import SCHEMA, context, rows, visible_lines

JOB = {"name": "job", "fingerprint": "f"}


class Driver:
    """One run of a job of one subtask, which is a sink. Each checkpoint writes a row of its own."""

    def __init__(self, folder: Path, kind: str, resume: bool) -> None:
        self.out = folder / "out"
        filesystem = None if kind == "local" else fs.LocalFileSystem()
        self.storage = CheckpointStorage(str(folder / "checkpoints"), filesystem)
        self.storage.ownership.prepare(JOB, resume)
        run = self.storage.begin()
        self._sink = TextSink("out", str(self.out)).bind(SCHEMA, "job-1")
        self.commits = Commits({"out": self._sink}, self.storage)
        self.commits.prepare(resume)
        self.generation = (run - 1) * GENERATIONS_PER_RUN + 1
        self.restored: int | None = None
        self.number = 0

    def adopt(self) -> None:
        restore = _find_restore(self.storage, self.commits, Restore(generation=Generation(self.generation - 1)))
        self.restored, self.number = restore.checkpoint, restore.next_checkpoint - 1

    def begin(self) -> None:
        self.writer = self._sink.writer(context(0), self.generation)
        self.commits.collect_garbage(Generation(self.generation))

    def snapshot(self) -> list[tuple[SubtaskId, SnapshotHandle]]:
        """The next checkpoint, as far as the subtask has to do with it; its state is a file."""
        self.number += 1
        self.writer.write(rows((f"r{self.number}", self.generation)))
        staged = self.writer.settle(self.writer.stage(self.number))
        local = self.out.parent / "local"
        local.write_bytes(b"state of %d" % self.number)
        name = f"out[0]/{self.generation}-{self.number}-1.sst"
        self.storage.state_files.upload(local, name)
        handle = handle_of(describe(local, name, "base", 1), operators={"out": part_of(staged)})
        return [(SubtaskId("out", 0), handle)]

    def store(self, handles: list[tuple[SubtaskId, SnapshotHandle]]) -> None:
        self.commits.store(CheckpointId(self.number), Generation(self.generation), handles, False)

    def checkpoint(self) -> None:
        self.store(self.snapshot())
        self.commits.commit(CheckpointId(self.number))
        self.writer.checkpoint_complete(self.number)

    @classmethod
    def started(cls, folder: Path, complete: int, kind: str = "arrow") -> Driver:
        driver = cls(folder, kind, resume=False)
        driver.begin()
        for _ in range(complete):
            driver.checkpoint()
        return driver

    @classmethod
    def resumed(cls, folder: Path, kind: str = "arrow") -> Driver:
        driver = cls(folder, kind, resume=True)
        driver.adopt()
        driver.begin()
        return driver


def given_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The manifest of the next checkpoint is given up; where it is, and where it will appear."""
    handles = driver.snapshot()
    found: list[tuple[Path, Path]] = []
    with monkeypatch.context() as patch:
        write = driver.storage.manifests.write

        def hangs(manifest: Manifest) -> None:
            write(manifest)
            path = (
                driver.out.parent
                / "checkpoints"
                / f"checkpoints/{manifest.checkpoint:08d}-{driver.storage.runs.epoch}.json"
            )
            aside = driver.out.parent / "late"
            shutil.move(path, aside)
            found.append((aside, path))
            raise StateError("time-out")

        patch.setattr(driver.storage.manifests, "write", hangs)
        with pytest.raises(StateError):
            driver.store(handles)
    return found[0]


def lines_of(driver: Driver, *numbers: int) -> list[str]:
    return [f"r{number}\t{driver.generation}" for number in numbers]


MOMENTS = ("before the discard", "after the discard", "during the resume", "after the resume", "beside its checkpoints")


@pytest.mark.parametrize("complete", [0, 1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_manifest_that_appears_late_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, complete: int
) -> None:
    first = Driver.started(tmp_path, complete)
    aside, path = given_up(first, monkeypatch)

    def reaches(now: str) -> None:
        if now == moment:
            shutil.move(aside, path)

    reaches("before the discard")
    first.commits.end(finished=False, resumable=True)
    reaches("after the discard")
    assert not list((first.out / "_staging").rglob("part-*"))
    second = Driver(tmp_path, "arrow", resume=True)
    reaches("during the resume")
    second.adopt()
    second.begin()
    assert (second.restored or 0) == complete
    reaches("after the resume")
    before = lines_of(first, *range(1, complete + 1))
    assert visible_lines(second.out) == sorted(before)
    second.checkpoint()
    reaches("beside its checkpoints")
    second.checkpoint()
    numbers = (second.number - 1, second.number)
    assert visible_lines(second.out) == sorted([*before, *lines_of(second, *numbers)])
    second.commits.sweep(CheckpointId(second.number), CheckpointId(second.number))
    assert not path.exists(), "a late manifest is removed, and is not in the way of another one"
    third = Driver.resumed(tmp_path)
    assert third.restored == second.number
    third.checkpoint()
    assert visible_lines(third.out) == sorted([*before, *lines_of(second, *numbers), *lines_of(third, third.number)])


def test_a_late_manifest_of_a_dead_driver_counts_if_it_appears_before_the_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it names was removed: the driver did not end its run."""
    first = Driver.started(tmp_path, 1)
    aside, path = given_up(first, monkeypatch)
    shutil.move(aside, path)
    second = Driver.resumed(tmp_path)
    assert second.restored == 2
    assert visible_lines(second.out) == lines_of(first, 1, 2)


def test_a_manifest_that_was_given_up_is_void_for_the_running_job_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Driver.started(tmp_path, 1)
    aside, path = given_up(first, monkeypatch)
    first.commits.drop(CheckpointId(2))
    shutil.move(aside, path)
    assert first.storage.manifests.checkpoints() == [1]
    first.checkpoint()
    assert first.storage.manifests.checkpoints() == [1, 3]
    assert visible_lines(first.out) == lines_of(first, 1, 2, 3)
    first.commits.sweep(CheckpointId(3), CheckpointId(3))
    assert not path.exists()


def test_no_file_of_an_uncertain_manifest_is_removed_before_it_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Driver.started(tmp_path, 1)
    given_up(first, monkeypatch)

    def away(*_: object) -> None:
        raise StateError("storage is away")

    with monkeypatch.context() as patch:
        patch.setattr(first.storage.runs, "cut", away)
        for order in (
            lambda: first.commits.drop(CheckpointId(2)),
            lambda: first.commits.sweep(CheckpointId(3), CheckpointId(3)),
            lambda: first.commits.collect_garbage(Generation(9)),
            lambda: first.commits.end(finished=False, resumable=True),
        ):
            with pytest.raises(StateError, match="away"):
                order()
    assert list((first.out / "_staging").rglob("part-*"))
    assert len(list((tmp_path / "checkpoints/state").rglob("*.sst"))) == 2


def test_a_new_history_takes_no_manifest_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ended without a checkpoint is started again, not resumed, and then its old manifest appears."""
    first = Driver.started(tmp_path, 0)
    aside, path = given_up(first, monkeypatch)
    first.commits.end(finished=False, resumable=True)
    second = Driver(tmp_path, "arrow", resume=False)
    assert second.generation > first.generation
    second.storage.manifests.withdraw_after(0)  # as ``_launch`` does
    shutil.move(aside, path)
    assert second.storage.manifests.checkpoints() == []
    second.begin()
    second.checkpoint()
    third = Driver.resumed(tmp_path)
    assert third.restored == 1
    assert visible_lines(third.out) == lines_of(second, 1)


def test_on_a_local_disk_a_hung_write_fails_once_another_run_has_begun(tmp_path: Path) -> None:
    first = Driver.started(tmp_path, 1, "local")
    handles = first.snapshot()
    gate, hangs = threading.Event(), threading.Event()
    looked = first.storage.runs.check

    def stands_still() -> None:
        hangs.set()
        assert gate.wait(60)
        looked()

    first.storage.runs.check = stands_still  # type: ignore[method-assign]
    failed: list[Exception] = []

    def store() -> None:
        try:
            first.storage.manifests.write(
                manifest_of(2, subtasks={str(subtask): handle for subtask, handle in handles})
            )
        except Exception as error:
            failed.append(error)

    writing = threading.Thread(target=store)
    writing.start()
    assert hangs.wait(60)
    second = Driver.resumed(tmp_path, "local")
    gate.set()
    writing.join()
    assert len(failed) == 1
    assert second.restored == 1
    assert second.storage.manifests.checkpoints() == [1]


@pytest.mark.parametrize("worker_ended", [True, False])
def test_the_end_of_a_job_waits_for_its_storage_worker_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, worker_ended: bool
) -> None:
    """As long as a manifest may be written, nothing that it may name is removed."""
    monkeypatch.setattr(running, "STORAGE_PATIENCE_S", 0.01)
    ended = threading.Event()
    if worker_ended:
        ended.set()
    calls: list[tuple[bool, bool]] = []
    job: Any = object.__new__(RunningJob)
    job.name = "job"
    job.coordinator = SimpleNamespace(storage_ended=ended, result=SimpleNamespace(state=JobState.FAILED))
    job._commits = SimpleNamespace(end=lambda finished, resumable: calls.append((finished, resumable)))
    job._directory = SimpleNamespace(ephemeral=False)
    job._end_output()
    assert calls == ([(False, True)] if worker_ended else [])


def test_the_storage_worker_has_ended_when_it_has_done_all_that_it_was_given() -> None:
    wires: Any = SimpleNamespace(close=lambda: None)
    dispatch = Dispatch(wires, SlotProcesses(1), Inbox())
    gate = threading.Event()
    done: list[str] = []
    dispatch.storage.submit(gate.wait, 60)
    dispatch.storage.submit(done.append, "a manifest")
    closing = threading.Thread(target=dispatch.end_writes)
    closing.start()
    assert not dispatch.storage_ended.is_set()
    gate.set()
    assert dispatch.storage_ended.wait(60)
    assert done == ["a manifest"]
    closing.join()
    dispatch.close()


def test_a_job_that_has_finished_stays_finished_when_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver.started(tmp_path, complete=2)
    driver.snapshot()  # its state file is named by no manifest
    (unused,) = driver.storage.retention.unnamed()

    def refused(name: str) -> None:
        raise OSError("please reduce your request rate")

    with monkeypatch.context() as patch:
        patch.setattr(driver.storage.files, "delete", refused)
        driver.commits.end(finished=True, resumable=True)
    assert "keeping unused state files until the job is resumed: please reduce" in caplog.text
    assert driver.storage.retention.unnamed() == [unused]
    Driver.resumed(tmp_path)
    assert CheckpointStorage(str(tmp_path / "checkpoints"), fs.LocalFileSystem()).retention.unnamed() == []


@pytest.mark.parametrize("resumable", [True, False])
def test_the_end_of_a_job_commits_what_its_newest_checkpoint_covers(tmp_path: Path, resumable: bool) -> None:
    """The job was cancelled after the manifest was stored, and before the commit was ordered."""
    driver = Driver.started(tmp_path, complete=1)
    driver.store(driver.snapshot())
    driver.snapshot()  # in no checkpoint
    driver.commits.end(finished=False, resumable=resumable)
    assert visible_lines(driver.out) == lines_of(driver, 1, 2)
    assert driver.commits.rows == {"out": 2}
    assert not (driver.out / "_staging").exists()


@pytest.mark.parametrize("resumable", [True, False])
def test_output_whose_last_commit_fails_is_kept_for_a_resume(
    tmp_path: Path, resumable: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver.started(tmp_path, complete=1)
    driver.store(driver.snapshot())

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(driver.commits.committers["out"], "commit", fails)
        driver.commits.end(finished=False, resumable=resumable)
    assert "could not commit the output of checkpoint 2: [Errno 28] No space left" in caplog.text
    assert visible_lines(driver.out) == lines_of(driver, 1)
    assert (driver.out / "_staging").exists() is resumable
    if resumable:
        Driver.resumed(tmp_path)
        assert visible_lines(driver.out) == lines_of(driver, 1, 2)
