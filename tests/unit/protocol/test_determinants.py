"""Determinants: packed, told once to each receiver, kept until nobody goes back before them, merged from survivors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.determinants import (
    MAX_VALUE,
    Choice,
    KnownSteps,
    StepLog,
    decode_run,
    encode_run,
    merge,
    pack,
    unpack,
)
from flinkplus.protocol.ids import CheckpointId, SubtaskId

SOURCE = SubtaskId("source", 3)
OTHER = SubtaskId("source", 4)


@given(st.sampled_from(list(Choice)), st.integers(0, MAX_VALUE))
def test_a_determinant_survives_packing(choice, value):
    assert unpack(pack(choice, value)) == (choice, value)


@given(st.integers(0, 2**60), st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_a_run_survives_encoding(first, determinants):
    assert decode_run(encode_run(first, determinants)) == (first, tuple(determinants))


@pytest.mark.parametrize("data", [b"", b"1234567", encode_run(1, [1, 2])[:-1], encode_run(1, [1, 2]) + b"x"])
def test_a_malformed_run_is_refused(data):
    with pytest.raises(PeerProtocolError):
        decode_run(data)


def test_an_unknown_choice_and_a_value_out_of_range_are_refused():
    with pytest.raises(PeerProtocolError):
        unpack(7)
    with pytest.raises(InvariantViolation):
        pack(Choice.READ, MAX_VALUE + 1)


def test_each_receiver_is_told_what_it_was_not_told_before():
    log = StepLog(10)
    log.begin(Choice.READ, 5)
    log.begin(Choice.READ, 6)
    assert decode_run(log.since(10)) == (10, (pack(Choice.READ, 5), pack(Choice.READ, 6)))
    assert decode_run(log.since(11)) == (11, (pack(Choice.READ, 6),))
    assert log.since(12) == b""
    log.clear()
    assert log.next_step == 12
    with pytest.raises(InvariantViolation):
        log.since(11)


def test_a_receiver_keeps_one_run_and_lets_go_what_is_complete():
    known = KnownSteps()
    known.learn(SOURCE, encode_run(0, [8, 16]))
    known.barrier(CheckpointId(1), SOURCE)
    known.learn(SOURCE, encode_run(2, [24]))
    known.learn(OTHER, encode_run(5, [8]))
    assert known.of(SOURCE) == (0, (8, 16, 24))
    known.complete(CheckpointId(1))
    assert known.of(SOURCE) == (2, (24,))
    assert known.of(OTHER) == (5, (8,))
    assert known.of(SubtaskId("source", 9)) is None


def test_what_is_told_twice_counts_once_and_a_gap_is_refused():
    known = KnownSteps()
    known.learn(SOURCE, encode_run(0, [8, 16]))
    known.learn(SOURCE, encode_run(1, [16, 24]))
    assert known.of(SOURCE) == (0, (8, 16, 24))
    with pytest.raises(PeerProtocolError):
        known.learn(SOURCE, encode_run(4, [8]))


def test_an_aborted_checkpoint_is_let_go_with_the_next_complete_one():
    known = KnownSteps()
    known.learn(SOURCE, encode_run(0, [8]))
    known.barrier(CheckpointId(1), SOURCE)
    known.learn(SOURCE, encode_run(1, [16]))
    known.barrier(CheckpointId(2), SOURCE)
    known.complete(CheckpointId(2))
    assert known.of(SOURCE) is None
    known.complete(CheckpointId(1))  # late
    assert known.of(SOURCE) is None


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.data())
def test_survivors_know_together_what_any_of_them_knows(steps, data):
    first = data.draw(st.integers(0, 5))
    runs = [(0, tuple(steps[: data.draw(st.integers(0, len(steps)))])) for _ in range(3)]
    longest = max(len(run[1]) for run in runs)
    assert merge(first, runs) == tuple(steps[first:longest])


def test_survivors_never_disagree_and_never_leave_a_gap():
    with pytest.raises(InvariantViolation):
        merge(0, [(0, (8, 16)), (0, (8, 24))])
    with pytest.raises(InvariantViolation):
        merge(0, [(1, (8,))])
    assert merge(3, [(1, (8,)), (0, (16,))]) == ()
