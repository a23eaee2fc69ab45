"""Standby copies in the words of what a job does with them: versions go down the chain, and become a running state."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain_backup.replication import frames
from chain_backup.replication.agent import ReplicationAgent
from chain_backup.replication.frames import MAX_CHUNKS_UNDER_WAY, FrameKind, Topic, decode, encode
from chain_backup.replication.transfers import MAX_RESYNCS, MAX_TRIES
from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.state import SubtaskState, volatile
from flinkplus.state.backend import folder_name
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.store import SubtaskStore
from tests.handles import handle_of
from tests.unit.chain_backup.replication.replica_cluster import SUBTASK, Cluster

FOLDER = folder_name(SUBTASK)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three slots in one chain, with an empty head on slot 0, and a fourth slot beside it."""
    made = Cluster(tmp_path, slots=4)
    made.form(0, 1, 2)
    made.open_head()
    yield made
    made.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 300)


def versions(cluster: Cluster, count: int, trim: bool = True) -> None:
    for _ in range(count):
        cluster.change()
        cluster.snapshot()
        cluster.network.settle()
        if trim:
            cluster.trim()


def replica_files(cluster: Cluster, slot: int) -> set[str]:
    return {path.name for path in (cluster.work(slot) / FOLDER / "replica").iterdir()}


def names(handle: SnapshotHandle) -> set[str]:
    return {file.name.rpartition("/")[2] for file in handle.files}


def kinds(cluster: Cluster, source: int, target: int) -> list[FrameKind]:
    return [decode(frame).kind for *pair, frame in cluster.network.sent if pair == [source, target]]


# -- down the chain ---------------------------------------------------------------------------------------------------


def test_a_version_goes_down_the_chain(cluster: Cluster) -> None:
    versions(cluster, 1, trim=False)
    assert cluster.reports == [(1, 1, 1), (2, 1, 1)]
    for source, target in ((0, 1), (1, 2)):
        assert kinds(cluster, source, target) == [FrameKind.OFFER, FrameKind.CHUNK]
        assert kinds(cluster, target, source) == [FrameKind.WANT, FrameKind.ACK, FrameKind.STAGED]
    assert not kinds(cluster, 0, 2)


def test_an_offer_of_what_is_held_begins_no_tries_anew(cluster: Cluster) -> None:
    """The successor would be probed, and would ask for everything again as often as it may: two slots kept each other
    busy for good when each lost a frame now and then."""

    def deliver(*pairs: tuple[int, int]) -> None:
        queues = cluster.network.queues
        while waiting := [pair for pair in pairs if queues.get(pair)]:
            for source, target in waiting:
                cluster.network.agents[target].receive(source, queues[source, target].popleft())

    cluster.change()
    cluster.snapshot()
    deliver((0, 1), (1, 0))
    assert kinds(cluster, 1, 2) == [FrameKind.OFFER]
    cluster.network.cut(0, 1)
    deliver((0, 1), (1, 0))
    assert kinds(cluster, 1, 0)[-1] is FrameKind.STAGED
    assert kinds(cluster, 1, 0).count(FrameKind.STAGED) == 2
    assert kinds(cluster, 1, 2) == [FrameKind.OFFER]


def test_only_what_is_missing_is_sent(cluster: Cluster) -> None:
    versions(cluster, 8)
    sent = [decode(frame) for *pair, frame in cluster.network.sent if pair == [0, 1]]
    chunks = [frame.fields["name"] for frame in sent if frame.kind is FrameKind.CHUNK]
    assert len(chunks) == len(set(chunks))


def test_a_subtask_without_keyed_state_has_versions_too(cluster: Cluster) -> None:
    handle = handle_of(checkpoint=4)
    cluster.network.agents[0].persisted(SUBTASK, 1, handle)
    cluster.network.settle()
    assert cluster.reports == [(1, 1, 4), (2, 1, 4)]
    cluster.trim(4)
    prepared = cluster.network.agents[2].prepare(SUBTASK, 4, handle, 2)
    assert (prepared.files, prepared.store) == ((), None)
    prepared.close()


def test_many_subtasks_share_the_hop(tmp_path: Path, small_chunks: None) -> None:
    """No more chunks than allowed are under way over one hop, whatever is sent over it, and all get their turn."""
    cluster = Cluster(tmp_path, slots=2)
    subtasks = [f"count[{number}]" for number in range(5)]
    states = {name: SubtaskState(cluster.work(0), cluster.storage.state_files, name, 1) for name in subtasks}
    reports: list[str] = []
    cluster.network.agents[1].close()
    cluster.network.agents[1] = ReplicationAgent(
        1, cluster.disks(1), cluster.network.sender(1), lambda name, *_: reports.append(name)
    )
    for agent in cluster.network.agents.values():
        agent.form({name: (1, (0, 1)) for name in subtasks})
    for name, state in states.items():
        state.object_state("o").put_many([b"%d" % key for key in range(400)], [str(key) * 10 for key in range(400)])
        cluster.network.agents[0].persisted(name, 1, state.persist(state.freeze(1, OperatorState())))
    most, turns = 0, []
    queue = cluster.network.queues[0, 1]
    while cluster.network.step():
        under_way = [frame for frame in map(decode, queue) if frame.kind is FrameKind.CHUNK]
        acknowledged = [frame for frame in map(decode, cluster.network.queues[1, 0]) if frame.kind is FrameKind.ACK]
        most = max(most, len(under_way) + len(acknowledged))
        turns += [frame.topic.subtask for frame in under_way[-1:]]
    assert most == MAX_CHUNKS_UNDER_WAY
    assert sorted(reports) == subtasks
    assert len(set(turns[: len(turns) // 2])) == len(subtasks)
    for state in states.values():
        state.close()
    cluster.close()


def test_a_new_tail_catches_up(cluster: Cluster) -> None:
    versions(cluster, 6)
    cluster.form(0, 1, 2, 3)
    cluster.network.settle()
    assert cluster.staged(3) == {6}
    assert not kinds(cluster, 0, 3) and FrameKind.CHUNK in kinds(cluster, 2, 3)
    versions(cluster, 2)
    assert cluster.staged(3) == {6, 7, 8}
    cluster.promote(3, 8)
    assert cluster.network.agents[3].figures.files_from_storage == 0


@pytest.mark.parametrize("told_first", [0, 1, 2])
def test_members_hear_of_a_chain_at_different_times(cluster: Cluster, told_first: int) -> None:
    versions(cluster, 2)
    chain = {SUBTASK: (1, (0, 2, 3))}
    order = [told_first, *(slot for slot in (3, 2, 1, 0) if slot != told_first)]
    for slot in order:
        cluster.network.agents[slot].form(chain)
        cluster.network.settle()
    assert cluster.staged(3) == {2}


def test_a_member_lost_in_the_middle(cluster: Cluster, small_chunks: None) -> None:
    versions(cluster, 3)
    cluster.change()
    cluster.snapshot()
    for _ in range(6):
        cluster.network.step()
    cluster.kill(1)
    cluster.form(0, 2)
    cluster.network.settle()
    assert 4 in cluster.staged(2)
    versions(cluster, 1)
    cluster.kill(0)
    cluster.promote(2, 5)


def test_a_broken_stream_goes_on_where_it_stopped(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 50)
    cluster.form(0, 1)
    for _ in range(30):
        cluster.change()
    cluster.snapshot()
    total = sum(file.bytes for file in cluster.handles[1].files)
    for _ in range(30):
        cluster.network.step()
    arrived = cluster.network.agents[1].figures.bytes_received
    assert 0 < arrived < total
    cluster.network.cut(0, 1)
    cluster.network.settle()
    assert cluster.staged(1) == {1}
    assert cluster.network.agents[1].figures.bytes_received == total


def test_a_standby_that_begins_anew_gets_everything_again(cluster: Cluster) -> None:
    """Its process is another one, before anybody noticed and formed the chain without it."""
    versions(cluster, 4)
    agents, reports = cluster.network.agents, cluster.reports
    agents.pop(1).close()
    reports.clear()
    cluster.start(1)
    agents[1].form({SUBTASK: (1, (0, 1, 2))})
    cluster.network.settle()
    assert reports == [(1, 1, 4)]
    versions(cluster, 1)
    assert cluster.staged(2) == {5}


def test_frames_that_come_twice_have_no_effect(cluster: Cluster, small_chunks: None) -> None:
    cluster.network.faults = {"twice": 1.0}
    versions(cluster, 4)
    assert cluster.reports == [(slot, 1, version) for version in range(1, 5) for slot in (1, 2)]
    assert FrameKind.RESYNC not in {decode(frame).kind for *_, frame in cluster.network.sent}


def test_a_slow_successor_gets_the_newest(cluster: Cluster) -> None:
    cluster.form(0, 1)
    versions(cluster, 1)
    for _ in range(6):
        cluster.change()
        cluster.snapshot()
    cluster.network.settle()
    assert cluster.staged(1) >= {1, 2, 7} and len(cluster.staged(1)) < 7


def test_versions_that_were_trimmed_to_leave_nothing_behind(cluster: Cluster) -> None:
    versions(cluster, 30)
    for slot in (0, 1, 2):
        assert replica_files(cluster, slot) == names(cluster.handles[30])
        assert len(list((cluster.work(slot) / FOLDER).glob("standby-*"))) == (slot > 0)
    assert all(
        set(agent._members[SUBTASK].replica.staged) == {30} for agent in list(cluster.network.agents.values())[:3]
    )


# -- bases ------------------------------------------------------------------------------------------------------------


def until_a_base(cluster: Cluster) -> set[str]:
    """Go on until the newest version, not delivered yet, stands on a new base; returns its own new files."""
    while True:
        cluster.change()
        cluster.snapshot()
        handle = cluster.handles[cluster.version]
        if handle.files[0].replaces:
            return names(handle) - names(cluster.handles[cluster.version - 1])
        cluster.network.settle()
        cluster.trim()


def test_a_version_does_not_wait_for_its_new_base(slow: Cluster) -> None:
    new = until_a_base(slow)
    assert len(new) == 2
    base = names(handle_of(slow.handles[slow.version].files[0]))
    slow.network.deliver()
    assert slow.version in slow.staged(1)
    assert new - base <= replica_files(slow, 1)
    assert not base & replica_files(slow, 1)
    slow.kill(0)
    slow.promote(1, slow.version)
    figures = slow.network.agents[1].figures
    assert (figures.files_from_storage, figures.bases_fetched) == (0, 0)


def test_the_base_comes_beside_and_then_what_it_replaces_goes(slow: Cluster) -> None:
    new = until_a_base(slow)
    slow.network.settle()
    assert slow.network.agents[1].figures.bases_fetched == 1
    assert new <= replica_files(slow, 1)
    for _ in range(2):
        slow.change()
        slow.snapshot()
        slow.network.settle()
        slow.trim()
        slow.network.settle()
    assert replica_files(slow, 1) == names(slow.handles[slow.version])
    slow.kill(0)
    slow.promote(1, slow.version)
    assert slow.network.agents[1].figures.files_from_storage == 0


def test_a_base_that_cannot_be_fetched_is_done_without(slow: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes: also a second base on top of the first is no trouble."""

    def refuse(*_: object) -> None:
        raise StateError("the storage is away")

    monkeypatch.setattr(StateFiles, "download", refuse)
    for _ in range(2):
        until_a_base(slow)
        slow.network.settle()
        slow.trim()
        slow.network.settle()
    slow.kill(0)
    slow.promote(1, slow.version)
    slow.change()
    slow.snapshot()


def test_a_successor_of_one_that_does_without_a_base_fetches_it(slow: Cluster) -> None:
    until_a_base(slow)
    slow.network.deliver()
    slow.form(0, 1, 2)
    slow.network.deliver()
    assert slow.version not in slow.staged(2)
    slow.network.settle()
    assert slow.version in slow.staged(2)
    assert slow.network.agents[2].figures.files_from_storage == 1
    slow.kill(0)
    slow.kill(1)
    slow.promote(2, slow.version)


def test_a_file_that_storage_does_not_have_is_refused(slow: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    until_a_base(slow)
    slow.network.deliver()

    def refuse(*_: object) -> None:
        raise CorruptState("it is missing")

    slow.form(0, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(StateFiles, "download", refuse)
        slow.network.settle()
        assert slow.version not in slow.staged(2)
    slow.change()
    slow.snapshot()
    slow.network.settle()
    assert slow.version in slow.staged(2)


# -- promotion --------------------------------------------------------------------------------------------------------


def test_files_of_a_version_that_is_still_arriving_are_kept(cluster: Cluster, small_chunks: None) -> None:
    """One file of two is there when an older version is trimmed to, which names neither."""
    versions(cluster, 1)
    cluster.form(0, 1)
    for _ in range(2):
        cluster.change()
        latest = cluster.snapshot(tell=False)
    new = names(cluster.handles[latest]) - names(cluster.handles[1])
    assert len(new) == 2
    cluster.tell()
    while not new & replica_files(cluster, 1):
        assert cluster.network.step()
    cluster.trim(1)
    cluster.network.settle()
    assert latest in cluster.staged(1)
    assert new <= replica_files(cluster, 1)
    cluster.promote(1, latest)
    assert cluster.network.agents[1].figures.files_from_storage == 0


@pytest.mark.parametrize("slot", [1, 2])
@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_promoted_standby_has_what_the_head_had(
    cluster: Cluster, slot: int, trimmed: bool, shared_memory: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not shared_memory:
        monkeypatch.setattr(volatile, "ROOT", tmp_path / "none")
    versions(cluster, 12, trim=trimmed)
    cluster.kill(0)
    cluster.promote(slot, 12)
    assert cluster.network.agents[slot].figures.files_from_storage == 0


def test_every_version_that_is_not_trimmed_can_be_promoted(tmp_path: Path) -> None:
    for version in range(5, 10):
        cluster = Cluster(tmp_path / str(version), slots=2)
        cluster.form(0, 1)
        cluster.open_head()
        versions(cluster, 5)
        versions(cluster, 4, trim=False)
        cluster.kill(0)
        cluster.promote(1, version)
        assert cluster.network.agents[1].figures.files_from_storage == 0
        cluster.close()


def test_a_promoted_state_goes_on_and_is_replicated(cluster: Cluster) -> None:
    versions(cluster, 7)
    for slot in (1, 2, 0, 1):
        cluster.promote(slot, cluster.version)
        cluster.network.settle()
        for standby in cluster.members[1:]:
            assert cluster.version in cluster.staged(standby)
        versions(cluster, 7)
        assert cluster.handles[cluster.version].generation == cluster.generation
    fresh = SubtaskState(tmp := cluster.root / "fresh", cluster.storage.state_files, SUBTASK, 99)
    fresh.restore(cluster.handles[cluster.version])
    cluster.check(fresh, cluster.model)
    fresh.close()
    assert tmp.exists()


def test_a_promotion_reads_no_file(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    versions(cluster, 6)
    versions(cluster, 1, trim=False)
    cluster.kill(0)

    def refuse(*_: object) -> None:
        raise AssertionError("a file is read, or fetched")

    monkeypatch.setattr(StateFile, "check", refuse)
    monkeypatch.setattr(StateFiles, "download", refuse)
    cluster.promote(1, 7)


def test_a_version_on_a_new_base_is_open_before_it_is_needed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is the one before it, since it may have to be stepped back to."""
    versions(cluster, 1)
    while True:
        versions(cluster, 1, trim=False)
        if names(cluster.handles[cluster.version - 1]).isdisjoint(names(cluster.handles[cluster.version])):
            break
        cluster.trim()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a store is opened")

    for slot, version in ((1, cluster.version), (2, cluster.version - 1)):
        with monkeypatch.context() as patch:
            patch.setattr(SubtaskStore, "__init__", refuse)
            prepared = cluster.network.agents[slot].prepare(SUBTASK, version, cluster.handles[version], 2)
        assert {file.name.rpartition("/")[2] for file in prepared.files} == names(cluster.handles[version])
        prepared.close()


def test_a_store_is_opened_once_for_each_base(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = SubtaskStore.__init__

    def count(self: SubtaskStore, directory: Path, quiet: bool = False) -> None:
        opened.append(directory)
        original(self, directory, quiet)

    monkeypatch.setattr(SubtaskStore, "__init__", count)
    versions(cluster, 20)
    bases = {file.name for handle in cluster.handles.values() for file in handle.files[:1]}
    assert 2 < len(bases) == len([path for path in opened if "slot-1" in str(path)])


def test_a_promotion_need_not_wait_for_other_standbys(tmp_path: Path) -> None:
    """What takes time is left for later, one standby at a time."""
    cluster = Cluster(tmp_path, slots=2, postpone=True)
    cluster.form(0, 1)
    cluster.open_head()
    for number in range(10):
        cluster.change()
        cluster.snapshot()
        cluster.network.settle()
        cluster.trim()
        assert len(cluster.network.work) == 2
        if number % 3 == 2:
            cluster.promote(1 - cluster.members[0], cluster.version)
    cluster.network.settle()
    cluster.close()


def test_the_empty_state_can_be_promoted(cluster: Cluster) -> None:
    cluster.change()
    cluster.snapshot()
    cluster.network.settle()
    cluster.kill(0)
    cluster.promote(1, 0)
    versions(cluster, 3)
    cluster.promote(2, 3)


def test_a_slot_that_has_nothing_takes_it_from_storage(cluster: Cluster) -> None:
    versions(cluster, 9)
    cluster.promote(3, 9)
    assert cluster.network.agents[3].figures.files_from_storage == len(cluster.handles[9].files)
    versions(cluster, 2)
    cluster.promote(0, 11)


def test_nothing_is_promoted_when_a_file_is_nowhere(cluster: Cluster) -> None:
    versions(cluster, 3)
    shutil.rmtree(cluster.root / "checkpoints" / "state")
    with pytest.raises(CorruptState, match="missing"):
        cluster.network.agents[3].prepare(SUBTASK, 3, cluster.handles[3], 2)
    cluster.promote(2, 3)


def test_the_failed_subtask_is_a_standby_on_its_slot_again(cluster: Cluster) -> None:
    versions(cluster, 5)
    cluster.promote(1, 5)
    assert cluster.members == (1, 0, 2)
    before = len(cluster.network.sent)
    cluster.network.settle()
    assert cluster.staged(0) == {5} and cluster.staged(2) == {5}
    assert not [frame for *_, frame in cluster.network.sent[before:] if decode(frame).kind is FrameKind.CHUNK]
    versions(cluster, 1)
    cluster.promote(0, 6)


def test_versions_of_the_fenced_head_are_void(cluster: Cluster) -> None:
    """Version 4 of generation 1 reached one standby; the job went on from 3, and made another 4."""
    versions(cluster, 3)
    cluster.change()
    cluster.snapshot()
    for _ in range(200):
        if cluster.staged(1) >= {4}:
            break
        cluster.network.step()
    cluster.network.queues.clear()
    cluster.kill(0)
    cluster.promote(2, 3)
    staged = cluster.network.agents[1]._members[SUBTASK].replica.staged
    assert staged[4].generation == 1
    cluster.network.settle()
    assert {number: version.generation for number, version in staged.items()} == {3: 2}
    cluster.change()
    cluster.change()
    cluster.snapshot()
    cluster.network.settle()
    cluster.trim()
    cluster.kill(2)
    cluster.promote(1, 4)


def test_after_a_rollback_the_heads_of_before_are_standbys(cluster: Cluster) -> None:
    """The whole job went back to version 3, deployed anew with another head; nobody retired anything."""
    versions(cluster, 5)
    cluster.promote(1, 5)
    assert cluster.state is not None
    cluster.state.close()
    cluster.form(2, 1, 0, generation=9)
    state = cluster.open_head()
    state.restore(cluster.handles[5])
    cluster.version = 6
    versions(cluster, 2)
    assert cluster.staged(0) == cluster.staged(1) == {7, 8}
    cluster.promote(0, 8)


def test_a_late_version_of_a_fenced_head_is_ignored(cluster: Cluster) -> None:
    versions(cluster, 2)
    cluster.change()
    cluster.snapshot(tell=False)
    late = cluster.handles[3]
    cluster.network.agents[0].retire(SUBTASK)
    cluster.network.agents[0].persisted(SUBTASK, 1, late)
    cluster.network.settle()
    assert cluster.staged(1) == {1, 2}


def test_a_promoted_slot_takes_nothing_of_the_old_head(cluster: Cluster) -> None:
    versions(cluster, 2)
    prepared = cluster.network.agents[1].prepare(SUBTASK, 2, cluster.handles[2], 2)
    cluster.change()
    cluster.snapshot()
    cluster.network.settle()
    assert cluster.staged(1) == {1, 2}
    prepared.close()


def test_a_prepared_state_that_nobody_wants(cluster: Cluster) -> None:
    versions(cluster, 2)
    prepared = cluster.network.agents[1].prepare(SUBTASK, 2, cluster.handles[2], 2)
    prepared.close()
    cluster.promote(1, 2)


def test_a_prepared_state_restored_to_something_else(cluster: Cluster) -> None:
    """The handle says what a state becomes, whatever was prepared."""
    versions(cluster, 2, trim=False)
    prepared = cluster.network.agents[1].prepare(SUBTASK, 2, cluster.handles[2], 2)
    state = SubtaskState(cluster.work(1), cluster.storage.state_files, SUBTASK, 2, max_entries=40, prepared=prepared)
    state.restore(cluster.handles[1])
    cluster.check(state, cluster.models[1])
    state.close()


def test_files_of_the_active_state_are_not_removed_by_the_agent_nor_the_other_way_round(cluster: Cluster) -> None:
    versions(cluster, 4)
    cluster.promote(1, 4)
    cluster.network.settle()
    cluster.trim()
    own = cluster.work(1) / FOLDER / "files"
    assert {path.name for path in own.iterdir()} == names(cluster.handles[4])
    shutil.rmtree(own)
    own.mkdir()
    cluster.form(1, 0, 2, 3)
    cluster.network.settle()
    assert cluster.staged(3) == {4}
    versions(cluster, 10)
    assert {path.name for path in own.iterdir()} == names(cluster.handles[14]) == replica_files(cluster, 1)


def test_a_rollback_finds_the_files_of_the_replica(cluster: Cluster) -> None:
    versions(cluster, 4)
    shutil.rmtree(cluster.root / "checkpoints" / "state")
    state = SubtaskState(cluster.work(2), cluster.storage.state_files, SUBTASK, 5, max_entries=40)
    state.restore(cluster.handles[4])
    cluster.check(state, cluster.model)
    state.close()


# -- what is refused --------------------------------------------------------------------------------------------------


def offer(subtask: str, generation: int, version: int, handle: dict[str, Any], number: int = 0) -> bytes:
    payload = json.dumps(handle).encode()
    fields = {"base": 0, "lacks": []}
    return encode(FrameKind.OFFER, 1 << 62, number, Topic(subtask, generation, version, 1), fields, payload)


def test_offers_of_others_than_the_predecessor_have_no_effect(cluster: Cluster) -> None:
    versions(cluster, 1)
    cluster.form(0, 1, 2, generation=7)
    cluster.network.settle()
    cluster.reports.clear()
    handle = {**cluster.handles[1].to_json(), "checkpoint": 5}
    agent = cluster.network.agents[2]
    agent.receive(3, offer(SUBTASK, 7, 5, handle))
    agent.receive(0, offer(SUBTASK, 7, 5, handle))
    agent.receive(1, offer(SUBTASK, 6, 5, handle))
    agent.receive(1, offer("other[0]", 7, 5, handle, 1))
    agent.receive(1, offer(SUBTASK, 8, 5, handle, 2))
    cluster.network.agents[0].receive(1, offer(SUBTASK, 7, 5, handle))
    assert not cluster.reports
    agent.receive(1, offer(SUBTASK, 7, 6, handle, 3))
    assert cluster.reports == [(2, 7, 6)]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"files": [{"name": "../../etc/passwd"}]},
        {"files": [{"name": f"{FOLDER}/../1-1-1.sst", "kind": "base", "entries": 1, "bytes": 9, "checksum": ""}]},
        {"files": [{"name": "count[1]/1-1-1.sst", "kind": "base", "entries": 1, "bytes": 9, "checksum": ""}]},
        {"files": [{"name": f"{FOLDER}/1-1-1.sst", "kind": "base", "entries": 1, "bytes": 0, "checksum": ""}]},
        {"files": 3},
    ],
)
def test_handles_that_name_foreign_files_are_refused(cluster: Cluster, change: dict) -> None:
    handle = {**handle_of().to_json(), **change}
    cluster.network.agents[1].receive(0, offer(SUBTASK, 1, 1, handle))
    assert not cluster.reports
    assert kinds(cluster, 1, 0) == [FrameKind.FAILED]


def test_a_file_that_was_damaged_at_the_sender_comes_from_storage(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.change()
    cluster.snapshot(tell=False)
    for path in (cluster.work(0) / FOLDER / "files").iterdir():
        path.write_bytes(bytes(reversed(path.read_bytes())))
    cluster.tell()
    cluster.network.settle()
    assert cluster.network.agents[1].figures.files_refused == MAX_TRIES
    assert cluster.network.agents[1].figures.files_from_storage == 1
    assert cluster.staged(1) == cluster.staged(2) == {1}
    cluster.promote(2, 1)


def test_a_version_that_cannot_be_had_is_left_out_and_the_next_one_is_taken(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    cluster.change()
    cluster.snapshot(tell=False)
    files = list((cluster.work(0) / FOLDER / "files").iterdir())
    stored = cluster.root / "checkpoints" / "state"
    moved = stored.rename(cluster.root / "away")
    for path in files:
        damaged = bytes(reversed(path.read_bytes()))
        path.unlink()
        path.write_bytes(damaged)
    cluster.tell()
    cluster.network.settle()
    assert cluster.staged(1) == set()
    moved.rename(stored)
    cluster.change()
    cluster.snapshot()
    cluster.network.settle()
    assert cluster.staged(1) == cluster.staged(2) == {2}


def test_a_file_that_is_gone_at_the_head_comes_from_storage(cluster: Cluster) -> None:
    cluster.change()
    cluster.snapshot(tell=False)
    for path in (cluster.work(0) / FOLDER / "files").iterdir():
        path.unlink()
    cluster.tell()
    cluster.network.settle()
    assert cluster.staged(2) == {1}


def test_a_full_disk_at_the_standby_is_survived(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    versions(cluster, 1)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("chain_backup.replication.transfers.Partial.append", full)
        versions(cluster, 1, trim=False)
    assert cluster.staged(1) == {1}
    with monkeypatch.context() as patch:

        def broken(*_: object, **__: object) -> None:
            raise StateError("broken on purpose")

        patch.setattr(SubtaskStore, "ingest", broken)
        cluster.network.agents[1].trim(1)
    versions(cluster, 2)
    assert cluster.staged(1) >= {3, 4}
    cluster.promote(1, 4)


@pytest.mark.parametrize("fault", ["flip", "tear", "drop"])
def test_a_hop_that_lets_nothing_through_falls_silent(cluster: Cluster, fault: str) -> None:
    cluster.change()
    cluster.network.faults = {fault: 1.0}
    cluster.snapshot()
    cluster.network.settle()
    assert not cluster.reports
    assert len(cluster.network.sent) < 20 * MAX_RESYNCS
    cluster.network.faults = {}
    versions(cluster, 2)
    assert 3 in cluster.staged(1) and 3 in cluster.staged(2)


def test_closing_leaves_nothing_open(cluster: Cluster, small_chunks: None) -> None:
    versions(cluster, 2)
    cluster.change()
    cluster.snapshot()
    for _ in range(5):
        cluster.network.step()
    cluster.close()
    assert not list(cluster.root.glob("slot-*/*/standby-*"))
    assert not list(cluster.root.glob("slot-*/*/replica"))


def test_versions_whose_checkpoints_were_given_up_are_not_kept_but_for_the_newest(cluster: Cluster) -> None:
    """A job that completes no checkpoint for long would fill memory with handles."""
    versions(cluster, 1)
    for _ in range(12):
        versions(cluster, 1, trim=False)
        for agent in cluster.network.agents.values():
            agent.abort(cluster.version)
    for slot in (0, 1, 2):
        assert list(cluster.network.agents[slot]._members[SUBTASK].replica.staged) == [1, 13]
    versions(cluster, 1, trim=False)
    for slot in (0, 1, 2):
        assert list(cluster.network.agents[slot]._members[SUBTASK].replica.staged) == [1, 14]
    cluster.check(cluster.promote(1, 14), cluster.models[14])
