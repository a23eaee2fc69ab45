"""Which records come next, and when a partition is full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import InputError
from flinkplus.sources.kafka.buffers import LEAST_SHARE_BYTES, PATIENCE_S, Buffers
from flinkplus.sources.kafka.partitions import MAX_RECORDS, Partition
from tests.unit.sources.kafka.records import chunk

A, B = Partition("t", 0), Partition("t", 1)


def buffers(*partitions: Partition, limit: int = 1 << 20) -> Buffers:
    made = Buffers(limit)
    for partition in partitions:
        made.open(partition, 0.0)
    return made


def taken(made: Buffers, partition: Partition, count: int) -> list[int]:
    return [o for batch in made.take(partition, count, 0.0).batches for o in batch.column("o").to_pylist()]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.lists(st.integers(1, 7), min_size=1, max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_records_are_taken_in_order_whatever_the_chunks_are(
    sizes: list[int], counts: list[int], skipped: set[int]
) -> None:
    made, offsets, begin = buffers(A), [], 0
    for size in sizes:
        group = [begin + n for n in range(size)]
        made.add(A, chunk([2 * n for n in group], without_row=[2 * n for n in group if n in skipped]))
        offsets += group
        begin += size
    rows: list[int] = []
    without = 0
    for count in counts:
        found = made.next(count, 0.0)
        if found is None:
            break
        assert found[0] == A and 1 <= found[1] <= count
        done = made.take(A, found[1], 0.0)
        rows += [o for batch in done.batches for o in batch.column("o").to_pylist()]
        without += done.without_row
        assert done.next_offset == 2 * (len(rows) + without - 1) + 1
    read = offsets[: len(rows) + without]
    assert rows == [2 * n for n in read if n not in skipped]


def test_the_lowest_timestamp_comes_first() -> None:
    made = buffers(A, B)
    made.add(A, chunk([0, 1], time=20))
    made.add(B, chunk([0, 1], time=10))
    assert made.next(1, 0.0) == (B, 1)
    taken(made, B, 2)
    made.reached_end(B)
    assert made.next(5, 0.0) == (A, 2)


def test_a_partition_that_has_more_in_the_broker_is_waited_for() -> None:
    made = buffers(A, B)
    made.add(A, chunk([0], time=20))
    assert made.next(5, 0.1) is None
    assert made.due_s() == PATIENCE_S
    assert made.next(5, PATIENCE_S) == (A, 1)  # but not for ever
    made.reached_end(B)
    assert made.next(5, 0.1) == (A, 1)
    assert made.due_s() is None


def test_without_timestamps_partitions_take_turns_and_none_waits() -> None:
    made = buffers(A, B, Partition("t", 2))
    made.add(A, chunk([0, 1, 2]))
    made.add(B, chunk([0, 1, 2]))
    order = []
    while (found := made.next(1, 0.0)) is not None:
        order.append(found[0])
        taken(made, *found)
    assert order == [A, B, A, B, A, B]


def test_a_record_that_cannot_be_read_is_reached_after_those_before_it_and_stays() -> None:
    made = buffers(A)
    made.add(A, chunk([0, 1]))
    made.add(A, chunk([2], failure=InputError("bad")))
    made.add(A, chunk([3]))
    assert made.next(10, 0.0) == (A, 2)
    assert taken(made, A, 1) == [0]
    assert made.next(10, 0.0) == (A, 1)
    assert taken(made, A, 1) == [1]
    assert made.next(10, 0.0) == (A, 1)
    for _ in range(2):
        with pytest.raises(InputError, match="bad"):
            made.take(A, 1, 0.0)


def test_a_choice_has_no_more_records_than_its_number_can_say() -> None:
    made = buffers(A)
    for begin in (0, 50_000):
        made.add(A, chunk(np.arange(begin, begin + 50_000).tolist()))
    assert made.next(1_000_000, 0.0) == (A, MAX_RECORDS)
    assert len(taken(made, A, MAX_RECORDS)) == MAX_RECORDS


def test_a_partition_is_full_beyond_its_share_and_has_room_below_half_of_it() -> None:
    made = buffers(A, B, limit=4 * LEAST_SHARE_BYTES)
    part = LEAST_SHARE_BYTES // 2
    for number in range(5):
        made.add(A, chunk([number], size=part))
    assert made.full() == {A}
    taken(made, A, 2)
    assert made.full() == {A}
    taken(made, A, 1)
    assert made.full() == set()


def test_a_replay_gets_what_it_needs_beyond_the_limit() -> None:
    made = buffers(A)
    for number in range(3):
        made.add(A, chunk([number], size=LEAST_SHARE_BYTES))
    assert made.full() == {A}
    assert made.records(A, 4) == 3
    assert made.full() == set()
    made.add(A, chunk([3], size=LEAST_SHARE_BYTES))
    assert made.records(A, 4) == 4
    assert made.full() == {A}
    assert taken(made, A, 4) == [0, 1, 2, 3]


def test_a_partition_that_was_not_opened_has_no_records() -> None:
    assert buffers(A).records(B, 1) is None


def test_whether_all_is_read() -> None:
    made = buffers(A, B)
    made.add(A, chunk([0]))
    made.reached_end(A)
    before = made.has_records, made.read_to_end()
    taken(made, A, 1)
    assert before == (True, set())
    assert (made.has_records, made.read_to_end()) == (False, {A})
