"""Folders in shared memory: one for each living process, none left of dead ones, and stores with and without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flinkplus.state import volatile
from flinkplus.state.sst_format import write_sst
from flinkplus.state.store import SubtaskStore


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(volatile, "ROOT", folder)
    return folder


def sst(folder: Path, name: str, entries: dict[bytes, bytes | None]) -> Path:
    path = folder / name
    write_sst([(sorted(entries), [entries[key] for key in sorted(entries)])], path)
    return path


def test_a_process_keeps_one_folder(root: Path) -> None:
    first, second = volatile.make_folder(), volatile.make_folder()
    assert first is not None and second is not None
    assert first != second and first.parent == second.parent
    volatile._sweep()
    assert first.exists() and second.exists()


def test_what_a_killed_process_left_is_removed_by_the_next(root: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from flinkplus.state import volatile\n"
        "volatile.ROOT = Path(sys.argv[1]); print(volatile.make_folder(), flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.exists()
        mine = volatile.make_folder()
        assert folder.exists()
        process.send_signal(signal.SIGKILL)
    volatile._sweep()
    assert not folder.parent.exists()
    assert mine is not None and mine.exists()


def test_without_room_there_is_no_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile, "MIN_FREE_BYTES", 1 << 60)
    assert volatile.make_folder() is None
    monkeypatch.setattr(volatile, "ROOT", root / "none")
    assert volatile.make_folder() is None


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("swift", [True, False])
def test_a_store_is_the_same_with_and_without(root: Path, tmp_path: Path, shared: bool, swift: bool) -> None:
    if not shared:
        root.rmdir()
    store = SubtaskStore(tmp_path / "work" / "db")
    store.ingest([sst(tmp_path, "1.sst", {b"a": b"1", b"b": b"1"})], swift)
    store.ingest([sst(tmp_path, "2.sst", {b"b": None, b"c": b"2"}), sst(tmp_path, "3.sst", {b"c": b"3"})], swift)
    assert store.get_many([b"a", b"b", b"c"]) == [b"1", None, b"3"]
    assert list(store.items()) == [(b"a", b"1"), (b"c", b"3")]
    assert not list(tmp_path.glob("*.sst"))
    store.destroy()
    assert not (tmp_path / "work" / "db").exists()
    assert volatile._reserved["bytes"] == 0
    assert not shared or [path.name for path in root.glob("*/*")] == [volatile.LOCK_FILE]


def test_files_that_compaction_has_replaced_are_removed(root: Path, tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "db")
    for number in range(40):
        store.ingest([sst(tmp_path, "x.sst", {b"%03d" % key: b"%d" % number for key in range(0, 100, 1 + number % 3)})])
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "db").glob("taken-*"))) > 20:
        assert time.monotonic() < deadline
        store.ingest([sst(tmp_path, "x.sst", {b"000": b"59"})])
    assert store.get_many([b"001", b"099"]) == [b"39", b"39"]
    store.destroy()


def test_a_quiet_store_compacts_nothing_until_it_is_active(root: Path, tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "db", quiet=True)

    def files() -> int:
        return len(list(root.glob("*/*/*.sst")))

    for number in range(30):
        store.ingest([sst(tmp_path, "x.sst", {b"%03d" % key: b"%d" % number for key in range(100)})])
    assert files() == 30
    store.be_active()
    deadline = time.monotonic() + 60
    while files() > 20:
        assert time.monotonic() < deadline
        store.ingest([sst(tmp_path, "x.sst", {b"000": b"x"})])
    store.destroy()


def in_memory(root: Path) -> list[Path]:
    return [path for path in root.glob("*/*/*.sst") if not path.is_symlink()]


def test_small_files_are_taken_in_from_memory(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waited_for(path: Path) -> None:
        raise AssertionError(f"{path} was to reach the disk")

    monkeypatch.setattr("flinkplus.state.store.sync_path", waited_for)
    store = SubtaskStore(tmp_path / "db")
    store.ingest([sst(tmp_path, "1.sst", {b"a": b"1"}), sst(tmp_path, "2.sst", {b"b": b"1"})])
    assert len(in_memory(root)) == 2
    store.destroy()


@pytest.mark.parametrize("shared", [True, False])
def test_what_rocksdb_would_sync_was_synced_before(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """It has the interpreter lock while it waits for the disk."""
    if not shared:
        root.rmdir()
    monkeypatch.setattr("flinkplus.state.store.SWIFT_BYTES", 0)
    synced: list[str] = []
    monkeypatch.setattr("flinkplus.state.store.sync_path", lambda path: synced.append(path.name))
    store = SubtaskStore(tmp_path / "db")
    files = [sst(tmp_path, "1.sst", {b"a": b"1"}), sst(tmp_path, "2.sst", {b"b": b"1"})]

    class Rocks:
        def ingest_external_file(self, paths: list[str], _options: object) -> None:
            assert synced == ["1.sst", "2.sst"]
            rocks.ingest_external_file(paths, store._ingest_options)

    rocks = store._db
    store._rocks = Rocks()  # type: ignore[assignment]
    store.ingest(files, swift=True)
    store._rocks = rocks
    assert store.get_many([b"a", b"b"]) == [b"1", b"1"]
    assert in_memory(root) == []
    store.destroy()


def test_half_of_the_room_is_left_to_who_cannot_wait(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sst(tmp_path, "x.sst", {b"a": b"1"}).stat().st_size
    monkeypatch.setattr("flinkplus.state.store.SWIFT_BYTES", 4 * size)
    store = SubtaskStore(tmp_path / "db", quiet=True)
    for number, (swift, expected) in enumerate([(False, 1), (False, 2), (False, 2), (True, 3), (True, 4), (True, 4)]):
        store.ingest([sst(tmp_path, "x.sst", {b"a": b"%d" % number})], swift)
        assert len(in_memory(root)) == expected, number
    assert store.get_many([b"a"]) == [b"5"]
    store.destroy()


def test_what_compaction_has_moved_to_the_disk_counts_no_more(root: Path, tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "db")
    for number in range(40):
        store.ingest([sst(tmp_path, "x.sst", {b"%03d" % key: b"%d" % number for key in range(100)})])
    deadline = time.monotonic() + 60
    while volatile._reserved["bytes"] > 30_000:
        assert time.monotonic() < deadline
        store.ingest([sst(tmp_path, "x.sst", {b"000": b"59"})])
    assert store.get_many([b"099"]) == [b"39"]
    store.destroy()
    assert volatile._reserved["bytes"] == 0


def test_memory_is_left_for_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = os.statvfs(root)
    free = space.f_bavail * space.f_frsize
    monkeypatch.setattr(volatile, "MAX_BYTES", 2 * free)
    monkeypatch.setattr(volatile, "MIN_FREE_BYTES", free // 2)
    assert not volatile.reserve(free - free // 4)
    assert volatile.reserve(free // 4)
    volatile.release(free // 4)
    monkeypatch.setattr(volatile, "ROOT", root / "none")
    assert not volatile.reserve(1)


def test_reserved_room_is_bounded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile, "MAX_BYTES", 3_000)
    stores = [SubtaskStore(tmp_path / f"db-{number}") for number in range(3)]
    for store in stores:
        store.ingest([sst(tmp_path, "x.sst", {b"a": b"1"})], swift=True)
    assert 0 < len(in_memory(root)) < 3
    for store in stores:
        assert store.get_many([b"a"]) == [b"1"]
        store.destroy()
    assert volatile._reserved["bytes"] == 0
