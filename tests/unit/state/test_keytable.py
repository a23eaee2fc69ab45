"""The key table against a dict, also with hashes that collide all the time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.state.keytable import FREE, RECENT_KEYS, KeyTable

HASHERS: dict[str, Callable[[bytes], int]] = {
    "python": hash,
    "all the same": lambda key: 7,
    "two low bits": lambda key: len(key) % 4,
    "negative": lambda key: -(1 << 63) + (hash(key) & 0xFF),
}
BATCHES = st.lists(st.lists(st.binary(max_size=3), max_size=20), max_size=8)


@pytest.mark.parametrize("hasher", HASHERS.values(), ids=HASHERS)
@given(batches=BATCHES, kept=st.lists(st.booleans(), max_size=8))
def test_finds_what_a_dict_finds(hasher: Callable[[bytes], int], batches: list[list[bytes]], kept: list[bool]) -> None:
    table, model = KeyTable(hasher), dict[bytes, int]()
    for number, keys in enumerate(batches):
        rows, hashes = table.find(keys)
        assert rows.tolist() == [model.get(key, FREE) for key in keys]
        new = {key: position for position, key in enumerate(keys) if key not in model}
        assert table.insert(list(new), hashes[list(new.values())]) == len(model)
        model.update(zip(new, range(len(model), len(model) + len(new)), strict=True))
        if number < len(kept) and kept[number]:
            mask = np.array([len(key) % 2 == 0 for key in model], np.bool_)
            table.keep(mask)
            left = [key for key in model if len(key) % 2 == 0]
            model = {key: row for row, key in enumerate(left)}
        assert len(table) == len(model)
        assert table.keys[: len(table)].tolist() == list(model)


@pytest.mark.parametrize("hasher", HASHERS.values(), ids=HASHERS)
@given(batches=BATCHES)
def test_finds_few_as_it_finds_many(hasher: Callable[[bytes], int], batches: list[list[bytes]]) -> None:
    table = KeyTable(hasher)
    for number, keys in enumerate(batches):
        rows, hashes = table.find(keys)
        assert hashes.tolist() == table.hashes_of(keys).tolist()
        assert table.find_few(keys) == rows.tolist()
        assert table.find_few(keys) == rows.tolist(), "the second time from memory"
        new = {key: position for position, key in enumerate(keys) if rows[position] == FREE}
        table.insert(list(new), hashes[list(new.values())])
        assert table.find_few(keys) == table.find(keys)[0].tolist()
        if number % 3 == 2:
            table.keep(np.arange(len(table)) % 2 == 0)
            assert table.find_few(keys) == table.find(keys)[0].tolist()


def test_remembers_no_more_than_its_limit() -> None:
    table = KeyTable()
    keys = [b"%d" % number for number in range(RECENT_KEYS + 100)]
    table.insert(keys, table.find(keys)[1])
    for start in range(0, len(keys), 100):
        assert table.find_few(keys[start : start + 100]) == list(range(start, min(start + 100, len(keys))))
        assert len(table._recent) <= RECENT_KEYS


def test_grows_far_past_its_first_size() -> None:
    table = KeyTable()
    keys = [b"%d" % number for number in range(20_000)]
    for start in range(0, len(keys), 3_000):
        batch = keys[start : start + 3_000]
        table.insert(batch, table.find(batch)[1])
    assert table.find(keys)[0].tolist() == list(range(len(keys)))
    assert table.find([b"no", b"19999", b""])[0].tolist() == [FREE, 19_999, FREE]


def test_key_array_of_old_rows_stays_as_it_was() -> None:
    table = KeyTable()
    table.insert([b"a", b"b", b"c"], table.find([b"a", b"b", b"c"])[1])
    held = table.keys
    table.keep(np.array([False, True, True]))
    table.insert([b"d"], table.find([b"d"])[1])
    assert held[:3].tolist() == [b"a", b"b", b"c"]
    assert table.keys[:3].tolist() == [b"b", b"c", b"d"]
