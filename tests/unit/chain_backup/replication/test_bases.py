"""New bases at awkward moments: long ones, slow downloads, lost ones. No standby waits for one, or stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain_backup.disk import base_name
from chain_backup.replication.frames import FrameKind, Topic, encode
from chain_backup.replication.members import Member
from chain_backup.replication.replica import encode_handle
from flinkplus.errors import CorruptState
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.runtime.slot.control.ports import StandbyReady
from flinkplus.runtime.slot.process.standbys import Standbys
from flinkplus.state import CheckpointStorage, SubtaskState
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.file_system import LocalDirectory
from tests.unit.chain_backup.replication.replica_cluster import POLICY, SUBTASK, Cluster


@pytest.fixture
def cluster(slow: Cluster) -> Cluster:
    return slow


def version(cluster: Cluster) -> int:
    """A version of the head, which makes no base after it."""
    cluster.change()
    return cluster.snapshot(rebase=False)


def settle(cluster: Cluster, trim: bool = True) -> None:
    cluster.network.settle()
    if trim:
        cluster.trim()
        cluster.network.settle()


def until_due(cluster: Cluster) -> None:
    """Go on until a base is due."""
    assert cluster.state is not None
    while True:
        version(cluster)
        settle(cluster)
        if POLICY.due(cluster.state._versions._files):
            return


def rebase(cluster: Cluster, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The head makes a base; ``meanwhile`` happens while it is uploaded."""
    assert cluster.state is not None
    upload = StateFiles.upload
    with pytest.MonkeyPatch.context() as patch:

        def hooked(self: StateFiles, local: Path, name: str) -> None:
            upload(self, local, name)
            patch.undo()
            meanwhile()

        patch.setattr(StateFiles, "upload", hooked)
        assert cluster.state.rebase()


def member(cluster: Cluster, slot: int) -> Member:
    return cluster.network.agents[slot]._members[SUBTASK]


def base_of(cluster: Cluster, number: int) -> str:
    return base_name(cluster.handles[number].files[0].name)


def on_disk(cluster: Cluster, slot: int) -> set[str]:
    folder = cluster.work(slot) / member(cluster, slot).replica.disk.folder / "replica"
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("trimmed", [False, True])
def test_versions_may_come_while_a_base_is_made(cluster: Cluster, trimmed: bool) -> None:
    until_due(cluster)

    def meanwhile() -> None:
        version(cluster)
        settle(cluster, trimmed)

    rebase(cluster, meanwhile)
    latest = version(cluster)
    cluster.network.deliver()
    assert latest in cluster.staged(1)
    assert base_of(cluster, latest) not in on_disk(cluster, 1)
    cluster.kill(0)
    cluster.promote(1, latest)


def test_what_serves_for_a_base_may_go_while_the_delta_arrives(cluster: Cluster) -> None:
    """The predecessor makes do without the base as well: it comes from durable storage."""
    cluster.form(0, 1, 2)
    cluster.network.settle()
    until_due(cluster)
    rebase(cluster)
    latest = version(cluster)
    cluster.network.deliver((0, 1), (1, 0))
    assert latest in cluster.staged(1)
    tail, frames = member(cluster, 2), cluster.network.queues[1, 2]
    while tail.inbound is None:
        cluster.network.agents[2].receive(1, frames.popleft())
    assert len(tail.inbound.missing) == 1
    tail.replica.staged.clear()
    tail.replica.forget([number for number in tail.replica.staged if number < latest], tail.inbound.files)
    settle(cluster, trim=False)
    assert latest in cluster.staged(2)
    assert cluster.network.agents[2].figures.files_from_storage > 0
    latest = version(cluster)
    settle(cluster)
    assert latest in cluster.staged(2)


def test_a_base_that_is_gone_does_not_stop_the_next_one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base is on its way to the tail when a version comes that needs another one of durable storage."""
    cluster.form(0, 1, 2)
    cluster.network.settle()
    until_due(cluster)
    rebase(cluster)
    version(cluster)
    cluster.network.deliver()
    tail = member(cluster, 2)
    assert tail.fetching is not None
    gone = tail.fetching.name
    while True:
        version(cluster)
        cluster.network.deliver((0, 1), (1, 0))
        assert cluster.state is not None
        if POLICY.due(cluster.state._versions._files):
            break
    rebase(cluster)
    version(cluster)
    cluster.network.deliver((0, 1), (1, 0))
    assert member(cluster, 1).replica.wanted_base is not None
    download = StateFiles.download

    def refuse(self: StateFiles, file: StateFile, local: Path) -> None:
        if file.name == gone:
            raise CorruptState("it was dropped with its checkpoint")
        download(self, file, local)

    monkeypatch.setattr(StateFiles, "download", refuse)
    cluster.network.deliver()
    cluster.network.settle()
    latest = version(cluster)
    settle(cluster)
    assert latest in cluster.staged(2)


def test_bases_that_come_late_are_of_use_all_the_same(cluster: Cluster) -> None:
    """Each download takes longer than it takes until the next base; nothing piles up."""
    agent = cluster.network.agents[1]
    under_way: list[tuple[Callable[[], None], Callable[[Exception | None], None]]] = []
    agent._receiver._beside = lambda work, done: under_way.append((work, done))
    files = []
    for _ in range(8):
        until_due(cluster)
        rebase(cluster)
        late = list(under_way)
        latest = version(cluster)
        settle(cluster)
        for work, done in late:
            under_way.remove((work, done))
            work()
            done(None)
        files.append(len(on_disk(cluster, 1)))
    assert agent.figures.bases_fetched > 3
    assert max(files) < 2 * max(files[:3])
    cluster.kill(0)
    cluster.promote(1, latest)


def test_a_promotion_beside_a_download_of_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot's loop does not wait for durable storage, and neither takes the other's file away."""
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    head = SubtaskState(tmp_path / "head", storage.state_files, SUBTASK, 1)
    numbers = head.number_state("n")
    rows = numbers.indices([b"%06d" % key for key in range(20_000)])
    numbers.scatter(rows, np.arange(len(rows)))
    handle = head.persist(head.freeze(1, OperatorState()))
    half, calls = threading.Event(), []
    pauses = {1: 0.02, 2: 0.005}

    def slowly(self: LocalDirectory, name: str, local: Path) -> None:
        calls.append(threading.current_thread())
        pause, data = pauses[len(calls)], self.read(name)
        step = len(data) // 40 + 1
        with local.open("wb") as target:
            for at in range(0, len(data), step):
                target.write(data[at : at + step])
                target.flush()
                if at >= len(data) // 2:
                    half.set()
                time.sleep(pause)

    monkeypatch.setattr(LocalDirectory, "fetch", slowly)
    answers: list[StandbyReady] = []
    answered = threading.Event()

    def deliver_answer(answer: StandbyReady) -> None:
        answers.append(answer)
        answered.set()

    def ignore(*_: Any) -> None:
        return None

    standbys = Standbys(1, tmp_path / "slot", storage.state_files, ignore, ignore, deliver_answer, ignore)
    standbys.form({SUBTASK: (1, (0, 1))})
    fields: dict[str, object] = {"base": 0, "lacks": [base_name(handle.files[0].name)]}
    standbys.receive(0, encode(FrameKind.OFFER, 7, 0, Topic(SUBTASK, 1, 1, 1), fields, encode_handle(handle)))
    assert half.wait(60)
    standbys.prepare(1, SUBTASK, 1, handle, 2)
    assert not answers
    assert answered.wait(60)
    prepared = answers[0].prepared
    assert prepared is not None, answers[0].reason
    assert threading.current_thread() not in calls
    prepared.close()
    standbys.close()
    head.close()
