"""Which machine a slot's report is for, and which reports come too late to count."""

from __future__ import annotations

import os
import pickle
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from chain_backup.zookeeper.records import RegistryMoved
from flinkplus.config import Options
from flinkplus.errors import (
    HistoryMismatch,
    InsufficientSlots,
    JobFailed,
    MessageIdConflict,
    NondeterministicOperator,
    PeerProtocolError,
    SlotStartError,
    UserFunctionError,
)
from flinkplus.graph import JobGraph
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import EndJob, JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.coordinator import Coordinator
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.dispatch.listeners import Listeners
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.reports import Reports
from flinkplus.runtime.coordinator.setup.outcome import JobResult, Restore, error_of
from flinkplus.runtime.coordinator.wiring import Parts
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.ports import ControlArrived
from flinkplus.state.durable.storage import CheckpointStorage
from tests.handles import handle_of
from tests.unit.runtime.coordinator.failover_job import C1, G1, L1, Job
from tests.unit.runtime.slot.slots_in_process import graph_of

HANDLE = handle_of()


class Reported(Job):
    """A job with the coordinator's ears; ``standbys``: whether it has a machine of failover."""

    def __init__(self, standbys: bool = True) -> None:
        super().__init__(standbys)
        self.figures = Figures(JobGraph())
        self.reports = Reports(
            self.dispatch,
            self.machines,
            self.deployment,
            self.recoveries,
            self.figures,
            self.presence,
            self.driver if standbys else None,
        )

    def receive(self, slot: int, message: control.ControlMessage) -> list[object]:
        """What the machines of the job and of checkpoints hear of a message."""
        self.heard.clear()
        process = self.processes.get(slot)
        assert process is not None
        self.reports.take(process.connection, message)
        return [event for event in self.heard if not isinstance(event, core.GenerationsUsed)]

    def fail_over(self) -> None:
        """Slot 1 is lost; slot 2 takes its subtasks over in generation 2."""
        self.lose(1)
        self.work()
        self.fence()
        self.promoted()


def acked(generation: int, subtask: str = "count[1]") -> control.Acknowledged:
    return control.Acknowledged(generation, 1, subtask, HANDLE)


def test_what_a_subtask_says_is_of_the_deployment_to_the_other_machines() -> None:
    job = Reported()
    job.fail_over()
    assert job.receive(2, acked(2)) == [core.CheckpointAcknowledged(CheckpointId(1), C1, G1, HANDLE)]
    assert job.receive(2, control.Declined(2, 1, "count[1]", "full")) == [
        core.CheckpointDeclined(CheckpointId(1), C1, G1, "full")
    ]
    handle = handle_of(in_flight_bytes=77)
    assert job.receive(2, control.Acknowledged(2, 1, "count[1]", handle)) == [
        core.CheckpointAcknowledged(CheckpointId(1), C1, G1, handle, 77)
    ]
    assert job.receive(2, control.Declined(2, 1, "count[1]", "many", "over budget")) == [
        core.CheckpointDeclined(CheckpointId(1), C1, G1, "many", AbortCause.OVER_BUDGET)
    ]
    with pytest.raises(PeerProtocolError, match="cause of a declined checkpoint: 'whim'"):
        job.receive(2, control.Declined(2, 1, "count[1]", "no", "whim"))
    assert job.receive(2, control.Declined(2, 1, "count[1]", "full")) == [
        core.CheckpointDeclined(CheckpointId(1), C1, G1, "full")
    ]
    assert job.receive(2, control.Exhausted(2, "lines[1]")) == [core.SourceExhausted(L1, G1)]


def test_what_a_replaced_subtask_says_has_no_effect() -> None:
    job = Reported()
    job.fail_over()
    for late in (
        acked(1),
        control.Declined(1, 1, "count[1]", "full"),
        control.Exhausted(1, "lines[1]"),
        control.Failed(1, "count[1]", "ValueError", "boom"),
    ):
        assert job.receive(2, late) == []
    assert job.receive(2, acked(1, "nobody[0]")) == []


def test_the_exception_of_a_subtask_is_handled_locally_while_the_job_runs() -> None:
    job = Reported()
    (told,) = job.receive(1, control.Failed(1, "count[1]", "ValueError", "boom", time_s=1.0))
    assert isinstance(told, core.FailureTakenOn)
    assert (told.kind, told.reason) == ("exception", "count[1]: boom")
    assert job.machines.local_failover is not None


def test_the_exception_of_a_subtask_is_for_the_job_when_that_does_not_run() -> None:
    for job in (Reported(), Reported(standbys=False)):
        job.state = JobState.DEPLOYING
        (told,) = job.receive(1, control.Failed(1, "count[1]", "ValueError", "boom"))
        assert isinstance(told, core.SubtaskFailed)
        assert (told.generation, told.subtask, told.reason) == (G1, C1, "boom")


@pytest.mark.parametrize("standbys", [True, False])
def test_the_error_of_a_users_function_says_everything_once(standbys: bool) -> None:
    job = Reported(standbys)
    raised = UserFunctionError("poison", "poison[1]", "Row(n=5000)", "ValueError: no")
    said = control.Failed(
        1, "count[1]", "UserFunctionError", str(raised), raised.operator, raised.row, 1.0, raised.cause
    )
    (told,) = job.receive(1, said)
    assert isinstance(told, core.FailureTakenOn | core.SubtaskFailed)
    error = told.error
    assert isinstance(error, UserFunctionError)
    assert (error.operator, error.subtask, error.row, error.cause) == (
        "poison",
        "count[1]",
        "Row(n=5000)",
        "ValueError: no",
    )
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == str(raised)
    ended = error_of(EndJob(JobState.FAILED, error, f"count[1]: {told.reason}", "exception"), 3)
    shown = f"{ended} ({error})" if str(error) not in str(ended) else str(ended)
    for word in ("'poison'", "Row(n=5000)", "ValueError: no"):
        assert shown.count(word) == 1


@pytest.mark.parametrize("kind", ["InputError", "NondeterministicOperator"])
def test_other_errors_of_a_subtask_are_said_once_too(kind: str) -> None:
    told, *_ = Reported().receive(1, control.Failed(1, "count[1]", kind, f"{kind}: bad.txt", time_s=1.0))
    assert isinstance(told, core.FailureTakenOn | core.FailoverFellBack)
    assert str(told.error) in told.reason


@pytest.mark.parametrize(("error", "conflicts"), [(MessageIdConflict, 1), (NondeterministicOperator, 0)])
def test_a_history_that_does_not_match_is_a_rollback_and_conflicts_are_counted(
    error: type[HistoryMismatch], conflicts: int
) -> None:
    job = Reported()
    told = job.receive(1, control.Failed(1, "count[1]", error.__name__, "message 3", time_s=1.0))
    assert [type(event) for event in told] == [core.FailureTakenOn, core.FailoverFellBack], "counted, then refused"
    assert all(type(event.error) is error for event in told if isinstance(event, core.FailureTakenOn))
    assert job.stamps.counts["fallbacks"] == 1
    assert job.figures.totals()["message_ids"]["conflicts"] == conflicts


def test_a_slot_whose_session_is_lost_is_lost() -> None:
    job = Reported()
    assert [type(event) for event in job.receive(1, control.SessionLost("expired"))] == [
        core.FailureTakenOn,
        core.SlotLeft,
    ]
    assert job.processes.get(1) is None
    assert job.wires.dropped == [20]


def test_why_a_slot_cannot_start_is_for_the_job_and_for_the_user() -> None:
    job = Reported()
    job.heard.clear()
    job.reports.take(77, control.StartFailed(1, 4, 4711, "host-1", "ImportError", "libspecial.so.3", "Traceback ..."))
    (told,) = job.heard
    assert isinstance(told, core.SlotStartFailed) and isinstance(told.error, SlotStartError)
    assert told.slot == 1 and told.reason == "slot 1 cannot start on host-1: ImportError: libspecial.so.3"
    assert job.wires.dropped == [77] and job.processes.get(1) is not None
    ended = EndJob(JobState.FAILED, told.error, f"{told.reason} (3 times in a row)", "slots")
    error = error_of(ended, 3)
    assert isinstance(error, JobFailed) and error.__cause__ is told.error and "libspecial" in str(error)
    assert isinstance(error_of(replace(ended, error=None), 3), InsufficientSlots)


def test_without_standbys_a_lost_slot_is_for_the_job() -> None:
    job = Reported(standbys=False)
    assert job.receive(1, control.SessionLost("expired")) == [core.SlotLost(1, 1, "expired")]


def test_what_comes_on_a_connection_that_was_given_up_has_no_effect() -> None:
    job = Reported()
    job.heard.clear()
    job.reports.take(99, acked(1))
    assert job.heard == []


def test_a_new_attempt_replaces_the_old_one_and_joins() -> None:
    job = Reported()
    job.heard.clear()
    job.reports.take(77, control.Register(1, 1, 4711, "here", "here:9"))
    kinds = [type(event) for event in job.heard if not isinstance(event, core.GenerationsUsed)]
    assert kinds == [core.FailureTakenOn, core.SlotLeft, core.SlotRegistered]
    assert [type(message) for connection, message in job.wires.sent if connection == 77] == [
        control.Welcome,
        control.Join,
        control.Connect,
    ]


def test_slots_learn_where_the_jobs_server_is_now_and_later_ones_before_they_connect() -> None:
    job = Reported()
    job.records.moved = "here:2"
    job.presence.registry_reported(RegistryMoved("here:2"))
    moved = control.RegistryAddress("here:2")
    there = {process.connection for process in job.processes.all()}
    assert {connection for connection, message in job.wires.sent if message == moved} == there
    job.reports.take(77, control.Register(1, 1, 4711, "here", "here:9"))
    assert next(message for connection, message in job.wires.sent if connection == 77) == moved


def test_an_earlier_attempt_of_the_spark_task_is_sent_away() -> None:
    """Spark has given its executor up and started the slot elsewhere, and it comes back."""
    job = Reported()
    job.reports.take(77, control.Register(1, 8, 4711, "there", "there:9"))
    job.heard.clear()
    job.reports.take(78, control.Register(1, 7, 4711, "here", "here:9"))
    assert job.heard == []
    assert [message for connection, message in job.wires.sent if connection == 78] == [control.Stop()]
    process = job.processes.get(1)
    assert process is not None and process.host == "there"
    job.reports.take(79, control.Register(1, 8, 4712, "there", "there:9"))
    process = job.processes.get(1)
    assert process is not None and process.pid == 4712


def test_a_spark_job_that_fails_counts_as_a_failed_start() -> None:
    job = Reported()
    job.heard.clear()
    job.presence.slot_failed(1, "slot 1 cannot start: ModuleNotFoundError: No module named 'flinkplus'")
    (said,) = job.heard
    assert isinstance(said, core.SlotStartFailed) and isinstance(said.error, SlotStartError) and said.slot == 1


def test_a_missing_module_is_named_with_what_to_do() -> None:
    job = Reported()
    job.heard.clear()
    job.reports.take(77, control.StartFailed(1, 0, 4711, "host-1", "ModuleNotFoundError", "No module named 'shop'"))
    (said,) = job.heard
    assert isinstance(said, core.SlotStartFailed)
    assert "slot 1 cannot start on host-1" in said.reason and "No module named 'shop'; install" in said.reason


# --- slots that do not reach each other


class Standing(Reported):
    """Time passes as the test says."""

    def __init__(self, standbys: bool = True) -> None:
        super().__init__(standbys)
        self.later_s = 0.0
        self.dispatch.clock = self

    def monotonic(self) -> float:
        return time.monotonic() + self.later_s

    time = monotonic

    def unreached(self, slot: int, **peers: int) -> None:
        self.receive(slot, control.PeersUnreached({name.removeprefix("slot"): peers[name] for name in peers}))

    def look(self, after_s: float) -> None:
        self.later_s += after_s
        for process in self.processes.all():
            process.heard_s = self.monotonic()
        self.presence.look_for_silent_slots()

    def is_there(self, slot: int) -> bool:
        return self.processes.get(slot) is not None


def test_of_two_slots_that_do_not_reach_each_other_one_is_ended_and_its_subtasks_go_on_elsewhere() -> None:
    job = Standing()
    job.unreached(1, slot2=1)
    due_ms = job.presence.next_deadline_ms()
    assert due_ms is not None and due_ms - job.dispatch.now_ms() <= 100
    job.look(0.05)
    assert job.is_there(2), "the other one may have something to say"
    job.look(0.06)
    assert job.is_there(1) and not job.is_there(2)
    assert [fence.failed for fence in job.told(control.Fence, 1)] == [{"lines[2]": 0, "count[2]": 0}]


def test_what_is_said_of_a_process_that_is_gone_has_no_effect() -> None:
    job = Standing()
    job.unreached(1, slot2=7)
    assert job.presence.next_deadline_ms() is None
    job.look(1.0)
    assert job.is_there(2)


def test_a_slot_that_refuses_connections_is_ended_and_its_subtasks_go_on_elsewhere() -> None:
    job = Standing()
    job.receive(2, control.PeersUnreached({"1": 1, "0": 7}, {"1": 1, "0": 7}))
    job.look(0.2)
    assert job.is_there(2) and job.is_there(0) and not job.is_there(1)
    (fence,) = job.told(control.Fence, 2)
    assert set(fence.failed) == {"lines[1]", "count[1]"}


def test_what_is_no_slot_is_refused() -> None:
    job = Standing()
    with pytest.raises(PeerProtocolError, match="not a slot"):
        job.unreached(1, nobody=1)


def test_slots_of_a_job_without_standbys_are_ended_too() -> None:
    job = Standing(standbys=False)
    job.unreached(0, slot1=1)
    job.look(0.2)
    assert job.is_there(0) and not job.is_there(1)


def test_one_that_comes_back_from_there_joins_after_a_pause() -> None:
    job = Standing()
    job.unreached(1, slot2=1)
    job.look(0.2)
    job.told(control.Connect)
    register = control.Register(2, 1, 1002, "here", "here:22")
    job.reports.take(99, register)
    assert job.told(control.Connect) == [], "not yet"
    job.look(2.0)
    (peers,) = job.told(control.Connect, 1)
    assert sorted(peers.addresses) == ["0", "1", "2"]
    job.unreached(1, slot2=2)
    job.look(0.2)
    assert job.is_there(2), "it has not joined, so it has nothing to lose"
    (peers,) = job.told(control.Connect, 1)
    assert sorted(peers.addresses) == ["0", "1"]


def test_what_is_refused_and_dropped_is_in_the_jobs_figures(tmp_path: Path) -> None:
    """Of strangers at the driver, of what slots report, and of reports that make no sense."""
    graph = graph_of(10, 1)
    options = Options(parallelism=2, recovery="rollback")
    calls = Calls(Inbox(), JobResult())
    listeners = Listeners(options, "127.0.0.1", Credentials(b"secret"), calls)
    dispatch, commits = listeners.dispatch, Commits(graph.sinks(), CheckpointStorage(tmp_path))
    coordinator = Coordinator(Parts(graph, options, commits, Restore(), dispatch, calls))
    pulses = dispatch.pulses = listeners.open_pulses()
    assert pulses is not None
    said: list[control.ControlMessage] = [
        control.Register(1, 0, 17, "elsewhere", "elsewhere:1"),
        control.Heartbeat(1, {}, 5, 2),
        control.Exhausted(1, "no subtask"),
        control.Declined(1, 1, "count[\u00b2]", ""),
    ]
    for message in said:
        coordinator.turn(ControlArrived(1, message, 0.0), None)
    dispatch.rendezvous.refusals.count("here", "proof", "a stranger")
    dispatch.rendezvous.malformed += 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"x" * 50, parse_address(pulses.address))
        pulses.receive()
    figures = coordinator.view.security()
    assert figures["refused_connections"] == 5 + 1 and figures["malformed_frames"] == 2 + 2 + 1
    assert figures["refused_datagrams"] == 1
    dispatch.end_writes()
    dispatch.close()
    dispatch.inbox.close()


class Pulsing:
    """Pulses that are asked who is silent, and say so of ``gone``."""

    timeout_s, due = 0.4, True

    def __init__(self, *gone: str) -> None:
        self.gone = list(gone)
        self.asked: list[tuple[Any, Any]] = []

    def silent(self, slots: Any, chains: Any) -> list[str]:
        self.asked.append((list(slots), chains))
        return self.gone

    def forget(self, name: str) -> None:
        self.gone.remove(name)


def pulsed(job: Reported) -> None:
    for slot in range(3):
        process = job.processes.get(slot)
        assert process is not None
        process.pulse, process.host, process.heard_s = f"pulse-{slot}", f"host{slot}", job.dispatch.clock.monotonic()


def test_who_is_silent_is_judged_by_where_slots_are_and_who_could_take_over() -> None:
    job = Reported()
    pulsed(job)
    pulses = Pulsing("pulse-1")
    expected = sorted([f"pulse-{slot}" for slot in members] for members in job.protocol.chains.values())
    job.dispatch.pulses = pulses  # type: ignore[assignment]
    job.presence.look_for_silent_slots()
    ((slots, chains),) = pulses.asked
    assert [(slot.name, slot.host) for slot in slots] == [(f"pulse-{slot}", f"host{slot}") for slot in range(3)]
    assert sorted(chains) == expected
    assert [process.slot for process in job.processes.all()] == [0, 2]


def test_without_standbys_no_chain_has_anybody_left() -> None:
    job = Reported(standbys=False)
    pulsed(job)
    pulses = Pulsing()
    job.dispatch.pulses = pulses  # type: ignore[assignment]
    job.presence.look_for_silent_slots()
    assert pulses.asked[0][1] is None


# --- slots on the driver's own host are ended by a signal, when that can be


def on_this_host(job: Reported, pid: int, created_s: float = 0.0) -> list[int]:
    """Slot 1 says that it is here; its connection."""
    register = control.Register(1, 0, pid, socket.gethostname(), "here:1", created_s=created_s)
    job.reports.take(77, register)
    job.wires.dropped.clear()
    job.wires.sent.clear()
    return [77]


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_slot_that_takes_no_signal_loses_its_stream(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    job = Reported()
    connections = on_this_host(job, 4711)

    def refuse(pid: int, number: int) -> None:
        raise error(1, "it is not to be")

    monkeypatch.setattr(os, "kill", refuse)
    assert job.presence.kill_slot(1)
    assert job.wires.sent == [(77, control.Die())], "its process can do it itself"
    process = job.processes.get(1)
    assert process is not None
    job.presence.evict(process, "it hangs")
    assert job.wires.dropped == connections and job.processes.get(1) is None


@pytest.mark.parametrize(("off_s", "is_its_own"), [(0.0, True), (-3600.0, False)])
def test_only_the_process_that_has_registered_is_killed(
    monkeypatch: pytest.MonkeyPatch, off_s: float, is_its_own: bool
) -> None:
    """A number means another process in a container, and another one later on."""
    job = Reported()
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    on_this_host(job, os.getpid(), psutil.Process().create_time() + off_s)
    process = job.processes.get(1)
    assert process is not None
    job.presence.evict(process, "it hangs")
    assert (killed == [os.getpid()]) is is_its_own
    assert job.processes.get(1) is None
