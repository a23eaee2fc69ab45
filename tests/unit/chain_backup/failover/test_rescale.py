"""Other subtasks and slots between two deployments: of the ones before, numbers and drained hosts are left."""

from __future__ import annotations

from typing import Any

import pytest

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.events import HostDrainRequested, JobInterrupted, JobStarted, SlotJoined, SubtasksChanged
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.placement import PlacementError
from chain_backup.failover.recovery_line import VersionCursors
from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.vocabulary.events import SlotLost, SubtaskFailed
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from tests.unit.chain_backup.failover.failover_history import History

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
    for gone in (SlotLost(3, 1, "late"), SubtaskFailed(SubtaskId("count", 3), Generation(2), "late")):
        with pytest.raises(PeerProtocolError):
            history.at(6, gone)


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
