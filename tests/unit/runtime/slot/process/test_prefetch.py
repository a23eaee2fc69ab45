"""A slot fetches state before a deployment needs it: the deployment does without storage then."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.process.slot import Slot
from flinkplus.state.durable.prefetched import PREFETCH_FOLDER
from tests.unit.runtime.slot.slots_in_process import WAIT_S, Cluster, graph_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two slots, whose job has a complete checkpoint, 1."""
    cluster = Cluster(tmp_path, graph_of(2_000, 1), 2, 7)
    cluster.deploy()
    cluster.turns(10)
    cluster.finish_checkpoint(cluster.trigger())
    yield cluster
    for slot in list(cluster.slots):
        cluster.kill(slot)


def renamed(handle: SnapshotHandle) -> SnapshotHandle:
    """As after a division: what this slot has locally is of other names."""
    files = (replace(file, name=f"{file.name[:-4]}000000.sst", stored_as=file.name) for file in handle.files)
    return replace(handle, files=tuple(files))


def ordered(cluster: Cluster, order: control.Prefetch) -> list[control.Prefetched]:
    """The reports until nothing is left."""
    cluster.answers = []
    cluster.slots[0]._obey(order)

    def found() -> list[control.Prefetched]:
        return [message for _, message in cluster.answers if isinstance(message, control.Prefetched)]

    cluster.until(lambda: any(report.left_bytes == 0 for report in found()))
    return found()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def deploy(cluster: Cluster, generation: int, handles: dict[str, SnapshotHandle]) -> None:
    names = {str(subtask): subtask.index for subtask in cluster.subtasks}
    cluster.generations = dict.fromkeys(cluster.subtasks, generation)
    cluster.slots[0]._obey(control.Deploy(generation, 1, names, cluster.addresses(), handles))


def is_deployed(slot: Slot, generation: int) -> bool:
    return sorted(str(subtask.id) for subtask in slot.active) == ["count+out[0]", "numbers[0]"] and all(
        subtask.generation == generation for subtask in slot.active
    )


def test_a_deployment_needs_no_storage_for_what_was_prefetched(cluster: Cluster) -> None:
    handles = {name: renamed(handle) for name, handle in cluster.acks[1].items()}
    files = tuple(file for handle in handles.values() for file in handle.files)
    assert files
    reports = ordered(cluster, control.Prefetch(5, files))
    assert reports[-1] == control.Prefetched(5, 0)
    shutil.rmtree(cluster.directory / "checkpoints" / "state")
    slot, folder = cluster.slots[0], cluster.slots[0]._scratch / PREFETCH_FOLDER
    slot._obey(control.Complete(1, 1))
    slot._prefetcher._pool.submit(int).result()  # in turn
    assert list(folder.iterdir()), "it is for the next deployment"
    deploy(cluster, 2, handles)
    assert is_deployed(slot, 2)
    slot._obey(control.Complete(2, 2))
    wait_for(lambda: not list(folder.iterdir()))


def test_without_it_storage_is_needed(cluster: Cluster) -> None:
    """The test above would not find anything otherwise."""
    handles = {name: renamed(handle) for name, handle in cluster.acks[1].items()}
    shutil.rmtree(cluster.directory / "checkpoints" / "state")
    deploy(cluster, 2, handles)
    assert not is_deployed(cluster.slots[0], 2)


def test_an_order_without_files_drops_them(cluster: Cluster) -> None:
    files = tuple(file for handle in cluster.acks[1].values() for file in handle.files)
    folder = cluster.slots[0]._scratch / PREFETCH_FOLDER
    ordered(cluster, control.Prefetch(5, files))
    assert list(folder.iterdir())
    cluster.slots[0]._obey(control.Prefetch(6))
    assert not list(folder.iterdir())
