"""Which two losses of processes are put down to the same input, and which are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkplus.protocol.job.crashes import KEPT_CHECKPOINTS, MAX_PLACES, Crashes, Place
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId

C0, C1 = SubtaskId("count", 0), SubtaskId("count", 1)
ONE, TWO = CheckpointId(1), CheckpointId(2)
KILLED = Place(C0, "native", "0:1->0#17", (100, 110))
CRASHED = replace(KILLED, signal="Segmentation fault")
READ = Place(C0, "native", "", (100, 110))


def blamed(first: Place, second: Place) -> Place | None:
    crashes = Crashes()
    assert crashes.ended(first, ONE) is None
    return crashes.ended(second, ONE)


def test_the_second_end_at_the_same_message_is_put_down_to_it() -> None:
    assert blamed(KILLED, KILLED) == KILLED


def test_the_row_is_named_when_one_of_the_two_knew_it() -> None:
    known = replace(KILLED, row="Row(i=3)")
    assert blamed(KILLED, known) == blamed(known, KILLED) == known
    assert "Row(i=3)" in str(known) and "0:1->0#17" in str(known)


@pytest.mark.parametrize(
    "other",
    [
        replace(KILLED, message="0:1->0#18"),
        replace(KILLED, subtask=C1),
        replace(KILLED, operator="sum"),
        replace(KILLED, message="0:1->0#18", signal="Aborted"),
    ],
)
def test_a_process_that_is_killed_twice_at_different_steps_is_no_input_s_fault(other: Place) -> None:
    assert blamed(KILLED, other) is None


def test_rows_of_a_source_are_the_same_when_they_overlap_however_they_were_cut() -> None:
    assert blamed(READ, replace(READ, rows=(109, 140))) is not None
    assert blamed(READ, replace(READ, rows=(110, 140))) is None
    assert blamed(READ, replace(READ, rows=(90, 100))) is None


def test_two_crashes_in_the_same_operator_are_the_same_though_messages_were_cut_in_another_way() -> None:
    assert blamed(CRASHED, replace(CRASHED, message="0:2->0#3")) is not None


def test_crashes_at_different_rows_are_different() -> None:
    first, second = (replace(CRASHED, row=f"Row(i={number})") for number in (3, 4))
    assert blamed(first, second) is None


def test_a_place_is_remembered_for_so_many_checkpoints() -> None:
    crashes = Crashes()
    crashes.ended(CRASHED, ONE)
    crashes.on_progress(CheckpointId(1 + KEPT_CHECKPOINTS))
    assert crashes.ended(CRASHED, TWO) is not None, "barriers may lie before the input"
    crashes.on_progress(CheckpointId(2 + KEPT_CHECKPOINTS))
    assert crashes.ended(CRASHED, TWO) is None


def test_no_more_than_so_many_places_are_remembered() -> None:
    crashes = Crashes()
    for number in range(MAX_PLACES + 1):
        crashes.ended(replace(KILLED, message=f"0:1->0#{number}"), ONE)
    assert crashes.ended(replace(KILLED, message="0:1->0#1"), ONE) is not None
    assert crashes.ended(replace(KILLED, message="0:1->0#0"), ONE) is None
