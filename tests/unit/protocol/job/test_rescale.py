"""Another parallelism in the machine of the job: a planned interruption, after which there are other subtasks."""

from __future__ import annotations

from typing import Any

import pytest

from flinkplus.errors import InvariantViolation
from flinkplus.protocol.vocabulary.effects import (
    ChangeSubtasks,
    DeploySubtasks,
    EndJob,
    FenceOutput,
    HaltSubtasks,
    JobState,
    ReportRescale,
    RescaleCheckpoint,
    StartSubtasks,
    StopSlots,
)
from flinkplus.protocol.vocabulary.events import (
    CancelRequested,
    CheckpointCompleted,
    CheckpointRescaled,
    CommitsQuiesced,
    OutputFenced,
    RescaleRequested,
    RescalingFailed,
    SlotDeployed,
    SlotLost,
    SlotRegistered,
    SlotStopped,
    SpareAdded,
    SpareRemoved,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from tests.unit.protocol.job.test_job import (
    ASSIGNMENT,
    BOTH,
    G1,
    G2,
    G3,
    INTERRUPTED,
    ONE,
    TWO,
    History,
    deployed,
    failed,
    running,
    with_recipes,
    without_phases,
)

AFTER = tuple(sorted(SubtaskId(vertex, index) for vertex in ("lines", "count") for index in range(3)))
PLACES = tuple((subtask, (0, 1, 7)[subtask.index]) for subtask in AFTER)
GROW = RescaleRequested(AFTER, (0, 1, 7))
DEPLOYED = tuple(SlotDeployed(G2, slot) for slot in (0, 1, 7))


def ready(**options: Any) -> History:
    """A running job with a complete checkpoint and one slot more than it needs."""
    history = running(**options)
    assert history.at(30, CheckpointCompleted(ONE), SpareAdded(7), SlotRegistered(7, 1)) == []
    return history


def dividing(**options: Any) -> History:
    history = ready(**options)
    assert without_phases(history.at(40, GROW)) == [HaltSubtasks(G1), *INTERRUPTED]
    assert without_phases(history.at(45, CommitsQuiesced())) == [RescaleCheckpoint(ONE, AFTER)]
    return history


def fencing() -> History:
    """An interrupted job whose rows are visible at once: its sinks are asked whether rows behind the checkpoint are."""
    history = with_recipes()
    history.at(10, *BOTH, OutputFenced(G1), *deployed(G1))
    history.at(30, CheckpointCompleted(ONE), SpareAdded(7), SlotRegistered(7, 1))
    history.at(40, GROW)
    assert without_phases(history.at(45, CommitsQuiesced())) == [FenceOutput(G2, ONE)]
    return history


def test_output_is_fenced_for_the_old_subtasks_and_then_for_the_new_ones() -> None:
    history = fencing()
    assert history.at(50, OutputFenced(G2)) == [RescaleCheckpoint(ONE, AFTER)]
    found = history.at(60, CheckpointRescaled(TWO))
    assert found == [ChangeSubtasks(AFTER, (0, 1, 7)), FenceOutput(G2, TWO)], "their progress is another"
    assert without_phases(history.at(70, OutputFenced(G2))) == [DeploySubtasks(G2, TWO, PLACES)]


def test_rows_behind_the_checkpoint_call_a_rescale_off() -> None:
    """Only the old subtasks can make them again."""
    history = fencing()
    found = without_phases(history.at(50, OutputFenced(G2, repeats=True)))
    why = "rows behind checkpoint 1 are visible"
    assert found == [ReportRescale("refused", why), DeploySubtasks(G2, ONE, ASSIGNMENT)]
    assert without_phases(history.at(60, *deployed(G2))) == [StartSubtasks(G2)]


def test_a_division_that_fails_needs_no_other_fence() -> None:
    history = fencing()
    history.at(50, OutputFenced(G2))
    found = without_phases(history.at(60, RescalingFailed("no room")))
    assert found == [ReportRescale("cancelled", "no room"), DeploySubtasks(G2, ONE, ASSIGNMENT)]


def rescaled() -> History:
    history = dividing()
    found = without_phases(history.at(50, CheckpointRescaled(TWO)))
    assert found == [ChangeSubtasks(AFTER, (0, 1, 7)), DeploySubtasks(G2, TWO, PLACES)]
    assert without_phases(history.at(60, *DEPLOYED)) == [StartSubtasks(G2), ReportRescale("done")]
    return history


def test_a_job_grows_and_its_failures_are_those_of_the_new_subtasks() -> None:
    history = rescaled()
    assert history.state is JobState.RUNNING
    assert without_phases(history.at(70, SlotLost(7, 1, "died"))) == [HaltSubtasks(G2), *INTERRUPTED]
    assert without_phases(history.at(80, CommitsQuiesced())) == []
    assert without_phases(history.at(200, SlotRegistered(7, 2))) == [DeploySubtasks(G3, TWO, PLACES)]


def test_it_shrinks_and_the_slot_that_goes_is_a_spare_one() -> None:
    history = ready()
    one = (SubtaskId("count", 0), SubtaskId("lines", 0))
    history.at(40, RescaleRequested(one, (1,)), CommitsQuiesced(), CheckpointRescaled(TWO))
    assert history.at(50, SlotLost(0, 1, "died")) == [], "it is not waited for"
    assert without_phases(history.at(60, SlotDeployed(G2, 1))) == [StartSubtasks(G2), ReportRescale("done")]
    assert history.at(70, SpareRemoved(0), SlotLost(7, 1, "died")) == []
    assert history.state is JobState.RUNNING


def test_it_costs_nothing_of_what_failures_may_cost_and_has_no_delay() -> None:
    history = rescaled()
    for number in range(10):
        at_ms, generation = 100 + 10 * number, G2 + number
        checkpoint = CheckpointId(TWO + 2 * number)
        assert history.at(at_ms, CheckpointCompleted(CheckpointId(checkpoint + 1))) == []
        history.at(at_ms, GROW, CommitsQuiesced(), CheckpointRescaled(CheckpointId(checkpoint + 2)))
        found = history.at(at_ms, *(SlotDeployed(Generation(generation + 1), slot) for slot in (0, 1, 7)))
        assert ReportRescale("done") in found


def test_what_is_not_divided_continues_as_it_was() -> None:
    history = dividing()
    found = without_phases(history.at(50, RescalingFailed("operator 'odd' cannot be divided")))
    assert found == [
        ReportRescale("cancelled", "operator 'odd' cannot be divided"),
        DeploySubtasks(G2, ONE, ASSIGNMENT),
    ]
    assert history.at(60, SlotDeployed(G2, 0), CheckpointRescaled(TWO)) == [], "a late answer"


def test_a_newer_checkpoint_that_cannot_be_divided_is_continued_from_and_the_request_stays() -> None:
    history = dividing()
    found = without_phases(history.at(50, RescalingFailed("checkpoint 1 is unaligned", again=True)))
    assert found == [ReportRescale("refused", "checkpoint 1 is unaligned"), DeploySubtasks(G2, ONE, ASSIGNMENT)]
    assert GROW.slots != (0, 1) and without_phases(history.at(60, SlotDeployed(G2, 0), SlotDeployed(G2, 1))) == [
        StartSubtasks(G2)
    ]


def test_nobody_knows_which_subtasks_count() -> None:
    """Only the next run can find out, from what is in storage."""
    history = dividing()
    assert history.at(50, RescalingFailed("perhaps stored", certain=False)) == [StopSlots()]
    ended = history.at(60, *(SlotStopped(slot) for slot in (0, 1, 7)))
    assert ended == [EndJob(JobState.FAILED, None, "perhaps stored; resume the job", "rescale")]
    history = dividing()
    assert history.machine.next_deadline_ms() == 2_045
    assert history.time(2_045) == [StopSlots()]
    (ended_job,) = history.at(2_050, *(SlotStopped(slot) for slot in (0, 1, 7)))
    assert isinstance(ended_job, EndJob) and "not divided within 2000 ms; resume" in ended_job.reason


def test_it_is_refused_where_the_job_does_not_run_or_has_no_checkpoint() -> None:
    history = running()
    history.at(30, SpareAdded(7))
    assert history.at(30, GROW) == [ReportRescale("refused", "no checkpoint is complete yet")]
    history = ready()
    history.at(40, failed(G1))
    assert history.at(50, GROW) == [ReportRescale("refused", "the job is interrupted; try again when it runs")]
    history = dividing()
    assert history.at(50, GROW) == [ReportRescale("refused", "the job is being rescaled; try again when it runs")]


def test_a_failure_before_the_division_is_waited_out_with_it() -> None:
    history = ready()
    history.at(40, GROW)
    assert without_phases(history.at(41, SlotLost(1, 1, "died"))) == []
    assert without_phases(history.at(42, CommitsQuiesced())) == [RescaleCheckpoint(ONE, AFTER)]
    assert without_phases(history.at(50, CheckpointRescaled(TWO))) == [ChangeSubtasks(AFTER, (0, 1, 7))]
    assert without_phases(history.at(60, SlotRegistered(1, 2))) == [DeploySubtasks(G2, TWO, PLACES)]


def test_a_failure_of_the_new_deployment_rolls_back_to_the_divided_checkpoint() -> None:
    history = dividing()
    history.at(50, CheckpointRescaled(TWO))
    assert without_phases(history.at(55, SlotLost(7, 1, "died"))) == [HaltSubtasks(G2)]
    assert without_phases(history.at(300, SlotRegistered(7, 2))) == [DeploySubtasks(G3, TWO, PLACES)]
    found = history.at(310, *(SlotDeployed(G3, slot) for slot in (0, 1, 7)))
    assert without_phases(found) == [StartSubtasks(G3), ReportRescale("done")]


def test_a_job_that_is_cancelled_meanwhile_ends() -> None:
    history = dividing()
    assert history.at(50, CancelRequested()) == [StopSlots()]
    assert history.at(51, CheckpointRescaled(TWO)) == []
    ended = history.at(60, *(SlotStopped(slot) for slot in (0, 1, 7)))
    assert ended == [EndJob(JobState.CANCELLED, None, "cancelled", "")]


def test_impossible_requests_change_nothing() -> None:
    history = ready()
    for wrong in (RescaleRequested((), (0,)), RescaleRequested(AFTER, ()), RescaleRequested(AFTER, (0, 1, 9))):
        with pytest.raises(InvariantViolation):
            history.at(40, wrong)
    assert history.state is JobState.RUNNING
    history = dividing()
    with pytest.raises(InvariantViolation, match="a divided checkpoint is new"):
        history.at(50, CheckpointRescaled(ONE))
