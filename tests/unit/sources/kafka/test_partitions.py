"""Which reader has which partition; choices; positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import InputError
from flinkplus.sources.base import MAX_CHOICE
from flinkplus.sources.kafka.partitions import (
    END,
    MAX_LOCAL,
    MAX_RECORDS,
    Assignment,
    Partition,
    Position,
    choice_of,
    offsets_from_json,
    offsets_to_json,
    parts_of,
    position_from,
    redealt,
)

TOPICS = ("a", "b", "c")
partitions = st.builds(Partition, st.sampled_from(TOPICS), st.integers(0, 500))


@given(partitions, st.integers(1, 40))
def test_each_partition_has_one_owner_that_knows_it_by_a_number(partition: Partition, parallelism: int) -> None:
    readers = [Assignment(TOPICS, index, parallelism) for index in range(parallelism)]
    (owner,) = [reader for reader in readers if reader.has(partition)]
    assert owner.partition(owner.local(partition)) == partition


@given(st.integers(1, 20))
def test_partitions_are_spread_evenly(parallelism: int) -> None:
    every = [Partition(topic, number) for topic in TOPICS for number in range(8)]
    counts = [sum(Assignment(TOPICS, index, parallelism).has(p) for p in every) for index in range(parallelism)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, MAX_LOCAL), st.integers(1, MAX_RECORDS))
def test_a_choice_is_a_number_that_a_determinant_can_hold(local: int, records: int) -> None:
    choice = choice_of(local, records)
    assert END < choice <= MAX_CHOICE
    assert parts_of(choice) == (local, records)


@given(st.lists(st.dictionaries(partitions, st.integers(0, 1 << 40)), min_size=1, max_size=4), st.integers(1, 7))
def test_positions_are_dealt_to_the_owners_and_back(
    given_offsets: list[dict[Partition, int]], parallelism: int
) -> None:
    before = len(given_offsets)
    every = {p: offset for offsets in given_offsets for p, offset in offsets.items()}
    owners = [Assignment(TOPICS, index, before) for index in range(before)]
    positions = [Position({p: o for p, o in every.items() if owner.has(p)}, 10, 1) for owner in owners]
    dealt = redealt(positions, TOPICS, parallelism)
    assert {p: o for position in dealt for p, o in position.offsets.items()} == every
    for index, position in enumerate(dealt):
        assert all(Assignment(TOPICS, index, parallelism).has(p) for p in position.offsets)
    assert sum(p.rows for p in dealt) == 10 * before and sum(p.invalid_records for p in dealt) == before
    assert [p.offsets for p in redealt(dealt, TOPICS, before)] == [p.offsets for p in positions]


@given(st.dictionaries(partitions, st.integers(0, 1 << 40)))
def test_a_position_is_json(offsets: dict[Partition, int]) -> None:
    position = Position(offsets, 3, 2)
    assert position_from("s", json.loads(json.dumps(position.to_json()))) == position
    assert offsets_from_json(json.loads(json.dumps(offsets_to_json(offsets)))) == offsets


def test_no_position_is_the_start() -> None:
    assert position_from("s", None) == Position()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"format": 2, "rows": 0, "invalid_records": 0, "offsets": {}},
        {"format": 1, "rows": -1, "invalid_records": 0, "offsets": {}},
        {"format": 1, "rows": 0, "invalid_records": 0, "offsets": {"a": [1]}},
        {"format": 1, "rows": 0, "invalid_records": 0, "offsets": {"a": {"x": 1}}},
        {"format": 1, "rows": 0, "invalid_records": 0, "offsets": {"a": {"0": "1"}}},
        {"format": 1, "rows": 0, "invalid_records": 0, "offsets": {"a": {"0": -1}}},
    ],
)
def test_what_is_no_position_is_an_error(document: object) -> None:
    with pytest.raises(InputError, match="source 's': not a position of this version"):
        position_from("s", document)  # type: ignore[arg-type]
