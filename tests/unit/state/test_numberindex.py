"""The index of whole numbers against a dict, also with a multiplier that puts them all into one slot."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.state import numberindex
from flinkplus.state.keytable import FREE
from flinkplus.state.numberindex import FIRST_BITS, NumberIndex

NUMBERS = st.one_of(st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize("multiplier", [numberindex._MULTIPLIER, np.uint64(1)])
@given(batches=st.lists(st.lists(NUMBERS, max_size=30), max_size=8))
def test_finds_what_a_dict_finds(multiplier: np.uint64, batches: list[list[int]]) -> None:
    index, model = NumberIndex(object()), dict[int, int]()
    with mock.patch.object(numberindex, "_MULTIPLIER", multiplier):
        for batch in batches:
            numbers = np.array(batch, np.int64)
            assert index.find(numbers).tolist() == [model.get(number, FREE) for number in batch]
            fresh = [number for number in dict.fromkeys(batch) if number not in model]
            rows = [3 * (len(model) + at) for at in range(len(fresh))]
            index.add(np.array(fresh, np.int64), np.array(rows, np.int64))
            model.update(zip(fresh, rows, strict=True))
            assert index.find(numbers).tolist() == [model[number] for number in batch]
            assert index.find(np.array(list(model), np.int64)).tolist() == list(model.values())


@pytest.mark.parametrize("at_once", [1, 700, 20_000])
def test_grows(at_once: int) -> None:
    index = NumberIndex(object())
    numbers = np.random.default_rng(1).permutation(np.arange(-10_000, 30_000) * 4096)
    for at in range(0, len(numbers), at_once) if at_once > 1 else range(3 << FIRST_BITS):
        index.add(numbers[at : at + at_once], np.arange(at, at + at_once)[: len(numbers) - at])
    count = len(numbers) if at_once > 1 else 3 << FIRST_BITS
    assert index.find(numbers[:count]).tolist() == list(range(count))
    assert index.find(np.array([1, 2, 3])).tolist() == [FREE] * 3
