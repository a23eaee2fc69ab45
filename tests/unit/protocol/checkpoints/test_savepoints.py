"""Savepoints at the coordinator of checkpoints, as histories: when one is taken, copied, published, given up."""

from __future__ import annotations

import pytest

from flinkplus.protocol.checkpoints.savepoints import ATTEMPTS, INPUT_ENDED
from flinkplus.protocol.vocabulary.effects import (
    CheckpointingEffect,
    CommitOutput,
    CopySavepoint,
    DropCheckpoint,
    EndSavepoint,
    OvertakeCheckpoint,
    PublishSavepoint,
    TriggerCheckpoint,
)
from flinkplus.protocol.vocabulary.events import (
    CheckpointDeclined,
    CheckpointsAbandoned,
    FinalCommitted,
    JobInterrupted,
    ManifestStored,
    OutputCommitted,
    QuiesceRequested,
    SavepointCopied,
    SavepointFailed,
    SavepointProgressed,
    SavepointRequested,
    SavepointStored,
    SourceExhausted,
    StopRequested,
    SubtasksReplaced,
    SubtasksStarted,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId
from tests.unit.protocol.checkpoints.test_checkpointing import (
    C1,
    C2,
    C3,
    C4,
    G1,
    G2,
    K0,
    S0,
    S1,
    SOURCES,
    SUBTASKS,
    History,
    acks,
    complete,
    exhausted,
    started,
    trigger,
)


def of(kind: type, found: list[CheckpointingEffect]) -> list[CheckpointingEffect]:
    return [effect for effect in found if isinstance(effect, kind)]


def copying(history: History, now_ms: int, checkpoint: CheckpointId, stop: bool = False) -> None:
    """A request whose checkpoint is complete and committed."""
    assert of(TriggerCheckpoint, history.at(now_ms, SavepointRequested(1, stop))) == [trigger(checkpoint)]
    history.at(now_ms + 1, *acks(checkpoint), ManifestStored(checkpoint))
    assert history.machine.savepoint_phase == "complete"
    found = history.at(now_ms + 2, OutputCommitted(checkpoint))
    assert of(CopySavepoint, found) == [CopySavepoint(1, checkpoint, stop)]


def test_the_whole_life_of_a_savepoint() -> None:
    history = started()
    copying(history, 10, C1)
    assert history.machine.savepoint_phase == "copying"
    assert history.at(20, SavepointCopied(1)) == [PublishSavepoint(1)]
    assert history.at(30, SavepointStored(1)) == [EndSavepoint(1, C1, "")]
    assert history.at(31, SavepointStored(1), SavepointCopied(1), SavepointFailed(1, "late")) == []


def test_one_at_a_time_and_answers_for_others_have_no_effect() -> None:
    history = started()
    copying(history, 10, C1)
    (refused,) = of(EndSavepoint, history.at(11 + 2, SavepointRequested(2, True)))
    assert isinstance(refused, EndSavepoint) and refused.number == 2 and refused.checkpoint is None
    assert history.at(14, SavepointCopied(2), SavepointStored(2), SavepointFailed(2, "another")) == []
    assert history.machine.savepoint_phase == "copying"
    assert history.at(15, SavepointStored(1)) == [], "it is not being published yet"


def test_its_checkpoint_is_aligned_in_a_job_whose_others_are_not() -> None:
    history = started(aligned_timeout_ms=0)
    assert of(OvertakeCheckpoint, history.at(10, SavepointRequested(1, False))) == []
    assert of(OvertakeCheckpoint, history.time(500)) == []
    found = history.at(600, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
    assert of(OvertakeCheckpoint, found) == [OvertakeCheckpoint(C2, G1)]


def test_it_waits_for_the_checkpoint_under_way() -> None:
    history = started()
    assert history.time(100) == [trigger(C1)]
    assert history.at(110, SavepointRequested(1, False)) == []
    complete_one = history.at(120, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
    assert of(TriggerCheckpoint, complete_one) == [trigger(C2)]
    assert of(CopySavepoint, complete_one) == [], "the savepoint is of its own checkpoint"


def test_its_checkpoint_is_kept_until_it_is_copied() -> None:
    history = started(retained=1)
    copying(history, 10, C1)
    for now_ms, checkpoint in ((200, C2), (400, C3)):
        history.time(now_ms)
        found = history.at(now_ms + 1, *acks(checkpoint), ManifestStored(checkpoint), OutputCommitted(checkpoint))
        assert of(DropCheckpoint, found) == []
    assert of(TriggerCheckpoint, history.at(500, SavepointCopied(1), SavepointStored(1))) == [trigger(C4)]
    dropped = history.at(601, *acks(C4), ManifestStored(C4), OutputCommitted(C4))
    assert of(DropCheckpoint, dropped) == [DropCheckpoint(C1), DropCheckpoint(C2), DropCheckpoint(C3)]


def test_checkpoints_go_on_beside_a_copy() -> None:
    history = started()
    copying(history, 10, C1)
    assert of(TriggerCheckpoint, history.time(200)) == [trigger(C2)]


def test_a_stop_holds_every_other_checkpoint_and_then_the_job_stops() -> None:
    history = started()
    copying(history, 10, C1, stop=True)
    assert history.time(1_000) == [] and history.machine.next_deadline_ms() == 12 + 5_000
    assert history.at(1_001, *exhausted()) == [], "not even the last one"
    history.at(1_002, SavepointCopied(1))
    assert history.at(1_003, SavepointStored(1))[:2] == [EndSavepoint(1, C1, ""), StopRequested()]


def test_a_stop_that_fails_lets_go_of_the_other_checkpoints() -> None:
    history = started()
    copying(history, 10, C1, stop=True)
    assert history.at(1_001, *exhausted()) == []
    found = history.at(1_002, SavepointFailed(1, "no space"))
    assert found == [EndSavepoint(1, None, "no space"), trigger(C2, final=True)]


def test_a_failover_or_rollback_has_it_try_again_as_often_as_it_takes() -> None:
    history = started()
    history.at(0, SavepointRequested(1, True))
    for number in range(1, ATTEMPTS + 3):
        found = history.at(10 * number, SubtasksReplaced(((K0, CheckpointId(0)),)))
        assert of(EndSavepoint, found) == []
        assert of(TriggerCheckpoint, found) == [trigger(CheckpointId(number + 1))]
    assert of(EndSavepoint, history.at(100, JobInterrupted(), QuiesceRequested())) == []
    assert history.machine.savepoint_phase == "waiting"
    found = history.at(110, SubtasksStarted(SUBTASKS, SOURCES, G2))
    assert of(TriggerCheckpoint, found) == [TriggerCheckpoint(CheckpointId(ATTEMPTS + 4), SOURCES, False, G2)]


def test_it_fails_when_its_checkpoints_are_aborted_for_other_reasons() -> None:
    history = started()
    history.at(0, SavepointRequested(1, False))
    for number in range(1, ATTEMPTS + 1):
        found = history.at(number, CheckpointDeclined(CheckpointId(number), S1, G1, "disk full"))
        ended = of(EndSavepoint, found)
        assert bool(ended) == (number == ATTEMPTS)
    (end,) = ended
    assert isinstance(end, EndSavepoint) and "disk full" in end.reason


def test_a_copy_survives_a_rollback_to_its_checkpoint_and_not_one_behind_it() -> None:
    history = started()
    history.time(100)
    complete(history, 101, C1)
    copying(history, 110, C2)
    history.at(120, JobInterrupted(), QuiesceRequested())
    assert of(EndSavepoint, history.at(130, CheckpointsAbandoned(C2))) == []
    found = history.at(140, CheckpointsAbandoned(C1))
    assert [type(effect) for effect in found] == [EndSavepoint, DropCheckpoint]
    assert isinstance(found[0], EndSavepoint) and found[0].checkpoint is None


def test_a_copy_without_progress_is_given_up() -> None:
    history = started()
    copying(history, 10, C1, stop=True)
    assert history.at(4_000, SavepointProgressed(1), SavepointProgressed(7)) == []
    assert of(EndSavepoint, history.time(8_999)) == []
    (end,) = of(EndSavepoint, history.time(9_000))
    assert isinstance(end, EndSavepoint) and "no progress within 5000 ms" in end.reason


@pytest.mark.parametrize("before", [True, False])
def test_a_job_whose_input_has_ended_finishes_by_itself(before: bool) -> None:
    history = started()
    if before:
        history.at(10, *exhausted())
        found = history.at(11, SavepointRequested(1, True))
        assert of(EndSavepoint, found) == [EndSavepoint(1, None, INPUT_ENDED)]
        found = history.at(12, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
        assert FinalCommitted(C1) in found
        return
    history.at(10, SavepointRequested(1, False))
    history.at(11, SourceExhausted(S0, G1))
    assert of(TriggerCheckpoint, history.at(12, SourceExhausted(S1, G1))) == [trigger(C2, final=True)]
    found = history.at(13, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
    assert of(CopySavepoint, found) == [CopySavepoint(1, C1, False)], "its checkpoint was under way already"
    assert of(CommitOutput, found) == [CommitOutput(C1, False)]
