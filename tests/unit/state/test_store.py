"""RocksDB as we rely on it: later files win, tombstones delete, iterators are pinned, linked files are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flinkplus.errors import CorruptState, StateError
from flinkplus.state.file_system import link_or_copy
from flinkplus.state.sst_format import write_sst
from flinkplus.state.store import FORMAT_KEY, SubtaskStore

Entries = list[tuple[bytes, bytes | None]]


def sst(path: Path, entries: Entries) -> Path:
    write_sst([([key for key, _ in entries], [value for _, value in entries])], path)
    return path


@pytest.fixture
def store(tmp_path: Path):
    store = SubtaskStore(tmp_path / "db")
    yield store
    store.destroy()


def test_absent_keys_are_none_in_order(store: SubtaskStore, tmp_path: Path) -> None:
    assert store.get_many([b"a", b"b"]) == [None, None]
    store.ingest([sst(tmp_path / "1.sst", [(b"a", b"1"), (b"c", b"")])])
    assert store.get_many([b"c", b"b", b"a", b"a"]) == [b"", None, b"1", b"1"]
    assert store.get_many([]) == []


def test_later_files_win_also_within_one_call(store: SubtaskStore, tmp_path: Path) -> None:
    files = [sst(tmp_path / f"{number}.sst", [(b"a", b"%d" % number), (b"b", b"x")]) for number in range(4)]
    files.append(sst(tmp_path / "9.sst", [(b"b", None)]))
    store.ingest(files)
    assert store.get_many([b"a", b"b"]) == [b"3", None]
    assert list(store.items()) == [(b"a", b"3")]


def test_deleted_key_can_come_back(store: SubtaskStore, tmp_path: Path) -> None:
    for number, value in enumerate([b"1", None, b"2"]):
        store.ingest([sst(tmp_path / f"{number}.sst", [(b"a", value)])])
    assert list(store.items()) == [(b"a", b"2")]


def test_iterator_sees_the_store_as_it_was(store: SubtaskStore, tmp_path: Path) -> None:
    store.ingest([sst(tmp_path / "1.sst", [(b"a", b"1"), (b"b", b"1")])])
    before = store.items()
    store.ingest([sst(tmp_path / "2.sst", [(b"a", b"2"), (b"b", None), (b"c", b"2")])])
    assert list(before) == [(b"a", b"1"), (b"b", b"1")]
    assert list(store.items()) == [(b"a", b"2"), (b"c", b"2")]


def test_ingesting_a_link_leaves_the_file_alone(store: SubtaskStore, tmp_path: Path) -> None:
    store.ingest([sst(tmp_path / "0.sst", [(b"a", b"0")])])
    file, link = sst(tmp_path / "1.sst", [(b"a", b"1")]), tmp_path / "link.sst"
    content = file.read_bytes()
    link_or_copy(file, link)
    store.ingest([link])
    assert not link.exists()
    assert file.read_bytes() == content


def test_failed_ingest_changes_nothing(store: SubtaskStore, tmp_path: Path) -> None:
    torn = sst(tmp_path / "torn.sst", [(b"a", b"1")])
    torn.write_bytes(torn.read_bytes()[:-20])
    whole = sst(tmp_path / "whole.sst", [(b"b", b"1")])
    with pytest.raises(StateError, match=r"cannot ingest .*whole\.sst"):
        store.ingest([whole, torn])
    assert store.get_many([b"a", b"b"]) == [None, None]


def test_unknown_format_is_refused(store: SubtaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.check_format()
    monkeypatch.setattr("flinkplus.state.sst_format.FORMAT_VALUE", b'{"format": 99}')
    store.ingest([sst(tmp_path / "1.sst", [(b"a", b"1")])])
    with pytest.raises(CorruptState, match="99"):
        store.check_format()


def test_the_format_entry_is_never_seen(store: SubtaskStore, tmp_path: Path) -> None:
    store.ingest([sst(tmp_path / "1.sst", [(b"\x01", b"1")])])
    assert [key for key, _ in store.items()] == [b"\x01"]
    assert store.get_many([FORMAT_KEY]) != [None]


def test_closed_store_says_so(tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "db")
    store.ingest([sst(tmp_path / "1.sst", [(b"a", b"1")])])
    store.destroy()
    store.destroy()
    assert not (tmp_path / "db").exists()
    with pytest.raises(StateError, match="closed"):
        store.get_many([b"a"])
    with pytest.raises(StateError, match="closed"):
        store.items()
    with pytest.raises(StateError, match="closed"):
        store.ingest([tmp_path / "1.sst"])


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be opened"):
        SubtaskStore(tmp_path / "file" / "db")


def test_files_are_removed_beside_whoever_cannot_wait(tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "db")
    later: list[Callable[[], None]] = []
    store.destroy(later.append)
    assert (tmp_path / "db").exists(), "nobody has waited for that"
    [remove] = later
    remove()
    assert not (tmp_path / "db").exists()


def test_only_what_counts_of_a_file_is_held(store: SubtaskStore, tmp_path: Path) -> None:
    """Of keys that count in no file nothing stays; of others, what files hold that do not count for them is gone."""
    entries: Entries = [(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", b"1")]
    shared = sst(tmp_path / "1.sst", entries)
    base = sst(tmp_path / "2.sst", [(b"a", b"2")])
    delta = sst(tmp_path / "3.sst", [(b"c", None), (b"c1", b"3"), (b"d", b"3")])
    store.ingest([shared, base, delta], counted=[((b"c", b"d"),), ((b"a", b"c"),), ((b"c", b"d"),)])
    assert list(store.items()) == [(b"a", b"2"), (b"c1", b"3")]
    store.check_format()
    store.ingest([sst(tmp_path / "4.sst", [(b"b", b"4"), (b"d", b"4")])])
    assert list(store.items()) == [(b"a", b"2"), (b"b", b"4"), (b"c1", b"3"), (b"d", b"4")]


def test_a_store_that_was_closed_says_so_when_ranges_are_deleted(store: SubtaskStore, tmp_path: Path) -> None:
    store.ingest([sst(tmp_path / "1.sst", [(b"a", b"1")])])
    store.close()
    with pytest.raises(StateError, match="was closed"):
        store._delete(((b"a", b"b"),))


def test_a_lazy_store_creates_nothing_before_its_first_file(tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "lazy" / "db", lazy=True)
    assert store.get_many([b"a"]) == [None] and list(store.items()) == []
    store.check_format()
    store.destroy()
    assert not (tmp_path / "lazy").exists()
    store = SubtaskStore(tmp_path / "lazy" / "db", lazy=True)
    store.ingest([sst(tmp_path / "1.sst", [(b"a", b"1")])])
    assert store.get_many([b"a"]) == [b"1"]
    store.destroy()
    (tmp_path / "file").write_bytes(b"")
    blocked = SubtaskStore(tmp_path / "file" / "db", lazy=True)
    with pytest.raises(StateError, match="cannot be opened"):
        blocked.ingest([sst(tmp_path / "2.sst", [(b"a", b"1")])])
