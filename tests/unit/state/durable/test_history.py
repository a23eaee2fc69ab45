"""Which manifests count, and which state files are unused: the rules alone, and with real state and storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.history import MAX_CUTS, Cut, Cuts, UnusedFiles, left_behind
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.versions import BasePolicy
from tests.handles import manifest_of

NUMBERS = st.integers(0, 8)


@given(st.lists(st.builds(Cut, NUMBERS, NUMBERS)), st.lists(st.builds(Cut, NUMBERS, NUMBERS)), NUMBERS, NUMBERS)
def test_only_cuts_that_others_cover_are_left_out(
    cuts: list[Cut], others: list[Cut], epoch: int, checkpoint: int
) -> None:
    united = Cuts(cuts).united(Cuts(others))
    assert united.voids(epoch, checkpoint) == any(cut.voids(epoch, checkpoint) for cut in [*cuts, *others])
    assert Cuts.from_json(united.to_json()).to_json() == united.to_json()


def test_the_oldest_of_too_many_cuts_are_forgotten() -> None:
    cuts = Cuts(Cut(number, number) for number in range(1, MAX_CUTS + 11))
    assert len(cuts.to_json()) == MAX_CUTS
    assert cuts.to_json()[0] == [11, 11]


@pytest.mark.parametrize("found", [None, {}, [1], [[1]], [["a", "b"]], [[None, 1]]])
def test_what_describes_no_cuts_is_refused(found: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Cuts.from_json(found)


def test_a_file_is_unused_when_a_checkpoint_triggered_after_it_was_seen_does_not_name_it() -> None:
    unused = UnusedFiles()
    stored = {"uploading": 3}
    assert unused.find(stored, (), complete=3, triggered=5) == []
    assert unused.find(stored, (), complete=5, triggered=6) == [], "5 had been triggered when the file was seen"
    assert unused.find(stored, (), complete=6, triggered=6) == ["uploading"]


def test_a_file_that_is_named_meanwhile_begins_again() -> None:
    unused = UnusedFiles()
    assert unused.find({"a": 1}, (), complete=1, triggered=2) == []
    assert unused.find({"a": 1}, {"a"}, complete=3, triggered=3) == []
    assert unused.find({"a": 1}, (), complete=4, triggered=4) == []
    assert unused.find({"a": 1}, (), complete=5, triggered=5) == ["a"]


def test_a_base_may_be_named_up_to_the_checkpoint_of_its_number() -> None:
    unused = UnusedFiles()
    for complete in range(1, 17):
        assert unused.find({"base": 17}, (), complete, triggered=complete) == []
    assert unused.find({"base": 17}, (), 17, 17) == ["base"]


def test_what_a_deployment_leaves_behind() -> None:
    stored = {"older": (1, 9), "named": (1, 1), "before": (2, 4), "after": (2, 5), "newer": (3, 1)}
    assert left_behind(stored, {"named"}, 2, 4) == ["older", "before"]


class JobOfOneSubtask:
    """Real state and storage; a checkpoint is complete, or given up after its upload."""

    def __init__(self, folder: Path) -> None:
        self.storage = CheckpointStorage(folder / "checkpoints")
        self.storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
        self._folder = folder
        self.generation = 0
        self.complete: list[int] = []
        self.open()

    def open(self, policy: BasePolicy | None = None) -> None:
        self.generation += 1
        folder = self._folder / "work"
        self.state = SubtaskState(folder, self.storage.state_files, "count[0]", self.generation, policy=policy)

    def checkpoint(self, number: int, is_complete: bool) -> None:
        numbers = self.state.number_state("n")
        rows = numbers.indices([b"k%d" % (number % 7), b"k"])
        numbers.scatter(rows, numbers.gather(rows) + 1)
        handle = self.state.persist(self.state.freeze(number, OperatorState()))
        if not is_complete:
            return
        self.storage.manifests.write(manifest_of(number, generation=self.generation, subtasks={"s": handle}))
        self.state.checkpoint_complete(number)
        self.complete.append(number)
        while len(self.complete) > 2:
            self.storage.retention.drop(self.complete.pop(0))

    def unnamed(self) -> list[str]:
        return self.storage.retention.unnamed()


def test_files_of_checkpoints_that_were_given_up_go_while_the_job_runs(tmp_path: Path) -> None:
    job = JobOfOneSubtask(tmp_path)
    most = 0
    for number in range(1, 121):
        job.checkpoint(number, is_complete=number % 10 == 0)
        if number % 10 == 0:
            job.storage.retention.sweep(number, number)
            most = max(most, len(job.unnamed()))
    assert most <= 20, "what the last two complete checkpoints left"
    job.storage.retention.sweep_all()
    assert job.unnamed() == []
    found = job.storage.manifests.latest_valid()
    assert found is not None and found[0] == 120
    job.state.close()


def test_files_of_a_dead_head_and_of_an_unfinished_upload_go_while_the_job_runs(tmp_path: Path) -> None:
    job = JobOfOneSubtask(tmp_path)
    job.checkpoint(1, is_complete=True)
    dead = job.state
    job.open()
    job.state.restore(job.storage.manifests.read(1).subtasks["s"])
    rows = dead.number_state("n").indices([b"k"])
    dead.number_state("n").scatter(rows, 99)
    dead.persist(dead.freeze(2, OperatorState()))  # a zombie
    dead.close()
    torn = tmp_path / "checkpoints/state/count[0]/1-2-9.sst.0a1b.tmp"
    torn.write_bytes(b"its process was killed")
    assert len(job.unnamed()) == 2
    for number in range(2, 6):
        job.checkpoint(number, is_complete=True)
        job.storage.retention.sweep(number, number)
    assert job.unnamed() == []
    assert not torn.exists()
    job.state.close()


def test_a_rejected_base_goes_while_the_job_runs(tmp_path: Path) -> None:
    job = JobOfOneSubtask(tmp_path)
    job.state.close()
    job.open(BasePolicy(ratio=0.0, min_bytes=0, max_deltas=2))
    for number in range(1, 5):
        job.checkpoint(number, is_complete=True)
    versions = job.state._versions
    upload = job.storage.state_files.upload

    def upload_and_be_too_late(local: Path, name: str) -> None:
        upload(local, name)
        versions._handed_out = 1_000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job.storage.state_files, "upload", upload_and_be_too_late)
        assert not job.state.rebase()
    versions._handed_out = 4
    (base,) = job.unnamed()
    for number in range(5, 40):
        job.checkpoint(number, is_complete=True)
        job.storage.retention.sweep(number, number)
        assert not [name for name in job.unnamed() if name != base]
    assert job.unnamed() == []
    job.state.close()


def test_a_sweep_removes_so_many_files_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that is to be stored waits for it."""
    monkeypatch.setattr("flinkplus.state.durable.retention.MOST_REMOVED", 3)
    storage = CheckpointStorage(tmp_path / "checkpoints")
    (tmp_path / "file").write_bytes(b"state")
    for number in range(1, 6):
        storage.state_files.upload(tmp_path / "file", f"a/1-1-{number}.sst")
    assert storage.retention.sweep(1, 1) == []
    assert len(storage.retention.sweep(2, 2)) == 3
    assert len(storage.retention.sweep(3, 3)) == 2


def test_a_sweep_looks_once_whether_another_driver_has_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.runs.begin(1)
    (tmp_path / "file").write_bytes(b"state")
    for number in range(1, 6):
        storage.state_files.upload(tmp_path / "file", f"a/1-1-{number}.sst")
    looked: list[int] = []
    monkeypatch.setattr(storage.runs, "check", lambda: looked.append(1))
    storage.retention.sweep(1, 1)
    assert len(storage.retention.sweep(2, 2)) == 5
    assert len(looked) == 1
