"""Files that a subtask shares with others after another parallelism: along its chain, and in promotions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from chain_backup.replication.frames import FrameKind, decode
from flinkplus.protocol.snapshot.division import Estate, divided_files
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM
from flinkplus.state.backend import adopted_name
from flinkplus.state.hashing import group_of
from tests.unit.chain_backup.replication.replica_cluster import SUBTASK, Cluster, Model

MINE = range(20, 90)
RETAINED = 2


def divided(cluster: Cluster) -> tuple[StateFile, ...]:
    """The job goes on with other slots, and the subtask with a part of its state. Returns the shared files."""
    for _ in range(5):
        cluster.change()
        cluster.snapshot(rebase=False)
    handle = cluster.handles[cluster.version]
    for slot in (0, 1, 2):
        cluster.kill(slot)
        cluster.start(slot)
    cluster.generation += 1
    cluster.version += 1
    mine = {b"k%d" % n for n in range(30) if group_of(b"k%d" % n, DEFAULT_MAX_PARALLELISM) in MINE}
    old = cluster.model
    cluster.model = Model(
        {key: value for key, value in old.numbers.items() if key in mine},
        {key: value for key, value in old.objects.items() if key in mine},
    )
    estate = Estate(handle.files, handle.states, range(DEFAULT_MAX_PARALLELISM))
    name = partial(adopted_name, SUBTASK, cluster.generation, cluster.version)
    files = divided_files([estate], MINE, handle.states, False, name)
    sizes = {"n": len(cluster.model.numbers), "o": len(cluster.model.objects)}
    states = {name: replace(part, keys=sizes[name]) for name, part in handle.states.items()}
    begun = SnapshotHandle(
        subtask=SUBTASK,
        generation=cluster.generation,
        checkpoint=cluster.version,
        files=files,
        operator_state=handle.operator_state,
        states=states,
    )
    cluster.form(0, 1, 2)
    state = cluster.open_head()
    state.restore(begun)
    cluster.check(state, cluster.model)
    return files


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    made = Cluster(tmp_path, slots=3)
    made.form(0, 1, 2)
    made.open_head()
    request.addfinalizer(made.close)
    return made


def settle(cluster: Cluster) -> None:
    cluster.network.settle()
    cluster.trim()
    cluster.network.settle()


def test_standbys_fetch_shared_files_from_storage(cluster: Cluster) -> None:
    """The head sends what it writes itself, and no more; a promoted standby holds what counts."""
    shared = divided(cluster)
    assert len(shared) > 1 and all(file.clip is not None for file in shared)
    cluster.change()
    latest = cluster.snapshot(rebase=False)
    settle(cluster)
    own = sum(file.bytes for file in cluster.handles[latest].files if file.clip is None)
    for slot in (1, 2):
        figures = cluster.network.agents[slot].figures
        assert latest in cluster.staged(slot)
        assert figures.files_from_storage == len(shared) and figures.bytes_received == own
    cluster.promote(1, latest)
    cluster.change()
    latest = cluster.snapshot(rebase=False)
    settle(cluster)
    cluster.promote(2, latest)


def test_a_base_replaces_shared_files_at_once(cluster: Cluster) -> None:
    """It is due after the first version; standbys make do with what they hold, in which clips count."""
    shared = divided(cluster)
    cluster.change()
    cluster.snapshot(rebase=False)
    settle(cluster)
    assert cluster.state is not None and cluster.state.rebase()
    cluster.change()
    latest = cluster.snapshot(rebase=False)
    files = cluster.handles[latest].files
    assert not any(file.clip for file in files) and files[0].replaces[: len(shared)] == shared
    cluster.network.deliver()
    assert latest in cluster.staged(1)
    cluster.promote(1, latest)
    cluster.change()
    latest = cluster.snapshot()
    settle(cluster)
    cluster.promote(2, latest)


def test_a_standby_that_comes_late_gets_the_base(cluster: Cluster) -> None:
    """What the base replaces may be gone from storage by then."""
    shared = divided(cluster)
    cluster.form(0)
    cluster.change()
    cluster.snapshot()
    cluster.change()
    latest = cluster.snapshot(rebase=False)
    settle(cluster)
    cluster.storage.state_files.remove_named({file.stored for file in shared})
    cluster.form(0, 2)
    cluster.network.settle()
    assert latest in cluster.staged(2)
    cluster.promote(2, latest)


def complete(cluster: Cluster, version: int) -> None:
    """A checkpoint of the version is complete, and the job keeps the newest ``RETAINED``."""
    handles = {SUBTASK: cluster.handles[version]}
    manifests = cluster.storage.manifests
    manifests.write(Manifest(checkpoint=version, generation=cluster.generation, subtasks=handles))
    for old in manifests.checkpoints()[:-RETAINED]:
        cluster.storage.retention.drop(old)
    cluster.storage.retention.sweep(version, version)


def late_standby(cluster: Cluster) -> tuple[int, tuple[StateFile, ...]]:
    """The standby on slot 1 has yet to fetch the shared files of the version returned, and storage drops them."""
    shared = divided(cluster)
    cluster.form(0, 1)
    cluster.network.settle()
    cluster.change()
    first = cluster.snapshot(rebase=False)
    complete(cluster, first)
    cluster.network.deliver()  # the offer; what follows from it in other threads waits
    assert cluster.state is not None and cluster.state.rebase()
    for _ in range(RETAINED):
        cluster.change()
        complete(cluster, cluster.snapshot(rebase=False))
    stored = cluster.storage.state_files.listed()
    assert not any(file.stored in stored for file in shared) and not cluster.staged(1)
    return first, shared


def refused(cluster: Cluster) -> list[str]:
    sent = [decode(frame) for _, _, frame in cluster.network.sent]
    return [frame.fields["reason"] for frame in sent if frame.kind is FrameKind.FAILED]


def test_the_predecessor_sends_a_shared_file_that_storage_has_dropped(slow: Cluster) -> None:
    """Retention counts what checkpoints name, and not what a standby has yet to fetch: no version is lost by that."""
    first, shared = late_standby(slow)
    slow.network.settle()
    assert first in slow.staged(1) and slow.version in slow.staged(1) and not refused(slow)
    figures = slow.network.agents[1].figures
    assert figures.files_from_storage == 0 and figures.bytes_received >= sum(file.bytes for file in shared)
    slow.promote(1, slow.version)


def test_the_next_version_comes_where_nothing_has_a_shared_file(slow: Cluster) -> None:
    """The predecessor has trimmed the version that it had offered, as far as this standby does not count."""
    first, _ = late_standby(slow)
    slow.trim()
    slow.network.settle()
    assert first not in slow.staged(1) and slow.version in slow.staged(1)
    slow.promote(1, slow.version)


def test_a_shared_file_that_keeps_failing_everywhere_is_refused(slow: Cluster) -> None:
    """Neither storage nor the predecessor gives it: the standby does not ask for ever."""
    first, shared = late_standby(slow)
    names = {file.name.rpartition("/")[2] for file in shared}
    for path in slow.work(0).glob("*/replica/*"):
        if path.name in names:
            data = path.read_bytes()
            path.unlink()  # other names of the file keep its content
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    slow.network.settle()
    assert len(refused(slow)) == 1 and first not in slow.staged(1) and slow.version in slow.staged(1)
    slow.promote(1, slow.version)
