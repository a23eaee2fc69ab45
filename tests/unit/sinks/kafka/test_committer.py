"""The committer against a model of a cluster: a failure of every call, drivers that are replaced, other jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flinkplus.errors import JobRunsElsewhere, OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.transactions import OutputProgress
from flinkplus.sinks.kafka.committer import KafkaCommitter
from flinkplus.sinks.kafka.sink import KafkaSink
from tests.unit.sinks.harness import Job
from tests.unit.sinks.kafka.kafka_model import ModelClient, ModelCluster

ATTEMPTS = 5


def expected(*checkpoints: int) -> list[bytes]:
    return sorted(b'{"word":"r%04d","count":%d}' % (n, index) for n in checkpoints for index in range(2))


class Run(Job):
    """A run of a job, whose rows go to a model of a cluster."""

    def __init__(self, cluster: ModelCluster, home: Path, job_id: str = "job-1", resume: bool = False) -> None:
        self.cluster = cluster
        super().__init__(KafkaSink("out", path=str(home), topic="orders"), job_id, resume=True)
        self.committer: KafkaCommitter = self.new_committer()
        if not resume:
            self.committer.prepare(resume=False)
        self.deploy()

    def new_committer(self) -> KafkaCommitter:
        assert isinstance(self.sink, KafkaSink)
        made = self.sink.committer()
        assert isinstance(made, KafkaCommitter)
        made._connect = self.cluster.client
        return made

    def retried(self, action: Callable[[], None]) -> None:
        for _ in range(ATTEMPTS):
            try:
                return action()
            except OutputUnavailable:
                continue
        raise AssertionError("no attempt has succeeded")


@pytest.fixture
def cluster() -> ModelCluster:
    return ModelCluster()


def values(cluster: ModelCluster) -> list[Any]:
    return sorted(value or b"" for value in cluster.values())


def test_a_checkpoint_is_one_transaction(cluster: ModelCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path)
    assert cluster.progress == {"job-1": OutputProgress(checkpoint=0)}
    for checkpoint in (1, 2):
        run.checkpoint(checkpoint)
        assert cluster.progress == {"job-1": OutputProgress(checkpoint=checkpoint)}
    assert values(cluster) == expected(1, 2)
    before = cluster.calls
    run.committer.commit(2, [])
    run.committer.commit(3, run.stage(3, with_rows=False))
    assert cluster.calls == before, "a checkpoint without rows needs no transaction"
    assert not list(tmp_path.rglob("part-*"))
    run.committer.finish()
    assert not list(tmp_path.rglob("*.arrow"))


CALLS = 5
"""Of an attempt: open, ready, read, write; the last number lets it succeed."""


@pytest.mark.parametrize("by_the_next_driver", [False, True], ids=["same", "next"])
def test_every_call_may_fail_before_and_after_its_effect(tmp_path: Path, by_the_next_driver: bool) -> None:
    """A commit fails, and then some call of the next attempt."""
    for first_after, fail_after, fail_at in itertools.product((False, True), (False, True), range(1, CALLS + 1)):
        case = f"{first_after}-{fail_after}-{fail_at}"
        world = ModelCluster()
        run = Run(world, tmp_path / case)
        run.checkpoint(1)
        staged = run.stage(2)
        world.plan(1, first_after)
        with pytest.raises(OutputUnavailable):
            run.committer.commit(2, staged)
        world.plan(fail_at, fail_after)
        if by_the_next_driver:
            run.committer = run.new_committer()
            run.retried(lambda run=run: run.committer.prepare(resume=True))  # type: ignore[misc]
            run.committer.retract_after(2)
        run.retried(lambda run=run, staged=staged: run.committer.commit(2, staged))  # type: ignore[misc]
        assert world.calls > 1
        world.plan(0, False)
        run.checkpoint(3)
        assert values(world) == expected(1, 2, 3), case


def test_a_driver_that_was_replaced_writes_no_more(cluster: ModelCluster, tmp_path: Path) -> None:
    """It stood still between its check and its transaction."""
    first, later = Run(cluster, tmp_path), Run(cluster, tmp_path, resume=True)
    first.checkpoint(1)
    staged = first.stage(2)
    later.committer.prepare(resume=True)
    later.committer.commit(2, staged)
    files = [file.name for file in tmp_path.rglob("*.arrow")]
    assert not files
    with pytest.raises(OutputUnavailable, match="another producer"):
        first.committer._session.client.write([(None, b"late", None, None)], {})

    def replaced() -> None:
        raise JobRunsElsewhere("another driver has it")

    first.committer.allow_only_if(replaced)
    late = [*staged, *first.stage(3)]
    with pytest.raises(OutputTopicError, match="is missing"):  # the next driver has committed and removed it
        first.committer.commit(3, late)
    with pytest.raises(JobRunsElsewhere):  # it has opened the name again, and ended what the next driver had open
        first.committer.commit(3, late)
    new = later.stage(4)
    with pytest.raises(OutputUnavailable, match="another producer"):
        later.committer.commit(4, new)
    later.committer.commit(4, new)
    assert values(cluster) == expected(1, 2, 4)


def is_closed(run: Run) -> bool:
    client = run.committer._session.client
    assert isinstance(client, ModelClient)
    return client.is_closed


def test_connections_are_closed_however_the_job_ends(cluster: ModelCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path)
    run.checkpoint(1)
    assert not is_closed(run)
    run.committer.close()
    assert is_closed(run)
    refused = run.new_committer()
    with pytest.raises(OutputTopicError, match="holds output of this job already"):
        refused.prepare(resume=False)
    run.committer = refused
    assert is_closed(run), "also after a refusal"


def test_a_transaction_that_is_under_way_ends_before_its_connection_is_closed(
    cluster: ModelCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = Run(cluster, tmp_path), ModelClient.write

    def closed_meanwhile(self: ModelClient, records: Any, progress: Any) -> None:
        run.committer.close()
        whole(self, records, progress)

    monkeypatch.setattr(ModelClient, "write", closed_meanwhile)
    run.checkpoint(1)
    assert values(cluster) == expected(1)
    assert is_closed(run)


def test_what_is_committed_is_not_taken_back(cluster: ModelCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path)
    run.checkpoint(1)
    run.stage(2)
    run.committer.retract_after(1)
    assert not list(tmp_path.rglob("part-*"))
    with pytest.raises(OutputTopicError, match=r"holds the rows of checkpoint 1.*cannot continue from the start"):
        run.committer.retract_after(None)


def test_staged_files_that_are_gone_or_damaged_are_errors(cluster: ModelCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path)
    staged = run.stage(1)
    path = next(tmp_path.rglob("part-*-s0-*"))
    content = path.read_bytes()
    for damage in (b"", content[:-1], b"x" * len(content)):
        path.write_bytes(damage)
        with pytest.raises(OutputTopicError, match=f"staged file {path.name} of checkpoint 1 .* is (missing|damaged)"):
            run.committer.commit(1, staged)
    path.unlink()
    with pytest.raises(OutputTopicError, match="is missing"):
        run.committer.commit(1, staged)
    path.write_bytes(content)
    run.committer.commit(1, staged)
    assert values(cluster) == expected(1)


def test_output_that_is_not_the_jobs_is_refused(cluster: ModelCluster, tmp_path: Path) -> None:
    with pytest.raises(OutputTopicError, match="topic 'orders' does not hold the output of the job to be resumed"):
        Run(cluster, tmp_path, resume=True).committer.prepare(resume=True)
    run = Run(cluster, tmp_path)
    Run(cluster, tmp_path)  # began, and died before its first checkpoint
    run.retried(lambda: run.checkpoint(1))
    with pytest.raises(OutputTopicError, match="holds output of this job already"):
        Run(cluster, tmp_path)
    cluster.progress.clear()
    cluster.epochs["job-1"] += 1
    staged = run.stage(2)
    with pytest.raises(OutputUnavailable):
        run.committer.commit(2, staged)
    with pytest.raises(OutputTopicError, match="has lost what is known of this job's output"):
        run.committer.commit(2, staged)


def test_a_job_that_starts_from_a_savepoint_takes_the_topic_over(cluster: ModelCluster, tmp_path: Path) -> None:
    old = Run(cluster, tmp_path / "old")
    old.checkpoint(3)
    new = Run(cluster, tmp_path / "new", "job-2", resume=True)
    with pytest.raises(OutputTopicError, match="holds the rows of checkpoint 3 of the job that the savepoint is of"):
        new.committer.check_successor("job-1", 2)
    before = (dict(cluster.epochs), dict(cluster.progress))
    new.committer.check_successor("job-1", 3)
    assert (cluster.epochs, cluster.progress) == before, "a check changes nothing"
    for _ in range(2):
        new.committer.succeed("job-1", 3)
        assert cluster.progress == {
            "job-1": OutputProgress(checkpoint=3, taken_by="job-2"),
            "job-2": OutputProgress(checkpoint=3),
        }
    new.checkpoint(4)
    with pytest.raises((OutputUnavailable, OutputTopicError)):
        old.checkpoint(4)
    with pytest.raises(OutputTopicError, match="is continued by another job now, job-2"):
        old.checkpoint(5)
    with pytest.raises(OutputTopicError, match="is continued by another job now, job-2"):
        Run(cluster, tmp_path / "third", "job-3", resume=True).committer.succeed("job-1", 3)
    new.checkpoint(5)
    assert values(cluster) == expected(3, 4, 5)


def test_every_call_of_a_takeover_may_fail(tmp_path: Path) -> None:
    for fail_after in (False, True):
        for fail_at in range(1, 10):
            world = ModelCluster()
            old = Run(world, tmp_path / f"old-{fail_after}-{fail_at}")
            old.checkpoint(3)
            new = Run(world, tmp_path / f"new-{fail_after}-{fail_at}", "job-2", resume=True)
            world.plan(fail_at, fail_after)
            new.retried(lambda new=new: new.committer.succeed("job-1", 3))  # type: ignore[misc]
            world.plan(0, False)
            new.checkpoint(4)
            assert values(world) == expected(3, 4), (fail_at, fail_after)
            assert world.progress["job-1"].taken_by == "job-2"


def test_an_output_that_the_savepoints_job_did_not_have_begins(cluster: ModelCluster, tmp_path: Path) -> None:
    new = Run(cluster, tmp_path, "job-2", resume=True)
    for former in (None, "job-1"):
        new.committer.check_successor(former, 7)
        new.committer.succeed(former, 7)
    assert cluster.progress == {"job-2": OutputProgress(checkpoint=7)}
    new.checkpoint(8)
    assert values(cluster) == expected(8)


def test_rows_written_apart_from_progress_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of failures see a client that uses two transactions."""
    whole = ModelClient.write

    def apart(self: ModelClient, records: Any, progress: Any) -> None:
        whole(self, records, {})
        whole(self, [], progress)

    monkeypatch.setattr(ModelClient, "write", apart)
    with pytest.raises(AssertionError):
        test_every_call_may_fail_before_and_after_its_effect(tmp_path, False)
