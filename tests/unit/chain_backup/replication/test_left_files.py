"""A slot's next process on the same host keeps the state files that are right, and fetches the others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chain_backup.disk import SlotDisk
from chain_backup.replication import frames
from chain_backup.replication.frames import FrameKind, decode
from chain_backup.replication.replica import Replica
from flinkplus.errors import StateError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.backend import folder_name
from flinkplus.state.left import paced
from tests.unit.chain_backup.replication.replica_cluster import SUBTASK, Cluster

FOLDER = folder_name(SUBTASK)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A head on slot 0 and a standby on slot 1 that holds six versions; slot 2 beside them."""
    made = Cluster(tmp_path)
    made.form(0, 1)
    made.open_head()
    versions(made, 3)
    yield made
    made.close()


def versions(cluster: Cluster, count: int) -> None:
    for _ in range(count):
        cluster.change()
        cluster.snapshot(rebase=False)
        cluster.network.settle()
        cluster.trim()


def sizes(cluster: Cluster, version: int) -> dict[str, int]:
    return {file.name.rpartition("/")[2]: file.bytes for file in cluster.handles[version].files}


def wanted(cluster: Cluster, slot: int) -> set[str]:
    """Names of the files that a slot has asked its predecessor for."""
    sent = [decode(frame) for source, _, frame in cluster.network.sent if source == slot]
    return {name for frame in sent if frame.kind is FrameKind.WANT for name, _ in frame.fields["files"]}


def left_files(cluster: Cluster, slot: int) -> set[str]:
    return {path.name for path in (cluster.work(slot) / FOLDER / "left").glob("*")}


def come_back(cluster: Cluster, spoil: Callable[[Path], None] = lambda _: None) -> tuple[set[str], set[str]]:
    """Slot 1 dies, two more versions are made, and its next process begins; the files it had, and the new ones."""
    old = set(sizes(cluster, cluster.version))
    left = cluster.crash(1)
    spoil(left / FOLDER / "replica")
    versions(cluster, 2)
    cluster.network.sent.clear()
    cluster.restart(1, left)
    cluster.form(0, 1)
    return old, set(sizes(cluster, cluster.version)) - old


def test_only_the_difference_is_fetched(cluster: Cluster) -> None:
    old, new = come_back(cluster)
    cluster.network.settle()
    found, size = cluster.network.agents[1].figures, sizes(cluster, cluster.version)
    assert old and new and wanted(cluster, 1) == new
    assert found.bytes_kept == sum(size[name] for name in old)
    assert found.bytes_received == sum(size[name] for name in new)
    assert found.bytes_from_storage == found.left_refused == 0
    cluster.trim()
    assert not (cluster.work(1) / FOLDER / "left").exists()
    cluster.promote(1, cluster.version)


def test_a_second_death_keeps_what_the_first_successor_had_not_looked_at(cluster: Cluster) -> None:
    come_back(cluster)
    left = cluster.crash(1)  # with nothing delivered yet
    cluster.restart(1, left)
    cluster.form(0, 1)
    cluster.network.settle()
    assert cluster.network.agents[1].figures.bytes_kept > 0
    cluster.promote(1, cluster.version)


def test_an_older_version_that_is_held_first_discards_nothing(cluster: Cluster) -> None:
    """The predecessor is behind: it has not had the newest version itself when it offers what it has."""
    cluster.form(0, 1, 2)
    cluster.network.settle()
    cluster.change()
    newest = cluster.snapshot(rebase=False)
    cluster.network.deliver((0, 1), (1, 0))
    assert newest in cluster.staged(1) and newest not in cluster.staged(2)
    left = cluster.crash(1)
    cluster.restart(1, left)
    cluster.network.cut(0, 1)
    cluster.form(0, 2, 1)
    cluster.network.deliver((2, 1), (1, 2))
    found, size = cluster.network.agents[1].figures, sizes(cluster, newest)
    assert list(cluster.network.agents[1]._members[SUBTASK].replica.staged) == [newest - 1]
    assert 0 < found.bytes_kept < sum(size.values())
    cluster.trim(newest - 1)
    cluster.network.settle()
    assert newest in cluster.staged(1)
    assert (found.bytes_kept, found.bytes_received) == (sum(size.values()), 0)
    assert not left_files(cluster, 1)
    cluster.promote(1, newest)


def altered(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def torn_and_filled_up(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2].ljust(size, b"\0"))


@pytest.mark.parametrize("damage", [altered, torn, torn_and_filled_up, Path.unlink])
def test_a_damaged_file_is_fetched_again(cluster: Cluster, damage: Callable[[Path], None]) -> None:
    victim: list[str] = []

    def spoil(folder: Path) -> None:
        path = sorted(folder.glob("*.sst"))[1]
        victim.append(path.name)
        damage(path)

    old, new = come_back(cluster, spoil)
    cluster.network.settle()
    found, size = cluster.network.agents[1].figures, sizes(cluster, cluster.version)
    assert wanted(cluster, 1) == {*new, *victim}
    assert found.bytes_kept == sum(size[name] for name in old - set(victim))
    assert found.left_refused == (1 if damage in (altered, torn_and_filled_up) else 0)
    assert cluster.version in cluster.staged(1)
    cluster.promote(1, cluster.version)


def test_a_damaged_file_that_the_predecessor_does_not_have_comes_from_storage(cluster: Cluster) -> None:
    versions(cluster, 1)
    name = sorted(sizes(cluster, cluster.version))[0]
    old, _ = come_back(cluster, lambda folder: altered(folder / name))
    del cluster.network.agents[0]._members[SUBTASK].replica._held[name]
    cluster.network.sent.clear()
    cluster.network.cut(0, 1)
    cluster.network.settle()
    found = cluster.network.agents[1].figures
    assert (found.files_from_storage, found.left_refused) == (1, 1) and name in old
    assert cluster.version in cluster.staged(1)
    cluster.promote(1, cluster.version)


def test_new_files_arrive_while_old_ones_are_checked(slow: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 300)
    versions(slow, 3)
    old, new = come_back(slow, lambda folder: altered(min(folder.glob("*.sst"))))
    slow.network.deliver()
    found, size = slow.network.agents[1].figures, sizes(slow, slow.version)
    assert (found.bytes_kept, found.bytes_received) == (0, sum(size[name] for name in new))
    assert slow.version not in slow.staged(1)
    slow.network.settle()
    assert found.left_refused == 1 and found.bytes_kept == sum(size[name] for name in old - {min(old)})
    assert slow.version in slow.staged(1)
    slow.promote(1, slow.version)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_promotion_does_not_wait_for_checks_beside_the_stream(slow: Cluster, damaged: bool) -> None:
    versions(slow, 3)
    come_back(slow, lambda folder: altered(min(folder.glob("*.sst"))) if damaged else None)
    slow.network.deliver((0, 1))  # the check of the first file is under way
    found, storage = slow.network.agents[1].figures, int(damaged)
    slow.promote(1, 3)  # the version that the dead process had
    assert (found.files_from_storage, found.left_refused) == (storage, storage) and found.bytes_kept > 0
    kept = found.bytes_kept
    slow.network.settle()
    assert (found.files_from_storage, found.left_refused, found.bytes_kept) == (storage, storage, kept)


def test_a_stream_that_breaks_while_files_are_checked(slow: Cluster) -> None:
    versions(slow, 3)
    come_back(slow)
    slow.network.deliver((0, 1))
    slow.network.cut(0, 1)
    slow.network.settle()
    assert slow.version in slow.staged(1) and slow.network.agents[1].figures.left_refused == 0
    slow.promote(1, slow.version)


def test_files_that_are_removed_while_they_are_checked_are_fetched(slow: Cluster) -> None:
    versions(slow, 3)
    come_back(slow)
    slow.network.deliver((0, 1))
    for path in (slow.work(1) / FOLDER / "left").iterdir():
        path.unlink()
    slow.network.settle()
    assert slow.version in slow.staged(1)
    slow.promote(1, slow.version)


def test_a_promotion_while_what_was_left_is_removed(slow: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the check of a file, and before it is held: storage has it."""
    versions(slow, 3)
    left = slow.crash(1)
    slow.restart(1, left)
    slow.form(0, 1)
    check = SlotDisk.check_left

    def check_and_remove(disk: SlotDisk, file: StateFile, swift: bool) -> None:
        check(disk, file, swift)
        shutil.rmtree(disk._left)

    monkeypatch.setattr(SlotDisk, "check_left", check_and_remove)
    slow.promote(1, slow.version)
    found = slow.network.agents[1].figures
    assert (found.files_from_storage, found.bytes_kept) == (len(slow.handles[slow.version].files), 0)


def test_what_is_left_goes_with_the_copy(cluster: Cluster) -> None:
    left = cluster.crash(1)
    cluster.restart(1, left)
    assert left_files(cluster, 1)
    cluster.form(0, 1)
    cluster.form(0, 2, generation=2)
    cluster.trim()
    assert not (cluster.work(1) / FOLDER / "left").exists()


@pytest.mark.parametrize("damage", [None, altered, torn])
def test_a_rollback_restores_from_what_is_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None] | None
) -> None:
    left = cluster.crash(0)
    if damage is not None:
        damage(min((left / FOLDER / "files").glob("*.sst")))
        damage(min((left / FOLDER / "replica").glob("*.sst")))
    cluster.restart(0, left)
    if damage is None:

        def download(*_: object) -> None:
            raise StateError("storage is away")

        monkeypatch.setattr(cluster.storage.state_files, "download", download)
    state = cluster.open_head()
    state.restore(cluster.handles[cluster.version])
    cluster.check(state, cluster.models[cluster.version])
    assert not (cluster.work(0) / FOLDER / "left").exists()


def test_a_checksum_that_nothing_waits_for_takes_half_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, pauses = [0.0], []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        now_s[0] += pause_s

    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", sleep)
    for chunk in paced([b"1", b"3", b"2"]):
        now_s[0] += float(chunk)
    assert pauses == [1.0, 3.0, 2.0]


def new_base_while_away(
    cluster: Cluster, changes: int = 0, trimmed: bool = True, spoil: Callable[[Path], None] = lambda _: None
) -> set[str]:
    """Slot 1 dies with many versions. So many more changes are made, and a base of everything; its next process begins.

    The head has no older version then; ``trimmed``: nor the files of older ones. Returns the names of the files that
    the base replaces.
    """
    while cluster.version < 12:
        versions(cluster, 1)
    left = cluster.crash(1)
    spoil(left / FOLDER / "replica")
    for _ in range(changes):
        cluster.change()
        cluster.snapshot(rebase=False)
    assert cluster.state is not None and cluster.state.rebase()
    cluster.change()
    cluster.snapshot(rebase=False)
    replica(cluster, 0).staged = {cluster.version: replica(cluster, 0).staged[cluster.version]}
    if trimmed:
        cluster.trim()
        cluster.network.settle()
    cluster.network.sent.clear()
    base = cluster.handles[cluster.version].files[0]
    assert base.kind == "base"
    cluster.restart(1, left)
    cluster.form(0, 1)
    return {file.name.rpartition("/")[2] for file in base.replaces}


def replica(cluster: Cluster, slot: int = 1) -> Replica:
    return cluster.network.agents[slot]._members[SUBTASK].replica


def test_what_a_base_replaces_is_made_do_with(slow: Cluster) -> None:
    replaced = new_base_while_away(slow)
    base, delta = slow.handles[slow.version].files
    slow.network.settle()
    found = slow.network.agents[1].figures
    assert wanted(slow, 1) == {delta.name.rpartition("/")[2]} and found.bytes_received == delta.bytes
    assert found.bytes_kept == sum(file.bytes for file in base.replaces)
    assert (found.bases_fetched, found.left_refused) == (1, 0)
    assert slow.version in slow.staged(1)
    versions(slow, 2)
    slow.network.settle()
    assert not left_files(slow, 1) and not replaced & {path.name for path in (slow.work(1) / FOLDER).rglob("*.sst")}
    slow.promote(1, slow.version)


def test_what_was_left_stays_until_the_base_has_come(slow: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object) -> None:
        raise StateError("storage is away")

    replaced = new_base_while_away(slow)
    with monkeypatch.context() as patch:
        patch.setattr(slow.storage.state_files, "download", download)
        slow.network.settle()
        slow.trim()
        slow.network.settle()
        assert slow.version in slow.staged(1) and replica(slow)._kept >= replaced
        left = slow.crash(1)  # once more
    slow.restart(1, left)
    slow.form(0, 1)
    slow.network.settle()
    assert slow.version in slow.staged(1)
    assert slow.network.agents[1].figures.bytes_received == 0
    slow.promote(1, slow.version)


@pytest.mark.parametrize("head_has_it", [True, False])
def test_a_file_that_the_base_replaces_and_that_is_new_is_asked_for(slow: Cluster, head_has_it: bool) -> None:
    """Where the predecessor has it; the whole base otherwise."""
    replaced = new_base_while_away(slow, changes=1, trimmed=not head_has_it)
    new = replaced - left_files(slow, 1)
    base, delta = sizes(slow, slow.version)
    slow.network.settle()
    assert new and wanted(slow, 1) == ({*new, delta} if head_has_it else {base, delta})
    assert slow.version in slow.staged(1)
    slow.promote(1, slow.version)


@pytest.mark.parametrize("damage", [altered, torn])
@pytest.mark.parametrize("head_has_it", [True, False])
def test_a_damaged_file_that_the_base_replaces(
    slow: Cluster, head_has_it: bool, damage: Callable[[Path], None]
) -> None:
    victims: list[str] = []

    def spoil(folder: Path) -> None:
        path = min(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
        victims.append(path.name)
        damage(path)

    replaced = new_base_while_away(slow, trimmed=not head_has_it, spoil=spoil)
    base, delta = sizes(slow, slow.version)
    assert set(victims) < replaced
    slow.network.settle()
    assert wanted(slow, 1) == ({*victims, delta} if head_has_it else {base, delta})
    assert slow.version in slow.staged(1)
    slow.promote(1, slow.version)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_promotion_makes_do_with_what_the_base_replaces(
    slow: Cluster, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_base_while_away(slow, spoil=lambda folder: altered(min(folder.glob("*.sst"))) if damaged else None)
    downloaded: list[str] = []
    download = slow.storage.state_files.download

    def note(file: StateFile, local: Path) -> None:
        downloaded.append(file.name)
        download(file, local)

    monkeypatch.setattr(slow.storage.state_files, "download", note)
    files = [file.name for file in slow.handles[slow.version].files]
    slow.promote(1, slow.version)  # with nothing delivered
    assert downloaded == (files if damaged else files[1:])
