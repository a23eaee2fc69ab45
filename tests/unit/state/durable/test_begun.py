"""Whether a checkpoint directory is continued or begun with ``resume="auto"``."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkplus.errors import CheckpointDirectoryError
from flinkplus.state.durable.blobs import PLAN_BLOB
from flinkplus.state.durable.storage import CheckpointStorage
from tests.handles import manifest_of

JOB = {"name": "job", "fingerprint": "f"}


def storage(root: Path) -> CheckpointStorage:
    return CheckpointStorage(root / "checkpoints")


def test_nothing_is_begun(tmp_path: Path) -> None:
    assert storage(tmp_path).ownership.prepare(JOB, "auto") is False
    assert storage(tmp_path).ownership.has_begun() is False


def test_a_run_that_died_before_its_plan_has_left_nothing_to_continue(tmp_path: Path) -> None:
    first = storage(tmp_path)
    first.ownership.prepare(JOB, "auto")
    first.runs.begin(1)
    state = tmp_path / "checkpoints/state/a/1-1-1.sst"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"left behind")
    assert storage(tmp_path).ownership.prepare(JOB, "auto") is False
    assert not state.exists()


@pytest.mark.parametrize("left", ["plan", "checkpoint"])
def test_what_has_begun_is_continued_and_kept(tmp_path: Path, left: str) -> None:
    first = storage(tmp_path)
    first.ownership.prepare(JOB, "auto")
    if left == "plan":
        first.blobs.put(PLAN_BLOB, b"plan")
    else:
        first.manifests.write(manifest_of(1))
    state = tmp_path / "checkpoints/state/a/1-1-1.sst"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"of the job")
    assert storage(tmp_path).ownership.prepare(JOB, "auto") is True
    assert state.exists()


def test_it_is_decided_when_the_claim_is_held(tmp_path: Path) -> None:
    def claimed() -> None:
        """Meanwhile another driver has begun the job, and died."""
        other = storage(tmp_path)
        other.ownership.prepare(JOB, resume=False)
        other.blobs.put(PLAN_BLOB, b"plan")

    assert storage(tmp_path).ownership.prepare(JOB, "auto", claimed) is True


def test_another_job_is_refused(tmp_path: Path) -> None:
    storage(tmp_path).ownership.prepare(JOB, "auto")
    with pytest.raises(CheckpointDirectoryError, match="belongs to another job"):
        storage(tmp_path).ownership.prepare({**JOB, "fingerprint": "g"}, "auto")
