"""Several objects for each key: against a dict, while parts are frozen, written, and thawed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from flinkplus.errors import CorruptState
from flinkplus.state.entries import table
from flinkplus.state.entries.table import EntryState, end_of, owner_key, owner_length
from flinkplus.state.memtable import FrozenPart, state_prefix
from flinkplus.state.sst_format import write_sst
from flinkplus.state.store import SubtaskStore

KEYS = [b"", b"a", b"a\xff", b"b", b"\xff\xff\xff"]


def test_against_a_dict_while_parts_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "READ_ENTRIES", 3)
    rng = random.Random(2)
    store = SubtaskStore(tmp_path / "db")
    try:
        other = EntryState(store, state_prefix("op/m2"), form="map")
        other.put_many([other.owner(key) + b"x" for key in KEYS], [(0,)] * len(KEYS))
        state = EntryState(store, state_prefix("op/m"), max_entries=8, form="map")
        model: dict[bytes, Any] = {}
        frozen: list[FrozenPart] = []
        for turn in range(300):
            names = list(
                {state.owner(rng.choice(KEYS)) + bytes([rng.randrange(4), rng.choice((0, 255))]) for _ in "123"}
            )
            values: list[Any] = [rng.choice([None, (turn,), [turn]]) for _ in names]
            state.put_many(names, values)
            model.update(zip(names, values, strict=True))
            model = {name: value for name, value in model.items() if value is not None}
            what = rng.randrange(6)
            if what == 0 and (part := state.freeze()) is not None:
                frozen.append(part)
            if what == 1 and frozen:
                written = frozen.pop(0)
                write_sst(written.sorted_chunks(), tmp_path / "part.sst")
                store.ingest([tmp_path / "part.sst"])
                written.release()
            if what == 2 and frozen and rng.random() < 0.3:
                state.thaw(frozen)
                frozen = []
            for key in KEYS:
                owner = state.owner(key)
                expected = sorted(
                    (name[len(owner) :], value) for name, value in model.items() if name.startswith(owner)
                )
                assert list(state.entries(owner)) == expected
            assert state.live_keys == len(model)
        part = other.freeze()
        assert part is not None
        assert [name for names, _ in part.sorted_chunks() for name in names] == sorted(
            state_prefix("op/m2") + other.owner(key) + b"x" for key in KEYS
        )
    finally:
        store.destroy()


def test_an_iteration_shows_what_was_there_when_it_began(tmp_path: Path) -> None:
    store = SubtaskStore(tmp_path / "db")
    try:
        state = EntryState(store, state_prefix("op/m"), form="map")
        owner = state.owner(b"k")
        state.put_many([owner + b"1", owner + b"3"], [1, 3])
        entries = state.entries(owner)
        assert next(entries) == (b"1", 1)
        state.put_many([owner + b"1", owner + b"2", owner + b"3"], [None, 2, None])
        assert list(entries) == [(b"3", 3)]
        assert list(state.entries(owner)) == [(b"2", 2)]
    finally:
        store.destroy()


def test_names() -> None:
    store: Any = None
    state = EntryState(store, b"p", max_parallelism=7)
    for key in KEYS:
        name = state.owner(key) + b"rest"
        assert owner_key(name) == key and name[owner_length(name) :] == b"rest"
    assert end_of(b"a") == b"b" and end_of(b"a\xff\xff") == b"b"
    for bad in (b"", b"\0\0\0\0", b"\0\0\0\0\0\5abc"):
        with pytest.raises(CorruptState, match="the name of an entry"):
            owner_length(bad)
