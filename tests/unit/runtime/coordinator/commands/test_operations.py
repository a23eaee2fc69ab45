"""What a shell can have a job do: targets are found or refused before anything is done; the status of it all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chain_backup.failover.machine import FailoverProtocol
from flinkplus.config import Options
from flinkplus.errors import CommandRefused, ConfigurationError
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.commands.operations import InjectCommand, Operations
from flinkplus.runtime.coordinator.view import JobView
from flinkplus.runtime.faults.points import Faults
from flinkplus.runtime.operations.commands import Body, Commands, decode_reply, encode_request
from tests.unit.runtime.coordinator.failover_job import C0, C1, C2, L0, L1
from tests.unit.runtime.coordinator.test_reports import Reported


class Graph:
    """What names mean."""

    def vertex_of(self, name: str) -> SubtaskId:
        if name not in ("count", "lines"):
            raise ConfigurationError(f"no operator is called {name!r}")
        return type("Vertex", (), {"name": name})()


class Shell:
    """A job that takes commands; ``on``: the hosts of slots 0, 1 and 2."""

    def __init__(self, on: tuple[str, str, str] = ("here", "here", "there"), **options: Any) -> None:
        self.job = Reported()
        self.later: list[tuple[float, Callable[[], None]]] = self.job.calls.delayed
        self.killed: list[int] = []
        for process, host in zip(self.job.processes.all(), on, strict=True):
            process.host = host
        self.job.presence.kill_slot = self._kill  # type: ignore[method-assign]
        self.operations = Operations(
            self.job.dispatch,
            self.job.deployment,
            self.job.presence,
            Graph(),  # type: ignore[arg-type]
            Options(parallelism=3, **options),
            self.job.calls,  # type: ignore[arg-type]
            self.job.machines,
            Faults((), 1),
        )
        self.commands = Commands()
        self.commands.add(InjectCommand, self.operations.inject)
        self.job.deployment.started()
        self.replies: list[bytes] = []
        self.job.wires.sent.clear()

    def _kill(self, slot: int) -> bool:
        self.killed.append(slot)
        return True

    def inject(self, fault: str, target: str, **settings: Any) -> Body:
        """The answer, when there is one at once."""
        self.commands.obey(encode_request(InjectCommand(fault, target, **settings)), self.replies.append)
        return decode_reply(self.replies.pop())

    def told(self) -> list[tuple[int, control.Inject]]:
        return [(connection // 10 - 1, message) for connection, message in self.job.wires.sent]  # type: ignore[misc]


def test_a_subtask_is_where_it_is_just_now() -> None:
    shell = Shell()
    answer = shell.inject("exception", "count:1")
    assert shell.told() == [(1, control.Inject("exception", ["count[1]"], 1.0, 0.01))]
    assert answer["slots"] == [1] and answer["subtasks"] == ["count[1]"] and answer["for_s"] is None
    shell.job.deployment.assignment = {**shell.job.deployment.assignment, C1: 2}
    shell.inject("exception", "count[1]")
    assert shell.told()[-1][0] == 2


def test_a_slot_stands_for_what_is_on_it_and_a_host_for_its_slots() -> None:
    shell = Shell()
    shell.inject("slow", "slot-2", for_s=3, delay_s=0.5)
    assert shell.told() == [(2, control.Inject("slow", ["count[2]", "lines[2]"], 3.0, 0.5))]
    shell.job.wires.sent.clear()
    assert shell.inject("pause", "here", for_s=2.0)["for_s"] == 2.0
    assert [(slot, order.fault, order.for_s) for slot, order in shell.told()] == [(0, "pause", 2.0), (1, "pause", 2.0)]
    assert shell.inject("kill", "here")["slots"] == [0, 1] and shell.killed == [0, 1]


def test_a_slot_is_cut_off_from_all_or_from_those_named() -> None:
    shell = Shell()
    shell.inject("cut", "slot-0")
    shell.inject("cut", "slot-0", peers=["driver", "slot-2"])
    assert [order.peers for _, order in shell.told()] == [None, [-1, 2]]


@pytest.mark.parametrize(
    ("fault", "target", "settings", "why"),
    [
        ("explode", "count:1", {}, "'explode' is not a fault; the faults are exception, kill, pause, cut, slow"),
        ("kill", "count:3", {}, r"subtasks 0 to 2"),
        ("kill", "words:0", {}, "no operator is called 'words'.*the hosts with slots are here, there"),
        ("kill", "elsewhere", {}, "not a subtask, slot or host of this job"),
        ("kill", "slot-3", {}, "slot-0 to slot-2"),
        ("pause", "slot-0", {"for_s": 0.0}, "the duration"),
        ("pause", "slot-0", {"for_s": 1e6}, "the duration"),
        ("slow", "slot-0", {"delay_s": -1.0}, "the delay"),
        ("cut", "slot-0", {"peers": ["nobody"]}, "'nobody' is not a peer"),
        ("cut", "slot-0", {"peers": ["slot-7"]}, "'slot-7' is not a peer"),
        ("kill", "slot-0", {"at_s": -1.0}, "number of seconds"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_happens(
    fault: str, target: str, settings: dict[str, Any], why: str
) -> None:
    shell = Shell()
    with pytest.raises(CommandRefused, match=why):
        shell.inject(fault, target, **settings)
    assert shell.told() == [] and shell.killed == [] and shell.later == []


@pytest.mark.parametrize(
    ("target", "peers"), [("slot-1", ["slot-1"]), ("count:1", ["slot-1"]), ("here", ["slot-1"]), ("slot-1", [])]
)
def test_nobody_is_cut_off_from_itself(target: str, peers: list[str]) -> None:
    shell = Shell()
    with pytest.raises(CommandRefused, match=r"slot-[01] would be cut off only from itself"):
        shell.inject("cut", target, peers=peers)
    assert shell.told() == []
    shell.inject("cut", target, peers=["slot-0", "slot-1", "driver"])
    assert shell.told() != []


def test_a_cut_whose_target_has_moved_to_its_peer_is_refused_when_it_is_time() -> None:
    shell = Shell()
    request = InjectCommand("cut", "count:1", at_s=100.0, peers=["slot-2"])
    shell.commands.obey(encode_request(request), shell.replies.append)
    shell.job.deployment.assignment = {**shell.job.deployment.assignment, C1: 2}
    shell.later[0][1]()
    with pytest.raises(CommandRefused, match="slot-2 would be cut off only from itself"):
        decode_reply(shell.replies.pop())
    assert shell.told() == []


def test_what_is_away_is_refused() -> None:
    shell = Shell()
    shell.job.processes.remove(1)
    for target in ("slot-1", "count:1"):
        with pytest.raises(CommandRefused, match="registered"):
            shell.inject("kill", target)
    shell.job.processes.remove(2)
    with pytest.raises(CommandRefused, match="the hosts with slots are here"):
        shell.inject("kill", "there")
    shell.job.deployment.assignment = {}
    with pytest.raises(CommandRefused, match="no subtask is running on slot-0"):
        shell.inject("exception", "slot-0")
    shell.job.processes.remove(0)
    with pytest.raises(CommandRefused, match="no slot is registered"):
        shell.inject("kill", "here")


def test_a_job_may_take_no_injections_and_grpc_cannot_be_cut() -> None:
    with pytest.raises(CommandRefused, match="allow_inject=False"):
        Shell(allow_inject=False).inject("kill", "slot-0")
    with pytest.raises(CommandRefused, match="cut needs transport 'tcp'"):
        Shell(transport="grpc").inject("cut", "slot-0")
    assert Shell(transport="grpc").inject("pause", "slot-0")["slots"] == [0]


def test_when_it_is_time_the_target_is_looked_for_again() -> None:
    shell = Shell()
    request = encode_request(InjectCommand("exception", "count:1", at_s=5.0))
    shell.commands.obey(request, shell.replies.append)
    ((delay_s, strike),) = shell.later
    assert 4 < delay_s <= 5 and shell.replies == [] and shell.told() == []
    shell.job.deployment.assignment = {**shell.job.deployment.assignment, C1: 0}
    strike()
    assert [slot for slot, _ in shell.told()] == [0] and decode_reply(shell.replies.pop())["slots"] == [0]
    shell.commands.obey(request, shell.replies.append)
    shell.job.deployment.assignment = {}
    shell.later[-1][1]()
    with pytest.raises(CommandRefused, match="not assigned to a registered slot"):
        decode_reply(shell.replies.pop())


def test_who_has_gone_before_it_was_time_hurts_nobody() -> None:
    shell = Shell()
    later = shell.commands.obey(encode_request(InjectCommand("kill", "slot-0", at_s=5.0)), shell.replies.append)
    later.wanted = False
    shell.later[0][1]()
    assert shell.killed == []


def test_the_past_and_a_job_that_has_not_begun() -> None:
    shell = Shell()
    shell.job.deployment.first_started_s = shell.job.dispatch.clock.monotonic() - 10
    with pytest.raises(CommandRefused, match=r"running for 10\.\d s already, which is more than 5 s"):
        shell.inject("kill", "slot-0", at_s=5.0)
    shell.job.deployment.first_started_s = None
    with pytest.raises(CommandRefused, match="is not running yet"):
        shell.inject("kill", "slot-0", at_s=5.0)


# --- status


class At:
    """A clock that stands at 1.5 s."""

    def monotonic(self) -> float:
        return 1.5


def view(job: Reported, counters: dict[str, Any] | None = None) -> JobView:
    figures: Any = SimpleNamespace(subtasks=lambda: counters or {})
    unused: Any = None
    job.dispatch.clock = At()  # type: ignore[assignment]
    return JobView(
        job.dispatch, job.machines, job.deployment, unused, figures, job.presence, job.stamps, job.triggers, None, None
    )


def test_slots_say_what_they_do_and_who_is_away() -> None:
    job = Shell().job
    for _ in range(2):
        job.register(1)
    job.processes.remove(2)
    job.deployment.assignment = {C0: 0, L0: 0}
    found = view(job).slots()
    assert [slot.state for slot in found] == ["working", "standby", "away"]
    assert [slot.restarts for slot in found] == [0, 2, 0]
    assert found[0].to_json() | {"heard_ms": None} == {
        "slot": "slot-0",
        "spare": False,
        "state": "working",
        "host": "here",
        "pid": 1000,
        "address": "here:0",
        "restarts": 0,
        "heard_ms": None,
        "subtasks": 2,
        "standbys": 2,
    }
    assert found[0].heard_ms == 1500.0
    job.deployment.assignment = {}
    job.stamps.mode = "partial"
    assert view(job).slots()[1].state == "idle"


def test_subtasks_say_where_they_are_and_how_far() -> None:
    counters = {
        "count[1]": {"rows_out": 5, "operators": {"count": {"rows_in": 7}, "out": {"rows_in": 5}}, "waiting": 3}
    }
    job = Shell().job
    job.processes.remove(2)
    job.deployment.assignment = {C1: 1, C2: 2, L1: 0}
    job.deployment.generations = {C1: Generation(4), C2: Generation(1), L1: Generation(1)}
    job.triggers.moves([L1])
    found = view(job, counters).subtasks()
    assert [(one.subtask, one.state, one.generation) for one in found] == [
        ("count[1]", "running", 4),
        ("count[2]", "away", 1),
        ("lines[1]", "moving", 1),
    ]
    assert (found[0].rows_in, found[0].rows_out, found[0].waiting_messages) == (7, 5, 3)
    assert found[1].rows_out is None


def test_members_of_chains_say_how_far_they_are_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Shell().job
    holdings = [(C1, 4, 9, [(1, 9, False), (2, 7, False), (0, None, True)])]
    monkeypatch.setattr(FailoverProtocol, "holdings", property(lambda _self: holdings))
    (chain,) = view(job).chain_states()
    assert (chain.subtask, chain.generation, chain.newest) == ("count[1]", 4, 9)
    assert [(m.slot, m.role, m.version, m.lag, m.catching_up) for m in chain.members] == [
        ("slot-1", "head", 9, 0, False),
        ("slot-2", "standby", 7, 2, False),
        ("slot-0", "standby", None, 9, True),
    ]
