"""State files that are fetched before they are needed: checked, linked, dropped."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.files import StateFile, digest_of
from flinkplus.state.durable.prefetched import NICENESS, PrefetchedFiles
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.durable.storage import CheckpointStorage


class Store(StateFiles):
    """Durable storage that counts what is read of it. ``before``: called before each file."""

    def __init__(self, files: StateFiles) -> None:
        super().__init__(files._uri, files._files)
        self.fetched: list[str] = []
        self.before: Callable[[], object] = list

    def fetch(self, file: StateFile, local: Path) -> None:
        self.before()
        self.fetched.append(file.stored)
        super().fetch(file, local)

    def put(self, folder: Path, name: str, content: bytes) -> StateFile:
        path = folder / "upload"
        path.write_bytes(content)
        self.upload(path, name)
        size, checksum = digest_of([content])
        return StateFile(name, "base", 1, size, checksum)

    def path(self, file: StateFile) -> Path:
        return Path(self._uri) / "state" / file.stored


@pytest.fixture
def store(storage: CheckpointStorage) -> Store:
    return Store(storage.state_files)


@pytest.fixture
def ready(store: Store, tmp_path: Path) -> PrefetchedFiles:
    return PrefetchedFiles(store, tmp_path / "prefetched")


def fetch_ahead(ready: PrefetchedFiles, *files: StateFile) -> list[tuple[int, str]]:
    """All reports."""
    reports: list[tuple[int, str]] = []
    ready.prefetch(ready.begin(files), files, lambda *report: reports.append(report))
    return reports


def on_a_thread(ready: PrefetchedFiles, *files: StateFile) -> list[tuple[int, str]]:
    """``fetch_ahead`` in a thread of its own, whose priority it lowers."""
    found: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: found.extend(fetch_ahead(ready, *files)))
    thread.start()
    thread.join()
    return found


def test_what_was_fetched_ahead_is_not_read_again(store: Store, ready: PrefetchedFiles, tmp_path: Path) -> None:
    first, second = store.put(tmp_path, "a[0]/1-1-1.sst", b"one"), store.put(tmp_path, "a[1]/1-1-1.sst", b"other")
    assert on_a_thread(ready, first, second) == [(5, ""), (0, "")]
    for file in (first, second):
        store.path(file).unlink()
    name = replace(first, name="b[0]/2-2-1000000.sst", stored_as=first.name)
    ready.fetch(name, tmp_path / "copy")
    ready.fetch(name, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"one" and store.fetched == [first.name, second.name]
    assert on_a_thread(ready, first, second) == [(0, "")], "there is nothing to fetch"
    ready.drop()
    assert (tmp_path / "copy").read_bytes() == b"one" and not list((tmp_path / "prefetched").iterdir())
    with pytest.raises(CorruptState, match="is missing"):
        ready.fetch(name, tmp_path / "copy")


def test_only_what_the_last_order_names_is_held(store: Store, ready: PrefetchedFiles, tmp_path: Path) -> None:
    files = [store.put(tmp_path, f"a[{n}]/1-1-1.sst", bytes([n])) for n in range(3)]
    on_a_thread(ready, *files[:2])
    assert on_a_thread(ready, *files[1:]) == [(0, "")] and store.fetched == [file.name for file in files]
    assert len(list((tmp_path / "prefetched").iterdir())) == 2


def test_another_content_under_the_same_name_is_another_file(
    store: Store, ready: PrefetchedFiles, tmp_path: Path
) -> None:
    old = store.put(tmp_path, "a[0]/1-1-1.sst", b"old")
    on_a_thread(ready, old)
    new = store.put(tmp_path, "a[0]/1-1-1.sst", b"new")
    ready.fetch(new, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"new"


def test_a_damaged_or_missing_file_is_left_out_and_the_others_are_held(
    store: Store, ready: PrefetchedFiles, tmp_path: Path
) -> None:
    files = [store.put(tmp_path, f"a[{n}]/1-1-1.sst", b"same length %d" % n) for n in range(3)]
    store.path(files[0]).write_bytes(b"same length 7")
    store.path(files[1]).unlink()
    reports = on_a_thread(ready, *files)
    assert [left for left, _ in reports] == [26, 13, 0]
    assert "was altered or damaged" in reports[-1][1], "the first reason"
    assert len(list((tmp_path / "prefetched").iterdir())) == 1
    for file in files[:2]:
        with pytest.raises(CorruptState):
            ready.fetch(file, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    store.path(files[2]).unlink()
    ready.fetch(files[2], tmp_path / "copy")


def test_a_new_order_ends_the_one_before(store: Store, ready: PrefetchedFiles, tmp_path: Path) -> None:
    files = [store.put(tmp_path, f"a[{n}]/1-1-1.sst", bytes([n])) for n in range(3)]
    store.before = lambda: ready.begin(files[2:]) if len(store.fetched) == 1 else None
    assert on_a_thread(ready, *files) == [(2, ""), (1, "")]
    assert store.fetched == [files[0].name, files[1].name]
    assert not list((tmp_path / "prefetched").iterdir()), "the second came too late"


def test_what_a_dead_process_left_is_removed_unread(store: Store, tmp_path: Path) -> None:
    (tmp_path / "prefetched").mkdir()
    (tmp_path / "prefetched" / "1.sst").write_bytes(b"who knows")
    PrefetchedFiles(store, tmp_path / "prefetched")
    assert not (tmp_path / "prefetched").exists()


def test_a_full_disk_is_reported(
    store: Store, ready: PrefetchedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store.put(tmp_path, "a[0]/1-1-1.sst", b"one")

    def full(*_: object) -> None:
        raise StateError("no space left")

    monkeypatch.setattr(StateFiles, "fetch", full)
    assert on_a_thread(ready, file) == [(0, "StateError: no space left")]


def test_the_thread_that_fetches_has_a_low_priority(store: Store, ready: PrefetchedFiles, tmp_path: Path) -> None:
    file = store.put(tmp_path, "a[0]/1-1-1.sst", b"one")
    found: list[int] = []
    store.before = lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    on_a_thread(ready, file)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert found == [max(NICENESS, own)] and (own >= NICENESS or found != [own])


def test_files_are_used_and_dropped_at_any_time(store: Store, ready: PrefetchedFiles, tmp_path: Path) -> None:
    """A fetch gives exactly the bytes, whatever other threads do."""
    contents = [bytes([n]) * 5_000 for n in range(6)]
    files = [store.put(tmp_path, f"a[{n}]/1-1-1.sst", content) for n, content in enumerate(contents)]
    ended = threading.Event()

    def order(seed: int) -> None:
        rng = random.Random(seed)
        while not ended.is_set():
            fetch_ahead(ready, *rng.sample(files, rng.randint(0, 6)))

    threads = [threading.Thread(target=order, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        rng = random.Random(7)
        for turn in range(300):
            at = rng.randrange(6)
            ready.fetch(files[at], tmp_path / f"copy-{turn}")
            assert (tmp_path / f"copy-{turn}").read_bytes() == contents[at]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    ready.drop()
    assert not list((tmp_path / "prefetched").iterdir())
