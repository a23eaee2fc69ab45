"""Another parallelism in the driver: slots that start and end around the switch; Spark is a list of orders, the
machine of the job is played by the tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flinkplus.config import Options
from flinkplus.errors import (
    ConfigurationError,
    CorruptCheckpoint,
    InsufficientSlots,
    MoveCancelled,
    MoveRefused,
    StateError,
)
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import JobState, ReportRescale
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.commands.moves import check_parallelism
from flinkplus.runtime.coordinator.membership.extra_slots import ENDING_S, ExtraSlots
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, Moves, PlannedMove
from flinkplus.runtime.coordinator.membership.prefetching import LITTLE_BYTES, MAX_ROUNDS
from flinkplus.runtime.coordinator.membership.rescales import Rescales
from tests.unit.runtime.coordinator.failover_job import Inline, Job
from tests.unit.runtime.coordinator.membership.test_spares import Clock, Cluster


class World:
    """A job of three slots."""

    def __init__(self, standbys: bool = True, **options: Any) -> None:
        self.job = job = Job(standbys)
        self.clock = job.dispatch.clock = Clock()
        self.cluster = Cluster()
        self.overtaken: set[int] = set()
        self.checked: list[tuple[int, int]] = []
        self.refused: dict[int, Exception] = {}
        self.stored: dict[str, tuple[StateFile, ...]] = {}
        self.answers = True
        job.dispatch.storage = Inline()  # type: ignore[assignment]
        requests, calls = MoveRequests(), job.calls
        recovery = "standby" if standbys else "rollback"
        given = Options(**{"parallelism": 3, "recovery": recovery, **options})
        self.rescales = Rescales(
            job.dispatch,
            job.machines,
            ExtraSlots(job.dispatch, job.machines, job.joining, calls, self.cluster),  # type: ignore[arg-type]
            requests,
            self.handles,
            self,  # type: ignore[arg-type]
            ("lines", "count"),
            given,
            30.0,
        )
        self.moves = Moves(calls, job.machines, requests, _rescale=self.rescales.begin)  # type: ignore[arg-type]
        job.listening.pending = set()

    def handles(self, checkpoint: CheckpointId) -> Any:
        if checkpoint == 99:
            raise CorruptCheckpoint("damaged")
        return {"count[0]": SimpleNamespace(overtaken=checkpoint in self.overtaken)}

    def check(self, checkpoint: CheckpointId, parallelism: int) -> None:
        self.checked.append((checkpoint, parallelism))
        if checkpoint in self.refused:
            raise self.refused[checkpoint]

    def files(self, checkpoint: CheckpointId, parallelism: int) -> dict[SubtaskId, tuple[StateFile, ...]]:
        if checkpoint in self.refused:
            raise self.refused[checkpoint]
        return {
            SubtaskId("count", at): tuple(replace(file, name=f"{checkpoint}-{file.name}") for file in files)
            for at, files in enumerate(self.stored.values())
        }

    def orders(self) -> dict[int, control.Prefetch]:
        """The orders to fetch files since the last call, by slot."""
        slots = {process.connection: process.slot for process in self.job.processes.all()}
        sent, self.job.wires.sent = self.job.wires.sent, []
        return {slots[at]: message for at, message in sent if isinstance(message, control.Prefetch)}

    def report(self, slot: int, order: control.Prefetch, left: int = 0, reason: str = "") -> None:
        process = self.job.processes.get(slot)
        assert process is not None
        self.rescales.take_prefetched(process, control.Prefetched(order.request, left, reason))
        self.look()

    def look(self) -> None:
        self.rescales.look()
        if self.answers:
            self.job.work()

    def comes(self, *slots: int) -> None:
        for slot in slots:
            self.job.register(slot)
        self.look()

    def complete(self, checkpoint: int) -> None:
        self.job.listening.restore_from = CheckpointId(checkpoint)
        self.look()

    def switch(self) -> None:
        """The machine of the job has switched over."""
        (request,) = self.requested
        self.job.processes.need(request.slots)
        self.job.heard.clear()
        self.rescales.take(ReportRescale("done"))

    @property
    def requested(self) -> list[core.RescaleRequested]:
        return [event for event in self.job.heard if isinstance(event, core.RescaleRequested)]

    @property
    def phase(self) -> str | None:
        return None if self.rescales.status is None else self.rescales.status.phase


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("standbys", [True, False])
def test_slots_are_started_before_the_switch_and_it_follows_a_checkpoint(standbys: bool) -> None:
    world = World(standbys)
    move = world.moves.rescale(5)
    assert world.cluster.started == [3, 4] and world.phase == "starting"
    assert (move.status, move.left) == ("under_way", ["slot-3", "slot-4"])
    world.comes(3)
    assert move.left == ["slot-4"] and world.rescales.states == {3: "starting", 4: "starting"}
    world.comes(4)
    assert (world.phase, move.left) == ("checkpoint", ["checkpoint"])
    assert core.CheckpointRequested(aligned=True) in world.job.heard and world.requested == []
    world.complete(7)
    (request,) = world.requested
    assert request.slots == (0, 1, 2, 3, 4) and len(request.subtasks) == 10 and world.phase == "switching"
    world.switch()
    move.await_done(0)
    assert world.rescales.status is None and not world.rescales.states and not world.cluster.ended


def test_slots_that_are_not_needed_any_more_end_after_the_switch(world: World) -> None:
    move = world.moves.rescale(1)
    assert world.cluster.started == [] and move.left == ["checkpoint"]
    world.complete(7)
    assert world.requested[0].slots == (0,) and world.cluster.ended == {}
    world.switch()
    assert world.cluster.ended == {1: ENDING_S, 2: ENDING_S} and move.left == ["slot-1", "slot-2"]
    assert [c for c, message in world.job.wires.sent if message == control.Stop()] == [20, 30]
    world.cluster.over(1, 2)
    move.await_done(0)
    assert world.job.heard[-2:] == [core.SpareRemoved(1), core.SpareRemoved(2)]
    assert world.job.processes.numbers == [0]
    world.moves.rescale(2)
    assert world.cluster.started == [3], "no number is used twice"


def test_slots_that_are_joining_do_not_wait_for_those_that_end(world: World) -> None:
    """After the deployment they count as spare slots at first, and all slots are to connect to them."""
    world.moves.rescale(1)
    world.complete(7)
    world.job.wires.sent.clear()
    world.switch()
    orders = [message for _, message in world.job.wires.sent if isinstance(message, control.Connect)]
    assert list(orders[-1].addresses) == ["0"]


def test_the_deployment_that_follows_asks_for_slots_of_the_new_subtasks(world: World) -> None:
    """All that the machine of the job orders in one step is carried out in one: the change, and the deployment."""
    job = world.job
    found: list[SubtaskId] = []

    def orders() -> None:
        job.machines.change_subtasks(1, (0,))
        found.extend(job.protocol.deployment_slots({0: "here"}))

    job.machines.interrupt_failover()
    job.dispatch.soon(orders)
    assert sorted(map(str, found)) == ["count[0]", "lines[0]"]


def test_reserved_slots_take_no_part_in_the_job(world: World) -> None:
    world.moves.rescale(4)
    assert world.job.processes.is_apart(3)
    world.job.presence.register(99, control.Register(3, 0, 1003, "here", "here:3"))
    assert not any(isinstance(message, control.Join | control.Connect) for _, message in world.job.wires.sent)
    process = world.job.processes.get(3)
    assert process is not None
    world.rescales.look()
    world.job.presence.lose(process, "died")
    assert not any(isinstance(event, core.FailureTakenOn) for event in world.job.heard)
    assert core.SlotLost(3, 1, "died") in world.job.heard
    world.rescales.look()
    assert world.phase == "checkpoint"
    world.complete(7)
    assert world.requested == [], "it is waited for"
    world.job.register(3)
    world.complete(8)
    assert len(world.requested) == 1


def test_without_room_the_job_stays_as_it_is(world: World) -> None:
    world.cluster.room = 5
    with pytest.raises(InsufficientSlots):
        world.moves.rescale(6).await_done(0)
    assert world.cluster.started == []
    move = world.moves.rescale(5)
    world.comes(3)
    deadline_ms = world.rescales.next_deadline_ms()
    assert deadline_ms == 130_001
    world.clock.now_s += 30.01
    world.rescales.look()
    with pytest.raises(InsufficientSlots, match="had not started slot-4 after 30 s"):
        move.await_done(0)
    assert world.cluster.ended == {3: ENDING_S, 4: 0.0} and world.phase is None
    assert world.rescales.next_deadline_ms() is None


def test_a_new_request_uses_what_the_one_before_has_started(world: World) -> None:
    first, second = world.moves.rescale(6), world.moves.rescale(4)
    assert world.cluster.started == [3, 4, 5] and world.cluster.ended == {4: 0.0, 5: 0.0}
    with pytest.raises(MoveCancelled, match="replaced by a request for parallelism 4"):
        first.await_done(0)
    third = world.moves.rescale(3)
    third.await_done(0)
    assert world.phase is None and world.cluster.ended.keys() == {3, 4, 5}
    assert isinstance(second, PlannedMove) and second.status == "cancelled"


def test_what_is_refused(world: World) -> None:
    world.moves.rescale(2)
    world.complete(7)
    with pytest.raises(MoveRefused, match="just being switched over to parallelism 2"):
        world.moves.rescale(5).await_done(0)
    world.job.state = JobState.INTERRUPTED
    with pytest.raises(MoveRefused, match="the job is interrupted; try again when it runs"):
        world.moves.rescale(5).await_done(0)
    with pytest.raises(MoveRefused, match="started at parallelism 3 can have up to 103 slots"):
        World().moves.rescale(104).await_done(0)
    for wrong in (0, 129, True, "3", 2.0):
        with pytest.raises(Exception, match="from 1 to 128"):
            check_parallelism(wrong, 128)  # type: ignore[arg-type]


def test_it_waits_for_a_checkpoint_that_can_be_divided(world: World) -> None:
    """One that holds messages which barriers have overtaken cannot, nor can a damaged one."""
    world.overtaken = {7}
    world.moves.rescale(2)
    for unusable in (7, 99):
        world.complete(unusable)
        assert world.requested == [] and world.phase == "checkpoint"
    world.complete(100)
    assert len(world.requested) == 1


@pytest.mark.parametrize("kind", [ConfigurationError, ZeroDivisionError])
def test_what_cannot_be_divided_is_refused_before_the_job_is_interrupted(world: World, kind: type[Exception]) -> None:
    world.refused[7] = kind("operator 'odd' cannot be divided")
    move = world.moves.rescale(4)
    world.comes(3)
    world.complete(7)
    with pytest.raises(MoveCancelled, match="operator 'odd' cannot be divided"):
        move.await_done(0)
    assert world.checked == [(7, 4)] and world.requested == []
    assert world.cluster.ended == {3: ENDING_S} and world.phase is None


def test_a_checkpoint_that_cannot_be_read_is_not_the_last_chance(world: World) -> None:
    world.refused[7] = StateError("no answer")
    move = world.moves.rescale(2)
    world.job.heard.clear()
    world.complete(7)
    assert core.CheckpointRequested(aligned=True) in world.job.heard and world.requested == []
    world.complete(8)
    assert world.checked == [(7, 2), (8, 2)] and len(world.requested) == 1 and move.status == "under_way"


def test_the_newest_checkpoint_is_the_one_that_was_checked(world: World) -> None:
    """The answer for one that is superseded by then, or for a request that is cancelled, has no effect."""
    world.answers = False
    world.refused[7] = ConfigurationError("too many rows in flight")
    world.moves.rescale(2)
    world.complete(7)
    world.complete(7)
    assert world.checked == [(7, 2)] and world.requested == []
    world.complete(8)
    assert world.checked == [(7, 2), (8, 2)]
    world.job.work()
    assert len(world.requested) == 1
    other = World()
    other.answers = False
    other.refused[7] = ConfigurationError("too many rows in flight")
    other.moves.rescale(2)
    other.complete(7)
    move = other.moves.rescale(4)
    other.job.work()
    assert (other.phase, move.status, other.cluster.ended) == ("starting", "under_way", {})


def test_a_failure_while_a_checkpoint_is_checked_is_waited_out(world: World) -> None:
    world.answers = False
    world.moves.rescale(2)
    world.complete(7)
    world.job.listening.state = JobState.INTERRUPTED
    world.job.work()
    assert world.requested == [] and world.phase == "checkpoint"
    world.job.listening.state = JobState.RUNNING
    world.look()
    assert len(world.requested) == 1 and world.checked == [(7, 2)]


def test_a_failure_that_comes_first_is_waited_out(world: World) -> None:
    move = world.moves.rescale(2)
    world.complete(7)
    world.rescales.take(ReportRescale("refused", "the job is interrupted"))
    assert (move.status, world.phase) == ("under_way", "checkpoint")
    world.job.state = JobState.INTERRUPTED
    world.complete(8)
    assert len(world.requested) == 1
    world.job.state = JobState.RUNNING
    world.complete(9)
    assert len(world.requested) == 2


def test_what_cannot_be_divided_is_said(world: World) -> None:
    move = world.moves.rescale(4)
    world.comes(3)
    world.complete(7)
    world.rescales.take(ReportRescale("cancelled", "operator 'odd' cannot be divided"))
    with pytest.raises(MoveCancelled, match="operator 'odd' cannot be divided"):
        move.await_done(0)
    assert world.cluster.ended == {3: ENDING_S} and world.job.processes.own == (0, 1, 2)


# --- state is fetched before the switch


def state_of(*names: str, size: int = 10) -> dict[str, tuple[StateFile, ...]]:
    return {name: (StateFile(f"{name}.sst", "base", 1, size, "checksum"),) for name in names}


def prefetching(**options: Any) -> World:
    """A job with a complete checkpoint, 7, which is to continue at parallelism 4, by rollbacks."""
    world = World(False, **options)
    world.stored = state_of("a", "b", "c", "d")
    world.job.listening.restore_from = CheckpointId(7)
    world.moves.rescale(4)
    world.orders()
    world.comes(3)
    assert world.phase == "prefetching"
    return world


def left(world: World) -> list[str]:
    status = world.rescales.status
    return [] if status is None else status.left


def test_slots_fetch_what_they_will_need_and_then_what_was_added() -> None:
    world = prefetching()
    orders = world.orders()
    assert {slot: [file.name for file in order.files] for slot, order in orders.items()} == {
        0: ["7-a.sst"], 1: ["7-b.sst"], 2: ["7-c.sst"], 3: ["7-d.sst"],
    }  # fmt: skip
    assert left(world) == ["slot-0", "slot-1", "slot-2", "slot-3"]
    world.job.listening.restore_from = CheckpointId(8)
    for slot in range(3):
        world.report(slot, orders[slot])
    world.report(3, orders[3], left=4)
    assert (world.phase, left(world)) == ("prefetching", ["slot-3"]) and not world.orders()
    world.report(3, orders[3])
    again = world.orders()
    assert [file.name for order in again.values() for file in order.files] == [f"8-{name}.sst" for name in "abcd"]
    for slot, order in orders.items():
        world.report(slot, order)
    assert world.phase == "prefetching", "reports about the round before do not count"
    for slot, order in again.items():
        world.report(slot, order)
    assert world.phase == "checkpoint" and world.requested == [], "the switch is at a newer checkpoint"
    world.complete(9)
    assert len(world.requested) == 1
    world.switch()
    assert not world.orders(), "slots drop what they have used by themselves"


def test_standbys_are_fetched_for_too_where_they_will_be() -> None:
    world = World()
    world.stored = state_of("a", "b")
    world.job.listening.restore_from = CheckpointId(7)
    world.moves.rescale(2)
    world.look()
    orders = world.orders()
    names = {slot: sorted(file.name for file in order.files) for slot, order in orders.items()}
    assert names == {0: ["7-a.sst", "7-b.sst"], 1: ["7-a.sst", "7-b.sst"]}


def test_there_are_not_more_rounds_than_help() -> None:
    """Checkpoints come faster than slots fetch them."""
    world = prefetching()
    for checkpoint in range(8, 8 + MAX_ROUNDS):
        world.job.listening.restore_from = CheckpointId(checkpoint)
        orders = world.orders()
        assert len(orders) == 4
        for slot, order in orders.items():
            world.report(slot, order)
    assert world.phase == "checkpoint" and not world.orders()


def test_a_silent_slot_is_not_waited_for_any_longer(caplog: pytest.LogCaptureFixture) -> None:
    world = prefetching()
    orders = world.orders()
    assert world.rescales.next_deadline_ms() == 130_001
    world.clock.now_s += 29
    world.report(0, orders[0], left=3)
    assert world.rescales.next_deadline_ms() == 159_001
    world.clock.now_s += 30.001
    world.job.listening.restore_from = CheckpointId(8)
    world.look()
    assert world.phase == "checkpoint" and world.rescales.next_deadline_ms() is None
    assert "no slot has fetched state for 30 s; left: slot-0, slot-1, slot-2, slot-3" in caplog.text
    assert not world.orders(), "there is no further round"
    world.complete(9)
    assert len(world.requested) == 1


def test_a_large_file_that_came_meanwhile_is_fetched_before_the_switch() -> None:
    """A subtask has written a new base."""
    world = prefetching()
    for slot, order in world.orders().items():
        world.report(slot, order)
    assert world.phase == "checkpoint"
    base = StateFile("a.sst", "base", 1, LITTLE_BYTES + 1, "checksum", stored_as="new-base.sst")
    world.stored["a"] = (base,)
    world.complete(8)
    assert world.phase == "prefetching" and world.requested == []
    orders = world.orders()
    assert [file.stored for file in orders[0].files] == ["new-base.sst"]
    for slot, order in orders.items():
        world.report(slot, order)
    assert world.phase == "checkpoint" and world.requested == [], "the switch is at a newer checkpoint"
    world.complete(9)
    assert len(world.requested) == 1 and not world.orders()


def test_large_files_do_not_delay_the_switch_for_ever() -> None:
    """Every checkpoint has new ones."""
    world = prefetching()
    world.stored = state_of("a", "b", "c", "d", size=2 * LITTLE_BYTES)
    rounds = 0
    for checkpoint in range(8, 20):
        orders = world.orders()
        rounds += bool(orders)
        for slot, order in orders.items():
            world.report(slot, order)
        world.complete(checkpoint)
    assert rounds == MAX_ROUNDS and len(world.requested) == 1


def test_after_a_silent_slot_large_files_are_left_to_the_switch() -> None:
    world = prefetching()
    world.stored = state_of("a", "b", "c", "d", size=2 * LITTLE_BYTES)
    world.clock.now_s += 30.001
    world.look()
    world.complete(8)
    assert len(world.requested) == 1


def test_a_slot_that_ends_is_not_waited_for() -> None:
    world = prefetching()
    orders = world.orders()
    for slot in (0, 1, 2):
        world.report(slot, orders[slot])
    process = world.job.processes.get(3)
    assert process is not None
    world.job.presence.lose(process, "died")
    world.look()
    assert world.phase == "checkpoint"
    world.job.register(3)
    world.report(3, orders[3], left=10)
    assert world.phase == "checkpoint" and world.rescales.next_deadline_ms() is None


def test_files_that_cannot_be_had_do_not_end_the_request(caplog: pytest.LogCaptureFixture) -> None:
    world = prefetching()
    for slot, order in world.orders().items():
        world.report(slot, order, 0, "StateError: no answer" if slot == 2 else "")
    assert world.phase == "checkpoint" and "slot 2 could not prefetch all state: StateError: no answer" in caplog.text


def test_a_checkpoint_whose_files_are_not_known_is_left_to_the_check() -> None:
    world = World(False)
    world.refused[7] = ConfigurationError("operator 'odd' cannot be divided")
    world.job.listening.restore_from = CheckpointId(7)
    move = world.moves.rescale(2)
    world.look()
    assert world.phase == "checkpoint" and not world.orders()
    world.refused[8] = world.refused.pop(7)
    world.complete(8)
    with pytest.raises(MoveCancelled, match="cannot be divided"):
        move.await_done(0)


@pytest.mark.parametrize("parallelism", [3, 2])
def test_slots_drop_the_files_of_a_request_that_is_cancelled_or_replaced(parallelism: int) -> None:
    world = prefetching()
    world.orders()
    world.answers = False
    world.moves.rescale(parallelism)
    dropped = world.orders()
    assert set(dropped) == {0, 1, 2, 3} and not any(order.files for order in dropped.values())


def test_files_of_a_request_that_has_ended_are_not_ordered() -> None:
    """The storage worker answers late."""
    world = World(False)
    world.answers = False
    world.stored = state_of("a", "b")
    world.job.listening.restore_from = CheckpointId(7)
    world.moves.rescale(2)
    assert world.phase == "prefetching"
    world.moves.rescale(3)
    world.job.work()
    assert not world.orders() and not left(world)


# --- rows that are visible at once

HELD = core.CheckpointRequested(aligned=True, holding=True)


@pytest.fixture
def holding(world: World) -> World:
    world.rescales._holding = True
    return world


def test_rows_are_held_back_behind_the_checkpoint_of_the_switch(holding: World) -> None:
    """One that was triggered before is not waited for: rows behind it are visible."""
    world = holding
    world.moves.rescale(2)
    assert world.job.heard[-1] == HELD
    world.job.listening.held = CheckpointId(8)
    world.job.heard.clear()
    world.complete(7)
    assert world.checked == [] and world.job.heard == []
    world.complete(8)
    assert world.checked == [(8, 2)] and len(world.requested) == 1
    assert core.OutputReleased() not in world.job.heard, "the interruption ends the hold"


def test_held_rows_are_released_when_the_rescale_is_called_off_or_has_to_wait(holding: World) -> None:
    world = holding
    world.refused[8] = StateError("no answer")
    world.moves.rescale(2)
    world.job.listening.held = CheckpointId(8)
    world.complete(8)
    assert core.OutputReleased() in world.job.heard and world.requested == []
    world.job.listening.held = None
    world.job.heard.clear()
    world.look()
    assert world.job.heard == [HELD]
    world.refused[9] = ConfigurationError("too many rows in flight")
    world.job.listening.held = CheckpointId(9)
    world.complete(9)
    assert world.job.heard[-1] == core.OutputReleased()
    assert world.phase is None
    world.moves.rescale(2)
    world.job.heard.clear()
    world.moves.rescale(3)
    assert core.OutputReleased() in world.job.heard, "another request came"


def test_held_rows_are_released_while_a_new_slot_is_started_again(holding: World) -> None:
    world = holding
    world.moves.rescale(4)
    world.comes(3)
    world.job.listening.held = CheckpointId(8)
    process = world.job.processes.get(3)
    assert process is not None
    world.job.presence.lose(process, "died")
    world.job.heard.clear()
    world.complete(8)
    assert core.OutputReleased() in world.job.heard and world.requested == []


def test_a_job_that_begins_at_the_parallelism_of_its_checkpoint_is_rescaled_when_it_runs(world: World) -> None:
    world.rescales._wanted = 2
    world.job.listening.state = JobState.DEPLOYING
    world.look()
    assert world.phase is None
    world.job.listening.state = JobState.RUNNING
    world.look()
    assert world.rescales.status is not None and world.rescales.status.parallelism == 2
    world.look()
    world.moves.rescale(3)
    world.look()
    assert world.phase is None, "once"
