"""Determinants: packed, told once to each receiver, kept until nobody goes back before them, merged from survivors."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.determinants.determinants import (
    MAX_VALUE,
    AncestorLog,
    Choice,
    KnownSteps,
    StepClock,
    StepLog,
    decode_spans,
    encode_ancestor,
    encode_span,
    merge,
    pack,
    unite,
    unpack,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId

SOURCE = SubtaskId("source", 3)
OTHER = SubtaskId("source", 4)
SOURCE_NUMBER = 3


@given(st.sampled_from(list(Choice)), st.integers(0, MAX_VALUE))
def test_a_determinant_survives_packing(choice, value):
    assert unpack(pack(choice, value)) == (choice, value)


@given(st.lists(st.integers(0, 1 << 44), min_size=1), st.integers(0, 1 << 42))
def test_a_clock_that_is_told_what_another_read_says_the_same(times, start):
    read, told = StepClock(start), StepClock(start)
    latest = start
    for wall_ms in times:
        choices = read.read(wall_ms)
        assert [choice for choice, _ in choices] in ([Choice.CLOCK], [Choice.ERA, Choice.CLOCK])
        for choice, value in choices:
            read.move(choice, value)
            told.move(*unpack(pack(choice, value)))
        latest = max(latest, wall_ms)
        assert read.ms == told.ms == latest


def test_a_clock_that_was_read_lately_needs_one_byte():
    clock = StepClock(1_700_000_000_000)
    [(choice, value)] = clock.read(1_700_000_000_020)
    assert len(encode_span(5, [pack(choice, value)])) == len(encode_span(5, [pack(Choice.INPUT, 0)]))


wide = st.sampled_from([2**8, 2**16, 2**32]).flatmap(lambda top: st.lists(st.integers(0, top - 1), max_size=20))
runs = st.tuples(st.sampled_from([2**16, 2**32, 2**64]).flatmap(lambda top: st.integers(0, top - 1)), wide.map(tuple))


@given(runs, st.lists(st.tuples(st.integers(0, 2**24 - 1), runs), max_size=4))
def test_runs_survive_encoding(own, ancestors):
    data = encode_span(*own) + b"".join(encode_ancestor(number, *run) for number, run in ancestors)
    assert decode_spans(data) == (own, tuple((number, *run) for number, run in ancestors))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff1234567",
        encode_span(1, [1, 2])[:-1],
        encode_span(1, [1] * 20)[:-1],
        encode_span(1, [1, 2]) + b"x",
        encode_span(1, []) + encode_ancestor(1, 2, [3])[:-1],
    ],
)
def test_malformed_runs_are_refused(data):
    with pytest.raises(PeerProtocolError):
        decode_spans(data)


def test_a_determinant_takes_few_bytes():
    assert len(encode_span(1_000, [pack(Choice.READ, 600)])) == 5
    assert len(encode_span(100_000, [pack(Choice.INPUT, 7)])) == 6
    assert len(encode_ancestor(1 << 16, 1_000, [pack(Choice.READ, 600)])) == 8


def test_every_number_is_a_choice_and_a_value_and_a_value_out_of_range_is_refused():
    assert sorted(unpack(number)[0] for number in range(1 << 3)) == sorted(Choice)
    with pytest.raises(InvariantViolation):
        pack(Choice.READ, MAX_VALUE + 1)


def test_each_receiver_is_told_what_it_was_not_told_before():
    log = StepLog(10)
    log.begin(Choice.READ, 5)
    log.begin(Choice.READ, 6)
    assert decode_spans(log.since(10)) == ((10, (pack(Choice.READ, 5), pack(Choice.READ, 6))), ())
    assert decode_spans(log.since(11)) == ((11, (pack(Choice.READ, 6),)), ())
    assert log.since(12) == b""
    log.clear()
    assert log.next_step == 12
    with pytest.raises(InvariantViolation):
        log.since(11)


def test_a_receiver_keeps_one_run_and_lets_go_what_is_complete():
    known = KnownSteps()
    known.learn(SOURCE, 0, [8, 16])
    known.barrier(CheckpointId(1), SOURCE, 2)
    known.learn(SOURCE, 2, [24])
    known.learn(OTHER, 5, [8])
    assert known.of(SOURCE) == (0, (8, 16, 24))
    known.complete(CheckpointId(1))
    assert known.of(SOURCE) == (2, (24,))
    assert known.of(OTHER) == (5, (8,))
    assert known.of(SubtaskId("source", 9)) is None
    assert set(known.subtasks()) == {SOURCE, OTHER}


def test_what_is_told_twice_counts_once_and_a_gap_is_refused():
    known = KnownSteps()
    known.learn(SOURCE, 0, [8, 16])
    known.learn(SOURCE, 1, [16, 24])
    known.learn(SOURCE, 0, [8])
    assert known.of(SOURCE) == (0, (8, 16, 24))
    with pytest.raises(PeerProtocolError, match="begin at step 4"):
        known.learn(SOURCE, 4, [8])
    with pytest.raises(PeerProtocolError, match="differ from the known ones"):
        known.learn(SOURCE, 1, [17])
    assert known.of(SOURCE) == (0, (8, 16, 24))


def test_an_aborted_checkpoint_is_let_go_with_the_next_complete_one():
    known = KnownSteps()
    known.learn(SOURCE, 0, [8])
    known.barrier(CheckpointId(1), SOURCE, 1)
    known.learn(SOURCE, 1, [16])
    known.barrier(CheckpointId(2), SOURCE, 2)
    known.complete(CheckpointId(2))
    assert known.of(SOURCE) is None
    known.complete(CheckpointId(1))  # late
    assert known.of(SOURCE) is None


def test_a_barrier_comes_before_the_same_step_on_every_path():
    known = KnownSteps()
    known.learn(SOURCE, 0, [8, 16])
    known.barrier(CheckpointId(1), SOURCE, 2)
    known.barrier(CheckpointId(1), SOURCE, 2)
    with pytest.raises(PeerProtocolError, match="barrier 1 came before step 2 and before step 1"):
        known.barrier(CheckpointId(1), SOURCE, 1)


def test_a_successor_knows_what_it_was_told_until_it_is_sent_again():
    """What is sent again begins at its version; what it was told may begin earlier, and go further."""
    known = KnownSteps({SOURCE: (3, (8, 16, 24, 32)), OTHER: (0, (8,))})
    assert known.of(SOURCE) == (3, (8, 16, 24, 32))
    known.learn(SOURCE, 4, [16])
    assert known.of(SOURCE) == (4, (16, 24, 32))
    known.learn(SOURCE, 5, [24, 32, 40])
    assert known.of(SOURCE) == (4, (16, 24, 32, 40))
    with pytest.raises(PeerProtocolError):
        known.learn(SOURCE, 4, [99])
    known.learn(OTHER, 5, [8])
    assert known.of(OTHER) == (5, (8,)), "what it was told lies before its version"
    assert sorted(known.subtasks()) == [SOURCE, OTHER]


def test_what_was_told_goes_when_a_checkpoint_is_complete():
    known = KnownSteps({SOURCE: (0, (8, 16)), OTHER: (0, (8,))})
    known.complete(CheckpointId(4))  # the version that it began from
    assert known.of(OTHER) == (0, (8,))
    known.learn(SOURCE, 0, [8])
    known.barrier(CheckpointId(5), SOURCE, 1)
    known.complete(CheckpointId(5))
    assert known.of(SOURCE) == (1, (16,))
    assert known.of(OTHER) is None


# --------------------------------------------------------------------------------------------- passing on


def test_an_ancestors_steps_are_passed_on_once_to_each_receiver_whatever_paths_they_came():
    log = AncestorLog()
    log.take(1, 10, (8, 16))
    first = log.end
    log.take(1, 10, (8, 16, 24))
    log.take(2, 0, (40,))
    log.take(1, 11, (16,))
    assert told(log.since(0)) == ((1, 10, (8, 16, 24)), (2, 0, (40,)))
    assert told(log.since(first)) == ((1, 12, (24,)), (2, 0, (40,)))
    assert log.since(log.end) == b""
    with pytest.raises(PeerProtocolError, match="begin at 14, after the known 13"):
        log.take(1, 14, (8,))


def test_a_barrier_names_every_ancestor_and_the_log_begins_anew():
    log = AncestorLog()
    log.take(2, 0, (8,))
    log.take(1, 5, ())
    assert told(log.since(log.end, name_all=True)) == ((1, 5, ()), (2, 1, ()))
    before = log.end
    log.clear()
    assert log.end == before
    log.take(2, 0, (8, 16))
    assert told(log.since(before)) == ((2, 1, (16,)),)


def told(data):
    return decode_spans(encode_span(0, ()) + data)[1]


@given(st.data())
def test_receivers_over_any_paths_know_what_their_messages_depend_on_and_no_more_than_there_is(data):
    """A source; in between, relays that take its messages and each other's; at the end, receivers that hear of some of
    the relays. Against the obvious way: a copy of all that was known travels with each message."""
    steps: list[int] = []
    checkpoint = 0
    relays = [AncestorLog() for _ in range(2)]
    sent = [0, 0]  # of the source's steps, to each relay
    depends = [0, 0]
    receivers = [KnownSteps() for _ in range(2)]
    positions = {(relay, receiver): 0 for relay in range(2) for receiver in range(2)}
    expected = [0, 0]
    kept = 0
    for action in data.draw(st.lists(st.sampled_from(["step", "relay", "pass", "deliver", "checkpoint"]), max_size=40)):
        relay, receiver = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
        if action == "step":
            steps.append(data.draw(st.integers(0, 9)))
        elif action == "relay":
            relays[relay].take(SOURCE_NUMBER, sent[relay], tuple(steps[sent[relay] :]))
            sent[relay] = depends[relay] = len(steps)
        elif action == "pass":  # the whole of what one knows, to the other: it overlaps with what came directly
            if depends[relay] > kept:
                relays[1 - relay].take(SOURCE_NUMBER, kept, tuple(steps[kept : depends[relay]]))
                depends[1 - relay] = max(depends)
        elif action == "deliver":
            news = told(relays[relay].since(positions[relay, receiver]))
            positions[relay, receiver] = relays[relay].end
            for _, first, determinants in news:
                receivers[receiver].learn(SOURCE, first, determinants)
            expected[receiver] = max(expected[receiver], depends[relay])
        else:
            checkpoint += 1
            for relay in range(2):
                relays[relay].take(SOURCE_NUMBER, sent[relay], tuple(steps[sent[relay] :]))
                sent[relay] = depends[relay] = len(steps)
                for receiver in range(2):
                    for _, first, determinants in told(relays[relay].since(positions[relay, receiver], name_all=True)):
                        receivers[receiver].learn(SOURCE, first, determinants)
                        receivers[receiver].barrier(CheckpointId(checkpoint), SOURCE, first + len(determinants))
                relays[relay].clear()
                positions.update({(relay, receiver): relays[relay].end for receiver in range(2)})
            kept = len(steps)
            expected = [kept, kept]
            for known in receivers:
                known.complete(CheckpointId(checkpoint))
        for known, end in zip(receivers, expected, strict=True):
            assert known.of(SOURCE) == ((kept, tuple(steps[kept:end])) if end > kept else None)


# ----------------------------------------------------------------------------------- what survivors know together


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.data())
def test_runs_are_united_to_as_few_as_there_can_be(steps, data):
    spans = data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
    runs = [(start, tuple(steps[start:end])) for start, end in spans if start < min(end, len(steps))]
    united = unite(runs)
    covered = {first + at for first, found in runs for at in range(len(found))}
    assert {first + at for first, found in united for at in range(len(found))} == covered
    assert all(tuple(steps[first : first + len(found)]) == found for first, found in united)
    assert all(a[0] + len(a[1]) < b[0] for a, b in pairwise(united))


def test_runs_that_disagree_stay_apart_and_are_refused():
    united = unite([(0, (8, 16)), (1, (17, 24))])
    assert united == ((0, (8, 16)), (1, (17, 24)))
    with pytest.raises(InvariantViolation):
        merge(0, united)


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
