"""The life of a job and its recovery by rollback, told as histories: events in, the whole list of effects compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flinkplus.errors import ConfigurationError, InvariantViolation, PeerProtocolError
from flinkplus.protocol.job.job import MAX_FALLBACKS, JobProtocol
from flinkplus.protocol.vocabulary.config import RecoveryConfig
from flinkplus.protocol.vocabulary.effects import (
    DeploySubtasks,
    EndJob,
    EvictSlot,
    FenceOutput,
    HaltSubtasks,
    InterruptCheckpoints,
    JobEffect,
    JobState,
    RecordRollbackPhase,
    RetractOutputAfter,
    StartSubtasks,
    StopSlots,
)
from flinkplus.protocol.vocabulary.events import (
    CancelRequested,
    CheckpointCompleted,
    CheckpointDropped,
    CheckpointRestoreFailed,
    CommitAbandoned,
    CommitsQuiesced,
    FailoverFellBack,
    FailureTakenOn,
    FinalAbandoned,
    FinalCommitted,
    GenerationsUsed,
    InputBlamed,
    JobEvent,
    OutputFenced,
    OutputFenceFailed,
    OutputRetracted,
    QuiesceRequested,
    RetractionFailed,
    SlotDeployed,
    SlotLeft,
    SlotLost,
    SlotRegistered,
    SlotStartFailed,
    SlotStopped,
    SpareAdded,
    SpareRemoved,
    SubtaskFailed,
    TimeAdvanced,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.phases import FailureKind, Phase

L0, L1, C0, C1 = SubtaskId("lines", 0), SubtaskId("lines", 1), SubtaskId("count", 0), SubtaskId("count", 1)
SUBTASKS = (L0, L1, C0, C1)
ASSIGNMENT = ((C0, 0), (C1, 1), (L0, 0), (L1, 1))
ON_SLOT_1 = (C1, L1)
G1, G2, G3, G4 = (Generation(n) for n in range(1, 5))
ONE, TWO, THREE = (CheckpointId(n) for n in range(1, 4))


class History:
    """Feeds events at rising times and collects effects."""

    def __init__(
        self, restore_from: CheckpointId | None = None, available: tuple[CheckpointId, ...] = (), **options: Any
    ) -> None:
        defaults = {
            "max_restarts": 3,
            "max_slot_losses": 3,
            "slot_timeout_ms": 10_000,
            "restart_slot_timeout_ms": 5_000,
            "deploy_timeout_ms": 2_000,
            "backoff_first_ms": 100,
            "backoff_max_ms": 300,
            "quiesce_timeout_ms": 20_000,
            "stop_timeout_ms": 1_000,
        }
        config = RecoveryConfig(**{**defaults, **options})
        self.machine = JobProtocol(SUBTASKS, 2, config, started_ms=0, restore_from=restore_from, available=available)

    def at(self, now_ms: int, *events: JobEvent) -> list[JobEffect]:
        effects = [effect for event in events for effect in self.machine.step(now_ms, event)]
        deadline = self.machine.next_deadline_ms()
        assert deadline is None or deadline > now_ms, "a driver would spin"
        return effects

    def time(self, now_ms: int) -> list[JobEffect]:
        return self.at(now_ms, TimeAdvanced())

    @property
    def state(self) -> JobState:
        return self.machine.state


BOTH = (SlotRegistered(0, 1), SlotRegistered(1, 1))


def deployed(generation: Generation) -> tuple[JobEvent, ...]:
    return SlotDeployed(generation, 0), SlotDeployed(generation, 1)


def deploying(
    restore_from: CheckpointId | None = None, available: tuple[CheckpointId, ...] = (), **options: Any
) -> History:
    history = History(restore_from, available, **options)
    assert history.at(10, *BOTH) == [DeploySubtasks(G1, restore_from, ASSIGNMENT)]
    return history


def running(**options: Any) -> History:
    history = deploying(None, (), **options)
    assert history.at(20, *deployed(G1)) == [StartSubtasks(G1)]
    assert history.state is JobState.RUNNING
    return history


def failed(generation: Generation, reason: str = "boom") -> SubtaskFailed:
    return SubtaskFailed(C1, generation, reason, "the error")


def phase(
    recovery: int, name: Phase, failure: FailureKind, subtasks: tuple[SubtaskId, ...], reason: str
) -> RecordRollbackPhase:
    return RecordRollbackPhase(recovery, name, failure, subtasks, reason)


def boom(recovery: int, name: Phase) -> RecordRollbackPhase:
    return phase(recovery, name, "exception", (C1,), "count[1]: boom")


def without_phases(effects: list[JobEffect]) -> list[JobEffect]:
    return [effect for effect in effects if not isinstance(effect, RecordRollbackPhase)]


INTERRUPTED = [InterruptCheckpoints(), QuiesceRequested()]

# ---------------------------------------------------------------------------------------------- start and finish


def test_a_job_without_failures() -> None:
    history = History()
    assert history.at(1, SlotRegistered(0, 1)) == []
    assert history.at(2, SlotRegistered(1, 1)) == [DeploySubtasks(G1, None, ASSIGNMENT)]
    assert history.at(3, SlotDeployed(G1, 1)) == []
    assert history.at(4, SlotDeployed(G1, 0)) == [StartSubtasks(G1)]
    assert history.machine.next_deadline_ms() is None
    assert history.at(5, CheckpointCompleted(ONE), CheckpointCompleted(TWO)) == []
    assert history.at(6, FinalCommitted(ONE)) == [StopSlots()]
    assert history.at(7, SlotStopped(0)) == []
    assert history.at(8, SlotStopped(1)) == [EndJob(JobState.FINISHED, None, "", "")]
    assert history.state is JobState.FINISHED
    assert history.at(9, CancelRequested(), FinalCommitted(ONE), failed(G1), SlotLost(0, 1, "x")) == []


def test_slots_that_never_come() -> None:
    history = History()
    history.at(1, SlotRegistered(1, 1))
    assert history.machine.next_deadline_ms() == 10_000
    assert history.time(10_000) == [StopSlots()]
    reason = "1 of 2 slots did not register within 10000 ms: 0"
    assert history.at(10_001, SlotStopped(1)) == [EndJob(JobState.FAILED, None, reason, "slots")]


def test_a_slot_lost_before_the_first_deployment_costs_only_time() -> None:
    history = History(max_slot_losses=0)
    assert history.at(1, SlotRegistered(1, 1), SlotLost(1, 1, "died"), SlotRegistered(0, 1)) == []
    assert history.at(2, SlotRegistered(1, 2)) == [DeploySubtasks(G1, None, ASSIGNMENT)]


CANNOT = SlotStartFailed(0, "slot 0 cannot start on here: ImportError: no such library", "the error")


def test_a_slot_that_cannot_start_ends_a_job_that_has_not_begun() -> None:
    history = History(max_start_failures=2)
    assert history.at(1, CANNOT, SlotRegistered(1, 1), CANNOT) == []
    assert history.at(2, CANNOT) == [StopSlots()]
    reason = f"{CANNOT.reason} (3 times in a row)"
    assert history.at(3, SlotStopped(1)) == [EndJob(JobState.FAILED, "the error", reason, "slots")]


def test_a_slot_that_starts_after_all_has_failed_for_nothing() -> None:
    history = History(max_start_failures=1)
    assert history.at(1, CANNOT, SlotRegistered(0, 1), CANNOT, CANNOT, SlotLost(0, 1, "died"), CANNOT) == []
    assert history.at(2, SlotStartFailed(1, "full", None), SlotRegistered(1, 1), SlotRegistered(0, 2)) == [
        DeploySubtasks(G1, None, ASSIGNMENT)
    ]


def test_a_slot_that_cannot_start_again_is_waited_for_once_the_job_has_begun() -> None:
    history = running(max_start_failures=0)
    history.at(40, SlotLost(0, 1, "SIGKILL"), CommitsQuiesced())
    assert history.at(50, *[CANNOT] * 20) == []
    assert history.time(5_040) == [StopSlots()]
    reason = f"1 of 2 slots did not register within 5000 ms: 0; {CANNOT.reason}"
    assert history.at(5_050, SlotStopped(1)) == [EndJob(JobState.FAILED, "the error", reason, "slots")]


def test_a_job_that_runs_or_ends_does_not_mind_a_slot_that_cannot_start() -> None:
    history = running(max_start_failures=0)
    assert history.at(40, CANNOT) == []
    assert history.at(50, SlotLeft(0, 1, "its standbys see to it"), CANNOT, CANNOT) == []
    assert history.state is JobState.RUNNING
    history.at(60, CancelRequested())
    assert history.at(70, CANNOT) == []


def test_subtasks_are_spread_by_index_over_the_slots() -> None:
    subtasks = tuple(SubtaskId(vertex, index) for vertex in "ab" for index in range(3))
    machine = JobProtocol(subtasks, 2, RecoveryConfig(), started_ms=0)
    (deploy,) = [effect for event in BOTH for effect in machine.step(0, event)]
    assert isinstance(deploy, DeploySubtasks)
    assert [(str(subtask), slot) for subtask, slot in deploy.assignment] == [
        ("a[0]", 0),
        ("a[1]", 1),
        ("a[2]", 0),
        ("b[0]", 0),
        ("b[1]", 1),
        ("b[2]", 0),
    ]


def test_generations_go_on_where_an_earlier_run_stopped() -> None:
    machine = JobProtocol((L0,), 1, RecoveryConfig(), started_ms=0, first_generation=Generation(7))
    assert machine.step(0, SlotRegistered(0, 1)) == [DeploySubtasks(Generation(7), None, ((L0, 0),))]


def test_a_job_that_restores_begins_with_its_checkpoint() -> None:
    deploying(restore_from=TWO, available=(ONE, TWO))


def test_slots_that_do_not_stop_are_not_waited_for_forever() -> None:
    history = running()
    history.at(30, FinalCommitted(ONE), SlotStopped(0))
    assert history.machine.next_deadline_ms() == 1_030
    assert history.time(1_030) == [EndJob(JobState.FINISHED, None, "", "")]


def test_a_slot_lost_after_the_final_commit_does_not_matter_and_its_successor_is_stopped_too() -> None:
    history = running()
    history.at(30, FinalCommitted(ONE))
    assert history.at(40, SlotLost(0, 1, "died"), SlotRegistered(0, 2)) == [StopSlots()]
    assert history.at(50, SlotStopped(1), SlotStopped(0)) == [EndJob(JobState.FINISHED, None, "", "")]
    assert history.at(60, SlotRegistered(1, 2)) == [StopSlots()]


# -------------------------------------------------------------------------------------------------------- rollback


def test_a_subtask_that_fails_takes_the_job_back_to_the_newest_complete_checkpoint() -> None:
    history = running()
    history.at(30, CheckpointCompleted(ONE), CheckpointCompleted(TWO))
    assert history.at(40, failed(G1)) == [boom(1, "detect"), boom(1, "fence"), HaltSubtasks(G1), *INTERRUPTED]
    assert history.at(50, CommitsQuiesced()) == [
        boom(1, "promote"),
        boom(1, "restore"),
        DeploySubtasks(G2, TWO, ASSIGNMENT),
    ]
    assert history.at(60, *deployed(G2)) == [StartSubtasks(G2), boom(1, "replay")]
    assert history.state is JobState.RUNNING


def test_a_checkpoint_that_becomes_complete_while_draining_is_the_one_restored() -> None:
    history = running()
    history.at(40, CheckpointCompleted(ONE), failed(G1), CheckpointCompleted(TWO))
    assert DeploySubtasks(G2, TWO, ASSIGNMENT) in history.at(50, CommitsQuiesced())


def test_a_lost_slot_is_waited_for() -> None:
    history = running()
    lost: tuple[FailureKind, tuple[SubtaskId, ...], str] = ("slot", ON_SLOT_1, "slot 1 was lost: SIGKILL")
    assert history.at(40, SlotLost(1, 1, "SIGKILL")) == [
        phase(1, "detect", *lost),
        phase(1, "fence", *lost),
        HaltSubtasks(G1),
        *INTERRUPTED,
    ]
    assert history.at(50, CommitsQuiesced()) == [phase(1, "promote", *lost)]
    assert history.machine.next_deadline_ms() == 5_040
    assert history.at(400, SlotRegistered(1, 2)) == [phase(1, "restore", *lost), DeploySubtasks(G2, None, ASSIGNMENT)]


def test_registration_before_draining_ends_waits_for_it() -> None:
    history = running()
    history.at(40, SlotLost(1, 1, "SIGKILL"))
    assert history.at(50, SlotRegistered(1, 2)) == []
    assert DeploySubtasks(G2, None, ASSIGNMENT) in history.at(60, CommitsQuiesced())


def test_a_lost_slot_that_does_not_come_back_ends_the_job() -> None:
    history = running()
    history.at(40, SlotLost(1, 1, "SIGKILL"), CommitsQuiesced())
    assert history.time(5_039) == []
    assert history.time(5_040) == [StopSlots()]
    reason = "1 of 2 slots did not register within 5000 ms: 1"
    assert history.at(5_050, SlotStopped(0)) == [EndJob(JobState.FAILED, None, reason, "slots")]


def test_a_new_incarnation_says_that_the_old_one_is_gone_and_late_news_of_it_is_ignored() -> None:
    history = running()
    effects = history.at(40, SlotRegistered(1, 2))
    assert without_phases(effects) == [HaltSubtasks(G1), *INTERRUPTED]
    assert without_phases(history.at(50, CommitsQuiesced(), SlotLost(1, 1, "late"))) == [
        DeploySubtasks(G2, None, ASSIGNMENT)
    ]
    assert history.at(60, SlotLost(1, 1, "late"), SlotRegistered(1, 1), SlotRegistered(1, 2)) == []
    assert history.at(70, *deployed(G2))[0] == StartSubtasks(G2)


def test_a_slot_that_stops_by_itself_is_lost() -> None:
    history = running()
    assert history.at(40, SlotStopped(1), SlotLost(1, 1, "late"))[2:] == [HaltSubtasks(G1), *INTERRUPTED]


def test_slots_lost_together_are_one_failure() -> None:
    history = running(max_slot_losses=1)
    history.at(40, SlotLost(0, 1, "host"), SlotLost(1, 1, "host"), CommitsQuiesced())
    assert without_phases(history.at(50, SlotRegistered(0, 2), SlotRegistered(1, 2))) == [
        DeploySubtasks(G2, None, ASSIGNMENT)
    ]


def test_what_is_said_of_a_dead_generation_has_no_effect() -> None:
    history = running(max_restarts=1)
    history.at(40, failed(G1), failed(G1), FinalAbandoned(ONE, G1, "x"))
    history.at(50, CommitsQuiesced())
    assert history.at(60, *deployed(G1), failed(G1), CheckpointRestoreFailed(G1, ONE, "x"), CommitsQuiesced()) == []
    assert history.at(70, *deployed(G2), *deployed(G2)) == [StartSubtasks(G2), boom(1, "replay")]


def test_a_failure_while_deploying_starts_over_without_draining_again() -> None:
    history = deploying()
    assert history.at(20, SlotDeployed(G1, 0), failed(G1)) == [
        boom(1, "detect"),
        boom(1, "fence"),
        HaltSubtasks(G1),
        boom(1, "promote"),
        boom(1, "restore"),
        DeploySubtasks(G2, None, ASSIGNMENT),
    ]
    assert history.at(30, SlotDeployed(G2, 1)) == []
    assert history.at(40, SlotDeployed(G2, 0)) == [StartSubtasks(G2), boom(1, "replay")]


def test_a_slot_lost_while_deploying() -> None:
    history = deploying()
    history.at(20, SlotDeployed(G1, 1), SlotLost(1, 1, "died"))
    assert history.state is JobState.INTERRUPTED
    assert without_phases(history.at(30, SlotRegistered(1, 2))) == [DeploySubtasks(G2, None, ASSIGNMENT)]


def test_slots_that_do_not_deploy_in_time_are_evicted() -> None:
    history = deploying()
    history.at(20, SlotDeployed(G1, 0))
    assert history.machine.next_deadline_ms() == 2_010
    reason = "not deployed within 2000 ms"
    assert history.time(2_010) == [
        EvictSlot(1, 1, reason),
        phase(1, "detect", "deploy", ON_SLOT_1, f"slots 1: {reason}"),
        phase(1, "fence", "deploy", ON_SLOT_1, f"slots 1: {reason}"),
        HaltSubtasks(G1),
        phase(1, "promote", "deploy", ON_SLOT_1, f"slots 1: {reason}"),
    ]
    assert history.at(2_020, SlotLost(1, 1, "evicted")) == []
    assert without_phases(history.at(2_500, SlotRegistered(1, 2))) == [DeploySubtasks(G2, None, ASSIGNMENT)]


def test_commits_that_never_end_do_not_hold_up_the_end_of_the_job() -> None:
    history = running()
    history.at(40, failed(G1))
    assert history.at(10_000, CancelRequested()) == [StopSlots()]
    history.at(10_010, SlotStopped(0), SlotStopped(1))
    assert history.machine.next_deadline_ms() == 20_040
    (ended,) = history.time(50_000)
    assert isinstance(ended, EndJob)
    assert ended.state is JobState.CANCELLED


def test_no_last_checkpoint_is_a_failure_like_another() -> None:
    history = running()
    effects = history.at(40, FinalAbandoned(ONE, G1, "declined"))
    assert without_phases(effects) == [HaltSubtasks(G1), *INTERRUPTED]
    assert effects[0] == phase(1, "detect", "checkpoint", (), "no last checkpoint became complete: declined")


# ----------------------------------------------------------------------------------------------- limits and backoff


def test_so_many_failures_of_user_code_and_no_more() -> None:
    history = running(max_restarts=1)
    history.at(40, failed(G1), CommitsQuiesced())
    history.at(50, *deployed(G2))
    history.at(60, CheckpointCompleted(ONE))
    assert history.at(70, failed(G2, "again")) == [*INTERRUPTED, StopSlots()]
    assert history.at(80, SlotStopped(0), SlotStopped(1)) == []
    reason = "count[1]: again (failure 2, and max_restarts is 1)"
    assert history.at(90, CommitsQuiesced()) == [EndJob(JobState.FAILED, "the error", reason, "exception")]


def test_rare_failures_that_the_job_got_over_do_not_end_it() -> None:
    """One in eleven minutes, for weeks: each has left the window, and checkpoints are complete since."""
    history, generation, now_ms = running(max_restarts=1), 1, 1_000
    for number in range(1, 3000):
        history.at(now_ms, failed(Generation(generation)), CommitsQuiesced())
        generation += 1
        history.at(now_ms + 10, *deployed(Generation(generation)), CheckpointCompleted(CheckpointId(number)))
        assert history.state is JobState.RUNNING
        now_ms += 660_000
    history.at(now_ms, failed(Generation(generation)), CommitsQuiesced())
    history.at(now_ms + 10, *deployed(Generation(generation + 1)), CheckpointCompleted(CheckpointId(3000)))
    assert StopSlots() in history.at(now_ms + 599_999, failed(Generation(generation + 1), "again")), "in the window"


@pytest.mark.parametrize("local", [False, True])
def test_a_failure_that_comes_back_ends_the_job_however_long_it_takes(local: bool) -> None:
    """No checkpoint lies between: it is the same input, an hour later."""
    history, generation, now_ms = running(max_restarts=2), 1, 1_000
    history.at(now_ms, CheckpointCompleted(ONE))
    for _ in range(2):
        now_ms += 3_600_000
        if local:
            assert history.at(now_ms, THREW) == []
            continue
        history.at(now_ms, failed(Generation(generation)), CommitsQuiesced())
        generation += 1
        history.at(now_ms + 600, TimeAdvanced())
        history.at(now_ms + 610, *deployed(Generation(generation)))
        assert history.state is JobState.RUNNING
    now_ms += 3_600_000
    last = THREW if local else failed(Generation(generation))
    assert StopSlots() in history.at(now_ms, last)
    (ended,) = history.at(now_ms + 10, CommitsQuiesced(), SlotStopped(0), SlotStopped(1))
    assert isinstance(ended, EndJob)
    assert ended.error == "the error" and "failure 3, and max_restarts is 2" in ended.reason


def test_without_a_window_failures_count_for_good() -> None:
    history = running(max_restarts=1, restart_window_ms=None)
    assert history.at(1_000, THREW, CheckpointCompleted(ONE)) == []
    assert StopSlots() in history.at(10**10, THREW)


def test_slot_losses_are_forgiven_by_a_complete_checkpoint() -> None:
    history = running(max_slot_losses=1)
    now_ms, incarnation = 100, 1
    for number in range(1, 4):
        history.at(now_ms, SlotLost(1, incarnation, "died"), CommitsQuiesced())
        incarnation += 1
        history.at(now_ms + 10, SlotRegistered(1, incarnation))
        history.at(now_ms + 20, *deployed(Generation(number + 1)), CheckpointCompleted(CheckpointId(number)))
        assert history.state is JobState.RUNNING
        now_ms += 100
    history.at(now_ms, SlotLost(1, incarnation, "died"), CommitsQuiesced(), SlotRegistered(1, incarnation + 1))
    assert history.at(now_ms + 10, SlotLost(1, incarnation + 1, "died")) == [StopSlots()]
    (ended,) = history.at(now_ms + 20, SlotStopped(0))
    assert isinstance(ended, EndJob)
    assert "max_slot_losses is 1" in ended.reason


def test_the_first_recovery_is_at_once_and_the_following_ones_back_off() -> None:
    history = deploying(max_restarts=9)
    now_ms, delays = 1_000, []
    for number in range(1, 6):
        effects = history.at(now_ms, failed(Generation(number)))
        until_ms = now_ms
        while not any(isinstance(effect, DeploySubtasks) for effect in effects):
            deadline = history.machine.next_deadline_ms()
            assert deadline is not None
            until_ms = deadline
            effects = history.time(until_ms)
        delays.append(until_ms - now_ms)
        now_ms = until_ms + 10
    assert delays == [0, 100, 200, 300, 300]


def test_a_complete_checkpoint_ends_the_backoff() -> None:
    history = running()
    history.at(100, failed(G1), CommitsQuiesced())
    history.at(110, *deployed(G2), CheckpointCompleted(ONE))
    history.at(120, failed(G2))
    assert DeploySubtasks(G3, ONE, ASSIGNMENT) in history.at(120, CommitsQuiesced())


# --------------------------------------------------------------------------------------------- corrupt checkpoints


def test_a_corrupt_checkpoint_is_left_for_the_one_before_and_its_output_retracted() -> None:
    history = deploying(restore_from=TWO, available=(ONE, TWO), max_restarts=0)
    why = "checkpoint 2 cannot be restored: checksum"
    assert history.at(20, CheckpointRestoreFailed(G1, TWO, "checksum")) == [
        phase(1, "detect", "restore", (), why),
        phase(1, "fence", "restore", (), why),
        HaltSubtasks(G1),
        phase(1, "promote", "restore", (), why),
        RetractOutputAfter(ONE, why),
    ]
    assert (
        history.at(30, CheckpointRestoreFailed(G1, TWO, "checksum"), OutputRetracted(TWO), CheckpointDropped(TWO)) == []
    )
    assert history.at(40, OutputRetracted(ONE)) == [
        phase(1, "restore", "restore", (), why),
        DeploySubtasks(G2, ONE, ASSIGNMENT),
    ]
    assert RetractOutputAfter(None, "checkpoint 1 cannot be restored: gone") in history.at(
        50, CheckpointRestoreFailed(G2, ONE, "gone")
    )
    assert DeploySubtasks(G3, None, ASSIGNMENT) in history.at(60, OutputRetracted(None))
    assert history.at(70, *deployed(G3))[0] == StartSubtasks(G3)


def test_numbers_of_abandoned_checkpoints_do_not_confuse_later_ones() -> None:
    history = deploying(restore_from=TWO, available=(ONE, TWO))
    history.at(20, CheckpointRestoreFailed(G1, TWO, "checksum"), OutputRetracted(ONE))
    history.at(30, *deployed(G2))
    assert history.at(40, CheckpointCompleted(TWO)) == []
    assert history.machine.restore_from == ONE
    history.at(50, CheckpointCompleted(THREE))
    assert history.machine.restore_from == THREE


def test_starting_with_an_older_checkpoint_retracts_what_came_after_it() -> None:
    history = History(restore_from=ONE, available=(ONE, TWO))
    assert history.at(10, BOTH[0]) == [RetractOutputAfter(ONE, "the job starts from checkpoint 1")]
    assert history.at(20, BOTH[1]) == []
    assert history.at(30, OutputRetracted(ONE)) == [DeploySubtasks(G1, ONE, ASSIGNMENT)]


def with_recipes(**options: Any) -> History:
    history = History(None, (), **options)
    history.machine = JobProtocol(SUBTASKS, 2, RecoveryConfig(**options), started_ms=0, recipes=True)
    return history


def test_sinks_are_fenced_before_each_deployment() -> None:
    history = with_recipes(backoff_first_ms=100)
    assert history.at(10, BOTH[0]) == [FenceOutput(G1, None)], "before all slots are there"
    assert history.at(20, BOTH[1]) == []
    assert history.at(30, OutputFenced(G2)) == [], "of another deployment"
    assert history.at(40, OutputFenced(G1)) == [DeploySubtasks(G1, None, ASSIGNMENT)]
    history.at(50, *deployed(G1))
    history.at(60, CheckpointCompleted(ONE))
    history.at(70, SubtaskFailed(L0, G1, "boom", None))
    assert history.at(80, CommitsQuiesced())[-1] == FenceOutput(G2, ONE)
    assert history.at(90, OutputFenced(G2))[-1] == DeploySubtasks(G2, ONE, ASSIGNMENT)
    history.at(95, SubtaskFailed(L0, G2, "boom", None))
    assert FenceOutput(G3, ONE) in history.time(1_000), "again: what it had read may be old"


def test_a_deployment_of_another_generation_than_the_fence_is_fenced_again() -> None:
    history = with_recipes()
    history.at(10, BOTH[0], OutputFenced(G1))
    assert history.at(20, GenerationsUsed(G2)) == [FenceOutput(G3, None)]
    assert history.at(30, OutputFenced(G3), BOTH[1]) == [DeploySubtasks(G3, None, ASSIGNMENT)]


def test_recipes_that_cannot_be_read_end_the_job() -> None:
    for late in (False, True):
        history = with_recipes(quiesce_timeout_ms=5_000)
        history.at(10, *BOTH)
        stopping = history.time(5_010) if late else history.at(20, OutputFenceFailed(G1, "no answer"))
        assert stopping == [StopSlots()]
        (ended,) = history.at(5_020, SlotStopped(0), SlotStopped(1))
        assert isinstance(ended, EndJob) and ended.state is JobState.FAILED
        assert ("was not read within 5000 ms" if late else "could not be read: no answer") in ended.reason


def test_output_that_cannot_be_retracted_ends_the_job() -> None:
    history = deploying(restore_from=ONE, available=(ONE,))
    history.at(20, CheckpointRestoreFailed(G1, ONE, "checksum"))
    assert history.at(30, RetractionFailed(None, "read-only")) == [StopSlots()]
    (ended,) = history.at(40, SlotStopped(0), SlotStopped(1))
    assert ended == EndJob(
        JobState.FAILED, None, "the output committed after the start could not be retracted: read-only", "commit"
    )


def test_a_retraction_that_is_never_answered_ends_the_job() -> None:
    history = deploying(restore_from=ONE, available=(ONE,))
    history.at(20, CheckpointRestoreFailed(G1, ONE, "checksum"))
    assert history.machine.next_deadline_ms() == 20_020
    assert history.time(20_020) == [StopSlots()]


def test_dropped_checkpoints_are_no_fallback_and_fallbacks_are_bounded() -> None:
    history = running()
    history.at(30, *(CheckpointCompleted(CheckpointId(n)) for n in range(1, 4)), CheckpointDropped(TWO))
    history.at(40, failed(G1), CommitsQuiesced())
    assert RetractOutputAfter(ONE, "checkpoint 3 cannot be restored: x") in history.at(
        50, CheckpointRestoreFailed(G2, THREE, "x")
    )
    other = running()
    other.at(30, *(CheckpointCompleted(CheckpointId(n)) for n in range(1, MAX_FALLBACKS + 50)))
    assert other.at(31, *(CheckpointDropped(CheckpointId(n)) for n in range(1, 49))) == []


# ------------------------------------------------------------------------------------------------ commits and cancel


def test_the_final_commit_finishes_the_job_even_when_it_was_interrupted_or_had_failed() -> None:
    interrupted = running()
    interrupted.at(30, SlotLost(1, 1, "died"), CheckpointCompleted(ONE))
    assert interrupted.at(40, FinalCommitted(ONE), CommitsQuiesced()) == [StopSlots()]
    assert interrupted.at(50, SlotStopped(0)) == [EndJob(JobState.FINISHED, None, "", "")]
    had_failed = running(max_restarts=0)
    assert had_failed.at(30, failed(G1)) == [*INTERRUPTED, StopSlots()]
    had_failed.at(40, SlotStopped(0), SlotStopped(1))
    assert had_failed.at(50, FinalCommitted(ONE)) == [EndJob(JobState.FINISHED, None, "", "")]


def test_an_abandoned_commit_ends_the_job() -> None:
    history = running()
    assert history.at(30, CommitAbandoned(ONE, "403")) == [*INTERRUPTED, StopSlots()]
    assert history.at(40, SlotStopped(0), SlotStopped(1), CommitsQuiesced()) == [
        EndJob(JobState.FAILED, None, "output not committed: 403", "commit")
    ]


def test_a_commit_abandoned_while_draining_ends_the_job() -> None:
    history = running()
    history.at(30, failed(G1))
    assert history.at(40, CommitAbandoned(ONE, "403"), CommitsQuiesced()) == [StopSlots()]


def test_a_rollback_waits_for_what_is_being_written_so_long_and_no_longer() -> None:
    history = running()
    history.at(30, failed(G1))
    assert history.machine.next_deadline_ms() == 20_030
    assert history.time(20_029) == []
    assert history.time(20_030) == [StopSlots()], "it waits no second time"
    why = "output not committed: manifests or commits did not end within 20000 ms; resume the job"
    assert history.at(20_040, SlotStopped(0), SlotStopped(1)) == [EndJob(JobState.FAILED, None, why, "commit")]


def test_a_job_that_runs_waits_for_a_commit_without_end() -> None:
    history = running()
    assert history.machine.next_deadline_ms() is None
    assert history.time(10**9) == []
    history.at(10**9 + 1, failed(G1))
    assert without_phases(history.at(10**9 + 19_000, CommitsQuiesced())) == [DeploySubtasks(G2, None, ASSIGNMENT)]
    history.at(10**9 + 19_001, *deployed(G2))
    assert history.time(2 * 10**9) == []
    assert history.state is JobState.RUNNING


def test_an_end_behind_a_rollback_waits_as_long_as_that_would_have() -> None:
    history = running()
    history.at(30, failed(G1))
    assert history.at(15_000, CancelRequested(), SlotStopped(0), SlotStopped(1)) == [StopSlots()]
    assert history.time(20_029) == []
    why = "cancelled; output not committed: manifests or commits did not end within 20000 ms; resume the job"
    assert history.time(20_030) == [EndJob(JobState.CANCELLED, None, why, "commit")]


def test_a_last_commit_that_ends_after_its_deadline_finishes_the_job() -> None:
    history = running()
    history.at(30, failed(G1))
    history.time(20_030)
    history.at(20_040, FinalCommitted(ONE), SlotStopped(0))
    assert history.at(20_050, SlotStopped(1)) == [EndJob(JobState.FINISHED, None, "", "")]


def test_cancel_before_any_slot_is_there() -> None:
    assert History().at(1, CancelRequested()) == [EndJob(JobState.CANCELLED, None, "cancelled", "")]


def test_cancel_waits_for_slots_and_for_commits_in_flight() -> None:
    history = running()
    assert history.at(30, CancelRequested(), CancelRequested()) == [*INTERRUPTED, StopSlots()]
    assert history.at(40, SlotStopped(0), SlotStopped(1), SlotLost(1, 1, "gone"), failed(G1)) == []
    assert history.at(50, CommitsQuiesced()) == [EndJob(JobState.CANCELLED, None, "cancelled", "")]


def test_cancel_says_when_output_of_a_complete_checkpoint_stays_uncommitted() -> None:
    history = running()
    history.at(30, CancelRequested(), CommitAbandoned(ONE, "403"), SlotStopped(0))
    assert history.at(40, SlotStopped(1)) == [
        EndJob(JobState.CANCELLED, None, "cancelled; output not committed: 403", "commit")
    ]


def test_cancel_while_deploying_and_while_interrupted() -> None:
    history = deploying()
    assert history.at(20, CancelRequested(), *deployed(G1)) == [StopSlots()]
    other = running()
    other.at(30, SlotLost(0, 1, "died"))
    assert other.at(40, CancelRequested(), SlotRegistered(0, 2)) == [StopSlots(), StopSlots()]
    assert other.at(50, CommitsQuiesced(), SlotStopped(0)) == []
    assert other.time(1_040) == [EndJob(JobState.CANCELLED, None, "cancelled", "")]


def test_cancel_after_a_failure_that_ended_the_job_does_not_hide_it() -> None:
    history = running(max_restarts=0)
    history.at(30, failed(G1), CancelRequested(), CommitsQuiesced(), SlotStopped(0))
    (ended,) = history.at(40, SlotStopped(1))
    assert isinstance(ended, EndJob)
    assert ended.state is JobState.FAILED


# -------------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    history = deploying(restore_from=ONE, available=(ONE,))
    stranger = SubtaskId("count", 9)
    wrong: list[tuple[type[Exception], JobEvent]] = [
        (PeerProtocolError, SlotRegistered(2, 1)),
        (PeerProtocolError, SlotStartFailed(2, "no such slot", None)),
        (PeerProtocolError, SlotLost(-1, 1, "x")),
        (PeerProtocolError, SlotStopped(5)),
        (PeerProtocolError, SlotDeployed(G1, 2)),
        (PeerProtocolError, SlotDeployed(G2, 0)),
        (PeerProtocolError, failed(G2)),
        (PeerProtocolError, SubtaskFailed(stranger, G1, "x")),
        (PeerProtocolError, CheckpointRestoreFailed(G1, TWO, "x")),
        (InvariantViolation, CheckpointCompleted(TWO)),
        (InvariantViolation, CheckpointDropped(ONE)),
    ]
    for error, event in wrong:
        with pytest.raises(error):
            history.at(15, event)
    assert history.at(20, *deployed(G1)) == [StartSubtasks(G1)]


def test_a_job_that_cannot_be() -> None:
    for subtasks, slots, restore_from, available in (
        ((), 1, None, ()),
        ((L0, L0), 1, None, ()),
        ((L0,), 0, None, ()),
        ((L0,), 1, ONE, ()),
        ((L0,), 1, ONE, (TWO, ONE)),
    ):
        with pytest.raises(InvariantViolation):
            JobProtocol(subtasks, slots, RecoveryConfig(), started_ms=0, restore_from=restore_from, available=available)


@pytest.mark.parametrize(("name", "value"), [("max_restarts", -1), ("deploy_timeout_ms", 0), ("restart_window_ms", 0)])
def test_limits_are_checked(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=name):
        RecoveryConfig(**{name: value})


# -------------------------------------------------------------------------------------------------- local failover

LEFT = SlotLeft(1, 1, "stream broken")
THREW = FailureTakenOn("exception", G1, False, "count[1]: boom", "the error")
TOLD_SLOT = FailureTakenOn("slot", G1, False, "slot 1 was lost: stream broken", None)
REFUSED = FailoverFellBack("slot", ON_SLOT_1, "no standby of count[1] is left", None, True)


def refused(recovery: int, name: Phase) -> RecordRollbackPhase:
    return phase(recovery, name, "slot", ON_SLOT_1, "no standby of count[1] is left")


def test_a_running_job_goes_on_when_a_slot_leaves_and_another_takes_its_place() -> None:
    history = running()
    assert history.at(100, LEFT, TOLD_SLOT, SlotRegistered(1, 2)) == []
    assert history.state is JobState.RUNNING
    assert history.machine.next_deadline_ms() is None
    assert history.at(200, SlotLost(1, 1, "late news of the first one")) == []
    assert history.state is JobState.RUNNING


def test_a_slot_that_leaves_a_job_which_does_not_run_is_lost() -> None:
    history = deploying()
    effects = history.at(100, LEFT)
    assert without_phases(effects) == [HaltSubtasks(G1)]
    assert history.state is JobState.INTERRUPTED


def test_what_local_failover_refuses_rolls_back() -> None:
    history = running()
    assert history.at(100, LEFT, TOLD_SLOT) == []
    assert history.at(110, REFUSED) == [refused(1, "detect"), refused(1, "fence"), HaltSubtasks(G1), *INTERRUPTED]
    assert history.at(120, CommitsQuiesced()) == [refused(1, "promote")]
    assert history.at(130, SlotRegistered(1, 2)) == [refused(1, "restore"), DeploySubtasks(G2, None, ASSIGNMENT)]
    assert history.at(140, REFUSED) == []  # late: of the generation before


def test_a_deployment_takes_a_generation_above_those_that_failovers_used() -> None:
    history = running()
    assert history.at(100, GenerationsUsed(Generation(5)), GenerationsUsed(Generation(4))) == []
    assert history.machine.generation == G1
    assert HaltSubtasks(G1) in history.at(110, failed(G1))
    assert history.at(120, CommitsQuiesced())[-1] == DeploySubtasks(Generation(6), None, ASSIGNMENT)
    assert history.at(130, *deployed(G1)) == []
    assert StartSubtasks(Generation(6)) in history.at(140, *deployed(Generation(6)))
    assert HaltSubtasks(Generation(6)) in history.at(150, failed(Generation(6)))


def threw(generation: Generation, under_way: bool = False) -> FailureTakenOn:
    """A subtask of ``generation`` threw, and local failover recovers it."""
    return replace(THREW, generation=generation, under_way=under_way)


def test_exceptions_that_local_failover_takes_on_are_counted_as_well() -> None:
    history = running(max_restarts=2)
    assert history.at(100, THREW, GenerationsUsed(G2)) == []
    assert history.at(110, threw(G2), GenerationsUsed(G3)) == []
    assert history.at(9_000, CheckpointCompleted(ONE)) == []
    assert history.at(9_010, threw(G3)) == [*INTERRUPTED, StopSlots()]
    assert history.at(9_020, CommitsQuiesced(), SlotStopped(0), SlotStopped(1)) == [
        EndJob(JobState.FAILED, "the error", "count[1]: boom (failure 3, and max_restarts is 2)", "exception")
    ]


def test_what_was_running_when_a_recovery_began_and_fails_in_its_moment_is_part_of_it() -> None:
    history = running(max_restarts=1, same_moment_ms=500)
    assert history.at(100, THREW, GenerationsUsed(G2), threw(G1), threw(G1)) == []
    assert history.at(599, threw(G1)) == []
    assert history.at(600, threw(G1)) == [*INTERRUPTED, StopSlots()], "the moment is over"


def test_what_a_recovery_has_started_and_fails_again_is_a_failure_of_its_own() -> None:
    history = running(max_restarts=1)
    assert history.at(100, THREW, GenerationsUsed(G2)) == []
    assert history.at(100, threw(G2, under_way=True)) == [*INTERRUPTED, StopSlots()]


def test_a_recovery_counts_once_however_long_it_takes() -> None:
    history = running(max_restarts=1)
    assert history.at(100, THREW, GenerationsUsed(G2)) == []
    assert history.at(60_000, threw(G1, under_way=True)) == []
    assert history.at(60_000, threw(G1)) == [*INTERRUPTED, StopSlots()]


def test_a_recovery_is_not_over_while_a_slot_is_missing() -> None:
    """A job that rolls back waits for the slot, and no subtask could have thrown meanwhile."""
    history = running(max_restarts=0)
    assert history.at(100, TOLD_SLOT, LEFT, GenerationsUsed(G2)) == []
    assert history.at(4_000, threw(G1)) == []
    assert history.at(4_010, SlotRegistered(1, 2)) == []
    assert history.at(4_020, threw(G1)) == [*INTERRUPTED, StopSlots()]


def test_a_slot_that_stays_away_is_waited_for_as_long_as_by_a_rollback() -> None:
    history = running(max_restarts=0, restart_slot_timeout_ms=2_000)
    assert history.at(100, TOLD_SLOT, LEFT, GenerationsUsed(G2)) == []
    assert history.at(2_099, threw(G1)) == []
    assert history.at(2_100, threw(G1)) == [*INTERRUPTED, StopSlots()]


def test_the_moment_is_longer_by_the_delay_that_a_rollback_would_have() -> None:
    history = running(max_restarts=2, same_moment_ms=500, backoff_first_ms=1_000, backoff_max_ms=2_000)
    assert history.at(100, THREW, GenerationsUsed(G2)) == []
    assert history.at(2_000, threw(G2), GenerationsUsed(G3)) == []
    assert history.at(3_499, threw(G2)) == []
    assert history.at(3_500, threw(G2)) == [*INTERRUPTED, StopSlots()]


def test_slots_that_local_failover_replaces_are_counted_between_checkpoints() -> None:
    history = running(max_slot_losses=1)
    assert history.at(100, TOLD_SLOT, GenerationsUsed(G2)) == []
    assert history.at(110, CheckpointCompleted(ONE), replace(TOLD_SLOT, generation=G2), GenerationsUsed(G3)) == []
    assert StopSlots() in history.at(120, replace(TOLD_SLOT, generation=G3))


def test_a_checkpoint_that_completes_in_the_moment_of_an_exception_does_not_show_that_it_is_over() -> None:
    """It was begun before. The next failure is the second in a row, and the rollback waits."""
    history = running(backoff_first_ms=300, backoff_max_ms=1_000)
    assert history.at(100, THREW, GenerationsUsed(G2), CheckpointCompleted(ONE), threw(G2), GenerationsUsed(G3)) == []
    history.at(
        110, FailoverFellBack("exception", (SubtaskId("count", 1),), "again", "the error", True), CommitsQuiesced()
    )
    assert history.machine.next_deadline_ms() == 410


def test_slots_of_one_host_are_one_loss() -> None:
    history = running(max_slot_losses=1)
    assert history.at(100, TOLD_SLOT, GenerationsUsed(G2), TOLD_SLOT, GenerationsUsed(G3), TOLD_SLOT) == []
    assert history.state is JobState.RUNNING


def test_a_failure_is_counted_once_when_it_is_refused_after_all() -> None:
    history = running(max_slot_losses=1)
    assert history.at(100, LEFT, TOLD_SLOT) == []
    assert history.at(110, REFUSED)[0] == refused(1, "detect")
    assert history.state is JobState.INTERRUPTED


def test_a_refusal_that_was_not_counted_yet_is_counted() -> None:
    history = running(max_slot_losses=0)
    assert StopSlots() in history.at(100, FailoverFellBack("slot", ON_SLOT_1, "handover failed", None, False))


def test_a_job_that_stops_takes_no_notice_of_failovers() -> None:
    history = running(max_slot_losses=0)
    history.at(100, CancelRequested())
    assert history.at(110, TOLD_SLOT, REFUSED, GenerationsUsed(G4)) == []
    assert history.state is JobState.STOPPING


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_input_that_ends_processes_ends_the_job_whether_it_runs_or_waits_for_slots(interrupted: bool) -> None:
    history = running()
    if interrupted:
        history.at(90, SlotLost(1, 1, "it crashed"))
        assert history.state is JobState.INTERRUPTED
    effects = history.at(100, InputBlamed("the same input", "the error"))
    assert StopSlots() in effects
    (ended,) = history.at(110, CommitsQuiesced(), SlotStopped(0), *(() if interrupted else (SlotStopped(1),)))
    assert ended == EndJob(JobState.FAILED, "the error", "the same input", "exception")


# -------------------------------------------------------------------------------------------------------- spare slots


def test_nobody_waits_for_spare_slots_and_nothing_is_deployed_on_them() -> None:
    history = History()
    assert history.at(0, SpareAdded(2), SlotRegistered(2, 1)) == []
    effects = history.at(10, *(SlotRegistered(slot, 1) for slot in range(2)))
    (deploy,) = [effect for effect in effects if isinstance(effect, DeploySubtasks)]
    assert {slot for _, slot in deploy.assignment} == {0, 1}


@pytest.mark.parametrize("lost", [SlotLost(2, 1, "SIGKILL"), SlotLeft(2, 1, "SIGKILL"), SlotRegistered(2, 2)])
def test_a_lost_spare_slot_is_no_failure(lost: JobEvent) -> None:
    history = running(max_slot_losses=0)
    history.at(100, SpareAdded(2), SlotRegistered(2, 1))
    assert history.at(200, lost) == []
    assert history.machine.state is JobState.RUNNING


def test_a_spare_slot_that_cannot_start_is_no_failure() -> None:
    history = History(max_start_failures=0)
    cannot = SlotStartFailed(2, "no such library", "the error")
    assert history.at(0, SpareAdded(2), cannot, cannot) == []
    assert history.at(1, *BOTH) == [DeploySubtasks(G1, None, ASSIGNMENT)]


def test_the_end_waits_for_spare_slots_too() -> None:
    history = running()
    history.at(100, SpareAdded(2), SlotRegistered(2, 1))
    history.at(200, FinalCommitted(ONE))
    assert history.at(210, SlotStopped(0), SlotStopped(1)) == []
    assert history.at(220, SlotStopped(2)) == [EndJob(JobState.FINISHED, None, "", "")]


def test_one_that_was_taken_away_is_a_stranger() -> None:
    history = running()
    history.at(100, SpareAdded(2), SlotRegistered(2, 1), SpareRemoved(2))
    with pytest.raises(PeerProtocolError, match="slot 2 does not exist"):
        history.at(200, SlotRegistered(2, 2))
    with pytest.raises(InvariantViolation, match="only spare slots"):
        history.at(200, SpareRemoved(1))
