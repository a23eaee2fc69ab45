"""The coordinator of checkpoints, told as histories: events in, the whole list of effects compared."""

from __future__ import annotations

import pytest

from flinkplus.errors import ConfigurationError, InvariantViolation, PeerProtocolError
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.vocabulary.config import CheckpointConfig
from flinkplus.protocol.vocabulary.effects import (
    AbortCheckpoint,
    CheckpointingEffect,
    CheckpointOutcome,
    CheckpointStats,
    CommitOutput,
    CompleteCheckpoint,
    DropCheckpoint,
    HoldOutput,
    OvertakeCheckpoint,
    RecordCheckpoint,
    ReportCommitDelay,
    StoreManifest,
    SweepState,
    TriggerCheckpoint,
)
from flinkplus.protocol.vocabulary.events import (
    CheckpointAcknowledged,
    CheckpointAdopted,
    CheckpointDeclined,
    CheckpointingEvent,
    CheckpointRequested,
    CheckpointsAbandoned,
    CommitAbandoned,
    CommitFailed,
    CommitsQuiesced,
    FinalAbandoned,
    FinalCommitted,
    JobInterrupted,
    ManifestFailed,
    ManifestStored,
    NumberTaken,
    OutputCommitted,
    QuiesceRequested,
    SourceExhausted,
    SubtasksReplaced,
    SubtasksStarted,
    TimeAdvanced,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause

S0, S1, K0 = SubtaskId("lines", 0), SubtaskId("lines", 1), SubtaskId("count+out", 0)
SUBTASKS, SOURCES = (S0, S1, K0), (S0, S1)
G1, G2 = Generation(1), Generation(2)
C1, C2, C3, C4, C5 = (CheckpointId(n) for n in range(1, 6))
RUNNING = SubtasksStarted(SUBTASKS, SOURCES, G1)


class History:
    """Feeds events at rising times and collects effects."""

    def __init__(self, config: CheckpointConfig, complete: tuple[CheckpointId, ...] = ()) -> None:
        first = CheckpointId(complete[-1] + 1 if complete else 1)
        self.machine = CheckpointCoordinator(config, first, complete)

    def at(self, now_ms: int, *events: CheckpointingEvent) -> list[CheckpointingEffect]:
        effects = [effect for event in events for effect in self.machine.step(now_ms, event)]
        deadline = self.machine.next_deadline_ms()
        assert deadline is None or deadline > now_ms, "a driver would spin"
        return effects

    def time(self, now_ms: int) -> list[CheckpointingEffect]:
        return self.at(now_ms, TimeAdvanced())


def started(complete: tuple[CheckpointId, ...] = (), **options: int | None) -> History:
    settings: dict[str, int | None] = {
        "interval_ms": 100,
        "timeout_ms": 1_000,
        "storage_timeout_ms": 5_000,
        "final_retry_ms": 0,
    }
    history = History(CheckpointConfig(**{**settings, **options}), complete)  # type: ignore[arg-type]
    assert [effect for effect in history.at(0, RUNNING) if not isinstance(effect, HoldOutput)] == []
    return history


def acks(checkpoint: CheckpointId, generation: Generation = G1) -> list[CheckpointingEvent]:
    return [CheckpointAcknowledged(checkpoint, subtask, generation, str(subtask)) for subtask in SUBTASKS]


def exhausted(generation: Generation = G1) -> list[CheckpointingEvent]:
    return [SourceExhausted(subtask, generation) for subtask in SOURCES]


def store(checkpoint: CheckpointId, final: bool = False, generation: Generation = G1) -> StoreManifest:
    return StoreManifest(checkpoint, tuple((subtask, str(subtask)) for subtask in sorted(SUBTASKS)), final, generation)


def trigger(checkpoint: CheckpointId, final: bool = False, generation: Generation = G1) -> TriggerCheckpoint:
    return TriggerCheckpoint(checkpoint, SOURCES, final, generation)


def kinds(effects: list[CheckpointingEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def without_records(effects: list[CheckpointingEffect]) -> list[CheckpointingEffect]:
    return [effect for effect in effects if not isinstance(effect, RecordCheckpoint)]


def complete(history: History, now_ms: int, checkpoint: CheckpointId) -> None:
    history.at(now_ms, *acks(checkpoint), ManifestStored(checkpoint), OutputCommitted(checkpoint))


# --------------------------------------------------------------------------------------------- one checkpoint


def test_the_whole_life_of_a_checkpoint() -> None:
    history = started()
    assert history.machine.next_deadline_ms() == 100
    assert history.time(99) == []
    assert history.time(100) == [trigger(C1)]
    first, second, third = acks(C1)
    assert history.at(110, first, second) == []
    assert history.at(120, third) == [store(C1)]
    stats = CheckpointStats(C1, G1, False, CheckpointOutcome.COMPLETE, "", 100, 120, 130, 3, 3)
    assert history.at(130, ManifestStored(C1)) == [
        CompleteCheckpoint(C1, G1),
        RecordCheckpoint(stats),
        CommitOutput(C1, False),
    ]
    assert history.at(140, OutputCommitted(C1)) == []
    assert history.machine.complete == (C1,)
    assert history.machine.next_deadline_ms() == 200


def test_nothing_is_complete_before_its_manifest_is_stored() -> None:
    history = started()
    history.time(100)
    assert kinds(history.at(110, *acks(C1))) == ["StoreManifest"]
    assert history.machine.complete == ()


def test_no_interval_no_periodic_checkpoints() -> None:
    history = started(interval_ms=None)
    assert history.machine.next_deadline_ms() is None
    assert history.time(1_000_000) == []
    assert history.at(1_000_001, CheckpointRequested()) == [trigger(C1)]


def test_a_declined_checkpoint_is_aborted_and_the_next_one_comes() -> None:
    history = started()
    history.time(100)
    history.at(105, acks(C1)[0])
    effects = history.at(110, CheckpointDeclined(C1, K0, G1, "disk full"))
    reason = "count+out[0] declined: disk full"
    outcome, cause = CheckpointOutcome.ABORTED, AbortCause.OTHER
    stats = CheckpointStats(C1, G1, False, outcome, reason, 100, None, 110, 1, 3, cause)
    assert effects == [AbortCheckpoint(C1, reason, G1), RecordCheckpoint(stats)]
    assert history.at(120, *acks(C1), CheckpointDeclined(C1, S0, G1, "late")) == []
    assert history.time(200) == [trigger(C2)]


def test_a_late_checkpoint_times_out_and_says_who_is_missing() -> None:
    history = started(interval_ms=10_000)
    history.time(10_000)
    history.at(10_100, *acks(C1)[:2])
    assert history.machine.next_deadline_ms() == 11_000
    reason = "not acknowledged within 1000 ms by count+out[0]"
    assert without_records(history.time(11_000)) == [AbortCheckpoint(C1, reason, G1)]
    assert history.at(11_001, acks(C1)[2]) == []


def test_only_some_of_many_missing_subtasks_are_named() -> None:
    subtasks = tuple(SubtaskId("s", n) for n in range(10))
    history = History(CheckpointConfig(interval_ms=1, timeout_ms=10))
    history.at(0, SubtasksStarted(subtasks, subtasks, G1))
    history.time(1)
    abort = history.time(11)[0]
    assert isinstance(abort, AbortCheckpoint)
    assert abort.reason == "not acknowledged within 10 ms by s[0], s[1], s[2], s[3] and 6 others"


def test_a_repeated_acknowledgement_counts_once_and_the_first_handle_stays() -> None:
    history = started()
    history.time(100)
    first, second, third = acks(C1)
    assert history.at(110, first, CheckpointAcknowledged(C1, S0, G1, "other"), second, first) == []
    assert history.at(120, third) == [store(C1)]
    assert history.at(121, third) == []


def test_a_failed_manifest_aborts_the_checkpoint_and_whatever_is_of_it_is_removed() -> None:
    history = started()
    history.time(100)
    history.at(110, *acks(C1))
    assert without_records(history.at(120, ManifestFailed(C1, "403"))) == [
        AbortCheckpoint(C1, "manifest not stored: 403", G1),
        DropCheckpoint(C1),
    ]
    assert history.at(130, ManifestStored(C1)) == []
    assert history.machine.complete == ()


def test_an_unanswered_manifest_ends_everything_since_its_outcome_stays_open() -> None:
    history = started()
    history.time(100)
    history.at(200, *acks(C1))
    assert history.machine.next_deadline_ms() == 5_200
    assert history.time(4_000) == []
    reason = "the manifest was not answered within 5000 ms"
    assert without_records(history.time(5_200)) == [AbortCheckpoint(C1, reason, G1), CommitAbandoned(C1, reason)]
    assert history.at(5_300, ManifestStored(C1), CheckpointRequested(), *exhausted()) == []
    assert history.machine.next_deadline_ms() is None
    assert history.at(5_400, JobInterrupted(), QuiesceRequested()) == [CommitsQuiesced()]


# --------------------------------------------------------------------------------------- pacing and concurrency


def test_a_trigger_waits_while_enough_are_pending() -> None:
    history = started()
    history.time(100)
    assert history.time(200) == []
    assert history.machine.next_deadline_ms() == 1_100
    history.at(250, *acks(C1))
    assert kinds(history.at(260, ManifestStored(C1))) == [
        "CompleteCheckpoint",
        "RecordCheckpoint",
        "CommitOutput",
        "TriggerCheckpoint",
    ]


def test_several_may_be_pending() -> None:
    history = started(max_concurrent=2)
    assert history.time(100) == [trigger(C1)]
    assert history.time(200) == [trigger(C2)]
    assert history.time(300) == []


def test_min_pause_counts_from_the_end_of_the_previous_checkpoint() -> None:
    history = started(min_pause_ms=80)
    history.time(100)
    complete(history, 150, C1)
    assert history.machine.next_deadline_ms() == 230
    assert history.time(229) == []
    assert history.time(230) == [trigger(C2)]


def test_a_requested_checkpoint_comes_at_once_or_as_soon_as_there_is_room() -> None:
    history = started(min_pause_ms=1_000)
    assert history.at(10, CheckpointRequested()) == [trigger(C1)]
    assert history.at(20, CheckpointRequested()) == []
    history.at(30, *acks(C1))
    assert trigger(C2) in history.at(40, ManifestStored(C1))
    assert history.at(41, OutputCommitted(C1)) == []


def test_a_checkpoint_requested_before_the_job_runs_comes_when_it_does() -> None:
    history = History(CheckpointConfig())
    assert history.at(0, CheckpointRequested()) == []
    assert history.at(1, RUNNING) == [trigger(C1)]


def test_triggers_wait_while_too_much_output_is_uncommitted() -> None:
    history = started(max_uncommitted=2)
    for checkpoint, now_ms in ((C1, 100), (C2, 200)):
        assert trigger(checkpoint) in history.time(now_ms)
        history.at(now_ms + 10, *acks(checkpoint), ManifestStored(checkpoint))
    assert history.time(300) == []
    assert history.at(310, OutputCommitted(C1)) == [CommitOutput(C2, False), trigger(C3)]


def test_a_newer_complete_checkpoint_supersedes_an_older_pending_one() -> None:
    history = started(max_concurrent=2)
    history.time(100)
    history.time(200)
    history.at(210, acks(C1)[0])
    assert history.at(220, *acks(C2)) == [store(C2)]
    effects = history.at(230, ManifestStored(C2))
    assert without_records(effects) == [
        CompleteCheckpoint(C2, G1),
        AbortCheckpoint(C1, "superseded by checkpoint 2", G1),
        CommitOutput(C2, False),
    ]
    assert history.at(240, *acks(C1)) == []


def test_manifests_are_stored_one_at_a_time_and_in_order() -> None:
    history = started(max_concurrent=3)
    for now_ms in (100, 200, 300):
        history.time(now_ms)
    assert history.at(310, *acks(C1)) == [store(C1)]
    assert history.at(320, *acks(C3), *acks(C2)) == []
    assert store(C2) in history.at(330, ManifestStored(C1))
    assert store(C3) in history.at(340, ManifestFailed(C2, "no"))


def test_an_older_one_that_becomes_ready_while_a_newer_is_stored_waits_for_the_outcome() -> None:
    history = started(max_concurrent=2)
    history.time(100)
    history.time(200)
    assert history.at(210, *acks(C2), *acks(C1)) == [store(C2)]
    assert store(C1) in history.at(220, ManifestFailed(C2, "no"))


# -------------------------------------------------------------------------------------------------------- commits


def test_commits_are_in_order_and_one_at_a_time() -> None:
    history = started()
    history.time(100)
    history.at(110, *acks(C1), ManifestStored(C1))
    history.time(200)
    assert CommitOutput(C2, False) not in history.at(210, *acks(C2), ManifestStored(C2))
    assert history.at(220, OutputCommitted(C2)) == []
    assert history.at(230, OutputCommitted(C1)) == [CommitOutput(C2, False)]
    assert history.at(240, OutputCommitted(C1)) == []


def test_a_failed_commit_is_tried_again_after_a_pause() -> None:
    history = started(interval_ms=10_000, commit_retry_ms=50)
    history.at(10, CheckpointRequested(), *acks(C1), ManifestStored(C1))
    assert history.at(20, CommitFailed(C1, "busy")) == []
    assert history.machine.next_deadline_ms() == 70
    assert history.time(69) == []
    assert history.time(70) == [CommitOutput(C1, False)]
    assert history.at(80, OutputCommitted(C1)) == []


def test_a_commit_is_abandoned_after_so_many_attempts() -> None:
    history = started(commit_attempts=2, commit_retry_ms=0)
    history.at(10, CheckpointRequested(), *acks(C1), ManifestStored(C1))
    assert history.at(20, CommitFailed(C1, "busy")) == [CommitOutput(C1, False)]
    assert history.at(30, CommitFailed(C1, "gone")) == [CommitAbandoned(C1, "gone (attempt 2 of 2)")]
    assert history.time(200) == []
    assert history.at(300, OutputCommitted(C1), CheckpointRequested()) == []


def test_a_commit_that_is_late_is_reported_and_never_given_up() -> None:
    history = started(interval_ms=100_000)
    history.at(10, CheckpointRequested(), *acks(C1), ManifestStored(C1))
    assert history.machine.next_deadline_ms() == 5_010
    assert history.time(5_010) == [ReportCommitDelay(C1, 5_000)]
    assert history.machine.next_deadline_ms() == 10_010
    assert history.time(1_000_000) == [ReportCommitDelay(C1, 999_990), trigger(C2)]
    assert history.at(1_000_010, OutputCommitted(C1)) == []


def test_a_manifest_behind_a_late_commit_has_its_time_when_that_has_ended() -> None:
    history = started()
    history.at(10, CheckpointRequested(), *acks(C1), ManifestStored(C1))
    history.time(110)
    assert history.at(120, *acks(C2)) == [store(C2)]
    assert without_records(history.time(90_000)) == [ReportCommitDelay(C1, 89_990)]
    assert history.at(90_010, OutputCommitted(C1)) == []
    assert history.machine.next_deadline_ms() == 95_010
    assert without_records(history.at(95_000, ManifestStored(C2)))[0] == CompleteCheckpoint(C2, G1)


def test_unused_state_files_are_removed_after_so_many_checkpoints() -> None:
    history = started(sweep_every=2, interval_ms=None)
    history.at(10, CheckpointRequested())
    complete(history, 20, C1)
    history.at(30, CheckpointRequested(), *acks(C2))
    assert history.at(40, ManifestStored(C2))[-2:] == [SweepState(C2, C2), CommitOutput(C2, False)]


def test_a_success_of_an_earlier_attempt_counts_and_a_late_failure_does_not() -> None:
    history = started(interval_ms=100_000, commit_retry_ms=50)
    history.at(10, CheckpointRequested(), *acks(C1), ManifestStored(C1), CommitFailed(C1, "timeout"))
    assert history.at(20, OutputCommitted(C1), CommitFailed(C1, "late")) == []
    assert history.time(100) == []


# --------------------------------------------------------------------------------------------------- interruptions


def test_an_interruption_aborts_what_is_pending_and_what_comes_late_is_ignored() -> None:
    history = started(max_concurrent=2)
    history.time(100)
    history.time(200)
    assert without_records(history.at(210, JobInterrupted())) == [
        AbortCheckpoint(C1, "the job was interrupted", G1),
        AbortCheckpoint(C2, "the job was interrupted", G1),
    ]
    assert history.at(220, *acks(C1), *exhausted(), JobInterrupted()) == []
    assert history.time(10_000) == []
    assert history.machine.next_deadline_ms() is None


def test_numbers_go_on_over_an_interruption_and_old_generations_are_ignored() -> None:
    history = started()
    history.time(100)
    history.at(150, JobInterrupted())
    assert history.at(200, SubtasksStarted(SUBTASKS, SOURCES, G2)) == []
    assert history.time(300) == [trigger(C2, generation=G2)]
    assert history.at(310, *acks(C2, G1), *acks(C1, G1), CheckpointDeclined(C2, S0, G1, "old")) == []
    assert history.at(320, *acks(C2, G2)) == [store(C2, generation=G2)]


def test_a_manifest_being_stored_survives_an_interruption_and_holds_up_the_rollback() -> None:
    history = started()
    history.time(100)
    history.at(110, *acks(C1))
    assert history.at(120, JobInterrupted(), QuiesceRequested()) == []
    assert without_records(history.at(130, ManifestStored(C1))) == [CompleteCheckpoint(C1, G1), CommitOutput(C1, False)]
    assert history.at(140, OutputCommitted(C1)) == [CommitsQuiesced()]
    assert history.at(150, OutputCommitted(C1)) == []


def test_a_ready_checkpoint_behind_the_one_being_stored_is_aborted_by_an_interruption() -> None:
    history = started(max_concurrent=2)
    history.time(100)
    history.time(200)
    assert history.at(210, *acks(C1), *acks(C2)) == [store(C1)]
    assert kinds(history.at(220, JobInterrupted(), QuiesceRequested())) == ["AbortCheckpoint", "RecordCheckpoint"]
    assert kinds(history.at(230, ManifestFailed(C1, "no"))) == [
        "AbortCheckpoint",
        "RecordCheckpoint",
        "DropCheckpoint",
        "CommitsQuiesced",
    ]


def test_commits_survive_an_interruption() -> None:
    history = started(commit_retry_ms=10)
    history.time(100)
    history.at(110, *acks(C1), ManifestStored(C1))
    assert history.at(120, JobInterrupted(), QuiesceRequested(), CommitFailed(C1, "busy")) == []
    assert history.time(130) == [CommitOutput(C1, False)]
    assert history.at(140, OutputCommitted(C1)) == [CommitsQuiesced()]


def test_draining_is_answered_at_once_when_nothing_is_in_flight() -> None:
    history = started()
    assert history.at(10, JobInterrupted(), QuiesceRequested()) == [CommitsQuiesced()]
    assert history.at(20, QuiesceRequested()) == [CommitsQuiesced()]


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    history = started()
    history.time(100)
    stranger = SubtaskId("lines", 7)
    wrong: list[tuple[type[Exception], CheckpointingEvent]] = [
        (InvariantViolation, SubtasksStarted(SUBTASKS, SOURCES, G2)),
        (InvariantViolation, QuiesceRequested()),
        (InvariantViolation, CheckpointsAbandoned(None)),
        (PeerProtocolError, CheckpointAcknowledged(C1, stranger, G1, "h")),
        (PeerProtocolError, CheckpointAcknowledged(C2, S0, G1, "h")),
        (PeerProtocolError, CheckpointAcknowledged(C1, S0, G2, "h")),
        (PeerProtocolError, SourceExhausted(K0, G1)),
    ]
    for error, event in wrong:
        with pytest.raises(error):
            history.at(105, event)
    assert history.at(110, *acks(C1)) == [store(C1)]


@pytest.mark.parametrize(
    "running",
    [
        SubtasksStarted(SUBTASKS, SOURCES, Generation(0)),
        SubtasksStarted(SUBTASKS, (), G1),
        SubtasksStarted((K0,), SOURCES, G1),
        SubtasksStarted(SUBTASKS, (S0, S0), G1),
        SubtasksStarted((S0, S0), (S0,), G1),
    ],
)
def test_a_job_that_cannot_run(running: SubtasksStarted) -> None:
    with pytest.raises(InvariantViolation):
        History(CheckpointConfig()).at(0, running)


# ------------------------------------------------------------------------------------------------ the end of input


def test_the_last_checkpoint_comes_when_every_source_is_exhausted_and_is_the_last() -> None:
    history = started()
    first, second = exhausted()
    assert history.at(10, first, first) == []
    assert history.at(20, second) == [trigger(C1, final=True)]
    assert history.at(30, second) == []
    assert history.at(40, *acks(C1)) == [store(C1, final=True)]
    assert CommitOutput(C1, True) in history.at(50, ManifestStored(C1))
    assert history.at(60, OutputCommitted(C1)) == [FinalCommitted(C1)]
    assert history.machine.next_deadline_ms() is None
    assert history.at(1_000, CheckpointRequested()) == []


def test_the_last_checkpoint_runs_beside_a_pending_one_which_may_still_complete() -> None:
    history = started()
    history.time(100)
    assert history.at(110, *exhausted()) == [trigger(C2, final=True)]
    assert history.at(120, *acks(C1)) == [store(C1)]
    assert CommitOutput(C1, False) in history.at(130, ManifestStored(C1))
    assert history.at(140, OutputCommitted(C1), *acks(C2)) == [store(C2, final=True)]
    assert CommitOutput(C2, True) in history.at(150, ManifestStored(C2))


def test_a_failed_last_checkpoint_is_tried_again_after_the_pause() -> None:
    history = started(min_pause_ms=40)
    history.at(10, *exhausted())
    history.at(20, CheckpointDeclined(C1, K0, G1, "no"))
    assert history.machine.next_deadline_ms() == 60
    assert history.time(60) == [trigger(C2, final=True)]
    effects = history.time(1_060)
    assert kinds(effects) == ["AbortCheckpoint", "RecordCheckpoint"]
    assert history.time(1_100) == [trigger(C3, final=True)]
    history.at(1_110, *acks(C3))
    history.at(1_120, ManifestFailed(C3, "no"))
    assert history.time(1_160) == [trigger(C4, final=True)]


def test_a_failed_last_checkpoint_is_not_tried_again_at_once() -> None:
    history = started(final_retry_ms=500)
    history.at(10, *exhausted())
    assert not any(isinstance(e, TriggerCheckpoint) for e in history.at(20, CheckpointDeclined(C1, K0, G1, "no")))
    assert history.machine.next_deadline_ms() == 520
    assert history.time(520) == [trigger(C2, final=True)]


def test_last_checkpoints_are_tried_so_often_and_no_more() -> None:
    history = started(final_attempts=2)
    history.at(10, *exhausted())
    assert trigger(C2, final=True) in history.at(20, CheckpointDeclined(C1, K0, G1, "no"))
    effects = history.at(30, CheckpointDeclined(C2, K0, G1, "never"))
    assert effects[-1] == FinalAbandoned(C2, G1, "count+out[0] declined: never")
    assert history.time(10_000) == []
    assert history.at(10_010, JobInterrupted(), SubtasksStarted(SUBTASKS, SOURCES, G2), *exhausted(G2)) == [
        trigger(C3, final=True, generation=G2)
    ]


def test_after_an_interruption_the_sources_must_be_exhausted_again() -> None:
    history = started()
    history.at(10, *exhausted())
    history.at(20, JobInterrupted())
    history.at(30, SubtasksStarted(SUBTASKS, SOURCES, G2))
    assert history.at(40, *exhausted(G1), *acks(C1, G1)) == []
    assert history.time(130) == [trigger(C2, generation=G2)]
    assert history.at(140, *exhausted(G2)) == [trigger(C3, final=True, generation=G2)]


def test_the_last_commit_survives_an_interruption() -> None:
    history = started()
    history.at(10, *exhausted(), *acks(C1), JobInterrupted(), QuiesceRequested(), ManifestStored(C1))
    assert history.at(20, OutputCommitted(C1)) == [FinalCommitted(C1), CommitsQuiesced()]


# ------------------------------------------------------------------------------------------------------- retention


def test_so_many_complete_checkpoints_are_kept() -> None:
    history = started(retained=2)
    for number in range(1, 4):
        history.time(100 * number)
        complete(history, 100 * number + 10, CheckpointId(number))
    assert history.machine.complete == (C2, C3)


def test_one_with_uncommitted_output_is_not_dropped() -> None:
    history = started(retained=1)
    history.time(100)
    history.at(110, *acks(C1), ManifestStored(C1))
    history.time(200)
    history.at(210, *acks(C2))
    assert DropCheckpoint(C1) not in history.at(220, ManifestStored(C2))
    assert history.at(230, OutputCommitted(C1)) == [DropCheckpoint(C1), CommitOutput(C2, False)]


def test_those_of_an_earlier_run_are_subject_to_retention_and_numbers_go_on() -> None:
    history = started(complete=(C1, C2, C3), retained=3)
    assert history.time(100) == [trigger(C4)]
    history.at(110, *acks(C4))
    assert DropCheckpoint(C1) in history.at(120, ManifestStored(C4))
    with pytest.raises(InvariantViolation, match="ascending"):
        CheckpointCoordinator(CheckpointConfig(), C3, (C2, C1))


def test_abandoned_checkpoints_are_dropped_newest_first() -> None:
    history = started(complete=(C1, C2, C3))
    history.at(10, JobInterrupted(), QuiesceRequested())
    assert history.at(20, CheckpointsAbandoned(C1)) == [DropCheckpoint(C3), DropCheckpoint(C2)]
    assert history.machine.complete == (C1,)
    assert history.at(30, CheckpointsAbandoned(None)) == [DropCheckpoint(C1)]


@pytest.mark.parametrize("name", ["interval_ms", "timeout_ms", "retained", "commit_attempts", "max_concurrent"])
def test_limits_are_checked(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        CheckpointConfig(**{name: 0})  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------- local failover

START = CheckpointId(0)


def replaced(version: CheckpointId, *subtasks: SubtaskId) -> SubtasksReplaced:
    return SubtasksReplaced(tuple((subtask, version) for subtask in subtasks))


def moved(checkpoint: CheckpointId, *subtasks: SubtaskId) -> AbortCheckpoint:
    return AbortCheckpoint(checkpoint, f"{', '.join(map(str, subtasks))} restarted", G1)


def ack(checkpoint: CheckpointId, subtask: SubtaskId, handle: str = "") -> CheckpointAcknowledged:
    return CheckpointAcknowledged(checkpoint, subtask, G1, handle or str(subtask))


def test_a_checkpoint_that_waits_for_a_replaced_subtask_is_aborted() -> None:
    history = started()
    history.time(100)
    history.at(110, ack(C1, K0), ack(C1, S0))
    assert without_records(history.at(120, replaced(START, S1, K0))) == [moved(C1, K0, S1)]
    assert history.at(130, *acks(C1)) == []


def test_after_a_failover_a_moment_passes_until_the_next_checkpoint() -> None:
    """A promoted consumer would wait for the barrier of a producer that still replays."""
    history = started(interval_ms=1_000)
    history.at(990, replaced(START, K0))
    assert history.time(1_189) == []
    assert history.time(1_190) == [trigger(C1)]
    history.at(1_200, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
    history.at(1_300, replaced(C1, K0))
    assert history.time(2_190) == [trigger(C2)], "it was not due within that moment"
    short = started(interval_ms=50)
    short.at(40, replaced(START, K0))
    assert short.time(90) == [trigger(C1)], "an interval is enough"


def test_a_checkpoint_that_a_subtask_resumes_from_continues() -> None:
    history = started()
    history.time(100)
    history.at(110, ack(C1, K0))
    assert history.at(120, replaced(C1, K0)) == []
    assert history.at(130, ack(C1, S0), ack(C1, S1)) == [store(C1)]


def test_a_last_checkpoint_that_is_aborted_by_a_failover_is_tried_again() -> None:
    history = started(interval_ms=None, final_attempts=1)
    history.at(50, *exhausted())
    abort, retry = without_records(history.at(60, replaced(START, K0)))
    assert abort == moved(C1, K0)
    assert retry == trigger(C2, final=True)


def test_checkpoints_up_to_the_version_that_a_subtask_resumes_from_continue() -> None:
    history = started(max_concurrent=2)
    history.time(100)
    history.at(110, ack(C1, S0), ack(C1, K0))
    assert history.time(200) == [trigger(C2)]
    history.at(210, ack(C2, S0))
    assert without_records(history.at(220, replaced(C1, S0))) == [moved(C2, S0)]
    assert history.at(230, ack(C1, S1)) == [store(C1)]


def test_a_checkpoint_that_is_being_stored_or_could_be_is_not_touched() -> None:
    history = started(max_concurrent=2)
    history.time(100)
    assert history.at(110, *acks(C1)) == [store(C1)]
    history.time(200)
    assert history.at(210, *acks(C2)) == []  # ready; the older manifest is not stored yet
    assert history.at(220, replaced(START, *SUBTASKS)) == []
    assert store(C2) in history.at(230, ManifestStored(C1))


def test_a_replaced_source_is_not_at_its_end_any_more() -> None:
    history = started(interval_ms=None)
    first, second = exhausted()
    assert history.at(100, first, replaced(START, S0), second) == []
    assert history.at(110, first) == [trigger(C1, final=True)]


def test_a_last_checkpoint_waits_until_a_replaced_source_is_at_its_end_again() -> None:
    history = started(final_attempts=1)
    assert history.at(50, *exhausted()) == [trigger(C1, final=True)]
    assert without_records(history.at(60, ack(C1, S0), replaced(START, S1))) == [moved(C1, S1)]
    assert history.at(70, SourceExhausted(S1, G1)) == [trigger(C2, final=True)]


def test_no_second_last_checkpoint_while_one_is_stored_or_complete() -> None:
    history = started()
    history.at(50, *exhausted())
    assert history.at(60, *acks(C1)) == [store(C1, final=True)]
    assert history.at(70, replaced(START, S0), SourceExhausted(S0, G1)) == []
    assert CommitOutput(C1, True) in history.at(80, ManifestStored(C1))
    assert history.at(90, replaced(C1, S0)) == []
    assert history.time(1000) == []  # no periodic one either, though not all sources are at their end
    assert history.at(1010, SourceExhausted(S0, G1)) == []
    assert history.at(1020, OutputCommitted(C1)) == [FinalCommitted(C1)]


def test_a_last_checkpoint_that_fails_waits_for_sources_on_their_way() -> None:
    history = started()
    history.at(50, *exhausted())
    assert history.at(60, *acks(C1)) == [store(C1, final=True)]
    history.at(70, replaced(START, S0))
    assert history.at(80, ManifestFailed(C1, "disk full")) != []
    assert without_records(history.time(90)) == []
    assert history.at(100, SourceExhausted(S0, G1)) == [trigger(C2, final=True)]


def test_subtasks_replaced_in_a_job_that_was_interrupted_matter_no_more() -> None:
    history = started()
    history.time(100)
    history.at(110, JobInterrupted())
    assert history.at(120, replaced(START, S0)) == []


def test_replaced_subtasks_must_be_of_the_job() -> None:
    with pytest.raises(InvariantViolation, match="of the job"):
        started().at(10, replaced(START, SubtaskId("nobody", 0)))


# --- unaligned ones


def test_barriers_overtake_from_the_time_out_on() -> None:
    history = History(CheckpointConfig(interval_ms=1_000, aligned_timeout_ms=200))
    history.at(0, RUNNING)
    assert history.at(1_000, TimeAdvanced()) == [TriggerCheckpoint(C1, SOURCES, False, G1)]
    assert history.machine.next_deadline_ms() == 1_200
    assert history.at(1_199, TimeAdvanced()) == []
    assert history.at(1_200, TimeAdvanced()) == [OvertakeCheckpoint(C1, G1)]
    assert history.at(1_201, TimeAdvanced()) == [], "once is enough"
    assert history.machine.next_deadline_ms() == 61_000


def test_barriers_overtake_at_once_without_a_time_out_and_whoever_triggers_has_heard_of_it() -> None:
    history = History(CheckpointConfig(interval_ms=1_000, aligned_timeout_ms=0))
    history.at(0, RUNNING)
    assert history.at(1_000, TimeAdvanced()) == [
        OvertakeCheckpoint(C1, G1),
        TriggerCheckpoint(C1, SOURCES, False, G1),
    ]


def test_nothing_is_to_be_overtaken_when_all_have_acknowledged() -> None:
    history = History(CheckpointConfig(interval_ms=1_000, aligned_timeout_ms=200))
    history.at(0, RUNNING)
    history.at(1_000, TimeAdvanced())
    history.at(1_100, *(CheckpointAcknowledged(C1, subtask, G1, "handle") for subtask in SUBTASKS))
    assert history.at(1_200, TimeAdvanced()) == []


def test_the_last_checkpoint_is_never_unaligned() -> None:
    """What is in flight at the end of a job would never be worked on."""
    history = History(CheckpointConfig(interval_ms=None, aligned_timeout_ms=0))
    history.at(0, RUNNING)
    assert history.at(500, *(SourceExhausted(source, G1) for source in SOURCES)) == [
        TriggerCheckpoint(C1, SOURCES, True, G1)
    ]
    assert history.at(5_000, TimeAdvanced()) == []


# --- what was in flight


def held(subtask: SubtaskId, in_flight_bytes: int, checkpoint: CheckpointId = C1) -> CheckpointAcknowledged:
    return CheckpointAcknowledged(checkpoint, subtask, G1, "handle", in_flight_bytes)


def recorded(effects: list[CheckpointingEffect]) -> list[tuple[AbortCause | None, str]]:
    return [(effect.stats.cause, effect.stats.reason) for effect in effects if isinstance(effect, RecordCheckpoint)]


def test_a_checkpoint_that_would_bring_too_much_into_one_slot_is_given_up() -> None:
    """A deployment puts the subtasks of one index into one slot, wherever they were when the checkpoint was taken."""
    history = started(in_flight_slot_bytes=100, in_flight_job_bytes=1_000)
    history.time(100)
    assert history.at(110, held(S0, 60), held(S1, 90)) == []
    effects = history.at(120, held(K0, 41))
    why = "101 bytes were in flight to subtasks 0, and the maximum is 100"
    assert effects[0] == AbortCheckpoint(C1, why, G1) and recorded(effects) == [(AbortCause.OVER_BUDGET, why)]
    assert history.machine.pending == ()


def test_a_checkpoint_that_holds_too_much_in_all_is_given_up() -> None:
    history = started(in_flight_slot_bytes=100, in_flight_job_bytes=150)
    history.time(100)
    assert history.at(110, held(S0, 60), held(S1, 60)) == []
    assert kinds(history.at(111, held(S1, 60))) == [], "it has said so before"
    why = "160 bytes were in flight in the job, and the maximum is 150"
    assert recorded(history.at(120, held(K0, 40))) == [(AbortCause.OVER_BUDGET, why)]


def test_after_too_much_was_in_flight_the_next_checkpoint_is_aligned_and_the_one_after_it_may_overtake() -> None:
    history = History(CheckpointConfig(interval_ms=1_000, aligned_timeout_ms=0))
    history.at(0, RUNNING)
    assert kinds(history.time(1_000)) == ["OvertakeCheckpoint", "TriggerCheckpoint"]
    history.at(1_010, CheckpointDeclined(C1, K0, G1, "too much", AbortCause.OVER_BUDGET))
    assert kinds(history.time(2_000)) == ["TriggerCheckpoint"]
    assert history.machine.next_deadline_ms() == 62_000, "it waits for the snapshots, and for nothing else"
    history.at(2_010, CheckpointDeclined(C2, K0, G1, "disk full"))
    assert kinds(history.time(3_000)) == ["OvertakeCheckpoint", "TriggerCheckpoint"]
    history.at(3_010, CheckpointDeclined(C3, K0, G1, "disk full"))
    assert kinds(history.time(4_000)) == ["OvertakeCheckpoint", "TriggerCheckpoint"], (
        "only where too much was in flight"
    )


# ----------------------------------------------------------------------------------------------- another parallelism


def test_a_divided_checkpoint_is_the_newest_and_its_number_is_used_once() -> None:
    history = started(complete=(C1,), retained=1)
    history.at(10, JobInterrupted(), QuiesceRequested())
    assert history.machine.next_number == C2
    assert history.at(20, NumberTaken(C2)) == []
    assert history.at(30, CheckpointAdopted(C2)) == [DropCheckpoint(C1)]
    assert history.machine.complete == (C2,)
    assert history.at(40, SubtasksStarted((S0,), (S0,), G2)) == []
    assert history.at(50, CheckpointRequested()) == [TriggerCheckpoint(C3, (S0,), False, G2)]


def test_a_number_that_was_taken_for_nothing_is_not_used_again() -> None:
    history = started(complete=(C1,))
    history.at(10, JobInterrupted(), QuiesceRequested(), NumberTaken(C2), SubtasksStarted((S0,), (S0,), G2))
    assert history.at(50, CheckpointRequested()) == [TriggerCheckpoint(C3, (S0,), False, G2)]


def test_a_checkpoint_is_divided_only_when_all_is_quiet() -> None:
    history = started(complete=(C1,))
    for event in (NumberTaken(C2), CheckpointAdopted(C2)):
        with pytest.raises(InvariantViolation):
            history.at(10, event)
    history.at(10, JobInterrupted(), QuiesceRequested())
    for event in (NumberTaken(C3), CheckpointAdopted(C1), CheckpointAdopted(C2)):
        with pytest.raises(InvariantViolation):
            history.at(20, event)


def test_one_checkpoint_that_is_requested_aligned_overtakes_nothing() -> None:
    history = started(aligned_timeout_ms=0, interval_ms=None)
    assert OvertakeCheckpoint(C1, G1) in history.at(10, CheckpointRequested(), *acks(C1), ManifestStored(C1))
    found = history.at(20, CheckpointRequested(aligned=True), *acks(C2), ManifestStored(C2))
    assert not any(isinstance(effect, OvertakeCheckpoint) for effect in found) and history.machine.complete == (C1, C2)
    assert OvertakeCheckpoint(C3, G1) in history.at(30, CheckpointRequested())
