"""The machine of local failover, rule by rule: histories of events, and the whole list of effects.

Four slots on four hosts; chains are rings: the chain of subtask number i is (i, i+1, i+2).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import (
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
    HeadPersisted,
    JobInterrupted,
    JobStarted,
    RecipeFetchFailed,
    RecipesFetched,
    RecordsRefused,
    RecordsWritten,
    SlotFenced,
    SlotFencedPart,
    SlotJoined,
    SlotLost,
    StandbyPromotionFailed,
    StandbysPromoted,
    SubtaskFailed,
    VersionStaged,
)
from chain_backup.failover.handover import HANDOVER_PAUSE
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.recovery_line import VersionCursors
from chain_backup.failover.topology import Topology
from flinkplus.errors import ConfigurationError, InvariantViolation, PeerProtocolError
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import FailureTakenOn
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import (
    THREE_STAGES,
    TWO_STAGES,
    History,
    aborted,
    completed,
    cursors_of,
    of,
    only,
    phase,
    phases,
    record,
    without_phases,
)

L0, L1, L2, L3 = (SubtaskId("lines", index) for index in range(4))
C0, C1, C2, C3 = (SubtaskId("count", index) for index in range(4))
G1, G2, G3, G4 = (Generation(number) for number in range(1, 5))
ON_1 = (C1, L1)
KILLED = "slot 1: SIGKILL"


def running(topology: Topology = TWO_STAGES, /, version: int = 0, **options: int | bool | None) -> History:
    return History(topology, **options).started(version)


def lost(slot: int = 1) -> SlotLost:
    return SlotLost(slot, 1, "SIGKILL")


def threw(subtask: SubtaskId, generation: int = 1) -> SubtaskFailed:
    return SubtaskFailed(subtask, Generation(generation), "boom", "the error")


# ------------------------------------------------------------------------------------------------- forming chains


def test_a_deployment_forms_all_chains_anew() -> None:
    history = History()
    assert not history.machine.heads and not history.machine.chains
    hosts = tuple((slot, f"host{slot}") for slot in range(4))
    members = {0: (0, 1, 2), 1: (1, 2, 3), 2: (2, 3, 0), 3: (3, 0, 1)}
    assert history.at(0, JobStarted(G1, 0, (), hosts)) == [
        WriteRecords(None, tuple(record(s, 1, *members[s.index]) for s in TWO_STAGES.subtasks), whole=True),
        FormChains(tuple((s, G1, members[s.index]) for s in TWO_STAGES.subtasks)),
    ]
    assert history.machine.heads == {s: s.index for s in TWO_STAGES.subtasks}
    assert history.machine.generations == dict.fromkeys(TWO_STAGES.subtasks, G1)
    assert (history.active(), history.machine.newest_generation) == (False, G1)


def test_hosts_count_for_the_chains_of_a_deployment() -> None:
    history = History(replicas=2)
    history.at(0, JobStarted(G1, 0, (), ((0, "a"), (1, "a"), (2, "b"), (3, "b"))))
    assert [history.machine.chains[s] for s in (C0, C1, C2, C3)] == [(0, 2), (1, 3), (2, 0), (3, 1)]


# ------------------------------------------------------------------------------------------ one failover, in full


def test_a_lost_slot_from_detection_to_full_strength() -> None:
    history = running()
    history.checkpoint(1)
    assert history.at(100, lost()) == [
        phase(1, "detect", "slot", ON_1, KILLED),
        WriteRecords(1, (record(C1, 2, 2, 3, stable=1), record(L1, 2, 2, 3, stable=1))),
        phase(1, "fence", "slot", ON_1, KILLED),
        FenceSlots(1, G2, ((C1, 2), (L1, 2)), (0, 2, 3)),
    ]
    assert history.active()
    assert history.at(102, RecordsWritten(1)) == []
    received = tuple((ChannelId(0, 1, c), 10) for c in (0, 2, 3))
    assert history.at(103, SlotFenced(1, 2, received[1:2]), SlotFenced(1, 3, received[2:])) == []
    assert history.at(104, SlotFenced(1, 0, received[:1])) == [
        phase(1, "promote", "slot", ON_1, KILLED),
        phase(1, "restore", "slot", ON_1, KILLED),
        PromoteStandbys(1, G2, 2, ((C1, 1), (L1, 1))),
        WriteRecords(
            None,
            (
                record(C0, 1, 0, 2, stable=1),
                record(C3, 1, 3, 0, stable=1),
                record(L0, 1, 0, 2, stable=1),
                record(L3, 1, 3, 0, stable=1),
            ),
        ),
        FormChains(
            (
                (C0, G1, (0, 2)),
                (C1, G2, (2, 3)),
                (C2, G1, (2, 3, 0)),
                (C3, G1, (3, 0)),
                (L0, G1, (0, 2)),
                (L1, G2, (2, 3)),
                (L2, G1, (2, 3, 0)),
                (L3, G1, (3, 0)),
            )
        ),
        ReplaceInCheckpoints(((C1, 1), (L1, 1))),
    ]
    assert history.at(110, StandbysPromoted(1, 2)) == [phase(1, "replay", "slot", ON_1, KILLED), FinishFailover(1)]
    assert not history.active()
    assert (history.machine.heads[C1], history.machine.generations[C1]) == (2, G2)
    joined = history.at(500, SlotJoined(1, "host1"))
    assert only(FormChains, joined).chains[:2] == ((C0, G1, (0, 2, 1)), (C1, G2, (2, 3, 1)))
    assert [r.subtask for r in only(WriteRecords, joined).records] == [C0, C1, C3, L0, L1, L3]


def test_an_exception_moves_one_subtask_and_its_slot_joins_again_as_the_tail() -> None:
    history = running()
    failed = history.at(100, threw(C1))
    assert failed == [
        FailureTakenOn("exception", G1, False, "count[1]: boom", "the error"),
        phase(1, "detect", "exception", [C1], "count[1]: boom"),
        WriteRecords(1, (record(C1, 2, 2, 3),)),
        phase(1, "fence", "exception", [C1], "count[1]: boom"),
        FenceSlots(1, G2, ((C1, 2),), (0, 1, 2, 3)),
    ]
    restored = history.fence(failed)
    assert only(PromoteStandbys, restored) == PromoteStandbys(1, G2, 2, ((C1, 0),))
    assert without_phases(history.promote(restored))[:2] == [
        FinishFailover(1),
        WriteRecords(None, (record(C1, 2, 2, 3, 1),)),
    ]
    assert history.machine.chains[C1] == (2, 3, 1)
    assert history.machine.chains[L1] == (1, 2, 3)


def test_a_lost_standby_shortens_chains_and_fails_nothing_over() -> None:
    history = running(replicas=2)
    history.recover(history.at(100, lost(1)))
    history.at(200, SlotJoined(1, "host1"))
    effects = history.at(300, lost(1))
    assert history.machine.chains[C1] == (2,)
    assert effects == [
        WriteRecords(
            None, tuple(record(s, 1 if s.index == 0 else 2, 0 if s.index == 0 else 2) for s in (C0, C1, L0, L1))
        ),
        FormChains(tuple((s, history.machine.generations[s], history.machine.chains[s]) for s in TWO_STAGES.subtasks)),
    ]
    assert not history.active()


def test_standbys_are_missing_until_they_are_in_step() -> None:
    history = running()
    assert History().machine.missing == history.machine.missing == 0
    history.checkpoint(1)
    history.recover(history.at(100, lost(1)))
    assert history.machine.missing == 6, "slot 1 was in three chains of each stage"
    history.at(200, SlotJoined(1, "host1"))
    assert history.machine.missing == 6
    members = history.machine.chains
    joined = [subtask for subtask in TWO_STAGES.subtasks if 1 in members[subtask]]
    generations = history.machine.generations
    for left, subtask in zip(range(5, -1, -1), joined, strict=True):
        history.at(300, VersionStaged(subtask, 1, generations[subtask], 1))
        assert history.machine.missing == left


def test_the_first_standby_that_has_the_last_complete_version_is_promoted() -> None:
    history = running()
    history.at(10, *history.persisted(1), completed(1))
    history.at(20, *(VersionStaged(s, slot, G1, 1) for s, slot in ((C1, 3), (L1, 2), (L1, 3))))
    restored = history.fence(history.at(100, lost()))
    assert of(PromoteStandbys, restored) == [
        PromoteStandbys(1, G2, 2, ((L1, 1),)),
        PromoteStandbys(1, G2, 3, ((C1, 1),)),
    ]
    assert history.machine.chains[C1] == (3, 2)
    assert history.at(110, StandbysPromoted(1, 3)) == []
    assert FinishFailover(1) in history.at(111, StandbysPromoted(1, 2))


def test_when_no_standby_has_it_the_first_takes_it_from_the_durable_store() -> None:
    history = running(version=7)
    restored = history.fence(history.at(100, lost()))
    assert only(PromoteStandbys, restored) == PromoteStandbys(1, G2, 2, ((C1, 7), (L1, 7)))


# ----------------------------------------------------------------------------------------- ZooKeeper and the slots


def test_whichever_comes_last_lets_the_standbys_begin() -> None:
    """The records written, all slots fenced: the effects are the same, and come with the last of them."""
    history = running()
    failed = history.at(100, lost())
    assert history.at(101, *history.fenced(failed)) == []
    fenced_first = history.at(500, RecordsWritten(1))
    other = running()
    answers = other.fenced(other.at(100, lost()))
    assert other.at(101, RecordsWritten(1), *answers[:-1]) == []
    written_first = other.at(500, answers[-1])
    assert fenced_first == written_first
    assert phases(fenced_first) == [(1, "promote"), (1, "restore")]
    assert only(PromoteStandbys, fenced_first) == PromoteStandbys(1, G2, 2, ((C1, 0), (L1, 0)))


def test_the_two_have_deadlines_of_their_own() -> None:
    history = running()
    failed = history.at(100, lost())
    assert history.machine.next_deadline_ms() == 2_100
    answers = history.fenced(failed)
    history.at(200, *answers[:-1])
    assert history.machine.next_deadline_ms() == 2_100
    history.at(300, answers[-1])
    assert history.machine.next_deadline_ms() == 15_100
    assert history.time(2_100) == [], "who has fenced is not evicted, however long ZooKeeper takes"
    assert history.at(9_000, RecordsWritten(1))[0] == phase(1, "promote", "slot", ON_1, KILLED)
    assert history.machine.next_deadline_ms() == 14_000


def test_zookeeper_refusing_after_all_have_fenced_is_a_rollback() -> None:
    history = running()
    history.at(101, *history.fenced(history.at(100, lost())))
    assert history.at(102, RecordsRefused(1, "stale")) == [
        FallBack("slot", ON_1, f"{KILLED}; ZooKeeper refused the new chains: stale", None)
    ]
    assert history.at(103, RecordsWritten(1)) == []


def test_when_both_are_overdue_the_job_rolls_back_and_nobody_is_evicted() -> None:
    history = running(registry_timeout_ms=2_000)
    history.at(100, lost())
    assert history.time(2_100) == [
        FallBack("slot", ON_1, f"{KILLED}; ZooKeeper did not take the new chains within 2000 ms", None)
    ]


def test_a_slot_is_not_late_while_parts_of_its_answer_come() -> None:
    history = running()
    (fence,) = of(FenceSlots, history.at(300, threw(C1)))
    history.at(301, *(SlotFenced(fence.attempt, slot, ()) for slot in (0, 1, 2)))
    for now_ms in range(2_000, 20_000, 1_500):
        assert history.at(now_ms, SlotFencedPart(fence.attempt, 3), SlotFencedPart(fence.attempt + 1, 3)) == []
        if now_ms == 2_000:
            history.at(now_ms, RecordsWritten(fence.attempt))
    assert history.machine.next_deadline_ms() == now_ms + 2_000
    assert history.time(now_ms + 2_000)[0] == EvictSlot(3, None, "not fenced within 2000 ms")


def with_recipes() -> History:
    return running(replace(TWO_STAGES, recipes=("count",)))


def test_a_promotion_waits_until_the_recipes_of_the_failed_are_fetched() -> None:
    history = with_recipes()
    (fence,) = of(FenceSlots, history.at(100, lost()))
    assert fence.recipes == (C1,)
    assert not of(PromoteStandbys, history.at(101, RecordsWritten(1), *(SlotFenced(1, slot, ()) for slot in (0, 2, 3))))
    assert history.at(102, RecipesFetched(2)) == [], "of another attempt"
    assert only(PromoteStandbys, history.at(103, RecipesFetched(1))).subtasks == ((C1, 0), (L1, 0))


def test_a_further_failure_has_the_recipes_fetched_again() -> None:
    history = with_recipes()
    history.at(100, lost())
    (fence,) = of(FenceSlots, history.at(101, RecipesFetched(1), lost(3)))
    assert fence.recipes == (C1, C3)
    assert not of(PromoteStandbys, history.at(102, RecordsWritten(2), *(SlotFenced(2, slot, ()) for slot in (0, 2))))
    assert of(PromoteStandbys, history.at(103, RecipesFetched(2)))


def test_nothing_is_fetched_for_subtasks_without_a_recipe() -> None:
    history = with_recipes()
    (fence,) = of(FenceSlots, history.at(100, threw(L1)))
    assert fence.recipes == ()
    answers = [SlotFenced(1, slot, ()) for slot in range(4)]
    assert of(PromoteStandbys, history.at(101, RecordsWritten(1), *answers))


def test_recipes_that_are_not_fetched_make_the_job_roll_back() -> None:
    for late in (False, True):
        history = with_recipes()
        history.at(100, lost())
        history.at(101, RecordsWritten(1), *(SlotFenced(1, slot, ()) for slot in (0, 2, 3)))
        found = history.time(2_100) if late else history.at(102, RecipeFetchFailed(1, "away"))
        why = "was not read within 2000 ms" if late else "cannot be read: away"
        assert found == [FallBack("slot", ON_1, f"{KILLED}; the recipe of the output {why}", None)]


def test_a_slot_evicted_while_zookeeper_is_away_is_not_waited_for() -> None:
    history = running()
    history.recover(history.at(100, lost(3)))
    history.at(200, SlotJoined(3, "host3"))
    answers = history.fenced(history.at(300, threw(C1)))
    history.at(302, *(e for e in answers if isinstance(e, SlotFenced) and e.slot != 3))
    assert history.time(2_300) == [EvictSlot(3, None, "not fenced within 2000 ms")]
    assert history.machine.next_deadline_ms() == 15_300
    assert only(PromoteStandbys, history.at(4_000, RecordsWritten(2))).subtasks == ((C1, 0),)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_slot_without_a_head_lost_before_zookeeper_answers(fenced: bool) -> None:
    """Slot 3 is back, and only a standby. Whether it had fenced or not, it is no longer waited for; ZooKeeper is."""
    history = running()
    history.recover(history.at(100, lost(3)))
    history.at(200, SlotJoined(3, "host3"))
    answers = history.fenced(history.at(300, threw(C1)))
    told = [e for e in answers if isinstance(e, SlotFenced) and (fenced or e.slot != 3)]
    assert history.at(301, *told, lost(3)) == []
    restored = history.at(302, RecordsWritten(2))
    assert only(PromoteStandbys, restored) == PromoteStandbys(2, G3, 2, ((C1, 0),))
    assert all(3 not in members for _, _, members in only(FormChains, restored).chains)


def test_a_head_lost_after_all_have_fenced_begins_anew_with_both() -> None:
    history = running()
    history.at(101, *history.fenced(history.at(100, lost())))
    effects = history.at(102, lost(2))
    assert without_phases(effects) == [
        WriteRecords(2, (record(C1, 3, 3), record(C2, 3, 3, 0), record(L1, 3, 3), record(L2, 3, 3, 0))),
        FenceSlots(2, G3, ((C1, 3), (C2, 3), (L1, 3), (L2, 3)), (0, 3)),
    ]
    assert history.at(103, RecordsWritten(1)) == [], "of no use any more"
    assert only(PromoteStandbys, history.fence(effects)).attempt == 2


# ------------------------------------------------------------------------------------- which version they go on from


def half_a_checkpoint(history: History, version: int) -> None:
    """``version`` is persisted and staged for the subtasks of slot 1, and pending for all others."""
    history.at(history.now_ms, *history.persisted(version, *ON_1), *history.staged(version, *ON_1))


def test_a_pending_version_is_not_begun_from() -> None:
    history = running()
    history.checkpoint(1)
    half_a_checkpoint(history, 2)
    restored = history.fence(history.at(100, lost()))
    assert only(PromoteStandbys, restored).subtasks == ((C1, 1), (L1, 1))
    assert only(ReplaceInCheckpoints, restored).subtasks == ((C1, 1), (L1, 1))


def test_a_message_that_the_dead_head_had_not_delivered_is_not_lost() -> None:
    """lines[1] took version 2, when it had produced messages up to 18, and died. Its message 18 to count[3] never
    arrived, and exists nowhere else: whoever begins from version 2 will never send it."""
    history = running(pending_versions=True)
    history.checkpoint(1)
    half_a_checkpoint(history, 2)
    all_but_one = [(ChannelId(0, 1, 0), 19), (ChannelId(0, 1, 2), 19), (ChannelId(0, 1, 3), 18)]
    restored = history.fence(history.at(100, lost()), all_but_one)
    assert only(PromoteStandbys, restored).subtasks == ((C1, 1), (L1, 1))


def test_a_pending_version_may_be_begun_from_if_all_before_it_was_delivered() -> None:
    history = running(pending_versions=True)
    history.checkpoint(1)
    half_a_checkpoint(history, 2)
    restored = history.fence(history.at(100, lost()), 19)
    assert only(PromoteStandbys, restored).subtasks == ((C1, 2), (L1, 2))
    assert only(ReplaceInCheckpoints, restored).subtasks == ((C1, 2), (L1, 2))


def test_a_pending_version_must_be_staged_where_the_new_head_is() -> None:
    history = running(pending_versions=True)
    history.checkpoint(1)
    history.at(50, *history.persisted(2, *ON_1), VersionStaged(C1, 2, G1, 2), VersionStaged(L1, 3, G1, 2))
    restored = history.fence(history.at(100, lost()), 19)
    assert only(PromoteStandbys, restored).subtasks == ((C1, 1), (L1, 1))


@pytest.mark.parametrize("pending_versions", [True, False])
def test_an_aborted_version_is_not_begun_from(pending_versions: bool) -> None:
    history = running(pending_versions=pending_versions)
    history.checkpoint(1)
    half_a_checkpoint(history, 2)
    history.at(60, *history.persisted(2), aborted(2))
    restored = history.fence(history.at(100, lost()), 19)
    assert only(PromoteStandbys, restored).subtasks == ((C1, 1), (L1, 1))


def test_nobody_goes_back_behind_a_version_that_all_have_persisted() -> None:
    """Its manifest is being stored; when that is done, the output up to it is committed."""
    history = running()
    history.checkpoint(1)
    history.at(50, *history.persisted(2))
    restored = history.fence(history.at(100, lost()), 20)
    assert only(PromoteStandbys, restored).subtasks == ((C1, 2), (L1, 2))
    assert history.at(101, completed(2)) == []


def test_what_the_dead_head_acknowledged_last_counts_until_the_line_is_known() -> None:
    history = running()
    history.checkpoint(1)
    others = [s for s in TWO_STAGES.subtasks if s not in ON_1]
    late = history.persisted(2, *ON_1)
    history.at(50, *history.persisted(2, *others))
    written = history.write(history.at(100, lost()))
    assert history.machine.is_current(C1, G1) and not history.machine.is_current(C1, G2)
    history.at(102, *late)
    restored = history.at(103, *history.fenced(written, 20))
    assert only(PromoteStandbys, restored).subtasks == ((C1, 2), (L1, 2))
    assert history.machine.is_current(C1, G2) and not history.machine.is_current(C1, G1)


def test_what_it_acknowledges_after_that_has_no_effect() -> None:
    history = running()
    history.checkpoint(1)
    late = [*history.persisted(2, *ON_1), *history.staged(2, *ON_1)]
    restored = history.fence(history.at(100, lost()), 20)
    history.at(110, *late)
    history.promote(restored)
    history.at(120, *history.persisted(2, C0, C2, C3, L0, L2, L3))
    with pytest.raises(InvariantViolation, match="not all have"):
        history.at(130, completed(2))
    history.at(130, *history.persisted(2, *ON_1), completed(2))


def test_staged_versions_newer_than_the_line_are_void() -> None:
    history = running(failback=False)
    history.checkpoint(1)
    half_a_checkpoint(history, 2)
    history.recover(history.at(100, lost()))
    assert history.machine.all_have(1)
    history.at(200, *history.persisted(2), completed(2))
    history.at(201, *(e for e in history.staged(2) if isinstance(e, VersionStaged) and e.subtask not in ON_1))
    assert history.machine._table.trimmed == 1, (
        "slot 3 has a version 2 of slot 1's history, and none of its successor's"
    )
    assert history.at(202, *history.staged(2, *ON_1)) == [TrimLogs(2)]


def test_versions_of_a_failed_head_newer_than_the_line_are_void() -> None:
    history = running(failback=False)
    history.checkpoint(1)
    history.at(50, *history.persisted(2, *ON_1))
    history.recover(history.at(100, lost()))
    assert {max(history.machine._table[subtask].persisted) for subtask in ON_1} == {1}


def test_no_line_is_a_rollback() -> None:
    """What ``pending_versions`` costs: lines[1] began from version 2, which count[0] does not have, and has nothing
    older in its logs."""
    history = running(pending_versions=True)
    history.checkpoint(1)
    half_a_checkpoint(history, 2)
    history.promote(history.fence(history.at(100, lost()), 19))
    (fallback,) = history.fence(history.at(200, threw(C0)), 19)
    assert fallback == FallBack(
        "exception",
        (C0,),
        "count[0]: boom; no version to resume from: version 1 of count[0] cannot be used: lines[1] began from "
        "version 2",
        "the error",
    )


# ------------------------------------------------------------------------------------------------------- rollback


def test_all_members_lost_is_a_rollback() -> None:
    history = running()
    history.at(100, lost(1))
    history.at(101, lost(2))
    effects = history.at(102, lost(3))
    assert effects == [
        FallBack("slot", (C1, C2, C3, L1, L2, L3), "slot 3: SIGKILL; no standby of count[1], lines[1] is left", None)
    ]
    assert (history.active(), history.machine.heads, history.machine.next_deadline_ms()) == (False, {}, None)
    assert history.at(110, RecordsWritten(1), lost(0), SlotJoined(1, "host1")) == []
    history.started(generation=9)
    assert history.machine.heads[C1] == 1


def test_without_standbys_every_failure_is_a_rollback() -> None:
    history = running(replicas=1)
    assert history.at(100, lost()) == [
        FallBack("slot", ON_1, f"{KILLED}; no standby of count[1], lines[1] is left", None)
    ]
    other = running(replicas=1)
    assert other.at(100, threw(C1)) == [
        FailureTakenOn("exception", G1, False, "count[1]: boom", "the error"),
        FallBack("exception", (C1,), "count[1]: boom; no standby of count[1] is left", "the error"),
    ]


def test_what_cannot_be_proved_is_a_rollback() -> None:
    history = running(THREE_STAGES, sharing_depth=1)
    (fallback,) = history.at(100, lost())
    assert isinstance(fallback, FallBack)
    assert (
        "only words[1] knew the order of the steps of lines[1] (sharing_depth is 1), and it failed" in fallback.reason
    )


@pytest.mark.parametrize("depth", [None, 2])
def test_a_slot_of_three_stages_fails_over_when_determinants_go_far_enough(depth: int | None) -> None:
    history = running(THREE_STAGES, sharing_depth=depth)
    assert FinishFailover(1) in history.recover(history.at(100, lost()))


def test_one_subtask_of_three_stages_is_provable() -> None:
    history = running(THREE_STAGES)
    assert FinishFailover(1) in history.recover(history.at(100, threw(SubtaskId("words", 1))))


def test_a_producer_that_fails_while_its_consumer_repeats_its_own_work_is_a_rollback_for_a_while() -> None:
    words, lines = SubtaskId("words", 1), SubtaskId("lines", 2)
    for checkpoints, safe in ((0, False), (1, False), (2, True)):
        history = running(THREE_STAGES, failback=False, sharing_depth=1)
        history.recover(history.at(100, threw(words)))
        for version in range(1, checkpoints + 1):
            history.checkpoint(version)
        effects = history.at(200, threw(lines))
        assert bool(of(FallBack, effects)) is not safe
        if not safe:
            assert "only words[1] knew the order of the steps of lines[2]" in str(effects)
            assert "and it is still repeating" in str(effects)


@pytest.mark.parametrize("promoted", [False, True])
def test_a_subtask_that_does_not_repeat_what_was_done_is_a_rollback(promoted: bool) -> None:
    """Also while it is being promoted: what the others would go on with is not what it does."""
    history = running()
    effects = history.at(100, threw(C1))
    generation = 1
    if promoted:
        history.recover(effects)
        generation = 2
    error = SubtaskFailed(C2 if not promoted else C1, Generation(generation), "whim", "the error", False)
    *counted, fallback = history.at(200, error)
    expected = [FailureTakenOn("exception", Generation(2), False, f"{C1}: whim", "the error")] if promoted else []
    assert counted == expected, "in the middle of a recovery it is a part of that"
    assert fallback == FallBack("exception", (error.subtask,), f"{error.subtask}: whim", "the error")
    assert history.machine.heads == {}


def test_the_same_subtask_twice_without_progress_is_a_rollback() -> None:
    history = running()
    history.recover(history.at(100, threw(C1)))
    (fallback,) = history.at(200, threw(C1, 2))
    assert fallback == FallBack(
        "exception",
        (C1,),
        "count[1]: boom (again, without a complete checkpoint in between: the same input fails each successor)",
        "the error",
    )


def test_with_progress_in_between_or_another_subtask_it_is_not() -> None:
    history = running(failback=False)
    history.recover(history.at(100, threw(C1)))
    assert FinishFailover(2) in history.recover(history.at(200, threw(C2)))
    history.checkpoint(1)
    assert FinishFailover(3) in history.recover(history.at(300, threw(C1, 2)))


def test_zookeeper_refusing_or_silent_is_a_rollback() -> None:
    history = running()
    history.at(100, lost())
    assert history.at(101, RecordsRefused(9, "old")) == []
    assert history.at(102, RecordsRefused(1, "stale")) == [
        FallBack("slot", ON_1, f"{KILLED}; ZooKeeper refused the new chains: stale", None)
    ]
    other = running()
    other.at(101, *other.fenced(other.at(100, lost())))
    assert other.machine.next_deadline_ms() == 15_100
    assert other.time(15_099) == []
    assert other.time(15_100) == [
        FallBack("slot", ON_1, f"{KILLED}; ZooKeeper did not take the new chains within 15000 ms", None)
    ]


def test_an_interrupted_job_forgets_everything() -> None:
    history = running()
    history.at(100, lost())
    assert history.at(101, JobInterrupted(), RecordsWritten(1), *history.persisted(1)) == []
    assert (history.active(), history.machine.chains, history.machine.newest_generation) == (False, {}, G2)
    history.started(version=3, generation=3)
    assert history.machine.chains[C1] == (1, 2, 3)
    assert only(WriteRecords, history.at(200, lost())).attempt == 2


# ------------------------------------------------------------------------------------------------------- deadlines


def test_a_slot_that_does_not_fence_is_evicted_and_counts_as_lost() -> None:
    history = running()
    written = history.write(history.at(100, lost()))
    history.at(102, *(e for e in history.fenced(written) if isinstance(e, SlotFenced) and e.slot != 3))
    assert history.machine.next_deadline_ms() == 2_100
    evicted = history.time(2_100)
    assert evicted == [
        EvictSlot(3, None, "not fenced within 2000 ms"),
        phase(1, "detect", "slot", (C1, C3, L1, L3), "slots 3: not fenced within 2000 ms"),
        WriteRecords(2, (record(C1, 3, 2), record(C3, 3, 0), record(L1, 3, 2), record(L3, 3, 0))),
        phase(1, "fence", "slot", (C1, C3, L1, L3), "slots 3: not fenced within 2000 ms"),
        FenceSlots(2, G3, ((C1, 2), (C3, 0), (L1, 2), (L3, 0)), (0, 2)),
    ]
    assert history.at(2_110, lost(3), SlotFenced(1, 3, ())) == []
    assert FinishFailover(1) in history.recover(evicted)


def test_an_evicted_slot_without_a_head_is_not_waited_for() -> None:
    history = running()
    history.recover(history.at(100, lost(3)))
    history.at(200, SlotJoined(3, "host3"))
    written = history.write(history.at(300, threw(C1)))
    history.at(302, *(e for e in history.fenced(written) if isinstance(e, SlotFenced) and e.slot != 3))
    effects = history.time(2_300)
    assert effects[0] == EvictSlot(3, None, "not fenced within 2000 ms")
    assert only(PromoteStandbys, effects).attempt == 2


def test_standbys_that_are_not_promoted_in_time_leave_the_rest_of_their_chains() -> None:
    history = running()
    history.fence(history.at(100, lost()))
    assert history.machine.next_deadline_ms() == 5_102
    reason = "standbys not promoted on slots 2 within 5000 ms"
    assert history.time(5_102) == [
        phase(1, "detect", "slot", ON_1, reason),
        WriteRecords(2, (record(C1, 3, 3), record(L1, 3, 3))),
        phase(1, "fence", "slot", ON_1, reason),
        FenceSlots(2, G3, ((C1, 3), (L1, 3)), (0, 2, 3)),
    ]
    assert history.at(5_103, StandbysPromoted(1, 2)) == []


def test_a_promotion_that_fails_is_tried_with_the_next_member_then_rolls_back() -> None:
    history = running()
    history.fence(history.at(100, lost()))
    failed = history.at(110, StandbyPromotionFailed(1, 2, L1, "checksum"))
    reason = "lines[1] not promoted on slot 2: checksum"
    assert failed == [
        phase(1, "detect", "slot", ON_1, reason),
        WriteRecords(2, (record(C1, 3, 3), record(L1, 3, 3))),
        phase(1, "fence", "slot", ON_1, reason),
        FenceSlots(2, G3, ((C1, 3), (L1, 3)), (0, 2, 3)),
    ]
    assert history.at(111, StandbyPromotionFailed(1, 2, L1, "checksum")) == []
    restored = history.fence(failed)
    assert only(PromoteStandbys, restored) == PromoteStandbys(2, G3, 3, ((C1, 0), (L1, 0)))
    (fallback,) = history.at(120, StandbyPromotionFailed(2, 3, C1, "checksum"))
    assert fallback == FallBack(
        "slot",
        ON_1,
        "count[1] not promoted on slot 3: checksum; no standby of count[1], lines[1] is left",
        None,
    )


# ------------------------------------------------------------------------------------------- stable, trim, catch up


def test_logs_are_trimmed_when_a_version_is_complete_and_every_member_has_it() -> None:
    history = running()
    history.at(10, *history.persisted(1), *history.staged(1)[:-1], completed(1))
    assert history.machine.all_have(0) and not history.machine.all_have(1)
    assert history.at(11, history.staged(1)[-1]) == [TrimLogs(1)]
    assert history.machine.all_have(1)
    assert history.at(12, *history.staged(1), completed(1)) == []
    assert history.machine._table.trimmed == 1


def test_stable_but_not_complete_is_not_trimmed() -> None:
    history = running()
    history.at(10, *history.persisted(1), *history.staged(1))
    assert history.machine._table.trimmed == 0
    assert history.at(11, completed(1)) == [TrimLogs(1)]


def test_the_newest_version_that_all_have_is_trimmed_and_only_that() -> None:
    history = running()
    for version in (1, 2, 3):
        history.at(10, *history.persisted(version), completed(version))
    *most, last = history.staged(2)
    history.at(20, *most)
    assert history.at(21, last) == [TrimLogs(2)]


def test_nothing_is_trimmed_during_a_failover() -> None:
    history = running()
    history.checkpoint(1)
    staged = [e for e in history.staged(2) if isinstance(e, VersionStaged)]
    history.at(50, *history.persisted(2), completed(2), *staged[:-1])
    restored = history.fence(history.at(100, lost()), 20)
    assert history.at(110, *staged) == []
    assert history.promote(restored)[1:] == [FinishFailover(1), TrimLogs(2)]


def test_a_member_that_joins_does_not_count_before_it_has_caught_up() -> None:
    history = running(failback=False)
    history.checkpoint(1)
    history.recover(history.at(100, lost()))
    history.at(200, SlotJoined(1, "host1"))
    assert history.machine.chains[C1] == (2, 3, 1)
    without_1 = [e for e in history.staged(2) if isinstance(e, VersionStaged) and e.slot != 1]
    effects = history.at(210, *history.persisted(2), completed(2), *without_1)
    assert effects == [TrimLogs(2)]
    history.at(
        220, *history.persisted(3), *(e for e in history.staged(2) if isinstance(e, VersionStaged) and e.slot == 1)
    )
    without_1 = [e for e in history.staged(3) if isinstance(e, VersionStaged) and e.slot != 1]
    assert history.at(230, completed(3), *without_1) == [], "now it counts"
    assert history.at(240, *history.staged(3)) == [TrimLogs(3)]


def test_a_member_that_falls_too_far_behind_no_longer_counts_until_it_catches_up() -> None:
    history = running(max_versions_behind=2)
    trims = []
    for version in (1, 2, 3, 4):
        staged = [e for e in history.staged(version) if isinstance(e, VersionStaged) and (e.subtask, e.slot) != (C1, 3)]
        trims.append(history.at(version, *history.persisted(version), *staged, completed(version)))
    assert trims == [[], [], [TrimLogs(3)], [TrimLogs(4)]]
    history.at(10, VersionStaged(C1, 3, G1, 4))
    staged = [e for e in history.staged(5) if isinstance(e, VersionStaged) and (e.subtask, e.slot) != (C1, 3)]
    assert history.at(11, *history.persisted(5), *staged, completed(5)) == []


def test_a_lost_standby_may_be_what_the_trim_had_waited_for() -> None:
    history = running(failback=False)
    history.recover(history.at(100, lost(3)))
    history.at(110, SlotJoined(3, "host3"))
    history.checkpoint(1)
    without_3 = [e for e in history.staged(2) if isinstance(e, VersionStaged) and e.slot != 3]
    assert history.at(120, *history.persisted(2), completed(2), *without_3) == []
    assert history.at(130, lost(3))[-1] == TrimLogs(2)


def test_what_is_kept_is_bounded_even_when_no_checkpoint_ever_completes() -> None:
    history = running()
    for version in range(1, 3_000):
        history.at(version, *history.persisted(version), *history.staged(version), aborted(version))
    table = history.machine._table
    assert all(len(chain.persisted) <= 3 for chain in table)
    assert all(len(versions) <= 3 for chain in table for versions in chain.staged.values())
    assert len(table._aborted) <= 1_000


# --------------------------------------------------------------------------------------------------------- handover


def back_home(**options: int | bool) -> History:
    """Slot 1 died and is back, a tail of its own chains, with everything up to version 1; nothing has been moved."""
    history = running(**options)
    history.recover(history.at(100, lost()))
    history.at(200, SlotJoined(1, "host1"))
    history.at(210, *history.persisted(1), *history.staged(1))
    return history


def test_work_goes_home_after_a_complete_checkpoint() -> None:
    history = back_home()
    reason = "slot 1 is back"
    effects = history.at(300, completed(1))
    assert effects == [
        TrimLogs(1),
        phase(2, "detect", "handover", ON_1, reason),
        WriteRecords(2, (record(C1, 3, 1, 3, stable=1), record(L1, 3, 1, 3, stable=1))),
    ]
    written = history.at(301, RecordsWritten(2))
    assert written == [
        phase(2, "fence", "handover", ON_1, reason),
        FenceSlots(2, G3, ((C1, 1), (L1, 1)), (0, 1, 2, 3)),
    ]
    assert history.machine.next_deadline_ms() == 2_301
    restored = history.at(302, *history.fenced(written))
    assert only(PromoteStandbys, restored) == PromoteStandbys(2, G3, 1, ((C1, 1), (L1, 1)))
    done = history.promote(restored)
    assert done[:2] == [phase(2, "replay", "handover", ON_1, reason), FinishFailover(2)]
    assert history.machine.chains[C1] == (1, 3, 2), "who had it joins again, as the tail"


def test_it_waits_for_the_home_slot_to_have_all_of_it() -> None:
    history = running()
    history.recover(history.at(100, lost()))
    history.at(200, SlotJoined(1, "host1"))
    history.checkpoint(1)
    assert not history.active(), "it has come to version 1 after version 1 was complete"
    last = VersionStaged(L1, 1, G2, 2)
    history.at(300, *history.persisted(2), *(e for e in history.staged(2) if e != last))
    history.at(310, completed(2))
    assert not history.active()
    assert (2, "detect") in phases(history.at(320, last))


def test_failback_never() -> None:
    history = back_home(failback=False)
    assert history.at(300, completed(1)) == [TrimLogs(1)]


def test_one_handover_for_each_complete_checkpoint() -> None:
    history = running()
    history.recover(history.at(100, lost(0)))
    history.at(150, SlotJoined(0, "host0"))
    history.recover(history.at(160, lost(2)))
    history.at(170, SlotJoined(2, "host2"))
    history.checkpoint(1)
    effects = history.checkpoint(2)
    assert [r.subtask for r in of(WriteRecords, effects)[-1].records] == [C0, L0]
    history.recover(effects)
    assert not history.active()
    effects = history.checkpoint(3)
    assert [r.subtask for r in of(WriteRecords, effects)[-1].records] == [C2, L2]
    history.recover(effects)
    assert history.machine.heads == {s: s.index for s in TWO_STAGES.subtasks}
    history.checkpoint(4)
    assert not history.active()
    assert all(len(members) == 3 for members in history.machine.chains.values())


def test_a_handover_moves_only_what_is_provable_at_once() -> None:
    """lines[1] and words[1] are away from home. Moved together, nobody could tell what words[1] had made of whom."""
    lines, words = SubtaskId("lines", 1), SubtaskId("words", 1)
    history = running(THREE_STAGES, sharing_depth=1)
    for subtask in (lines, words):
        history.recover(history.at(100, threw(subtask)))
    history.checkpoint(1)
    for version, moved in ((2, lines), (3, words)):
        effects = history.checkpoint(version)
        assert [record.subtask for record in of(WriteRecords, effects)[-1].records] == [moved]
        history.recover(effects)
    assert history.machine.heads == {s: s.index for s in THREE_STAGES.subtasks}


def test_zookeeper_refusing_a_handover_calls_it_off() -> None:
    history = back_home()
    history.at(300, completed(1))
    assert history.at(301, RecordsRefused(2, "stale")) == [
        FinishFailover(2),
        WriteRecords(None, (record(C1, 2, 2, 3, 1, stable=1), record(L1, 2, 2, 3, 1, stable=1))),
        FormChains(tuple((s, history.machine.generations[s], history.machine.chains[s]) for s in TWO_STAGES.subtasks)),
    ]
    assert history.machine.heads[C1] == 2
    assert history.machine.generations[C1] == G2
    assert history.at(302, RecordsWritten(2), *history.staged(1)) == [], "and not again before the next checkpoint"
    assert (3, "detect") in phases(history.checkpoint(2))


def test_a_handover_that_zookeeper_does_not_answer_is_called_off() -> None:
    history = back_home()
    history.at(300, completed(1))
    assert history.time(15_300)[0] == FinishFailover(2)
    assert not history.active()


def could_not_go_home() -> History:
    """Slot 1 refused to take its work back, which is on slot 3 now."""
    history = back_home()
    history.fence(history.at(300, completed(1)))
    again = history.at(310, StandbyPromotionFailed(2, 1, C1, "disk full"))
    assert again[0] == phase(2, "detect", "handover", ON_1, "count[1] not promoted on slot 1: disk full")
    assert FinishFailover(2) in history.recover(again)
    assert history.machine.chains[C1] == (3, 1, 2)
    return history


def test_a_home_that_could_not_take_its_work_back_is_left_in_peace_for_a_while() -> None:
    history = could_not_go_home()
    for version in range(2, HANDOVER_PAUSE + 1):
        history.checkpoint(version)
        assert not history.active()
    history.checkpoint(HANDOVER_PAUSE + 1)
    assert history.active()


def test_or_until_it_has_joined_anew() -> None:
    history = could_not_go_home()
    history.at(400, lost(1), SlotJoined(1, "host1"))
    history.checkpoint(2)
    assert not history.active()
    assert (3, "detect") in phases(history.checkpoint(3))


# ------------------------------------------------------------------------------------------------ late and impossible


def test_late_and_doubled_answers_have_no_effect() -> None:
    history = running()
    noise: list[FailoverEvent] = [
        RecordsWritten(0),
        RecordsRefused(0, "x"),
        SlotFenced(0, 0, ()),
        StandbysPromoted(0, 2),
        StandbyPromotionFailed(0, 2, C1, "x"),
        SlotJoined(0, "host0"),
        VersionStaged(C1, 0, G1, 1),
        aborted(0),
        completed(0),
    ]
    assert history.at(10, *noise) == []
    effects = history.at(100, lost(), lost())
    assert len(of(WriteRecords, effects)) == 1
    assert history.at(101, *noise, StandbysPromoted(1, 2)) == []
    assert len(of(FenceSlots, effects)) == 1
    assert history.at(102, RecordsWritten(1), RecordsWritten(1)) == []
    answers = history.fenced(effects)
    restored = history.at(103, *noise, RecordsRefused(1, "late"), answers[0], *answers, *answers)
    restored += history.at(103, RecordsWritten(1), RecordsRefused(1, "late"))
    assert len(of(PromoteStandbys, restored)) == 1
    done = history.at(
        104, *noise, StandbysPromoted(1, 2), StandbysPromoted(1, 2), StandbyPromotionFailed(1, 2, C1, "late")
    )
    assert of(FinishFailover, done) == [FinishFailover(1)]
    assert history.at(105, threw(C1, 1), *noise) == [], "an exception of the dead generation"


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    history = running()
    stranger = SubtaskId("count", 9)
    hosts = tuple((slot, "h") for slot in range(4))
    wrong: list[tuple[type[Exception], FailoverEvent]] = [
        (PeerProtocolError, lost(4)),
        (PeerProtocolError, SlotJoined(-1, "h")),
        (PeerProtocolError, SlotFenced(1, 9, ())),
        (PeerProtocolError, StandbysPromoted(1, 9)),
        (PeerProtocolError, StandbyPromotionFailed(1, 2, stranger, "x")),
        (PeerProtocolError, threw(stranger)),
        (PeerProtocolError, threw(C1, 2)),
        (PeerProtocolError, HeadPersisted(C1, G2, 1, VersionCursors())),
        (PeerProtocolError, HeadPersisted(C1, G1, 1, cursors_of(L1, 1, TWO_STAGES))),
        (PeerProtocolError, VersionStaged(stranger, 1, G1, 1)),
        (InvariantViolation, completed(1)),
        (InvariantViolation, JobStarted(G2, 0, (), hosts)),
    ]
    for error, event in wrong:
        with pytest.raises(error):
            history.at(10, event)
    history.at(20, JobInterrupted())
    for event in (
        JobStarted(G1, 0, (), hosts),
        JobStarted(G2, -1, (), hosts),
        JobStarted(G2, 0, (), hosts[1:]),
        JobStarted(G2, 0, ((C1, cursors_of(L1, 1, TWO_STAGES)),), hosts),
    ):
        with pytest.raises(InvariantViolation):
            history.at(30, event)
    history.started(generation=2)
    assert not history.active()


@pytest.mark.parametrize(
    ("name", "value"), [("replicas", 0), ("fence_timeout_ms", 0), ("registry_timeout_ms", True), ("replicas", 2.5)]
)
def test_limits_are_checked(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=name):
        FailoverConfig(**{name: value})  # type: ignore[arg-type]


def test_a_bad_strategy_is_refused_before_the_job_starts() -> None:
    with pytest.raises(ConfigurationError, match="not the home"):
        FailoverProtocol(TWO_STAGES, 4, FailoverConfig(), lambda index, alive, hosts, replicas: (3,))


# ------------------------------------------------------------------------------------------------ what members have


def test_it_is_told_which_version_each_member_has() -> None:
    history = running()
    assert history.machine.holdings[0] == (C0, 1, 0, [(0, 0, False), (1, 0, False), (2, 0, False)])
    history.checkpoint(1)
    assert history.machine.holdings[0] == (C0, 1, 1, [(0, 1, False), (1, 1, False), (2, 1, False)])
    for event in history.persisted(2):
        history.at(history.now_ms, event)
    history.at(history.now_ms, VersionStaged(C0, 2, G1, 2))
    assert history.machine.holdings[0] == (C0, 1, 2, [(0, 2, False), (1, 1, False), (2, 2, False)])
    history.recover(history.at(100, lost()))
    history.at(200, SlotJoined(1, "host1"))
    assert history.machine.holdings[0][3][-1] == (1, None, True)
