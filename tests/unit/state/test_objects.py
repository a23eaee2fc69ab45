"""Object states: values, copies, deletion, generations of the cache, freezing and thawing."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import CorruptState
from flinkplus.state.memtable import FrozenPart, state_prefix
from flinkplus.state.objects import ObjectState, _encode, decode, pack, unpack
from flinkplus.state.sst_format import write_sst
from flinkplus.state.store import SubtaskStore

PREFIX = state_prefix("profile")


@pytest.fixture
def store(tmp_path: Path):
    store = SubtaskStore(tmp_path / "db")
    yield store
    store.destroy()


def written(store: SubtaskStore, part: FrozenPart | None, tmp_path: Path) -> None:
    assert part is not None
    write_sst(part.sorted_chunks(), tmp_path / "part.sst")
    store.ingest([tmp_path / "part.sst"])
    part.release()


def test_put_get_delete(store: SubtaskStore) -> None:
    state = ObjectState(store, PREFIX)
    state.put_many([b"a", b"b", b"c"], [1, "two", [3]])
    state.delete_many([b"b", b"none"])
    state.put_many([b"c"], [None])
    assert state.get_many([b"c", b"b", b"a", b"a", b"none"]) == [None, None, 1, 1, None]
    assert state.live_keys == 1


def test_the_last_of_repeated_keys_wins(store: SubtaskStore) -> None:
    state = ObjectState(store, PREFIX)
    state.put_many([b"a", b"a"], [1, 2])
    assert state.get_many([b"a"]) == [2]
    assert state.live_keys == 1


def test_changing_an_object_without_putting_it_changes_nothing(store: SubtaskStore, tmp_path: Path) -> None:
    state = ObjectState(store, PREFIX)
    mine = {"n": [1]}
    state.put_many([b"a"], [mine])
    mine["n"].append(2)
    state.get_many([b"a"])[0]["n"].append(3)
    assert state.get_many([b"a"]) == [{"n": [1]}]
    part = state.freeze()
    state.get_many([b"a"])[0]["n"].append(4)
    written(store, part, tmp_path)
    state.get_many([b"a"])[0]["n"].append(5)
    fresh = ObjectState(store, PREFIX)
    assert fresh.get_many([b"a"]) == state.get_many([b"a"]) == [{"n": [1]}]


def test_what_cannot_be_pickled_changes_nothing(store: SubtaskStore) -> None:
    state = ObjectState(store, PREFIX)
    with pytest.raises(Exception, match="lambda"):
        state.put_many([b"a", b"b"], [1, lambda: 0])
    assert state.get_many([b"a"]) == [None]
    assert state.live_keys == 0


def test_deleted_keys_stay_deleted_through_rocksdb(store: SubtaskStore, tmp_path: Path) -> None:
    state = ObjectState(store, PREFIX)
    state.put_many([b"a", b"b"], [1, 2])
    written(store, state.freeze(), tmp_path)
    state.delete_many([b"a"])
    part = state.freeze()
    assert state.get_many([b"a", b"b"]) == [None, 2]
    written(store, part, tmp_path)
    assert state.get_many([b"a", b"b"]) == [None, 2]
    assert ObjectState(store, PREFIX).get_many([b"a", b"b"]) == [None, 2]


def test_cache_is_bounded_and_forgets_the_oldest(store: SubtaskStore, tmp_path: Path) -> None:
    state = ObjectState(store, PREFIX, max_entries=10)
    keys = [b"%03d" % number for number in range(100)]
    for start in range(0, 100, 5):
        state.put_many(keys[start : start + 5], [start] * 5)
        written(store, state.freeze(), tmp_path)
    assert not state.needs_spill
    assert len(state._young) + len(state._old) <= 20
    assert state.get_many(keys) == [number // 5 * 5 for number in range(100)]
    state.put_many(keys[:11], [1] * 11)
    assert state.needs_spill


def test_covers_all_only_when_everything_is_dirty(store: SubtaskStore, tmp_path: Path) -> None:
    state = ObjectState(store, PREFIX)
    state.put_many([b"a", b"b"], [1, 2])
    seen = [state.covers_all]
    written(store, state.freeze(), tmp_path)
    seen.append(state.covers_all)
    state.put_many([b"a", b"c"], [1, 2])
    state.delete_many([b"b"])
    assert [*seen, state.covers_all] == [
        True,
        False,
        False,
    ]  # a base of the dirty entries would be right, but its tombstone is not a key


def test_thawed_parts_keep_their_order(store: SubtaskStore) -> None:
    state = ObjectState(store, PREFIX)
    parts = []
    for value in (1, 2):
        state.put_many([b"a", b"%d" % value], [value, value])
        parts.append(state.freeze())
    state.delete_many([b"1"])
    state.thaw([part for part in parts if part is not None])
    assert state.get_many([b"a", b"1", b"2"]) == [2, None, 2]
    part = state.freeze()
    assert part is not None and part.entries == 3
    assert not state._frozen[:-1]


VALUES = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.booleans() | st.dates(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(VALUES)
def test_every_value_comes_back_as_it_was(value: object) -> None:
    kept = pack(value)
    again = unpack(decode(_encode(kept)))
    assert again == unpack(kept) == value
    assert type(again) is type(value)


def test_bytes_of_a_user_are_not_taken_for_a_pickle() -> None:
    class Tagged(bytes):
        pass

    assert unpack(decode(_encode(pack(b"\x80\x05N.")))) == b"\x80\x05N."
    assert pack(datetime.date(2020, 1, 1)) == datetime.date(2020, 1, 1)
    assert decode(None) is decode(None)
    with pytest.raises(CorruptState, match="format"):
        decode(b"\x07abc")


def test_pages_count_by_their_bytes(store: SubtaskStore, tmp_path: Path) -> None:
    """A few large pages are as many as memory may hold: they are spilled, and no longer cached when others come."""
    state = ObjectState(store, PREFIX, 1_000, None)

    def spills() -> bool:
        return state.needs_spill

    state.put_many([b"small"], [b"x"])
    assert not spills()
    large = [bytes([n]) * 200_000 for n in range(8)]
    names = [b"%d" % n for n in range(8)]
    state.put_many(names[:1], large[:1])
    state.put_many(names[:1], large[:1])
    assert not spills()
    state.put_many(names, large)
    assert spills()
    part = state.freeze()
    assert part is not None and spills()  # until RocksDB has it
    written(store, part, tmp_path)
    assert not spills()
    for _ in range(2):
        assert state.get_many(names) == large
    cached: list[Any] = [*state._young.values(), *state._old.values()]
    assert sum(map(len, cached)) < 10 * 200_000
    before = store.keys_read
    assert state.get_many([b"small"]) == [b"x"] and store.keys_read > before
    state.delete_many(names)
    assert state.get_many(names) == [None] * 8 and not spills()
