"""Drivers on one bucket without an ensemble: each run has one driver, and what an earlier one sends late changes
nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import botocore.session
import pytest

from flinkplus.errors import CheckpointDirectoryError, JobRunsElsewhere, OutputDirectoryError, StateError
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.spark_log import LOG_DIRECTORY, LoggedFile, SparkFileLog
from flinkplus.state.durable.ownership import JOB_FILE
from flinkplus.state.durable.storage import CheckpointStorage
from tests.handles import manifest_of
from tests.s3_server import Bucket, s3_server

JOB = {"name": "job", "fingerprint": "f"}
PATIENCE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """One for all, because it takes a while to read what S3's requests are."""
    one = botocore.session.get_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "get_session", lambda: one)
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture
def s3(server: Bucket) -> Bucket:
    """An empty one."""
    server.objects.clear()
    server.before_put = lambda key: None
    return server


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: Bucket) -> str:
    return str(tmp_path) if request.param == "local" else s3.uri("job")


def driver(place: str, number: int) -> CheckpointStorage:
    storage = CheckpointStorage(place)
    storage.ownership.prepare(JOB, resume=number > 1)
    assert storage.begin() == number
    return storage


def claim_of(storage: CheckpointStorage) -> Callable[[], None]:
    """As a new job begins its run: before its directory is changed."""

    def claim() -> None:
        storage.begin()

    return claim


def test_of_two_drivers_that_have_seen_the_same_one_begins(place: str) -> None:
    driver(place, 1)
    both = [CheckpointStorage(place) for _ in range(2)]
    for storage in both:
        storage.runs.look()
    assert both[1].begin() == 2
    with pytest.raises(JobRunsElsewhere, match=r"has begun a run of the job in .* at the same time"):
        both[0].begin()
    both[1].runs.check()
    third = CheckpointStorage(place)
    assert third.begin() == 3
    with pytest.raises(JobRunsElsewhere, match="has taken over"):
        both[1].runs.check()


@pytest.mark.parametrize("place", ["local", "s3"], indirect=True)
def test_at_the_same_moment(place: str) -> None:
    driver(place, 1)
    both = [CheckpointStorage(place) for _ in range(4)]
    start = threading.Barrier(len(both))

    def begins(storage: CheckpointStorage) -> int:
        storage.runs.look()
        start.wait(PATIENCE_S)
        try:
            return storage.begin()
        except JobRunsElsewhere:
            return 0

    with ThreadPoolExecutor(len(both)) as pool:
        assert sorted(pool.map(begins, both)) == [0, 0, 0, 2]


def test_who_loses_a_new_job_removes_nothing_of_it(place: str) -> None:
    first = CheckpointStorage(place)
    first.ownership.prepare(JOB, resume=False, claim=claim_of(first))
    second = driver(place, 2)
    second.blobs.put_signed("plan", b"its plan")
    before = first.files.names("")
    first.ownership.release()
    assert first.files.names("") == before and JOB_FILE in before
    second.ownership.release()
    assert [name for name in second.files.names("") if not name.startswith(".runs/")] == []
    assert CheckpointStorage(place).begin() == 3, "claims stay: another driver may hold one"


def test_a_driver_that_dies_right_after_its_claim_leaves_a_free_directory(place: str) -> None:
    assert CheckpointStorage(place).begin() == 1
    second = CheckpointStorage(place)
    assert not second.ownership.prepare(JOB, resume="auto", claim=claim_of(second))
    assert second.runs.number == 2 and JOB_FILE in second.files.names("")


def test_a_directory_that_was_emptied_is_noticed(place: str) -> None:
    first = driver(place, 1)
    for name in first.files.names(""):
        first.files.delete(name)
    with pytest.raises(JobRunsElsewhere):
        first.runs.check()
    driver(place, 1)
    with pytest.raises(JobRunsElsewhere):
        first.runs.check()


def test_numbers_rise_where_claims_are_damaged_or_were_not_copied(place: str, caplog: pytest.LogCaptureFixture) -> None:
    first = driver(place, 1)
    first.manifests.write(manifest_of(1))
    second = CheckpointStorage(place)
    assert second.begin(at_least=7) == 7
    second.manifests.write(manifest_of(2))
    claims = [name for name in second.files.names(".runs")]
    second.files.write(claims[-1], b"damaged")
    assert CheckpointStorage(place).begin() == 8
    assert "cannot read which run has the job" in caplog.text
    for name in second.files.names(".runs"):
        second.files.delete(name)
    assert CheckpointStorage(place).begin() == 9


def test_a_directory_of_the_version_before_is_refused(tmp_path: Path) -> None:
    """It has ``blobs/runs``, which says nothing to this version."""
    storage = driver(str(tmp_path), 1)
    document = (tmp_path / JOB_FILE).read_text()
    (tmp_path / JOB_FILE).write_text(document.replace('"format": 7', '"format": 6'))
    with pytest.raises(CheckpointDirectoryError, match=r"expected 7.*; use the version that wrote it"):
        CheckpointStorage(tmp_path).ownership.prepare(JOB, resume=True)
    assert storage.runs.number == 1


class Delayed:
    """Holds back the write of one object, which another thread sends."""

    def __init__(self, s3: Bucket, part: str) -> None:
        self.arrived, self.released = threading.Event(), threading.Event()
        self._s3, self._part = s3, part
        s3.before_put = self._before

    def _before(self, key: str) -> None:
        if self._part in key:
            self._s3.before_put = lambda key: None
            self.arrived.set()
            assert self.released.wait(PATIENCE_S)


def test_a_manifest_that_arrives_late_neither_replaces_one_nor_counts(s3: Bucket) -> None:
    first = driver(s3.uri("job"), 1)
    first.manifests.write(manifest_of(1))
    delayed = Delayed(s3, "/checkpoints/00000002-1")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(first.manifests.write, manifest_of(2, generation=1))
        assert delayed.arrived.wait(PATIENCE_S)
        second = driver(s3.uri("job"), 2)
        second.manifests.withdraw_after(1)
        second.manifests.write(manifest_of(2, generation=2))
        delayed.released.set()
        late.result()
    with pytest.raises(JobRunsElsewhere):
        first.runs.check()
    third = CheckpointStorage(s3.uri("job"))
    assert len(s3.below("job/checkpoints")) == 3
    assert third.manifests.checkpoints() == [1, 2] and third.manifests.read(2).generation == 2


def test_a_manifest_is_not_replaced(place: str) -> None:
    first = driver(place, 1)
    first.manifests.write(manifest_of(1, generation=1))
    first.manifests.write(manifest_of(1, generation=1))
    with pytest.raises(StateError, match="exists, with another content"):
        first.manifests.write(manifest_of(1, generation=2))


def test_a_cut_that_is_stored_late_has_no_effect(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stands still after it has looked, and before it sends the file."""
    place = s3.uri("job")
    first = driver(place, 1)
    for checkpoint in (1, 2):
        first.manifests.write(manifest_of(checkpoint))
    looks = first.runs.check

    def replaced_afterwards() -> None:
        looks()
        monkeypatch.setattr(first.runs, "check", looks)
        assert driver(place, 2).manifests.checkpoints() == [1, 2]

    monkeypatch.setattr(first.runs, "check", replaced_afterwards)
    with pytest.raises(JobRunsElsewhere):
        first.manifests.withdraw_after(1)
    assert {"cuts-1-2", "cuts-2-1"} <= s3.below("job/blobs")
    assert CheckpointStorage(place).manifests.checkpoints() == [1, 2], "nor were manifests removed"


def test_the_newest_file_with_cuts_counts(place: str) -> None:
    first = driver(place, 1)
    for checkpoint in (1, 2):
        first.manifests.write(manifest_of(checkpoint))
    for through in range(12, 0, -1):  # more than nine, as their names end with a number
        first.runs.cut(through)
    assert CheckpointStorage(place).manifests.checkpoints() == [1]


# --- the list of committed files ---


def entry(name: str) -> LoggedFile:
    return LoggedFile(f"s3a://bucket/out/{name}", 1, False, 0, 1, 1, "add")


def log_of(place: str) -> SparkFileLog:
    log = SparkFileLog(OutputFiles(place))
    log.create()
    log.load()
    return log


def listed(place: str) -> list[str]:
    log = SparkFileLog(OutputFiles(place))
    log.load()
    return [file.name for file in log.all_files()]


@pytest.mark.parametrize("earlier", [[], ["a"]])
def test_a_batch_that_an_earlier_driver_sends_late_is_refused(s3: Bucket, earlier: list[str]) -> None:
    """It would be the first batch, or replace it. The next driver commits the same file."""
    place = s3.uri("out")
    first = log_of(place)
    for name in earlier:
        first.append([entry(name)])
    delayed = Delayed(s3, LOG_DIRECTORY)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(first.append, [entry("b")])
        assert delayed.arrived.wait(PATIENCE_S)
        second = SparkFileLog(OutputFiles(place))
        second.fence()
        assert [file.name for file in second.last_batch()] == earlier
        delayed.released.set()
        with pytest.raises(OutputDirectoryError, match="another process has written _spark_metadata/"):
            late.result()
        second.append([entry("b")])
        second.append([entry("c")])
    assert listed(place) == [*earlier, "b", "c"]


def test_a_batch_that_arrives_before_the_fence_counts(s3: Bucket) -> None:
    place = s3.uri("out")
    log_of(place).append([entry("a")])
    second = SparkFileLog(OutputFiles(place))
    for _ in range(3):
        second.fence()
    assert [file.name for file in second.last_batch()] == ["a"]
    assert SparkFileLog(OutputFiles(place)).is_empty() is False


def test_no_former_content_comes_back(s3: Bucket) -> None:
    """A request that was given up may arrive at any time, and expects what was there."""
    log = log_of(s3.uri("out"))
    log.append([entry("a")])
    log.append([entry("b")])
    given_up = dict(s3.objects)
    log.append([entry("c")])
    log.retain(lambda file: file.name < "c")
    changed = {key for key, content in given_up.items() if s3.objects[key] != content}
    assert listed(s3.uri("out")) == ["a", "b"] and len(changed) == 1


def test_output_is_retracted_without_removing_a_batch(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flinkplus.sinks.spark_log.BATCH_BYTES", 300)  # two files
    place = s3.uri("out")
    log = log_of(place)
    for name in "abcde":
        log.append([entry(name)])
    before = s3.below(f"out/{LOG_DIRECTORY}")
    log.fence()
    log.retain(lambda file: file.name < "c")
    assert listed(place) == ["a", "b"] and [file.name for file in log.last_batch()] == ["a", "b"]
    log.append([entry("f")])
    assert listed(place) == ["a", "b", "f"] and s3.below(f"out/{LOG_DIRECTORY}") > before
    log.retain(lambda file: False)
    assert listed(place) == [] and log.is_empty()
