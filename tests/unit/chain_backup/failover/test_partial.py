"""Partial recovery, rule by rule: what failed goes back together with its upstreams, and nobody else does anything.

Four slots on four hosts; without standbys the chain of subtask number i is (i,), and it is planned for (i, i+1, i+2).
"""

from __future__ import annotations

import pytest

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
    RecordsRefused,
    RecordsWritten,
    SlotJoined,
    SlotLost,
    StandbyPromotionFailed,
    StandbysPromoted,
    SubtaskFailed,
)
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import FailureTakenOn
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import (
    THREE_STAGES,
    TWO_STAGES,
    History,
    completed,
    of,
    only,
    phase,
    phases,
    record,
    without_phases,
)

L0, L1, L2, L3 = LINES = tuple(SubtaskId("lines", index) for index in range(4))
W0, W1, W2, W3 = WORDS = tuple(SubtaskId("words", index) for index in range(4))
C0, C1, C2, C3 = (SubtaskId("count", index) for index in range(4))
G1, G2, G3 = (Generation(number) for number in range(1, 4))
KILLED = "slot 1: SIGKILL"


def running(topology: Topology = TWO_STAGES, /, version: int = 0, **options: int | bool | None) -> History:
    return History(topology, partial=True, **options).started(version)


def lost(slot: int = 1) -> SlotLost:
    return SlotLost(slot, 1, "SIGKILL")


def threw(subtask: SubtaskId, generation: int = 1) -> SubtaskFailed:
    return SubtaskFailed(subtask, Generation(generation), "boom", "the error")


def promoted(effects: object) -> dict[int, tuple[tuple[SubtaskId, int], ...]]:
    return {effect.slot: effect.subtasks for effect in of(PromoteStandbys, effects)}  # type: ignore[arg-type]


def test_without_standbys_a_chain_is_its_head() -> None:
    history = running(replicas=3)
    assert set(history.machine.chains.values()) == {(0,), (1,), (2,), (3,)}
    history.at(50, lost(3))
    history.at(60, SlotJoined(3, "host3"))
    assert all(len(members) == 1 for members in history.machine.chains.values())


def test_an_exception_takes_its_upstreams_back_and_everyone_stays_where_it_is() -> None:
    history = running()
    history.checkpoint(1)
    failed = history.at(100, threw(C1))
    moved = (C1, *LINES)
    assert failed == [
        FailureTakenOn("exception", G1, False, "count[1]: boom", "the error"),
        phase(1, "detect", "exception", (C1,), "count[1]: boom", moved),
        WriteRecords(1, tuple(record(s, 2, s.index, stable=1) for s in moved)),
        phase(1, "fence", "exception", (C1,), "count[1]: boom", moved),
        FenceSlots(1, G2, tuple((s, s.index) for s in moved), (0, 1, 2, 3)),
    ]
    restored = history.fence(failed)
    assert promoted(restored) == {
        0: ((L0, 1),),
        1: ((C1, 1), (L1, 1)),
        2: ((L2, 1),),
        3: ((L3, 1),),
    }
    assert only(ReplaceInCheckpoints, restored).subtasks == tuple((s, 1) for s in moved)
    assert [history.machine.generations[s] for s in (C0, C1, C2, C3, *LINES)] == [G1, G2, G1, G1, G2, G2, G2, G2]
    assert FinishFailover(1) in history.promote(restored)
    assert not history.active()


def test_of_a_source_that_fails_nobody_is_upstream() -> None:
    history = running(THREE_STAGES)
    restored = history.fence(history.at(100, threw(L2)))
    assert promoted(restored) == {2: ((L2, 0),)}


def test_of_a_middle_one_the_sources_are_upstream_and_consumers_are_not() -> None:
    history = running(THREE_STAGES)
    restored = history.fence(history.at(100, threw(W2)))
    assert promoted(restored) == {0: ((L0, 0),), 1: ((L1, 0),), 2: ((L2, 0), (W2, 0)), 3: ((L3, 0),)}


def test_what_was_on_a_lost_slot_begins_on_the_next_one_at_once() -> None:
    history = running(version=7)
    failed = history.at(100, lost())
    assert only(FenceSlots, failed).failed == ((C1, 2), (L0, 0), (L1, 2), (L2, 2), (L3, 3))
    assert only(FenceSlots, failed).slots == (0, 2, 3)
    restored = history.fence(failed)
    assert promoted(restored) == {0: ((L0, 7),), 2: ((C1, 7), (L1, 7), (L2, 7)), 3: ((L3, 7),)}
    assert only(FormChains, restored).chains == tuple(
        (s, G1 if s in (C0, C2, C3) else G2, (2,) if s.index == 1 else (s.index,)) for s in TWO_STAGES.subtasks
    )


def test_where_no_planned_slot_is_left_it_is_the_one_with_least_to_do() -> None:
    history = running(replicas=1)
    history.recover(history.at(100, lost(0)))
    assert history.machine.chains[C0] == (1,) and history.machine.chains[L0] == (2,), "one each, where fewest are"
    history.recover(history.at(200, lost(1)))
    assert sorted(history.machine.heads.values()) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_the_last_slot_lost_is_a_rollback() -> None:
    history = running()
    for slot in (0, 1, 2):
        history.at(100 + slot, lost(slot))
    (fallback,) = of(FallBack, history.at(104, lost(3)))
    assert "no slot for" in fallback.reason and str(C0) in fallback.reason
    assert not history.machine.heads


def test_a_version_needs_to_be_in_the_durable_store_only_and_logs_are_trimmed_at_once() -> None:
    history = running()
    assert history.at(50, *history.persisted(1)) == []
    assert history.at(51, completed(1)) == [TrimLogs(1)]
    history.at(52, *history.persisted(2, C1, *LINES))
    restored = history.fence(history.at(100, threw(C1)))
    assert {version for told in promoted(restored).values() for _, version in told} == {1}


def test_a_version_that_is_about_to_be_complete_is_not_gone_back_behind() -> None:
    history = running()
    history.checkpoint(1)
    history.at(50, *history.persisted(2))
    restored = history.fence(history.at(100, threw(C1)), 20)
    assert {version for told in promoted(restored).values() for _, version in told} == {2}


# ------------------------------------------------------------------------------------------ a failure in the middle


def test_a_further_failure_at_the_fence_joins_with_its_upstreams() -> None:
    history = running(THREE_STAGES)
    history.at(100, threw(L1))
    failed = history.at(101, threw(W2))
    assert only(FenceSlots, failed).failed == tuple((s, s.index) for s in (*LINES, W2))
    assert failed[:1] == [FailureTakenOn("exception", G1, True, "words[2]: boom", "the error")]
    assert failed[1] == phase(1, "detect", "exception", (L1, W2), "words[2]: boom", (*LINES, W2))


def test_whoever_is_not_upstream_of_a_further_failure_goes_on_being_promoted() -> None:
    history = running(THREE_STAGES)
    first = history.fence(history.at(100, threw(W2)))
    second = history.at(110, threw(L1, 2))
    assert only(FenceSlots, second).failed == ((L1, 1),)
    restored = history.fence(second)
    assert promoted(restored) == {1: ((L1, 0),)}
    assert history.at(120, *(StandbysPromoted(1, slot) for slot in promoted(first))) == []
    assert FinishFailover(1) in history.promote(restored)


def test_a_consumer_that_fails_while_its_producers_begin_takes_them_along() -> None:
    history = running()
    first = history.fence(history.at(100, threw(L1)))
    restored = history.fence(history.at(110, threw(C3)))
    assert promoted(restored) == {0: ((L0, 0),), 1: ((L1, 0),), 2: ((L2, 0),), 3: ((C3, 0), (L3, 0))}
    assert history.at(120, *(StandbysPromoted(1, slot) for slot in promoted(first))) == [], "not awaited any more"
    assert FinishFailover(1) in history.promote(restored)


def test_a_slot_lost_while_it_is_to_begin_makes_others_take_its_place() -> None:
    history = running()
    history.fence(history.at(100, lost(1)))
    restored = history.fence(history.at(110, lost(2)))
    assert promoted(restored) == {0: ((L0, 0),), 3: ((C1, 0), (C2, 0), (L1, 0), (L2, 0), (L3, 0))}


def test_the_same_subtask_twice_without_progress_is_a_rollback() -> None:
    history = running()
    history.recover(history.at(100, threw(C1)))
    (fallback,) = history.at(200, threw(C1, 2))
    assert isinstance(fallback, FallBack) and "the same input fails each successor" in fallback.reason


# --------------------------------------------------------------------------------------------------- what goes wrong


def test_a_place_that_refuses_is_not_tried_again() -> None:
    history = running(failback=False)
    restored = history.fence(history.at(100, threw(L1)))
    tried = [1]
    for _ in range(3):
        effects = of(PromoteStandbys, restored)
        failed = history.at(history.now_ms + 1, StandbyPromotionFailed(effects[0].attempt, tried[-1], L1, "disk"))
        tried.append(history.machine.heads[L1])
        restored = history.fence(failed)
    assert sorted(tried) == [0, 1, 2, 3]
    last = of(PromoteStandbys, restored)[0]
    assert history.at(history.now_ms + 1, StandbyPromotionFailed(last.attempt, tried[-1], L1, "disk")) == [
        FallBack(
            "exception",
            (L1,),
            f"lines[1] not promoted on slot {tried[-1]}: disk; no slot for lines[1] is left",
            "the error",
        )
    ]


def test_a_refusal_is_forgotten_when_all_is_over() -> None:
    history = running(failback=False)
    restored = history.fence(history.at(100, threw(L1)))
    number = only(PromoteStandbys, restored).attempt
    history.recover(history.at(110, StandbyPromotionFailed(number, 1, L1, "disk")))
    assert history.machine.heads[L1] == 2
    history.recover(history.at(120, lost(2)))
    assert history.machine.heads[L1] == 1


def test_zookeeper_refusing_is_a_rollback() -> None:
    history = running()
    history.at(100, threw(C1))
    assert of(FallBack, history.at(110, RecordsRefused(1, "stale")))


def test_what_is_not_known_to_all_cannot_be_proved() -> None:
    history = running(THREE_STAGES, sharing_depth=1)
    _, fallback = history.at(100, threw(W1))
    assert isinstance(fallback, FallBack) and "sharing_depth is 1" in fallback.reason


def test_a_slot_that_does_not_fence_is_evicted() -> None:
    history = running()
    answers = history.fenced(history.write(history.at(100, threw(C1))))
    history.at(102, *answers[:-1])
    effects = history.time(2_100)
    assert effects[0] == EvictSlot(3, None, "not fenced within 2000 ms")
    assert only(FenceSlots, effects).failed == ((C1, 1), (C3, 0), (L0, 0), (L1, 1), (L2, 2), (L3, 0))


# ------------------------------------------------------------------------------------------------------ going home


def test_work_goes_home_after_a_complete_checkpoint_and_takes_its_upstreams_back() -> None:
    history = running()
    history.recover(history.at(100, lost()))
    history.at(200, SlotJoined(1, "host1"))
    history.at(210, *history.persisted(1))
    ordered = history.at(220, completed(1))
    moved = (C1, *LINES)
    assert without_phases(ordered) == [
        TrimLogs(1),
        WriteRecords(2, tuple(record(s, 3, s.index, stable=1) for s in moved)),
    ]
    told = history.at(221, RecordsWritten(2))
    assert phases(told) == [(2, "fence")]
    restored = history.at(222, *history.fenced(told))
    assert promoted(restored) == {0: ((L0, 1),), 1: ((C1, 1), (L1, 1)), 2: ((L2, 1),), 3: ((L3, 1),)}
    history.promote(restored)
    assert history.machine.heads == {s: s.index for s in TWO_STAGES.subtasks}


def test_a_failure_before_anybody_was_told_calls_it_off() -> None:
    history = running()
    history.recover(history.at(100, lost()))
    history.at(200, SlotJoined(1, "host1"))
    history.at(220, *history.persisted(1), completed(1))
    effects = history.at(221, threw(C3))
    assert FinishFailover(2) in effects
    assert only(FenceSlots, effects).failed == ((C3, 3), (L0, 0), (L1, 2), (L2, 2), (L3, 3))
    assert history.machine.chains[C1] == (2,)


@pytest.mark.parametrize("failback", [True, False])
def test_it_goes_home_only_if_it_may_and_its_home_is_back(failback: bool) -> None:
    history = running(failback=failback)
    history.recover(history.at(100, lost()))
    if not failback:
        history.at(200, SlotJoined(1, "host1"))
    assert history.checkpoint(1) == [TrimLogs(1)]
    assert history.checkpoint(2) == [TrimLogs(2)]
