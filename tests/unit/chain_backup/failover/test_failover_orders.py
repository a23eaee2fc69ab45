"""Failures on top of failures: every order that two of them can come in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from chain_backup.failover.effects import (
    FailoverEffect,
    FallBack,
    FenceSlots,
    FinishFailover,
    FormChains,
    PromoteStandbys,
    ReplaceInCheckpoints,
    TrimLogs,
    WriteRecords,
)
from chain_backup.failover.events import (
    FailoverEvent,
    RecordsRefused,
    RecordsWritten,
    SlotFenced,
    SlotJoined,
    SlotLost,
    StandbysPromoted,
    SubtaskFailed,
    VersionStaged,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import (
    History,
    completed,
    of,
    only,
    phase,
    phases,
    record,
    without_phases,
)

L0, L1, L2, L3 = (SubtaskId("lines", index) for index in range(4))
C0, C1, C2, C3 = (SubtaskId("count", index) for index in range(4))
G1, G2, G3 = (Generation(number) for number in range(1, 4))


def running(**options: int | bool | None) -> History:
    history = History(**options).started()
    history.checkpoint(1)
    return history


def lost(slot: int) -> SlotLost:
    return SlotLost(slot, 1, "SIGKILL")


def threw(subtask: SubtaskId, generation: int) -> SubtaskFailed:
    return SubtaskFailed(subtask, Generation(generation), "boom")


def finish(history: History, effects: Sequence[FailoverEffect]) -> list[FailoverEffect]:
    """Answer everything that is ordered, until nothing is."""
    seen: list[FailoverEffect] = []
    todo = list(effects)
    for _ in range(20):
        seen += todo
        now_ms = history.now_ms + 1
        answers: list[FailoverEvent] = []
        for effect in todo:
            match effect:
                case WriteRecords(int(attempt)):
                    answers.append(RecordsWritten(attempt))
                case FenceSlots():
                    answers += history.fenced([effect])
                case PromoteStandbys(attempt, _, slot):
                    answers.append(StandbysPromoted(attempt, slot))
        todo = history.at(now_ms, *answers)
        if not answers:
            break
    return seen


def check_whole(history: History, *, lost_slots: tuple[int, ...] = ()) -> None:
    assert not history.active()
    assert history.machine.next_deadline_ms() is None
    for subtask, members in history.machine.chains.items():
        assert not set(members) & set(lost_slots)
        assert history.machine.heads[subtask] == members[0]


# ------------------------------------------------------------------------------------ two slots, at every phase

STAGES = ("told", "written", "half fenced", "fenced", "restore")
"""ZooKeeper and the slots are told at once. Nobody has answered; ZooKeeper has; and a slot; only the slots; all."""


def bring_to(history: History, stage: str, slot: int) -> list[FailoverEffect]:
    """A lost ``slot``, as far as ``stage``; the effects that still want an answer."""
    effects = history.at(100, lost(slot))
    fence = of(FenceSlots, effects)
    if stage == "told":
        return effects
    if stage == "fenced":
        assert history.at(102, *history.fenced(fence)) == []
        return [effect for effect in effects if isinstance(effect, WriteRecords)]
    history.write(effects)
    if stage == "written":
        return [*fence]
    answers = history.fenced(fence)
    if stage == "half fenced":
        history.at(102, answers[0])
        return [*fence]
    return history.at(102, *answers)


@pytest.mark.parametrize(("first", "second"), [p for p in itertools.permutations(range(4), 2)])
@pytest.mark.parametrize("stage", STAGES)
def test_any_second_slot_lost_in_any_phase(stage: str, first: int, second: int) -> None:
    """With three replicas, no two lost slots are too many. The second is in turn the head that was chosen, its
    standby, a survivor, and a slot of another chain."""
    history = running()
    stale = bring_to(history, stage, first)
    effects = finish(history, history.at(103, lost(second)))
    late = finish(history, stale)  # what was ordered before, answered after: all of it too late
    assert not of(FallBack, effects) and not of(FallBack, late)
    assert [done.number for done in of(FinishFailover, [*effects, *late])] == [1]
    check_whole(history, lost_slots=(first, second))
    heads = history.machine.heads
    assert all(heads[s] not in (first, second) for s in heads)
    history.at(200, SlotJoined(first, f"host{first}"), SlotJoined(second, f"host{second}"))
    assert all(len(members) == 3 for members in history.machine.chains.values())


@pytest.mark.parametrize("stage", STAGES)
def test_all_members_of_one_chain_lost_in_any_phase(stage: str) -> None:
    history = running()
    bring_to(history, stage, 1)
    history.at(110, lost(2))
    (fallback,) = history.at(111, lost(3))
    assert isinstance(fallback, FallBack)
    assert "no standby of count[1], lines[1] is left" in fallback.reason
    assert history.machine.next_deadline_ms() is None


def test_two_heads_lost_at_once_in_different_chains_are_one_attempt_after_the_union() -> None:
    history = running()
    first = history.at(100, lost(0))
    second = history.at(100, lost(2))
    assert [r.subtask for r in only(WriteRecords, first).records] == [C0, L0]
    assert [r.subtask for r in only(WriteRecords, second).records] == [C0, C2, L0, L2]
    assert {r.generation for r in only(WriteRecords, second).records} == {G3}
    assert only(FenceSlots, first) == FenceSlots(1, G2, ((C0, 1), (L0, 1)), (1, 2, 3))
    assert history.at(101, RecordsWritten(1), *history.fenced(first)) == [], "too late"
    assert only(FenceSlots, second) == FenceSlots(2, G3, ((C0, 1), (C2, 3), (L0, 1), (L2, 3)), (1, 3))


# -------------------------------------------------------------------------- what is being promoted goes on


def test_a_survivor_lost_while_standbys_are_promoted_leaves_them_alone() -> None:
    history = running()
    bring_to(history, "restore", 1)  # count[1] and lines[1] are being promoted on slot 2
    effects = history.at(110, lost(0))
    assert effects == [
        phase(1, "detect", "slot", (C0, C1, L0, L1), "slot 0: SIGKILL"),
        WriteRecords(2, (record(C0, 3, 2, stable=1), record(L0, 3, 2, stable=1))),
        phase(1, "fence", "slot", (C0, C1, L0, L1), "slot 0: SIGKILL"),
        FenceSlots(2, G3, ((C0, 2), (L0, 2)), (2, 3)),
    ]
    assert history.machine.generations[C1] == G2, "its generation stands, and so does its promotion"
    assert history.at(111, RecordsWritten(2)) == []
    assert history.at(112, StandbysPromoted(1, 2)) == [], "not all are at work yet"
    restored = history.at(113, *history.fenced(effects))
    assert only(PromoteStandbys, restored).subtasks == ((C0, 1), (L0, 1))
    done = history.at(114, StandbysPromoted(2, 2))
    assert phases(done) == [(1, "replay")]
    assert of(FinishFailover, done) == [FinishFailover(1)]


def test_whoever_is_just_being_promoted_need_not_say_what_it_has_received() -> None:
    """count[1] cannot answer for its channels while it is restored. It will have all that its version has."""
    history = running()
    bring_to(history, "restore", 1)
    fenced = history.write(history.at(110, lost(0)))
    silent = [
        SlotFenced(e.attempt, e.slot, tuple((c, s) for c, s in e.received if c.consumer != 1))
        for e in history.fenced(fenced)
        if isinstance(e, SlotFenced)
    ]
    restored = history.at(112, *silent)
    assert only(PromoteStandbys, restored).subtasks == ((C0, 1), (L0, 1))


def test_the_promoted_slot_lost_takes_the_next_member_and_the_version_stays() -> None:
    history = running()
    bring_to(history, "restore", 1)
    effects = history.at(110, lost(2))
    assert [r.members for r in only(WriteRecords, effects).records] == [(3,), (3, 0), (3,), (3, 0)]
    seen = finish(history, effects)
    assert only(PromoteStandbys, seen) == PromoteStandbys(2, G3, 3, ((C1, 1), (C2, 1), (L1, 1), (L2, 1)))
    assert history.at(130, StandbysPromoted(1, 2)) == []


def test_an_exception_of_a_subtask_that_was_just_promoted() -> None:
    history = running()
    bring_to(history, "restore", 1)
    effects = history.at(110, threw(C1, 2))
    assert only(WriteRecords, effects).records == (record(C1, 3, 3, stable=1),)
    seen = finish(history, effects)
    assert not of(FinishFailover, seen), "lines[1] is not at work yet"
    assert FinishFailover(1) in history.at(120, StandbysPromoted(1, 2))
    assert history.machine.chains[C1] == (3, 2)
    assert history.machine.chains[L1] == (2, 3)


def test_two_attempts_may_promote_on_the_same_slot() -> None:
    history = running()
    bring_to(history, "restore", 1)
    restored = history.fence(history.at(110, lost(0)))
    assert (only(PromoteStandbys, restored).attempt, only(PromoteStandbys, restored).slot) == (2, 2)
    assert history.at(113, StandbysPromoted(2, 2)) == []
    assert FinishFailover(1) in history.at(114, StandbysPromoted(1, 2))


# -------------------------------------------------------------------------------------------------- slots that rejoin


@pytest.mark.parametrize("stage", STAGES)
def test_a_slot_that_rejoins_in_the_middle_joins_its_chains_afterwards(stage: str) -> None:
    history = running(failback=False)
    pending = bring_to(history, stage, 1)
    assert history.at(103, SlotJoined(1, "host1")) == []
    effects = finish(history, pending)
    done = effects.index(FinishFailover(1))
    assert isinstance(effects[done + 2], FormChains)
    assert history.machine.chains[C1] == (2, 3, 1)
    assert history.machine.chains[C0] == (0, 2, 1)
    check_whole(history)


def test_a_slot_that_rejoined_is_fenced_in_the_next_attempt() -> None:
    history = running()
    bring_to(history, "written", 1)
    history.at(103, SlotJoined(1, "host1"))
    assert only(FenceSlots, history.at(104, lost(0))).slots == (1, 2, 3)


@pytest.mark.parametrize("stage", STAGES)
def test_rejoined_and_killed_again_at_once(stage: str) -> None:
    history = running()
    pending = bring_to(history, stage, 1)
    assert without_phases(history.at(103, SlotJoined(1, "host1"), lost(1))) == []
    effects = finish(history, pending)
    assert of(FinishFailover, effects) == [FinishFailover(1)]
    check_whole(history, lost_slots=(1,))


def test_rejoined_and_killed_again_when_all_was_over() -> None:
    history = running()
    finish(history, history.at(100, lost(1)))
    for number in range(5):
        joined = history.at(200 + number, SlotJoined(1, "host1"))
        assert history.machine.chains[C1] == (2, 3, 1) and of(FormChains, joined)
        left = history.at(200 + number, lost(1))
        assert history.machine.chains[C1] == (2, 3) and of(FormChains, left)
    check_whole(history, lost_slots=(1,))


def test_again_and_again_as_long_as_the_job_runs() -> None:
    history = running()
    version = 1
    for number in range(1, 12):
        slot = number % 4
        finish(history, history.at(history.now_ms + 10, lost(slot)))
        history.at(history.now_ms + 10, SlotJoined(slot, f"host{slot}"))
        for _ in range(2):
            version += 1
            finish(history, history.checkpoint(version))
        assert history.machine.heads == {s: s.index for s in history.machine.heads}, "back home each time"
        assert all(len(members) == 3 for members in history.machine.chains.values())
    assert history.machine._table.trimmed >= version - 1


# ---------------------------------------------------------------------------------- handovers that are interrupted


def handing_over() -> tuple[History, list[FailoverEffect]]:
    """count[1] and lines[1] are about to go from slot 2 back to slot 1; ZooKeeper has not answered yet."""
    history = running()
    finish(history, history.at(100, lost(1)))
    history.at(200, SlotJoined(1, "host1"))
    history.checkpoint(2)
    return history, [e for e in history.checkpoint(3) if not isinstance(e, TrimLogs)]


def test_a_handover_that_nobody_was_told_of_is_called_off_by_any_failure() -> None:
    for event in (lost(0), lost(1), lost(2), lost(3), threw(C0, 1), threw(C1, 2)):
        history, started = handing_over()
        effects = history.at(300, event)
        assert effects[0] == FinishFailover(2)
        seen = finish(history, [*effects[1:], *started])
        assert not of(FallBack, seen)
        assert history.machine.generations[L1] != G3 or history.machine.heads[L1] != 1
        check_whole(history)


def test_called_off_and_lost_target() -> None:
    history, _ = handing_over()
    effects = history.at(300, lost(1))
    assert history.machine.chains[C1] == (2, 3)
    assert history.machine.generations[C1] == G2
    records = {r.subtask: r for r in of(WriteRecords, effects)[0].records}
    assert records[C1] == record(C1, 2, 2, 3, stable=3), "ZooKeeper is told the old head again, and its generation"
    assert history.at(301, RecordsWritten(2), RecordsRefused(2, "late")) == []
    assert not history.active()


def test_called_off_and_the_old_head_lost() -> None:
    history, _ = handing_over()
    effects = history.at(300, lost(2))
    assert phases(effects) == [(3, "detect"), (3, "fence")]
    seen = finish(history, effects)
    assert of(FinishFailover, seen) == [FinishFailover(2), FinishFailover(3)]
    assert history.machine.heads[C1] == 3


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
@pytest.mark.parametrize("stage", ["fence", "restore"])
def test_a_handover_under_way_becomes_part_of_the_failover(stage: str, victim: int) -> None:
    history, started = handing_over()
    effects = history.at(300, RecordsWritten(only(WriteRecords, started).attempt or 0))
    if stage == "restore":
        effects = history.at(301, *history.fenced(effects))
    after = history.at(302, lost(victim))
    if victim == 3 and stage == "fence":
        assert only(WriteRecords, after).attempt == 3
    seen = finish(history, [*after, *effects])
    assert not of(FallBack, seen)
    assert [done.number for done in of(FinishFailover, seen)] == [2]
    assert {e.kind for e in seen if hasattr(e, "kind") and e in after} <= {"slot"}
    check_whole(history, lost_slots=(victim,))


def test_with_two_replicas_the_target_of_a_handover_lost_too_late_is_a_rollback() -> None:
    history = running(replicas=2)
    finish(history, history.at(100, lost(1)))
    history.at(200, SlotJoined(1, "host1"))
    history.checkpoint(2)
    started = history.checkpoint(3)
    assert history.machine.chains[C1] == (1,)
    history.at(300, RecordsWritten(of(WriteRecords, started)[-1].attempt or 0))
    (fallback,) = history.at(301, lost(1))
    assert isinstance(fallback, FallBack)


# ------------------------------------------------------------------------------ checkpoints in the middle of a failover


def test_a_checkpoint_that_completes_before_the_line_is_known_is_the_line() -> None:
    history = running()
    acknowledged = history.persisted(2)
    written = history.write(history.at(100, lost(1)))
    assert history.at(102, *acknowledged, completed(2)) == []
    restored = history.at(103, *history.fenced(written, 20))
    assert only(PromoteStandbys, restored).subtasks == ((C1, 2), (L1, 2)), "from the durable store, if need be"
    assert only(ReplaceInCheckpoints, restored).subtasks == ((C1, 2), (L1, 2))


def test_a_checkpoint_that_completes_after_the_line_is_known_was_acknowledged_anew_by_the_new_heads() -> None:
    history = running()
    others = [s for s in history.machine.heads if s not in (C1, L1)]
    history.at(99, *history.persisted(2, *others))
    restored = history.fence(history.at(100, lost(1)), 15)
    assert only(ReplaceInCheckpoints, restored).subtasks == ((C1, 1), (L1, 1))
    assert history.at(105, *history.persisted(2, C1, L1), completed(2)) == []
    assert history.promote(restored)[1] == FinishFailover(1)
    effects = history.at(110, *history.staged(2))
    assert effects[0] == TrimLogs(2)


def test_a_completed_checkpoint_forgives_an_exception_even_in_the_middle_of_a_failover() -> None:
    history = running(failback=False)
    finish(history, history.at(100, threw(C1, 1)))
    acknowledged = history.persisted(2)
    effects = history.at(200, lost(0))
    history.at(201, *acknowledged, completed(2))
    finish(history, effects)
    assert not of(FallBack, history.at(300, threw(C1, 2)))


def test_staged_answers_of_the_old_generation_count_until_the_line_is_known() -> None:
    history = running(pending_versions=True)
    history.at(99, *history.persisted(2, C1, L1))
    late = [VersionStaged(subtask, 2, G1, 2) for subtask in (C1, L1)]
    written = history.write(history.at(100, lost(1)))
    history.at(102, *late)
    received = [(ChannelId(0, 1, consumer), 19) for consumer in range(4)]
    assert only(PromoteStandbys, history.at(103, *history.fenced(written, received))).subtasks == ((C1, 2), (L1, 2))
    others = [subtask for subtask in history.topology.subtasks if subtask not in (C1, L1)]
    history.at(104, *history.persisted(2, *others), *history.staged(2, *others))
    history.at(105, *[VersionStaged(subtask, 3, G1, 2) for subtask in (C1, L1)])
    assert not history.machine.all_have(2), "and no longer"
    history.at(106, *[VersionStaged(subtask, 3, G2, 2) for subtask in (C1, L1)])
    assert history.machine.all_have(2)
