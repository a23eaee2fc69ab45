"""A crash at any file operation of any phase: nothing half-visible then, the right output after running it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks import file_writer, spark_log
from flinkplus.sinks.file_names import OWNER_FILE
from tests.unit.sinks.harness import (
    FaultyFiles,
    Job,
    at_every_operation,
    expected_lines,
    in_new_process,
    text_job,
    visible_lines,
)


@pytest.fixture(autouse=True)
def _faulty_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "OutputFiles", FaultyFiles)
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 2_000)  # so that some commits add to a batch, and some begin one
    FaultyFiles.plan(0, False)


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("same_process", [False, True])
@pytest.mark.parametrize("committed", [0, 9, 29])
def test_commit(tmp_path: Path, committed: int, same_process: bool, fail_after: bool) -> None:
    new = committed + 1
    staged: dict[Path, list[StagedFile]] = {}

    def begin(out: Path) -> Job:
        job = text_job(out)
        for checkpoint in range(1, new):
            job.checkpoint(checkpoint)
        job.stage(new)  # an orphan of the generation before: this checkpoint never gets it
        job.deploy()
        staged[out] = job.stage(new)
        return job

    def step(job: Job) -> None:
        job.committer.commit(new, staged[Path(job.sink.path)])  # type: ignore[attr-defined]

    for out, crashed_job in at_every_operation(tmp_path, fail_after, begin, step):
        assert visible_lines(out) in (expected_lines(*range(1, new)), expected_lines(*range(1, new + 1)))
        job = crashed_job if same_process else in_new_process(crashed_job)
        if not same_process:
            job.committer.prepare(resume=True)
        job.committer.commit(new, staged[out])
        job.committer.commit(new, staged[out])
        assert visible_lines(out) == expected_lines(*range(1, new + 1))
        job.deploy()
        job.checkpoint(new + 1)
        job.committer.finish()
        assert visible_lines(out) == expected_lines(*range(1, new + 2))
        assert_nothing_but_output(out)


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("target", [None, 3, 10, 12])
def test_retract(tmp_path: Path, target: int | None, fail_after: bool) -> None:
    def begin(out: Path) -> Job:
        job = text_job(out)
        for checkpoint in range(1, 13):
            job.checkpoint(checkpoint)
        job.stage(13)
        return job

    kept = range(1, (target or 0) + 1)
    for out, crashed_job in at_every_operation(
        tmp_path, fail_after, begin, lambda job: job.committer.retract_after(target)
    ):
        assert set(expected_lines(*kept)) <= set(visible_lines(out))
        job = in_new_process(crashed_job)
        job.committer.prepare(resume=True)
        job.committer.retract_after(target)
        assert visible_lines(out) == expected_lines(*kept)
        job.generation = 10
        job.deploy()
        job.checkpoint(14)
        assert visible_lines(out) == expected_lines(*kept, 14)
        job.committer.finish()
        assert visible_lines(out) == expected_lines(*kept, 14)
        assert_nothing_but_output(out)


@pytest.mark.parametrize("fail_after", [False, True])
def test_prepare_a_new_directory(tmp_path: Path, fail_after: bool) -> None:
    def begin(out: Path) -> Job:
        return text_job(out, resume=True)

    for out, job in at_every_operation(tmp_path, fail_after, begin, lambda job: job.committer.prepare(resume=False)):
        job.committer.prepare(resume=False)
        job.deploy()
        job.checkpoint(1)
        assert visible_lines(out) == expected_lines(1)


@pytest.mark.parametrize("fail_after", [False, True])
def test_prepare_a_resumed_directory(tmp_path: Path, fail_after: bool) -> None:
    def begin(out: Path) -> Job:
        job = text_job(out)
        job.checkpoint(1)
        job.committer.discard()
        return in_new_process(job)

    for out, job in at_every_operation(tmp_path, fail_after, begin, lambda job: job.committer.prepare(resume=True)):
        job.committer.prepare(resume=True)
        job.deploy()
        job.checkpoint(2)
        assert visible_lines(out) == expected_lines(1, 2)


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("committed", [0, 2])
def test_finish(tmp_path: Path, committed: int, fail_after: bool) -> None:
    def begin(out: Path) -> Job:
        job = text_job(out)
        for checkpoint in range(1, committed + 1):
            job.checkpoint(checkpoint)
        job.stage(committed + 1)
        return job

    for out, crashed_job in at_every_operation(tmp_path, fail_after, begin, lambda job: job.committer.finish()):
        assert visible_lines(out) == expected_lines(*range(1, committed + 1))
        in_new_process(crashed_job).committer.finish()
        assert visible_lines(out) == expected_lines(*range(1, committed + 1))
        assert_nothing_but_output(out)


def assert_nothing_but_output(out: Path) -> None:
    """Every data file is listed; beside them only the list and the owner are left."""
    parts = {path.name for path in out.iterdir() if path.name.startswith("part-")}
    assert len(parts) == len(set(visible_lines(out))) or not visible_lines(out)
    assert {path.name for path in out.iterdir()} - parts == {"_spark_metadata", OWNER_FILE}
    assert not [path for path in (out / "_spark_metadata").iterdir() if path.suffix == ".tmp"]
