"""A driver that was replaced changes nothing any more, wherever it stood still; of two drivers one has the job."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flinkplus.errors import JobRunsElsewhere, StateError
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job.directory import LOCK_FILE, Claim
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.spark_log import COMPACT_INTERVAL, LOG_DIRECTORY, Layout, LoggedFile, SparkFileLog
from flinkplus.state.durable.storage import CheckpointStorage
from tests.handles import manifest_of

JOB = {"name": "job", "fingerprint": "f"}


def driver(root: Path, run: int) -> CheckpointStorage:
    storage = CheckpointStorage(root)
    storage.ownership.prepare(JOB, resume=run > 1)
    storage.runs.begin(run)
    return storage


def commits_of(storage: CheckpointStorage, told: list[str]) -> Commits:
    commits = Commits({}, storage, told.append)
    return commits


def test_a_run_is_known_by_its_number_and_its_driver(tmp_path: Path) -> None:
    first = driver(tmp_path, 1)
    first.runs.check()
    assert first.runs.number == 1
    again = CheckpointStorage(tmp_path)
    assert again.begin() == 2
    again.runs.check()
    with pytest.raises(JobRunsElsewhere, match="another driver has taken over the job in"):
        first.runs.check()
    CheckpointStorage(tmp_path).runs.check()  # slots have begun no run


ORDERS: dict[str, Callable[[Commits], None]] = {
    "store": lambda commits: commits.store(CheckpointId(3), Generation(1), [(SubtaskId("a", 0), START)], False),
    "commit": lambda commits: commits.commit(CheckpointId(1)),
    "retract_after": lambda commits: commits.retract_after(CheckpointId(1)),
    "sweep": lambda commits: commits.sweep(CheckpointId(2), CheckpointId(2)),
    "end": lambda commits: commits.end(finished=False, resumable=True),
    "drop": lambda commits: commits.drop(CheckpointId(1)),
    "collect_garbage": lambda commits: commits.collect_garbage(Generation(1)),
    "finish": lambda commits: commits.finish(),
    "discard": lambda commits: commits.discard(),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_driver_that_was_replaced_does_nothing(tmp_path: Path, order: str) -> None:
    told: list[str] = []
    first = driver(tmp_path, 1)
    commits = commits_of(first, told)
    for checkpoint in (1, 2):
        commits.store(CheckpointId(checkpoint), Generation(1), [], False)
    driver(tmp_path, 2)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JobRunsElsewhere):
        ORDERS[order](commits)
    assert sorted(tmp_path.rglob("*")) == before
    assert len(told) == 1 and "another driver" in told[0]


@pytest.mark.parametrize("order", ["commit", "retract_after"])
def test_a_sink_may_be_the_first_to_know(tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output says that another driver has taken the job over, before the checkpoint directory does."""
    told: list[str] = []
    commits = Commits({"out": DiscardSink("out")}, driver(tmp_path, 1), told.append)
    commits.store(CheckpointId(1), Generation(1), [], False)

    def taken_over(*_: object) -> None:
        raise JobRunsElsewhere("another driver writes this table")

    monkeypatch.setattr(commits.committers["out"], order, taken_over)
    with pytest.raises(JobRunsElsewhere):
        ORDERS[order](commits)
    assert told == ["another driver writes this table"]


def test_a_manifest_that_was_being_written_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stands still before it has looked for the last time whether it is still the one."""
    first = driver(tmp_path, 1)
    looked = first.runs.check

    def replaced_meanwhile() -> None:
        driver(tmp_path, 2).manifests.write(manifest_of(1, generation=2))
        looked()

    monkeypatch.setattr(first.runs, "check", replaced_meanwhile)
    with pytest.raises(JobRunsElsewhere):
        first.manifests.write(manifest_of(1, generation=1))
    assert CheckpointStorage(tmp_path).manifests.read(1).generation == 2
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_manifest_that_only_lacks_its_name_never_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stands still after it has looked."""
    first = driver(tmp_path, 1)
    looked = first.runs.check

    def replaced_afterwards() -> None:
        looked()
        driver(tmp_path, 2).manifests.write(manifest_of(1, generation=2))

    monkeypatch.setattr(first.runs, "check", replaced_afterwards)
    with pytest.raises(StateError, match="manifest 1 cannot be stored"):
        first.manifests.write(manifest_of(1, generation=1))
    assert CheckpointStorage(tmp_path).manifests.read(1).generation == 2
    assert not list(tmp_path.rglob("*.tmp"))


def entry(name: str) -> LoggedFile:
    return LoggedFile(f"file:///out/{name}", 1, False, 0, 1, 1, "add")


@pytest.mark.parametrize("looks_first", [True, False])
def test_a_list_of_committed_files_that_was_being_written_does_not_appear(tmp_path: Path, looks_first: bool) -> None:
    files = OutputFiles(str(tmp_path))
    log = SparkFileLog(files)
    log.create()
    log.load()

    def meanwhile() -> None:
        files.check = lambda: None
        successor = SparkFileLog(OutputFiles(str(tmp_path)))
        successor.load()
        successor.append([entry("new")])
        if not looks_first:
            raise JobRunsElsewhere("another driver has taken over")

    files.check = meanwhile
    with pytest.raises((JobRunsElsewhere, FileNotFoundError)):
        log.append([entry("old")])
    log.load()
    assert [file.name for file in log.all_files()] == ["new"]
    if looks_first:
        batches = [path.name for path in (tmp_path / LOG_DIRECTORY).iterdir() if path.suffix != ".compact"]
        assert batches == [str(Layout(COMPACT_INTERVAL).first_batch)]


def test_nothing_of_the_output_is_removed_without_looking(tmp_path: Path) -> None:
    files = OutputFiles(str(tmp_path))
    files.write("one", b"1")
    files.make_dir("two")

    def replaced() -> None:
        raise JobRunsElsewhere("another driver has taken over")

    files.check = replaced
    for change in (lambda: files.delete("one"), lambda: files.delete_dir("two"), lambda: files.move("one", "three")):
        with pytest.raises(JobRunsElsewhere):
            change()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


HOLDER = """\
import sys
from flinkplus.runtime.job.directory import Claim
claim = Claim(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_holds_a_claim_until_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JobRunsElsewhere, match=f"is run by process {holder.pid} on .*; end that driver first"):
            Claim(str(tmp_path))
        Claim(str(tmp_path), tried=True).release()
        with pytest.raises(JobRunsElsewhere):
            Claim(f"file://{tmp_path}")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        claim = Claim(str(tmp_path))
    with pytest.raises(JobRunsElsewhere):
        Claim(str(tmp_path))
    claim.release()
    claim.release()
    Claim(str(tmp_path)).release()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_claim_on_what_cannot_be_locked_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Claim(str(tmp_path / "file")).release()
    Claim("mock://elsewhere").release()


def test_who_is_refused_has_changed_nothing(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    storage.ownership.prepare(JOB, resume=False)
    (tmp_path / "state/a").mkdir(parents=True)
    (tmp_path / "state/a/1-1-1.sst").write_bytes(b"of the job that runs")
    claim = Claim(str(tmp_path))
    with pytest.raises(JobRunsElsewhere):
        storage.ownership.prepare(JOB, resume=False, claim=lambda: Claim(str(tmp_path)).release())
    assert (tmp_path / "state/a/1-1-1.sst").exists()
    claim.release()
