"""Spare slots in the driver: started, given up, ended; the machine of failover is real, Spark is a list of orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkplus.errors import InsufficientSlots, MoveCancelled, MoveRefused, PeerProtocolError, RedundancyAtRisk
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.membership.extra_slots import ENDING_S, ExtraSlots
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, Moves, PlannedMove
from flinkplus.runtime.coordinator.membership.spares import Spares, SpareState
from tests.unit.runtime.coordinator.failover_job import Job


class Clock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic


class Cluster:
    """Stands for ``SlotJobs``."""

    def __init__(self) -> None:
        self.room = 100
        self.started: list[int] = []
        self.ended: dict[int, float] = {}
        self._then: dict[int, Callable[[], None]] = {}

    def check(self, slots: int) -> None:
        if slots > self.room:
            raise InsufficientSlots(f"{slots} are more than {self.room}")

    def start(self, slot: int) -> None:
        self.started.append(slot)

    def end(self, slot: int, graceful_s: float, then: Callable[[], None]) -> None:
        self.ended[slot] = graceful_s
        self._then[slot] = then

    def over(self, *slots: int) -> None:
        for slot in slots:
            self._then.pop(slot)()


class World:
    """A job of three slots, each with a standby of the one before it."""

    def __init__(self) -> None:
        self.job = Job()
        self.clock = self.job.dispatch.clock = Clock()
        self.cluster = Cluster()
        job, requests = self.job, MoveRequests()
        calls: Any = job.calls
        self.spares = Spares(
            job.dispatch,
            job.machines,
            job.protocol,
            job.deployment,
            ExtraSlots(job.dispatch, job.machines, job.joining, calls, self.cluster),
            requests,
            30.0,
        )
        self.moves = Moves(calls, job.machines, requests, self.spares.scale, self.spares.take)
        job.driver._moves = self.moves
        self.job.told(control.Chains)

    def scale(self, count: int, force: bool = False) -> PlannedMove:
        return self.moves.scale(count, force)

    def comes(self, slot: int) -> None:
        """The process of a spare slot registers and joins."""
        process = self.job.register(slot)
        self.job.joining.begin(process)
        self.connect()
        self.spares.look()

    def connect(self) -> None:
        """Everybody answers the newest call."""
        calls = [message for _, message in self.job.wires.sent if isinstance(message, control.Connect)]
        for process in self.job.processes.all():
            self.job.driver.take(process, control.Connected(calls[-1].serial))

    def stage(self) -> None:
        """All standbys have what there is."""
        for subtask, slots in self.job.protocol.chains.items():
            for slot in slots[1:]:
                process = self.job.processes.get(slot)
                assert process is not None
                self.job.driver.take(process, control.Staged(1, str(subtask), 0))
        self.spares.look()

    @property
    def states(self) -> dict[int, str]:
        return {slot: state.value for slot, state in self.spares.states.items()}


@pytest.fixture
def world() -> World:
    return World()


def with_spares(count: int) -> World:
    world = World()
    world.scale(count)
    for slot in range(3, 3 + count):
        world.comes(slot)
    world.stage()
    return world


def test_slots_are_started_and_the_request_is_done_when_chains_have_them(world: World) -> None:
    move = world.scale(2)
    assert world.cluster.started == [3, 4]
    assert (move.status, move.left) == ("under_way", ["slot-3", "slot-4"])
    assert [event for event in world.job.heard if isinstance(event, core.SpareAdded)] == [
        core.SpareAdded(3),
        core.SpareAdded(4),
    ]
    world.comes(3)
    assert move.left == ["slot-4"]
    world.comes(4)
    assert move.status == "under_way" and "count[0]" in move.left
    world.stage()
    move.await_done(0)
    assert world.states == {3: "joined", 4: "joined"}
    used = {slot for chain in world.job.protocol.chains.values() for slot in chain}
    assert used == {0, 1, 2, 3, 4}


def test_they_end_when_nothing_is_on_them_and_cost_no_failure() -> None:
    world = with_spares(2)
    move = world.scale(0)
    assert world.states == {3: "leaving", 4: "leaving"} and world.cluster.ended == {}
    world.stage()
    assert world.cluster.ended == {3: ENDING_S, 4: ENDING_S}
    assert [connection for connection, message in world.job.wires.sent if message == control.Stop()] == [40, 50]
    peers = [message for _, message in world.job.wires.sent if isinstance(message, control.Connect)][-1]
    assert sorted(peers.addresses) == ["0", "1", "2"], "nobody tries to reach them any more"
    assert (move.status, move.left) == ("under_way", ["slot-3", "slot-4"])
    world.cluster.over(3, 4)
    move.await_done(0)
    assert world.states == {}
    assert world.job.heard[-2:] == [core.SpareRemoved(3), core.SpareRemoved(4)]
    assert not any(isinstance(event, core.FailureTakenOn) for event in world.job.heard)
    assert world.job.processes.numbers == [0, 1, 2] and world.job.stamps.counts["handovers"] == 0
    with pytest.raises(PeerProtocolError, match=r"slot 3 registered, but the job has only slots 0, 1, 2$"):
        world.job.register(3)
    assert world.scale(1).status == "under_way" and world.cluster.started == [3, 4, 5]


def test_slots_that_find_no_room_are_given_up_in_time(world: World) -> None:
    move = world.scale(2)
    world.comes(3)
    deadline_ms = world.spares.next_deadline_ms()
    assert deadline_ms == 130_001
    world.clock.now_s = 129.0
    world.spares.look()
    assert move.status == "under_way"
    world.clock.now_s = deadline_ms / 1000
    world.spares.look()
    why = (
        r"slot-4 had not been started by Spark, which may have no room for more after 30 s; cancelled; the job now has"
    )
    with pytest.raises(InsufficientSlots, match=why):
        move.await_done(0)
    assert world.cluster.ended == {4: 0.0} and world.states == {3: "joined", 4: "ending"}
    world.cluster.over(4)
    assert world.states == {3: "joined"} and world.spares.next_deadline_ms() is None
    world.stage()
    world.scale(1).await_done(0)


def test_what_the_master_has_no_room_for_is_refused_at_once(world: World) -> None:
    world.cluster.room = 4
    with pytest.raises(InsufficientSlots, match="scale to 2 spare slots: 5 are more than 4"):
        world.scale(2).await_answer(0)
    assert world.cluster.started == [] and world.states == {}
    world.scale(1)
    assert world.cluster.started == [3]


def test_a_job_of_one_slot_that_keeps_nothing_for_others_is_to_be_rescaled(world: World) -> None:
    world.job.deployment.alone = True
    with pytest.raises(MoveRefused, match="rescale it to two first"):
        world.scale(1).await_answer(0)
    assert world.cluster.started == []
    world.job.deployment.alone = False
    world.scale(1)
    assert world.cluster.started == [3]


def test_the_last_request_holds(world: World) -> None:
    first = world.scale(3)
    world.comes(3)
    second = world.scale(1)
    with pytest.raises(MoveCancelled, match="for another number of spare slots"):
        first.await_done(0)
    assert sorted(world.cluster.ended) == [4, 5], "those that were not there yet"
    world.cluster.over(4, 5)
    world.stage()
    second.await_done(0)
    third = world.scale(0)
    fourth = world.scale(2)
    assert third.status == "cancelled" and world.states == {3: "joined", 6: "starting"}
    world.comes(6)
    world.stage()
    fourth.await_done(0)
    assert world.states == {3: "joined", 6: "joined"}


def test_those_with_the_least_to_lose_go_first() -> None:
    world = with_spares(3)
    process = world.job.processes.get(4)
    assert process is not None
    world.job.lose(4)
    world.scale(2)
    assert [slot for slot, state in world.spares.states.items() if state is not SpareState.JOINED] == [4]
    assert 4 in world.cluster.ended, "it is nowhere, and so nothing is on it"
    world.cluster.over(4)
    world.job.deployment.assignment = {
        **world.job.deployment.assignment,
        next(iter(world.job.deployment.assignment)): 5,
    }
    world.scale(1)
    assert world.spares.states[3] in (SpareState.LEAVING, SpareState.ENDING)
    assert world.spares.states[5] is SpareState.JOINED, "work is on it"


def test_nothing_changes_when_copies_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_spares(1)
    monkeypatch.setattr(type(world.job.protocol._planned), "_loss", lambda *_: "there would be less")
    before = world.states
    with pytest.raises(RedundancyAtRisk, match="without slot 3, there would be less"):
        world.scale(0).await_answer(0)
    assert world.states == before and world.cluster.ended == {}
    assert world.scale(0, force=True).status == "under_way"


def test_a_job_that_does_not_run_is_not_scaled(world: World) -> None:
    world.job.state = JobState.INTERRUPTED
    with pytest.raises(MoveRefused, match="the job is interrupted"):
        world.scale(1).await_answer(0)
    world.moves.requests.close()
    with pytest.raises(MoveRefused, match="over"):
        world.scale(1).await_answer(0)
    job = Job(standbys=False)
    calls: Any = job.calls
    no_standbys = Moves(calls, job.machines, MoveRequests())
    with pytest.raises(MoveRefused, match="recovers by rollback"):
        no_standbys.scale(1, False).await_answer(0)


def test_a_request_goes_on_after_a_rollback(world: World) -> None:
    move = world.scale(1)
    world.job.state = JobState.INTERRUPTED
    world.job.register(3)
    world.spares.look()
    assert move.status == "under_way"
    world.job.state = JobState.RUNNING
    process = world.job.processes.get(3)
    assert process is not None
    world.job.joining.begin(process)
    world.connect()
    world.spares.look()
    world.stage()
    move.await_done(0)


def test_a_spare_slot_that_dies_before_it_has_joined_is_no_failure(world: World) -> None:
    world.scale(1)
    world.job.joining.begin(world.job.register(3))
    world.job.lose(3)
    assert not any(isinstance(event, core.FailureTakenOn) for event in world.job.heard)
    assert world.states == {3: "starting"}
