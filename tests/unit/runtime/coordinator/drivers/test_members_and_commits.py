"""The coordinator's tables: asked by any thread, and never at the cost of a snapshot still under way."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flinkplus.errors import ControlMessageTooLarge, PeerProtocolError, StateError
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary import effects
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.drivers.job import JobDriver
from flinkplus.runtime.coordinator.setup.outcome import JobResult
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.sst_format import describe
from tests.handles import handle_of
from tests.unit.runtime.coordinator.failover_job import Job
from tests.unit.runtime.slot.slots_in_process import graph_of


@pytest.fixture
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_members_are_listed_while_slots_come_and_go(eager_switching: None) -> None:
    processes, over = SlotProcesses(2), threading.Event()

    def come_and_go() -> None:
        connection = 0
        while not over.is_set():
            connection += 1
            processes.register(connection, control.Register(connection % 2, 0, 1, "host", "address"), 0.0)
            processes.remove((connection + 1) % 2)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(100_000):
            assert len(processes.all()) <= 2
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("slot", [2, -1, 1 << 40])
def test_a_slot_that_the_job_does_not_have_cannot_register(slot: int) -> None:
    processes = SlotProcesses(2)
    with pytest.raises(PeerProtocolError, match=r"slots 0, 1$"):
        processes.register(1, control.Register(slot, 0, 1, "host", "address"), 0.0)
    assert processes.all() == [] and processes.restarts == 0


def test_a_manifest_that_failed_and_was_stored_takes_no_state_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delta of checkpoint 1 is uploaded, and will not be again: checkpoint 2 names it too."""
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    (tmp_path / "delta").write_bytes(b"delta")
    storage.state_files.upload(tmp_path / "delta", "count[0]/1-1-1.sst")
    delta = describe(tmp_path / "delta", "count[0]/1-1-1.sst", "base", 1)
    handles = [(SubtaskId("count", 0), handle_of(delta))]
    commits = Commits({}, storage)

    def fails(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(StateError):
            commits.store(CheckpointId(1), Generation(1), handles, False)
    commits.drop(CheckpointId(1))
    assert storage.manifests.checkpoints() == []
    commits.store(CheckpointId(2), Generation(1), handles, False)
    found = storage.manifests.latest_valid()
    assert found is not None and found[0] == 2
    commits.drop(CheckpointId(2))
    assert not (tmp_path / "checkpoints/state/count[0]/1-1-1.sst").exists()


def test_manifests_before_the_newest_committed_one_are_not_in_memory(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    commits = Commits({}, storage)
    for number in range(1, 5):
        handles = [(SubtaskId("count", 0), handle_of(steps=number))]
        commits.store(CheckpointId(number), Generation(1), handles, False)
        if number < 4:
            commits.commit(CheckpointId(number))
    assert sorted(commits._manifests) == [3, 4]
    assert commits.handles(CheckpointId(2))["count[0]"].operator_state.steps == 2, "it is on storage"


def test_a_deployment_that_nobody_would_take_ends_the_job_and_takes_nothing_back() -> None:
    """The slot would break the connection, each time anew. The checkpoint is sound: no older one is gone back to."""
    job = Job()

    def send(connection: int, message: control.ControlMessage) -> None:
        raise ControlMessageTooLarge("Deploy would take 9 bytes; the maximum is 8")

    job.wires.send = send  # type: ignore[method-assign]
    commits = SimpleNamespace(handles=lambda checkpoint: {"count[0]": START})
    driver = JobDriver(
        job.dispatch, job.machines, job.deployment, commits, job.recoveries, graph_of(10, 1), job.presence, JobResult()  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(ControlMessageTooLarge, match="checkpoint 1 on slot 0: Deploy would take 9 bytes"):
        driver.apply(effects.DeploySubtasks(Generation(2), CheckpointId(1), ((SubtaskId("count", 0), 0),)))
    assert job.heard == []


def test_a_message_that_is_too_large_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    message = control.Acknowledged(1, 1, "count[0]", handle_of(rounds={"saved": "x" * 100}))
    monkeypatch.setattr(control, "MAX_BYTES", len(control.encode(message)))
    assert control.decode(control.encode(message)) == message
    monkeypatch.setattr(control, "MAX_BYTES", control.MAX_BYTES - 1)
    with pytest.raises(ControlMessageTooLarge, match=r"Acknowledged would take \d+ bytes; the maximum is \d+"):
        control.encode(message)
