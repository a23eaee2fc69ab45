"""Planned moves: where a subtask is wanted, hosts that are emptied, slots that come back elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import (
    FailoverEffect,
    FallBack,
    FenceSlots,
    FormChains,
    PromoteStandbys,
    RecordFailoverPhase,
    ReportMove,
)
from chain_backup.failover.events import (
    HostDrainRequested,
    HostUndrainRequested,
    JobInterrupted,
    JobStarted,
    MoveRequested,
    RecordsWritten,
    SlotJoined,
    SlotLost,
    StandbyPromotionFailed,
    SubtaskFailed,
    VersionStaged,
)
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.placement import PlacementError
from chain_backup.failover.planned_members import with_target
from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import History, completed, of, only

L0, L1, L2, L3 = (SubtaskId("lines", index) for index in range(4))
C0, C1, C2, C3 = (SubtaskId("count", index) for index in range(4))
G1 = Generation(1)


def running(**options: int | bool | None) -> History:
    """Chains are (index, index + 1, index + 2), at four hosts with a slot each."""
    history = History(**options).started()
    history.checkpoint(1)
    return history


def reports(effects: list[FailoverEffect]) -> list[tuple[int, str]]:
    return [(report.request, report.status) for report in of(ReportMove, effects)]


def go_on(history: History, version: int) -> list[FailoverEffect]:
    """A checkpoint, and the handover that it may begin, to its end."""
    effects = history.checkpoint(version)
    if not history.active():
        return effects
    fenced = history.fence(effects)
    return [*effects, *fenced, *history.promote(fenced)]


def move(history: History, subtask: SubtaskId, slot: int, request: int = 1) -> list[FailoverEffect]:
    return history.at(history.now_ms, MoveRequested(request, subtask, slot))


# ------------------------------------------------------------------------------------------------------- migrations


def test_a_subtask_moves_to_a_slot_that_has_nothing_of_it() -> None:
    history = running()
    effects = move(history, C0, 3)
    assert only(ReportMove, effects) == ReportMove(1, "under_way", left=(C0,))
    chains = {subtask: members for subtask, _, members in only(FormChains, effects).chains}
    assert chains[C0] == (0, 1, 2, 3)  # it joins as the tail
    assert chains[L0] == (0, 1, 2)
    assert history.at(history.now_ms, *history.staged(1, C0)) == []  # it has what is complete: it must stay in step
    effects = go_on(history, 2)
    assert reports(effects) == [(1, "done")]
    assert only(PromoteStandbys, effects).subtasks == ((C0, 2),)
    assert only(PromoteStandbys, effects).slot == 3
    assert of(RecordFailoverPhase, effects)[0].reason == "count[0] moves to slot 3, as requested"
    assert history.machine.chains[C0] == (3, 1, 2)
    assert history.machine.heads[L0] == 0


def test_a_standby_takes_over_and_makes_room_for_its_predecessor() -> None:
    history = running()
    assert of(FormChains, move(history, C0, 1)) == []
    assert reports(go_on(history, 2)) == [(1, "done")]
    assert history.machine.chains[C0] == (1, 2, 0)


def test_a_moved_subtask_is_at_home_where_it_is() -> None:
    history = running()
    move(history, C0, 3)
    history.at(history.now_ms, *history.staged(1, C0))
    go_on(history, 2)
    for version in (3, 4):
        assert of(FenceSlots, go_on(history, version)) == []
    history.recover(history.at(900, SlotLost(3, 1, "SIGKILL")))
    assert history.machine.heads[C0] in (1, 2)
    history.at(1_000, SlotJoined(3, "host3"))
    history.at(1_000, *history.staged(4))
    assert 3 in [e.slot for v in (5, 6, 7) for e in of(PromoteStandbys, go_on(history, v))]
    assert history.machine.heads[C0] == 3


def test_a_move_needs_no_failback() -> None:
    history = running(failback=False)
    move(history, C0, 1)
    assert reports(go_on(history, 2)) == [(1, "done")]


def test_a_subtask_that_is_there_already_has_moved() -> None:
    history = running()
    assert reports(move(history, C0, 0)) == [(1, "under_way"), (1, "done")]


def test_a_later_request_takes_the_place_of_an_earlier_one() -> None:
    history = running()
    move(history, C0, 3)
    assert reports(move(history, C0, 1, request=2)) == [(1, "cancelled"), (2, "under_way")]
    history.at(history.now_ms, *history.staged(1, C0))
    assert history.machine.chains[C0] == (0, 1, 2)  # slot 3 has left
    assert reports(go_on(history, 2)) == [(2, "done")]


@pytest.mark.parametrize("host", ["host2", "host1"])
def test_a_move_that_a_drain_cancels_leaves_the_home_that_was_there(host: str) -> None:
    """Of ``count[0]``: slot 1, to which it was moved, while it is on its way to slot 2."""
    history = running()
    move(history, C0, 1)
    assert reports(go_on(history, 2)) == [(1, "done")]
    assert move(history, C0, 2, request=2)
    effects = history.at(history.now_ms, HostDrainRequested(3, host, force=True))
    plans = history.machine._planned
    if host == "host2":
        assert reports(effects)[0] == (2, "cancelled")
        assert plans.of(C0)[0] == 1
    else:
        assert (2, "cancelled") not in reports(effects)
        assert plans.of(C0)[0] == 2, "it is on its way elsewhere"
        cancelled = history.at(history.now_ms, SlotLost(2, 1, "SIGKILL"))
        assert (2, "cancelled") in reports(cancelled)
        assert plans.of(C0)[0] == 0, "where it was before cannot be its home"


def test_a_drain_takes_the_home_that_a_move_has_given() -> None:
    history = running()
    move(history, C0, 1)
    go_on(history, 2)
    history.at(history.now_ms, HostDrainRequested(2, "host1", force=True))
    assert history.machine._planned.of(C0)[0] == 0


def test_what_cannot_be_is_refused() -> None:
    history = running()
    history.recover(history.at(100, SlotLost(1, 1, "SIGKILL")))
    history.at(200, HostDrainRequested(1, "host2", force=True))
    for subtask, slot, told in (
        (C0, 4, "slot 4 does not exist"),
        (C0, -1, "slot -1 does not exist"),
        (C0, 1, "slot 1 is not registered"),
        (C0, 2, "slot 2 is on host host2, which is drained"),
    ):
        report = only(ReportMove, move(history, subtask, slot, request=7))
        assert report.status == "refused" and told in report.reason
    with pytest.raises(PeerProtocolError, match="not a subtask"):
        move(history, SubtaskId("sort", 0), 3)


def test_nobody_is_moved_where_rows_would_be_lost_by_it() -> None:
    history = running(handover=False)
    for event in (MoveRequested(1, C0, 1), HostDrainRequested(1, "host0"), HostUndrainRequested(1, "host0")):
        report = only(ReportMove, history.at(200, event))
        assert report.status == "refused" and "without a loss" in report.reason


@pytest.mark.parametrize("joined", [False, True], ids=["while it catches up", "when it has caught up"])
def test_a_move_ends_with_its_slot(joined: bool) -> None:
    history = running()
    move(history, C0, 3)
    if joined:
        history.at(history.now_ms, *history.staged(1, C0))
    effects = history.at(200, SlotLost(3, 1, "SIGKILL"))
    assert of(ReportMove, effects) == [ReportMove(1, "cancelled", "slot 3 was lost")]
    history.recover(effects)
    history.at(300, SlotJoined(3, "host3"))
    assert history.machine.heads[C0] == 0
    assert 3 not in history.machine.chains[C0]


def test_a_move_outlives_the_failure_of_others() -> None:
    history = running()
    move(history, C0, 3)
    history.recover(history.at(200, SlotLost(1, 1, "SIGKILL")))
    history.at(250, SlotJoined(1, "host1"))
    history.at(250, *history.staged(1))
    done = [report for version in (2, 3, 4) for report in reports(go_on(history, version))]
    assert done == [(1, "done")]
    assert history.machine.heads[C0] == 3


def test_a_handover_under_way_is_called_off_by_a_failure_and_comes_later() -> None:
    history = running()
    move(history, C0, 1)
    assert history.active() is False
    history.checkpoint(2)
    assert history.active()
    effects = history.at(history.now_ms, SubtaskFailed(C3, G1, "boom"))
    assert reports(effects) == []
    history.recover(effects)
    assert history.machine.heads[C0] == 0
    history.at(history.now_ms, *history.staged(2))
    done = [report for version in (3, 4) for report in reports(go_on(history, version))]
    assert done == [(1, "done")]


def test_nobody_is_told_of_a_handover_that_can_still_be_called_off() -> None:
    """A slot that joins just then is told where everybody is, and would not hear of it when it is called off."""
    history = running()
    move(history, C0, 1)
    history.checkpoint(2)
    assert history.active()
    assert (history.machine.heads[C0], history.machine.generations[C0]) == (0, 1)
    history.at(history.now_ms, RecordsWritten(1))
    assert (history.machine.heads[C0], history.machine.generations[C0]) == (1, 2)


def test_a_slot_that_cannot_take_over_ends_the_move() -> None:
    history = running()
    move(history, C0, 1)
    effects = history.fence(history.checkpoint(2))
    order = only(PromoteStandbys, effects)
    effects = history.at(history.now_ms, StandbyPromotionFailed(order.attempt, 1, C0, "checksum"))
    report = only(ReportMove, effects)
    assert report.status == "cancelled" and "checksum" in report.reason
    history.recover(effects)
    assert history.machine.heads[C0] == 2  # the last of the chain; its home is where it was before
    history.at(history.now_ms, *history.staged(2))
    go_on(history, 3)
    assert history.machine.heads[C0] == 0


def test_a_rollback_ends_moves_and_forgets_those_that_were_made() -> None:
    history = running()
    move(history, C1, 2)
    go_on(history, 2)
    move(history, C0, 3, request=2)
    assert reports(history.at(300, JobInterrupted())) == [(2, "cancelled")]
    history.started(version=2, generation=9)
    assert (history.machine.heads[C0], history.machine.heads[C1]) == (0, 1)
    assert history.machine.chains[C0] == (0, 1, 2)


def test_a_local_failover_that_is_given_up_ends_moves_first() -> None:
    history = running(replicas=2)
    move(history, C0, 3)
    effects = history.at(200, SlotLost(1, 1, "x"), SlotLost(2, 1, "x"))
    assert reports(effects) == [(1, "cancelled")]
    assert [type(effect) for effect in effects if isinstance(effect, ReportMove | FallBack)] == [
        ReportMove,
        FallBack,
    ]


@given(
    hosts=st.lists(st.sampled_from("abcd"), min_size=6, max_size=6),
    planned=st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
    slot=st.integers(0, 5),
)
def test_a_wish_leaves_a_chain_as_long_and_on_as_many_hosts(hosts: list[str], planned: list[int], slot: int) -> None:
    of_slot = dict(enumerate(hosts))
    wished = with_target(tuple(planned), slot, of_slot)
    assert wished[0] == slot
    assert len(set(wished)) == len(wished) == len(planned)
    assert set(wished) <= {*planned, slot}
    assert len({of_slot[member] for member in wished}) >= len({of_slot[member] for member in planned})


# ------------------------------------------------------------------------------------------------------------ drains


def drained(history: History, host: str, request: int = 1, force: bool = False) -> list[FailoverEffect]:
    return history.at(history.now_ms, HostDrainRequested(request, host, force))


def test_a_rollback_puts_nothing_onto_a_drained_host() -> None:
    history = running()
    drained(history, "host1")
    history.at(300, JobInterrupted())
    hosts = {slot: f"host{slot}" for slot in range(4)}
    begins = history.machine.deployment_slots(hosts)
    assert 1 not in begins.values() and begins[C0] == 0
    history.at(400, JobStarted(Generation(9), 2, (), tuple(hosts.items()), tuple(begins.items())))
    assert history.machine.heads == begins
    assert all(1 not in members for members in history.machine.chains.values())
    history.at(500, *history.persisted(3), *history.staged(3))
    assert of(FenceSlots, go_on(history, 4)) == [], "nothing has to be moved off it"


def test_a_rollback_uses_drained_hosts_when_there_are_no_others() -> None:
    history = running()
    drained(history, "host1", force=True)
    history.at(300, JobInterrupted())
    begins = history.machine.deployment_slots(dict.fromkeys(range(4), "host1"))
    assert begins == {subtask: subtask.index for subtask in begins}


def test_a_drained_host_that_slots_have_come_to_is_left_out_as_well() -> None:
    """Slot 2 is started again on the host that was drained for slot 1."""
    history = running()
    drained(history, "host1")
    history.at(300, JobInterrupted())
    begins = history.machine.deployment_slots({0: "host0", 1: "host1", 2: "host1", 3: "host3"})
    assert set(begins.values()) == {0, 3}


def test_a_deployment_on_a_slot_that_is_none_is_refused() -> None:
    history = History()
    hosts = tuple((slot, f"host{slot}") for slot in range(4))
    with pytest.raises(InvariantViolation, match="does not have"):
        history.machine.step(0, JobStarted(G1, 0, (), hosts, ((C0, 7),)))


def test_a_host_is_emptied_and_no_chain_gets_shorter() -> None:
    history = running()
    effects = drained(history, "host3")
    report = only(ReportMove, effects)
    assert report.status == "under_way"
    assert report.left == (C1, C2, C3, L1, L2, L3)
    chains = history.machine.chains
    assert chains[C1] == (1, 2, 3, 0) and chains[C2] == (2, 3, 0, 1) and chains[C3] == (3, 0, 1, 2)
    seen = []
    for event in history.staged(1):  # as each standby gets what is complete, one on host 3 leaves
        seen += of(ReportMove, history.at(history.now_ms, event))
    assert seen[-1].left == (C3, L3)  # the heads
    assert history.machine.chains[C1] == (1, 2, 0)
    effects = go_on(history, 2)
    assert reports(effects) == [(1, "done")]
    assert of(RecordFailoverPhase, effects)[0].reason == "host host3 is drained"
    assert all(len(members) == 3 and 3 not in members for members in history.machine.chains.values())
    assert history.machine.heads[C3] == history.machine.heads[L3] == 0


def test_a_drain_is_answered_at_once_also_while_something_fails_over() -> None:
    history = running()
    effects = history.at(100, SlotLost(1, 1, "SIGKILL"))
    assert reports(drained(history, "host3")) == [(1, "under_way")]
    history.recover(effects)
    assert 3 in history.machine.heads.values()


def test_a_head_waits_until_whoever_takes_its_place_in_the_chain_has_caught_up() -> None:
    history = running()
    drained(history, "host3")
    history.at(history.now_ms, *history.persisted(2), completed(2))
    late = [event for event in history.staged(2) if event == VersionStaged(C3, 2, G1, 2)]
    for event in history.staged(2):
        if event not in late:
            history.at(history.now_ms, event)
    assert history.machine.heads[C3] == 3 and not history.active()
    history.at(history.now_ms, *late)
    assert history.active() or history.machine.heads[C3] != 3 or history.recover(history.checkpoint(3))


def test_a_drained_host_gets_nothing_whatever_happens() -> None:
    history = running()
    drained(history, "host3", force=True)
    history.at(history.now_ms, *history.staged(1))
    go_on(history, 2)
    history.recover(history.at(500, SlotLost(1, 1, "SIGKILL")))
    history.at(510, SlotLost(3, 1, "SIGKILL"), SlotJoined(3, "host3"))
    assert all(3 not in members for members in history.machine.chains.values())
    history.at(600, JobInterrupted())
    history.started(version=2, generation=9)
    assert [s for s, members in history.machine.chains.items() if 3 in members] == [C3, L3]  # where all begin
    history.at(history.now_ms, *history.staged(2))
    go_on(history, 3)
    assert all(3 not in members for members in history.machine.chains.values())


def test_a_host_that_may_be_used_again_gets_its_work_back() -> None:
    history = running()
    drained(history, "host3")
    history.at(history.now_ms, *history.staged(1))
    go_on(history, 2)
    assert reports(history.at(300, HostUndrainRequested(2, "host3"))) == [(2, "done")]
    history.at(310, *history.staged(2))
    go_on(history, 3)
    assert history.machine.chains[C3] == (3, 0, 1) or set(history.machine.chains[C3]) == {3, 0, 1}
    assert history.machine.heads[C3] == 3


def test_a_drain_is_ended_by_an_undrain() -> None:
    history = running()
    drained(history, "host3")
    assert reports(history.at(300, HostUndrainRequested(2, "host3"))) == [(1, "cancelled"), (2, "done")]
    history.at(310, *history.staged(1))
    assert history.machine.chains == running().machine.chains


def test_a_drain_that_would_make_chains_shorter_must_be_forced() -> None:
    history = History(replicas=4).started()
    report = only(ReportMove, drained(history, "host3"))
    assert report.status == "refused" and report.at_risk
    assert "chains would have 3 members on 3 hosts, and have 4 members on 4 hosts now" in report.reason
    assert reports(drained(history, "host3", request=2, force=True))[0] == (2, "under_way")


def test_a_forced_drain_does_not_wait_for_slots_that_are_away() -> None:
    history = running()
    history.recover(history.at(100, SlotLost(0, 1, "SIGKILL")))
    history.at(history.now_ms, *history.staged(1))
    drained(history, "host3")
    history.at(history.now_ms, *history.staged(1))
    go_on(history, 2)
    assert history.machine.heads[C3] == 3  # slot 0 is to be in its chain, and away
    assert reports(drained(history, "host3", request=2, force=True))[0] == (1, "cancelled")
    done = [report for version in (3, 4, 5) for report in reports(go_on(history, version))]
    assert (2, "done") in done
    assert all(3 not in members for members in history.machine.chains.values())


def test_not_every_host_can_be_drained() -> None:
    history = running()
    for request, host in enumerate(("host0", "host1", "host2")):
        drained(history, host, request, force=True)
    report = only(ReportMove, drained(history, "host3", 9, force=True))
    assert report.status == "refused" and not report.at_risk and "no slot could take over" in report.reason
    report = only(ReportMove, drained(history, "host9", 10))
    assert report.status == "refused" and "no slot is on host host9; the hosts are host0, host1" in report.reason
    report = only(ReportMove, history.at(history.now_ms, HostUndrainRequested(11, "host3")))
    assert report.status == "refused" and "not drained" in report.reason


def test_a_drain_ends_moves_to_its_host() -> None:
    history = running()
    move(history, C0, 3)
    assert reports(drained(history, "host3", request=2))[:2] == [(1, "cancelled"), (2, "under_way")]
    history.at(history.now_ms, *history.staged(1))
    go_on(history, 2)
    assert history.machine.heads[C0] == 0


def test_heads_of_drained_hosts_are_evened_out_over_slots_and_then_over_hosts() -> None:
    """Six slots: three on host a, one on b, two on c; c is drained."""
    machine = FailoverProtocol(History().topology, 4, FailoverConfig(replicas=2))
    hosts = ((0, "a"), (1, "a"), (2, "b"), (3, "c"))
    machine.step(0, JobStarted(G1, 0, (), hosts))
    machine.step(0, HostDrainRequested(1, "c"))
    homes = [machine._planned.of(SubtaskId("count", index))[0] for index in range(4)]
    assert homes == [0, 1, 2, 2]  # two heads on each host, and no slot has more than another needs to


# ------------------------------------------------------------------------------------------------------ another host


def test_a_slot_that_comes_back_on_another_host_shares_it_with_nobody_of_its_chains() -> None:
    history = running(replicas=2)  # (0, 1), (1, 2), (2, 3), (3, 0)
    history.recover(history.at(100, SlotLost(1, 1, "SIGKILL")))
    history.at(200, SlotJoined(1, "host2"))
    for version in (2, 3, 4):
        history.at(history.now_ms, *history.staged(version - 1))
        go_on(history, version)
    history.at(history.now_ms, *history.staged(4))
    hosts = {0: "host0", 1: "host2", 2: "host2", 3: "host3"}
    for members in history.machine.chains.values():
        assert len({hosts[slot] for slot in members}) == 2
    assert sorted(history.machine.heads.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_strategy_that_cannot_place_a_slot_that_comes_back_changes_nothing() -> None:
    def picky(index: int, alive: tuple[int, ...], hosts: object, replicas: int) -> tuple[int, ...]:
        if "elsewhere" in dict(hosts).values():  # type: ignore[call-overload]
            raise PlacementError("not there")
        return (index, (index + 1) % 4)

    machine = FailoverProtocol(History().topology, 4, FailoverConfig(replicas=2), picky)
    machine.step(0, JobStarted(G1, 0, (), tuple((slot, f"host{slot}") for slot in range(4))))
    before = machine.chains
    machine.step(1, SlotLost(3, 1, "x"))
    machine.step(2, SlotJoined(3, "elsewhere"))
    assert [machine._planned.of(subtask)[0] for subtask in before] == [members[0] for members in before.values()]
