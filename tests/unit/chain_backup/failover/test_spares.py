"""Spare slots in the machine of local failover: they join, take their part, and retire when nothing is on them."""

from __future__ import annotations

import pytest

from chain_backup.failover.chains import ChainTable
from chain_backup.failover.effects import FenceSlots, FormChains, PromoteStandbys, RecordFailoverPhase, ReportMove
from chain_backup.failover.events import (
    HostDrainRequested,
    HostUndrainRequested,
    JobInterrupted,
    ScaleRequested,
    SlotJoined,
    SlotLost,
    VersionStaged,
)
from chain_backup.failover.placement import members, near, spread
from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import TWO_STAGES, History, of, only
from tests.unit.chain_backup.failover.test_moves import go_on, move, reports, running

C0, C3 = SubtaskId("count", 0), SubtaskId("count", 3)
SPARE = 4


def in_step(history: History, version: int) -> None:
    """Standbys that have joined get what is complete."""
    history.at(history.now_ms, *history.staged(version))


def with_spare(host: str = "host4", **options: int | bool | None) -> History:
    """Four slots, one standby for each, and a spare slot that is in step. Chains: (0, 4), (1, 2), (2, 3), (3, 4)."""
    history = running(**{"replicas": 2, **options})
    history.at(history.now_ms, SlotJoined(SPARE, host))
    in_step(history, 1)
    return history


def slots_in_use(history: History) -> set[int]:
    return {slot for chain in history.machine.chains.values() for slot in chain}


def scale(history: History, *retiring: int, request: int = 1, force: bool = False) -> list[ReportMove]:
    return of(ReportMove, history.at(history.now_ms, ScaleRequested(request, retiring, force)))


def test_a_slot_that_nobody_knew_joins_and_takes_standbys() -> None:
    history = with_spare()
    assert [history.machine.chains[SubtaskId("count", index)] for index in range(4)] == [(0, 4), (1, 2), (2, 3), (3, 4)]
    assert history.machine.missing == 0
    assert scale(history) == [ReportMove(1, "under_way"), ReportMove(1, "done")]


def test_more_slots_are_told_to_be_there_when_all_chains_have_them() -> None:
    history = running(replicas=2)
    history.at(history.now_ms, SlotJoined(SPARE, "host4"))
    (report,) = scale(history)
    assert report.status == "under_way" and C0 in report.left and C3 in report.left
    told = [report for event in history.staged(1) for report in of(ReportMove, history.at(history.now_ms, event))]
    assert told[-1] == ReportMove(1, "done")
    assert [report.status for report in told[:-1]] == ["under_way"] * (len(told) - 1)
    assert all(len(chain) == 2 for chain in history.machine.chains.values()), "who made room has left"


def test_a_spare_slot_retires_when_the_others_have_what_it_had() -> None:
    history = with_spare()
    (report,) = scale(history, SPARE)
    assert report.status == "under_way" and C0 in report.left
    assert SPARE in slots_in_use(history), "those that take its place have nothing yet"
    effects = [effect for event in history.staged(1) for effect in history.at(history.now_ms, event)]
    assert reports(effects)[-1] == (1, "done")
    assert slots_in_use(history) == {0, 1, 2, 3} and not history.machine.is_alive(SPARE)
    assert all(len(chain) == 2 for chain in history.machine.chains.values())
    assert of(RecordFailoverPhase, effects) == [], "nothing at work has moved"


def test_work_on_a_spare_slot_is_handed_over_before_it_retires() -> None:
    history = with_spare()
    move(history, C0, SPARE)
    assert reports(go_on(history, 2)) == [(1, "done")] and history.machine.heads[C0] == SPARE
    scale(history, SPARE, request=2)
    in_step(history, 2)
    effects = go_on(history, 3)
    assert only(PromoteStandbys, effects).slot == 0
    assert of(RecordFailoverPhase, effects)[0].reason == "slot 4 retires"
    assert reports(effects)[-1] == (2, "done") and slots_in_use(history) == {0, 1, 2, 3}


def test_a_move_that_a_retirement_cancels_leaves_the_home_that_was_there() -> None:
    history = with_spare()
    move(history, C0, 1)
    in_step(history, 1)
    assert reports(go_on(history, 2)) == [(1, "done")]
    move(history, C0, SPARE, request=2)
    told = scale(history, SPARE, request=3)
    assert (told[0].request, told[0].status) == (2, "cancelled")
    assert history.machine._planned.of(C0)[0] == 1


def test_what_has_retired_does_not_come_back() -> None:
    history = with_spare()
    scale(history, SPARE)
    in_step(history, 1)
    assert history.at(200, SlotJoined(SPARE, "host4")) == [] and not history.machine.is_alive(SPARE)
    assert history.at(200, SlotLost(SPARE, 1, "SIGKILL")) == []
    assert history.at(200, VersionStaged(C0, SPARE, Generation(1), 1)) == []
    fence = only(FenceSlots, history.at(300, SlotLost(0, 1, "SIGKILL")))
    assert fence.slots == (1, 2, 3), "nobody waits for it"


def test_a_slot_that_never_joined_is_a_stranger() -> None:
    history = running()
    for stranger in (SlotLost(SPARE, 1, "SIGKILL"), VersionStaged(C0, SPARE, Generation(1), 1), SlotJoined(-1, "host")):
        with pytest.raises(PeerProtocolError, match="does not exist and never did"):
            history.at(200, stranger)


def test_fewer_slots_than_the_copies_need_are_refused_unless_forced() -> None:
    history = with_spare(replicas=5)
    (report,) = scale(history, SPARE)
    assert report.status == "refused" and report.at_risk
    assert report.reason == (
        "without slot 4, chains would have 4 members on 4 hosts, and have 5 members on 5 hosts now"
    )
    assert history.machine.missing == 0
    assert [report.status for report in scale(history, SPARE, request=2, force=True)] == ["under_way", "done"]
    assert all(len(chain) == 4 for chain in history.machine.chains.values())


def test_there_may_be_more_copies_with_a_spare_slot() -> None:
    history = running(replicas=5)
    assert history.machine.copies == 4 and history.machine.missing == 0
    history.at(history.now_ms, SlotJoined(SPARE, "host4"))
    assert history.machine.copies == 5 and history.machine.missing == len(TWO_STAGES.subtasks)
    in_step(history, 1)
    assert history.machine.missing == 0


def test_copies_do_not_come_to_share_a_host_by_it() -> None:
    history = History(replicas=2)
    history.started()
    for slot in range(1, 4):  # all but the spare slot are on one host
        history.recover(history.at(100 * slot, SlotLost(slot, 1, "SIGKILL")))
        history.at(100 * slot + 50, SlotJoined(slot, "host0"))
        in_step(history, 0)
    history.at(600, SlotJoined(SPARE, "elsewhere"))
    in_step(history, 0)
    assert all(SPARE in chain for chain in history.machine.chains.values())
    (report,) = scale(history, SPARE)
    assert report.at_risk and "on 1 host, and have 2 members on 2 hosts now" in report.reason


def test_it_can_be_wanted_again_before_it_has_retired() -> None:
    history = with_spare()
    scale(history, SPARE)
    first, *rest = scale(history, request=2)
    assert first == ReportMove(1, "cancelled", "a newer request scales the spare slots")
    in_step(history, 1)
    assert history.machine.is_alive(SPARE) and SPARE in slots_in_use(history)
    assert [report.status for report in rest] == ["under_way", "done"]


def test_nothing_is_moved_to_a_slot_that_retires() -> None:
    history = with_spare()
    scale(history, SPARE)
    report = only(ReportMove, move(history, C3, SPARE, request=2))
    assert report.status == "refused" and "slot 4 is about to end" in report.reason


def test_a_move_to_a_slot_that_is_to_retire_is_cancelled() -> None:
    history = with_spare()
    move(history, SubtaskId("count", 1), SPARE)
    first, *_ = scale(history, SPARE, request=2)
    assert first == ReportMove(1, "cancelled", "slot 4 is about to end, as requested")


def test_a_drained_hosts_work_goes_to_the_spare_slot() -> None:
    history = with_spare()
    history.at(200, HostDrainRequested(1, "host0"))
    in_step(history, 1)
    for version in (2, 3):
        go_on(history, version)
    assert history.machine.heads[C0] == SPARE, "which has nothing to do"
    history.at(history.now_ms, HostUndrainRequested(2, "host0"))


def test_the_last_host_that_stays_is_not_drained() -> None:
    history = with_spare(host="host4", replicas=2)
    scale(history, SPARE)
    for number, host in enumerate(("host0", "host1", "host2"), 2):
        history.at(200, HostDrainRequested(number, host, force=True))
    report = only(ReportMove, history.at(200, HostDrainRequested(9, "host3", force=True)))
    assert report.status == "refused" and "no slot could take over" in report.reason


def test_a_lost_spare_slot_is_one_of_the_members() -> None:
    history = with_spare()
    move(history, C0, SPARE)
    go_on(history, 2)
    history.recover(history.at(300, SlotLost(SPARE, 1, "SIGKILL")))
    assert history.machine.heads[C0] == 0 and history.machine.missing > 0
    history.at(400, SlotJoined(SPARE, "host4"))
    in_step(history, 2)
    assert history.machine.missing == 0


def test_a_rollback_begins_without_spare_slots_which_join_again() -> None:
    history = with_spare()
    history.at(200, JobInterrupted())
    history.started(version=1, generation=history.machine.newest_generation + 1)
    assert slots_in_use(history) <= {0, 1, 2, 3} and not history.machine.is_alive(SPARE)
    effects = history.at(300, SlotJoined(SPARE, "host4"))
    assert SPARE in slots_in_use(history) and of(FormChains, effects)


def test_one_that_is_to_retire_has_done_so_after_a_rollback() -> None:
    history = with_spare()
    scale(history, SPARE)
    history.at(200, JobInterrupted())
    history.started(version=1, generation=history.machine.newest_generation + 1)
    assert reports(history.at(300, SlotJoined(SPARE, "host4"))) == [(1, "done")]
    assert not history.machine.is_alive(SPARE)


def test_a_slot_is_not_taken_away_while_something_is_on_it() -> None:
    table = ChainTable(TWO_STAGES)
    table.form(lambda subtask: (subtask.index,), (0, 1, 2, 3), Generation(1), 0, {}, {})
    with pytest.raises(InvariantViolation, match="a slot with work was taken away"):
        table.keep((0, 1, 2))


def test_spare_slots_get_standbys_before_those_that_are_at_work() -> None:
    hosts = {slot: f"host{slot}" for slot in range(6)}
    chains = [members(spread, home, tuple(range(6)), hosts, 2, frozenset(range(4))) for home in range(4)]
    held = [slot for chain in chains for slot in chain[1:]]
    assert {4, 5} <= set(held)
    assert max(held.count(slot) for slot in range(4)) <= 1
    same = {slot: "here" if slot < 4 else "there" for slot in range(6)}
    chains = [members(spread, home, tuple(range(6)), same, 2, frozenset(range(4))) for home in range(4)]
    assert {slot for chain in chains for slot in chain[1:]} == {4, 5}, "hosts come first"
    assert members(near, 0, tuple(range(6)), hosts, 2, frozenset(range(4))) == (0, 1)
