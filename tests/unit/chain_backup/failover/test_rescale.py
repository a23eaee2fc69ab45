"""Other subtasks and slots between two deployments: of the ones before, numbers and drained hosts are left."""

from __future__ import annotations

from typing import Any

import pytest

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import ReportMove, WriteRecords
from chain_backup.failover.events import (
    HeadPersisted,
    HostDrainRequested,
    JobInterrupted,
    JobStarted,
    MoveRequested,
    SlotFenced,
    SlotJoined,
    StandbyPromotionFailed,
    SubtasksChanged,
    VersionStaged,
)
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.placement import PlacementError
from chain_backup.failover.recovery_line import VersionCursors
from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.vocabulary.events import SlotLost, SubtaskFailed
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import History, only

EMPTY = VersionCursors({}, {})


def replaced(history: History, parallelism: int, *slots: int) -> None:
    assert history.at(history.now_ms, JobInterrupted(), SubtasksChanged(parallelism, slots)) == []


def deploy(history: History, generation: int, *slots: int) -> None:
    hosts = tuple((slot, f"host{slot}") for slot in slots)
    history.at(history.now_ms, JobStarted(Generation(generation), 1, (), hosts))


def test_chains_are_those_of_the_new_subtasks_on_the_new_slots() -> None:
    history = History(replicas=2).started()
    replaced(history, 2, 1, 9)
    with pytest.raises(InvariantViolation, match="every slot has one host"):
        deploy(history, 2, 0, 1)
    deploy(history, 2, 1, 9)
    chains = history.machine.chains
    assert {str(name): chain for name, chain in chains.items() if name.vertex == "count"} == {
        "count[0]": (1, 9),
        "count[1]": (9, 1),
    }
    history.at(5, SlotLost(9, 1, "died"))
    assert history.machine.active


def test_late_reports_about_subtasks_and_slots_that_went_are_ignored() -> None:
    history = History(replicas=2).started()
    replaced(history, 2, 1, 9)
    deploy(history, 2, 1, 9)
    gone, kept = SubtaskId("count", 3), SubtaskId("count", 1)
    far = VersionCursors({ChannelId(0, 3, 1): 5}, {})
    before = history.machine.holdings
    for late in (
        VersionStaged(gone, 3, Generation(1), 7),
        VersionStaged(kept, 3, Generation(1), 7),
        HeadPersisted(gone, Generation(1), 7, EMPTY),
        HeadPersisted(kept, Generation(1), 7, far),
        SubtaskFailed(gone, Generation(1), "late"),
        StandbyPromotionFailed(1, 3, gone, "late"),
        SlotFenced(1, 3, ()),
        SlotLost(3, 1, "late"),
    ):
        assert history.at(6, late) == [], late
    assert history.machine.holdings == before
    assert history.at(6, MoveRequested(4, gone, 1)) == [
        ReportMove(4, "refused", "the job has no subtask count[3] any more")
    ]
    for wrong in (
        VersionStaged(gone, 1, Generation(2), 7),  # of the present deployment, which has no such subtask
        VersionStaged(SubtaskId("count", 4), 1, Generation(1), 7),
        HeadPersisted(kept, Generation(2), 7, far),
        MoveRequested(5, SubtaskId("count", 4), 1),
        SlotLost(5, 1, "late"),
    ):
        with pytest.raises(PeerProtocolError):
            history.at(6, wrong)
    replaced(history, 4, 1, 9, 10, 11)
    deploy(history, 3, 1, 9, 10, 11)
    assert history.at(7, VersionStaged(gone, 3, Generation(1), 7), SlotLost(3, 1, "very late")) == []
    assert history.at(7, VersionStaged(gone, 1, Generation(3), 7)) == [], "it is a subtask of the job again"


def test_the_first_records_of_a_deployment_replace_all_others() -> None:
    history = History(replicas=2).started()
    replaced(history, 2, 0, 1)
    hosts = ((0, "host0"), (1, "host1"))
    written = only(WriteRecords, history.at(1, JobStarted(Generation(2), 1, (), hosts)))
    assert written.whole and [r.subtask.index for r in written.records] == [0, 1, 0, 1]
    written = only(WriteRecords, history.at(2, SlotLost(1, 1, "died")))
    assert not written.whole, "a failover writes the records of what failed alone"


def test_numbers_rise_and_drained_hosts_stay_drained() -> None:
    history = History(replicas=2).started(generation=5)
    history.at(0, HostDrainRequested(1, "host1"), SlotLost(3, 1, "died"))
    used = history.machine.newest_generation
    assert used > 5
    replaced(history, 3, 0, 1, 2)
    assert history.machine.newest_generation == used and history.machine.drained_hosts == ("host1",)
    placed = history.machine.deployment_slots({slot: f"host{slot}" for slot in range(3)})
    assert set(placed.values()) == {0, 2}
    with pytest.raises(InvariantViolation, match="a generation was used again"):
        deploy(history, used, 0, 1, 2)


def test_spare_slots_join_again_and_those_that_went_do_not() -> None:
    history = History(replicas=3).started()
    history.at(0, SlotJoined(7, "host7"))
    replaced(history, 2, 0, 1)
    deploy(history, 2, 0, 1)
    history.at(1, SlotJoined(7, "host7"), SlotJoined(3, "host3"))
    assert history.machine.is_alive(7) and not history.machine.is_alive(3)


def test_a_running_job_keeps_its_subtasks() -> None:
    history = History().started()
    with pytest.raises(InvariantViolation, match="while the job is interrupted"):
        history.at(0, SubtasksChanged(2, (0, 1)))


def test_a_strategy_that_finds_no_chain_says_so_before_anything_changes() -> None:
    def picky(index: int, alive: Any, hosts: Any, replicas: int) -> tuple[int, ...]:
        return (3,) if len(alive) < 4 else (index, (index + 1) % 4)

    history = History()
    machine = FailoverProtocol(history.topology, 4, FailoverConfig(replicas=2), picky)
    machine.chains_on(4, (0, 1, 2, 3))
    with pytest.raises(PlacementError):
        machine.chains_on(2, (0, 1))
    assert machine.chains == {}
