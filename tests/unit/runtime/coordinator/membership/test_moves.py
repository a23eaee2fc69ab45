"""Requests for planned moves: from any thread to the machine, and back to whoever waits; from a shell, as well."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from chain_backup.failover.effects import ReportMove
from chain_backup.failover.events import FailoverEvent, HostDrainRequested, HostUndrainRequested, MoveRequested
from flinkplus.errors import CommandRefused, MoveCancelled, MoveRefused, RedundancyAtRisk
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.commands.moves import (
    DrainHostCommand,
    MigrateCommand,
    MoveNewsCommand,
    UndrainHostCommand,
    add_move_commands,
)
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, Moves, PlannedMove
from flinkplus.runtime.operations.commands import Commands, decode_reply, encode_request
from tests.unit.runtime.coordinator.failover_job import Calls

C0 = SubtaskId("count", 0)


class Machine:
    """Stands for ``JobMachines``."""

    def __init__(self, standbys: bool = True) -> None:
        self.failover = self if standbys else None
        self.running = True
        self.job = SimpleNamespace(state=JobState.INTERRUPTED)
        self.events: list[FailoverEvent] = []
        self.moves = Moves(Calls(), self, MoveRequests())  # type: ignore[arg-type]

    @property
    def local_failover(self) -> Machine | None:
        return self.failover if self.running else None

    def step_failover(self, event: FailoverEvent) -> None:
        self.events.append(event)

    def says(self, number: int, status: Any, **told: Any) -> None:
        self.moves.report(ReportMove(number, status, **told))


def test_a_request_is_followed_to_its_end() -> None:
    machine = Machine()
    move = machine.moves.migrate(C0, 3)
    assert machine.events == [MoveRequested(1, C0, 3)]
    assert (move.status, move.left) == (None, [])
    with pytest.raises(TimeoutError, match=r"migrate count\[0\] to slot 3: no answer within 0.01 s"):
        move.await_answer(0.01)
    machine.says(1, "under_way", left=(C0,))
    move.await_answer(0.01)
    assert (move.status, move.left) == ("under_way", ["count[0]"])
    with pytest.raises(TimeoutError, match=r"not done within 0.01 s; left: count\[0\]"):
        move.await_done(0.01)
    machine.says(1, "done")
    move.await_done(0.01)
    assert repr(move) == "<migrate count[0] to slot 3: done>" and move.left == []
    machine.says(1, "cancelled")  # what is over, is over
    move.await_done(0.01)


@pytest.mark.parametrize(
    ("status", "at_risk", "error"),
    [("refused", False, MoveRefused), ("refused", True, RedundancyAtRisk), ("cancelled", False, MoveCancelled)],
)
def test_what_does_not_come_about_is_a_typed_error(status: str, at_risk: bool, error: type[Exception]) -> None:
    machine = Machine()
    move = machine.moves.drain_host("worker-1", force=False)
    assert machine.events == [HostDrainRequested(1, "worker-1", False)]
    machine.says(1, status, reason="because", at_risk=at_risk)
    for wait in (move.await_answer, move.await_done):
        with pytest.raises(error, match=r"^drain worker-1: because$") as caught:
            wait(0.01)
        assert type(caught.value) is error
    assert move.reason == "because"


def test_a_job_that_does_not_run_refuses() -> None:
    machine = Machine()
    machine.running = False
    with pytest.raises(MoveRefused, match="the job is interrupted; try again when it runs"):
        machine.moves.undrain_host("worker-1").await_answer(0.01)
    assert machine.events == []


def test_a_job_without_local_recovery_refuses() -> None:
    with pytest.raises(MoveRefused, match="use recovery='standby'"):
        Machine(standbys=False).moves.migrate(C0, 1).await_answer(0.01)


def test_a_job_that_ends_ends_its_requests() -> None:
    machine = Machine()
    job = machine.moves
    move = job.migrate(C0, 1)
    machine.says(1, "under_way", left=(C0,))
    job.requests.close()
    with pytest.raises(MoveCancelled, match="the job is over"):
        move.await_done(0.01)
    with pytest.raises(MoveRefused, match="the job is over"):
        job.migrate(C0, 1).await_answer(0.01)


def test_old_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flinkplus.runtime.coordinator.membership.moves.KEPT", 2)
    job = Machine().moves
    asked = [job.migrate(C0, slot) for slot in range(4)]
    assert [job.requests.find(move.number) for move in asked] == [None, None, *asked[2:]]


# --------------------------------------------------------------------------------------------------- from a shell


class Shell:
    """A job that takes commands, and the replies so far."""

    def __init__(self, machine: Machine) -> None:
        self.commands = Commands()
        self.replies: list[bytes] = []
        graph: Any = None
        deployment: Any = None
        add_move_commands(self.commands, machine.moves, graph, deployment, 128)

    def asks(self, request: Any) -> None:
        self.commands.obey(encode_request(request), self.replies.append)

    def reply(self) -> dict[str, Any]:
        return decode_reply(self.replies[-1])


def test_a_shell_is_answered_when_it_is_known_and_asks_on() -> None:
    machine = Machine()
    shell = Shell(machine)
    shell.asks(DrainHostCommand("worker-1", force=True))
    assert machine.events == [HostDrainRequested(1, "worker-1", True)] and shell.replies == []
    machine.says(1, "under_way", left=(C0,))
    assert shell.reply() == {"number": 1, "status": "under_way", "left": ["count[0]"]}
    machine.says(1, "done")
    assert len(shell.replies) == 1, "one answer"
    shell.asks(MoveNewsCommand(1))
    assert shell.reply() == {"number": 1, "status": "done", "left": []}
    shell.asks(UndrainHostCommand("worker-1"))
    assert machine.events[-1] == HostUndrainRequested(2, "worker-1")
    machine.says(2, "refused", reason="it is not drained")
    for request in (None, MoveNewsCommand(2), MoveNewsCommand(9)):
        if request is not None:
            shell.asks(request)
        with pytest.raises(CommandRefused, match=r"not drained|request 9 is unknown"):
            shell.reply()


def test_a_request_that_is_refused_at_once_is_answered_at_once() -> None:
    machine = Machine()
    machine.running = False
    shell = Shell(machine)
    shell.asks(UndrainHostCommand("worker-1"))
    with pytest.raises(CommandRefused, match="try again when it runs"):
        shell.reply()


@pytest.mark.parametrize("body", [{"subtask": "count:0"}, {"subtask": "count:0", "slot": "3"}, {"host": 3}])
def test_a_malformed_request_has_no_effect(body: dict[str, Any]) -> None:
    machine = Machine()
    shell = Shell(machine)
    data = json.loads(encode_request(MigrateCommand("count:0", 3)))
    shell.commands.obey(json.dumps({**data, "body": body}).encode(), shell.replies.append)
    with pytest.raises(CommandRefused):
        shell.reply()
    assert machine.events == []


def test_a_move_that_was_answered_before_anybody_asked_to_be_told() -> None:
    move = PlannedMove("move", 1)
    move.report(ReportMove(1, "done"))
    told: list[int] = []
    move.on_answer = lambda: told.append(1)
    move.report(ReportMove(1, "done"))
    assert told == []
