"""The coordinator's tables: asked by any thread, and never at the cost of a snapshot still under way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus.errors import PeerProtocolError, StateError
from flinkplus.graph import JobGraph
from flinkplus.protocol.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime import control
from flinkplus.runtime.commits import Commits
from flinkplus.runtime.members import Members
from flinkplus.state import files
from flinkplus.state.delta import describe
from flinkplus.state.storage import CheckpointStorage


@pytest.fixture
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_members_are_listed_while_slots_come_and_go(eager_switching: None) -> None:
    members, over = Members(2), threading.Event()

    def come_and_go() -> None:
        connection = 0
        while not over.is_set():
            connection += 1
            members.register(connection, control.Register(connection % 2, 0, 1, "host", "address"), 0.0)
            members.remove((connection + 1) % 2)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(100_000):
            assert len(members.all()) <= 2
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("slot", [2, -1, 1 << 40])
def test_a_slot_that_the_job_does_not_have_cannot_register(slot: int) -> None:
    members = Members(2)
    with pytest.raises(PeerProtocolError, match="slots 0 to 1"):
        members.register(1, control.Register(slot, 0, 1, "host", "address"), 0.0)
    assert members.all() == [] and members.restarts == 0


def test_a_manifest_that_failed_and_was_stored_takes_no_state_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delta of checkpoint 1 is uploaded, and will not be again: checkpoint 2 names it too."""
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    (tmp_path / "delta").write_bytes(b"delta")
    storage.upload(tmp_path / "delta", "count[0]/1-1-1.sst")
    delta = describe(tmp_path / "delta", "count[0]/1-1-1.sst", "base", 1).to_json()
    handles = [(SubtaskId("count", 0), {"files": [delta], "operator_state": {}})]
    commits = Commits(JobGraph(), storage)

    def fails(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_path", fails)
        with pytest.raises(StateError):
            commits.store(CheckpointId(1), Generation(1), handles, False)
    commits.drop(CheckpointId(1))
    assert storage.checkpoints() == []
    commits.store(CheckpointId(2), Generation(1), handles, False)
    found = storage.latest_valid()
    assert found is not None and found[0] == 2
    commits.drop(CheckpointId(2))
    assert not (tmp_path / "checkpoints/state/count[0]/1-1-1.sst").exists()
