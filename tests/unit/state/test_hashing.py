"""Key groups: every group has one owner, ranges are contiguous, and the split goes where the state is."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.keys import HashPartitioner, encode_values
from flinkplus.protocol.vocabulary.key_groups import groups_of, owner_of
from flinkplus.state.hashing import GROUP_BYTES, group_numbers, group_of, hash_keys, in_groups, owners
from tests.examples import examples


@given(st.integers(1, 300), st.integers(0, 700))
@settings(max_examples=examples(200), deadline=None)
def test_ranges_are_all_groups_once(parallelism: int, more: int) -> None:
    max_parallelism = parallelism + more
    ranges = [groups_of(index, parallelism, max_parallelism) for index in range(parallelism)]
    assert [group for groups in ranges for group in groups] == list(range(max_parallelism))
    assert all(
        owner_of(group, parallelism, max_parallelism) == at for at, groups in enumerate(ranges) for group in groups
    )
    sizes = [len(groups) for groups in ranges]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    assert owners(parallelism, max_parallelism).tolist() == [at for at, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize(("targets", "max_parallelism"), [(3, 128), (5, 7), (100, 1000), (1, 1), (32_768, 32_768)])
@pytest.mark.parametrize("rows", [50, 5000])
def test_rows_go_to_the_owner_of_their_group(targets: int, max_parallelism: int, rows: int) -> None:
    numbers = pa.array(range(rows))
    texts = pa.array([f"k{n}" for n in range(rows)])
    batch = pa.record_batch({"n": numbers, "t": texts, "t2": texts.dictionary_encode()})
    for column in batch.schema.names:
        for target, part in HashPartitioner([column], targets, max_parallelism).split(batch):
            key = part.column(column)
            plain = key.dictionary.take(key.indices) if isinstance(key, pa.DictionaryArray) else key
            groups = group_numbers(hash_keys(encode_values(plain)), max_parallelism)
            own = groups_of(target, targets, max_parallelism)
            assert groups.min() >= own.start and groups.max() < own.stop


@given(st.lists(st.binary(max_size=100)), st.sampled_from([1, 7, 128, 32_768]))
@settings(max_examples=examples(100), deadline=None)
def test_a_stored_key_begins_with_its_group(keys: list[bytes], max_parallelism: int) -> None:
    array = pa.array([b"in front", *keys], pa.large_binary()).slice(1)
    groups = group_numbers(hash_keys(pa.array(keys, pa.binary())), max_parallelism).tolist()
    expected = [group.to_bytes(GROUP_BYTES, "big") + key for group, key in zip(groups, keys, strict=True)]
    assert in_groups(array, max_parallelism).to_pylist() == expected
    assert [group_of(key, max_parallelism) for key in keys] == groups


def test_groups_never_change() -> None:
    keys = pa.array([b"", b"the", b"of", b"and"], pa.binary())
    assert group_numbers(hash_keys(keys), 128).tolist() == [int(h) % 128 for h in hash_keys(keys).tolist()]
    assert group_numbers(np.array([1084639680480838791], np.uint64), 128).tolist() == [1084639680480838791 % 128]


def test_parallelism_above_max_parallelism_is_refused() -> None:
    assert options_from({}, {"parallelism": 8, "max_parallelism": 8}).max_parallelism == 8
    with pytest.raises(ConfigurationError, match="parallelism 9 is above max_parallelism, which is 8"):
        options_from({}, {"parallelism": 9, "max_parallelism": 8})
    for wrong in (0, 32_769, 1.5):
        with pytest.raises(ConfigurationError, match="max_parallelism must be"):
            options_from({}, {"max_parallelism": wrong})
